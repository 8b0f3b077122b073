//! An engine of the preliminary round: nothing is durable, writes are deferred, and the first records stay in DRAM.
//!
//! ```text
//!   set ──▶ next record of the worker's segment ──▶ head of the bucket, by compare-and-swap ──▶ the record's prev
//!              │ first 3.12 GiB: stay in DRAM
//!              └ later: a buffer of 4 MiB ──▶ full: queue ──▶ one of five flushers ──▶ sequential write to far memory
//!   get ──▶ read cache ──▶ chain of the bucket: DRAM, buffers, far memory
//! ```
//!
//! The preliminary round has keys of 16 bytes and values of 80, and requires no durability. A record takes 100 bytes
//! and is identified by its number. A bucket holds the number of its newest record, and each record holds the number
//! of the next older one. In the set phase an update adds one more record in front of the older one. In the get phase
//! every set is an update, and it overwrites the value in place. If the read cache holds the key, only the cache is
//! updated.
//!
//! * `slab` is a record, `records` the places of records, `flush` the queue of buffers, `cache` the read cache.
//!
//! # Defects
//! 1. No data survives a restart: records in far memory cannot be found without the index in DRAM.
//! 2. A set updates the head of a bucket before it writes the new record's `prev`. In between, a reader follows the
//!    buffer's former contents from the new record, and misses every older key of the bucket.
//!    ([`PrelimOptions::prev_first`])
//! 3. An update in the set phase takes space and frees none. When the record numbers are used up, this version
//!    overwrites values in place and refuses new keys. The published engine does not handle this case.

mod cache;
mod flush;
mod records;
mod slab;
#[cfg(test)]
mod tests;

use farbank_pm::grow_table::GrowTable;
use farbank_pm::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use farbank_pm::sync::atomic::{AtomicU32, AtomicU64, fence};
use farbank_pm::sync::{Arc, Mutex, thread, unpoisoned};
use farbank_pm::{Medium, PersistCtx};

use crate::engine::{Engine, EngineStats, Error, Key, OpenError, Worker};
use crate::limits::ContestLimits;
use crate::stripes::{LockStripes, StripeLock};
use cache::PrelimCache;
use flush::FlushQueue;
use records::{FullBuffer, RecordCounts, RecordStore};
use slab::{KeyWords, NONE, RECORD_BYTES, RecordLookup, VALUE_BYTES, words};

/// Bytes of far memory per byte of a buffer. Published: buffers of 4 MiB for 74 GiB.
const BUFFERS_OF_FAR: u64 = 74 << 8;
/// Bytes of far memory per byte of the read cache. Published: a cache of 16 MiB for 74 GiB.
const CACHES_OF_FAR: u64 = 74 << 6;
/// Number of segments that stay in DRAM: 50 for each of 16 threads, 3.12 GiB.
const HEAD_SEGMENTS: u32 = 50 * 16;
/// Number of sequence locks, which protect values that are overwritten in place.
const STRIPES: usize = 4096;
/// Number of the first flusher's persistence context. Workers' contexts are numbered from 0.
const FLUSHER_CTX_FIRST: u32 = 1 << 31;

/// Method of updating a bucket's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeadUpdate {
    /// A compare-and-swap.
    CompareAndSwap,
    /// A load and a store, under the lock of the bucket's stripe.
    Locked(StripeLock),
}

/// Options of the engine. The defaults are as published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrelimOptions {
    /// Number of threads that write buffers to far memory, at least 1. Published: 5.
    pub flushers: usize,
    /// Number of buffers; the engine makes at least one per thread. Published: 32.
    pub buffers: usize,
    /// Number of segments that stay in DRAM; each is as large as a buffer. Published: 800, which is 3.12 GiB.
    pub head_segments: u32,
    /// Whether the get phase uses the read cache. Published: on.
    pub read_cache: bool,
    /// Whether an update in the get phase is written to the read cache only, if the cache holds the key. Published:
    /// yes.
    pub cache_absorbs: bool,
    /// Whether a set in the set phase always adds a record, without a lookup of the key. Published: yes. Otherwise an
    /// update overwrites the value in place.
    pub append_updates: bool,
    /// Method of updating heads. Published: compare-and-swap; the authors also tried a mutex.
    pub head_update: HeadUpdate,
    /// Whether a get reuses the caller's buffer instead of a new one. Published: yes.
    pub value_reuse: bool,
    /// Number of threads that initialise the index when the engine is created, at least 1.
    pub init_threads: usize,
    /// Whether a record's `prev` is written before the bucket's head refers to the record. Published: no, see defect 2
    /// of the module.
    pub prev_first: bool,
}

impl Default for PrelimOptions {
    fn default() -> PrelimOptions {
        PrelimOptions {
            flushers: 5,
            buffers: 32,
            head_segments: HEAD_SEGMENTS,
            read_cache: true,
            cache_absorbs: true,
            append_updates: true,
            head_update: HeadUpdate::CompareAndSwap,
            value_reuse: true,
            init_threads: 16,
            prev_first: false,
        }
    }
}

/// The open engine.
pub struct Prelim<M: Medium> {
    core: Arc<PrelimCore<M>>,
}

/// Progress of the contest's set phase, which a get phase follows.
struct SetPhase {
    /// Sets by workers that have been dropped.
    sets: AtomicU64,
    /// Number of sets at which the phase ends.
    end: u64,
}

/// The number of the newest record of each bucket.
struct HeadTable {
    heads: GrowTable<AtomicU32>,
    mask: u64,
}

struct PrelimCore<M: Medium> {
    head_table: HeadTable,
    records: Arc<RecordStore<M>>,
    queue: Arc<FlushQueue>,
    cache: Option<PrelimCache>,
    stripes: Vec<AtomicU32>,
    /// Locks of the heads, with [`HeadUpdate::Locked`].
    locks: Option<LockStripes>,
    /// Number of segments that each thread has begun.
    segments_begun: Vec<AtomicU32>,
    workers: AtomicU64,
    set_phase: SetPhase,
    options: PrelimOptions,
    tally: Mutex<EngineStats>,
    flushers: Mutex<Vec<thread::JoinHandle<()>>>,
}

impl<M: Medium> Prelim<M> {
    /// Creates a new engine on the first [`ContestLimits::far_bytes`] of `medium`, and ignores what they contain.
    ///
    /// # Errors
    /// The medium is too short, or the limits allow values that do not have 80 bytes.
    pub fn create(
        medium: M,
        terms: &ContestLimits,
        options: PrelimOptions,
    ) -> Result<Prelim<M>, OpenError> {
        let (has, needs) = (medium.len(), terms.far_bytes);
        if has < needs {
            return Err(OpenError::Unfit(format!(
                "the medium has {has} bytes, the limits require {needs}"
            )));
        }
        if terms.value_bytes != (VALUE_BYTES, VALUE_BYTES) {
            let (min, max) = terms.value_bytes;
            return Err(OpenError::Unfit(format!(
                "values of {min} to {max} bytes, expected {VALUE_BYTES} bytes only: use ContestLimits::preliminary"
            )));
        }
        let buffers = options.buffers.max(terms.threads);
        let buffer_records = (needs / BUFFERS_OF_FAR) as u32 / RECORD_BYTES as u32;
        let records = Arc::new(RecordStore::new(
            medium,
            &RecordCounts {
                far_bytes: needs,
                // Even: see PRELIM-REC-3 in records.rs.
                segment_records: (buffer_records / 2 * 2).max(2),
                head_segments: options.head_segments,
                buffers,
            },
        ));
        let queue = Arc::new(FlushQueue::new(buffers));
        let flusher = |n| {
            flush::start(
                FLUSHER_CTX_FIRST + n,
                Arc::clone(&queue),
                Arc::clone(&records),
            )
        };
        let flushers = (0..options.flushers.max(1) as u32).map(flusher).collect();
        let core = PrelimCore {
            head_table: HeadTable {
                heads: empty_heads(1 << terms.hash_bits, options.init_threads.max(1)),
                mask: (1 << terms.hash_bits) - 1,
            },
            records,
            queue,
            cache: options
                .read_cache
                .then(|| PrelimCache::new(needs / CACHES_OF_FAR)),
            stripes: (0..STRIPES).map(|_| AtomicU32::new(0)).collect(),
            locks: match options.head_update {
                HeadUpdate::CompareAndSwap => None,
                HeadUpdate::Locked(lock) => Some(LockStripes::new(STRIPES as u64, lock)),
            },
            segments_begun: (0..terms.threads).map(|_| AtomicU32::new(0)).collect(),
            workers: AtomicU64::new(0),
            set_phase: SetPhase {
                sets: AtomicU64::new(0),
                // Each thread's share may have been rounded down.
                end: terms.operations.saturating_sub(terms.threads as u64),
            },
            options,
            tally: Mutex::default(),
            flushers: Mutex::new(flushers),
        };
        Ok(Prelim {
            core: Arc::new(core),
        })
    }
}

/// Returns an index of empty buckets, initialised by `threads` threads.
fn empty_heads(len: usize, threads: usize) -> GrowTable<AtomicU32> {
    let heads = GrowTable::new(len);
    heads.reserve(len);
    let fill = |part: usize| {
        for at in part * len / threads..(part + 1) * len / threads {
            let head: &AtomicU32 = heads.get(at);
            head.store(NONE, Relaxed);
        }
    };
    thread::scope(|scope| {
        for part in 1..threads {
            scope.spawn(move || fill(part));
        }
        fill(0);
    });
    heads
}

impl<M: Medium> PrelimCore<M> {
    fn bucket_of(&self, key: KeyWords) -> usize {
        let low = u64::from(key[0]) | u64::from(key[1]) << 32;
        (low & self.head_table.mask) as usize
    }

    /// Returns the newest record of `key`, with its value in `out`, and the number of records visited.
    fn find(&self, key: KeyWords, out: &mut Vec<u8>) -> (Option<u32>, u64) {
        let mut n = self.head_table.heads.get(self.bucket_of(key)).load(Acquire);
        let mut looks = 0;
        while n != NONE {
            looks += 1;
            match self.records.look(n, key, out) {
                RecordLookup::Same => return (Some(n), looks),
                RecordLookup::Other(prev) => n = prev,
            }
        }
        (None, looks)
    }

    /// Like [`PrelimCore::find`], and repeats the search if a writer may have changed the value meanwhile.
    fn find_whole(&self, key: KeyWords, out: &mut Vec<u8>) -> (Option<u32>, u64) {
        let stripe = self.stripe_of(key);
        loop {
            let before = stripe.load(Acquire);
            let found = self.find(key, out);
            fence(Acquire);
            if before.is_multiple_of(2) && stripe.load(Relaxed) == before {
                return found;
            }
            thread::yield_now();
        }
    }

    fn stripe_of(&self, key: KeyWords) -> &AtomicU32 {
        &self.stripes[self.bucket_of(key) % STRIPES]
    }

    /// Makes record `n` the newest of its bucket. Calls `before` with the former newest record before the change, and
    /// returns that record, which must become the `prev` of `n`.
    fn replace_head(&self, bucket: usize, n: u32, before: impl Fn(u32)) -> u32 {
        let head = self.head_table.heads.get(bucket);
        if let Some(locks) = &self.locks {
            let _locked = locks.lock(bucket as u64);
            let old = head.load(Relaxed);
            before(old);
            head.store(n, Release);
            return old;
        }
        let newest = |old| {
            before(old);
            Some(n)
        };
        let swung = head.fetch_update(AcqRel, Acquire, newest);
        swung.expect("the closure always returns a new head")
    }

    /// Overwrites the value of record `n` in place. Readers see the old or the new value as a whole.
    fn rewrite(
        &self,
        ctx: &mut PersistCtx,
        key: KeyWords,
        n: u32,
        value: &[u8],
    ) -> Result<(), Error> {
        let stripe = self.stripe_of(key);
        let lock = |word: u32| word.is_multiple_of(2).then(|| word.wrapping_add(1));
        while stripe.fetch_update(Acquire, Relaxed, lock).is_err() {
            thread::yield_now();
        }
        fence(Release);
        let written = self.records.rewrite(ctx, n, value);
        stripe.fetch_add(1, Release);
        Ok(written?)
    }
}

impl<M: Medium> Drop for PrelimCore<M> {
    fn drop(&mut self) {
        self.queue.close();
        for flusher in unpoisoned(self.flushers.get_mut()).drain(..) {
            flusher.join().expect("a flusher does not panic");
        }
    }
}

impl<M: Medium> Engine for Prelim<M> {
    /// Returns a worker. It works as in the set phase if dropped workers have done fewer than
    /// [`ContestLimits::operations`] sets, and as in the get phase otherwise. Workers of the two phases must not exist
    /// at the same time.
    fn worker(&self) -> Box<dyn Worker> {
        let core = Arc::clone(&self.core);
        let number = core.workers.fetch_add(1, Relaxed);
        Box::new(PrelimWorker {
            ctx: PersistCtx::new(number as u32),
            thread: number as usize % core.segments_begun.len(),
            in_get_phase: core.set_phase.sets.load(Acquire) >= core.set_phase.end,
            open_buffer: None,
            sets: 0,
            scratch: Vec::new(),
            tally: EngineStats::default(),
            core,
        })
    }

    fn dram(&self) -> Vec<(&'static str, u64)> {
        let PrelimCore {
            records,
            cache,
            locks,
            head_table,
            options,
            ..
        } = &*self.core;
        let (head, buffers) = records.bytes();
        vec![
            ("index", (head_table.mask + 1) * size_of::<u32>() as u64),
            ("read cache", cache.as_ref().map_or(0, PrelimCache::bytes)),
            ("locks", locks.as_ref().map_or(0, LockStripes::bytes)),
            ("buffers", buffers),
            (
                "flushers",
                records.flusher_bytes() * options.flushers as u64,
            ),
            ("head cache", head),
        ]
    }

    fn far_bytes(&self) -> u64 {
        let PrelimCore {
            segments_begun: begun,
            records,
            ..
        } = &*self.core;
        let begun: u32 = begun.iter().map(|begun| begun.load(Relaxed)).sum();
        let far = u64::from(begun.saturating_sub(records.head_segments));
        far * u64::from(records.segment_records) * RECORD_BYTES as u64
    }

    fn stats(&self) -> EngineStats {
        *unpoisoned(self.core.tally.lock())
    }
}

/// The segment that a worker fills, and the number of records written to it.
#[derive(Clone, Copy)]
struct OpenBuffer {
    segment: u32,
    records: u32,
}

struct PrelimWorker<M: Medium> {
    core: Arc<PrelimCore<M>>,
    ctx: PersistCtx,
    thread: usize,
    in_get_phase: bool,
    open_buffer: Option<OpenBuffer>,
    sets: u64,
    scratch: Vec<u8>,
    tally: EngineStats,
}

impl<M: Medium> PrelimWorker<M> {
    /// Returns the number of the next record this worker may write; `None` if no record number is left.
    fn next_record(&mut self) -> Result<Option<u32>, Error> {
        let records = &*self.core.records;
        let full = |f: OpenBuffer| f.records == records.segment_records;
        if self.open_buffer.is_none_or(full) {
            self.hand_in();
            let thread = self.thread as u32;
            let threads = self.core.segments_begun.len() as u32;
            // Two workers may have the same thread number, one after the other.
            let next = |begun| {
                Some(begun + 1).filter(|_| begun * threads + thread < self.core.records.segments())
            };
            let Ok(begun) =
                self.core.segments_begun[self.thread].fetch_update(Relaxed, Relaxed, next)
            else {
                return Ok(None);
            };
            let segment = begun * threads + thread;
            if segment >= self.core.records.head_segments {
                let buffer = self.core.queue.take()?;
                self.core.records.begin(segment, buffer);
            }
            self.open_buffer = Some(OpenBuffer {
                segment,
                records: 0,
            });
        }
        let segment_records = self.core.records.segment_records;
        let next = self.open_buffer.as_mut().map(|filling| {
            filling.records += 1;
            filling.segment * segment_records + filling.records - 1
        });
        Ok(next)
    }

    /// Queues the open buffer for flushing, if there is one. The worker writes no more records to its segment.
    fn hand_in(&mut self) {
        let Some(OpenBuffer { segment, records }) = self.open_buffer.take() else {
            return;
        };
        if let Some(buffer) = self.core.records.buffer_of(segment) {
            self.core.queue.hand_in(FullBuffer {
                buffer,
                segment,
                records,
            });
        }
    }

    /// Adds a record to the front of the key's bucket. Returns false if no record number is left.
    fn append(&mut self, key: KeyWords, value: &[u8]) -> Result<bool, Error> {
        let Some(n) = self.next_record()? else {
            return Ok(false);
        };
        let core = &*self.core;
        let (slab, at) = core.records.slab_of(n);
        slab.put(at, key, value);
        let bucket = core.bucket_of(key);
        if core.options.prev_first {
            core.replace_head(bucket, n, |old| slab.set_prev(at, old));
        } else {
            let old = core.replace_head(bucket, n, |_| {});
            slab.set_prev(at, old);
        }
        Ok(true)
    }

    /// Updates a stored key without a new record: in the read cache if it takes the key, and otherwise in place.
    /// Without `cache_absorbs` a cached key is updated in both. Returns false if the key is not stored.
    fn update(&mut self, key: KeyWords, value: &[u8]) -> Result<bool, Error> {
        let cache = self.core.cache.as_ref().filter(|_| self.in_get_phase);
        let absorbs = self.core.options.cache_absorbs;
        let mut cached = cache.is_some_and(|cache| cache.update(key, value));
        if cached && absorbs {
            return Ok(true);
        }
        let Some(n) = self.core.find_whole(key, &mut self.scratch).0 else {
            return Ok(false);
        };
        // Meanwhile a reader may have filled the cache with the older value.
        cached |= cache.is_some_and(|cache| cache.add(key, value) && cache.update(key, value));
        if !cached || !absorbs {
            self.core.rewrite(&mut self.ctx, key, n, value)?;
        }
        Ok(true)
    }
}

impl<M: Medium> Worker for PrelimWorker<M> {
    /// Stores the value without durability. In the set phase every set counts as an insert.
    fn set(&mut self, key: &Key, value: &[u8]) -> Result<(), Error> {
        let len = value.len();
        assert_eq!(
            len, VALUE_BYTES,
            "the value has {len} bytes, this engine supports {VALUE_BYTES} only"
        );
        let key = words(key);
        let looks = self.in_get_phase || !self.core.options.append_updates;
        let updated = looks && self.update(key, value)?;
        let inserted = !updated && self.append(key, value)?;
        if !updated && !inserted && (looks || !self.update(key, value)?) {
            return Err(Error::Full);
        }
        self.tally.inserts += u64::from(inserted);
        self.tally.updates += u64::from(!inserted);
        self.sets += 1;
        Ok(())
    }

    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> bool {
        if !self.core.options.value_reuse {
            *out = Vec::new();
        }
        let key = words(key);
        let cache = self.core.cache.as_ref().filter(|_| self.in_get_phase);
        if let Some(cache) = cache {
            if cache.get(key, out) {
                self.tally.cache_hits += 1;
                return true;
            }
            self.tally.cache_misses += 1;
        }
        let (found, looks) = self.core.find_whole(key, out);
        if found.is_none() {
            self.tally.miss(looks);
            return false;
        }
        self.tally.hit(looks);
        if let Some(cache) = cache {
            cache.add(key, out);
        }
        true
    }
}

impl<M: Medium> Drop for PrelimWorker<M> {
    fn drop(&mut self) {
        self.hand_in();
        self.core.set_phase.sets.fetch_add(self.sets, Release);
        *unpoisoned(self.core.tally.lock()) += self.tally;
    }
}
