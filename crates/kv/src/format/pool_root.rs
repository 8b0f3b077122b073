//! The engine's words in the superblock. They are read at an open, and always written all together.

use farbank_pm::pool::{PoolRoot, ROOT_WORDS};

use crate::format::record::SEQ_MAX;
use farbank_store::DatabaseMap;
use farbank_store::clock::{Setback, Setbacks};

/// Index of the word with the mapping of the databases' numbers.
const DATABASES_AT: usize = 8;
/// Index of the first word with setbacks of the clock.
const SETBACKS_AT: usize = 16;

/// Facts about a pool's past, from the engine's words in its superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolHistory {
    /// Whether the last close was clean. Then the next open reads the index snapshot instead of the log.
    pub closed_cleanly: bool,
    /// Whether there is a checkpoint of the index. After a crash, the next open reads it and the records after it
    /// instead of all records.
    pub has_checkpoint: bool,
    /// How many times the pool was opened.
    pub opened: u64,
    /// The databases' numbers in the records.
    pub databases: DatabaseMap,
}

impl PoolHistory {
    /// Reads the words of [`farbank_pm::pool::PoolSummary::root`].
    #[must_use]
    pub fn of(root: &PoolRoot) -> PoolHistory {
        let words = RootWords::from_root(root);
        PoolHistory {
            closed_cleanly: words.snapshot != 0,
            has_checkpoint: words.checkpoint != 0,
            opened: words.open_epoch,
            databases: words.databases,
        }
    }

    /// Whether the words belong to another engine. This engine leaves the last word 0.
    pub(crate) fn is_foreign(root: &PoolRoot) -> bool {
        root[ROOT_WORDS - 1] != 0
    }

    /// Returns the word with the mapping of the databases' numbers, if it is none.
    pub(crate) fn wrong_database_map(root: &PoolRoot) -> Option<u64> {
        let word = root[DATABASES_AT];
        DatabaseMap::from_word(word).is_none().then_some(word)
    }
}

/// The engine's words of the superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RootWords {
    /// First snapshot segment plus one, if the last close was clean; 0 otherwise.
    pub snapshot: u64,
    /// Generation of the first snapshot segment.
    pub snapshot_generation: u64,
    /// Highest sequence number that FLUSHALL has deleted. Records up to this number are dead.
    pub flushed_seq: u64,
    /// Latest time at which an expiry was applied since the clock was last set back, in milliseconds since 1970.
    pub clock_ms: u64,
    /// The open epoch: how many times the pool was opened.
    pub open_epoch: u64,
    /// Number of initialised segments, from the first on: both ends of each of them were durable.
    pub segments_initialised: u64,
    /// First segment plus one of the checkpoint of the index; 0: there is none.
    pub checkpoint: u64,
    /// Generation of the checkpoint's first segment.
    pub checkpoint_generation: u64,
    /// The mapping of the databases' numbers.
    pub databases: DatabaseMap,
    /// Setbacks of the clock.
    pub setbacks: Setbacks,
}

impl RootWords {
    pub(crate) fn from_root(root: &PoolRoot) -> RootWords {
        let setback = |number: usize| Setback {
            clock_ms: root[SETBACKS_AT + 2 * number],
            version_max: root[SETBACKS_AT + 2 * number + 1].min(SEQ_MAX),
        };
        RootWords {
            setbacks: std::array::from_fn(setback),
            snapshot: root[0],
            snapshot_generation: root[1],
            flushed_seq: root[2].min(SEQ_MAX),
            clock_ms: root[3],
            open_epoch: root[4],
            segments_initialised: root[5],
            checkpoint: root[6],
            checkpoint_generation: root[7],
            // An open has refused a pool with a wrong word.
            databases: DatabaseMap::from_word(root[DATABASES_AT]).unwrap_or_default(),
        }
    }

    pub(crate) fn to_root(self) -> PoolRoot {
        let mut root = [0; ROOT_WORDS];
        root[0] = self.snapshot;
        root[1] = self.snapshot_generation;
        root[2] = self.flushed_seq;
        root[3] = self.clock_ms;
        root[4] = self.open_epoch;
        root[5] = self.segments_initialised;
        root[6] = self.checkpoint;
        root[7] = self.checkpoint_generation;
        root[DATABASES_AT] = self.databases.to_word();
        for (number, setback) in self.setbacks.iter().enumerate() {
            root[SETBACKS_AT + 2 * number] = setback.clock_ms;
            root[SETBACKS_AT + 2 * number + 1] = setback.version_max;
        }
        root
    }
}
