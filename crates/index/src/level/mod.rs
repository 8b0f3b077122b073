//! Level hashing (Zuo, Hua, Wu, OSDI '18).
//!
//! Two levels of buckets, the top one twice as large as the bottom one. A key has a bucket in each half, or *side*, of each
//! level: the first side's by one hash, the second side's by another. Three pairs to a bucket, each with a token.
//!
//! ```text
//!   root, in one line           level (a run)                        bucket (a line)
//!   ┌─────────┐                 ┌────┬────┬────┬────┬────┬────┬─...─┐ ┌────────┬──────┬──────┬──────┬────────┐
//!   │ current │              ┌─▶│  0 │  1 │    │  0 │  1 │    │     │ │ tokens │pair 0│pair 1│pair 2│ unused │
//!   ├─────────┤   top        │  └────┴────┴────┴────┴────┴────┴─...─┘ └────────┴──────┴──────┴──────┴────────┘
//!   │ level 0 ├──────────────┘    first side     second side           8        16 each
//!   │ level 1 ├───▶ bottom, half as large
//!   │ level 2 │
//!   │ level 3 │     the top one's number is `current`, level n is named by word n modulo 4
//!   └─────────┘
//! ```
//!
//! A key that finds all four buckets full has a resident of theirs moved to its other bucket, or from the bottom level to the
//! top one. If none can be, the pairs of the bottom level, a third of the buckets, are put into a new level, the interim, twice
//! as large as the top one; that is then the top, the old top the bottom, and the old bottom free.
//!
//! # Invariants
//! I1  `current` names levels that are durable, whole. It only grows; no reader takes an old level for one of now.
//! I2  A pair is durable when its token is: stored before it in the same line, or drained before it is.
//! I3  Tokens of a bucket are one word: an update makes the new pair live and the old one dead by one store.
//! I4  A key's buckets are changed under the two locks in DRAM of its stripes, one a side, let go when the change is durable. A
//!     reader believes what it read if neither version has changed: nothing visible is volatile.
//! I5  A pair that is moved is durable where it goes before it is dead where it was, and its old place is noted, durably, in the
//!     worker's line of the head before either. So a crash leaves it twice at most, and recovery knows where.
//! I6  The table is closed to writers while the bottom level is copied; nobody changes either level then. A reader that has read a
//!     level that is no more sees that `current` has changed.
//! I7  A bucket of the interim takes pairs of one bucket of the bottom level only: there is always room.
//!
//! A stripe is the last bits of the index within a side; they are the same on every level, so that two locks are for all four
//! buckets, whatever the table has grown to, and I7 holds because a pair keeps its side.
//!
//! # Crash argument
//! | crash between               | recovery sees                            | and does                           |
//! |-----------------------------|------------------------------------------|------------------------------------|
//! | pair, token                 | a place without a token                  | nothing: it is free (I2)           |
//! | note, new place             | a note of a pair that is nowhere else    | nothing                            |
//! | new place, old one dead     | a note of a pair that is somewhere else  | makes the noted one dead (I5)      |
//! | interim's run, `current`    | a run in doubt that is no level          | frees it                           |
//! | `current`, old bottom free  | a run named as being freed, no level     | frees it                           |
//! | (a kill) store, drain       | bytes that a power cut could take back   | makes them durable at first touch  |
//!
//! Recovery reads a few buckets a context: the more keys, no more work.
//!
//! # Where we differ from the paper
//! Locks live in DRAM, two a key; the paper's are a bit a slot. Searches go on while the table is resized; the
//! paper's version in the study locks the whole table. A resize copies the bottom level and switches by one word; the published
//! code clears each old token, flushes it, and has been found to leave the table between two states (Witcher #17, #18);
//! [`Config::one_by_one`] flushes as often, and leaves the tokens where they are. It puts a
//! pair into either side of the interim and drops it, without a word, if both buckets are full; here a pair keeps its side
//! (I7). Seeds are in the pool; the study's version draws new ones at each start and finds nothing again. A table never shrinks.
//!
//! A bucket is one line, so that a pair and its token need one flush. The study's has 72 bytes, as its tokens are bytes and the
//! compiler aligns what follows ([`Config::published`]): a table that is 79 % full has 52.6 % of its bytes for keys and values, ours 59 %.

mod layout;
mod ops;
mod recover;
mod resize;

use farbank_pm::Medium;
use farbank_pm::fault::NamedFault;
use farbank_pm::sync::Mutex;
use farbank_pm::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::hash::{self, Hasher};
use crate::index::{Index, IndexError, SpaceUse};
use crate::locks::LockTable;
use crate::pool_heap::{OpenError, PoolPlan, TablePool, TableWorker};
use layout::{CURRENT, Level, Levels, RING, level_root};

/// Its name.
pub const NAME: &str = "level";

/// Deviations it has by name.
pub(crate) const FAULTS: [NamedFault; 3] = [
    NamedFault {
        name: "level.token_first",
        what: "the token is stored before the pair",
        source: "the published code, at nine places (Witcher #7 to #16)",
        shows_in: None,
    },
    NamedFault {
        name: "level.moved_stays",
        what: "recovery leaves pairs twice that were being moved",
        source: "the published code has no recovery of moves (Witcher #19 to #21)",
        shows_in: None,
    },
    NamedFault {
        name: "level.swap_in_two",
        what: "an update takes the old pair's token away before it sets the new one's",
        source: "the published code (Witcher #22, #23)",
        shows_in: None,
    },
];

/// How a table is arranged; fixed when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelConfig {
    /// Pairs of a bucket.
    pub slots: u32,
    /// Bytes of a bucket: its tokens, its pairs, and what is unused.
    pub bucket_bytes: u32,
    /// Bits of a token: 1, or 8.
    pub token_bits: u32,
    /// Buckets of the first top level, as a power of two; the bottom one has half of them.
    pub top_bits: u32,
    /// What the published hashes of the two sides start from; a table with a seed draws both from that.
    pub seeds: [u64; 2],
    /// Whether a resize makes each pair durable by itself, then its token, then the bucket it was in once more, as published
    /// code does, which takes the old token away.
    pub one_by_one: bool,
}

impl LevelConfig {
    /// The paper's, in buckets of one line, and as many as the study took for `slots`: 2^21 on top for 2^24.
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

    /// Small enough that a dozen keys move others and outgrow the levels.
    #[must_use]
    pub fn small() -> LevelConfig {
        LevelConfig {
            slots: 2,
            top_bits: 2,
            ..LevelConfig::paper(0)
        }
    }

    /// As published: tokens of a byte in buckets that are no line, pairs that are rehashed one by one.
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

/// The table.
pub struct LevelHash<M> {
    ground: TablePool<M>,
    config: LevelConfig,
    /// Of the two sides.
    hashers: [Hasher; 2],
    /// The root's words, where readers look.
    current: AtomicU64,
    ring: [AtomicU64; RING as usize],
    growing: Mutex<()>,
    /// Whether writers have to wait for a resize.
    closed: AtomicBool,
    /// Locks of a side: a power of two.
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
            ground,
            config,
        };
        let half_bits = table.levels().bottom.bits.saturating_sub(1);
        // As many as there are buckets, so that whoever comes first after an open has three to accept, however large it is;
        // no more than fit the pool, whatever a damaged one says.
        let fit = table.ground.medium().len() / u64::from(config.bucket_bytes);
        table.stripes = 1 << half_bits.min(fit.max(1).ilog2());
        table.locks.reserve(2 * table.stripes as usize);
        table
    }

    /// Makes an empty table of all of `medium`. Durable on `Ok`.
    pub fn create(
        medium: M,
        plan: &PoolPlan,
        config: LevelConfig,
    ) -> Result<LevelHash<M>, OpenError> {
        config.check()?;
        let ground = TablePool::create(medium, plan, &[])?;
        let table = LevelHash::over(ground, config, false);
        table.make_first()?;
        let LevelHash { ground, .. } = table;
        let ground = ground.finish(NAME, &config.words())?;
        Ok(LevelHash::over(ground, config, false))
    }

    /// Opens the table on `medium`, after a crash or not: what a crash cut short is ended first.
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

impl<M: Medium> Index for LevelHash<M> {
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
        self.insert_hashed(worker, self.hashes(key), key, value)
    }

    fn get(&self, worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError> {
        self.get_hashed(worker, self.hashes(key), key)
    }

    fn update(
        &self,
        worker: &mut TableWorker,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        self.update_hashed(worker, self.hashes(key), key, value)
    }

    fn remove(&self, worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError> {
        self.remove_hashed(worker, self.hashes(key), key)
    }

    fn fetch(&self, keys: &[u64]) {
        self.fetch_hashed(keys);
    }

    fn each(
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

    fn space(&self, worker: &mut TableWorker) -> Result<SpaceUse, IndexError> {
        let keys = self.len(worker)?;
        let levels = self.levels().both();
        let buckets: u64 = levels.into_iter().map(Level::buckets).sum();
        Ok(SpaceUse {
            keys,
            slots: buckets * u64::from(self.config.slots),
            table_bytes: buckets * u64::from(self.config.bucket_bytes),
            far_bytes: self.ground.far_bytes(),
            dram_bytes: self.locks.bytes(),
        })
    }

    fn check(&self) -> Result<(), IndexError> {
        self.check_all()
    }
}
