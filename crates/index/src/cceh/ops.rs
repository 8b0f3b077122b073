//! Insert, get, update, remove.

use farbank_pm::model::Category;
use farbank_pm::{LINE, Medium, Off, WORD, fault, situation};

use super::Cceh;
use super::layout::{EMPTY, first_slot, value_of};
use crate::error::IndexError;
use crate::extendible::LockedSegment;
use crate::pool_heap::TableWorker;

impl<M: Medium> Cceh<M> {
    /// Inserts a key with one line write and one drain. A split adds a segment and its directory entries, with three
    /// drains.
    pub(super) fn insert_hashed(
        &self,
        worker: &mut TableWorker,
        hash: u64,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        loop {
            let held = self.hold(worker, hash)?;
            if let Some(slot) = self.find(held.segment, hash, key) {
                return Ok(Some(self.table_pool.medium().load(value_of(slot))));
            }
            match self.free_slot(&held, hash) {
                Some(slot) => {
                    self.fill(worker, &held, slot, (hash, key, value))?;
                    return Ok(None);
                }
                None => self.split(worker, &held)?,
            }
        }
    }

    pub(super) fn get_hashed(
        &self,
        worker: &mut TableWorker,
        hash: u64,
        key: u64,
    ) -> Result<Option<u64>, IndexError> {
        let _for = Category::KeyValue.scope();
        let (segment, found) = self.locks.read(
            || self.directory.lookup(&self.table_pool, hash),
            |led| self.directory.is_current(&self.table_pool, led),
            |segment| self.persist_on_first_access(worker, segment, hash),
            |segment| {
                self.prefetch(segment, hash); // all probed lines at once
                let slot = self.find(segment, hash, key);
                let found = slot.map(|slot| self.table_pool.medium().load(value_of(slot)));
                (segment, found)
            },
        )?; // IX-CCEH-4
        self.touch_far_lock(worker, segment);
        Ok(found)
    }

    pub(super) fn update_hashed(
        &self,
        worker: &mut TableWorker,
        hash: u64,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        let held = self.hold(worker, hash)?;
        let Some(slot) = self.find(held.segment, hash, key) else {
            return Ok(None);
        };
        let old = self.table_pool.medium().load(value_of(slot));
        self.replace(worker, value_of(slot), value)?;
        Ok(Some(old))
    }

    pub(super) fn remove_hashed(
        &self,
        worker: &mut TableWorker,
        hash: u64,
        key: u64,
    ) -> Result<Option<u64>, IndexError> {
        let held = self.hold(worker, hash)?;
        let Some(slot) = self.find(held.segment, hash, key) else {
            return Ok(None);
        };
        let old = self.table_pool.medium().load(value_of(slot));
        self.replace(worker, slot, EMPTY)?;
        Ok(Some(old))
    }

    /// Prefetches for lookups of `keys`: the directory entries first, then locks and home lines.
    pub(super) fn fetch_hashed(&self, keys: &[u64]) {
        let (medium, directory) = (self.table_pool.medium(), self.directory.directory());
        for key in keys {
            medium.prefetch(directory.entry_of(self.table_pool.hash(*key)), WORD);
        }
        for key in keys {
            let hash = self.table_pool.hash(*key);
            let segment = self.directory.lookup(&self.table_pool, hash).to;
            self.locks.prefetch(segment);
            self.prefetch(segment, hash);
        }
    }

    /// Prefetches all lines probed for a hash, so that their latencies overlap.
    #[inline]
    fn prefetch(&self, segment: Off, hash: u64) {
        let bytes = self.config.probe_lines as usize * LINE;
        let home = self.home(segment, hash);
        self.table_pool.medium().prefetch(home, bytes);
    }

    /// Takes the lock of the segment for `hash`.
    #[inline]
    fn hold(&self, worker: &mut TableWorker, hash: u64) -> Result<LockedSegment<'_>, IndexError> {
        let held = self.directory.hold(
            &self.table_pool,
            &self.locks,
            hash,
            |segment| self.prefetch(segment, hash),
            |segment| self.persist_on_first_access(worker, segment, hash),
        )?;
        self.touch_far_lock(worker, held.segment);
        Ok(held)
    }

    /// Writes the word where the published code counts its readers and writers. No code reads it.
    #[inline]
    fn touch_far_lock(&self, worker: &mut TableWorker, segment: Off) {
        if self.config.far_locks {
            let _for = Category::Lock.scope();
            let at = Self::lock_word(segment);
            self.table_pool.medium().store(&mut worker.ctx, at, 1);
            self.table_pool.medium().store(&mut worker.ctx, at, 0);
        }
    }

    /// Returns a slot that is empty or holds a dead key (IX-CCEH-1).
    fn free_slot(&self, held: &LockedSegment<'_>, at: u64) -> Option<Off> {
        let is_free = |key| key == EMPTY || !held.header.owns(self.table_pool.hash(key));
        let slot = self
            .buckets_of(held.segment, at)
            .find_map(|bucket| first_slot(bucket, self.keys_of(bucket), is_free));
        let is_taken = |slot| self.table_pool.medium().load(slot) != EMPTY;
        situation!("cceh.moved_key_replaced", slot.is_some_and(is_taken));
        slot
    }

    fn fill(
        &self,
        worker: &mut TableWorker,
        held: &LockedSegment<'_>,
        slot: Off,
        (hash, key, value): (u64, u64, u64),
    ) -> Result<(), IndexError> {
        let _for = Category::KeyValue.scope();
        let medium = self.table_pool.medium();
        situation!(
            "cceh.beyond_home_line",
            slot.0 / LINE as u64 != self.home(held.segment, hash).0 / LINE as u64
        );
        medium.store(&mut worker.ctx, value_of(slot), value);
        medium.store(&mut worker.ctx, slot, key); // IX-CCEH-2
        if fault!("cceh.home_line") {
            medium.flush(&mut worker.ctx, self.home(held.segment, hash), LINE);
        } else {
            medium.flush(&mut worker.ctx, slot, 2 * WORD);
        }
        worker.commit(medium)
    }

    /// Replaces one word.
    fn replace(&self, worker: &mut TableWorker, at: Off, word: u64) -> Result<(), IndexError> {
        let _for = Category::KeyValue.scope();
        let medium = self.table_pool.medium();
        worker.put_word(medium, at, word)
    }
}
