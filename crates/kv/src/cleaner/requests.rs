//! Requests for room: the wakeups between sessions that need segments and the background thread that frees them.
//!
//! ```text
//!   session     request(want) ── wait ─────────────────────── is_over? ──▶ take a segment, or Full
//!                    │ ring                    ▲ freed
//!   background     listen ── begin ── clean ───┴── end
//! ```
//!
//! A request is over when a run of the cleaner has ended that began after the request: only such a run shows whether
//! there is anything to gain. The request has succeeded if enough segments were free at one moment of the run. Other
//! sessions may have taken them by its end.

use std::time::Duration;

use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::sync::atomic::{AtomicBool, AtomicU64};
use farbank_pm::sync::{Arc, Condvar, Mutex, unpoisoned};

/// A function that is called when room was made, or when there is none to gain.
pub(crate) type WakeFn = Arc<dyn Fn() + Send + Sync>;

/// The requests of sessions, the runs of the cleaner that serve them, and the wakeup of the background thread.
#[derive(Default)]
pub(crate) struct CleanerRequests {
    wakeup: Condvar,
    wakeup_lock: Mutex<()>,
    /// Whether the background thread was woken and has not reacted yet.
    rung: AtomicBool,
    runs: Mutex<CleanerRuns>,
    /// Numbers of the last run that ended, of the last run that gained what was requested, and of the last run that
    /// was held up by sessions.
    ended: AtomicU64,
    gained: AtomicU64,
    held_up: AtomicU64,
    freed: Condvar,
    /// Whether a session that does not block itself wants the wakers called.
    awaited: AtomicBool,
    wakes: Mutex<Vec<WakeFn>>,
}

/// Number of the last run of the cleaner that began, and the demand for the next one.
#[derive(Debug, Default)]
struct CleanerRuns {
    begun: u64,
    demand: RoomDemand,
}

/// Room requested by waiting sessions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RoomDemand {
    /// Number of segments that must be free; 0: none requested.
    pub segments: u32,
    /// Bytes of values that must fit once tombstones are removed; 0: none requested.
    pub bytes: usize,
}

/// A session's request: the number of the first run of the cleaner that serves it.
#[derive(Debug)]
pub(crate) struct CleanRequest(u64);

/// Outcome of cleaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CleanOutcome {
    /// The requested room was free, at least for a moment.
    Gained,
    /// It was not, and there is nothing more to gain.
    Nothing,
    /// It was not, but a later run may gain it: readers did not leave retired segments within
    /// [`Config::patience`](crate::Config::patience), sessions did not end batches that hold open segments, or other
    /// sessions took segments as fast as they became free.
    HeldUp,
}

impl CleanerRequests {
    /// Wakes the background thread. Cheap if a wakeup is pending already; otherwise it may cost a system call.
    pub(crate) fn wake_cleaner(&self) {
        if !self.rung.load(Relaxed) && !self.rung.swap(true, Relaxed) {
            self.wakeup.notify_all();
        }
    }

    /// Waits for [`CleanerRequests::wake_cleaner`], for `most` at most.
    pub(crate) fn wait_for_wakeup(&self, most: Duration) {
        let wakeup = unpoisoned(self.wakeup_lock.lock());
        if !self.rung.swap(false, Relaxed) {
            let woken = self.wakeup.wait_timeout(wakeup, most);
            drop(unpoisoned(woken));
            self.rung.store(false, Relaxed);
        }
    }

    /// Requests that `segments` be free and that `bytes` of values fit.
    pub(crate) fn request(&self, segments: u32, bytes: usize) -> CleanRequest {
        let mut runs = unpoisoned(self.runs.lock());
        runs.demand.segments = runs.demand.segments.max(segments);
        runs.demand.bytes = runs.demand.bytes.max(bytes);
        let request = CleanRequest(runs.begun + 1);
        drop(runs);
        self.wake_cleaner();
        request
    }

    /// Returns whether a run that serves `request` has ended.
    pub(crate) fn is_over(&self, request: &CleanRequest) -> bool {
        self.ended.load(Relaxed) >= request.0
    }

    /// Returns the best outcome of the runs since `request`, which is over.
    pub(crate) fn outcome(&self, request: &CleanRequest) -> CleanOutcome {
        if self.gained.load(Relaxed) >= request.0 {
            CleanOutcome::Gained
        } else if self.held_up.load(Relaxed) >= request.0 {
            CleanOutcome::HeldUp
        } else {
            CleanOutcome::Nothing
        }
    }

    /// Waits until segments were freed or a run ended, for `most` at most.
    pub(crate) fn wait(&self, most: Duration) {
        let runs = unpoisoned(self.runs.lock());
        let woken = self.freed.wait_timeout(runs, most);
        drop(unpoisoned(woken));
    }

    /// Begins a run. Returns its number and the demand that it must serve.
    pub(crate) fn begin_run(&self) -> (u64, RoomDemand) {
        let mut runs = unpoisoned(self.runs.lock());
        runs.begun += 1;
        (runs.begun, std::mem::take(&mut runs.demand))
    }

    /// Ends a run with `outcome`.
    pub(crate) fn end_run(&self, run: u64, outcome: CleanOutcome) {
        match outcome {
            CleanOutcome::Gained => self.gained.store(run, Relaxed),
            CleanOutcome::HeldUp => self.held_up.store(run, Relaxed),
            CleanOutcome::Nothing => {}
        }
        self.ended.store(run, Relaxed);
        self.wake_waiters();
    }

    /// Wakes the sessions that wait for room.
    pub(crate) fn wake_waiters(&self) {
        drop(unpoisoned(self.runs.lock()));
        self.freed.notify_all();
        if self.awaited.swap(false, Relaxed) {
            for wake in unpoisoned(self.wakes.lock()).iter() {
                wake();
            }
        }
    }

    /// Requests that the wakers be called the next time room is made.
    pub(crate) fn want_wake(&self) {
        self.awaited.store(true, Relaxed);
    }

    /// Registers a waker, called when room was made, or when there is none to gain.
    pub(crate) fn on_room(&self, wake: WakeFn) {
        unpoisoned(self.wakes.lock()).push(wake);
    }
}
