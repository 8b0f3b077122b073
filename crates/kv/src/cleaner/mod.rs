//! The cleaner: makes free segments by moving live records out of others.
//!
//! A pass takes a few victims and copies their live records and needed tombstones to open segments of the cleaner.
//! Like sessions, the cleaner has an open segment for each class of expected lifetime. The pass then drains, updates
//! the index, and retires the victims. When no reader can be in a retired segment any more, the segment is recycled
//! with a new generation, drained, and free. A pass is done in slices (`cleaning_pass`), and the cleaner's lock is
//! free between slices.
//!
//! Victims are chosen by declining cost (Lomet and Luo, ICDE 2021, section 4): not the emptiest
//! segments first, but those whose emptiness will grow least by waiting.
//!
//! # Invariants
//! KV-CLEAN-1  A victim is recycled only after its moved records are durable and published, and after every reader that
//!     could have found an old offset has unpinned.
//! KV-CLEAN-2  A copy that loses the race to a newer write is never published. It stays on the medium, valid, until its
//!     segment is recycled. The segments that a pass fills get an earlier opening stamp: that of the pass's begin, or
//!     the reclaim stamp of the oldest tombstone that was unpublished then. So a tombstone that is published during
//!     the pass waits for these segments, too.
//! KV-CLEAN-3  A tombstone is dropped when every segment that was opened before it was written (KV-CLEAN-2) is gone: then no record
//!     that it hides is left. A tombstone that a newer record of its key has replaced is dropped at once. A segment
//!     counts the bytes of its tombstones until it is retired, including tombstones that have copies. Only a segment
//!     without tombstones is cleaned by the live map, which does not include tombstones.
//! KV-CLEAN-4  The cleaner can always make progress: only the cleaner takes the last `cleaner_reserve` free segments. It can
//!     use them up while readers still pin segments that it has emptied. A pass that runs out of free segments ends.
//!     The records copied by then are published, and the others stay in their victims. Copied tombstones are not copied
//!     again.
//! KV-CLEAN-5  A victim is damaged if not all of its live records were found, or if one fails its checksum. It is quarantined
//!     and never recycled. The same holds for a victim that is read from end to end and has bytes that are no record:
//!     unreadable bytes may be a tombstone. A victim that is cleaned by the live map has no needed tombstone.
//!
//! # Crash argument
//! | crash                             | recovery sees                    | recovery does                           |
//! |-----------------------------------|----------------------------------|-----------------------------------------|
//! | after copying, before the drain   | old records, perhaps some copies | keeps one: same key, same number (KV-OPEN-6)   |
//! | after the drain, before recycling | both                             | keeps one                               |
//! | while tail and head are rewritten | two generations                  | uses the higher: the segment is empty   |

pub(crate) mod background;
pub(crate) mod help;
pub(crate) mod pace;
pub(crate) mod pass;
pub(crate) mod requests;
pub(crate) mod state;

use std::time::Duration;

use farbank_pm::model::Category;
use farbank_pm::situation;
use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::sync::thread;
use farbank_pm::{Drain, Medium, Off, PersistCtx, Poisoned};

use crate::cleaner::pass::{SliceLimit, SliceProgress};
use crate::cleaner::requests::CleanOutcome;
use crate::cleaner::state::Cleaner;
use crate::config::CleaningMode;
use crate::engine::Engine;
use crate::engine::unreadable;
use crate::format::segment::{SegmentInfo, SegmentState};

/// Bytes of victims that a pass takes where a drain is a fence.
const PASS_BYTES: usize = 2 << 20;
/// Maximum number of victims of a pass, unless segments are small.
const PASS_SEGMENTS: usize = 4;
/// Bytes of victims that a pass of small segments takes. The begin of a pass reads the state of all segments, and four
/// small ones gain less than that costs.
const SMALL_PASS_BYTES: usize = 256 << 10;
/// A pass of small segments takes one in `SMALL_PASS_SHARE` segments of the pool, at most.
const SMALL_PASS_SHARE: u32 = 16;
/// How often each segment is emptied, at most, to remove tombstones.
const PURGE_ROUNDS: u32 = 3;
/// Bytes of records that one slice of a pass copies.
pub(crate) const SLICE_BYTES: usize = 256 << 10;

/// How often a wait for readers yields the processor before it sleeps instead.
const YIELDS: u32 = 1_000;
/// Duration of each of those sleeps.
const NAP: Duration = Duration::from_millis(1);

/// Result of waiting for readers to leave retired segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RetiredWait {
    /// No segment is retired.
    Empty,
    /// Segments became free during the wait.
    Progress,
    /// Readers still pin all retired segments.
    Held,
}

/// What cleaning can still gain when no pass would gain anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RemainingGain {
    /// Nothing.
    None,
    /// Segments that are retired, once readers have left them.
    Retired,
    /// Segments that sessions append to, once the sessions have ended their batches. A session that waits for a CPU
    /// within a batch holds its open segments for long.
    InBatches,
}

/// States of segments that a session in the middle of a batch may hold. A segment that a session has just taken is
/// free, and not in the list of free segments.
const SESSIONS_MAY_HOLD: [SegmentState; 3] =
    [SegmentState::Free, SegmentState::Open, SegmentState::Sealed];

/// Result of [`Engine::clean_slice`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SliceOutcome {
    /// A slice of a pass was done.
    Pass(SliceProgress),
    /// Cleaning would gain nothing.
    Nothing,
}

impl<M: Medium> Engine<M> {
    /// Returns the lifetime class of a record that replaces the one at `old`. The longer the old record lived, the
    /// longer the new one is expected to live. Ages are in appended bytes, relative to the live bytes of the pool.
    pub(crate) fn lifetime(&self, old: Option<Off>) -> usize {
        let classes = self.segments.classes();
        if classes == 1 {
            return 0;
        }
        match old {
            None => classes - 1,
            Some(old) => self.class_of_age(self.info_at(old).written_at_average.load(Relaxed)),
        }
    }

    pub(crate) fn class_of_age(&self, written_at: u64) -> usize {
        let age = self.segments.appended().saturating_sub(written_at);
        let live = self.space().occupied().max(1);
        let class = match age {
            _ if age * 4 < live => 0,
            _ if age < live => 1,
            _ if age < live * 4 => 2,
            _ => 3,
        };
        class.min(self.segments.classes() - 1)
    }

    /// Cleans until `want` segments are free, or until cleaning would gain nothing. The caller is
    /// unpinned and holds no lock. The cleaner's lock is free between slices.
    pub(crate) fn clean_until(&self, want: u32) -> Result<CleanOutcome, Poisoned> {
        self.clean_until_with(want, &mut || Ok(()))
    }

    /// Like [`Engine::clean_until`]. Calls `between` after each slice, without a lock.
    pub(crate) fn clean_until_with(
        &self,
        want: u32,
        between: &mut dyn FnMut() -> Result<(), Poisoned>,
    ) -> Result<CleanOutcome, Poisoned> {
        let _spending = Category::Resize.scope();
        // One victim for each segment of the pool: moving a record twice gains nothing.
        let mut budget = self.segments.count();
        // A session that cleans inline may itself be in the middle of a batch.
        let pauses_max = match self.config.cleaning {
            CleaningMode::Background => self.config.patience / 2,
            CleaningMode::Inline => 0,
        };
        let mut pauses = 0;
        loop {
            self.check_poison()?;
            let mut cleaner = self.cleaning.lock();
            self.recycle_retired_between_slices(&mut cleaner, true)?;
            if self.segments.free_count() >= want {
                return Ok(CleanOutcome::Gained);
            }
            let step = self.clean_slice(&mut cleaner, self.whole_slice(), &mut budget)?;
            let left = match step {
                SliceOutcome::Nothing => self.remaining_gain(&cleaner),
                SliceOutcome::Pass(_) => RemainingGain::Retired, // Read only if the pass has lacked a free segment.
            };
            drop(cleaner);
            self.cleaning.requests.wake_waiters();
            between()?;
            match step {
                SliceOutcome::Pass(SliceProgress::Going | SliceProgress::Undrained) => continue,
                SliceOutcome::Pass(SliceProgress::Ended { retired }) if retired > 0 => continue,
                SliceOutcome::Pass(_) | SliceOutcome::Nothing => {}
            }
            match left {
                RemainingGain::Retired => match self.wait_for_retired(want)? {
                    RetiredWait::Progress => {}
                    RetiredWait::Empty => thread::yield_now(),
                    RetiredWait::Held if self.segments.free_count() >= want => {
                        return Ok(CleanOutcome::Gained);
                    }
                    RetiredWait::Held => return Ok(CleanOutcome::HeldUp),
                },
                // Passes gained segments, but other sessions have taken them.
                _ if budget == 0 => return Ok(CleanOutcome::HeldUp),
                RemainingGain::None => return Ok(CleanOutcome::Nothing),
                RemainingGain::InBatches if pauses < pauses_max => {
                    pauses += 1;
                    thread::sleep(NAP);
                }
                RemainingGain::InBatches => return Ok(CleanOutcome::HeldUp),
            }
        }
    }

    /// Returns what cleaning can still gain when no pass would gain anything.
    fn remaining_gain(&self, cleaner: &Cleaner) -> RemainingGain {
        // Only a thread that holds the cleaner's lock takes segments from this list.
        if !self.segments.retired().is_empty() {
            return RemainingGain::Retired;
        }
        let free = self.segments.free_count();
        let gain_of = |info| match self.space().gain_of(info) {
            gain if SESSIONS_MAY_HOLD.contains(&info.state()) => gain,
            _ => 0,
        };
        let gain: u64 = self.segments.infos().map(gain_of).sum();
        let payload = self.geometry().payload() as u64;
        // The cleaner gains nothing from the dead records of its own open segments.
        let not_held = u64::from(free) * payload + cleaner.log.dead_in_open(&self.segments);
        match gain.saturating_sub(not_held) >= payload {
            true => RemainingGain::InBatches,
            false => RemainingGain::None,
        }
    }

    /// Returns the limits of the largest slice, for callers that may wait for the device.
    pub(crate) fn whole_slice(&self) -> SliceLimit {
        SliceLimit {
            records: self.config.slice_records.max(1) as usize,
            bytes: SLICE_BYTES,
            may_settle: true,
        }
    }

    /// Continues the cleaner's pass by a slice. If there is no pass and `budget` is not 0, begins one and reduces
    /// `budget` by the number of its victims.
    pub(crate) fn clean_slice(
        &self,
        cleaner: &mut Cleaner,
        slice: SliceLimit,
        budget: &mut u32,
    ) -> Result<SliceOutcome, Poisoned> {
        if cleaner.pass.is_none() {
            let victims = match *budget {
                0 => Vec::new(),
                _ => self.choose(cleaner),
            };
            if victims.is_empty() {
                return Ok(SliceOutcome::Nothing);
            }
            *budget = budget.saturating_sub(victims.len() as u32);
            self.begin_pass(cleaner, &victims);
        }
        self.advance_pass(cleaner, slice).map(SliceOutcome::Pass)
    }

    /// Recycles retired segments, between slices. Where that waits for the device, it is postponed until the current
    /// pass is over, so that one wait serves many segments. `may_settle`: whether the caller may wait. Returns the
    /// number of segments recycled.
    pub(crate) fn recycle_retired_between_slices(
        &self,
        cleaner: &mut Cleaner,
        may_settle: bool,
    ) -> Result<usize, Poisoned> {
        let is_quick = self.caps().drain == Drain::Fence;
        match is_quick || (may_settle && cleaner.pass.is_none()) {
            true => self.recycle_retired(&mut cleaner.ctx),
            false => Ok(0),
        }
    }

    /// Continues the pass numbered `number` until it is over.
    fn finish_pass(&self, number: u64) -> Result<(), Poisoned> {
        loop {
            self.check_poison()?;
            let mut cleaner = self.cleaning.lock();
            if cleaner.pass.is_none() || cleaner.passes != number {
                return Ok(());
            }
            self.advance_pass(&mut cleaner, self.whole_slice())?;
            drop(cleaner);
            self.cleaning.requests.wake_waiters();
        }
    }

    /// Empties the oldest segments, so that tombstones that wait for them are dropped, until `len` bytes fit. Returns
    /// whether they fit. Does nothing if `len` bytes would not fit without tombstones either. The caller is unpinned
    /// and holds no lock.
    pub(crate) fn remove_tombstones_until_fits(&self, len: usize) -> Result<bool, Poisoned> {
        self.empty_oldest(&|| self.fits_exactly(len) || !self.would_fit(len))?;
        Ok(self.fits_exactly(len))
    }

    /// Empties the oldest segment again and again, until `is_enough`, or [`PURGE_ROUNDS`] times for each segment. The
    /// first round copies a tombstone if a segment opened before it still exists. A later round drops it.
    pub(crate) fn empty_oldest(
        &self,
        is_enough: &dyn Fn() -> bool,
    ) -> Result<CleanOutcome, Poisoned> {
        let low = self.free_segments_low();
        for _ in 0..PURGE_ROUNDS * self.segments.count() {
            if is_enough() {
                return Ok(CleanOutcome::Gained);
            }
            if self.config.cleaning == CleaningMode::Background && self.segments.free_count() < low
            {
                self.clean_until(low)?; // So that other writers do not wait until all of this is done.
            }
            let mut cleaner = self.cleaning.lock();
            if cleaner.pass.is_some() {
                // The oldest may be one of its victims.
                let number = cleaner.passes;
                drop(cleaner);
                self.finish_pass(number)?;
                continue;
            }
            let oldest = (0..self.segments.count())
                .filter(|s| self.segments.is_candidate(*s))
                .min_by_key(|s| self.info(*s).opened.load(Relaxed));
            let limit = oldest.map_or(u64::MAX, |s| self.info(s).opened.load(Relaxed));
            if self
                .sessions
                .seal_parked(&self.segments, &mut cleaner.ctx, &|info| {
                    info.opened.load(Relaxed) < limit
                })
                > 0
            {
                continue;
            }
            let Some(victim) = oldest else {
                return Ok(CleanOutcome::Nothing);
            };
            self.begin_pass(&mut cleaner, &[victim]);
            let number = cleaner.passes;
            drop(cleaner);
            self.finish_pass(number)?;
            let mut cleaner = self.cleaning.lock();
            let recycled = self.recycle_retired_between_slices(&mut cleaner, true)?;
            drop(cleaner);
            self.cleaning.requests.wake_waiters();
            if recycled == 0
                && self.segments.free_count() <= 2
                && self.wait_for_retired(self.cleaner_reserve())? == RetiredWait::Held
            {
                return Ok(CleanOutcome::HeldUp);
            }
        }
        Ok(CleanOutcome::Nothing)
    }

    /// Waits until readers leave a retired segment, `want` segments are free, or
    /// [`Config::patience`](crate::Config::patience) is used up. Recycles the segments that readers have left.
    fn wait_for_retired(&self, want: u32) -> Result<RetiredWait, Poisoned> {
        for round in 0..self.config.patience {
            if self.segments.retired().is_empty() {
                return Ok(RetiredWait::Empty);
            }
            let mut cleaner = self.cleaning.lock();
            let recycled = self.recycle_retired(&mut cleaner.ctx)?;
            drop(cleaner);
            if recycled > 0 || self.segments.free_count() >= want {
                return Ok(RetiredWait::Progress);
            }
            match round < YIELDS {
                true => thread::yield_now(),
                false => thread::sleep(NAP),
            }
        }
        situation!("kv.retired_held");
        Ok(RetiredWait::Held)
    }

    /// Returns the victims of one pass, best first. Returns none if all passes together could not gain a whole segment.
    fn choose(&self, cleaner: &mut Cleaner) -> Vec<u32> {
        let payload = self.geometry().payload() as u64;
        let now = self.segments.appended();
        let too_many_tombs =
            self.space().tombstone_bytes() > u64::from(self.segments.count()) * payload / 12;
        let mut scored: Vec<(f64, u32)> = Vec::new();
        let mut oldest: Option<(u64, u32)> = None;
        let mut gain = cleaner.log.room_left(&self.segments);
        let parked = self.sessions.gain_of_parked(&self.segments);
        let mut has_dead_extents = false;
        for segment in 0..self.segments.count() {
            let info = self.info(segment);
            has_dead_extents |= info.is_dead_extent();
            if !self.segments.is_candidate(segment) {
                continue;
            }
            let dead = self.space().gain_of(info);
            gain += dead;
            let opened = info.opened.load(Relaxed);
            if oldest.is_none_or(|(o, _)| opened < o) {
                oldest = Some((opened, segment));
            }
            if dead * 64 >= payload {
                let age = now.saturating_sub(info.written_at_average.load(Relaxed)) + 1;
                let emptiness = dead as f64 / payload as f64;
                let cost = ((1.0 - emptiness) / emptiness).powi(2) / age as f64;
                scored.push((cost, segment));
            }
        }
        // The extents of a large group are freed with the segment that holds the group's record. A session that writes
        // little else could keep that segment open for long.
        let has_groups = |info: &SegmentInfo| info.large_groups.load(Relaxed) > 0;
        if has_dead_extents
            && self
                .sessions
                .seal_parked(&self.segments, &mut cleaner.ctx, &has_groups)
                > 0
        {
            return self.choose(cleaner);
        }
        if gain < payload {
            if gain + parked >= payload {
                // The parked segments of idle sessions make up the difference.
                self.sessions
                    .seal_parked(&self.segments, &mut cleaner.ctx, &|_| true);
                return self.choose(cleaner);
            }
            return Vec::new();
        }
        let most = self.pass_segments();
        if scored.len() > most {
            scored.select_nth_unstable_by(most - 1, |a, b| a.0.total_cmp(&b.0));
            scored.truncate(most);
        }
        scored.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut victims: Vec<u32> = scored.into_iter().take(most).map(|(_, s)| s).collect();
        // Tombstones wait for the oldest segment. If there are many, it is a victim whatever it holds.
        if let Some((_, segment)) = oldest.filter(|_| too_many_tombs)
            && !victims.contains(&segment)
        {
            victims.insert(0, segment);
            victims.truncate(most);
        }
        victims
    }

    /// Maximum number of victims of a pass.
    fn pass_segments(&self) -> usize {
        let segment_bytes = self.geometry().segment_bytes();
        let share = (self.segments.count() / SMALL_PASS_SHARE) as usize;
        let small = (SMALL_PASS_BYTES / segment_bytes).min(share);
        (self.pass_bytes() / segment_bytes).clamp(1, PASS_SEGMENTS.max(small))
    }

    /// Bytes of victims that a pass takes. Few where a drain is a fence: then a thread that waits for the pass waits
    /// for about a millisecond. More where each pass waits for the device.
    fn pass_bytes(&self) -> usize {
        match self.caps().drain {
            Drain::Fence => PASS_BYTES,
            Drain::Sync | Drain::Relaxed => 4 * PASS_BYTES,
        }
    }

    /// Recycles the retired segments that no reader can be in (KV-CLEAN-1). Returns their number.
    pub(crate) fn recycle_retired(&self, ctx: &mut PersistCtx) -> Result<usize, Poisoned> {
        let oldest = self.epochs.oldest_pinned();
        let mut recycled = self.segments.take_unread(oldest);
        unreadable::quarantine_unreadable(self, &mut recycled);
        if recycled.is_empty() {
            return Ok(0);
        }
        situation!("kv.segment_recycled");
        self.segments.initialise(ctx, &recycled)?;
        for &segment in &recycled {
            self.segments.give(segment);
        }
        Ok(recycled.len())
    }

    /// Ends the cleaner's pass early and closes its open segments.
    ///
    /// # Errors
    /// [`Poisoned`] if the medium has failed.
    pub(crate) fn close_cleaner(&self) -> Result<(), Poisoned> {
        let mut cleaner = self.lock_cleaner_without_pass()?;
        let Cleaner { ctx, log, .. } = &mut *cleaner;
        log.close(&self.segments, ctx);
        Ok(())
    }
}
