//! Dash linear hashing (Lu et al., VLDB '20).
//!
//! Segments of Dash's buckets, numbered; as many as there have been splits, and they are split in the order of their
//! numbers, whichever is full. One that is full before its turn gets a longer stash.
//!
//! ```text
//!   root              directory (a run)       arrays (runs) of segments
//!   ┌───────────┐     ┌────┬────┬─ ... ─┐      ┌──┬──┬─ ... ─┬──┐
//!   │ N │ next  │     │ 0  │ 1  │       │  0 ─▶│ 0│ 1│       │63│          each array of the first 8 has 64 segments,
//!   ├───────────┤     └────┴────┴─ ... ─┘      ├──┼──┼─ ... ─┼──┤          each of the next 8 has 128, and so on
//!   │ directory │                         1 ─▶│64│65│       │127
//!   └───────────┘                              └──┴──┴─ ... ─┴──┘
//!
//!   segment   stash 0's word: its number; the last of the stash's: what is chained
//!   hash      63 ... 56: fingerprint │ 55 ... 50: home bucket │ ... │ N - 1 ... 0: number, one bit more below `next`
//! ```
//!
//! There are 2^N + next segments. Whoever adds a bucket to a stash then splits two segments: `next` into itself and the
//! one behind the last, which is made before the word of N and next says so. That word is one store.
//!
//! # Invariants
//! I1  The buckets keep S1 to S5 of Dash.
//! I2  A pair is live iff its bit is set and its segment's number is what N and next make of its key's hash.
//! I3  A segment is durable, whole, with what is chained to it, before N and next count it.
//! I4  N and next are durable before anybody sees them; they are changed under `growing` and the lock of the segment that
//!     is split, whose moved pairs are made dead, durably, before that lock is let go.
//! I5  An entry of the directory names an array only when all words of its segments that chain are durable and zero.
//!     So whatever leads from the segment that comes next is what a split was making.
//!
//! # Crash argument
//! | crash between               | recovery sees                             | and does                              |
//! |-----------------------------|-------------------------------------------|---------------------------------------|
//! | parts of an insert          | what `dash` lists                         | what is said there                    |
//! | new array, its entry        | a run in doubt that no entry names        | frees it                              |
//! | parts of a copy             | buckets chained to the segment that comes | nothing (I5): it is made anew, with   |
//! |                             | next                                      | them, when its turn comes again       |
//! | N and next, moved bits      | pairs live that are another segment's     | at first touch makes them dead (I2)   |
//! | (a kill) store, drain       | bytes a power cut could take back         | makes them durable at first touch     |
//!
//! # Where we differ from the paper
//! Locks live in DRAM, one a segment ([`Config::as_published`] writes the paper's, one a bucket, without relying on them).
//! The paper first counts the segment and has whoever meets it split it off, with states of both in far memory; here
//! whoever counts it has split it off before, so that a search never finds a segment that is not there yet. That an array is
//! being made is known by a lock; the published code says it in the directory, and a crash leaves it so for ever (fault
//! `dash-lh.reserved`). The allocator's intent names it meanwhile; the published code leaks it (fault
//! `dash-lh.array_leaks`). Versions of crashes are the first touch's, as in Dash's extendible table. What is chained is
//! named to searches like the rest of the stash, from the fourth bucket on together; the published code counts it only. It
//! stays chained when a split has emptied it. Where arrays are is looked up in DRAM, where an open copies the directory.

mod layout;
mod recover;
mod resize;

use farbank_pm::fault::NamedFault;
use farbank_pm::sync::Mutex;
use farbank_pm::sync::atomic::{AtomicU64, Ordering};
use farbank_pm::{Medium, Off};

use crate::dash::{
    BucketLayout, DashSegments, DashShape, DashTable, LockedDashSegment, NO_MENDING, SegmentPlace,
};
use crate::index::IndexError;
use crate::locks::{LockTable, VersionedRef};
use crate::pool_heap::{OpenError, PoolPlan, TablePool, TableWorker};
use layout::{CHAINED, DIRECTORY, DIRECTORY_BYTES, LinearState, STATE};

/// Its name.
pub const NAME: &str = "dash-lh";

/// Deviations it has by name.
pub(crate) const FAULTS: [NamedFault; 3] = [
    NamedFault {
        name: "dash-lh.reserved",
        what: "the directory says in far memory that an array is being made",
        source: "the published code: after a crash whoever needs the array waits for it for ever",
        shows_in: None,
    },
    NamedFault {
        name: "dash-lh.array_leaks",
        what: "an array that no entry names yet is not freed after a crash",
        source: "the published code, whose recovery does not look at where it is being allocated",
        shows_in: None,
    },
    NO_MENDING,
];

/// How a table is arranged; fixed when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DashLhConfig {
    /// Of its segments.
    pub shape: DashShape,
    /// Segments at first, as a power of two.
    pub bits: u32,
    /// Segments of the first array, as a power of two.
    pub array_bits: u32,
    /// How many arrays are of one size before the next is twice as large, as a power of two.
    pub stride_bits: u32,
    /// Segments that are split when a stash has grown.
    pub splits: u32,
    /// Whether writers also do what the published code does and this does without: write the locks in the buckets they
    /// lock, and make a pair durable by itself also where it is in the line of its bit.
    pub as_published: bool,
}

impl DashLhConfig {
    /// The paper's: 8 arrays of a size, the first of 64 segments, or of all there are at first: as many as `slots` take
    /// in 64 buckets of 14, rounded down to a power of two.
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

    /// Small enough that a dozen keys split segments and need another array.
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

    /// As published: locks in far memory, every pair made durable by itself.
    #[must_use]
    pub fn published(self) -> DashLhConfig {
        DashLhConfig {
            as_published: true,
            ..self
        }
    }
}

/// The table.
pub struct DashLh<M> {
    ground: TablePool<M>,
    config: DashLhConfig,
    form: BucketLayout,
    /// Where the directory is, for good.
    directory: Off,
    /// What the directory says, a word for as many segments as the first array has: where segment 0 would be, did their
    /// array reach down to it.
    zeroths: Box<[AtomicU64]>,
    /// The root's word of N and next, where readers look.
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
            ground,
            config,
        }
    }

    /// Makes an empty table of all of `medium`. Durable on `Ok`.
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
        let ground = table.ground.finish(NAME, &config.words())?;
        Ok(DashLh { ground, ..table })
    }

    /// Opens the table on `medium`, after a crash or not: what a split that was cut short has taken is freed first.
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

impl<M: Medium> DashTable for DashLh<M> {
    type Medium = M;

    const NAME: &'static str = NAME;

    #[inline]
    fn ground(&self) -> &TablePool<M> {
        &self.ground
    }

    #[inline]
    fn dash(&self) -> DashSegments<'_, M> {
        DashSegments::of(&self.ground, &self.form)
    }

    #[inline]
    fn locks(&self) -> &LockTable {
        &self.locks
    }

    #[inline]
    fn place(&self, hash: u64) -> SegmentPlace {
        self.config.place(hash)
    }

    type Way = LinearState;

    #[inline]
    fn lookup(&self, hash: u64) -> VersionedRef<LinearState> {
        let state = self.state();
        VersionedRef {
            to: self.segment(state.number(hash)),
            by: state,
        }
    }

    #[inline]
    fn still(&self, hash: u64, led: VersionedRef<LinearState>) -> bool {
        let now = self.state();
        now == led.by || now.number(hash) == led.by.number(hash)
    }

    /// Nothing: two words of DRAM that are there.
    fn prefetch_lookup(&self, _: u64) {}

    fn validate(&self, segment: Off, hash: u64) -> Result<(), IndexError> {
        let (says, number) = (
            self.ground.medium().load(segment),
            self.state().number(hash),
        );
        if says == number {
            return Ok(());
        }
        Err(IndexError::damaged(format!(
            "{segment:?} is where segment {number} was expected, and says that it is {says:#x}"
        )))
    }

    fn owns(&self, segment: Off, hash: u64) -> bool {
        self.ground.medium().load(segment) == self.state().number(hash)
    }

    fn grow(
        &self,
        worker: &mut TableWorker,
        held: LockedDashSegment<'_>,
    ) -> Result<(), IndexError> {
        drop(held); // it may be its turn
        self.split_some(worker)
    }

    /// A number is a hash that leads there.
    fn each_segment(
        &self,
        each: &mut dyn FnMut(Off, u64) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        (0..self.state().count()).try_for_each(|number| each(self.segment(number), number))
    }

    /// The slots of arrays count from when they are there.
    fn parts(&self) -> Result<(u64, u64), IndexError> {
        let (shape, dash) = (self.config.shape, self.dash());
        let (mut chained, mut segments) = (0, 0);
        self.each_segment(&mut |segment, _| {
            chained += dash.chained(segment).count() as u64;
            Ok(())
        })?;
        self.each_array(|array, _| segments += self.config.segments(array));
        let slots = segments * shape.segment_slots() + chained * u64::from(shape.slots);
        let bytes = segments * self.form.segment_bytes + chained * shape.bucket_bytes();
        Ok((slots, bytes + DIRECTORY_BYTES))
    }

    fn dram_bytes(&self) -> u64 {
        self.locks.bytes() + size_of_val(&*self.zeroths) as u64
    }

    fn check_all(&self) -> Result<(), IndexError> {
        self.check_segments()
    }
}
