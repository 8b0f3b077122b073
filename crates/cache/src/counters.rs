//! Counters of a cache outside its lists.

use farbank_pm::PersistCounters;
use farbank_pm::sync::atomic::{AtomicU64, Ordering};
use farbank_pm::sync::{Mutex, lock};

/// Counters of all sessions, since the pool was opened.
#[derive(Default)]
pub(crate) struct CacheCounters {
    /// Reads of items with a wrong checksum.
    damaged: AtomicU64,
    /// Expired or cleared items that were removed.
    reclaimed: AtomicU64,
    /// Bytes of items stored.
    stored_bytes: AtomicU64,
    /// Writes that a later write of the same batch replaced.
    merged_writes: AtomicU64,
    /// Bytes of items moved between pages.
    moved_bytes: AtomicU64,
    /// Pages that were returned to the pool.
    pages_freed: AtomicU64,
    /// Operations of sessions on the data medium.
    persistence: Mutex<PersistCounters>,
}

/// What a session has stored since it last added to the totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredCounts {
    /// Bytes of items stored.
    pub(crate) bytes: u64,
    /// Writes that a later write of the same batch replaced.
    pub(crate) merged_writes: u64,
}

/// The values of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CounterValues {
    pub(crate) damaged: u64,
    pub(crate) reclaimed: u64,
    pub(crate) stored_bytes: u64,
    pub(crate) merged_writes: u64,
    pub(crate) moved_bytes: u64,
    pub(crate) pages_freed: u64,
    pub(crate) persistence: PersistCounters,
}

impl CacheCounters {
    pub(crate) fn add_damaged(&self) {
        self.damaged.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_reclaimed(&self, items: u64) {
        self.reclaimed.fetch_add(items, Ordering::Relaxed);
    }

    pub(crate) fn add_moved_bytes(&self, bytes: u64) {
        self.moved_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_page_freed(&self) {
        self.pages_freed.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a session's counts since its last call: what it has stored, and `now` less `before` of the medium.
    pub(crate) fn add_session(
        &self,
        stored: StoredCounts,
        now: &PersistCounters,
        before: &PersistCounters,
    ) {
        self.stored_bytes.fetch_add(stored.bytes, Ordering::Relaxed);
        self.merged_writes
            .fetch_add(stored.merged_writes, Ordering::Relaxed);
        let mut all = lock(&self.persistence);
        *all += PersistCounters {
            lines: now.lines - before.lines,
            fences: now.fences - before.fences,
            bytes: now.bytes - before.bytes,
            syncs: now.syncs - before.syncs,
        };
    }

    pub(crate) fn pages_freed(&self) -> u64 {
        self.pages_freed.load(Ordering::Relaxed)
    }

    /// Returns the values of all counters.
    pub(crate) fn values(&self) -> CounterValues {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        CounterValues {
            damaged: load(&self.damaged),
            reclaimed: load(&self.reclaimed),
            stored_bytes: load(&self.stored_bytes),
            merged_writes: load(&self.merged_writes),
            moved_bytes: load(&self.moved_bytes),
            pages_freed: load(&self.pages_freed),
            persistence: *lock(&self.persistence),
        }
    }
}
