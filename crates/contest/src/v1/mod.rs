//! `v1`: the final round's first version of the third place, two writes to far memory a set.
//!
//! Chains of key records in far memory, their heads in far memory and mirrored in DRAM. Published: 55 seconds, 41 of
//! them sets.
//!
//! ```text
//!   DRAM   mirror: u64 x 2^28        read cache: 2^18 slots, one a stripe
//!            │  same numbers
//!   far    ┌─▼──────────────┬──────────────────────────────────────────── ... ─┐
//!          │ heads: u64     │ segments of 4 MiB: key records, values            │
//!          └────────────────┴──────────────────────────────────────────── ... ─┘
//!
//!   key record   0      8        24      28     30       32           block end, a multiple of 16
//!                ┌──────┬────────┬───────┬──────┬────────┬─────────────┐
//!                │ prev │ key:16 │ value │ room │ length │ value       │
//!                └──────┴────────┴───────┴──────┴────────┴─────────────┘
//!                  u64             u32     u16    u16
//! ```
//!
//! Blocks are named by offset in units of 16 bytes, 0 is none. A record's first value lies behind its header.
//! Updates move the value only, to a block without a header: `value`, `room` (bytes of the value's block) and
//! `length` are one word, which one store switches.
//!
//! A set locks its stripe, empties the cache's slot, looks the key up, and then one of
//!
//! * *insert*: the record, then the head, then the mirror;
//! * *swap*: the old room is large enough: the value goes to the thread's spare of the same size, then the word,
//!   and the old value's block is the spare;
//! * *append*: the value goes to a new block, then the word, and the old block goes to the recycle pool.
//!
//! # Invariants
//! I1  Of a set's two writes the first is durable before the second is made: what a word leads to is whole.
//! I2  A head or a record's word changes by one store of eight bytes.
//! I3  A block is used again only when the word that no longer leads to it is durable.
//! I4  The mirror holds what the heads hold, durable or not yet; a set has not returned until they are.
//!
//! # Crash argument
//! | a crash                     | is found as                                                      |
//! |-----------------------------|------------------------------------------------------------------|
//! | before the second write     | the former chain or value; what was written is nowhere (I2)      |
//! | after it                    | the new one, whole (I1)                                          |
//!
//! The exception: a process that is killed between storing a word and making it durable leaves a word that the
//! next open shows and a later power cut takes back. [`Tuning::persist_recovered`] mends that.
//!
//! # Where we differ from what was published
//! How the first version opens a pool and finds free memory again is not told. Here it reads the heads and walks
//! every chain; what lies before the end of the last block in use is taken, and the free blocks before it are
//! lost, as they are in `v2`. When the recycle pool takes over is known from `v2` only. Sizes follow the far memory
//! there is and threads are not always new: `space.rs`. The cache's slots are words: `read_cache.rs`.

mod chain;
mod worker;

use farbank_pm::grow_table::GrowTable;
#[cfg(feature = "check")]
use farbank_pm::sim::Sim;
use farbank_pm::sync::atomic::AtomicU64;
use farbank_pm::sync::{Arc, Mutex};
use farbank_pm::{Medium, PersistCtx};

use crate::engine::{Engine, EngineStats, OpenError, Worker};
use crate::limits::ContestLimits;
use crate::read_cache::ReadCache;
use crate::recycle::{BlockPools, ReusePolicy};
use crate::space::{self, BlockSpace, ScaledCounts, SpaceLayout, UNIT};
use crate::stripes::{LockStripes, StripeLock};
#[cfg(feature = "check")]
use crate::target::{EngineConfig, boxed};

/// What can be turned on and off. [`Tuning::PUBLISHED`] is the engine as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct V1Tuning {
    /// Whose recycle pools there are. Published: all threads share one.
    pub pools: BlockPools,
    /// When blocks are used again.
    pub reuse: ReusePolicy,
    /// Whether a get fills the caller's buffer, or makes a new one. Published: a new one.
    pub value_reuse: bool,
    /// How stripes are locked. Published: by mutexes.
    pub lock: StripeLock,
    /// Whether the heads are in DRAM, too, so that no lookup reads them from far memory. Published: yes.
    pub mirror: bool,
    /// Whether a new pool is touched once every 2 MiB. Published: no.
    pub preheat: bool,
    /// Whether updates go to spares at all.
    pub swaps: bool,
    /// Slots of the read cache, which are the stripes, too; `None` is 2^18 at full scale. 0 turns it off.
    pub cache_slots: Option<u64>,
    /// Bytes of a segment at full scale.
    pub segment_bytes: u64,
    /// Whether opening makes durable what it found.
    pub persist_recovered: bool,
}

impl V1Tuning {
    /// The engine as it was published: what its successor is said to have changed, it did not have.
    pub const PUBLISHED: V1Tuning = V1Tuning {
        pools: BlockPools::Global,
        reuse: ReusePolicy::NearTheEnd,
        value_reuse: false,
        lock: StripeLock::Mutex,
        mirror: true,
        preheat: false,
        swaps: true,
        cache_slots: None,
        segment_bytes: 4 << 20,
        persist_recovered: false,
    };
}

impl Default for V1Tuning {
    fn default() -> V1Tuning {
        V1Tuning::PUBLISHED
    }
}

/// The engine, open.
pub struct V1<M: Medium> {
    core: Arc<V1Core<M>>,
}

/// What its workers share.
struct V1Core<M> {
    medium: M,
    tuning: V1Tuning,
    stripes: LockStripes,
    cache: ReadCache,
    /// The heads of the chains, as in far memory (I4); empty if there is to be no mirror.
    mirror: GrowTable<AtomicU64>,
    chains: u64,
    space: BlockSpace,
    tally: Mutex<EngineStats>,
}

impl<M: Medium> V1<M> {
    /// Makes a new, empty engine of the first [`Terms::far_bytes`] of `medium`, which must be zeros: only the
    /// heads are looked at. Nothing need be written.
    pub fn create(medium: M, terms: &ContestLimits, tuning: V1Tuning) -> Result<V1<M>, OpenError> {
        let engine = V1::open(medium, terms, tuning)?;
        let core = &*engine.core;
        if let Some(chain) = core.first_in_use() {
            return Err(OpenError::Unfit(format!(
                "a new engine needs zeros, chain {chain} has a head: open it, or give it a new file"
            )));
        }
        if tuning.preheat {
            space::preheat(&core.medium, &mut PersistCtx::new(terms.threads as u32))?;
        }
        Ok(engine)
    }

    /// Opens what is in `medium`, made with the same terms: reads every head and walks every chain.
    pub fn open(medium: M, terms: &ContestLimits, tuning: V1Tuning) -> Result<V1<M>, OpenError> {
        terms.fit(medium.len())?;
        let chains = 1_u64 << terms.hash_bits;
        let mirror = GrowTable::new(chains as usize);
        if tuning.mirror {
            mirror.reserve(chains as usize);
        }
        let (slots, stripes) = terms.slots_and_stripes(tuning.cache_slots)?;
        let layout = layout(terms, &tuning, chains)?;
        let from = layout.range.start;
        let core = V1Core {
            stripes: LockStripes::new(stripes, tuning.lock),
            cache: ReadCache::new(slots),
            mirror,
            chains,
            space: BlockSpace::new(layout, from),
            tally: Mutex::default(),
            medium,
            tuning,
        };
        let used = core.read_chains(&mut PersistCtx::new(terms.threads as u32))?;
        core.space.skip_to(used);
        Ok(V1 {
            core: Arc::new(core),
        })
    }
}

fn layout(terms: &ContestLimits, tuning: &V1Tuning, chains: u64) -> Result<SpaceLayout, OpenError> {
    let scaled = ScaledCounts::to(terms);
    let heads = (chains * 8).next_multiple_of(UNIT as u64);
    if heads >= terms.far_bytes {
        return Err(OpenError::Unfit(format!(
            "{chains} chains take {heads} bytes of far memory, the terms give {}",
            terms.far_bytes
        )));
    }
    let blocks = space::blocks(terms, 0)?;
    Ok(SpaceLayout {
        range: heads..terms.far_bytes,
        segment_bytes: scaled.segment_bytes(tuning.segment_bytes),
        capacities: capacities(scaled, blocks, terms.threads),
        blocks: (blocks.0, blocks.1 + worker::HEADER),
        reuse: tuning.reuse,
        recycle_from: scaled.recycle_from(),
        moves: 0,
        threads: terms.threads,
        pools: tuning.pools,
    })
}

/// Most blocks of each class in a thread's part of the pool: 64 MiB of numbers at full scale, for blocks of 80
/// to 1,024 bytes. Published is the sum; here every size has as many.
fn capacities(scaled: ScaledCounts, blocks: (usize, usize), threads: usize) -> Vec<usize> {
    const PUBLISHED_NUMBERS: u64 = (64 << 20) / 4;
    let classes = (blocks.1 - blocks.0) / UNIT + 1;
    let each = scaled.count(PUBLISHED_NUMBERS) / (classes * threads) as u64;
    vec![each.max(4) as usize; classes]
}

impl<M: Medium> V1<M> {
    /// Bytes of far memory in the recycle pools.
    #[must_use]
    pub fn recycled_bytes(&self) -> u64 {
        self.core.space.recycled_bytes()
    }
}

impl<M: Medium> Engine for V1<M> {
    fn worker(&self) -> Box<dyn Worker> {
        Box::new(worker::V1Worker::new(Arc::clone(&self.core)))
    }

    fn dram(&self) -> Vec<(&'static str, u64)> {
        let core = &self.core;
        let (pools, spares) = core.space.bytes();
        vec![
            ("index", core.mirror.bytes() as u64),
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

/// `v1` with this tuning.
#[cfg(feature = "check")]
#[derive(Clone, Copy, Debug)]
pub struct V1Config(pub V1Tuning);

#[cfg(feature = "check")]
impl EngineConfig for V1Config {
    fn name(&self) -> &'static str {
        "v1"
    }

    fn has_command(&self) -> bool {
        self.0 == V1Tuning::PUBLISHED
    }

    fn create(&self, sim: Sim) -> Result<Box<dyn Engine>, String> {
        boxed(V1::create(sim, &self.terms(), self.0))
    }

    fn open(&self, sim: Sim) -> Result<Box<dyn Engine>, String> {
        boxed(V1::open(sim, &self.terms(), self.0))
    }
}
