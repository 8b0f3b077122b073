//! Time and versions: the clock with which expiries are compared, and the numbers of writes.

use farbank_pm::sync::atomic::{AtomicU64, Ordering};
use farbank_pm::{Medium, PersistCtx, Poisoned};
use farbank_store::clock::{ClockShift, StoreClock};

use super::Engine;
use crate::areas::clock;

/// The clock and the newest version of a cache.
pub(super) struct CacheTime {
    clock: StoreClock,
    version: AtomicU64,
}

impl CacheTime {
    /// Creates a time whose versions start after `version`.
    pub(super) fn new(clock: StoreClock, version: u64) -> CacheTime {
        CacheTime {
            clock,
            version: AtomicU64::new(version),
        }
    }

    /// Returns the time since the pool was opened, in milliseconds.
    pub(super) fn uptime_ms(&self) -> u64 {
        self.clock.uptime_ms()
    }
}

impl<N: Medium, F: Medium> Engine<N, F> {
    pub(crate) fn now_ms(&self) -> u64 {
        self.time.clock.now_ms()
    }

    /// Returns whether an item of `version` that expires at `expires_ms` has expired.
    #[inline]
    pub(crate) fn is_expired(&self, expires_ms: u64, version: u64) -> bool {
        self.time.clock.has_expired(expires_ms, version, || ())
    }

    pub(crate) fn next_version(&self) -> u64 {
        self.time.version.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Returns the newest version.
    pub(crate) fn newest_version(&self) -> u64 {
        self.time.version.load(Ordering::Relaxed)
    }

    /// Makes new versions greater than `version`, which recovery has found.
    pub(crate) fn note_version(&self, version: u64) {
        self.time.version.fetch_max(version, Ordering::Relaxed);
    }

    /// Records the clock durably, so that expired items stay expired if the machine's clock is set back.
    pub(crate) fn keep_time(&self, ctx: &mut PersistCtx) -> Result<(), Poisoned> {
        let clock = &self.time.clock;
        clock.act_on_time();
        clock.record(|now_ms| self.write_clock(ctx, now_ms))
    }

    fn write_clock(&self, ctx: &mut PersistCtx, now_ms: u64) -> Result<(), Poisoned> {
        let entry = clock(self.areas.entries());
        self.data.store_clock(ctx, entry, now_ms);
        self.data.drain(ctx)
    }

    /// Follows the wall clock if it has differed from the cache's clock for long enough.
    pub(crate) fn follow_clock(&self, ctx: &mut PersistCtx) -> Result<(), Poisoned> {
        match self.time.clock.shift() {
            None => {}
            Some(ClockShift::Ahead) => self.time.clock.set_ahead(),
            Some(ClockShift::Behind) => self.set_clock_back(ctx)?,
        }
        Ok(())
    }

    /// Sets the clock back to the wall clock, if that is behind. The setback is durable before the recorded clock is
    /// reduced.
    pub(crate) fn set_clock_back(&self, ctx: &mut PersistCtx) -> Result<(), Poisoned> {
        let version = self.next_version();
        let done = self.time.clock.set_back(version, |setbacks, now_ms| {
            self.data
                .update_root(ctx, |root| root.setbacks = *setbacks)?;
            self.write_clock(ctx, now_ms)
        });
        done.map(|_| ())
    }
}
