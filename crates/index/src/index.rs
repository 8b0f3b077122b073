//! What all tables are to their users.

use std::fmt;

use farbank_pm::Poisoned;

use crate::pool_heap::TableWorker;

/// Why an operation was not done. Nothing happened, now or after a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexError {
    /// The pool has no room for what the table needs next.
    Full {
        /// Bytes that were asked for in one piece.
        bytes: u64,
    },
    /// The hashes of too many keys are alike: they find no slot, and the table is much larger already than so many keys need. No
    /// room in the pool would help.
    Crowded {
        /// How many bits of a hash the table has used to tell keys apart.
        bits: u32,
    },
    /// As many workers as the pool was made for are at the table.
    Workers {
        /// How many.
        most: u32,
    },
    /// A word in the pool is none that the table writes, and what was asked for needs what it leads to.
    Damaged {
        /// What was found, what was expected, and where.
        what: String,
    },
    /// The medium failed. What was asked for last may be kept or lost; nothing more is acknowledged.
    Poisoned(Poisoned),
}

impl fmt::Display for IndexError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IndexError::Full { bytes } => write!(
                f,
                "the pool is full: {bytes} bytes in one piece are needed; remove keys, or make a larger pool"
            ),
            IndexError::Crowded { bits } => write!(
                f,
                "too many keys have hashes that agree in the {bits} bits by which the table tells keys apart, which is more \
                 than its keys need: a larger pool does not help; remove some of these keys, or make the table anew with \
                 another seed of its hash"
            ),
            IndexError::Workers { most } => write!(
                f,
                "{most} workers are at the table, for more the pool was not made; create it with more contexts"
            ),
            IndexError::Damaged { what } => write!(
                f,
                "the table is damaged: {what}; restore the pool from a copy"
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
    /// That a word in the pool is none that the table writes: what was found, what was expected, and where.
    #[cold]
    pub(crate) fn damaged(what: impl Into<String>) -> IndexError {
        IndexError::Damaged { what: what.into() }
    }
}

/// What a table takes and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceUse {
    /// Keys it holds.
    pub keys: u64,
    /// Places for a key and its value it has now, taken or not.
    pub slots: u64,
    /// Bytes of far memory its parts have, as the structures are declared: what papers count.
    pub table_bytes: u64,
    /// Bytes of far memory the allocator has handed out for them, rounded as it rounds.
    pub far_bytes: u64,
    /// Bytes of DRAM it needs beside, locks and allocator included.
    pub dram_bytes: u64,
}

impl SpaceUse {
    /// Keys over slots.
    #[must_use]
    pub fn load_factor(&self) -> f64 {
        self.keys as f64 / self.slots.max(1) as f64
    }

    /// Bytes of keys and values over bytes of the table: what papers call utilisation.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        16.0 * self.keys as f64 / self.table_bytes.max(1) as f64
    }
}

/// A hash table in far memory, of words to words.
///
/// `Ok` of a change means durable and visible to everyone. Nothing can be read that a power cut could take
/// back, with every table's default arrangement.
///
/// What leads nowhere is [`Refused::Damaged`]: it is looked at before it is followed, by the open or by whoever first
/// comes to it. A key or a value that is another one than was stored is not noticed: they have no checksums.
pub trait Index: Send + Sync {
    /// Its name on the command line: `cceh`.
    fn name(&self) -> &'static str;

    /// One more thread at the table.
    fn worker(&self) -> Result<TableWorker, IndexError>;

    /// Stores `value` under `key` if the key is not there; the value it has if it is.
    fn insert(
        &self,
        worker: &mut TableWorker,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError>;

    /// The value under `key`.
    fn get(&self, worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError>;

    /// Replaces the value of `key` if it is there; the value it had, `None` if it is not.
    fn update(
        &self,
        worker: &mut TableWorker,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError>;

    /// Removes `key`; the value it had.
    fn remove(&self, worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError>;

    /// Has the CPU fetch what lookups of these keys will read, as far as the layout tells where it is.
    fn fetch(&self, keys: &[u64]);

    /// The values under several keys, into `found`, which is as long. What each needs is fetched before the
    /// first is looked at ([`Index::fetch`]).
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

    /// Tells `each` of every key and value, in any order. Nobody changes the table meanwhile.
    fn each(
        &self,
        worker: &mut TableWorker,
        each: &mut dyn FnMut(u64, u64),
    ) -> Result<(), IndexError>;

    /// How many keys there are: counted, by reading all of it. Nobody changes the table meanwhile.
    fn len(&self, worker: &mut TableWorker) -> Result<u64, IndexError> {
        let mut keys = 0;
        self.each(worker, &mut |_, _| keys += 1)?;
        Ok(keys)
    }

    /// What it takes and holds. As costly as [`Index::len`].
    fn space(&self, worker: &mut TableWorker) -> Result<SpaceUse, IndexError>;

    /// Whether the table is sound in itself: no key twice, none where it would not be found, every block of
    /// the allocator's led to by exactly the table. Nobody changes the table meanwhile.
    fn check(&self) -> Result<(), IndexError>;
}
