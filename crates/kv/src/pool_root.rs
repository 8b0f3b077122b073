//! What the superblock keeps for the engine: words that are read at open and replaced whole.

use farbank_pm::pool::{PoolRoot, ROOT_WORDS};

use crate::clock::{Setback, Setbacks};
use crate::record::SEQ_MAX;

/// First word of the setbacks of the clock.
const SETBACKS_AT: usize = 16;

/// What the engine's words of a superblock say, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolHistory {
    /// Whether the last close was clean: the next open reads a snapshot, not the log.
    pub closed_cleanly: bool,
    /// How many times the pool was opened.
    pub opened: u64,
}

impl PoolHistory {
    /// Reads the words of [`farbank_pm::pool::Summary::root`].
    #[must_use]
    pub fn of(root: &PoolRoot) -> PoolHistory {
        let words = RootWords::from_root(root);
        PoolHistory {
            closed_cleanly: words.snapshot != 0,
            opened: words.boot,
        }
    }

    /// Whether they are another engine's: this one leaves the last word 0.
    pub(crate) fn is_foreign(root: &PoolRoot) -> bool {
        root[ROOT_WORDS - 1] != 0
    }
}

/// The engine's words of the superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RootWords {
    /// First snapshot segment plus one, if the last close was clean; 0 otherwise.
    pub snapshot: u64,
    /// Its generation.
    pub snapshot_generation: u64,
    /// Records with sequence numbers up to this were flushed.
    pub floor: u64,
    /// No clock that was acted on was later than this.
    pub clock_ms: u64,
    /// How many times the pool was opened.
    pub boot: u64,
    /// So many segments, from the first on, have been born: both ends of each were durable.
    pub born: u64,
    /// How the clock was set back.
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
            floor: root[2].min(SEQ_MAX),
            clock_ms: root[3],
            boot: root[4],
            born: root[5],
        }
    }

    pub(crate) fn to_root(self) -> PoolRoot {
        let mut root = [0; ROOT_WORDS];
        root[0] = self.snapshot;
        root[1] = self.snapshot_generation;
        root[2] = self.floor;
        root[3] = self.clock_ms;
        root[4] = self.boot;
        root[5] = self.born;
        for (number, setback) in self.setbacks.iter().enumerate() {
            root[SETBACKS_AT + 2 * number] = setback.clock_ms;
            root[SETBACKS_AT + 2 * number + 1] = setback.version_max;
        }
        root
    }
}
