//! Growth of the pool: how far it may grow, and why the last attempt failed.

use std::sync::OnceLock;
use std::thread::Thread;

use farbank_pm::sync::atomic::{AtomicU64, Ordering};
use farbank_pm::sync::{Mutex, MutexGuard, lock};
use farbank_pm::{Medium, PersistCtx, situation};

use super::Engine;
use crate::config::PageFormatting;

/// Number of free pages below which the background thread grows the pool, before a session needs a page.
const PAGES_AHEAD: usize = 8;
/// Time before growth is tried again after a failure.
const GROWTH_PAUSE_MS: u64 = 10_000;

/// Growth of a pool.
pub(super) struct PoolGrowth {
    /// Maximum number of segments of the pool.
    segments_max: u32,
    formatting: PageFormatting,
    one_at_a_time: Mutex<()>,
    /// Uptime in milliseconds before which growth is not tried again after a failure.
    resumes_ms: AtomicU64,
    /// Error of the last growth, if it failed.
    error: Mutex<Option<std::sync::Arc<str>>>,
    /// Background thread, which grows the pool before its pages are used up.
    grower: OnceLock<Thread>,
}

impl PoolGrowth {
    pub(super) fn new(segments_max: u32, formatting: PageFormatting) -> PoolGrowth {
        PoolGrowth {
            segments_max,
            formatting,
            one_at_a_time: Mutex::default(),
            resumes_ms: AtomicU64::new(0),
            error: Mutex::default(),
            grower: OnceLock::new(),
        }
    }

    fn note(&self, error: Option<std::sync::Arc<str>>) {
        *lock(&self.error) = error;
    }
}

impl<N: Medium, F: Medium> Engine<N, F> {
    /// Returns when new pages are formatted.
    pub(crate) fn formatting(&self) -> PageFormatting {
        self.growth.formatting
    }

    /// Sets the background thread, which grows the pool before its pages are used up.
    pub(crate) fn set_grower(&self, thread: Thread) {
        let _first = self.growth.grower.set(thread);
    }

    /// Wakes the background thread to grow the pool, if few pages are free and the pool may grow.
    pub(crate) fn wake_for_growth(&self, free_pages: usize) {
        if free_pages < PAGES_AHEAD && self.data.pool().segments() < self.growth.segments_max {
            let grower = self.growth.grower.get();
            grower.inspect(|grower| grower.unpark());
        }
    }

    /// Returns whether so few pages are free that the pool should grow.
    pub(crate) fn is_growth_near(&self) -> bool {
        self.lock().free_pages() < PAGES_AHEAD
    }

    /// Prevents growth of the pool while the guard exists.
    pub(crate) fn lock_growth(&self) -> MutexGuard<'_, ()> {
        lock(&self.growth.one_at_a_time)
    }

    /// Error of the last growth, if it failed.
    pub(crate) fn growth_error(&self) -> Option<std::sync::Arc<str>> {
        lock(&self.growth.error).clone()
    }

    /// Grows the pool by one step, if it may grow and there is space. Returns whether there are new pages.
    pub(crate) fn grow(&self, ctx: &mut PersistCtx) -> bool {
        let (pool, growth) = (self.data.pool(), &self.growth);
        let before = pool.segments();
        if before >= growth.segments_max
            || self.time.uptime_ms() < growth.resumes_ms.load(Ordering::Relaxed)
        {
            return false;
        }
        let _one_at_a_time = self.lock_growth();
        if pool.segments() != before {
            return true;
        }
        if self.lock().pages_held() > 0 {
            return false;
        }
        let after = pool.segments_next(growth.segments_max);
        if let Err(error) = pool.grow(ctx, after) {
            let again_ms = self.time.uptime_ms() + GROWTH_PAUSE_MS;
            growth.resumes_ms.store(again_ms, Ordering::Relaxed);
            growth.note(Some(error.to_string().into()));
            return false;
        }
        growth.note(None);
        situation!("mdb.grown");
        // The first segment is not a page.
        let fresh = before - 1..after - 1;
        self.lock().add_free_pages(fresh.rev());
        true
    }
}
