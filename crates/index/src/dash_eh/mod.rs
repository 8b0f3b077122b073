//! Dash extendible hashing (Lu et al., VLDB '20).
//!
//! The directory of extendible hashing over segments of Dash's buckets: 64 of 14 pairs, and 2 of stash.
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
//! A segment with no room for a key is split by its next hash bit: the pairs whose bit is 1 are written to a new one, in
//! the same buckets; then they are made dead where they were.
//!
//! # Invariants
//! I1  The buckets keep S1 to S4 of Dash, the directory D1 to D4 of extendible hashing.
//! I2  A pair is live iff its bit is set and the top L bits of its key's hash are the segment's prefix.
//! I3  The bits of pairs that moved are cleared after the directory names the young segment, with the elder's depth.
//!
//! # Crash argument
//! | crash between                 | recovery sees                            | and does                          |
//! |-------------------------------|------------------------------------------|-----------------------------------|
//! | parts of an insert            | what `dash` lists                        | what is said there                |
//! | parts of a split              | what `extendible` lists                  | and there                         |
//! | directory, bits and depth     | pairs of the young one live in the elder | the depth first; at the elder's   |
//! |                               |                                          | first touch makes them dead (I2)  |
//! | (a kill) store, drain         | bytes a power cut could take back        | makes them durable at first touch |
//!
//! # Where we differ from the paper
//! Locks live in DRAM, one a segment; the paper's are one a bucket, in the bucket's first line, which every insert
//! and delete dirties ([`Config::as_published`] writes them too, without relying on them). The paper's segments form a
//! chain by which a split that was cut short is found; here the allocator's intents name it. What the paper does at the
//! first touch after a crash, by versions in the directory's entries, is done by the lock of a segment that nobody has
//! had: no version in far memory to keep (the published one is not persisted before it is relied on: fault
//! `dash.no_mending` is what follows). The published split clears the elder durably before the directory names the young
//! segment, and its recovery looks for another state than the split leaves: a crash between loses half of a segment
//! (fault `dash-eh.bits_first`). A pair that moves keeps its bucket, which the next hash bit does not change; the paper
//! inserts it anew. What is in the stash is brought home by a split, where there is room. Segments are never merged, nor are the paper's by default. The directory is not allocated with room for
//! segments it never names, as the published code's is.

mod layout;
mod resize;

use farbank_pm::fault::NamedFault;
use farbank_pm::{Medium, Off, WORD};

use crate::dash::{
    BucketLayout, DashSegments, DashShape, DashTable, LockedDashSegment, NO_MENDING, SegmentPlace,
};
use crate::extendible::{DirectoryEntry, ExtendibleDirectory, SegmentHeader};
use crate::index::IndexError;
use crate::locks::{LockTable, VersionedRef};
use crate::pool_heap::{OpenError, PoolPlan, TablePool, TableWorker};

/// Its name.
pub const NAME: &str = "dash-eh";

/// Deviations it has by name.
pub(crate) const FAULTS: [NamedFault; 2] = [
    NamedFault {
        name: "dash-eh.bits_first",
        what: "pairs that a split moves are dead in the elder before the directory names the new segment",
        source: "the published code, whose recovery does not end such a split",
        shows_in: None,
    },
    NO_MENDING,
];

/// How a table is arranged; fixed when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DashEhConfig {
    /// Of its segments.
    pub shape: DashShape,
    /// Depth of the first directory: 2^depth segments.
    pub depth: u32,
    /// Whether writers also do what the published code does and this does without: write the locks in the buckets they
    /// lock, and make a pair durable by itself also where it is in the line of its bit.
    pub as_published: bool,
}

impl DashEhConfig {
    /// The paper's: as many segments as `slots` take in 64 buckets of 14, rounded down to a power of two.
    #[must_use]
    pub fn paper(slots: u64) -> DashEhConfig {
        let segments = (slots / (64 * 14)).max(2);
        DashEhConfig {
            shape: DashShape::PAPER,
            depth: segments.ilog2(),
            as_published: false,
        }
    }

    /// Small enough that a dozen keys split segments and double the directory.
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

    /// As published: locks in far memory, every pair made durable by itself.
    #[must_use]
    pub fn published(self) -> DashEhConfig {
        DashEhConfig {
            as_published: true,
            ..self
        }
    }
}

/// The table.
pub struct DashEh<M> {
    ground: TablePool<M>,
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
            ground,
            config,
        }
    }

    /// Makes an empty table of all of `medium`. Durable on `Ok`.
    pub fn create(
        medium: M,
        plan: &PoolPlan,
        config: DashEhConfig,
    ) -> Result<DashEh<M>, OpenError> {
        config.check()?;
        let ground = TablePool::create(medium, plan, &config.classes())?;
        let table = DashEh::over(ground, config, false);
        table.make_first()?;
        let DashEh { ground, .. } = table;
        let ground = ground.finish(NAME, &config.words())?;
        Ok(DashEh::over(ground, config, false))
    }

    /// Opens the table on `medium`, after a crash or not: splits that were cut short are ended first.
    pub fn open(medium: M) -> Result<DashEh<M>, OpenError> {
        let ground = TablePool::open(medium, NAME, |words| {
            Ok(DashEhConfig::of(words)?.classes().to_vec())
        })?;
        let config = DashEhConfig::of(ground.config())?;
        let table = DashEh::over(ground, config, true);
        table.directory.recover(&table.ground)?;
        Ok(table)
    }
}

impl<M: Medium> DashTable for DashEh<M> {
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

    type Way = DirectoryEntry;

    #[inline]
    fn lookup(&self, hash: u64) -> VersionedRef<DirectoryEntry> {
        self.directory.lookup(&self.ground, hash)
    }

    #[inline]
    fn still(&self, _: u64, led: VersionedRef<DirectoryEntry>) -> bool {
        self.directory.still(&self.ground, led)
    }

    #[inline]
    fn prefetch_lookup(&self, hash: u64) {
        let entry = self.directory.directory().entry_of(hash);
        self.ground.medium().prefetch(entry, WORD);
    }

    fn validate(&self, segment: Off, hash: u64) -> Result<(), IndexError> {
        self.directory.validate(&self.ground, segment, hash)
    }

    fn owns(&self, segment: Off, hash: u64) -> bool {
        SegmentHeader::at(self.ground.medium(), segment).owns(hash)
    }

    fn grow(
        &self,
        worker: &mut TableWorker,
        held: LockedDashSegment<'_>,
    ) -> Result<(), IndexError> {
        self.split(worker, &held)
    }

    fn each_segment(
        &self,
        each: &mut dyn FnMut(Off, u64) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        self.directory.each_segment(&self.ground, each)
    }

    fn parts(&self) -> Result<(u64, u64), IndexError> {
        let mut segments = 0;
        self.each_segment(&mut |_, _| {
            segments += 1;
            Ok(())
        })?;
        let bytes = segments * self.form.segment_bytes + self.directory.directory().bytes();
        Ok((segments * self.config.shape.segment_slots(), bytes))
    }

    fn check_all(&self) -> Result<(), IndexError> {
        self.directory.check(&self.ground, |segment, hash| {
            self.check_segment(segment, hash)
        })
    }
}
