//! Clevel: level hashing whose searches are not blocked (Chen et al., USENIX ATC '20).
//!
//! Levels of buckets, each twice as large as the one below it; a slot is a word that leads to a pair and says 16 bits of
//! its key's hash. A key has two buckets in every level.
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
//! When a key finds no slot, a level is added on top, and what is in the bottom one is moved up, bucket by bucket; then
//! the bottom one is dropped. Insertions and searches go on meanwhile.
//!
//! # Invariants
//! I1  The levels are those that the root's first word counts; it is replaced by one store, when what it says is
//!     durable.
//! I2  A pair is durable, its bit too, before a slot leads to it.
//! I3  All words of a key are changed under the lock in DRAM of its stripe, which is let go when the change is durable;
//!     an empty slot is taken by compare and swap, as keys of other stripes may want it.
//! I4  A reader believes what it read if its stripe's version is the same after it: nothing it sees is volatile. A pair
//!     that was freed meanwhile was freed under another version, or was no answer.
//! I5  Nobody fills slots of a level that is being emptied: writers who may not have seen that it is are awaited, stripe
//!     by stripe, before the first is moved; so are those who may still read a dropped level, before it is freed.
//! I6  A reader that has read a dropped level sees that the levels have changed.
//! I7  Only slots of the bucket the cursor names may be in two levels, or be cleared and not durably so. The upper
//!     one is durable before the lower one is cleared.
//! I8  A slot is followed only if what it leads to can be a pair at all, and unlinked only if it is a block of theirs.
//!
//! # Crash argument
//! | crash between               | recovery sees                          | and does                            |
//! |-----------------------------|----------------------------------------|-------------------------------------|
//! | bit, slot                   | a pair in doubt, no slot leads to it   | frees it (I2)                       |
//! | slot cleared, bit cleared   | the same: it was named as being freed  | frees it                            |
//! | level made, first word      | a run in doubt that is no level        | frees it (I1)                       |
//! | moved up, cleared below     | a pair two slots lead to, at the cursor| clears the lower one (I7)           |
//! | bottom empty, level dropped | three levels and the cursor            | nothing: the next growth goes on    |
//! | dropped, run freed          | a run named as being freed, no level   | frees it                            |
//! | (a kill) slot stored, drain | a pair in doubt                        | flushes the buckets of its key      |
//!
//! Recovery reads a few buckets a context, and one bucket of the bottom level: the more keys, no more work.
//!
//! # Where we differ from the paper
//! Its writers take no locks. Here keys of a stripe are written one after another, under a lock in DRAM ([`Clevel`] has at
//! most 4,096), so that a key is there once, no reader sees what is not durable, and a move is not overtaken by an update or
//! a removal. Kept are the levels, slots and tags, compare and swap for slots, searches that wait for no resizing, and
//! levels switched by one word. Emptying the bottom level is done by who found no slot, not by a thread in the
//! background. Level descriptors are words of the root, and not blocks that are copied. Readers need no epochs: versions
//! tell them that a pair was freed (I4).
//!
//! The study's version takes an entry of the second bucket for the key's if the tags agree (fault `clevel.tag_is_key`). The
//! published code never frees what an update replaces (`clevel.keep_old`), and after a restart frees what each thread
//! inserted last, which is live (`clevel.free_last`).

mod layout;
mod ops;
mod recover;
mod resize;

use farbank_pm::Medium;
use farbank_pm::fault::NamedFault;
use farbank_pm::sync::Mutex;
use farbank_pm::sync::atomic::{AtomicU64, Ordering};

use crate::index::{Index, IndexError, SpaceUse};
use crate::locks::LockTable;
use crate::pool_heap::{OpenError, PoolPlan, TablePool, TableWorker};
use layout::{LEVELS, Level, LevelsWord, META, PAIR_BYTES, level_root, value_of};

/// Its name.
pub const NAME: &str = "clevel";

/// Deviations it has by name.
pub(crate) const FAULTS: [NamedFault; 3] = [
    NamedFault {
        name: "clevel.tag_is_key",
        what: "a slot with the key's tag is taken for the key's",
        source: "the study's version",
        shows_in: None,
    },
    NamedFault {
        name: "clevel.keep_old",
        what: "an update does not free the pair it replaces",
        source: "the published code",
        shows_in: None,
    },
    NamedFault {
        name: "clevel.free_last",
        what: "recovery frees the pair each worker took last, linked or not",
        source: "the published code",
        shows_in: None,
    },
];

/// Most locks.
const STRIPE_BITS_MAX: u32 = 12;

/// How a table is arranged; fixed when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClevelConfig {
    /// Slots of a bucket: a power of two, at most a line.
    pub slots: u32,
    /// Buckets of the first top level, as a power of two; the bottom one has half of them.
    pub top_bits: u32,
    /// Bits of a key's hash in its slot, up to 16.
    pub tag_bits: u32,
    /// Whether searches wait for no writer, as the published code's, and show what is not durable yet.
    pub early_reads: bool,
}

impl ClevelConfig {
    /// The paper's buckets of eight, and as many as the study took for `slots`: 2^19 on top for 2^24.
    #[must_use]
    pub fn paper(slots: u64) -> ClevelConfig {
        ClevelConfig {
            slots: 8,
            top_bits: (slots / 32).max(4).ilog2(),
            tag_bits: 16,
            early_reads: false,
        }
    }

    /// Small enough that a dozen keys add a level, with tags that often agree.
    #[must_use]
    pub fn small() -> ClevelConfig {
        ClevelConfig {
            slots: 2,
            top_bits: 2,
            tag_bits: 3,
            early_reads: false,
        }
    }

    /// As published: searches that wait for nobody.
    #[must_use]
    pub fn published(self) -> ClevelConfig {
        ClevelConfig {
            early_reads: true,
            ..self
        }
    }
}

/// The table.
pub struct Clevel<M> {
    ground: TablePool<M>,
    config: ClevelConfig,
    /// The root's words for the levels, where readers look.
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
            ground,
            config,
        }
    }

    /// Makes an empty table of all of `medium`. Durable on `Ok`.
    pub fn create(
        medium: M,
        plan: &PoolPlan,
        config: ClevelConfig,
    ) -> Result<Clevel<M>, OpenError> {
        config.check()?;
        let ground = TablePool::create(medium, plan, &ClevelConfig::classes())?;
        let table = Clevel::over(ground, config);
        table.make_first()?;
        let Clevel { ground, .. } = table;
        let ground = ground.finish(NAME, &config.words())?;
        Ok(Clevel::over(ground, config))
    }

    /// Opens the table on `medium`, after a crash or not: what a crash left in doubt is settled first.
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

impl<M: Medium> Index for Clevel<M> {
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
        self.insert_hashed(worker, self.ground.hash(key), key, value)
    }

    fn get(&self, _worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError> {
        self.get_hashed(self.ground.hash(key), key)
    }

    fn update(
        &self,
        worker: &mut TableWorker,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        self.update_hashed(worker, self.ground.hash(key), key, value)
    }

    fn remove(&self, worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError> {
        self.remove_hashed(worker, self.ground.hash(key), key)
    }

    fn fetch(&self, keys: &[u64]) {
        self.fetch_hashed(keys);
    }

    fn each(
        &self,
        _worker: &mut TableWorker,
        each: &mut dyn FnMut(u64, u64),
    ) -> Result<(), IndexError> {
        let medium = self.ground.medium();
        self.each_taken(|_, slot, word| {
            let pair = self.pair_of(slot, word)?;
            each(medium.load(pair), medium.load(value_of(pair)));
            Ok(())
        })
    }

    fn space(&self, worker: &mut TableWorker) -> Result<SpaceUse, IndexError> {
        let keys = self.len(worker)?;
        let levels = self.meta().levels().map(|n| self.level(n));
        let buckets: u64 = levels.map(Level::buckets).sum();
        Ok(SpaceUse {
            keys,
            slots: buckets * u64::from(self.config.slots),
            table_bytes: buckets * self.config.bucket_bytes() + keys * PAIR_BYTES,
            far_bytes: self.ground.far_bytes(),
            dram_bytes: self.locks.bytes(),
        })
    }

    fn check(&self) -> Result<(), IndexError> {
        self.check_all()
    }
}
