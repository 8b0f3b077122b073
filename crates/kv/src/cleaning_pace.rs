//! The pace of writers: each pays for the bytes it appends with a slice of cleaning, in proportion.
//!
//! ```text
//!   free segments   0 ··· reserves ··· low ─────── line ───── high
//!                   │ writers wait     │ writers pay │ the background thread cleans │ nothing to do
//! ```
//!
//! While fewer segments than the line are free, a session owes the cleaner the bytes it must move to gain as much as the session
//! has appended: appended bytes times the bytes kept for each byte gained in the victims of the last pass. It pays when a
//! batch is over, never more than a slice, and twice as much where the stock is not near the line. So the stock does not run out, and no write waits for a
//! whole pass.
//!
//! A session that finds the cleaner's lock taken goes on, and its debt is kept, up to a few slices: the holder may not have the
//! processor. While the background thread is fast enough no session pays.

use farbank_pm::Medium;
use farbank_pm::model::Category;
use farbank_pm::sync::atomic::{AtomicU32, Ordering::Relaxed};
use farbank_pm::{Drain, Poisoned};

use crate::cleaner::{SLICE_BYTES, SliceOutcome};
use crate::cleaning_pass::{SliceLimit, SliceProgress};
use crate::engine::Engine;
use crate::session::KvSession;

/// Bytes a session pays at once, at least: each slice has costs of its own. In pools of small segments it is a part of one.
const PAID_BYTES_MIN: i64 = 16 << 10;
const PAID_PART: i64 = 8;
/// Debt that is kept at most while another thread cleans.
const UNPAID_BYTES_MAX: i64 = 4 * SLICE_BYTES as i64;
/// What a session is let off when its help was of no use, so that it does not look for victims after each batch.
const USELESS_SLICES: i64 = 16;
/// Bytes kept for a byte gained are counted in so many parts, up to this many bytes.
const PARTS: u64 = 16;
const KEPT_BYTES_MAX: u64 = 64;
/// Bytes kept for a byte gained, until a pass has begun.
const KEPT_BYTES: u32 = 4;

/// What gaining a byte costs.
#[derive(Debug)]
pub(crate) struct CleaningPace {
    /// Bytes the last pass kept for each that it gained, in parts.
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
    /// A pass begins over victims that keep `kept` bytes and gain `gain`.
    pub(crate) fn note_victims(&self, kept: u64, gain: u64) {
        let parts = kept * PARTS / gain.max(1) + 1;
        let parts = parts.min(KEPT_BYTES_MAX * PARTS) as u32;
        self.kept_parts.store(parts, Relaxed);
    }

    /// What a session owes that has appended `bytes`.
    fn debt_of(&self, bytes: u64) -> u64 {
        bytes * u64::from(self.kept_parts.load(Relaxed)) / PARTS
    }
}

impl<M: Medium> Engine<M> {
    /// Free segments below which sessions pay for what they append: the cleaner opens a segment for each class before it has
    /// emptied one.
    fn pace_line(&self) -> u32 {
        self.stock_low() + self.classes() as u32
    }

    /// Does a slice of cleaning, of about `bytes`, for a session that is unpinned and holds no lock. It waits neither for another
    /// thread that cleans nor for the device.
    ///
    /// # Errors
    /// [`Poisoned`] if the medium has failed.
    pub(crate) fn help_clean(&self, bytes: u64) -> Result<HelpOutcome, Poisoned> {
        let _spending = Category::Resize.spend();
        let Ok(mut cleaner) = self.cleaner.try_lock() else {
            return Ok(HelpOutcome::Busy);
        };
        self.check_poison()?;
        let slice = SliceLimit {
            bytes: bytes.min(SLICE_BYTES as u64) as usize,
            may_settle: self.caps().drain == Drain::Fence,
            ..self.whole_slice()
        };
        let reborn = self.rebirth_between(&mut cleaner, slice.may_settle)?;
        let mut budget = u32::MAX;
        let step = self.clean_slice(&mut cleaner, slice, &mut budget)?;
        drop(cleaner);
        if reborn > 0 {
            self.free.wake_waiters();
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

/// What came of a session's help.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HelpOutcome {
    /// A slice was done.
    Done,
    /// Another thread cleans.
    Busy,
    /// There is nothing to gain, or the pass waits for the device.
    Useless,
}

impl<M: Medium> KvSession<M> {
    /// Pays for what this session has appended. Nothing may be locked, staged or pinned.
    pub(crate) fn keep_pace(&mut self) {
        let appended = std::mem::take(&mut self.unpaid);
        if appended == 0 && self.debt <= 0 {
            return;
        }
        let engine = &*self.engine;
        let (free, line) = (engine.free_count(), engine.pace_line());
        if free >= line {
            self.debt = 0;
            return;
        }
        // Where few are left the stock has to grow again.
        let times = match free + 1 < line {
            true => 2,
            false => 1,
        };
        self.debt += (engine.pace.debt_of(appended) * times) as i64;
        let payload = engine.geometry.payload() as i64;
        if self.debt < PAID_BYTES_MIN.min(payload / PAID_PART) {
            return;
        }
        // An error has poisoned the engine: the next operation hears of it. This batch is durable.
        match engine.help_clean(self.debt as u64) {
            Ok(HelpOutcome::Done) => self.debt = (self.debt - SLICE_BYTES as i64).max(0),
            Ok(HelpOutcome::Busy) => self.debt = self.debt.min(UNPAID_BYTES_MAX),
            Ok(HelpOutcome::Useless) | Err(_) => {
                self.debt = -USELESS_SLICES * payload.min(SLICE_BYTES as i64)
            }
        }
    }
}
