//! Cleaning by writers: one slice of the cleaner's pass in a session's thread.

use farbank_pm::model::Category;
use farbank_pm::{Drain, Medium, Poisoned};

use super::pass::{SliceLimit, SliceProgress};
use super::{SLICE_BYTES, SliceOutcome};
use crate::engine::Engine;

impl<M: Medium> Engine<M> {
    /// Number of free segments below which sessions help to clean. It allows for the segments that the cleaner itself
    /// takes, one for each class, before it has emptied one.
    pub(crate) fn pace_line(&self) -> u32 {
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
        let recycled = self.recycle_retired_between_slices(&mut cleaner, slice.may_settle)?;
        let mut budget = u32::MAX;
        let step = self.clean_slice(&mut cleaner, slice, &mut budget)?;
        drop(cleaner);
        if recycled > 0 {
            self.cleaning.requests.wake_waiters();
        }
        Ok(match step {
            SliceOutcome::Pass(SliceProgress::Going) => HelpOutcome::Done,
            SliceOutcome::Pass(SliceProgress::Ended { retired }) if retired > 0 => {
                HelpOutcome::Done
            }
            SliceOutcome::Pass(_) | SliceOutcome::Nothing if recycled > 0 => HelpOutcome::Done,
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
