//! P-CLHT: the cache-line hash table (David, Guerraoui, Trigonakis, ASPLOS '15), made persistent by RECIPE (Lee et al.,
//! SOSP '19).
//!
//! An array of buckets of one line, three slots each. A bucket without a free slot is followed by a chained one. When
//! there are as many chained buckets as array buckets, a larger array replaces the array.
//!
//! ```text
//!   array (a run)                 bucket (one line)
//!   ┌────────┬────────┬─ ... ─┐    ┌───────┬─────┬─────┬─────┬─────┬─────┬─────┬──────┐
//!   │bucket 0│bucket 1│       │    │ first │key 0│key 1│key 2│val 0│val 1│val 2│ next │
//!   └────────┴────┬───┴─ ... ─┘    └───────┴─────┴─────┴─────┴─────┴─────┴─────┴──────┘
//!      low bits   └─▶ chained buckets (blocks): `first` is where their chain starts
//!
//!   root, in one line
//!   ┌───────┬───────┬───────┐
//!   │ array │ young │  old  │      each: an array's offset, with its size's logarithm in the low bits
//!   └───────┴───────┴───────┘
//! ```
//!
//! A resize names in the root the new array (`young`) and the array to be replaced (`old`), copies the chains part by
//! part, and switches by one store. Workers that would wait for the resize copy parts, too (`copy.rs`). Afterwards one
//! of the two arrays is not the table's. The resize frees it, or the next open does.
//!
//! # Invariants
//! IX-CLHT-1  A slot is live iff its key is not `EMPTY`.
//! IX-CLHT-2  A slot's value is stored before its key, in the same line: a crash that keeps the key keeps the value.
//! IX-CLHT-3  A chained bucket is completely durable before a bucket of the table's array leads to it. It is never removed
//!     from its chain.
//! IX-CLHT-4  A chain is changed under its lock in DRAM, which is released when the change is durable. A reader uses what it
//!     read only if neither the lock's version nor the table's array has changed. So readers see no volatile data.
//! IX-CLHT-5  `array` names a new array only when that is completely durable. Arrays grow, so the word of an old array never
//!     returns.
//! IX-CLHT-6  Chains of a part taken for copying are not changed any more: writers check this under the chain's lock. The
//!     array is replaced when all takers of parts have made their copies durable. If one of them failed, it is not
//!     replaced.
//! IX-CLHT-7  An array that is not the table's is named by `young` or `old` from before its first chained bucket is allocated
//!     until all of them are durably free. Only then is one of them allocated again.
//! IX-CLHT-8  The first access to a chain after an open validates it before following it: its chained buckets are allocated
//!     blocks that name this chain.
//!
//! # Crash argument
//! | crash between                | recovery sees                           | and does                           |
//! |------------------------------|-----------------------------------------|------------------------------------|
//! | value stored, key stored     | an empty key                            | nothing: the slot is free (IX-CLHT-1, IX-CLHT-2) |
//! | chained bucket, its link     | a bucket in doubt, not in its chain     | frees it                           |
//! | new run, `young`             | a run in doubt that no word names       | frees it                           |
//! | `young`, `array`             | `young` is not the table's              | frees it, and all chained buckets  |
//! | `array`, old ones all free   | `old` is not the table's                | that are in no chain of it (IX-CLHT-7)    |
//! | old ones free, run free      | the run named as being freed            | frees it                           |
//! | (a kill) store, drain        | visible bytes that are not durable      | makes them durable at first access |
//!
//! Recovery reads nothing of the array that is not the table's: several workers may have half written it. Only after a
//! crash inside a resize does recovery look at all chained buckets, and at the chains of the table that they name.
//!
//! The number of chained buckets is kept in DRAM only. An opened table counts them at the first accesses to chains, so
//! the first resize may come a little late.
//!
//! # Deviations from the paper
//! * Locks are in DRAM. The paper's are in the first word of a bucket, and a crash leaves them locked (RECIPE#19).
//!   [`ClhtConfig::far_locks`] writes them without relying on them.
//! * Readers use only durable data. The paper's readers see a key before it is durable, and miss a key whose value
//!   changes meanwhile.
//! * The resizer waits for its helpers. The published code's resizer leaves out buckets if a helper dies.
//! * A chained bucket's first word holds the offset of its chain's first bucket.
//! * Arrays grow by four, which is the result of the published rule, to 40 % of the slots
//!   ([`ClhtConfig::growth_bits`]).
//! * A crash inside a resize leaks nothing. The published code leaves that to a garbage collector (fault
//!   `clht.young_not_named`).
//! * There is an update operation.

mod check;
mod copy;
mod layout;
mod ops;
mod recover;
mod resize;

use farbank_pm::Medium;
use farbank_pm::fault::{NamedFault, ShowingRuns};
use farbank_pm::sync::Mutex;
use farbank_pm::sync::atomic::{AtomicU64, Ordering};

use crate::error::{IndexError, OpenError};
use crate::index::SpaceUse;
use crate::locks::{EARLY_READS, LockTable};
use crate::pool_heap::{PoolPlan, TablePool, TableWorker};
use crate::reserved_key::{HashTable, ReservedKey};
use copy::ArrayCopy;
use layout::{ARRAY, Array, EMPTY, SLOTS};

/// The table's name on the command line.
pub const NAME: &str = "clht";

/// Faults of this table.
pub(crate) const FAULTS: [NamedFault; 4] = [
    EARLY_READS,
    NamedFault {
        name: "clht.key_first",
        description: "an insert stores the key before the value",
        source: "orderings of the Aga port (Witcher #31 to #35)",
        shows_in: None,
    },
    NamedFault {
        name: "clht.link_first",
        description: "a chained bucket is linked before it is durable",
        source: "the published code's flush walks the wrong pointer and leaves chained buckets out (Witcher #30)",
        shows_in: None,
    },
    NamedFault {
        name: "clht.young_not_named",
        description: "the root names neither the array that a resize builds nor the one it replaces",
        source: "RECIPE's code: a crash inside a resize leaks unless the allocator collects garbage",
        shows_in: None,
    },
];

/// Faults that exploration with threads finds.
pub(crate) const FAULTS_IN_THREADS: [NamedFault; 2] = [
    EARLY_READS,
    NamedFault {
        name: "clht.helpers_left_behind",
        description: "a resize publishes its array without waiting for the workers that help to copy the old one",
        source: "RECIPE#2: a helper that dies leaves buckets out",
        shows_in: Some(ShowingRuns::schedules(0x1_0002)),
    },
];

/// Configuration of a table, fixed at its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClhtConfig {
    /// Binary logarithm of the buckets of the first array.
    pub bits: u32,
    /// Number of chained buckets, in percent of the array's buckets, at which the array is replaced.
    pub chained_percent: u32,
    /// Binary logarithm of the growth factor of the array.
    pub growth_bits: u32,
    /// Binary logarithm of the array buckets that share a lock.
    pub lock_bits: u32,
    /// Whether every change also writes a lock word in its bucket, as in the published code.
    pub far_locks: bool,
    /// Whether searches do not wait for writers, as in the published code, and can return data that is not durable.
    pub early_reads: bool,
}

impl ClhtConfig {
    /// Returns the paper's configuration: the array is replaced when there are as many chained buckets as array
    /// buckets. The first array has buckets for `slots`, rounded down to a power of two.
    #[must_use]
    pub fn paper(slots: u64) -> ClhtConfig {
        let bits = (slots / SLOTS).max(4).ilog2();
        ClhtConfig {
            bits,
            chained_percent: 100,
            growth_bits: 2,
            lock_bits: bits.min(4),
            far_locks: false,
            early_reads: false,
        }
    }

    /// Returns a configuration so small that a dozen keys chain buckets and outgrow the array, and that an array is
    /// copied in several parts.
    #[must_use]
    pub fn small() -> ClhtConfig {
        ClhtConfig {
            bits: 2,
            chained_percent: 45,
            growth_bits: 1,
            lock_bits: 1,
            ..ClhtConfig::paper(0)
        }
    }

    /// Returns the published variant: locks in far memory, searches that do not wait.
    #[must_use]
    pub fn published(self) -> ClhtConfig {
        ClhtConfig {
            far_locks: true,
            early_reads: true,
            ..self
        }
    }
}

/// A P-CLHT table.
pub struct Clht<M> {
    table_pool: TablePool<M>,
    config: ClhtConfig,
    /// DRAM copy of the root's word for the array, for readers.
    array: AtomicU64,
    growing: Mutex<()>,
    copying: ArrayCopy,
    /// Number of chained buckets counted so far.
    chained: AtomicU64,
    /// Number of chained buckets at which the array is replaced.
    grow_at: AtomicU64,
    locks: LockTable,
}

impl<M: Medium> Clht<M> {
    fn over(ground: TablePool<M>, config: ClhtConfig, found: bool) -> Clht<M> {
        let array = ground.medium().load(ground.root(ARRAY));
        let table = Clht {
            locks: ground
                .locks(config.lock_bytes(), found)
                .read_early(config.early_reads),
            array: AtomicU64::new(array),
            growing: Mutex::new(()),
            copying: ArrayCopy::default(),
            chained: AtomicU64::new(0),
            grow_at: AtomicU64::new(0),
            table_pool: ground,
            config,
        };
        let limit = table.limit(table.array());
        table.grow_at.store(limit, Ordering::Relaxed);
        table
    }

    /// Creates an empty table that uses all of `medium`. Durable on `Ok`.
    pub fn create(medium: M, plan: &PoolPlan, config: ClhtConfig) -> Result<Clht<M>, OpenError> {
        config.check()?;
        let ground = TablePool::create(medium, plan, &ClhtConfig::classes())?;
        let table = Clht::over(ground, config, false);
        table.make_first()?;
        let Clht {
            table_pool: ground, ..
        } = table;
        let ground = ground.finish(NAME, &config.words())?;
        Ok(Clht::over(ground, config, false))
    }

    /// Opens the table on `medium`. Recovery undoes or completes interrupted operations first.
    pub fn open(medium: M) -> Result<Clht<M>, OpenError> {
        let ground = TablePool::open(medium, NAME, |_| Ok(ClhtConfig::classes().to_vec()))?;
        let config = ClhtConfig::of(ground.config())?;
        let table = Clht::over(ground, config, true);
        ReservedKey::of(&table.table_pool).check()?;
        table.recover()?;
        Ok(table)
    }

    #[inline]
    fn array(&self) -> Array {
        Array::of(self.array.load(Ordering::Acquire))
    }
}

impl<M: Medium> HashTable for Clht<M> {
    type Medium = M;

    const NAME: &'static str = NAME;

    const RESERVED_KEY: Option<u64> = Some(EMPTY);

    fn table_pool(&self) -> &TablePool<M> {
        &self.table_pool
    }

    fn insert_key(
        &self,
        worker: &mut TableWorker,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        self.insert_hashed(worker, self.table_pool.hash(key), key, value)
    }

    fn get_key(&self, worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError> {
        self.get_hashed(worker, self.table_pool.hash(key), key)
    }

    fn update_key(
        &self,
        worker: &mut TableWorker,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        self.update_hashed(worker, self.table_pool.hash(key), key, value)
    }

    fn remove_key(&self, worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError> {
        self.remove_hashed(worker, self.table_pool.hash(key), key)
    }

    fn fetch_keys(&self, keys: &[u64]) {
        self.fetch_hashed(keys);
    }

    fn each_pair(
        &self,
        worker: &mut TableWorker,
        each: &mut dyn FnMut(u64, u64),
    ) -> Result<(), IndexError> {
        let array = self.array();
        for first in (0..array.buckets()).map(|index| array.bucket(index)) {
            self.locks
                .begin(first, || self.persist_on_first_access(worker, array, first))?;
            self.each_live(first, |_, key, value| each(key, value));
        }
        Ok(())
    }

    fn space_for(&self, keys: u64) -> Result<SpaceUse, IndexError> {
        let mut buckets = 0;
        let array = self.array();
        for index in 0..array.buckets() {
            self.each_bucket(array.bucket(index), |_| buckets += 1);
        }
        Ok(SpaceUse {
            keys,
            slots: buckets * SLOTS,
            table_bytes: buckets * (array.bytes() / array.buckets()),
            far_bytes: self.table_pool.far_bytes(),
            dram_bytes: self.locks.bytes(),
        })
    }

    fn check_table(&self) -> Result<(), IndexError> {
        self.check_all()
    }
}
