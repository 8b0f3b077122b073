//! Insert, get, update, remove.

use farbank_pm::model::Category;
use farbank_pm::sync::atomic::Ordering;
use farbank_pm::{LINE, Medium, Off, WORD, fault, situation};

use super::Clht;
use super::layout::{Array, CHAINED, EMPTY, first_of, image, next_of, value_of};
use crate::error::IndexError;
use crate::locks::LockGuard;
use crate::pool_heap::TableWorker;

/// A locked chain of the table's array.
struct LockedChain<'a> {
    array: Array,
    /// Its first bucket.
    first: Off,
    _guard: LockGuard<'a>,
}

/// The result of a search in a chain.
struct ChainLookup {
    /// Offset of the key, if it is present.
    key: Option<Off>,
    /// Offset of the first free slot.
    free: Option<Off>,
    last: Off,
}

impl<M: Medium> Clht<M> {
    /// Inserts a key with one line and one drain. Chaining another bucket takes three lines and two drains, and may be
    /// followed by a resize.
    pub(super) fn insert_hashed(
        &self,
        worker: &mut TableWorker,
        hash: u64,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        let held = self.hold(worker, hash)?;
        let found = self.find(held.first, key);
        if let Some(at) = found.key {
            // Deviation: the published code searches for the key before it takes the lock.
            return Ok(Some(self.table_pool.medium().load(value_of(at))));
        }
        self.store_far_lock(worker, held.first, 1);
        if let Some(at) = found.free {
            self.fill(worker, at, key, value)?;
            self.store_far_lock(worker, held.first, 0);
            return Ok(None);
        }
        {
            let _for = Category::KeyValue.scope();
            self.extend(worker, held.first, found.last, key, value)?;
        }
        self.store_far_lock(worker, held.first, 0);
        let chained = self.chained.fetch_add(1, Ordering::Relaxed) + 1;
        let array = held.array;
        drop(held);
        if chained >= self.grow_at.load(Ordering::Relaxed) {
            self.grow(worker, array)?;
        }
        Ok(None)
    }

    pub(super) fn get_hashed(
        &self,
        worker: &mut TableWorker,
        hash: u64,
        key: u64,
    ) -> Result<Option<u64>, IndexError> {
        let _for = Category::KeyValue.scope();
        loop {
            let array = self.array();
            let first = array.bucket(array.index(hash));
            let seen = self
                .locks
                .begin(first, || self.persist_on_first_access(worker, array, first))?;
            let Some(found) = self.read(array, first, key) else {
                continue; // the array was replaced meanwhile
            };
            if seen.unchanged() && self.array() == array {
                return Ok(found); // IX-CLHT-4
            }
        }
    }

    pub(super) fn update_hashed(
        &self,
        worker: &mut TableWorker,
        hash: u64,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        self.change(worker, hash, key, |at| (value_of(at), value))
    }

    pub(super) fn remove_hashed(
        &self,
        worker: &mut TableWorker,
        hash: u64,
        key: u64,
    ) -> Result<Option<u64>, IndexError> {
        self.change(worker, hash, key, |at| (at, EMPTY))
    }

    /// If `key` is present, replaces the word at the offset that `to` returns by the word that it returns. Returns the
    /// old value.
    fn change(
        &self,
        worker: &mut TableWorker,
        hash: u64,
        key: u64,
        to: impl FnOnce(Off) -> (Off, u64),
    ) -> Result<Option<u64>, IndexError> {
        let held = self.hold(worker, hash)?;
        self.store_far_lock(worker, held.first, 1);
        let mut old = None;
        if let Some(at) = self.find(held.first, key).key {
            let _for = Category::KeyValue.scope();
            let medium = self.table_pool.medium();
            old = Some(medium.load(value_of(at)));
            let (at, word) = to(at);
            worker.put_word(medium, at, word)?;
        }
        self.store_far_lock(worker, held.first, 0);
        Ok(old)
    }

    /// Prefetches the first lines that lookups of `keys` will read.
    pub(super) fn fetch_hashed(&self, keys: &[u64]) {
        let array = self.array();
        for key in keys {
            let first = array.bucket(array.index(self.table_pool.hash(*key)));
            self.locks.prefetch(first);
            self.table_pool.medium().prefetch(first, LINE);
        }
    }

    /// Takes the lock of the chain for `hash`. If a resize has taken that chain, helps it first (IX-CLHT-6).
    fn hold(&self, worker: &mut TableWorker, hash: u64) -> Result<LockedChain<'_>, IndexError> {
        loop {
            let array = self.array();
            let index = array.index(hash);
            let first = array.bucket(index);
            let accept = || self.persist_on_first_access(worker, array, first);
            let guard = self.locks.lock(first, accept)?;
            // The order matters: `taken` is reset only after the array is replaced.
            let taken = self.copying.has_taken(index);
            if self.array() != array {
                continue;
            }
            if taken {
                drop(guard);
                self.help(worker, array);
                continue;
            }
            return Ok(LockedChain {
                array,
                first,
                _guard: guard,
            });
        }
    }

    /// Stores the lock word of the published code: 1 when it is taken, 0 after the drain of the change it guards, which
    /// dirties the line again. No reader uses it.
    #[inline]
    fn store_far_lock(&self, worker: &mut TableWorker, first: Off, lock: u64) {
        if self.config.far_locks {
            let _for = Category::Lock.scope();
            self.table_pool.medium().store(&mut worker.ctx, first, lock);
        }
    }

    /// Returns the value of `key`, without a lock. The outer `None` means that the array is no longer the table's.
    #[inline]
    fn read(&self, array: Array, first: Off, key: u64) -> Option<Option<u64>> {
        let medium = self.table_pool.medium();
        let mut bucket = first;
        loop {
            let keys = self.keys_of(bucket);
            if let Some(at) = first_of(bucket, keys, |there| there == key) {
                return Some(Some(medium.load(value_of(at))));
            }
            bucket = Off(medium.load(next_of(bucket)));
            if bucket.is_null() {
                return Some(None);
            }
            if self.array() != array {
                return None; // `bucket` may be any word
            }
        }
    }

    /// Searches a chain under its lock.
    #[inline]
    fn find(&self, first: Off, key: u64) -> ChainLookup {
        let medium = self.table_pool.medium();
        let mut found = ChainLookup {
            key: None,
            free: None,
            last: first,
        };
        loop {
            let keys = self.keys_of(found.last);
            found.key = first_of(found.last, keys, |there| there == key);
            if found.key.is_some() {
                return found;
            }
            if found.free.is_none() {
                found.free = first_of(found.last, keys, |there| there == EMPTY);
            }
            match Off(medium.load(next_of(found.last))) {
                Off::NULL => return found,
                next => found.last = next,
            }
        }
    }

    fn fill(
        &self,
        worker: &mut TableWorker,
        at: Off,
        key: u64,
        value: u64,
    ) -> Result<(), IndexError> {
        let _for = Category::KeyValue.scope();
        let medium = self.table_pool.medium();
        if fault!("clht.key_first") {
            medium.store(&mut worker.ctx, at, key);
        }
        medium.store(&mut worker.ctx, value_of(at), value);
        medium.store(&mut worker.ctx, at, key); // IX-CLHT-2
        medium.flush(
            &mut worker.ctx,
            at,
            value_of(at).0 as usize + WORD - at.0 as usize,
        );
        worker.commit(medium)
    }

    /// Chains a bucket with this pair to `last`, the last bucket of the chain of `first`.
    fn extend(
        &self,
        worker: &mut TableWorker,
        first: Off,
        last: Off,
        key: u64,
        value: u64,
    ) -> Result<(), IndexError> {
        let medium = self.table_pool.medium();
        let bucket = self.table_pool.allocate(worker, CHAINED)?;
        situation!("clht.chained", first == last);
        situation!("clht.chained_again", first != last);
        let bytes = image(first, [(key, value)], Off::NULL);
        medium.copy_in(&mut worker.ctx, bucket, &[&bytes]);
        if !fault!("clht.link_first") {
            worker.commit(medium)?; // IX-CLHT-3
        }
        worker.put_word(medium, next_of(last), bucket.0)
    }
}
