//! `v2`: the final round's third place, one write to far memory a set.
//!
//! All keys are in DRAM; far memory holds records only, and the index is built again from them. Published: 35.8
//! seconds, 27.1 of them sets.
//!
//! ```text
//!   DRAM   heads: u32 x 2^28 ──▶ key nodes ─────────┐      read cache: 2^18 slots, one a stripe
//!                                                   ▼
//!   far    ┌──────┬────────┬────────────────────────────────────┬─ ... ─┐
//!          │ next │ unused │ segment of 2 MiB: records, spares   │       │
//!          └──────┴────────┴────────────────────────────────────┴─ ... ─┘
//!          0      8        16                                    the word at 0 says where segments end
//! ```
//!
//! A set locks its stripe, empties the cache's slot, looks the key up, and then one of
//!
//! * *insert*: a new block, from the thread's segment or, near the end of memory, from its recycle pool;
//!   version 1;
//! * *swap*: the old block is large enough: the record goes to the thread's spare of the same size, one version
//!   on, and the old block is the spare;
//! * *append*: a new block; the old one goes to the recycle pool.
//!
//! # Invariants, as published
//! I1  The word at 0 is durable before anything is written to the segment it covers.
//! I2  A record is one write, durable when the set returns; the index names it only then.
//! I3  In each segment blocks follow each other without a gap, up to one of 16 zero bytes or the segment's end.
//! I4  Of a key's records the one with the highest version counts, of equal ones the last in the memory.
//!
//! # Crash argument, as published, and where it fails
//! | a crash                         | recovery sees              | and does                                     |
//! |---------------------------------|----------------------------|----------------------------------------------|
//! | before a record's first word    | what was there             | the former record, a spare, or a segment end |
//! | within a record                 | a checksum that fails      | frees it, *if* the checksum fails (F1)       |
//! | after it                        | two versions               | takes the higher one, *if* it is higher (F2, F3) |
//!
//! F1  The checksum covers 36 of 150 bytes: [`Checksum::Published`]. F2  The version is a signed byte: after 127
//! updates records look like spares. F3  An append writes a version one up and does not count it, so that the
//! next record has the same. F4  What recovery frees is forgotten before anybody can use it. F5  Recovery makes
//! nothing durable that it found: what a killed process wrote last is shown, and may be lost later.
//!
//! F1 and F3 to F5 have a switch in [`Tuning`] each; F2 would take another layout.
//!
//! # Where we differ from what was published
//! Sizes follow the far memory there is and threads are not always new: `space.rs`. A node of the index is
//! reserved before the record is written, so that a refused set leaves nothing. Recovery stops at a block that
//! would reach beyond its segment, where the published one would have read on.

mod index;
mod record;
mod recover;
mod worker;

#[cfg(feature = "check")]
use farbank_pm::sim::Sim;
use farbank_pm::sync::{Arc, Mutex};
use farbank_pm::{Medium, Off, PersistCtx};

use crate::engine::{Engine, EngineStats, OpenError, Worker};
use crate::limits::ContestLimits;
use crate::read_cache::ReadCache;
use crate::recycle::{BlockPools, ReusePolicy};
use crate::space::{self, BlockSpace, PUBLISHED_THREADS, ScaledCounts, SpaceLayout, UNIT};
use crate::stripes::{LockStripes, StripeLock};
#[cfg(feature = "check")]
use crate::target::{EngineConfig, boxed};

use index::V2Index;
use record::HEADER;
pub use record::V2Checksum;

/// Where the first segment begins.
const START: u64 = 16;

/// How many writes a record takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WritesPerRecord {
    /// One, as published.
    One,
    /// Two, each waited for: all but the first word, then the first word. What a set cost that had to write
    /// an index entry as well.
    Two,
}

/// What can be turned on and off. [`Tuning::PUBLISHED`] is the engine as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct V2Tuning {
    /// Writes a record takes.
    pub writes: WritesPerRecord,
    /// Whether a new pool is touched once every 2 MiB, so that no set meets a page fault.
    pub preheat: bool,
    /// Whose recycle pools there are.
    pub pools: BlockPools,
    /// When blocks are used again.
    pub reuse: ReusePolicy,
    /// Whether a get fills the caller's buffer, or makes a new one.
    pub value_reuse: bool,
    /// How stripes are locked.
    pub lock: StripeLock,
    /// Whether updates go to spares at all.
    pub swaps: bool,
    /// Whether a thread's first 6,000 updates (at full scale) are appended if the spare is more than a segment
    /// away, so that what is hot moves to where its spares are.
    pub locality: bool,
    /// Slots of the read cache, which are the stripes, too; `None` is 2^18 at full scale. 0 turns it off.
    pub cache_slots: Option<u64>,
    /// Bytes of a segment at full scale: 2 MiB in the published code, 4 MiB in the text.
    pub segment_bytes: u64,
    /// How records are told from torn ones.
    pub checksum: V2Checksum,
    /// Whether an append counts the version it writes. Published: no.
    pub appends_count: bool,
    /// Whether what recovery frees can be used again. Published: no.
    pub keep_recovered_pools: bool,
    /// Whether recovery makes durable what it accepts. Published: no.
    pub persist_recovered: bool,
}

impl V2Tuning {
    /// The engine as it was published.
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

    /// What can be mended without another layout: a checksum of all bytes, versions that are counted, free
    /// blocks that stay free, and a recovery that is durable. A key still has 127 versions.
    pub const MENDED: V2Tuning = V2Tuning {
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

/// The engine, open.
pub struct V2<M: Medium> {
    core: Arc<V2Core<M>>,
}

/// What its workers share.
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
    /// Makes a new, empty engine of the first [`Terms::far_bytes`] of `medium`, which must be zeros: only the
    /// first word is looked at. Durable when it returns.
    pub fn create(medium: M, terms: &ContestLimits, tuning: V2Tuning) -> Result<V2<M>, OpenError> {
        let engine = V2::over(medium, terms, tuning, START)?;
        let found = engine.core.medium.load(Off(0));
        if found != 0 {
            return Err(OpenError::Unfit(format!(
                "a new engine needs zeros, the medium begins with {found:#x}: open it, or give it a new file"
            )));
        }
        engine.core.begin(&mut creators_ctx(terms))?;
        Ok(engine)
    }

    /// Opens what is in `medium`, made with the same terms and the same size of segments: walks every record.
    pub fn open(medium: M, terms: &ContestLimits, tuning: V2Tuning) -> Result<V2<M>, OpenError> {
        let next = medium.load(Off(0));
        if next == 0 {
            return V2::create(medium, terms, tuning);
        }
        let engine = V2::over(medium, terms, tuning, next)?;
        engine.core.recover(&mut creators_ctx(terms), next)?;
        Ok(engine)
    }

    fn over(
        medium: M,
        terms: &ContestLimits,
        tuning: V2Tuning,
        next: u64,
    ) -> Result<V2<M>, OpenError> {
        let scaled = ScaledCounts::to(terms);
        let segment_bytes = scaled.segment_bytes(tuning.segment_bytes);
        terms.fit(medium.len())?;
        if next < START || next > terms.far_bytes || !(next - START).is_multiple_of(segment_bytes) {
            return Err(OpenError::Unfit(format!(
                "the first word says that segments end at {next}, expected {START} and a multiple of {segment_bytes}, \
                 within {}: open it with the terms it was made with",
                terms.far_bytes
            )));
        }
        let blocks = space::blocks(terms, HEADER)?;
        let layout = SpaceLayout {
            range: START..terms.far_bytes,
            segment_bytes,
            blocks,
            capacities: capacities(scaled, blocks, terms.threads),
            reuse: tuning.reuse,
            recycle_from: scaled.recycle_from(),
            moves: if tuning.locality {
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

/// No worker's.
fn creators_ctx(terms: &ContestLimits) -> PersistCtx {
    PersistCtx::new(terms.threads as u32)
}

/// Most blocks of each class in a thread's pool. Published for 16 threads, by size; blocks of 112 and 128 bytes
/// and those of more than 544 are never kept.
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
    /// Bytes of far memory in the recycle pools.
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

    fn tally(&self) -> EngineStats {
        *self.core.tally.lock().expect("no holder panics")
    }
}

/// `v2` with this tuning.
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

    fn create(&self, sim: Sim) -> Result<Box<dyn Engine>, String> {
        boxed(V2::create(sim, &self.terms(), self.0))
    }

    fn open(&self, sim: Sim) -> Result<Box<dyn Engine>, String> {
        boxed(V2::open(sim, &self.terms(), self.0))
    }
}
