//! Cleaning by writers: each session cleans in proportion to the bytes that it appends.
//!
//! ```text
//!   free segments   0 ··· reserves ··· low ──────── line ───── high
//!                   │ writers wait     │ writers help │ the background thread cleans │ no cleaning
//! ```
//!
//! While fewer segments than `line` are free, the appends of a session add to its cleaning debt. The debt is the bytes
//! that the cleaner must move to gain the appended bytes. It is the appended bytes times the bytes kept for each byte
//! gained in the victims of the last pass. The session works its debt off at the end of a batch, by one slice at most.
//! The debt counts double if more than one free segment is missing to `line`. So free segments do not run out, and no
//! write waits for a whole pass.
//!
//! A session that finds the cleaner's lock taken continues without cleaning, because the thread that holds the lock may
//! not be running. Its debt is kept, up to a few slices. While the background thread is fast enough, no session cleans.

use farbank_pm::Medium;
use farbank_pm::model::Category;
use farbank_pm::sync::atomic::{AtomicU32, Ordering::Relaxed};
use farbank_pm::{Drain, Poisoned};

use crate::cleaner::{SLICE_BYTES, SliceOutcome};
use crate::cleaning_pass::{SliceLimit, SliceProgress};
use crate::engine::Engine;
use crate::session::KvSession;

/// Minimum debt, in bytes, at which a session cleans, because each slice has fixed costs.
const DEBT_BYTES_MIN: i64 = 16 << 10;
/// In pools of small segments the minimum is 1 / `PAID_PART` of a segment instead.
const PAID_PART: i64 = 8;
/// Maximum debt of a session while another thread cleans, in bytes.
const DEBT_BYTES_MAX: i64 = 4 * SLICE_BYTES as i64;
/// Credit of a session, in slices, after cleaning gained nothing, so that it does not look for victims after each
/// batch.
const USELESS_SLICES: i64 = 16;
/// Resolution of the ratio of bytes kept to bytes gained: it is counted in 1 / `PARTS`.
const PARTS: u64 = 16;
/// Maximum ratio of bytes kept to bytes gained.
const KEPT_BYTES_MAX: u64 = 64;
/// Ratio of bytes kept to bytes gained until the first pass begins.
const KEPT_BYTES: u32 = 4;

/// Cost of gaining a byte by cleaning.
#[derive(Debug)]
pub(crate) struct CleaningPace {
    /// Bytes kept for each byte gained in the last pass, times [`PARTS`].
    kept_parts: AtomicU32,
}

impl Default for CleaningPace {
    fn default() -> CleaningPace {
        CleaningPace {
            kept_parts: AtomicU32::new(KEPT_BYTES * PARTS as u32),
        }
    }
}

impl CleaningPace {
    /// Updates the cost when a pass begins. Its victims have `kept` bytes to move, and emptying them gains `gain`
    /// bytes.
    pub(crate) fn note_victims(&self, kept: u64, gain: u64) {
        let parts = kept * PARTS / gain.max(1) + 1;
        let parts = parts.min(KEPT_BYTES_MAX * PARTS) as u32;
        self.kept_parts.store(parts, Relaxed);
    }

    /// Returns the bytes of cleaning that `bytes` appended bytes cost.
    fn debt_of(&self, bytes: u64) -> u64 {
        bytes * u64::from(self.kept_parts.load(Relaxed)) / PARTS
    }
}

impl<M: Medium> Engine<M> {
    /// Number of free segments below which sessions help to clean. It allows for the segments that the cleaner itself
    /// takes, one for each class, before it has emptied one.
    fn pace_line(&self) -> u32 {
        self.free_segments_low() + self.segments.classes() as u32
    }

    /// Cleans about `bytes`, one slice at most. The calling session is unpinned and holds no lock. Waits neither for
    /// another thread that cleans nor for the device.
    ///
    /// # Errors
    /// [`Poisoned`] if the medium has failed.
    pub(crate) fn help_clean(&self, bytes: u64) -> Result<HelpOutcome, Poisoned> {
        let _spending = Category::Resize.scope();
        let Some(mut cleaner) = self.cleaning.try_lock() else {
            return Ok(HelpOutcome::Busy);
        };
        self.check_poison()?;
        let slice = SliceLimit {
            bytes: bytes.min(SLICE_BYTES as u64) as usize,
            may_settle: self.caps().drain == Drain::Fence,
            ..self.whole_slice()
        };
        let reborn = self.recycle_retired_between_slices(&mut cleaner, slice.may_settle)?;
        let mut budget = u32::MAX;
        let step = self.clean_slice(&mut cleaner, slice, &mut budget)?;
        drop(cleaner);
        if reborn > 0 {
            self.cleaning.requests.wake_waiters();
        }
        Ok(match step {
            SliceOutcome::Pass(SliceProgress::Going) => HelpOutcome::Done,
            SliceOutcome::Pass(SliceProgress::Ended { retired }) if retired > 0 => {
                HelpOutcome::Done
            }
            SliceOutcome::Pass(_) | SliceOutcome::Nothing if reborn > 0 => HelpOutcome::Done,
            SliceOutcome::Pass(_) | SliceOutcome::Nothing => HelpOutcome::Useless,
        })
    }
}

/// Result of [`Engine::help_clean`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HelpOutcome {
    /// A slice was done, or a segment became free.
    Done,
    /// Another thread holds the cleaner's lock.
    Busy,
    /// Cleaning would gain nothing, or the pass waits for the device.
    Useless,
}

impl<M: Medium> KvSession<M> {
    /// Cleans in proportion to the bytes that this session has appended. Nothing may be locked, staged or pinned.
    pub(crate) fn clean_for_appends(&mut self) {
        let appended = std::mem::take(&mut self.unpaid);
        if appended == 0 && self.debt <= 0 {
            return;
        }
        let engine = &*self.engine;
        let (free, line) = (engine.segments.free_count(), engine.pace_line());
        if free >= line {
            self.debt = 0;
            return;
        }
        // If more than one is missing, the number of free segments has to grow again.
        let times = match free + 1 < line {
            true => 2,
            false => 1,
        };
        self.debt += (engine.cleaning.pace.debt_of(appended) * times) as i64;
        let payload = engine.geometry().payload() as i64;
        if self.debt < DEBT_BYTES_MIN.min(payload / PAID_PART) {
            return;
        }
        // An error has poisoned the engine, and the next operation returns it. This batch is durable.
        match engine.help_clean(self.debt as u64) {
            Ok(HelpOutcome::Done) => self.debt = (self.debt - SLICE_BYTES as i64).max(0),
            Ok(HelpOutcome::Busy) => self.debt = self.debt.min(DEBT_BYTES_MAX),
            Ok(HelpOutcome::Useless) | Err(_) => {
                self.debt = -USELESS_SLICES * payload.min(SLICE_BYTES as i64)
            }
        }
    }
}
