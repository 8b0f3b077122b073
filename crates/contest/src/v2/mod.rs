//! `v2`: the final round's third place. A set takes one write to far memory.
//!
//! All keys are in DRAM. Far memory holds records only, and recovery rebuilds the index from them. Published time: 35.8
//! seconds, 27.1 of them for sets.
//!
//! ```text
//!   DRAM   heads: u32 x 2^28 ──▶ key nodes ─────────┐      read cache: 2^18 slots, one per stripe
//!                                                   ▼
//!   far    ┌──────┬────────┬────────────────────────────────────┬─ ... ─┐
//!          │ next │ unused │ segment of 2 MiB: records, spares   │       │
//!          └──────┴────────┴────────────────────────────────────┴─ ... ─┘
//!          0      8        16                                    the word at 0 is the end of the last segment
//! ```
//!
//! A set locks its stripe, empties the key's slot of the read cache and looks the key up. It then does one of these:
//!
//! * *insert*: it writes the record, with version 1, to a new block from the thread's segment, or, near the end of
//!   memory, to a block from its recycle pool;
//! * *swap*, if the old block is large enough: it writes the record, with the next version, to the thread's spare of
//!   the same size. The old block becomes the spare;
//! * *append*: it writes the record to a new block. The old block goes to the recycle pool.
//!
//! # Invariants, as published
//! V2-INV-1  The word at 0 is durable before anything is written to a segment that it newly covers.
//! V2-INV-2  A record is one write and is durable when the set returns. The index refers to it only then.
//! V2-INV-3  The blocks of a segment follow each other without a gap, up to 16 zero bytes or the segment's end.
//! V2-INV-4  The record of a key with the highest version is valid; of equal versions, the one at the highest offset.
//!
//! # Crash argument, as published, and where it fails
//! | a crash                         | recovery sees              | and does                                     |
//! |---------------------------------|----------------------------|----------------------------------------------|
//! | before a record's first word    | the former contents        | takes them as a record, a spare, or the end  |
//! | within a record                 | a checksum that is wrong   | frees the block, *if* the checksum is wrong (V2-DEFECT-1) |
//! | after it                        | two versions               | takes the higher one, *if* it is higher (V2-DEFECT-2, V2-DEFECT-3) |
//!
//! V2-DEFECT-1  The checksum covers 36 of 150 bytes: [`V2Checksum::Published`].
//! V2-DEFECT-2  The version is a signed byte: after 127 updates a record looks like a spare.
//! V2-DEFECT-3  An append writes the next version but does not store it in the index, so the next record has the same version.
//! V2-DEFECT-4  The blocks that recovery frees are dropped before a worker can use them.
//! V2-DEFECT-5  Recovery does not make the records it finds durable. The last write of a killed process is shown, and a power
//!     cut may lose it later.
//!
//! [`V2Tuning`] has a switch for each of V2-DEFECT-1 and V2-DEFECT-3 to V2-DEFECT-5. A fix for V2-DEFECT-2 would need another layout.
//!
//! # Deviations from the published engine
//! Sizes follow the given far memory, and threads are not always new: see `space.rs`. A node of the index is reserved
//! before the record is written, so that a refused set changes nothing. Recovery stops at a block that would reach
//! beyond its segment; the published recovery reads on.

mod index;
mod record;
mod recover;
mod worker;

#[cfg(feature = "check")]
use farbank_pm::sim::Sim;
use farbank_pm::sync::{Arc, Mutex, unpoisoned};
use farbank_pm::{Medium, Off, PersistCtx};

use crate::block::UNIT;
use crate::engine::{Engine, EngineStats, OpenError, Worker};
use crate::limits::ContestLimits;
use crate::read_cache::ReadCache;
use crate::recycle::{BlockPools, ReusePolicy};
use crate::space::{self, BlockSpace, PUBLISHED_THREADS, ScaledCounts, SpaceLayout};
use crate::stripes::{LockStripes, StripeLock};
#[cfg(feature = "check")]
use crate::target::{EngineConfig, box_engine};

use index::V2Index;
use record::HEADER;
pub use record::V2Checksum;

/// Offset of the first segment.
const START: u64 = 16;

/// Number of writes per record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WritesPerRecord {
    /// One, as published.
    One,
    /// Two, each drained: first all but the first word, then the first word. This models the cost of a set that also
    /// writes an index entry.
    Two,
}

/// Options of the engine. [`V2Tuning::PUBLISHED`] is the published engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct V2Tuning {
    /// Number of writes per record.
    pub writes: WritesPerRecord,
    /// Whether creation writes one line per 2 MiB of a new pool, so that no set causes a page fault.
    pub preheat: bool,
    /// Sharing of recycle pools.
    pub pools: BlockPools,
    /// Rule for reusing blocks.
    pub reuse: ReusePolicy,
    /// Whether a get reuses the caller's buffer instead of a new one.
    pub value_reuse: bool,
    /// Kind of stripe locks.
    pub lock: StripeLock,
    /// Whether updates use spares.
    pub swaps: bool,
    /// Whether a thread's first 6,000 updates (at full scale) are appended if the spare is more than a segment away.
    /// This moves hot records close to the thread's spares.
    pub locality: bool,
    /// Number of read-cache slots and of lock stripes. `None` means 2^18 at full scale; 0 turns the cache off.
    pub cache_slots: Option<u64>,
    /// Bytes of a segment at full scale: 2 MiB in the published code, 4 MiB in the authors' description.
    pub segment_bytes: u64,
    /// Checksum that detects torn records.
    pub checksum: V2Checksum,
    /// Whether an append stores its new version in the index. Published: no (V2-DEFECT-3).
    pub appends_count: bool,
    /// Whether blocks that recovery frees can be reused. Published: no (V2-DEFECT-4).
    pub keep_recovered_pools: bool,
    /// Whether recovery makes the records it accepts durable. Published: no (V2-DEFECT-5).
    pub persist_recovered: bool,
}

impl V2Tuning {
    /// The published engine.
    pub const PUBLISHED: V2Tuning = V2Tuning {
        writes: WritesPerRecord::One,
        preheat: true,
        pools: BlockPools::PerThread,
        reuse: ReusePolicy::NearTheEnd,
        value_reuse: true,
        lock: StripeLock::Spin,
        swaps: true,
        locality: true,
        cache_slots: None,
        segment_bytes: 2 << 20,
        checksum: V2Checksum::Published,
        appends_count: false,
        keep_recovered_pools: false,
        persist_recovered: false,
    };

    /// The engine with all fixes that need no other layout: a checksum of all bytes, versions that appends count, freed
    /// blocks that stay free, and a recovery that makes records durable. A key still has only 127 versions.
    pub const FIXED: V2Tuning = V2Tuning {
        checksum: V2Checksum::Crc32,
        appends_count: true,
        keep_recovered_pools: true,
        persist_recovered: true,
        ..V2Tuning::PUBLISHED
    };
}

impl Default for V2Tuning {
    fn default() -> V2Tuning {
        V2Tuning::PUBLISHED
    }
}

/// The open engine.
pub struct V2<M: Medium> {
    core: Arc<V2Core<M>>,
}

/// State shared by the workers.
struct V2Core<M> {
    medium: M,
    tuning: V2Tuning,
    stripes: LockStripes,
    cache: ReadCache,
    index: V2Index,
    space: BlockSpace,
    tally: Mutex<EngineStats>,
}

impl<M: Medium> V2<M> {
    /// Creates an empty engine in the first [`ContestLimits::far_bytes`] of `medium`, which must be zeros. Only the
    /// first word is checked. On `Ok` the engine is durable.
    pub fn create(medium: M, terms: &ContestLimits, tuning: V2Tuning) -> Result<V2<M>, OpenError> {
        let engine = V2::with_end(medium, terms, tuning, START)?;
        let found = engine.core.medium.load(Off(0));
        if found != 0 {
            return Err(OpenError::Unfit(format!(
                "create needs a medium of zeros, but its first word is {found:#x}: open it, or use a new file"
            )));
        }
        engine.core.begin(&mut creators_ctx(terms))?;
        Ok(engine)
    }

    /// Opens the engine in `medium`, which was created with the same limits and segment size. Reads every record. If
    /// the first word is 0, creates a new engine.
    pub fn open(medium: M, terms: &ContestLimits, tuning: V2Tuning) -> Result<V2<M>, OpenError> {
        let next = medium.load(Off(0));
        if next == 0 {
            return V2::create(medium, terms, tuning);
        }
        let engine = V2::with_end(medium, terms, tuning, next)?;
        engine.core.recover(&mut creators_ctx(terms), next)?;
        Ok(engine)
    }

    fn with_end(
        medium: M,
        terms: &ContestLimits,
        tuning: V2Tuning,
        next: u64,
    ) -> Result<V2<M>, OpenError> {
        let scaled = ScaledCounts::to(terms);
        let segment_bytes = scaled.segment_bytes(tuning.segment_bytes);
        terms.check_medium_bytes(medium.len())?;
        if next < START || next > terms.far_bytes || !(next - START).is_multiple_of(segment_bytes) {
            return Err(OpenError::Unfit(format!(
                "the first word says segments end at {next}, expected {START} plus a multiple of {segment_bytes}, \
                 at most {}: open it with the limits it was created with",
                terms.far_bytes
            )));
        }
        let blocks = space::block_bytes_range(terms, HEADER)?;
        let layout = SpaceLayout {
            range: START..terms.far_bytes,
            segment_bytes,
            blocks,
            capacities: capacities(scaled, blocks, terms.threads),
            reuse: tuning.reuse,
            recycle_from: scaled.recycle_from(),
            appends_for_locality: if tuning.locality {
                scaled.count(6000)
            } else {
                0
            },
            threads: terms.threads,
            pools: tuning.pools,
        };
        let (slots, stripes) = terms.slots_and_stripes(tuning.cache_slots)?;
        let core = V2Core {
            stripes: LockStripes::new(stripes, tuning.lock),
            cache: ReadCache::new(slots),
            index: V2Index::new(terms),
            space: BlockSpace::new(layout, next),
            tally: Mutex::default(),
            medium,
            tuning,
        };
        Ok(V2 {
            core: Arc::new(core),
        })
    }
}

/// Returns a persistence context that no worker uses.
fn creators_ctx(terms: &ContestLimits) -> PersistCtx {
    PersistCtx::new(terms.threads as u32)
}

/// Returns the capacity of each size class in a thread's pool. The published capacities are for 16 threads and depend
/// on the size. Blocks of 112 and 128 bytes, and blocks of more than 544 bytes, are never kept.
fn capacities(scaled: ScaledCounts, blocks: (usize, usize), threads: usize) -> Vec<usize> {
    let published = |bytes| match bytes {
        144..176 => 1536 * 386,
        176..304 => 1536 * 512,
        304..=544 => 1536 * 64,
        _ => 0,
    };
    let of_thread = |all: u64| match all {
        0 => 0,
        all => (scaled.count(all * PUBLISHED_THREADS) / threads as u64).max(4) as usize,
    };
    (blocks.0..=blocks.1)
        .step_by(UNIT)
        .map(|bytes| of_thread(published(bytes)))
        .collect()
}

impl<M: Medium> V2<M> {
    /// Returns the bytes of far memory in the recycle pools.
    #[must_use]
    pub fn recycled_bytes(&self) -> u64 {
        self.core.space.recycled_bytes()
    }
}

impl<M: Medium> Engine for V2<M> {
    fn worker(&self) -> Box<dyn Worker> {
        Box::new(worker::V2Worker::new(Arc::clone(&self.core)))
    }

    fn dram(&self) -> Vec<(&'static str, u64)> {
        let core = &self.core;
        let (heads, nodes) = core.index.bytes();
        let (pools, spares) = core.space.bytes();
        vec![
            ("index", heads),
            ("keys", nodes),
            ("read cache", core.cache.bytes()),
            ("locks", core.stripes.bytes()),
            ("recycle pools", pools),
            ("spares", spares),
        ]
    }

    fn far_bytes(&self) -> u64 {
        self.core.space.taken()
    }

    fn stats(&self) -> EngineStats {
        *unpoisoned(self.core.tally.lock())
    }
}

/// Configuration for the crash explorer: `v2` with this tuning.
#[cfg(feature = "check")]
#[derive(Clone, Copy, Debug)]
pub struct V2Config(pub V2Tuning);

#[cfg(feature = "check")]
impl EngineConfig for V2Config {
    fn name(&self) -> &'static str {
        "v2"
    }

    fn has_command(&self) -> bool {
        self.0 == V2Tuning::PUBLISHED
    }

    fn create(&self, sim: Sim) -> Result<Box<dyn Engine>, OpenError> {
        box_engine(V2::create(sim, &self.limits(), self.0))
    }

    fn open(&self, sim: Sim) -> Result<Box<dyn Engine>, OpenError> {
        box_engine(V2::open(sim, &self.limits(), self.0))
    }
}
