//! The reserved key: the key that means an empty slot in a table, and is therefore stored outside of it.
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
use crate::pool_heap::{TablePool, TableWorker};

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

    pub(crate) fn get(&self) -> Result<Option<u64>, IndexError> {
        let locks = self.table_pool.reserved_key_lock();
        loop {
            let seen = locks.await_unlocked(Off(0))?;
            let found = self.read();
            if seen.unchanged() {
                return Ok(found);
            }
        }
    }

    pub(crate) fn insert(
        &self,
        worker: &mut TableWorker,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        self.change(worker, |found| found.is_none().then_some((value, 1)))
    }

    pub(crate) fn update(
        &self,
        worker: &mut TableWorker,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        self.change(worker, |found| found.map(|_| (value, 1)))
    }

    pub(crate) fn remove(&self, worker: &mut TableWorker) -> Result<Option<u64>, IndexError> {
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
