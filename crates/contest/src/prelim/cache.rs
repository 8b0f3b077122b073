//! The read cache: keys that were asked for, and their values, for good.
//!
//! ```text
//!   bucket: a lock, how many of its slots are used, first slot of its own from the pool
//!   ┌──────┬──────┬──────┬──────┐          shared pool
//!   │ slot │ slot │ slot │ slot │ ──▶ slot ──▶ slot           a slot is a record (slab.rs)
//!   └──────┴──────┴──────┴──────┘
//! ```
//!
//! Half of the slots belong to buckets, half to the pool, which has no more when it has no more: nothing is ever
//! thrown out. So a cached value may be the only one there is, and far memory need not be told of updates to it.
//!
//! # Invariant
//! R1  Once a key was refused it is refused for good: who found no place and wrote far memory instead is not overtaken
//!     by a reader who fills in an older value.

use farbank_pm::sync::Mutex;
use farbank_pm::sync::atomic::AtomicU32;
use farbank_pm::sync::atomic::Ordering::Relaxed;

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
    /// First slot of the pool that nobody has.
    pool: AtomicU32,
}

impl PrelimCache {
    /// A cache that takes `bytes` or a little more.
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

    /// Bytes of DRAM it takes.
    pub(super) fn bytes(&self) -> u64 {
        (self.len * RECORD_BYTES + self.buckets.len() * size_of::<Mutex<CacheBucket>>()) as u64
    }

    /// Whether `key` is here; its value is copied to `out` then.
    pub(super) fn get(&self, key: KeyWords, out: &mut Vec<u8>) -> bool {
        let at = self.bucket_of(key);
        let bucket = self.buckets[at].lock().expect("no holder panics");
        let found = self.find(at, *bucket, key);
        found.inspect(|slot| self.slots.value(*slot, out)).is_some()
    }

    /// Makes `value` that of `key`, if it is here.
    pub(super) fn update(&self, key: KeyWords, value: &[u8]) -> bool {
        let at = self.bucket_of(key);
        let bucket = self.buckets[at].lock().expect("no holder panics");
        let found = self.find(at, *bucket, key);
        found
            .inspect(|slot| self.slots.put_value(*slot, value))
            .is_some()
    }

    /// Puts `key` here if it is not and there is room (R1). True if it is here now, with `value` only if it was not.
    pub(super) fn add(&self, key: KeyWords, value: &[u8]) -> bool {
        let at = self.bucket_of(key);
        let mut bucket = self.buckets[at].lock().expect("no holder panics");
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
    fn buckets_overflow_into_the_pool_until_that_is_empty_and_nothing_is_thrown_out() {
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
        assert_eq!(out, value(1), "who comes second does not replace");
        assert!(cache.update(key(1), &value(2)) && cache.get(key(1), &mut out));
        assert_eq!(out, value(2));
        assert!(!cache.update(key(3), &value(3)));
    }
}
