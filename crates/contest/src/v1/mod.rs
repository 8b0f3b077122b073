//! `v1`: the first version of the final round's third place. A set takes two writes to far memory.
//!
//! Chains of key records in far memory. The heads of the chains are in far memory and mirrored in DRAM. Published time:
//! 55 seconds, 41 of them for sets.
//!
//! ```text
//!   DRAM   mirror: u64 x 2^28        read cache: 2^18 slots, one per stripe
//!            │  same record numbers
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
//! A block number is an offset in units of 16 bytes; 0 means none. A record's first value follows its header. An update
//! moves only the value, to a block without a header. `value` (number of the value's block), `room` (bytes of that
//! block) and `length` form one word, which one store replaces.
//!
//! A set locks its stripe, empties the key's slot of the read cache and looks the key up. It then does one of these:
//!
//! * *insert*: it writes the record, then the head, then the mirror;
//! * *swap*, if the old block is large enough: it writes the value to the thread's spare of the same size, then the
//!   word. The old block becomes the spare;
//! * *append*: it writes the value to a new block, then the word. The old block goes to the recycle pool.
//!
//! # Invariants
//! V1-INV-1  The first of a set's two writes is durable before the second begins. So every word refers to a whole record or
//!     value.
//! V1-INV-2  A head or a record's word changes by one store of eight bytes.
//! V1-INV-3  A block is reused only after the word that no longer refers to it is durable.
//! V1-INV-4  The mirror equals the heads in far memory, durable or not yet. They are durable when the set returns.
//!
//! # Crash argument
//! | a crash                     | recovery finds                                                   |
//! |-----------------------------|------------------------------------------------------------------|
//! | before the second write     | the former chain or value; nothing refers to the new bytes (V1-INV-2)  |
//! | after it                    | the new one, whole (V1-INV-1)                                          |
//!
//! There is one exception. A process can be killed after it stored a word and before the word is durable. The next open
//! then shows the new word, and a later power cut can undo it. [`V1Tuning::persist_recovered`] fixes that.
//!
//! # Deviations from the published engine
//! The authors do not describe how the first version opens a pool and finds free memory. Here it reads the heads and
//! walks every chain. Memory before the end of the last block in use counts as taken, and free blocks in it are lost,
//! as in `v2`. The rule for reusing blocks is taken from `v2`. Sizes follow the given far memory, and threads are not
//! always new: see `space.rs`. The cache's slots consist of words: see `read_cache.rs`.

mod chain;
mod worker;

use farbank_pm::grow_table::GrowTable;
#[cfg(feature = "check")]
use farbank_pm::sim::Sim;
use farbank_pm::sync::atomic::AtomicU64;
use farbank_pm::sync::{Arc, Mutex, unpoisoned};
use farbank_pm::{Medium, PersistCtx};

use crate::block::UNIT;
use crate::engine::{Engine, EngineStats, OpenError, Worker};
use crate::limits::ContestLimits;
use crate::read_cache::ReadCache;
use crate::recycle::{BlockPools, ReusePolicy};
use crate::space::{self, BlockSpace, ScaledCounts, SpaceLayout};
use crate::stripes::{LockStripes, StripeLock};
#[cfg(feature = "check")]
use crate::target::{EngineConfig, box_engine};

/// Options of the engine. [`V1Tuning::PUBLISHED`] is the published engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct V1Tuning {
    /// Sharing of recycle pools. Published: all threads share one.
    pub pools: BlockPools,
    /// Rule for reusing blocks.
    pub reuse: ReusePolicy,
    /// Whether a get reuses the caller's buffer instead of a new one. Published: no.
    pub value_reuse: bool,
    /// Kind of stripe locks. Published: mutexes.
    pub lock: StripeLock,
    /// Whether DRAM mirrors the heads, so that lookups do not read them from far memory. Published: yes.
    pub mirror: bool,
    /// Whether creation writes one line per 2 MiB of a new pool. Published: no.
    pub preheat: bool,
    /// Whether updates use spares.
    pub swaps: bool,
    /// Number of read-cache slots and of lock stripes. `None` means 2^18 at full scale; 0 turns the cache off.
    pub cache_slots: Option<u64>,
    /// Bytes of a segment at full scale.
    pub segment_bytes: u64,
    /// Whether opening the engine makes the records it finds durable.
    pub persist_recovered: bool,
}

impl V1Tuning {
    /// The published engine: none of the changes that its authors list for the next version.
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

/// The open engine.
pub struct V1<M: Medium> {
    core: Arc<V1Core<M>>,
}

/// State shared by the workers.
struct V1Core<M> {
    medium: M,
    tuning: V1Tuning,
    stripes: LockStripes,
    cache: ReadCache,
    /// Copy of the chain heads in far memory (V1-INV-4); empty without [`V1Tuning::mirror`].
    mirror: GrowTable<AtomicU64>,
    chains: u64,
    space: BlockSpace,
    tally: Mutex<EngineStats>,
}

impl<M: Medium> V1<M> {
    /// Creates an empty engine in the first [`ContestLimits::far_bytes`] of `medium`, which must be zeros. Only the
    /// heads are checked. Nothing needs to be written.
    pub fn create(medium: M, terms: &ContestLimits, tuning: V1Tuning) -> Result<V1<M>, OpenError> {
        let engine = V1::open(medium, terms, tuning)?;
        let core = &*engine.core;
        if let Some(chain) = core.first_in_use() {
            return Err(OpenError::Unfit(format!(
                "create needs a medium of zeros, but chain {chain} has a head: open the engine, or use a new file"
            )));
        }
        if tuning.preheat {
            space::preheat(&core.medium, &mut PersistCtx::new(terms.threads as u32))?;
        }
        Ok(engine)
    }

    /// Opens the engine in `medium`, which was created with the same limits. Reads every head and walks every chain.
    pub fn open(medium: M, terms: &ContestLimits, tuning: V1Tuning) -> Result<V1<M>, OpenError> {
        terms.check_medium_bytes(medium.len())?;
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
            "{chains} chains take {heads} bytes of far memory, the limits allow {}",
            terms.far_bytes
        )));
    }
    let blocks = space::block_bytes_range(terms, 0)?;
    Ok(SpaceLayout {
        range: heads..terms.far_bytes,
        segment_bytes: scaled.segment_bytes(tuning.segment_bytes),
        capacities: capacities(scaled, blocks, terms.threads),
        blocks: (blocks.0, blocks.1 + chain::HEADER),
        reuse: tuning.reuse,
        recycle_from: scaled.recycle_from(),
        appends_for_locality: 0,
        threads: terms.threads,
        pools: tuning.pools,
    })
}

/// Returns the capacity of each size class in a thread's part of the pool. At full scale all capacities together are
/// 64 MiB of block numbers, for blocks of 80 to 1,024 bytes. Only that total is published; here all sizes have equal
/// capacities.
fn capacities(scaled: ScaledCounts, blocks: (usize, usize), threads: usize) -> Vec<usize> {
    const PUBLISHED_NUMBERS: u64 = (64 << 20) / 4;
    let classes = (blocks.1 - blocks.0) / UNIT + 1;
    let each = scaled.count(PUBLISHED_NUMBERS) / (classes * threads) as u64;
    vec![each.max(4) as usize; classes]
}

impl<M: Medium> V1<M> {
    /// Returns the bytes of far memory in the recycle pools.
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

    fn stats(&self) -> EngineStats {
        *unpoisoned(self.core.tally.lock())
    }
}

/// Configuration for the crash explorer: `v1` with this tuning.
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

    fn create(&self, sim: Sim) -> Result<Box<dyn Engine>, OpenError> {
        box_engine(V1::create(sim, &self.limits(), self.0))
    }

    fn open(&self, sim: Sim) -> Result<Box<dyn Engine>, OpenError> {
        box_engine(V1::open(sim, &self.limits(), self.0))
    }
}
