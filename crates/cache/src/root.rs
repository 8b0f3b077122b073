//! The cache's words in the superblock.

use farbank_pm::pool::{PoolRoot as Words, ROOT_WORDS};
use farbank_store::clock::{Setback, Setbacks};

/// First word of the clock's setbacks.
const SETBACKS_AT: usize = 16;

/// Word that is 0 in the pools of other engines.
const MARK_AT: usize = ROOT_WORDS - 1;
/// Value that marks a pool as a cache.
const MARK: u64 = u64::from_le_bytes(*b"TAIR-MDB");

/// The cache's words of the superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheRoot {
    /// Smallest slot, in bytes.
    pub(crate) slot_bytes_min: u64,
    /// Growth factor of the slot classes, as the bits of a double.
    pub(crate) slot_factor: u64,
    /// Number of times the pool was opened.
    pub(crate) openings: u64,
    /// Whether the last close was clean: all data was durable, and synced on a medium that needs a sync.
    pub(crate) clean: bool,
    /// Boot id of the machine at the last open, or 0.
    pub(crate) boot: [u64; 2],
    /// Pages held in reserve, which the cache does not use.
    pub(crate) pages_held: u64,
    /// Setbacks of the clock.
    pub(crate) setbacks: Setbacks,
}

impl CacheRoot {
    /// Decodes the root words. Returns `None` if they are not those of a cache.
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

/// Summary of a cache's superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheHistory {
    /// Whether the last close was clean.
    pub closed_cleanly: bool,
    /// Number of times the pool was opened.
    pub opened: u64,
}

impl CacheHistory {
    /// Decodes the root words of a superblock. Returns `None` if they are of another engine.
    #[must_use]
    pub fn of(words: &Words) -> Option<CacheHistory> {
        CacheRoot::from_words(words).map(|root| CacheHistory {
            closed_cleanly: root.clean,
            opened: root.openings,
        })
    }
}
