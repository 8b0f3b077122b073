//! The engine of the preliminary round: nothing is durable, writing is put off, and what was written first stays in DRAM.
//!
//! ```text
//!   set ──▶ next record of the worker's segment ──▶ head of the bucket, by compare-and-swap ──▶ the record's prev
//!              │ first 3.12 GiB: DRAM for good
//!              └ then: a buffer of 4 MiB ──▶ full: queue ──▶ one of five flushers ──▶ far memory, in one stream
//!   get ──▶ read cache ──▶ chain of the bucket: DRAM, buffers, far memory
//! ```
//!
//! The first round asked for keys of 16 bytes and values of 80, and for no durability. A record is 100 bytes and is
//! named by its number; a bucket is the number of its newest record; each record names the next older one. In the set
//! phase an update is one more record in front of the older one. In the get phase, when every set is an update, the
//! value is written over in place; and where the read cache takes it, only there.
//!
//! * `slab` is a record, `records` where it is, `flush` how it comes to far memory, `cache` the read cache.
//!
//! # What is wrong with it
//! 1. Nothing survives: nothing in far memory can be found without the index in DRAM.
//! 2. The head of a bucket is swung before the new record's `prev` is written. In between, a reader that comes by the
//!    new record goes on at whatever the buffer held before, and misses every older key of the bucket.
//!    ([`Options::prev_first`])
//! 3. An update in the set phase takes space and gives none back. When the numbers are used up, updates are written in
//!    place and new keys are refused; the published engine has no such case.

mod cache;
mod flush;
mod records;
mod slab;
#[cfg(test)]
mod tests;

use farbank_pm::grow_table::GrowTable;
use farbank_pm::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use farbank_pm::sync::atomic::{AtomicU32, AtomicU64, fence};
use farbank_pm::sync::{Arc, Mutex, thread};
use farbank_pm::{Medium, PersistCtx};

use crate::engine::{Engine, EngineStats, Error, Key, Worker};
use crate::limits::ContestLimits;
use crate::stripes::{LockStripes, StripeLock};
use cache::PrelimCache;
use flush::FlushQueue;
use records::{FullBuffer, RecordCounts, RecordStore};
use slab::{KeyWords, NONE, RECORD_BYTES, RecordLookup, VALUE_BYTES, words};

/// 74 GiB have buffers of 4 MiB: this part of far memory.
const BUFFERS_OF_FAR: u64 = 74 << 8;
/// And a read cache of 16 MiB.
const CACHES_OF_FAR: u64 = 74 << 6;
/// Segments that stay in DRAM: 50 of each of 16 threads, 3.12 GiB.
const HEAD_SEGMENTS: u32 = 50 * 16;
/// Sequence locks of values that are written over in place.
const STRIPES: usize = 4096;
/// Workers' contexts are numbered from 0; flushers' from here.
const FLUSHER_LANES: u32 = 1 << 31;

/// How a bucket's head comes to name a newer record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeadUpdate {
    /// By compare-and-swap.
    CompareAndSwap,
    /// By a load and a store, under the lock of the bucket's stripe.
    Locked(StripeLock),
}

/// Its tunings, as published by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrelimOptions {
    /// Threads that bring buffers to far memory, at least 1. Published: 5.
    pub flushers: usize,
    /// Buffers; at least as many as threads are made. Published: 32.
    pub buffers: usize,
    /// Segments that stay in DRAM; each is as large as a buffer. Published: 800, which is 3.12 GiB.
    pub head_segments: u32,
    /// Whether reads in the get phase are kept in DRAM. Published: on.
    pub read_cache: bool,
    /// Whether an update of the get phase that the read cache takes is written nowhere else. Published: yes.
    pub cache_absorbs: bool,
    /// Whether an update of the set phase is one more record, and the key is not looked for. Published: yes; else
    /// values are written over in place.
    pub append_updates: bool,
    /// How heads change. Published: by compare-and-swap; a mutex was tried.
    pub head_update: HeadUpdate,
    /// Whether a get fills the caller's buffer, or makes a new one. Published: the caller's.
    pub value_reuse: bool,
    /// Threads that fill the index when the engine is opened, at least 1.
    pub init_threads: usize,
    /// Write a record's `prev` before its bucket names it. Published: off, see the module's head, 2.
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

/// The engine, open.
pub struct Prelim<M: Medium> {
    core: Arc<PrelimCore<M>>,
}

struct PrelimCore<M: Medium> {
    /// The newest record of each bucket.
    heads: GrowTable<AtomicU32>,
    hash_mask: u64,
    records: Arc<RecordStore<M>>,
    queue: Arc<FlushQueue>,
    cache: Option<PrelimCache>,
    stripes: Vec<AtomicU32>,
    /// Of the heads, where they are locked.
    locks: Option<LockStripes>,
    /// Of each thread: segments it has begun.
    begun: Vec<AtomicU32>,
    workers: AtomicU64,
    /// Sets by workers that are gone, and how many make a set phase.
    sets: AtomicU64,
    set_phase: u64,
    options: PrelimOptions,
    tally: Mutex<EngineStats>,
    flushers: Mutex<Vec<thread::JoinHandle<()>>>,
}

impl<M: Medium> Prelim<M> {
    /// A new engine on the first [`Terms::far_bytes`] of `medium`, whatever is in them.
    ///
    /// # Errors
    /// The medium is too short, or the terms ask for values that are not of 80 bytes.
    pub fn create(
        medium: M,
        terms: &ContestLimits,
        options: PrelimOptions,
    ) -> Result<Prelim<M>, String> {
        let (has, needs) = (medium.len(), terms.far_bytes);
        if has < needs {
            return Err(format!(
                "the medium has {has} bytes, the terms ask for {needs}"
            ));
        }
        if terms.value_bytes != (VALUE_BYTES, VALUE_BYTES) {
            let (min, max) = terms.value_bytes;
            return Err(format!(
                "values of {min} to {max} bytes; this engine has room for {VALUE_BYTES}, see Terms::preliminary"
            ));
        }
        let buffers = options.buffers.max(terms.threads);
        let buffer_records = (needs / BUFFERS_OF_FAR) as u32 / RECORD_BYTES as u32;
        let records = Arc::new(RecordStore::new(
            medium,
            &RecordCounts {
                far_bytes: needs,
                // Even: see records.rs, N3.
                segment_records: (buffer_records / 2 * 2).max(2),
                head_segments: options.head_segments,
                buffers,
            },
        ));
        let queue = Arc::new(FlushQueue::new(buffers));
        let flusher = |n| flush::start(FLUSHER_LANES + n, Arc::clone(&queue), Arc::clone(&records));
        let flushers = (0..options.flushers.max(1) as u32).map(flusher).collect();
        let core = PrelimCore {
            heads: empty_heads(1 << terms.hash_bits, options.init_threads.max(1)),
            hash_mask: (1 << terms.hash_bits) - 1,
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
            begun: (0..terms.threads).map(|_| AtomicU32::new(0)).collect(),
            workers: AtomicU64::new(0),
            sets: AtomicU64::new(0),
            // Threads may have rounded down.
            set_phase: terms.operations.saturating_sub(terms.threads as u64),
            options,
            tally: Mutex::default(),
            flushers: Mutex::new(flushers),
        };
        Ok(Prelim {
            core: Arc::new(core),
        })
    }
}

/// An index of empty buckets, filled by several threads.
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
        (low & self.hash_mask) as usize
    }

    /// The newest record of `key`, with its value in `out`; and how many records were looked at.
    fn find(&self, key: KeyWords, out: &mut Vec<u8>) -> (Option<u32>, u64) {
        let mut n = self.heads.get(self.bucket_of(key)).load(Acquire);
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

    /// [`Core::find`], and the value is a whole one.
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

    /// Names record `n` the newest of its bucket. What was the newest must become its `prev`.
    fn swing(&self, bucket: usize, n: u32, before: impl Fn(u32)) -> u32 {
        let head = self.heads.get(bucket);
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
        swung.expect("it always wants to change")
    }

    /// Makes `value` that of record `n`, in place; readers see one or the other.
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
        for flusher in self.flushers.get_mut().expect("no holder panics").drain(..) {
            flusher.join().expect("a flusher does not panic");
        }
    }
}

impl<M: Medium> Engine for Prelim<M> {
    /// A worker sets as in the set phase if fewer sets than [`Terms::operations`] were done by workers that are gone,
    /// else as in the get phase. Workers of the two phases must not meet.
    fn worker(&self) -> Box<dyn Worker> {
        let core = Arc::clone(&self.core);
        let number = core.workers.fetch_add(1, Relaxed);
        Box::new(PrelimWorker {
            ctx: PersistCtx::new(number as u32),
            thread: number as usize % core.begun.len(),
            getting: core.sets.load(Acquire) >= core.set_phase,
            filling: None,
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
            hash_mask,
            options,
            ..
        } = &*self.core;
        let (head, buffers) = records.bytes();
        vec![
            ("index", (hash_mask + 1) * size_of::<u32>() as u64),
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
        let PrelimCore { begun, records, .. } = &*self.core;
        let begun: u32 = begun.iter().map(|begun| begun.load(Relaxed)).sum();
        let far = u64::from(begun.saturating_sub(records.head_segments));
        far * u64::from(records.segment_records) * RECORD_BYTES as u64
    }

    fn tally(&self) -> EngineStats {
        *self.core.tally.lock().expect("no holder panics")
    }
}

/// What a worker is filling: the segment, and how many of its records.
#[derive(Clone, Copy)]
struct OpenBuffer {
    segment: u32,
    records: u32,
}

struct PrelimWorker<M: Medium> {
    core: Arc<PrelimCore<M>>,
    ctx: PersistCtx,
    thread: usize,
    getting: bool,
    filling: Option<OpenBuffer>,
    sets: u64,
    scratch: Vec<u8>,
    tally: EngineStats,
}

impl<M: Medium> PrelimWorker<M> {
    /// The number of the next record this worker may fill; `None` if there is none.
    fn next_record(&mut self) -> Result<Option<u32>, Error> {
        let records = &*self.core.records;
        let full = |f: OpenBuffer| f.records == records.segment_records;
        if self.filling.is_none_or(full) {
            self.hand_in();
            let thread = self.thread as u32;
            let threads = self.core.begun.len() as u32;
            // Two workers may have one thread's number, one after the other.
            let next = |begun| {
                Some(begun + 1).filter(|_| begun * threads + thread < self.core.records.segments())
            };
            let Ok(begun) = self.core.begun[self.thread].fetch_update(Relaxed, Relaxed, next)
            else {
                return Ok(None);
            };
            let segment = begun * threads + thread;
            if segment >= self.core.records.head_segments {
                let buffer = self.core.queue.take()?;
                self.core.records.begin(segment, buffer);
            }
            self.filling = Some(OpenBuffer {
                segment,
                records: 0,
            });
        }
        let segment_records = self.core.records.segment_records;
        let next = self.filling.as_mut().map(|filling| {
            filling.records += 1;
            filling.segment * segment_records + filling.records - 1
        });
        Ok(next)
    }

    /// The segment gets no more records from this worker.
    fn hand_in(&mut self) {
        let Some(OpenBuffer { segment, records }) = self.filling.take() else {
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

    /// One more record in front of the key's bucket; false if there is none.
    fn append(&mut self, key: KeyWords, value: &[u8]) -> Result<bool, Error> {
        let Some(n) = self.next_record()? else {
            return Ok(false);
        };
        let core = &*self.core;
        let (slab, at) = core.records.own(n);
        slab.put(at, key, value);
        let bucket = core.bucket_of(key);
        if core.options.prev_first {
            core.swing(bucket, n, |old| slab.set_prev(at, old));
        } else {
            let old = core.swing(bucket, n, |_| {});
            slab.set_prev(at, old);
        }
        Ok(true)
    }

    /// An update that is no record of its own: in the read cache if that takes it, else, or also, in place.
    fn update(&mut self, key: KeyWords, value: &[u8]) -> Result<bool, Error> {
        let cache = self.core.cache.as_ref().filter(|_| self.getting);
        let absorbs = self.core.options.cache_absorbs;
        let mut cached = cache.is_some_and(|cache| cache.update(key, value));
        if cached && absorbs {
            return Ok(true);
        }
        let Some(n) = self.core.find_whole(key, &mut self.scratch).0 else {
            return Ok(false);
        };
        // A reader may have put the older value there meanwhile.
        cached |= cache.is_some_and(|cache| cache.add(key, value) && cache.update(key, value));
        if !cached || !absorbs {
            self.core.rewrite(&mut self.ctx, key, n, value)?;
        }
        Ok(true)
    }
}

impl<M: Medium> Worker for PrelimWorker<M> {
    /// Not durable. In the set phase every set counts as an insert.
    fn set(&mut self, key: &Key, value: &[u8]) -> Result<(), Error> {
        let len = value.len();
        assert_eq!(
            len, VALUE_BYTES,
            "a value of {len} bytes, this engine has room for {VALUE_BYTES}"
        );
        let key = words(key);
        let looks = self.getting || !self.core.options.append_updates;
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
        let cache = self.core.cache.as_ref().filter(|_| self.getting);
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
        self.core.sets.fetch_add(self.sets, Release);
        *self.core.tally.lock().expect("no holder panics") += self.tally;
    }
}
