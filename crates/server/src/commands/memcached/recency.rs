//! Times of keys' last uses, and whether keys were read since they were written.
//!
//! Meta commands report both. The store does not keep them, because a write to far memory with every read would be
//! expensive. They are in a table of fixed size in DRAM with one word per key, indexed by the key's hash. A key whose
//! word another key has overwritten counts as not read, and as last used when the server started. Only replies of meta
//! commands depend on the table.
//!
//! ```text
//!   tag: hash's high 31 bits | read: 1 | seconds of the server's clock: 32
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use xxhash_rust::xxh3::xxh3_64;

/// Words in the table: half a megabyte, which stays in a CPU's cache.
const KEYS: usize = 1 << 16;
const READ: u64 = 1 << 32;
const TAG: u64 = !(READ | u32::MAX as u64);

pub(crate) struct AccessTimes(Box<[AtomicU64]>);

/// Last use of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct KeyAccess {
    /// When it was last used, in seconds of the server's clock.
    pub(crate) secs: u64,
    /// Whether it was read since it was written.
    pub(crate) read: bool,
}

impl AccessTimes {
    /// Creates a table; one of a single word if it will not be used.
    pub(crate) fn new(used: bool) -> AccessTimes {
        let len = if used { KEYS } else { 1 };
        AccessTimes((0..len).map(|_| AtomicU64::new(0)).collect())
    }

    /// Records a use of `key`.
    #[inline]
    pub(crate) fn note(&self, key: &[u8], used: KeyAccess) {
        let hash = xxh3_64(key);
        let read = if used.read { READ } else { 0 };
        self.slot(hash).store(
            hash & TAG | read | used.secs & u64::from(u32::MAX),
            Ordering::Relaxed,
        );
    }

    /// The last use of `key`; the default if the table no longer has it.
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
    fn a_recent_use_is_exact_and_an_overwritten_one_is_the_default() {
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
