//! The interface of every table.

use crate::error::IndexError;
use crate::pool_heap::TableWorker;

/// Size and space use of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceUse {
    /// Keys in the table.
    pub keys: u64,
    /// Slots of the table at its present size, used or not.
    pub slots: u64,
    /// Bytes of far memory of the table's structures as they are declared. Papers report this figure.
    pub table_bytes: u64,
    /// Bytes of far memory that the allocator has allocated for them, with its rounding.
    pub far_bytes: u64,
    /// Bytes of DRAM that the table needs, with locks and allocator.
    pub dram_bytes: u64,
}

impl SpaceUse {
    /// Returns keys divided by slots.
    #[must_use]
    pub fn load_factor(&self) -> f64 {
        self.keys as f64 / self.slots.max(1) as f64
    }

    /// Returns the bytes of keys and values divided by the bytes of the table. Papers call it utilisation.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        16.0 * self.keys as f64 / self.table_bytes.max(1) as f64
    }
}

/// A hash table in far memory that maps words to words.
///
/// `Ok` of a change means that the change is durable and visible to every thread. With the default configuration of
/// every table, no operation returns data that a power cut could take back.
///
/// A reference that leads nowhere is reported as [`IndexError::Damaged`]: the open or the first access validates each
/// reference before following it. A corrupted key or value is not detected, because keys and values have no checksums.
pub trait Index: Send + Sync {
    /// Returns the table's name on the command line, for example `cceh`.
    fn name(&self) -> &'static str;

    /// Returns a handle for one more thread.
    fn worker(&self) -> Result<TableWorker, IndexError>;

    /// Stores `value` under `key` if the key is absent. Returns the present value if the key exists.
    fn insert(
        &self,
        worker: &mut TableWorker,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError>;

    /// Returns the value of `key`.
    fn get(&self, worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError>;

    /// Replaces the value of `key` if the key exists. Returns the old value, or `None` if the key is absent.
    fn update(
        &self,
        worker: &mut TableWorker,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError>;

    /// Removes `key`. Returns the value it had.
    fn remove(&self, worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError>;

    /// Prefetches the lines that lookups of these keys will read, as far as the layout predicts them.
    fn fetch(&self, keys: &[u64]);

    /// Looks up several keys and writes their values into `found`, which has the same length. The lines of all keys are
    /// prefetched before the first lookup ([`Index::fetch`]).
    fn get_batch(
        &self,
        worker: &mut TableWorker,
        keys: &[u64],
        found: &mut [Option<u64>],
    ) -> Result<(), IndexError> {
        self.fetch(keys);
        for (key, found) in keys.iter().zip(found) {
            *found = self.get(worker, *key)?;
        }
        Ok(())
    }

    /// Calls `each` for every key and value, in any order. No thread may change the table meanwhile.
    fn each(
        &self,
        worker: &mut TableWorker,
        each: &mut dyn FnMut(u64, u64),
    ) -> Result<(), IndexError>;

    /// Counts the keys by reading the whole table. No thread may change the table meanwhile.
    fn len(&self, worker: &mut TableWorker) -> Result<u64, IndexError> {
        let mut keys = 0;
        self.each(worker, &mut |_, _| keys += 1)?;
        Ok(keys)
    }

    /// Returns the table's size and space use. Costs as much as [`Index::len`].
    fn space(&self, worker: &mut TableWorker) -> Result<SpaceUse, IndexError>;

    /// Checks the table's consistency: no key occurs twice, every key is where a lookup finds it, and every allocated
    /// block is referenced by the table exactly once. No thread may change the table meanwhile.
    fn check(&self) -> Result<(), IndexError>;
}
