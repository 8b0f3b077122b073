//! The engine known from its authors' slides: a hash table of whole cache lines in DRAM, unsorted records in far
//! memory.
//!
//! ```text
//!   set ──▶ find the key's slot ──▶ take a block ──▶ write the record, one drain ──▶ store the slot ──▶ free old block
//!   get ──▶ find the key's slot ──▶ copy the value ──▶ read the slot again: unchanged? ──▶ done
//! ```
//!
//! Far memory contains no pointers. The index is in DRAM only, and recovery rebuilds it by reading all records. A set
//! is one write and one drain. Threads share only the hash lines: each has its own partition of far memory to append
//! to, and its own lists of free blocks. There is no read cache; its authors tried three, and none paid off.
//!
//! * `lines` is the index, `heap` the records in far memory, `lists` the free lists. `place` is how these three name a record.
//!
//! # Defects
//! The engine is built as it was published. `docs/papers/tair-kid.md` lists where this version differs. These are the
//! engine's own defects. A test of this module shows each of them:
//!
//! 1. Recovery ends a partition at the first record whose checksum is wrong. A power cut that tears a record in a
//!    *reused* block loses every key behind it in that partition, however old, and later appends overwrite them.
//! 2. Recovery enters every record into the index with version 0. The next update of such a key gets version 1. If an
//!    older record of the key has a higher version, the next recovery takes the older record. The same happens after
//!    256 updates of one key, because a version has 8 bits.
//! 3. Recovery does not put the blocks of older versions and of torn records on the free lists. That space is lost.
//! 4. A reader compares the slot before and after it copies the value, and 8 bits of the slot are a version. So it does
//!    not notice 256 updates that end in the same block.
//! 5. Pre-heating ([`KidOptions::pre_heat`]) overwrites all of far memory with zeros when the engine is opened, even if
//!    it holds data. The published engine skipped this only when it detected the contest's crash test.
//! 6. Recovery does not make the records it accepts durable.
//! 7. A checksum of 16 bits accepts one torn record in 65,536.

mod heap;
mod lines;
mod lists;
mod place;
#[cfg(test)]
mod tests;

#[cfg(feature = "check")]
use farbank_pm::sim::Sim;
use farbank_pm::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use farbank_pm::sync::atomic::{AtomicU64, fence};
use farbank_pm::sync::{Arc, Mutex, unpoisoned};
use farbank_pm::{Medium, PersistCtx};

use crate::engine::{Engine, EngineStats, Error, Key, OpenError, VALUE_BYTES, Worker};
use crate::limits::ContestLimits;
#[cfg(feature = "check")]
use crate::target::{EngineConfig, explorer_limits};
use heap::KidHeap;
use lines::{HashLines, LineSlot, PENDING};
use place::RecordPlace;

/// Computation of the next hash line of a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProbeStep {
    /// One modulo operation for each line.
    Modulo,
    /// Increment, and wrap to 0 after the last line: a branch that is nearly always predicted correctly.
    Branch,
}

/// Function that yields a record's 16-bit checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KidChecksum {
    /// No checksum: a torn record is accepted.
    None,
    /// CRC-32C.
    Crc32c,
    /// XXH3, 64 bits.
    Xxh3,
}

/// Hash function that selects a key's line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LineHash {
    /// CRC-32C, which is one CPU instruction.
    Crc32c,
    /// XXH3, 64 bits.
    Xxh3,
}

/// Assignment of partitions to threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Random {
    /// The next partition, by a counter of the engine.
    Own,
    /// A pseudo-random partition, as if selected by the system's thread id. Some partitions get two threads, some none.
    ByLot,
}

/// Optimisations of the engine. By default each is as published; each can be switched back to measure its benefit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KidOptions {
    /// Published with a branch. An earlier version used modulo; the change saved 1 of 39 seconds.
    pub step: ProbeStep,
    /// Prefetch a full line's second half, and the next line, when a probe reaches the line. Published on.
    pub prefetch: bool,
    /// Published with XXH3. An earlier version used CRC; the change, with a faster copy, saved 2 of 38 seconds.
    pub checksum: KidChecksum,
    /// Published with CRC-32C.
    pub key_hash: LineHash,
    /// Place each thread's counters in a cache line of their own. Published on; it saved 10 of 55 seconds.
    pub padded: bool,
    /// Allocate the nodes of the free lists when the engine is opened. Published on; it saved 0.5 of 36 seconds.
    pub list_nodes_ahead: bool,
    /// Overwrite all of far memory with zeros at every open. Published on, where it saved 5 of 44 seconds. Off by
    /// default here, because it destroys all data: see defect 5 of the module.
    pub pre_heat: bool,
    /// Published with the engine's own counter.
    pub partition_rule: Random,
}

impl Default for KidOptions {
    fn default() -> KidOptions {
        KidOptions {
            step: ProbeStep::Branch,
            prefetch: true,
            checksum: KidChecksum::Xxh3,
            key_hash: LineHash::Crc32c,
            padded: true,
            list_nodes_ahead: true,
            pre_heat: false,
            partition_rule: Random::Own,
        }
    }
}

/// The open engine.
pub struct Kid<M: Medium> {
    core: Arc<KidCore<M>>,
}

struct KidCore<M> {
    lines: HashLines,
    heap: KidHeap<M>,
    numbers: Random,
    /// Number of workers made so far.
    workers: AtomicU64,
    tally: Mutex<EngineStats>,
}

impl<M: Medium> Kid<M> {
    /// Opens the engine in the first [`ContestLimits::far_bytes`] of `medium`. Zeros are an empty engine.
    ///
    /// # Errors
    /// The medium is too short or fails, there are more than 256 threads, or far memory holds more keys than the limits
    /// allow.
    pub fn open(
        medium: M,
        terms: &ContestLimits,
        options: KidOptions,
    ) -> Result<Kid<M>, OpenError> {
        let lines = HashLines::new(terms.keys, options);
        let heap = KidHeap::new(medium, terms, options)?;
        if options.pre_heat {
            heap.pre_heat()?;
        }
        heap.recover(&lines)?;
        let core = KidCore {
            lines,
            heap,
            numbers: options.partition_rule,
            workers: AtomicU64::new(0),
            tally: Mutex::default(),
        };
        Ok(Kid {
            core: Arc::new(core),
        })
    }
}

impl<M: Medium> Engine for Kid<M> {
    fn worker(&self) -> Box<dyn Worker> {
        let core = Arc::clone(&self.core);
        let number = core.workers.fetch_add(1, Relaxed);
        let partition = match core.numbers {
            Random::Own => number,
            Random::ByLot => xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes()),
        };
        Box::new(KidWorker {
            ctx: PersistCtx::new(number as u32),
            partition: (partition % core.heap.partitions() as u64) as usize,
            record: Vec::new(),
            tally: EngineStats::default(),
            core,
        })
    }

    fn dram(&self) -> Vec<(&'static str, u64)> {
        let KidCore { lines, heap, .. } = &*self.core;
        vec![("index", lines.bytes()), ("free lists", heap.lists_bytes())]
    }

    fn far_bytes(&self) -> u64 {
        self.core.heap.taken_bytes()
    }

    fn stats(&self) -> EngineStats {
        *unpoisoned(self.core.tally.lock())
    }
}

struct KidWorker<M: Medium> {
    core: Arc<KidCore<M>>,
    ctx: PersistCtx,
    partition: usize,
    /// The record being built.
    record: Vec<u8>,
    tally: EngineStats,
}

impl<M: Medium> Worker for KidWorker<M> {
    /// Takes one write and one drain. On `Ok` the record is durable, but a later recovery can still lose it: see the
    /// module's defects.
    fn set(&mut self, key: &Key, value: &[u8]) -> Result<(), Error> {
        let (len, may) = (value.len(), VALUE_BYTES);
        assert!(
            may.contains(&len),
            "the value has {len} bytes, expected {may:?}"
        );
        let KidCore { lines, heap, .. } = &*self.core;
        let (slot, probes) = lines.find_or_reserve(key);
        let (val, old) = match slot {
            LineSlot::New(val) => (val, None),
            // Pending, although this thread is the key's only writer: an earlier insert found no free block.
            LineSlot::Old(val) => (val, Some(val.load(Acquire)).filter(|old| *old != PENDING)),
            LineSlot::None => return Err(Error::Full),
        };
        let old = old.map(RecordPlace);
        match old {
            Some(_) => self.tally.hit(probes),
            None => self.tally.miss(probes),
        }
        let (ctx, record) = (&mut self.ctx, &mut self.record);
        let place = heap.put(ctx, self.partition, record, (key, value), old)?;
        val.store(place.0, Release);
        match old {
            Some(old) => {
                // A reader that sees the block's next record then also sees the slot's new place.
                fence(Release);
                heap.free(self.partition, old);
                self.tally.updates += 1;
            }
            None => self.tally.inserts += 1,
        }
        Ok(())
    }

    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> bool {
        let KidCore { lines, heap, .. } = &*self.core;
        let search = lines.find(key);
        let known = |val: &&AtomicU64| ![0, PENDING].contains(&val.load(Acquire));
        let Some(val) = search.val.filter(known) else {
            self.tally.miss(search.lines);
            return false;
        };
        self.tally.hit(search.lines);
        loop {
            let before = val.load(Acquire);
            heap.value(RecordPlace(before), out);
            fence(Acquire);
            if val.load(Relaxed) == before {
                return true;
            }
        }
    }
}

impl<M: Medium> Drop for KidWorker<M> {
    fn drop(&mut self) {
        *unpoisoned(self.core.tally.lock()) += self.tally;
    }
}

/// Configuration for the crash explorer: the default options.
#[cfg(feature = "check")]
#[derive(Clone, Copy, Debug, Default)]
pub struct KidConfig;

#[cfg(feature = "check")]
impl EngineConfig for KidConfig {
    fn name(&self) -> &'static str {
        "kid"
    }

    fn has_command(&self) -> bool {
        true
    }

    /// Returns limits with little far memory, so that a run reuses blocks: half of a partition is 15 sets.
    fn limits(&self) -> ContestLimits {
        ContestLimits {
            far_bytes: 16 << 10,
            live_bytes_max: 4 << 10,
            ..explorer_limits()
        }
    }

    fn create(&self, sim: Sim) -> Result<Box<dyn Engine>, OpenError> {
        self.open(sim)
    }

    fn open(&self, sim: Sim) -> Result<Box<dyn Engine>, OpenError> {
        let engine = Kid::open(sim, &self.limits(), KidOptions::default())?;
        Ok(Box::new(engine))
    }
}
