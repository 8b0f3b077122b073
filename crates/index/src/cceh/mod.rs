//! CCEH: cacheline-conscious extendible hashing (Nam et al., FAST '19).
//!
//! A directory of 2^G offsets leads to segments of 16 KiB; a segment is 256 buckets of one line, four slots each. A
//! key goes to the bucket its low hash bits name, or to one of the three lines after it.
//!
//! ```text
//!   directory (a run)     segment (a block)                          bucket (one line)
//!   ┌────┬────┬────┬────┐  ┌────────┬────────┬────────┬─ ... ─┐       ┌───────┬───────┬───────┬───────┐
//!   │ 00 │ 01 │ 10 │ 11 │─▶│ header │bucket 0│bucket 1│       │       │key│val│key│val│key│val│key│val│
//!   └────┴────┴────┴────┘  └────────┴────────┴────────┴─ ... ─┘       └───────┴───────┴───────┴───────┘
//!     top G bits            depth L | prefix    low 8 bits, then up to 3 lines on
//! ```
//!
//! A segment that has no slot for a key is split by its next hash bit: the keys whose bit is 1 are copied into a new
//! one, and stay behind where they were, dead by their hash, until others need the slots. Only when the segment's
//! depth is the directory's does that double.
//!
//! # Invariants
//! I1  A slot is live iff its key is not `EMPTY` and the top L bits of the key's hash are the segment's prefix.
//! I2  A slot's value is stored before its key, in the same line: a crash that keeps the key keeps the value.
//! I3  The directory keeps D1 to D4 of extendible hashing.
//! I4  A segment is changed under its lock in DRAM, which is let go when the change is durable: nothing visible is
//!     volatile.
//!
//! # Crash argument
//! | crash between               | recovery sees                             | and does                           |
//! |-----------------------------|-------------------------------------------|------------------------------------|
//! | value stored, key stored    | an empty or dead key                      | nothing: the slot is free (I1, I2) |
//! | parts of a split            | what `extendible` lists                   | and does there                     |
//! | (a kill) store, drain       | bytes that a power cut could take back    | makes them durable at first touch  |
//!
//! The paper walks the whole directory to find a split that was cut short. Here the allocator's intents name it.
//!
//! # Where we differ from the paper
//! Locks live in DRAM; the paper's are in the segment and dirty it at every search ([`Config::far_locks`] does that,
//! without relying on it). Keys are checked for being there already; the published code reports nothing and stores them
//! twice. Nothing is left behind by a thread that died: the published code marks slots as being written in far
//! memory (Witcher #25). The directory is published before the elder's depth; the published code does it the other way and
//! can lose half of a segment (Witcher #24, fault `cceh.depth_first`). Its flush after an insert is of the home bucket's line,
//! whichever line the pair is in (fault `cceh.home_line`).

mod layout;
mod ops;
mod recover;
mod resize;

use farbank_pm::Medium;
use farbank_pm::fault::NamedFault;

use crate::extendible::ExtendibleDirectory;
use crate::index::{Index, IndexError, SpaceUse};
use crate::locks::{EARLY_READS, LockTable};
use crate::pool_heap::{OpenError, PoolPlan, TablePool, TableWorker};
use crate::reserved_key::ReservedKey;
use layout::EMPTY;

/// Its name.
pub const NAME: &str = "cceh";

/// Deviations it has by name.
pub(crate) const FAULTS: [NamedFault; 3] = [
    EARLY_READS,
    NamedFault {
        name: "cceh.depth_first",
        what: "a split segment's depth is changed before the directory names the new one",
        source: "the published code (Witcher #24)",
        shows_in: None,
    },
    NamedFault {
        name: "cceh.home_line",
        what: "an insert flushes the line of the home bucket, wherever the pair is",
        source: "the study's version of the published code",
        shows_in: None,
    },
];

/// How a table is arranged; fixed when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CcehConfig {
    /// Buckets of a segment, as a power of two.
    pub bucket_bits: u32,
    /// Lines that are looked at for a key.
    pub probe_lines: u32,
    /// Depth of the first directory: 2^depth segments.
    pub depth: u32,
    /// Whether every operation also writes a lock word in its segment, as the published code does.
    pub far_locks: bool,
    /// Whether searches wait for no insert or delete, as the published code's, which share the segment's lock with them, and
    /// show what is not durable yet.
    pub early_reads: bool,
}

impl CcehConfig {
    /// The paper's: 256 buckets, 4 lines; as many segments as `slots` take, a power of two.
    #[must_use]
    pub fn paper(slots: u64) -> CcehConfig {
        let segments = (slots / 1024).max(2);
        CcehConfig {
            bucket_bits: 8,
            probe_lines: 4,
            depth: segments.ilog2(),
            far_locks: false,
            early_reads: false,
        }
    }

    /// Small enough that a dozen keys split segments and double the directory.
    #[must_use]
    pub fn small() -> CcehConfig {
        CcehConfig {
            bucket_bits: 1,
            probe_lines: 2,
            depth: 1,
            far_locks: false,
            early_reads: false,
        }
    }

    /// As published: locks in far memory, searches that wait for no writer.
    #[must_use]
    pub fn published(self) -> CcehConfig {
        CcehConfig {
            far_locks: true,
            early_reads: true,
            ..self
        }
    }
}

/// The table.
pub struct Cceh<M> {
    ground: TablePool<M>,
    config: CcehConfig,
    directory: ExtendibleDirectory,
    locks: LockTable,
}

impl<M: Medium> Cceh<M> {
    fn over(ground: TablePool<M>, config: CcehConfig, found: bool) -> Cceh<M> {
        Cceh {
            locks: ground
                .locks(config.segment_bytes(), found)
                .read_early(config.early_reads),
            directory: ExtendibleDirectory::of(&ground, config.segment_bytes()),
            ground,
            config,
        }
    }

    /// Makes an empty table of all of `medium`. Durable on `Ok`.
    pub fn create(medium: M, plan: &PoolPlan, config: CcehConfig) -> Result<Cceh<M>, OpenError> {
        config.check()?;
        let ground = TablePool::create(medium, plan, &config.classes())?;
        let table = Cceh::over(ground, config, false);
        table.make_first()?;
        let Cceh { ground, .. } = table;
        let ground = ground.finish(NAME, &config.words())?;
        Ok(Cceh::over(ground, config, false))
    }

    /// Opens the table on `medium`, after a crash or not: what a crash cut short is ended first.
    pub fn open(medium: M) -> Result<Cceh<M>, OpenError> {
        let ground = TablePool::open(medium, NAME, |words| {
            Ok(CcehConfig::of(words)?.classes().to_vec())
        })?;
        let config = CcehConfig::of(ground.config())?;
        let table = Cceh::over(ground, config, true);
        ReservedKey::of(&table.ground).check()?;
        table.directory.recover(&table.ground)?;
        Ok(table)
    }
}

impl<M: Medium> Index for Cceh<M> {
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
        self.directory.each_segment(&self.ground, |segment, hash| {
            self.locks.begin(segment, || {
                self.persist_on_first_access(worker, segment, hash)
            })?;
            self.each_live(segment, |_, key, value| each(key, value));
            Ok(())
        })
    }

    fn space(&self, worker: &mut TableWorker) -> Result<SpaceUse, IndexError> {
        let (mut segments, keys) = (0, self.len(worker)?);
        self.directory.each_segment(&self.ground, |_, _| {
            segments += 1;
            Ok(())
        })?;
        Ok(SpaceUse {
            keys,
            slots: segments * self.config.slots(),
            table_bytes: segments * self.config.segment_bytes()
                + self.directory.directory().bytes(),
            far_bytes: self.ground.far_bytes(),
            dram_bytes: self.locks.bytes(),
        })
    }

    fn check(&self) -> Result<(), IndexError> {
        self.check_all()
    }
}
