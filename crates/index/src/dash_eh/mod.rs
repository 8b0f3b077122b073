//! Dash extendible hashing (Lu et al., VLDB '20).
//!
//! The directory of extendible hashing over Dash segments: 64 buckets of 14 pairs, and 2 stash buckets.
//!
//! ```text
//!   directory (a run)      segment (a block of 16,896 bytes)
//!   ┌────┬────┬────┬────┐   ┌───────┬───────┬────────┬─ ... ─┬─────────┐
//!   │ 00 │ 01 │ 10 │ 11 │──▶│stash 0│stash 1│bucket 0│       │bucket 63│
//!   └────┴────┴────┴────┘   └───────┴───────┴────────┴─ ... ─┴─────────┘
//!      top G bits            its first word: depth L | prefix
//!
//!   hash   63 ... G top bits ... │ ... │ 13 ... 8: home bucket │ 7 ... 0: fingerprint
//! ```
//!
//! A full segment is split by its next hash bit. The pairs whose bit is 1 are copied to a new segment, into the same
//! buckets. Then the old copies are marked dead.
//!
//! # Invariants
//! IX-DASHEH-1  The buckets satisfy IX-DASH-1 to IX-DASH-4 of Dash, the directory satisfies IX-EXT-1 to IX-EXT-4 of extendible hashing.
//! IX-DASHEH-2  A pair is live iff its bit is set and the top L bits of its key's hash are the segment's prefix.
//! IX-DASHEH-3  The bits of moved pairs are cleared after the directory names the new segment. They become durable with the old
//!     segment's new depth.
//!
//! # Crash argument
//! | crash between                 | recovery sees                            | and does                          |
//! |-------------------------------|------------------------------------------|-----------------------------------|
//! | parts of an insert            | see the table of `dash`                  | see there                         |
//! | parts of a split              | see the table of `extendible`            | see there                         |
//! | directory, bits and depth     | pairs of the new segment live in the old | the depth first; the old one's    |
//! |                               |                                          | first access marks them dead (IX-DASHEH-2) |
//! | (a kill) store, drain         | visible bytes that are not durable       | makes them durable at first access|
//!
//! # Deviations from the paper
//! * Locks are in DRAM, one per segment. The paper's are in far memory, one per bucket, in the bucket's first line,
//!   which every insert and delete dirties. [`DashEhConfig::as_published`] writes them too, without relying on them.
//! * The allocator's intents name an interrupted split. The paper finds it by a chain of segments.
//! * The first access after an open is recognised by the version lock of the segment. The paper uses versions in the
//!   directory's entries. The published version is used before it is persistent (fault `dash.no_mending` shows the
//!   consequence).
//! * The directory names the new segment before the old pairs are dead. The published split clears the old segment
//!   durably first, and its recovery expects another state than the split leaves: a crash in between loses half of a
//!   segment (fault `dash-eh.bits_first`).
//! * A moved pair keeps its bucket, which the next hash bit does not change. The paper inserts it again.
//! * A split moves pairs of the stash to their buckets where slots are free.
//! * Segments are never merged, which is also the paper's default.
//! * The directory has no space for segments that it never names, unlike the published code's.

mod check;
mod layout;
mod ops;
mod recover;
mod resize;

use farbank_pm::Medium;
use farbank_pm::fault::NamedFault;

use crate::dash::{BucketLayout, DashShape, NO_MENDING};
use crate::error::OpenError;
use crate::extendible::ExtendibleDirectory;
use crate::locks::LockTable;
use crate::pool_heap::{PoolPlan, TablePool};

/// The table's name on the command line.
pub const NAME: &str = "dash-eh";

/// Faults of this table.
pub(crate) const FAULTS: [NamedFault; 2] = [
    NamedFault {
        name: "dash-eh.bits_first",
        description: "moved pairs are dead in the old segment before the directory names the new segment",
        source: "the published code, whose recovery does not complete such a split",
        shows_in: None,
    },
    NO_MENDING,
];

/// Configuration of a table, fixed at its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DashEhConfig {
    /// Shape of its segments.
    pub shape: DashShape,
    /// Depth of the first directory: 2^depth segments.
    pub depth: u32,
    /// Whether writers also store the locks in the buckets and persist every pair separately, even one in the line of
    /// its bit, as the published code does.
    pub as_published: bool,
}

impl DashEhConfig {
    /// Returns the paper's configuration, with segments of 64 buckets of 14 slots for `slots` slots, rounded down to a
    /// power of two.
    #[must_use]
    pub fn paper(slots: u64) -> DashEhConfig {
        let segments = (slots / (64 * 14)).max(2);
        DashEhConfig {
            shape: DashShape::PAPER,
            depth: segments.ilog2(),
            as_published: false,
        }
    }

    /// Returns a configuration so small that a dozen keys split segments and double the directory.
    #[must_use]
    pub fn small() -> DashEhConfig {
        DashEhConfig {
            shape: DashShape {
                bucket_bits: 2,
                stash: 1,
                slots: 2,
            },
            depth: 1,
            as_published: false,
        }
    }

    /// Returns the published variant: locks in far memory, every pair persisted separately.
    #[must_use]
    pub fn published(self) -> DashEhConfig {
        DashEhConfig {
            as_published: true,
            ..self
        }
    }
}

/// A Dash table over extendible hashing.
pub struct DashEh<M> {
    table_pool: TablePool<M>,
    config: DashEhConfig,
    form: BucketLayout,
    directory: ExtendibleDirectory,
    locks: LockTable,
}

impl<M: Medium> DashEh<M> {
    fn over(ground: TablePool<M>, config: DashEhConfig, found: bool) -> DashEh<M> {
        let form = BucketLayout::of(config.shape, None, config.as_published);
        DashEh {
            locks: ground.locks(form.segment_bytes, found),
            directory: ExtendibleDirectory::of(&ground, form.segment_bytes),
            form,
            table_pool: ground,
            config,
        }
    }

    /// Creates an empty table that uses all of `medium`. Durable on `Ok`.
    pub fn create(
        medium: M,
        plan: &PoolPlan,
        config: DashEhConfig,
    ) -> Result<DashEh<M>, OpenError> {
        config.check()?;
        let ground = TablePool::create(medium, plan, &config.classes())?;
        let table = DashEh::over(ground, config, false);
        table.make_first()?;
        let DashEh {
            table_pool: ground, ..
        } = table;
        let ground = ground.finish(NAME, &config.words())?;
        Ok(DashEh::over(ground, config, false))
    }

    /// Opens the table on `medium`. Recovery completes interrupted splits first.
    pub fn open(medium: M) -> Result<DashEh<M>, OpenError> {
        let ground = TablePool::open(medium, NAME, |words| {
            Ok(DashEhConfig::of(words)?.classes().to_vec())
        })?;
        let config = DashEhConfig::of(ground.config())?;
        let table = DashEh::over(ground, config, true);
        table.recover()?;
        Ok(table)
    }
}
