//! The reserved key: the key that means an empty slot in a table, and is therefore stored outside of it.
//!
//! [`HashTable`] is what a table implements; its operations never get the reserved key. The implementation of [`Index`]
//! for all tables handles that key, and passes every other key on.
//!
//! ```text
//!   0         8         16                     a line in the head of the pool
//!   │ present │  value  │  unused ...
//! ```
//!
//! # Invariants
//! IX-KEY-1  `present` is 0 or 1. The value is stored before it, in the same line, so if `present` survives, the value does.
//! IX-KEY-2  The line is changed under a lock of its own, which is released when the change is durable. An open makes the
//!     whole head durable, so the first access needs no validation.

use farbank_pm::model::Category;
use farbank_pm::{Medium, Off};

use crate::error::IndexError;
use crate::index::{Index, SpaceUse};
use crate::pool_heap::{TablePool, TableWorker};

/// A hash table. Its operations get every key except [`HashTable::RESERVED_KEY`].
pub(crate) trait HashTable: Send + Sync {
    type Medium: Medium;

    /// The name on the command line.
    const NAME: &'static str;

    /// The key that means an empty slot; `None`: the table stores every key.
    const RESERVED_KEY: Option<u64>;

    fn table_pool(&self) -> &TablePool<Self::Medium>;

    /// See [`Index::insert`].
    fn insert_key(
        &self,
        worker: &mut TableWorker,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError>;

    /// See [`Index::get`].
    fn get_key(&self, worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError>;

    /// See [`Index::update`].
    fn update_key(
        &self,
        worker: &mut TableWorker,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError>;

    /// See [`Index::remove`].
    fn remove_key(&self, worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError>;

    /// See [`Index::fetch`]. The reserved key may be among the keys.
    fn fetch_keys(&self, keys: &[u64]);

    /// See [`Index::each`].
    fn each_pair(
        &self,
        worker: &mut TableWorker,
        each: &mut dyn FnMut(u64, u64),
    ) -> Result<(), IndexError>;

    /// Returns the size and space use of the table, which has `keys` keys. Every part of the table has been accessed
    /// since the open.
    fn space_for(&self, keys: u64) -> Result<SpaceUse, IndexError>;

    /// See [`Index::check`].
    fn check_table(&self) -> Result<(), IndexError>;
}

impl<T: HashTable> Index for T {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn worker(&self) -> Result<TableWorker, IndexError> {
        self.table_pool().worker()
    }

    fn insert(
        &self,
        worker: &mut TableWorker,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        if Some(key) == T::RESERVED_KEY {
            return ReservedKey::of(self.table_pool()).insert(worker, value);
        }
        self.insert_key(worker, key, value)
    }

    fn get(&self, worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError> {
        if Some(key) == T::RESERVED_KEY {
            return ReservedKey::of(self.table_pool()).get();
        }
        self.get_key(worker, key)
    }

    fn update(
        &self,
        worker: &mut TableWorker,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        if Some(key) == T::RESERVED_KEY {
            return ReservedKey::of(self.table_pool()).update(worker, value);
        }
        self.update_key(worker, key, value)
    }

    fn remove(&self, worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError> {
        if Some(key) == T::RESERVED_KEY {
            return ReservedKey::of(self.table_pool()).remove(worker);
        }
        self.remove_key(worker, key)
    }

    fn fetch(&self, keys: &[u64]) {
        self.fetch_keys(keys);
    }

    fn each(
        &self,
        worker: &mut TableWorker,
        each: &mut dyn FnMut(u64, u64),
    ) -> Result<(), IndexError> {
        if let Some(key) = T::RESERVED_KEY
            && let Some(value) = ReservedKey::of(self.table_pool()).get()?
        {
            each(key, value);
        }
        self.each_pair(worker, each)
    }

    fn space(&self, worker: &mut TableWorker) -> Result<SpaceUse, IndexError> {
        let keys = self.len(worker)?;
        self.space_for(keys)
    }

    fn check(&self) -> Result<(), IndexError> {
        if T::RESERVED_KEY.is_some() {
            ReservedKey::of(self.table_pool()).check()?;
        }
        self.check_table()
    }
}

/// Accessor of the reserved key's line.
pub(crate) struct ReservedKey<'a, M> {
    table_pool: &'a TablePool<M>,
}

impl<'a, M: Medium> ReservedKey<'a, M> {
    pub(crate) fn of(ground: &'a TablePool<M>) -> ReservedKey<'a, M> {
        ReservedKey { table_pool: ground }
    }

    fn present(&self) -> Off {
        self.table_pool.reserved_key_line()
    }

    fn value(&self) -> Off {
        self.table_pool.reserved_key_line().plus(8)
    }

    fn read(&self) -> Option<u64> {
        let medium = self.table_pool.medium();
        (medium.load(self.present()) == 1).then(|| medium.load(self.value()))
    }

    /// Checks that `present` is 0 or 1 (IX-KEY-1).
    pub(crate) fn check(&self) -> Result<(), IndexError> {
        match self.table_pool.medium().load(self.present()) {
            0 | 1 => Ok(()),
            word => Err(IndexError::damaged(format!(
                "the presence word of the reserved key at {:?} is {word:#x}, expected 0 or 1",
                self.present()
            ))),
        }
    }

    fn get(&self) -> Result<Option<u64>, IndexError> {
        let locks = self.table_pool.reserved_key_lock();
        loop {
            let seen = locks.await_unlocked(Off(0))?;
            let found = self.read();
            if seen.unchanged() {
                return Ok(found);
            }
        }
    }

    fn insert(&self, worker: &mut TableWorker, value: u64) -> Result<Option<u64>, IndexError> {
        self.change(worker, |found| found.is_none().then_some((value, 1)))
    }

    fn update(&self, worker: &mut TableWorker, value: u64) -> Result<Option<u64>, IndexError> {
        self.change(worker, |found| found.map(|_| (value, 1)))
    }

    fn remove(&self, worker: &mut TableWorker) -> Result<Option<u64>, IndexError> {
        self.change(worker, |found| found.map(|value| (value, 0)))
    }

    fn change(
        &self,
        worker: &mut TableWorker,
        to: impl FnOnce(Option<u64>) -> Option<(u64, u64)>,
    ) -> Result<Option<u64>, IndexError> {
        let _for = Category::KeyValue.scope();
        let medium = self.table_pool.medium();
        let _guard = self
            .table_pool
            .reserved_key_lock()
            .lock_without_validation(Off(0))?;
        let found = self.read();
        if let Some((value, present)) = to(found) {
            medium.store(&mut worker.ctx, self.value(), value);
            medium.store(&mut worker.ctx, self.present(), present); // IX-KEY-1
            medium.flush(&mut worker.ctx, self.present(), 16);
            worker.commit(medium)?;
        }
        Ok(found)
    }
}
