//! When keys were last used, and whether they were read since they were written.
//!
//! Meta commands tell both of an item, and no store keeps them: writing something with every read is
//! what far memory is worst at. So they are in one table in DRAM of a fixed size, one word a key, at
//! the place its hash says. A key that was used recently is found; one whose place another has taken since
//! counts as not read, and as last used when the server started. Nothing else depends on it.
//!
//! ```text
//!   tag: hash's high 31 bits | read: 1 | seconds of the server's clock: 32
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use xxhash_rust::xxh3::xxh3_64;

/// Keys there is room for: half a megabyte of words, which stays in a processor's cache.
const KEYS: usize = 1 << 16;
const READ: u64 = 1 << 32;
const TAG: u64 = !(READ | u32::MAX as u64);

pub(crate) struct AccessTimes(Box<[AtomicU64]>);

/// What is known of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct KeyAccess {
    /// When it was last used, in seconds of the server's clock.
    pub(crate) secs: u64,
    /// Whether it was read since it was written.
    pub(crate) read: bool,
}

impl AccessTimes {
    /// A table, or the place of one if nobody will use it.
    pub(crate) fn new(used: bool) -> AccessTimes {
        let len = if used { KEYS } else { 1 };
        AccessTimes((0..len).map(|_| AtomicU64::new(0)).collect())
    }

    /// Notes a use of `key`.
    #[inline]
    pub(crate) fn note(&self, key: &[u8], used: KeyAccess) {
        let hash = xxh3_64(key);
        let read = if used.read { READ } else { 0 };
        self.slot(hash).store(
            hash & TAG | read | used.secs & u64::from(u32::MAX),
            Ordering::Relaxed,
        );
    }

    /// The last use of `key`, if it is still known.
    pub(crate) fn of(&self, key: &[u8]) -> KeyAccess {
        let hash = xxh3_64(key);
        let word = self.slot(hash).load(Ordering::Relaxed);
        if word & TAG != hash & TAG {
            return KeyAccess::default();
        }
        KeyAccess {
            secs: word & u64::from(u32::MAX),
            read: word & READ != 0,
        }
    }

    #[inline]
    fn slot(&self, hash: u64) -> &AtomicU64 {
        &self.0[hash as usize & (self.0.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_uses_are_known_exactly_and_lost_ones_are_told_as_never() {
        let recency = AccessTimes::new(true);
        let used = |secs, read| KeyAccess { secs, read };
        assert_eq!(recency.of(b"a"), KeyAccess::default());
        recency.note(b"a", used(7, false));
        recency.note(b"b", used(9, true));
        assert_eq!(recency.of(b"a"), used(7, false));
        assert_eq!(recency.of(b"b"), used(9, true));
        let crowded = AccessTimes::new(false);
        crowded.note(b"a", used(7, true));
        crowded.note(b"b", used(8, true));
        assert_eq!(crowded.of(b"a"), KeyAccess::default());
        assert_eq!(crowded.of(b"b"), used(8, true));
    }
}
