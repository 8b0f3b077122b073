//! The read cache: keys that were read, and their values. An entry is never evicted.
//!
//! ```text
//!   bucket: a lock, the number of used slots, the first overflow slot in the shared pool
//!   ┌──────┬──────┬──────┬──────┐          shared pool
//!   │ slot │ slot │ slot │ slot │ ──▶ slot ──▶ slot           a slot is a record (slab.rs)
//!   └──────┴──────┴──────┴──────┘
//! ```
//!
//! Half of the slots belong to buckets and half to the shared pool. When the pool is used up, further keys are refused.
//! Entries are never evicted. So the cache may hold the only copy of a value, and updates of a cached key need not be
//! written to far memory.
//!
//! # Invariant
//! PRELIM-CACHE-1  A key that was refused once is always refused. A writer that found no slot writes to far memory instead, and no
//!     reader can later fill the cache with an older value.

use farbank_pm::sync::atomic::AtomicU32;
use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::sync::{Mutex, unpoisoned};

use super::slab::{KeyWords, NONE, RECORD_BYTES, RecordSlab};

const SLOTS: usize = 4;

#[derive(Clone, Copy)]
struct CacheBucket {
    used: usize,
    overflow: u32,
}

/// The cache.
pub(super) struct PrelimCache {
    slots: RecordSlab,
    len: usize,
    buckets: Vec<Mutex<CacheBucket>>,
    /// First free slot of the pool.
    pool: AtomicU32,
}

impl PrelimCache {
    /// Returns an empty cache of about `bytes` bytes.
    pub(super) fn new(bytes: u64) -> PrelimCache {
        let buckets = (bytes as usize / RECORD_BYTES / SLOTS / 2).max(1);
        let len = buckets * SLOTS * 2;
        let empty = || {
            Mutex::new(CacheBucket {
                used: 0,
                overflow: NONE,
            })
        };
        PrelimCache {
            slots: RecordSlab::new(len),
            len,
            buckets: (0..buckets).map(|_| empty()).collect(),
            pool: AtomicU32::new((buckets * SLOTS) as u32),
        }
    }

    /// Returns the bytes of DRAM that the cache takes.
    pub(super) fn bytes(&self) -> u64 {
        (self.len * RECORD_BYTES + self.buckets.len() * size_of::<Mutex<CacheBucket>>()) as u64
    }

    /// Replaces `out` with the value of `key` if the cache holds it. Returns whether it does.
    pub(super) fn get(&self, key: KeyWords, out: &mut Vec<u8>) -> bool {
        let at = self.bucket_of(key);
        let bucket = unpoisoned(self.buckets[at].lock());
        let found = self.find(at, *bucket, key);
        found.inspect(|slot| self.slots.value(*slot, out)).is_some()
    }

    /// Replaces the value of `key` if the cache holds it. Returns whether it does.
    pub(super) fn update(&self, key: KeyWords, value: &[u8]) -> bool {
        let at = self.bucket_of(key);
        let bucket = unpoisoned(self.buckets[at].lock());
        let found = self.find(at, *bucket, key);
        found
            .inspect(|slot| self.slots.put_value(*slot, value))
            .is_some()
    }

    /// Adds `key` with `value` if it is absent and a slot is free (PRELIM-CACHE-1). A value that is already present stays. Returns
    /// whether the cache holds `key` afterwards.
    pub(super) fn add(&self, key: KeyWords, value: &[u8]) -> bool {
        let at = self.bucket_of(key);
        let mut bucket = unpoisoned(self.buckets[at].lock());
        if self.find(at, *bucket, key).is_some() {
            return true;
        }
        let slot = if bucket.used < SLOTS {
            bucket.used += 1;
            at * SLOTS + bucket.used - 1
        } else {
            let next = |n| ((n as usize) < self.len).then_some(n + 1);
            let Ok(slot) = self.pool.fetch_update(Relaxed, Relaxed, next) else {
                return false;
            };
            self.slots.set_prev(slot as usize, bucket.overflow);
            bucket.overflow = slot;
            slot as usize
        };
        self.slots.put(slot, key, value);
        true
    }

    fn bucket_of(&self, key: KeyWords) -> usize {
        key[0] as usize % self.buckets.len()
    }

    fn find(&self, at: usize, bucket: CacheBucket, key: KeyWords) -> Option<usize> {
        let own = at * SLOTS..at * SLOTS + bucket.used;
        let next = |slot: u32| Some(slot as usize).filter(|_| slot != NONE);
        let more = std::iter::successors(next(bucket.overflow), |at| next(self.slots.prev(*at)));
        own.chain(more).find(|slot| self.slots.is(*slot, key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_overflow_into_the_pool_until_it_is_empty_and_no_entry_is_evicted() {
        let cache = PrelimCache::new(8 * 100 * 2);
        let key = |n: u32| [n, 1, 2, 3];
        let value = |n: u32| [n as u8; 80];
        let taken: Vec<u32> = (0..40)
            .filter(|n| cache.add(key(n % 40 * 2), &value(*n)))
            .collect();
        assert_eq!(
            taken.len(),
            SLOTS + 2 * SLOTS,
            "all in one bucket, then the pool"
        );
        let mut out = Vec::new();
        for n in 0..40 {
            assert_eq!(cache.get(key(n * 2), &mut out), taken.contains(&n));
            if taken.contains(&n) {
                assert_eq!(out, value(n));
            }
        }
        assert!(
            cache.add(key(1), &value(1)),
            "the other bucket has slots of its own"
        );
        assert!(cache.add(key(1), &value(2)) && cache.get(key(1), &mut out));
        assert_eq!(out, value(1), "a second add does not replace the value");
        assert!(cache.update(key(1), &value(2)) && cache.get(key(1), &mut out));
        assert_eq!(out, value(2));
        assert!(!cache.update(key(3), &value(3)));
    }
}
