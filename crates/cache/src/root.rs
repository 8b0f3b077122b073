//! What the superblock keeps for a cache.

use farbank_kv::clock::{Setback, Setbacks};
use farbank_pm::pool::{PoolRoot as Words, ROOT_WORDS};

/// First word of the setbacks of the clock.
const SETBACKS_AT: usize = 16;

/// Where other engines' pools have 0.
const MARK_AT: usize = ROOT_WORDS - 1;
/// Says that a pool is a cache.
const MARK: u64 = u64::from_le_bytes(*b"TAIR-MDB");

/// The cache's words of the superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheRoot {
    /// Smallest slot, in bytes.
    pub(crate) slot_bytes_min: u64,
    /// How classes grow: the bits of a double.
    pub(crate) slot_factor: u64,
    /// How many times the pool was opened.
    pub(crate) openings: u64,
    /// Whether the last close was clean: all was durable, and on a medium that dies with the machine, synced.
    pub(crate) clean: bool,
    /// The start of the machine it was opened under last.
    pub(crate) boot: [u64; 2],
    /// Pages held back.
    pub(crate) pages_held: u64,
    /// How the clock was set back.
    pub(crate) setbacks: Setbacks,
}

impl CacheRoot {
    /// `None`: not the words of a cache.
    pub(crate) fn from_words(words: &Words) -> Option<CacheRoot> {
        (words[MARK_AT] == MARK).then(|| CacheRoot {
            slot_bytes_min: words[0],
            slot_factor: words[1],
            openings: words[2],
            clean: words[3] == 1,
            boot: [words[4], words[5]],
            pages_held: words[6],
            setbacks: std::array::from_fn(|number| Setback {
                clock_ms: words[SETBACKS_AT + 2 * number],
                version_max: words[SETBACKS_AT + 2 * number + 1],
            }),
        })
    }

    pub(crate) fn to_words(self) -> Words {
        let mut words = [0; ROOT_WORDS];
        let own = [
            self.slot_bytes_min,
            self.slot_factor,
            self.openings,
            u64::from(self.clean),
            self.boot[0],
            self.boot[1],
            self.pages_held,
        ];
        words[..own.len()].copy_from_slice(&own);
        for (number, setback) in self.setbacks.iter().enumerate() {
            words[SETBACKS_AT + 2 * number] = setback.clock_ms;
            words[SETBACKS_AT + 2 * number + 1] = setback.version_max;
        }
        words[MARK_AT] = MARK;
        words
    }
}

/// What the superblock of a cache's pool says, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheHistory {
    /// Whether the last close was clean.
    pub closed_cleanly: bool,
    /// How many times the pool was opened.
    pub opened: u64,
}

impl CacheHistory {
    /// Reads the engine's words of a superblock; `None`: another engine's.
    #[must_use]
    pub fn of(words: &Words) -> Option<CacheHistory> {
        CacheRoot::from_words(words).map(|root| CacheHistory {
            closed_cleanly: root.clean,
            opened: root.openings,
        })
    }
}
