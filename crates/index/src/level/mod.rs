//! Level hashing (Zuo, Hua, Wu, OSDI '18).
//!
//! Two levels of buckets, the top one twice as large as the bottom one. Each level has two halves, or *sides*. A key
//! has one bucket in each side of each level: one hash selects the first side's bucket, another hash the second side's.
//! A bucket has three pairs, each with a token (a bit that marks it live).
//!
//! ```text
//!   root, in one line           level (a run)                        bucket (a line)
//!   ┌─────────┐                 ┌────┬────┬────┬────┬────┬────┬─...─┐ ┌────────┬──────┬──────┬──────┬────────┐
//!   │ current │              ┌─▶│  0 │  1 │    │  0 │  1 │    │     │ │ tokens │pair 0│pair 1│pair 2│ unused │
//!   ├─────────┤   top        │  └────┴────┴────┴────┴────┴────┴─...─┘ └────────┴──────┴──────┴──────┴────────┘
//!   │ level 0 ├──────────────┘    first side     second side           8        16 each
//!   │ level 1 ├───▶ bottom, half as large
//!   │ level 2 │
//!   │ level 3 │     the top level's number is `current`; word n modulo 4 holds level n
//!   └─────────┘
//! ```
//!
//! If all four buckets of a key are full, the insert moves a resident pair to that pair's other bucket, or from the
//! bottom level to the top one. If no pair can move, the table grows. The pairs of the bottom level, a third of the
//! buckets, are copied into a new level, the interim, twice as large as the top one. The interim becomes the top level,
//! the old top becomes the bottom, and the old bottom is freed.
//!
//! # Invariants
//! IX-LEVEL-1  `current` names levels that are completely durable. It only grows, so a reader never confuses an old level with
//!     a current one.
//! IX-LEVEL-2  A pair is durable when its token is: it is stored before the token in the same line, or drained before.
//! IX-LEVEL-3  The tokens of a bucket are one word: an update marks the new pair live and the old one dead by one store.
//! IX-LEVEL-4  A key's buckets are changed under the two DRAM locks of its stripes, one per side, which are released when the
//!     change is durable. A reader uses what it read only if neither version has changed. So readers see no volatile
//!     data.
//! IX-LEVEL-5  A moved pair is durable at its new place before it is dead at the old one. Before either, the old place is
//!     durably noted in the worker's line of the head. So a crash leaves the pair at most twice, and recovery knows
//!     where.
//! IX-LEVEL-6  The table is closed to writers while the bottom level is copied, so neither level changes then. A reader that
//!     has read a freed level sees that `current` has changed.
//! IX-LEVEL-7  A bucket of the interim receives pairs of only one bucket of the bottom level, so it always has enough slots.
//!
//! A stripe is the low bits of the bucket index within a side. These bits are the same on every level, so two locks
//! cover all four buckets, regardless of growth. IX-LEVEL-7 holds because a pair keeps its side.
//!
//! # Crash argument
//! | crash between               | recovery sees                            | and does                           |
//! |-----------------------------|------------------------------------------|------------------------------------|
//! | pair, token                 | a slot without a token                   | nothing: it is free (IX-LEVEL-2)           |
//! | note, new place             | a note of a pair that has no copy        | nothing                            |
//! | new place, old one dead     | a note of a pair that has a copy         | marks the noted one dead (IX-LEVEL-5)      |
//! | interim's run, `current`    | a run in doubt that is no level          | frees it                           |
//! | `current`, old bottom free  | a run named as being freed, no level     | frees it                           |
//! | (a kill) store, drain       | visible bytes that are not durable       | makes them durable at first access |
//!
//! Recovery reads a few buckets per context, independent of the number of keys.
//!
//! # Deviations from the paper
//! * Locks are in DRAM, two per key. The paper's are one bit per slot.
//! * Searches continue during a resize. In the published benchmark's version a resize locks the whole table.
//! * A resize copies the bottom level and switches by one word. The published code clears and flushes each old token,
//!   and can leave the table between two states (Witcher #17, #18). [`LevelConfig::one_by_one`] flushes as often, but
//!   keeps the old tokens.
//! * A pair keeps its side in the interim (IX-LEVEL-7). The published code moves it to either side, and silently drops it if
//!   both buckets are full.
//! * Seeds are in the pool. The published benchmark's version draws new ones at each start and finds no key again.
//! * A table never shrinks.
//!
//! A bucket is one line, so that a pair and its token need one flush. The published bucket has 72 bytes, because its
//! tokens are bytes and the compiler aligns what follows ([`LevelConfig::published`]). With 79 % of the slots in use,
//! 52.6 % of its bytes hold keys and values; here it is 59 %.

mod check;
mod layout;
mod ops;
mod recover;
mod resize;

use farbank_pm::Medium;
use farbank_pm::fault::NamedFault;
use farbank_pm::sync::Mutex;
use farbank_pm::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{IndexError, OpenError};
use crate::hash::{self, Hasher};
use crate::index::SpaceUse;
use crate::locks::LockTable;
use crate::pool_heap::{PoolPlan, TablePool, TableWorker};
use crate::reserved_key::HashTable;
use layout::{CURRENT, Level, Levels, RING, level_root};

/// The table's name on the command line.
pub const NAME: &str = "level";

/// Faults of this table.
pub(crate) const FAULTS: [NamedFault; 3] = [
    NamedFault {
        name: "level.token_first",
        description: "the token is stored before the pair",
        source: "the published code, at nine places (Witcher #7 to #16)",
        shows_in: None,
    },
    NamedFault {
        name: "level.moved_stays",
        description: "recovery does not remove the second copy of a pair that was being moved",
        source: "the published code has no recovery of moves (Witcher #19 to #21)",
        shows_in: None,
    },
    NamedFault {
        name: "level.swap_in_two",
        description: "an update clears the old pair's token before it sets the new one's",
        source: "the published code (Witcher #22, #23)",
        shows_in: None,
    },
];

/// Configuration of a table, fixed at its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelConfig {
    /// Slots of a bucket.
    pub slots: u32,
    /// Bytes of a bucket: its tokens, its pairs and unused bytes.
    pub bucket_bytes: u32,
    /// Bits of a token: 1, or 8.
    pub token_bits: u32,
    /// Binary logarithm of the buckets of the first top level. The bottom level has half of them.
    pub top_bits: u32,
    /// Start values of the two published hashes. A table with a hash seed derives both hashes from that seed.
    pub seeds: [u64; 2],
    /// Whether a resize persists each pair, then its token, then its old bucket, each separately. The published code
    /// does so to clear the old token.
    pub one_by_one: bool,
}

impl LevelConfig {
    /// Returns the paper's configuration with buckets of one line. The number of buckets follows the published
    /// benchmark: 2^21 on top for 2^24 `slots`.
    #[must_use]
    pub fn paper(slots: u64) -> LevelConfig {
        LevelConfig {
            slots: 3,
            bucket_bytes: 64,
            token_bits: 1,
            top_bits: (slots / 9 * 2).max(4).ilog2(),
            seeds: [hash::SEED, 0x9e37_79b9_7f4a_7c15],
            one_by_one: false,
        }
    }

    /// Returns a configuration so small that a dozen keys move others and outgrow the levels.
    #[must_use]
    pub fn small() -> LevelConfig {
        LevelConfig {
            slots: 2,
            top_bits: 2,
            ..LevelConfig::paper(0)
        }
    }

    /// Returns the published variant: tokens of one byte, buckets that are not a line, and pairs that are rehashed one
    /// by one.
    #[must_use]
    pub fn published(self) -> LevelConfig {
        LevelConfig {
            bucket_bytes: 72,
            token_bits: 8,
            one_by_one: true,
            ..self
        }
    }
}

/// A level hashing table.
pub struct LevelHash<M> {
    table_pool: TablePool<M>,
    config: LevelConfig,
    /// Hash functions of the two sides.
    hashers: [Hasher; 2],
    /// DRAM copies of the root's words, for readers.
    current: AtomicU64,
    ring: [AtomicU64; RING as usize],
    growing: Mutex<()>,
    /// Whether writers must wait for a resize.
    closed: AtomicBool,
    /// Number of locks of a side, a power of two.
    stripes: u64,
    locks: LockTable,
}

impl<M: Medium> LevelHash<M> {
    fn over(ground: TablePool<M>, config: LevelConfig, found: bool) -> LevelHash<M> {
        let root = |n| AtomicU64::new(ground.medium().load(ground.root(n)));
        let mut table = LevelHash {
            current: root(CURRENT),
            ring: std::array::from_fn(|n| root(level_root(n as u64))),
            growing: Mutex::new(()),
            closed: AtomicBool::new(false),
            stripes: 1,
            locks: LockTable::new(ground.failure(), 0, 1, found),
            hashers: ground.hashers(config.seeds),
            table_pool: ground,
            config,
        };
        let half_bits = table.levels().bottom.bits.saturating_sub(1);
        // One stripe per bucket of the bottom level's side, so that the first access after an open persists only three
        // buckets, however large the table is. The pool's size bounds the number, in case a damaged root has a large
        // one.
        let fit = table.table_pool.medium().len() / u64::from(config.bucket_bytes);
        table.stripes = 1 << half_bits.min(fit.max(1).ilog2());
        table.locks.reserve(2 * table.stripes as usize);
        table
    }

    /// Creates an empty table that uses all of `medium`. Durable on `Ok`.
    pub fn create(
        medium: M,
        plan: &PoolPlan,
        config: LevelConfig,
    ) -> Result<LevelHash<M>, OpenError> {
        config.check()?;
        let ground = TablePool::create(medium, plan, &[])?;
        let table = LevelHash::over(ground, config, false);
        table.make_first()?;
        let LevelHash {
            table_pool: ground, ..
        } = table;
        let ground = ground.finish(NAME, &config.words())?;
        Ok(LevelHash::over(ground, config, false))
    }

    /// Opens the table on `medium`. Recovery completes interrupted moves first.
    pub fn open(medium: M) -> Result<LevelHash<M>, OpenError> {
        let ground = TablePool::open(medium, NAME, |_| Ok(Vec::new()))?;
        let config = LevelConfig::of(ground.config())?;
        let table = LevelHash::over(ground, config, true);
        table.recover()?;
        Ok(table)
    }

    #[inline]
    fn levels(&self) -> Levels {
        let current = self.current.load(Ordering::Acquire);
        let level = |n: u64| Level::of(self.ring[(n % RING) as usize].load(Ordering::Acquire));
        Levels {
            current,
            top: level(current),
            bottom: level(current.wrapping_sub(1)),
        }
    }
}

impl<M: Medium> HashTable for LevelHash<M> {
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
        self.insert_hashed(worker, self.hashes(key), key, value)
    }

    fn get_key(&self, worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError> {
        self.get_hashed(worker, self.hashes(key), key)
    }

    fn update_key(
        &self,
        worker: &mut TableWorker,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        self.update_hashed(worker, self.hashes(key), key, value)
    }

    fn remove_key(&self, worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError> {
        self.remove_hashed(worker, self.hashes(key), key)
    }

    fn fetch_keys(&self, keys: &[u64]) {
        self.fetch_hashed(keys);
    }

    fn each_pair(
        &self,
        worker: &mut TableWorker,
        each: &mut dyn FnMut(u64, u64),
    ) -> Result<(), IndexError> {
        for stripe in (0..2 * self.stripes).map(farbank_pm::Off) {
            self.locks
                .begin(stripe, || self.persist_on_first_access(worker, stripe))?;
        }
        self.each_live(|_, _, spot| {
            let (key, value) = self.pair(spot);
            each(key, value);
        });
        Ok(())
    }

    fn space_for(&self, keys: u64) -> Result<SpaceUse, IndexError> {
        let levels = self.levels().both();
        let buckets: u64 = levels.into_iter().map(Level::buckets).sum();
        Ok(SpaceUse {
            keys,
            slots: buckets * u64::from(self.config.slots),
            table_bytes: buckets * u64::from(self.config.bucket_bytes),
            far_bytes: self.table_pool.far_bytes(),
            dram_bytes: self.locks.bytes(),
        })
    }

    fn check_table(&self) -> Result<(), IndexError> {
        self.check_all()
    }
}
