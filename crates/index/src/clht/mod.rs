//! P-CLHT: the cache-line hash table (David, Guerraoui, Trigonakis, ASPLOS '15) as RECIPE (Lee et al., SOSP '19) made it
//! persistent.
//!
//! An array of buckets of one line, three slots each. A bucket without a free slot is followed by a chained one. When
//! there are as many chained buckets as the array has, an array some times as large takes its place.
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
//!   │ array │ young │  old  │      an array's offset, its size's logarithm in the low bits
//!   └───────┴───────┴───────┘
//! ```
//!
//! A resize names the array it builds and the one it is to replace, copies it part by part, and switches by one store. Who
//! would wait for it copies parts, too (`copy.rs`). Whichever of the two is not the table's afterwards is freed: by the
//! resize, or by the next open.
//!
//! # Invariants
//! I1  A slot is live iff its key is not `EMPTY`.
//! I2  A slot's value is stored before its key, in the same line: a crash that keeps the key keeps the value.
//! I3  A chained bucket is durable, whole, before one of the table's array leads to it. It is never taken out of its chain.
//! I4  A chain is changed under its lock in DRAM, which is let go when the change is durable. A reader believes what it
//!     read if neither the lock's version nor the table's array has changed: nothing visible is volatile.
//! I5  `array` names a young array only when that is durable, whole. No array's word is ever the table's again: they grow.
//! I6  What is taken to be copied is not changed any more: writers see under the chain's lock that it was. The array is
//!     replaced when all who took a part have made that durable, or one was refused: then it is not.
//! I7  An array that is not the table's is named by `young` or `old` from before its first chained bucket is handed out until
//!     all of them are free, durably, and only then is one of them handed out again.
//! I8  Nothing of a chain is followed before whoever first comes to it after an open has seen that its chained buckets are
//!     blocks in use which say that they are its.
//!
//! # Crash argument
//! | crash between                | recovery sees                           | and does                           |
//! |------------------------------|-----------------------------------------|------------------------------------|
//! | value stored, key stored     | an empty key                            | nothing: the slot is free (I1, I2) |
//! | chained bucket, its link     | a bucket in doubt its chain has not     | frees it                           |
//! | new run, `young`             | a run in doubt that no word names       | frees it                           |
//! | `young`, `array`             | `young` is not the table's              | frees it, and all chained buckets  |
//! | `array`, old ones all free   | `old` is not the table's                | that no chain of the table has (I7)|
//! | old ones free, run free      | the run named as being freed            | frees it                           |
//! | (a kill) store, drain        | bytes that a power cut could take back  | makes them durable at first touch  |
//!
//! Of the array that is not the table's nothing is read: it may be half written, by several workers. Only a crash inside a
//! resize makes recovery look at all chained buckets, and at the chains of the table which they say they are of.
//!
//! How many chained buckets there are is known in DRAM only. An opened table counts them as chains are touched for the
//! first time, so that the first resize may come a little later than it would have.
//!
//! # Where we differ from the paper
//! Locks live in DRAM; the paper's are in the first word of a bucket, and a crash leaves them locked (RECIPE#19).
//! [`Config::far_locks`] writes them without relying on them. Readers believe nothing that is not durable; the paper's
//! see a key before it is, and miss one whose value changes meanwhile. Who helps a resize is waited for; the published
//! code's resizer leaves out buckets if a helper dies. A chained bucket's own first word leads back to its chain. Arrays
//! grow by four, which is what the published rule, to 40 % of the slots, comes out as ([`Config::growth_bits`]).
//! A crash inside a resize leaks nothing; the published code leaves that to a collector (fault `clht.young_not_named`).
//! There is an update.

mod copy;
mod layout;
mod ops;
mod recover;
mod resize;

use farbank_pm::Medium;
use farbank_pm::fault::NamedFault;
use farbank_pm::sync::Mutex;
use farbank_pm::sync::atomic::{AtomicU64, Ordering};

use crate::index::{Index, IndexError, SpaceUse};
use crate::locks::{EARLY_READS, LockTable};
use crate::pool_heap::{OpenError, PoolPlan, TablePool, TableWorker};
use crate::reserved_key::ReservedKey;
use copy::ArrayCopy;
use layout::{ARRAY, Array, EMPTY, SLOTS};

/// Its name.
pub const NAME: &str = "clht";

/// Deviations it has by name.
pub(crate) const FAULTS: [NamedFault; 4] = [
    EARLY_READS,
    NamedFault {
        name: "clht.key_first",
        what: "an insert stores the key before the value",
        source: "orderings of the Aga port (Witcher #31 to #35)",
        shows_in: None,
    },
    NamedFault {
        name: "clht.link_first",
        what: "a chained bucket is linked before it is durable",
        source: "the published code's flush walks the wrong pointer and leaves chained buckets out (Witcher #30)",
        shows_in: None,
    },
    NamedFault {
        name: "clht.young_not_named",
        what: "nothing durable names the array that a resize builds, nor the one it replaces",
        source: "RECIPE's code: a crash inside a resize leaks unless the allocator collects garbage",
        shows_in: None,
    },
];

/// Those of them, and others, that threads find.
pub(crate) const FAULTS_IN_THREADS: [NamedFault; 2] = [
    EARLY_READS,
    NamedFault {
        name: "clht.helpers_left_behind",
        what: "a resize publishes its array without waiting for those who help to copy the old one",
        source: "RECIPE#2: a helper that dies leaves buckets out",
        shows_in: None,
    },
];

/// How a table is arranged; fixed when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClhtConfig {
    /// Buckets of the first array, as a power of two.
    pub bits: u32,
    /// At how many chained buckets, in hundredths of the array's, that is replaced.
    pub chained_percent: u32,
    /// How many times as large the next array is, as a power of two.
    pub growth_bits: u32,
    /// Buckets of the array that share a lock, as a power of two.
    pub lock_bits: u32,
    /// Whether every change also writes a lock word in its bucket, as the published code does.
    pub far_locks: bool,
    /// Whether searches wait for no writer, as the published code's, and show what is not durable yet.
    pub early_reads: bool,
}

impl ClhtConfig {
    /// The paper's: resized when chained buckets are as many as the array's; buckets for `slots`, a power of two.
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

    /// Small enough that a dozen keys are chained and outgrow the array, and that an array is copied in several parts.
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

    /// As published: locks in far memory, searches that wait for nobody.
    #[must_use]
    pub fn published(self) -> ClhtConfig {
        ClhtConfig {
            far_locks: true,
            early_reads: true,
            ..self
        }
    }
}

/// The table.
pub struct Clht<M> {
    ground: TablePool<M>,
    config: ClhtConfig,
    /// The root's word for the array, where readers look.
    array: AtomicU64,
    growing: Mutex<()>,
    copying: ArrayCopy,
    /// Chained buckets, as far as they are known.
    chained: AtomicU64,
    /// At how many of them the array is replaced.
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
            ground,
            config,
        };
        let limit = table.limit(table.array());
        table.grow_at.store(limit, Ordering::Relaxed);
        table
    }

    /// Makes an empty table of all of `medium`. Durable on `Ok`.
    pub fn create(medium: M, plan: &PoolPlan, config: ClhtConfig) -> Result<Clht<M>, OpenError> {
        config.check()?;
        let ground = TablePool::create(medium, plan, &ClhtConfig::classes())?;
        let table = Clht::over(ground, config, false);
        table.make_first()?;
        let Clht { ground, .. } = table;
        let ground = ground.finish(NAME, &config.words())?;
        Ok(Clht::over(ground, config, false))
    }

    /// Opens the table on `medium`, after a crash or not: what a crash cut short is undone or ended first.
    pub fn open(medium: M) -> Result<Clht<M>, OpenError> {
        let ground = TablePool::open(medium, NAME, |_| Ok(ClhtConfig::classes().to_vec()))?;
        let config = ClhtConfig::of(ground.config())?;
        let table = Clht::over(ground, config, true);
        ReservedKey::of(&table.ground).check()?;
        table.recover()?;
        Ok(table)
    }

    #[inline]
    fn array(&self) -> Array {
        Array::of(self.array.load(Ordering::Acquire))
    }
}

impl<M: Medium> Index for Clht<M> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn worker(&self) -> Result<TableWorker, IndexError> {
        self.ground.worker()
    }

    fn insert(
        &self,
        worker: &mut TableWorker,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        match key {
            EMPTY => ReservedKey::of(&self.ground).insert(worker, value),
            _ => self.insert_hashed(worker, self.ground.hash(key), key, value),
        }
    }

    fn get(&self, worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError> {
        match key {
            EMPTY => ReservedKey::of(&self.ground).get(),
            _ => self.get_hashed(worker, self.ground.hash(key), key),
        }
    }

    fn update(
        &self,
        worker: &mut TableWorker,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        match key {
            EMPTY => ReservedKey::of(&self.ground).update(worker, value),
            _ => self.update_hashed(worker, self.ground.hash(key), key, value),
        }
    }

    fn remove(&self, worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError> {
        match key {
            EMPTY => ReservedKey::of(&self.ground).remove(worker),
            _ => self.remove_hashed(worker, self.ground.hash(key), key),
        }
    }

    fn fetch(&self, keys: &[u64]) {
        self.fetch_hashed(keys);
    }

    fn each(
        &self,
        worker: &mut TableWorker,
        each: &mut dyn FnMut(u64, u64),
    ) -> Result<(), IndexError> {
        if let Some(value) = ReservedKey::of(&self.ground).get()? {
            each(EMPTY, value);
        }
        let array = self.array();
        for first in (0..array.buckets()).map(|index| array.bucket(index)) {
            self.locks
                .begin(first, || self.accept(worker, array, first))?;
            self.each_live(first, |_, key, value| each(key, value));
        }
        Ok(())
    }

    fn space(&self, worker: &mut TableWorker) -> Result<SpaceUse, IndexError> {
        let (mut buckets, keys) = (0, self.len(worker)?);
        let array = self.array();
        for index in 0..array.buckets() {
            self.each_bucket(array.bucket(index), |_| buckets += 1);
        }
        Ok(SpaceUse {
            keys,
            slots: buckets * SLOTS,
            table_bytes: buckets * (array.bytes() / array.buckets()),
            far_bytes: self.ground.far_bytes(),
            dram_bytes: self.locks.bytes(),
        })
    }

    fn check(&self) -> Result<(), IndexError> {
        self.check_all()
    }
}
