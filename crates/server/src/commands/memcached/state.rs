//! State of memcached's protocol that all connections share and that is not in the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farbank_store::Session;

use super::credentials::MemcachedCredentials;
use super::prefixes::PrefixStats;
use super::recency::AccessTimes;

/// State of memcached's protocol that all connections share and that is not in the store.
pub(crate) struct MemcachedState {
    pub(super) recency: AccessTimes,
    pub(super) prefixes: PrefixStats,
    /// The credentials that clients must give; `None` without an auth file.
    credentials: Option<Arc<MemcachedCredentials>>,
    /// Time of a delayed `flush_all`, in milliseconds since 1970; 0 if none is pending.
    flush_ms: AtomicU64,
    /// Time of the last flush, in seconds of the server's clock, plus one; 0 if there was none.
    flushed_secs: AtomicU64,
}

impl MemcachedState {
    /// Creates the state; `spoken`: an endpoint of the server has memcached's protocol. Clients must give `credentials`, if
    /// there are any.
    pub(crate) fn new(
        spoken: bool,
        credentials: Option<Arc<MemcachedCredentials>>,
    ) -> MemcachedState {
        MemcachedState {
            recency: AccessTimes::new(spoken),
            prefixes: PrefixStats::default(),
            credentials,
            flush_ms: AtomicU64::new(0),
            flushed_secs: AtomicU64::new(0),
        }
    }

    /// The credentials that clients must give; `None` without an auth file.
    #[inline]
    pub(crate) fn credentials(&self) -> Option<&MemcachedCredentials> {
        self.credentials.as_deref()
    }

    /// Schedules a flush, in place of a pending one; 0 cancels it.
    pub(super) fn flush_at(&self, at_ms: u64) {
        self.flush_ms.store(at_ms, Ordering::Relaxed);
    }

    /// Records a flush in this second of the server's clock.
    pub(crate) fn note_flush(&self, now_secs: u64) {
        self.flushed_secs.store(now_secs + 1, Ordering::Relaxed);
    }

    /// Whether the last flush was in this second.
    pub(super) fn was_flushed_at(&self, now_secs: u64) -> bool {
        self.flushed_secs.load(Ordering::Relaxed) == now_secs + 1
    }

    /// Whether a delayed flush is due. Returns `true` to one caller only.
    pub(crate) fn flush_is_due(&self, session: &dyn Session) -> bool {
        let at = self.flush_ms.load(Ordering::Relaxed);
        at != 0
            && session.now_ms() >= at
            && self
                .flush_ms
                .compare_exchange(at, 0, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}
