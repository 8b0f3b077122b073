//! CCEH: cacheline-conscious extendible hashing (Nam et al., FAST '19).
//!
//! A directory of 2^G offsets leads to segments of 16 KiB. A segment has 256 buckets of one line with four slots each.
//! The low hash bits select a key's home bucket; the key is stored there or in one of the three following lines.
//!
//! ```text
//!   directory (a run)     segment (a block)                          bucket (one line)
//!   ┌────┬────┬────┬────┐  ┌────────┬────────┬────────┬─ ... ─┐       ┌───────┬───────┬───────┬───────┐
//!   │ 00 │ 01 │ 10 │ 11 │─▶│ header │bucket 0│bucket 1│       │       │key│val│key│val│key│val│key│val│
//!   └────┴────┴────┴────┘  └────────┴────────┴────────┴─ ... ─┘       └───────┴───────┴───────┴───────┘
//!     top G bits            depth L | prefix    low 8 bits, then up to 3 lines on
//! ```
//!
//! A segment without a free slot for a key is split by its next hash bit. The keys whose bit is 1 are copied into a new
//! segment. Their old copies stay in the old segment, dead by their hash, until other keys overwrite them. The
//! directory doubles only when the segment's depth equals the directory's depth.
//!
//! # Invariants
//! IX-CCEH-1  A slot is live iff its key is not `EMPTY` and the top L bits of the key's hash are the segment's prefix.
//! IX-CCEH-2  A slot's value is stored before its key, in the same line: a crash that keeps the key keeps the value.
//! IX-CCEH-3  The directory satisfies IX-EXT-1 to IX-EXT-4 of extendible hashing.
//! IX-CCEH-4  A segment is changed under its lock in DRAM, which is released when the change is durable. Readers see no
//!     volatile data.
//!
//! # Crash argument
//! | crash between               | recovery sees                             | and does                           |
//! |-----------------------------|-------------------------------------------|------------------------------------|
//! | value stored, key stored    | an empty or dead key                      | nothing: the slot is free (IX-CCEH-1, IX-CCEH-2) |
//! | parts of a split            | see the table of `extendible`             | see there                          |
//! | (a kill) store, drain       | visible bytes that are not durable        | makes them durable at first access |
//!
//! The paper scans the whole directory to find an interrupted split. Here the allocator's intents name it.
//!
//! # Deviations from the paper
//! * Locks are in DRAM. The paper's are in the segment, and every search dirties it; [`CcehConfig::far_locks`] imitates
//!   this traffic, without relying on it.
//! * An insert checks whether the key exists. The published code does not, and stores it twice.
//! * A dead thread leaves no marks. The published code marks slots as being written in far memory (Witcher #25).
//! * The directory is published before the old segment's depth. The published code uses the opposite order and can lose
//!   half of a segment (Witcher #24, fault `cceh.depth_first`).
//! * An insert flushes the line that holds the pair. The published code flushes the home bucket's line in all cases
//!   (fault `cceh.home_line`).

mod check;
mod layout;
mod ops;
mod recover;
mod resize;

use farbank_pm::Medium;
use farbank_pm::fault::NamedFault;

use crate::error::{IndexError, OpenError};
use crate::extendible::ExtendibleDirectory;
use crate::index::SpaceUse;
use crate::locks::{EARLY_READS, LockTable};
use crate::pool_heap::{PoolPlan, TablePool, TableWorker};
use crate::reserved_key::{HashTable, ReservedKey};
use layout::EMPTY;

/// The table's name on the command line.
pub const NAME: &str = "cceh";

/// Faults of this table.
pub(crate) const FAULTS: [NamedFault; 3] = [
    EARLY_READS,
    NamedFault {
        name: "cceh.depth_first",
        description: "a split segment's depth is changed before the directory names the new segment",
        source: "the published code (Witcher #24)",
        shows_in: None,
    },
    NamedFault {
        name: "cceh.home_line",
        description: "an insert flushes the line of the home bucket, wherever the pair is",
        source: "the published benchmark's version of the code",
        shows_in: None,
    },
];

/// Configuration of a table, fixed at its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CcehConfig {
    /// Binary logarithm of the buckets of a segment.
    pub bucket_bits: u32,
    /// Number of lines probed for a key.
    pub probe_lines: u32,
    /// Depth of the first directory: 2^depth segments.
    pub depth: u32,
    /// Whether every operation also writes a lock word in its segment, as in the published code.
    pub far_locks: bool,
    /// Whether searches do not wait for inserts and deletes and can return data that is not durable. In the published
    /// code, searches share the segment's lock with them.
    pub early_reads: bool,
}

impl CcehConfig {
    /// Returns the paper's configuration: 256 buckets, 4 probed lines, and segments for `slots` slots, rounded down to
    /// a power of two.
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

    /// Returns a configuration so small that a dozen keys split segments and double the directory.
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

    /// Returns the published variant: lock words in far memory, and searches that do not wait for writers.
    #[must_use]
    pub fn published(self) -> CcehConfig {
        CcehConfig {
            far_locks: true,
            early_reads: true,
            ..self
        }
    }
}

/// A CCEH table.
pub struct Cceh<M> {
    table_pool: TablePool<M>,
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
            table_pool: ground,
            config,
        }
    }

    /// Creates an empty table that uses all of `medium`. Durable on `Ok`.
    pub fn create(medium: M, plan: &PoolPlan, config: CcehConfig) -> Result<Cceh<M>, OpenError> {
        config.check()?;
        let ground = TablePool::create(medium, plan, &config.classes())?;
        let table = Cceh::over(ground, config, false);
        table.make_first()?;
        let Cceh {
            table_pool: ground, ..
        } = table;
        let ground = ground.finish(NAME, &config.words())?;
        Ok(Cceh::over(ground, config, false))
    }

    /// Opens the table on `medium`. Recovery completes interrupted splits first.
    pub fn open(medium: M) -> Result<Cceh<M>, OpenError> {
        let ground = TablePool::open(medium, NAME, |words| {
            Ok(CcehConfig::of(words)?.classes().to_vec())
        })?;
        let config = CcehConfig::of(ground.config())?;
        let table = Cceh::over(ground, config, true);
        ReservedKey::of(&table.table_pool).check()?;
        table.recover()?;
        Ok(table)
    }
}

impl<M: Medium> HashTable for Cceh<M> {
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
        self.directory
            .each_segment(&self.table_pool, |segment, hash| {
                self.locks.begin(segment, || {
                    self.persist_on_first_access(worker, segment, hash)
                })?;
                self.each_live(segment, |_, key, value| each(key, value));
                Ok(())
            })
    }

    fn space_for(&self, keys: u64) -> Result<SpaceUse, IndexError> {
        let mut segments = 0;
        self.directory.each_segment(&self.table_pool, |_, _| {
            segments += 1;
            Ok(())
        })?;
        Ok(SpaceUse {
            keys,
            slots: segments * self.config.slots(),
            table_bytes: segments * self.config.segment_bytes()
                + self.directory.directory().bytes(),
            far_bytes: self.table_pool.far_bytes(),
            dram_bytes: self.locks.bytes(),
        })
    }

    fn check_table(&self) -> Result<(), IndexError> {
        self.check_all()
    }
}
