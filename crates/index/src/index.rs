//! The interface of every table.

use std::fmt;

use farbank_pm::Poisoned;

use crate::pool_heap::TableWorker;

/// The reason why an operation failed. The table is unchanged, now and after a crash, unless the medium failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexError {
    /// The pool has no free space of the size that the table needs next.
    Full {
        /// Bytes that the table needs in one piece.
        bytes: u64,
    },
    /// Too many keys have similar hashes: they find no slot, although the table is already much larger than its keys
    /// need. A larger pool would not help.
    Crowded {
        /// Number of hash bits by which the table distinguishes keys.
        bits: u32,
    },
    /// All contexts of the pool are in use by workers.
    Workers {
        /// Number of contexts of the pool.
        most: u32,
    },
    /// A word in the pool has a value that the table never writes, and the operation needs what the word refers to.
    Damaged {
        /// The value found, the value expected, and the offset.
        what: String,
    },
    /// The medium failed. The last change may be kept or lost. No later operation is acknowledged.
    Poisoned(Poisoned),
}

impl fmt::Display for IndexError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IndexError::Full { bytes } => write!(
                f,
                "the pool is full: the table needs {bytes} contiguous bytes; remove keys, or create a larger pool"
            ),
            IndexError::Crowded { bits } => write!(
                f,
                "too many keys agree in the {bits} hash bits by which the table distinguishes keys, more bits than so few \
                 keys need; a larger pool does not help; remove some of these keys, or create the table again \
                 with another hash seed"
            ),
            IndexError::Workers { most } => write!(
                f,
                "the pool was created for {most} workers and all are in use; create it again with more contexts"
            ),
            IndexError::Damaged { what } => write!(
                f,
                "the table is damaged: {what}; restore the pool from a backup"
            ),
            IndexError::Poisoned(poisoned) => poisoned.fmt(f),
        }
    }
}

impl std::error::Error for IndexError {}

impl From<Poisoned> for IndexError {
    fn from(poisoned: Poisoned) -> IndexError {
        IndexError::Poisoned(poisoned)
    }
}

impl IndexError {
    /// Returns a [`IndexError::Damaged`]. `what` holds the value found, the value expected, and the offset.
    #[cold]
    pub(crate) fn damaged(what: impl Into<String>) -> IndexError {
        IndexError::Damaged { what: what.into() }
    }
}

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
