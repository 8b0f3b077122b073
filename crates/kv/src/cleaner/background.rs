//! The background thread: keeps segments free, writes checkpoints, follows the clock, removes expired values.

use std::cell::Cell;
use std::time::{Duration, Instant};

use farbank_pm::Medium;
use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::sync::{Mutex, unpoisoned};

use crate::cleaner::requests::CleanOutcome;
use crate::engine::Engine;
use crate::engine::checkpoint::CheckpointStep;
use crate::format::segment::SegmentState;
use crate::session::KvSession;

/// Maximum number of times that one run cleans in order to free the extents of replaced groups.
const EXTENT_ROUNDS: u32 = 64;
/// Maximum number of slices of a checkpoint that are done at a time.
const SLICES_AT_ONCE: u32 = 16;

impl<M: Medium> Engine<M> {
    /// Keeps a few segments free, and grows the pool if it may.
    fn clean_ahead(&self) {
        self.segments.forget_most_free();
        let (run, demand) = self.cleaning.requests.begin_run();
        let mut held_up = false;
        // An error has poisoned the engine, so the next write fails.
        let mut note = |outcome| held_up |= outcome == Ok(CleanOutcome::HeldUp);
        // A request for bytes succeeds if they fitted at any moment, even if other sessions have taken them since.
        let fitted = Cell::new(false);
        let fits = || {
            let fits = self.fits_exactly(demand.bytes);
            fitted.set(fitted.get() || fits);
            fits
        };
        let lacks_bytes = || demand.bytes > 0 && !fits();
        let lacks_segments =
            || self.space().is_nearly_full() && self.segments.free_count() < demand.segments;
        self.grow_while(&|| lacks_bytes() || lacks_segments() || self.should_grow());
        if lacks_bytes() || lacks_segments() {
            // An error has poisoned the engine, so the next write fails.
            self.free_checkpoints().ok();
        }
        if self.segments.free_count() < self.free_segments_wanted().max(demand.segments) {
            // In a nearly full pool, writers take all that this frees, so that it may not end.
            let mut checkpoint = || self.advance_checkpoint(SLICES_AT_ONCE).map(drop);
            let want = self.free_segments_high().max(demand.segments);
            note(self.clean_until_with(want, &mut checkpoint));
            self.grow_while(&|| self.segments.free_count() < demand.segments);
        }
        // Extents of replaced groups take up space until the segments with their groups' records are cleaned.
        for _ in 0..EXTENT_ROUNDS {
            if !lacks_bytes() || !self.segments.has_dead_extents() {
                break;
            }
            note(self.clean_until(self.segments.free_count() + 1));
        }
        let many = self.space().has_many_tombstones() && self.space().is_nearly_full();
        if many || demand.bytes > 0 {
            // The waiting writers need less than this; they continue as soon as they fit.
            let is_over = || fits() || !self.would_fit(demand.bytes);
            note(self.empty_oldest(&|| is_over() && self.space().has_few_tombstones()));
        }
        self.grow_while(&lacks_bytes); // Cleaning repacks records, which can reduce the capacity.
        let gained = self.segments.had_free(demand.segments) && (fits() || fitted.get());
        let outcome = match (gained, held_up) {
            (true, _) => CleanOutcome::Gained,
            (false, true) => CleanOutcome::HeldUp,
            (false, false) => CleanOutcome::Nothing,
        };
        self.cleaning.requests.end_run(run, outcome);
    }

    /// Grows the pool step by step while `lacks` returns true. After each step the waiting writers retry.
    fn grow_while(&self, lacks: &dyn Fn() -> bool) {
        while lacks() && !self.cleaning.is_stopped() && self.grow_pool() {
            self.cleaning.requests.wake_waiters();
        }
    }

    /// Makes the clock durable and returns the segments that hold expired values.
    pub(crate) fn take_due(&self, now_ms: u64) -> Vec<u32> {
        // An error has poisoned the engine, so the next write fails.
        self.superblock.record_time(self.access()).ok();
        (0..self.segments.count())
            .filter(|segment| {
                let info = self.info(*segment);
                let expires_ms = info.expires_ms.load(Relaxed);
                expires_ms != 0 && expires_ms <= now_ms && info.state() == SegmentState::Sealed
            })
            .collect()
    }
}

/// Runs the cleaner, slices of checkpoints, and once a second the expiry sweep, until the engine stops.
pub(crate) fn clean_in_background<M: Medium>(engine: &Engine<M>, sweeper: &Mutex<KvSession<M>>) {
    const TICK: Duration = Duration::from_millis(100);
    const SWEEP: Duration = Duration::from_secs(1);
    const BETWEEN_SLICES: Duration = Duration::from_millis(1);
    let (mut mapped, mut swept) = (Instant::now(), Instant::now());
    while !engine.cleaning.is_stopped() {
        engine.clean_ahead();
        engine.index.fault_in_ahead();
        // The map writer and the sweep scan all segments, so they do not run at each wakeup.
        if mapped.elapsed() >= TICK {
            // An error has poisoned the engine, so the next write fails.
            engine.write_maps_in_background().ok();
            mapped = Instant::now();
        }
        if swept.elapsed() >= SWEEP {
            // An error has poisoned the engine, or the pool is full. Either way the next write fails.
            unpoisoned(sweeper.lock()).sweep().ok();
            swept = Instant::now();
        }
        // An error has poisoned the engine, so the next write fails.
        let step = engine.advance_checkpoint(SLICES_AT_ONCE);
        engine.cleaning.requests.wait_for_wakeup(match step {
            Ok(CheckpointStep::Going) => BETWEEN_SLICES,
            _ => TICK,
        });
    }
}
