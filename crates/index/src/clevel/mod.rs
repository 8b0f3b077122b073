//! Clevel: level hashing with lock-free search (Chen et al., USENIX ATC '20).
//!
//! Levels of buckets, each twice as large as the one below it. A slot is a word with the offset of a pair and a tag, 16
//! bits of its key's hash. A key has two buckets in every level.
//!
//! ```text
//!   root                  level (a run)               bucket (a line)         slot (a word)        pair (a block)
//!   ┌──────────────┐      ┌───┬───┬───┬───┬─ ... ─┐   ┌───┬───┬─ ... ─┬───┐   ┌─────┬───────────┐   ┌─────┬───────┐
//!   │bottom, count │   ┌─▶│ 0 │ 1 │ 2 │ 3 │       │   │ 0 │ 1 │       │ 7 │   │ tag │ offset ───┼──▶│ key │ value │
//!   │cursor        │   │  └───┴───┴───┴───┴─ ... ─┘   └───┴───┴─ ... ─┴───┘   └─────┴───────────┘   └─────┴───────┘
//!   │level 0 ──────┼───┘   top: 2^n buckets
//!   │level 1 ──────┼─────▶ bottom: 2^(n-1)
//!   └──────────────┘
//! ```
//!
//! If a key finds no free slot, a level is added on top. The slots of the bottom level are moved up, bucket by bucket;
//! then the bottom level is dropped. Inserts and searches continue meanwhile.
//!
//! # Invariants
//! IX-CLEVEL-1  The levels are those that the root's first word counts. It is replaced by one store, after the levels it counts
//!     are durable.
//! IX-CLEVEL-2  A pair and its allocation bit are durable before a slot leads to it.
//! IX-CLEVEL-3  All slots of a key are changed under the DRAM lock of its stripe, which is released when the change is durable.
//!     An empty slot is taken by compare-and-swap, because keys of other stripes compete for it.
//! IX-CLEVEL-4  A reader uses what it read only if its stripe's version has not changed. So it sees no volatile data. A pair
//!     that was freed meanwhile was either freed under another version or was not the answer.
//! IX-CLEVEL-5  No writer fills slots of a level that is being emptied. Before the first slot is moved, the resizer waits,
//!     stripe by stripe, for writers that may have seen the older state. Before a dropped level is freed, it waits for
//!     threads that may still read it.
//! IX-CLEVEL-6  A reader that has read a dropped level sees that the levels have changed.
//! IX-CLEVEL-7  Only slots of the bucket at the cursor may be in two levels, or be cleared but not durably. The upper slot is
//!     durable before the lower one is cleared.
//! IX-CLEVEL-8  A slot is followed only if its offset can be that of a pair. It is unlinked only if the offset is a block of the
//!     pairs' class.
//!
//! # Crash argument
//! | crash between               | recovery sees                          | and does                            |
//! |-----------------------------|----------------------------------------|-------------------------------------|
//! | bit, slot                   | a pair in doubt, no slot leads to it   | frees it (IX-CLEVEL-2)                       |
//! | slot cleared, bit cleared   | the same: it is named as being freed   | frees it                            |
//! | level made, first word      | a run in doubt that is no level        | frees it (IX-CLEVEL-1)                       |
//! | moved up, cleared below     | a pair with two slots, at the cursor   | clears the lower one (IX-CLEVEL-7)           |
//! | bottom empty, level dropped | three levels and the cursor            | nothing: the next growth continues  |
//! | dropped, run freed          | a run named as being freed, no level   | frees it                            |
//! | (a kill) slot stored, drain | a pair in doubt                        | flushes the buckets of its key      |
//!
//! Recovery reads a few buckets per context, and one bucket of the bottom level, independent of the number of keys.
//!
//! # Deviations from the paper
//! * The paper's writers take no locks. Here writers of one stripe exclude each other by a lock in DRAM (at most 4,096
//!   stripes). So a key exists once, no reader sees data that is not durable, and no update or removal overtakes a
//!   move.
//! * The paper's levels, slots, tags, compare-and-swap on slots, searches that do not wait for a resize, and the switch
//!   of levels by one word are kept.
//! * The thread that found no slot empties the bottom level. The paper uses a background thread.
//! * Level descriptors are words of the root. The paper's are blocks that are copied.
//! * Readers need no epochs: versions show that a pair was freed (IX-CLEVEL-4).
//!
//! The published benchmark's version accepts a slot of the second bucket if only the tag agrees (fault
//! `clevel.tag_is_key`). The published code never frees a pair that an update replaces (`clevel.keep_old`). After a
//! restart it frees the pair that each thread inserted last, which is live (`clevel.free_last`).

mod check;
mod layout;
mod ops;
mod recover;
mod resize;

use farbank_pm::Medium;
use farbank_pm::fault::NamedFault;
use farbank_pm::sync::Mutex;
use farbank_pm::sync::atomic::{AtomicU64, Ordering};

use crate::error::{IndexError, OpenError};
use crate::index::SpaceUse;
use crate::locks::LockTable;
use crate::pool_heap::{PoolPlan, TablePool, TableWorker};
use crate::reserved_key::HashTable;
use layout::{LEVELS, Level, LevelsWord, META, PAIR_BYTES, level_root, value_of};

/// The table's name on the command line.
pub const NAME: &str = "clevel";

/// Faults of this table.
pub(crate) const FAULTS: [NamedFault; 3] = [
    NamedFault {
        name: "clevel.tag_is_key",
        description: "a search accepts a slot if only its tag is the key's",
        source: "the published benchmark's version",
        shows_in: None,
    },
    NamedFault {
        name: "clevel.keep_old",
        description: "an update does not free the pair it replaces",
        source: "the published code",
        shows_in: None,
    },
    NamedFault {
        name: "clevel.free_last",
        description: "recovery frees the pair that each worker allocated last, linked or not",
        source: "the published code",
        shows_in: None,
    },
];

/// Binary logarithm of the maximum number of locks.
const STRIPE_BITS_MAX: u32 = 12;

/// Configuration of a table, fixed at its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClevelConfig {
    /// Slots of a bucket: 1, 2, 4 or 8, at most a line.
    pub slots: u32,
    /// Binary logarithm of the buckets of the first top level. The bottom level has half of them.
    pub top_bits: u32,
    /// Bits of the tag in a slot: 1 to 16.
    pub tag_bits: u32,
    /// Whether searches do not wait for writers, as in the published code, and can return data that is not durable.
    pub early_reads: bool,
}

impl ClevelConfig {
    /// Returns the paper's configuration with buckets of eight slots. The number of buckets follows the published
    /// benchmark: 2^19 on top for 2^24 `slots`.
    #[must_use]
    pub fn paper(slots: u64) -> ClevelConfig {
        ClevelConfig {
            slots: 8,
            top_bits: (slots / 32).max(4).ilog2(),
            tag_bits: 16,
            early_reads: false,
        }
    }

    /// Returns a configuration so small that a dozen keys add a level, with tags that often agree.
    #[must_use]
    pub fn small() -> ClevelConfig {
        ClevelConfig {
            slots: 2,
            top_bits: 2,
            tag_bits: 3,
            early_reads: false,
        }
    }

    /// Returns the published variant: searches that do not wait.
    #[must_use]
    pub fn published(self) -> ClevelConfig {
        ClevelConfig {
            early_reads: true,
            ..self
        }
    }
}

/// A Clevel table.
pub struct Clevel<M> {
    table_pool: TablePool<M>,
    config: ClevelConfig,
    /// DRAM copies of the root's words for the levels, for readers.
    meta: AtomicU64,
    levels: [AtomicU64; LEVELS as usize],
    growing: Mutex<()>,
    stripes: u64,
    locks: LockTable,
}

impl<M: Medium> Clevel<M> {
    fn over(ground: TablePool<M>, config: ClevelConfig) -> Clevel<M> {
        let stripes = 1 << config.top_bits.min(STRIPE_BITS_MAX);
        let root = |n| AtomicU64::new(ground.medium().load(ground.root(n)));
        Clevel {
            meta: root(META),
            levels: std::array::from_fn(|n| root(level_root(n as u64))),
            growing: Mutex::new(()),
            stripes,
            locks: LockTable::new(ground.failure(), stripes, 1, false)
                .read_early(config.early_reads),
            table_pool: ground,
            config,
        }
    }

    /// Creates an empty table that uses all of `medium`. Durable on `Ok`.
    pub fn create(
        medium: M,
        plan: &PoolPlan,
        config: ClevelConfig,
    ) -> Result<Clevel<M>, OpenError> {
        config.check()?;
        let ground = TablePool::create(medium, plan, &ClevelConfig::classes())?;
        let table = Clevel::over(ground, config);
        table.make_first()?;
        let Clevel {
            table_pool: ground, ..
        } = table;
        let ground = ground.finish(NAME, &config.words())?;
        Ok(Clevel::over(ground, config))
    }

    /// Opens the table on `medium`. Recovery resolves what a crash left in doubt first.
    pub fn open(medium: M) -> Result<Clevel<M>, OpenError> {
        let ground = TablePool::open(medium, NAME, |_| Ok(ClevelConfig::classes().to_vec()))?;
        let config = ClevelConfig::of(ground.config())?;
        let table = Clevel::over(ground, config);
        table.recover()?;
        Ok(table)
    }

    #[inline]
    fn meta(&self) -> LevelsWord {
        LevelsWord::of(self.meta.load(Ordering::Acquire))
    }

    #[inline]
    fn level(&self, n: u64) -> Level {
        Level::of(self.levels[(n % LEVELS) as usize].load(Ordering::Acquire))
    }
}

impl<M: Medium> HashTable for Clevel<M> {
    type Medium = M;

    const NAME: &'static str = NAME;

    const RESERVED_KEY: Option<u64> = None;

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

    fn get_key(&self, _worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError> {
        self.get_hashed(self.table_pool.hash(key), key)
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
        _worker: &mut TableWorker,
        each: &mut dyn FnMut(u64, u64),
    ) -> Result<(), IndexError> {
        let medium = self.table_pool.medium();
        self.each_taken(|_, slot, word| {
            let pair = self.pair_of(slot, word)?;
            each(medium.load(pair), medium.load(value_of(pair)));
            Ok(())
        })
    }

    fn space_for(&self, keys: u64) -> Result<SpaceUse, IndexError> {
        let levels = self.meta().levels().map(|n| self.level(n));
        let buckets: u64 = levels.map(Level::buckets).sum();
        Ok(SpaceUse {
            keys,
            slots: buckets * u64::from(self.config.slots),
            table_bytes: buckets * self.config.bucket_bytes() + keys * PAIR_BYTES,
            far_bytes: self.table_pool.far_bytes(),
            dram_bytes: self.locks.bytes(),
        })
    }

    fn check_table(&self) -> Result<(), IndexError> {
        self.check_all()
    }
}
