//! The free segments, and how sessions that need them and the background thread that makes them wake each
//! other.
//!
//! ```text
//!   session     request(want) ── wait ─────────────────────── is_over? ──▶ take a segment, or Full
//!                    │ bell                    ▲ freed
//!   background     listen ── begin ── clean ───┴── end
//! ```
//!
//! A request is over when a run of the cleaner has ended that began after it: only such a run says whether
//! there is anything to gain. It has gained if as many segments as were asked for were free at one moment of the run: those
//! that are not there at its end were taken by other sessions.

use std::collections::VecDeque;
use std::time::Duration;

use farbank_pm::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use farbank_pm::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use farbank_pm::sync::{Arc, Condvar, Mutex};

/// Called when room was made, or when there is none to make.
pub(crate) type WakeFn = Arc<dyn Fn() + Send + Sync>;

/// The free segments, and a bell for the thread that makes more.
#[derive(Default)]
pub(crate) struct FreeSegments {
    list: Mutex<VecDeque<u32>>,
    count: AtomicU32,
    /// Most segments that were free at a time since the run began.
    most: AtomicU32,
    bell: Condvar,
    bell_lock: Mutex<()>,
    /// Rung, and not yet heard.
    rung: AtomicBool,
    runs: Mutex<CleanerRuns>,
    /// The number of the last run that ended, of the last one that gained what was asked for, and of the last one that sessions
    /// held up.
    ended: AtomicU64,
    gained: AtomicU64,
    held_up: AtomicU64,
    freed: Condvar,
    /// Whether a session that does not wait itself wants to be woken.
    awaited: AtomicBool,
    wakes: Mutex<Vec<WakeFn>>,
}

/// Runs of the cleaner, and what they are asked for.
#[derive(Debug, Default)]
struct CleanerRuns {
    begun: u64,
    demand: RoomDemand,
}

/// What the sessions that wait have asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RoomDemand {
    /// Segments that are to be free; 0: none were asked for.
    pub segments: u32,
    /// Bytes of values that are to fit once tombstones are gone; 0: none were asked for.
    pub bytes: usize,
}

/// What a session waits for: this run of the cleaner.
#[derive(Debug)]
pub(crate) struct CleanRequest(u64);

/// What cleaning has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CleanOutcome {
    /// What was asked for was free, for a moment at least.
    Gained,
    /// It was not, and there is nothing more to gain.
    Nothing,
    /// It was not, and that says nothing: sessions have not left what was emptied within
    /// [`Config::patience`](crate::Config::patience), or have taken what became free as fast as it did.
    HeldUp,
}

impl FreeSegments {
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Acquire)
    }

    /// Adds a free segment.
    pub(crate) fn give(&self, segment: u32) {
        let mut list = self.list.lock().expect("no holder panics");
        list.push_back(segment);
        let count = list.len() as u32;
        self.count.store(count, Release);
        self.most.fetch_max(count, Relaxed);
    }

    /// Takes a free segment if more than `keep` would remain; with it, how many do.
    pub(crate) fn take(&self, keep: u32) -> Option<(u32, u32)> {
        let mut list = self.list.lock().expect("no holder panics");
        if list.len() as u32 <= keep {
            return None;
        }
        let segment = list.pop_front()?;
        let left = list.len() as u32;
        self.count.store(left, Release);
        Some((segment, left))
    }

    /// Whether `segments` were free at one moment since the run began.
    pub(crate) fn had(&self, segments: u32) -> bool {
        self.most.load(Relaxed) >= segments
    }

    /// Wakes the thread that makes more. Cheap while it has yet to hear an earlier bell: waking costs a system
    /// call.
    pub(crate) fn ring(&self) {
        if !self.rung.load(Relaxed) && !self.rung.swap(true, Relaxed) {
            self.bell.notify_all();
        }
    }

    /// Waits for the bell, but not longer than `most`.
    pub(crate) fn listen(&self, most: Duration) {
        let bell = self.bell_lock.lock().expect("no holder panics");
        if !self.rung.swap(false, Relaxed) {
            let woken = self.bell.wait_timeout(bell, most);
            drop(woken.expect("no holder panics"));
            self.rung.store(false, Relaxed);
        }
    }

    /// Asks that `segments` be free, and that `bytes` of values fit.
    pub(crate) fn request(&self, segments: u32, bytes: usize) -> CleanRequest {
        let mut runs = self.runs.lock().expect("no holder panics");
        runs.demand.segments = runs.demand.segments.max(segments);
        runs.demand.bytes = runs.demand.bytes.max(bytes);
        let request = CleanRequest(runs.begun + 1);
        drop(runs);
        self.ring();
        request
    }

    /// Whether the run that was to serve `request` has ended.
    pub(crate) fn is_over(&self, request: &CleanRequest) -> bool {
        self.ended.load(Relaxed) >= request.0
    }

    /// What the runs since `request`, which is over, have come to at best.
    pub(crate) fn outcome(&self, request: &CleanRequest) -> CleanOutcome {
        if self.gained.load(Relaxed) >= request.0 {
            CleanOutcome::Gained
        } else if self.held_up.load(Relaxed) >= request.0 {
            CleanOutcome::HeldUp
        } else {
            CleanOutcome::Nothing
        }
    }

    /// Waits until something was freed or a run ended, but not longer than `most`.
    pub(crate) fn wait(&self, most: Duration) {
        let runs = self.runs.lock().expect("no holder panics");
        let woken = self.freed.wait_timeout(runs, most);
        drop(woken.expect("no holder panics"));
    }

    /// Begins a run: its number, and what it is to gain.
    pub(crate) fn begin_run(&self) -> (u64, RoomDemand) {
        let mut runs = self.runs.lock().expect("no holder panics");
        runs.begun += 1;
        self.most.store(self.count(), Relaxed);
        (runs.begun, std::mem::take(&mut runs.demand))
    }

    /// Ends a run, which has come to `outcome`.
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
        drop(self.runs.lock().expect("no holder panics"));
        self.freed.notify_all();
        if self.awaited.swap(false, Relaxed) {
            for wake in self.wakes.lock().expect("no holder panics").iter() {
                wake();
            }
        }
    }

    /// Has the wakers called when room was made next.
    pub(crate) fn want_wake(&self) {
        self.awaited.store(true, Relaxed);
    }

    /// Has `wake` called when room was made, or when there is none to make.
    pub(crate) fn on_room(&self, wake: WakeFn) {
        self.wakes.lock().expect("no holder panics").push(wake);
    }
}
