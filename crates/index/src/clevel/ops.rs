//! Insert, get, update, remove.

use farbank_pm::model::Category;
use farbank_pm::{Medium, Off, WORD, fault, situation};

use super::Clevel;
use super::layout::{EMPTY, Level, PAIR, PAIR_BYTES, value_of};
use crate::error::IndexError;
use crate::locks::LockGuard;
use crate::pool_heap::TableWorker;
use farbank_pm::simd::ones;

/// A slot that a search found, and its pair.
pub(super) struct FoundSlot {
    slot: Off,
    pair: Off,
}

impl<M: Medium> Clevel<M> {
    /// Inserts a key with three lines (the pair's bit, the pair, the slot) and two drains. A resize costs extra.
    pub(super) fn insert_hashed(
        &self,
        worker: &mut TableWorker,
        hash: u64,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        loop {
            let guard = self.hold(hash)?;
            if let Some(found) = self.find(hash, key)? {
                return Ok(Some(self.table_pool.medium().load(value_of(found.pair))));
            }
            let seen = self.meta();
            if self.vacancy(hash).is_some() {
                let pair = self.write_pair(worker, key, value)?;
                worker.commit(self.table_pool.medium())?; // IX-CLEVEL-2
                if self.link(worker, hash, pair)? {
                    return Ok(None);
                }
                self.table_pool.free(worker, self.table_pool.block(pair)?);
            }
            drop(guard);
            self.grow(worker, seen)?;
        }
    }

    pub(super) fn get_hashed(&self, hash: u64, key: u64) -> Result<Option<u64>, IndexError> {
        let stripe = self.stripe(hash);
        loop {
            let seen = self.locks.await_unlocked(stripe)?;
            let meta = self.meta();
            let found = self.find(hash, key);
            let value = |found: FoundSlot| self.table_pool.medium().load(value_of(found.pair));
            let value = found.map(|found| found.map(value));
            if seen.unchanged() && self.meta() == meta {
                return value; // IX-CLEVEL-4, IX-CLEVEL-6
            }
        }
    }

    /// Updates a key with five lines and two drains: writes a new pair, and frees the old one.
    pub(super) fn update_hashed(
        &self,
        worker: &mut TableWorker,
        hash: u64,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        let _guard = self.hold(hash)?;
        let Some(found) = self.find(hash, key)? else {
            return Ok(None);
        };
        let old = self.table_pool.medium().load(value_of(found.pair));
        let pair = self.write_pair(worker, key, value)?;
        let freed = self.table_pool.about_to_free(worker, found.pair)?; // its drain also makes the pair durable (IX-CLEVEL-2)
        self.replace(worker, found.slot, self.slot_word(pair, hash))?;
        if !fault!("clevel.keep_old") {
            self.table_pool.free(worker, freed);
        }
        Ok(Some(old))
    }

    /// Removes a key with three lines and two drains.
    pub(super) fn remove_hashed(
        &self,
        worker: &mut TableWorker,
        hash: u64,
        key: u64,
    ) -> Result<Option<u64>, IndexError> {
        let _guard = self.hold(hash)?;
        let Some(found) = self.find(hash, key)? else {
            return Ok(None);
        };
        let old = self.table_pool.medium().load(value_of(found.pair));
        let freed = self.table_pool.about_to_free(worker, found.pair)?;
        self.replace(worker, found.slot, EMPTY)?;
        self.table_pool.free(worker, freed);
        Ok(Some(old))
    }

    /// Returns the position in the lock table of the lock for `hash`.
    fn stripe(&self, hash: u64) -> Off {
        Off(hash & (self.stripes - 1))
    }

    pub(super) fn hold(&self, hash: u64) -> Result<LockGuard<'_>, IndexError> {
        self.locks.lock_without_validation(self.stripe(hash))
    }

    /// Finds `key`, bottom level first. A caller without its lock may read arbitrary words, and must check afterwards
    /// that nothing has changed.
    #[inline]
    fn find(&self, hash: u64, key: u64) -> Result<Option<FoundSlot>, IndexError> {
        const SECOND: u32 = 32;
        let (medium, tag) = (self.table_pool.medium(), self.tag_of(hash));
        for n in self.meta().levels() {
            let level = self.level(n);
            // One loop over both buckets, without a branch on which of them holds the key.
            let [first, second] = (self.buckets_of(level, hash)).map(|n| self.bucket(level, n));
            let tagged = self.tagged(first, tag) | self.tagged(second, tag) << SECOND;
            for n in ones(tagged) {
                let bucket = if n < SECOND { first } else { second };
                let slot = bucket.plus(u64::from(n % SECOND) * WORD as u64);
                let word = medium.load(slot);
                if word == EMPTY {
                    continue;
                }
                let pair = self.pair_of(slot, word)?;
                situation!("clevel.other_key_of_tag", medium.load(pair) != key);
                if fault!("clevel.tag_is_key") || medium.load(pair) == key {
                    return Ok(Some(FoundSlot { slot, pair }));
                }
            }
        }
        Ok(None)
    }

    /// Returns an empty slot for `hash`, in the emptier bucket of the highest level that has one. A level that is being
    /// emptied is excluded (IX-CLEVEL-5).
    pub(super) fn vacancy(&self, hash: u64) -> Option<Off> {
        let meta = self.meta();
        let lowest = meta.bottom + u64::from(meta.is_resizing());
        let mut levels = (lowest..meta.levels().end).rev();
        levels.find_map(|n| self.vacancy_in(self.level(n), hash))
    }

    fn vacancy_in(&self, level: Level, hash: u64) -> Option<Off> {
        let medium = self.table_pool.medium();
        let [first, second] = self.buckets_of(level, hash).map(|bucket| {
            let empty = |slot: &Off| medium.load(*slot) == EMPTY;
            let mut free = self.slots(level, bucket).filter(empty);
            free.next().map(|slot| (1 + free.count(), slot))
        });
        match (first, second) {
            (Some(a), Some(b)) => Some(if b.0 > a.0 { b.1 } else { a.1 }),
            (a, b) => a.or(b).map(|(_, slot)| slot),
        }
    }

    fn write_pair(
        &self,
        worker: &mut TableWorker,
        key: u64,
        value: u64,
    ) -> Result<Off, IndexError> {
        let pair = self.table_pool.allocate(worker, PAIR)?;
        let _for = Category::KeyValue.scope();
        let medium = self.table_pool.medium();
        medium.store(&mut worker.ctx, pair, key);
        medium.store(&mut worker.ctx, value_of(pair), value);
        medium.flush(&mut worker.ctx, pair, PAIR_BYTES as usize);
        Ok(pair)
    }

    /// Stores a pair in a slot. Returns whether one was free; then the slot is durable. Other threads may compete for
    /// the slot.
    pub(super) fn link(
        &self,
        worker: &mut TableWorker,
        hash: u64,
        pair: Off,
    ) -> Result<bool, IndexError> {
        let medium = self.table_pool.medium();
        while let Some(slot) = self.vacancy(hash) {
            let word = self.slot_word(pair, hash);
            if medium.cas(&mut worker.ctx, slot, EMPTY, word).is_ok() {
                let _for = Category::KeyValue.scope();
                medium.flush(&mut worker.ctx, slot, WORD);
                worker.commit(medium)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Replaces a slot's word. Durable on `Ok`. The caller holds the key's lock, so no other thread changes the slot
    /// (IX-CLEVEL-3).
    pub(super) fn replace(
        &self,
        worker: &mut TableWorker,
        slot: Off,
        word: u64,
    ) -> Result<(), IndexError> {
        let _for = Category::KeyValue.scope();
        let medium = self.table_pool.medium();
        worker.put_word(medium, slot, word)
    }

    /// Prefetches the buckets that lookups of `keys` will read.
    pub(super) fn fetch_hashed(&self, keys: &[u64]) {
        let levels = self.meta().levels().map(|n| self.level(n));
        for level in levels {
            for key in keys {
                for bucket in self.buckets_of(level, self.table_pool.hash(*key)) {
                    let at = level.at.plus(bucket * self.config.bucket_bytes());
                    self.table_pool.medium().prefetch(at, WORD);
                }
            }
        }
    }
}
