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

use crate::cleaner::SLICE_BYTES;
use crate::cleaner::help::HelpOutcome;
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

impl<M: Medium> KvSession<M> {
    /// Cleans in proportion to the bytes that this session has appended. Nothing may be locked, staged or pinned.
    pub(crate) fn clean_for_appends(&mut self) {
        let appended = std::mem::take(&mut self.accounts.unpaid);
        if appended == 0 && self.accounts.debt <= 0 {
            return;
        }
        let engine = &*self.engine;
        let (free, line) = (engine.segments.free_count(), engine.pace_line());
        if free >= line {
            self.accounts.debt = 0;
            return;
        }
        // If more than one is missing, the number of free segments has to grow again.
        let times = match free + 1 < line {
            true => 2,
            false => 1,
        };
        self.accounts.debt += (engine.cleaning.pace.debt_of(appended) * times) as i64;
        let payload = engine.geometry().payload() as i64;
        if self.accounts.debt < DEBT_BYTES_MIN.min(payload / PAID_PART) {
            return;
        }
        // An error has poisoned the engine, and the next operation returns it. This batch is durable.
        match engine.help_clean(self.accounts.debt as u64) {
            Ok(HelpOutcome::Done) => {
                self.accounts.debt = (self.accounts.debt - SLICE_BYTES as i64).max(0)
            }
            Ok(HelpOutcome::Busy) => self.accounts.debt = self.accounts.debt.min(DEBT_BYTES_MAX),
            Ok(HelpOutcome::Useless) | Err(_) => {
                self.accounts.debt = -USELESS_SLICES * payload.min(SLICE_BYTES as i64)
            }
        }
    }
}
