//! Dash linear hashing (Lu et al., VLDB '20).
//!
//! Dash segments, numbered. Each split adds one segment. Segments are split in the order of their numbers, independent
//! of which is full. A segment that is full before its turn gets more stash buckets.
//!
//! ```text
//!   root              directory (a run)       arrays (runs) of segments
//!   ┌───────────┐     ┌────┬────┬─ ... ─┐      ┌──┬──┬─ ... ─┬──┐
//!   │ N │ next  │     │ 0  │ 1  │       │  0 ─▶│ 0│ 1│       │63│          the first 8 arrays have 64 segments each,
//!   ├───────────┤     └────┴────┴─ ... ─┘      ├──┼──┼─ ... ─┼──┤          the next 8 have 128 each, and so on
//!   │ directory │                         1 ─▶│64│65│       │127
//!   └───────────┘                              └──┴──┴─ ... ─┴──┘
//!
//!   segment   word of stash 0: its number; word of the last fixed stash bucket: the first chained bucket
//!   hash      63 ... 56: fingerprint │ 55 ... 50: home bucket │ ... │ N - 1 ... 0: number, one bit more below `next`
//! ```
//!
//! There are 2^N + next segments. A thread that chains a stash bucket then splits two segments, one after the other. A
//! split distributes segment `next` over itself and a new segment after the last. The new segment is durable before the
//! word of N and next counts it. That word is replaced by one store.
//!
//! # Invariants
//! IX-DASHLH-1  The buckets satisfy IX-DASH-1 to IX-DASH-5 of Dash.
//! IX-DASHLH-2  A pair is live iff its bit is set and its segment's number is the one that N and next select for its key's hash.
//! IX-DASHLH-3  A segment and its chained buckets are completely durable before N and next count it.
//! IX-DASHLH-4  N and next are durable before other threads see them. They are changed under `growing` and the lock of the
//!     segment being split. Its moved pairs are durably dead before that lock is released.
//! IX-DASHLH-5  An entry of the directory names an array only after the chain words of all its segments are durably zero. So a
//!     chain of the segment after the last can only come from an interrupted split.
//!
//! # Crash argument
//! | crash between               | recovery sees                             | and does                              |
//! |-----------------------------|-------------------------------------------|---------------------------------------|
//! | parts of an insert          | see the table of `dash`                   | see there                             |
//! | new array, its entry        | a run in doubt that no entry names        | frees it                              |
//! | parts of a copy             | buckets chained to the segment after the  | nothing (IX-DASHLH-5): the next split reuses   |
//! |                             | last                                      | them                                  |
//! | N and next, moved bits      | live pairs that belong to another segment | the first access marks them dead (IX-DASHLH-2) |
//! | (a kill) store, drain       | visible bytes that are not durable        | makes them durable at first access    |
//!
//! # Deviations from the paper
//! * Locks are in DRAM, one per segment. [`DashLhConfig::as_published`] writes the paper's, one per bucket, without
//!   relying on them.
//! * A segment is split before N and next count it, so a search never meets a segment that does not exist yet. The
//!   paper counts the segment first; the first thread that accesses it performs the split, with the states of both
//!   segments in far memory.
//! * A lock says that an array is being created. The published code says it in the directory, and a crash leaves the
//!   mark for ever (fault `dash-lh.reserved`).
//! * The allocator's intent names the array meanwhile. The published code leaks it (fault `dash-lh.array_leaks`).
//! * The first access after an open is recognised by the version lock, as in the extendible table.
//! * Chained buckets have entries in the buckets' words like the fixed stash buckets; from the fourth stash bucket on,
//!   all share one number. The published code only counts their pairs. A chained bucket stays when a split has emptied
//!   it.
//! * Lookups use a DRAM copy of the directory, which the open creates.

mod check;
mod layout;
mod ops;
mod recover;
mod resize;

use farbank_pm::fault::NamedFault;
use farbank_pm::sync::Mutex;
use farbank_pm::sync::atomic::{AtomicU64, Ordering};
use farbank_pm::{Medium, Off};

use crate::dash::{BucketLayout, DashShape, NO_MENDING};
use crate::error::OpenError;
use crate::locks::LockTable;
use crate::pool_heap::{PoolPlan, TablePool};
use layout::{CHAINED, DIRECTORY, LinearState, STATE};

/// The table's name on the command line.
pub const NAME: &str = "dash-lh";

/// Faults of this table.
pub(crate) const FAULTS: [NamedFault; 3] = [
    NamedFault {
        name: "dash-lh.reserved",
        description: "the directory marks in far memory that an array is being created",
        source: "the published code: after a crash, operations that need the array wait for ever",
        shows_in: None,
    },
    NamedFault {
        name: "dash-lh.array_leaks",
        description: "an array that no entry names yet is not freed after a crash",
        source: "the published code, whose recovery does not check the allocation in progress",
        shows_in: None,
    },
    NO_MENDING,
];

/// Configuration of a table, fixed at its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DashLhConfig {
    /// Shape of its segments.
    pub shape: DashShape,
    /// Binary logarithm of the initial number of segments.
    pub bits: u32,
    /// Binary logarithm of the segments of the first array.
    pub array_bits: u32,
    /// Binary logarithm of the number of arrays of one size; after them the size doubles.
    pub stride_bits: u32,
    /// Number of splits when a stash has grown.
    pub splits: u32,
    /// Whether writers also store the locks in the buckets and persist every pair separately, even one in the line of
    /// its bit, as the published code does.
    pub as_published: bool,
}

impl DashLhConfig {
    /// Returns the paper's configuration: 8 arrays of a size; the first has 64 segments, or all initial segments. The
    /// initial number is `slots` in segments of 64 buckets of 14 slots, rounded down to a power of two.
    #[must_use]
    pub fn paper(slots: u64) -> DashLhConfig {
        let bits = (slots / (64 * 14)).max(2).ilog2();
        DashLhConfig {
            shape: DashShape::PAPER,
            bits,
            array_bits: bits.min(6),
            stride_bits: 3,
            splits: 2,
            as_published: false,
        }
    }

    /// Returns a configuration so small that a dozen keys split segments and need another array.
    #[must_use]
    pub fn small() -> DashLhConfig {
        DashLhConfig {
            shape: DashShape {
                bucket_bits: 1,
                stash: 2,
                slots: 1,
            },
            bits: 1,
            array_bits: 1,
            stride_bits: 1,
            splits: 2,
            as_published: false,
        }
    }

    /// Returns the published variant: locks in far memory, every pair persisted separately.
    #[must_use]
    pub fn published(self) -> DashLhConfig {
        DashLhConfig {
            as_published: true,
            ..self
        }
    }
}

/// A Dash table over linear hashing.
pub struct DashLh<M> {
    table_pool: TablePool<M>,
    config: DashLhConfig,
    form: BucketLayout,
    /// Offset of the directory, which never moves.
    directory: Off,
    /// DRAM copy of the directory, one word for each group of segments as large as the first array. It holds the offset
    /// where segment 0 would be if the group's array extended down to it.
    zeroths: Box<[AtomicU64]>,
    /// DRAM copy of the root's word of N and next, for readers.
    state: AtomicU64,
    growing: Mutex<()>,
    locks: LockTable,
}

impl<M: Medium> DashLh<M> {
    fn over(ground: TablePool<M>, config: DashLhConfig, found: bool) -> DashLh<M> {
        let form = BucketLayout::of(config.shape, Some(CHAINED), config.as_published);
        let word = |n| ground.medium().load(ground.root(n));
        let segments = ground.medium().len() / form.segment_bytes;
        let zeroths = 0..=segments >> config.array_bits;
        DashLh {
            locks: ground.locks(form.segment_bytes, found),
            directory: Off(word(DIRECTORY)),
            zeroths: zeroths.map(|_| AtomicU64::new(0)).collect(),
            form,
            state: AtomicU64::new(word(STATE)),
            growing: Mutex::new(()),
            table_pool: ground,
            config,
        }
    }

    /// Creates an empty table that uses all of `medium`. Durable on `Ok`.
    pub fn create(
        medium: M,
        plan: &PoolPlan,
        config: DashLhConfig,
    ) -> Result<DashLh<M>, OpenError> {
        config.check()?;
        let ground = TablePool::create(medium, plan, &config.classes())?;
        let mut worker = ground.worker()?;
        config.make_directory(&ground, &mut worker)?;
        let table = DashLh::over(ground, config, false);
        table.make_first(&mut worker)?;
        drop(worker);
        let ground = table.table_pool.finish(NAME, &config.words())?;
        Ok(DashLh {
            table_pool: ground,
            ..table
        })
    }

    /// Opens the table on `medium`. Recovery frees what an interrupted split has allocated.
    pub fn open(medium: M) -> Result<DashLh<M>, OpenError> {
        let ground = TablePool::open(medium, NAME, |words| {
            Ok(DashLhConfig::of(words)?.classes().to_vec())
        })?;
        let config = DashLhConfig::of(ground.config())?;
        let table = DashLh::over(ground, config, true);
        table.recover()?;
        Ok(table)
    }

    #[inline]
    fn state(&self) -> LinearState {
        LinearState::of(self.state.load(Ordering::Acquire))
    }
}
