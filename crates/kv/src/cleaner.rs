//! The cleaner: empties segments by moving what lives in them.
//!
//! A pass takes a few victims, copies their live records and needed tombstones to open segments of its
//! own (by expected lifetime, like sessions do), drains, swings the index, and puts the victims in
//! retired. When no reader can be in them any more they are reborn under new generations, drained, and
//! are free. A pass is done in slices (`pass`), and the cleaner's lock is free between them.
//!
//! Victims are chosen by declining cost (Lomet and Luo, ICDE 2021, section 4): not the emptiest
//! segments first, but those whose emptiness will grow least by waiting.
//!
//! # Invariants
//! C1  A victim is reborn only after its moved records are durable and published, and no reader that
//!     could have found an old place is still pinned.
//! C2  A copy that loses the race to a newer write is never published; it stays on the medium, valid,
//!     until its segment dies. The segments a pass fills count as opened when the pass began, or when
//!     the oldest tombstone was written that was not published by then, so that tombstones published
//!     meanwhile wait for them too.
//! C3  A tombstone is dropped when every segment that was opened before it was written (C2) is gone:
//!     nothing it hides is left. One that a newer record of its key has replaced is dropped at once. A segment
//!     counts the bytes of its tombstones until it goes, be they copied or not: only one that has none is
//!     cleaned by the live map, which does not know them.
//! C4  The cleaner can always go on: `cleaner_reserve` segments are taken by nobody else. They are used up while
//!     readers are still in what it has emptied. A pass that ends for want of room keeps what it has copied by then, the
//!     rest stays where it is; what was copied is dead there, and tombstones are not copied again.
//! C5  A victim whose live records were not all found or fail their checksums is damaged: it is quarantined,
//!     never reborn. So is one that is read from end to end and holds bytes that are no record: what cannot be
//!     read may be a tombstone. One that is cleaned by the live map has none that is needed.
//!
//! # Crash argument
//! | crash between          | recovery sees                      | and does                           |
//! |------------------------|------------------------------------|------------------------------------|
//! | copied, drained        | old records, perhaps some copies   | keeps one: same key, same number (V6) |
//! | drained, reborn        | both                               | keeps one                          |
//! | head, tail reborn      | two generations                    | counts the later: the segment is empty |

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use farbank_pm::epoch::EpochSlot;
use farbank_pm::model::Category;
use farbank_pm::situation;
use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::sync::thread;
use farbank_pm::{Drain, Medium, Off, PersistCtx, Poisoned};

use crate::cleaning_pass::{CleaningPass, SliceLimit, SliceProgress};
use crate::config::CleaningMode;
use crate::engine::Engine;
use crate::free_segments::CleanOutcome;
use crate::segment::SegmentInfo;
use crate::session_log::SessionLog;
use crate::unreadable;

/// Bytes of victims a pass takes where a drain is a fence; and segments, at most.
const PASS_BYTES: usize = 2 << 20;
const PASS_SEGMENTS: usize = 4;
/// How often the oldest segments are emptied in turn until tombstones are gone.
const PURGE_ROUNDS: u32 = 3;
/// Bytes of records that one slice of a pass copies.
pub(crate) const SLICE_BYTES: usize = 256 << 10;

/// Whoever waits for readers lets others run so often before it sleeps.
const YIELDS: u32 = 1_000;
/// And so long, each time.
const NAP: Duration = Duration::from_millis(1);

/// What waiting for readers has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RetiredWait {
    /// Nothing waits for them.
    Empty,
    /// They have left something.
    Passing,
    /// They have not.
    Held,
}

/// What one call of [`Engine::clean_slice`] has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SliceOutcome {
    /// A slice of a pass.
    Pass(SliceProgress),
    /// There is nothing to gain.
    Nothing,
}

/// What the cleaner keeps between passes, and slices of them.
pub(crate) struct Cleaner {
    pub ctx: PersistCtx,
    pub log: SessionLog,
    pub slot: EpochSlot,
    /// Of victims that had to be kept: where tombstones were met that have copies by now, and need no more.
    pub copied: HashMap<u32, HashSet<Off>>,
    /// The pass that has begun, if one has.
    pub pass: Option<Box<CleaningPass>>,
    /// Passes that have begun so far.
    pub passes: u64,
}

impl Cleaner {
    pub(crate) fn new(id: u32, slot: EpochSlot) -> Cleaner {
        Cleaner {
            ctx: PersistCtx::new(id),
            log: SessionLog::default(),
            slot,
            copied: HashMap::new(),
            pass: None,
            passes: 0,
        }
    }

    /// Whether the tombstone at `at` was copied when `victim` was cleaned before, and had to be kept.
    pub(crate) fn has_copied(&self, victim: u32, at: Off) -> bool {
        let places = self.copied.get(&victim);
        places.is_some_and(|places| places.contains(&at))
    }

    /// What the cleaner's context has asked of the medium.
    pub(crate) fn counters(&self) -> farbank_pm::PersistCounters {
        self.ctx.counters
    }
}

impl<M: Medium> Engine<M> {
    /// The class of a record that replaces the one at `old`: the longer the old one lived, the longer the new
    /// one is expected to. Ages are counted in appended bytes, relative to the live ones.
    pub(crate) fn lifetime(&self, old: Option<Off>) -> usize {
        let classes = self.classes();
        if classes == 1 {
            return 0;
        }
        match old {
            None => classes - 1,
            Some(old) => self.class_of_age(self.info_at(old).born.load(Relaxed)),
        }
    }

    pub(crate) fn class_of_age(&self, born: u64) -> usize {
        let age = self.written.load(Relaxed).saturating_sub(born);
        let live = self.occupied().max(1);
        let class = match age {
            _ if age * 4 < live => 0,
            _ if age < live => 1,
            _ if age < live * 4 => 2,
            _ => 3,
        };
        class.min(self.classes() - 1)
    }

    /// Cleans until `want` segments are free, or there is nothing to gain. The caller is
    /// unpinned and holds no lock. The cleaner's lock is free between slices.
    pub(crate) fn clean_until(&self, want: u32) -> Result<CleanOutcome, Poisoned> {
        let _spending = Category::Resize.spend();
        // Once round: what a run moves twice it does not gain.
        let mut budget = self.pool.segments();
        loop {
            self.check_poison()?;
            let mut cleaner = self.cleaner.lock().expect("no holder panics");
            self.rebirth_between(&mut cleaner, true)?;
            if self.free_count() >= want {
                return Ok(CleanOutcome::Gained);
            }
            let step = self.clean_slice(&mut cleaner, self.whole_slice(), &mut budget)?;
            drop(cleaner);
            self.free.wake_waiters();
            match step {
                SliceOutcome::Pass(SliceProgress::Going | SliceProgress::Undrained) => continue,
                SliceOutcome::Pass(SliceProgress::Ended { retired }) if retired > 0 => continue,
                SliceOutcome::Pass(_) | SliceOutcome::Nothing => {}
            }
            // Nothing to empty, or no room to empty it: others have to leave what was emptied before.
            match self.wait_for_limbo(want)? {
                RetiredWait::Passing => {}
                RetiredWait::Empty if step != SliceOutcome::Nothing => thread::yield_now(),
                RetiredWait::Empty | RetiredWait::Held if self.free_count() >= want => {
                    return Ok(CleanOutcome::Gained);
                }
                RetiredWait::Empty if budget > 0 => return Ok(CleanOutcome::Nothing),
                // Each pass was to gain something, and others have taken that, or do not leave it.
                RetiredWait::Empty | RetiredWait::Held => return Ok(CleanOutcome::HeldUp),
            }
        }
    }

    /// The largest slice, for callers that may wait for the device.
    pub(crate) fn whole_slice(&self) -> SliceLimit {
        SliceLimit {
            records: self.config.slice_records.max(1) as usize,
            bytes: SLICE_BYTES,
            may_settle: true,
        }
    }

    /// Goes on with the cleaner's pass by a slice. Begins one if there is none, over at most `budget` victims, and takes
    /// them off it.
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

    /// Gives new lives to segments in retired. Where that waits for the device it is put off while a pass is under way, so that
    /// one wait is for many segments; `may_settle` is whether the caller may wait.
    pub(crate) fn rebirth_between(
        &self,
        cleaner: &mut Cleaner,
        may_settle: bool,
    ) -> Result<usize, Poisoned> {
        let is_quick = self.caps().drain == Drain::Fence;
        match is_quick || (may_settle && cleaner.pass.is_none()) {
            true => self.rebirth(&mut cleaner.ctx),
            false => Ok(0),
        }
    }

    /// Goes on with the pass numbered `number` until it is over.
    fn finish_pass(&self, number: u64) -> Result<(), Poisoned> {
        loop {
            self.check_poison()?;
            let mut cleaner = self.cleaner.lock().expect("no holder panics");
            if cleaner.pass.is_none() || cleaner.passes != number {
                return Ok(());
            }
            self.advance_pass(&mut cleaner, self.whole_slice())?;
            drop(cleaner);
            self.free.wake_waiters();
        }
    }

    /// Empties the oldest segments until tombstones that wait for them are gone and `len` bytes fit; false if that
    /// does not happen, at once if tombstones are not what is in the way. The caller is unpinned and holds no
    /// lock.
    pub(crate) fn make_tombstones_go(&self, len: usize) -> Result<bool, Poisoned> {
        self.empty_oldest(&|| self.fits_exactly(len) || !self.would_fit(len))?;
        Ok(self.fits_exactly(len))
    }

    /// Empties the oldest segments, one after the other, until `is_enough`, or all of them some times: what is
    /// copied in the first round, because a segment of the tombstone's time is still there, goes in the next.
    pub(crate) fn empty_oldest(
        &self,
        is_enough: &dyn Fn() -> bool,
    ) -> Result<CleanOutcome, Poisoned> {
        let low = self.stock_low();
        for _ in 0..PURGE_ROUNDS * self.pool.segments() {
            if is_enough() {
                return Ok(CleanOutcome::Gained);
            }
            if self.config.cleaning == CleaningMode::Background && self.free_count() < low {
                self.clean_until(low)?; // Writers that need no room of tombstones do not wait for all this.
            }
            let mut cleaner = self.cleaner.lock().expect("no holder panics");
            if cleaner.pass.is_some() {
                // The oldest may be one of its victims.
                let number = cleaner.passes;
                drop(cleaner);
                self.finish_pass(number)?;
                continue;
            }
            let oldest = (0..self.pool.segments())
                .filter(|s| self.is_candidate(*s))
                .min_by_key(|s| self.info(*s).opened.load(Relaxed));
            let limit = oldest.map_or(u64::MAX, |s| self.info(s).opened.load(Relaxed));
            if self.seal_parked(&mut cleaner.ctx, &|info| info.opened.load(Relaxed) < limit) > 0 {
                continue;
            }
            let Some(victim) = oldest else {
                return Ok(CleanOutcome::Nothing);
            };
            self.begin_pass(&mut cleaner, &[victim]);
            let number = cleaner.passes;
            drop(cleaner);
            self.finish_pass(number)?;
            let mut cleaner = self.cleaner.lock().expect("no holder panics");
            let reborn = self.rebirth_between(&mut cleaner, true)?;
            drop(cleaner);
            self.free.wake_waiters();
            if reborn == 0
                && self.free_count() <= 2
                && self.wait_for_limbo(self.cleaner_reserve())? == RetiredWait::Held
            {
                return Ok(CleanOutcome::HeldUp);
            }
        }
        Ok(CleanOutcome::Nothing)
    }

    /// Seals parked segments that `is_wanted`. Returns how many.
    fn seal_parked(&self, ctx: &mut PersistCtx, is_wanted: &dyn Fn(&SegmentInfo) -> bool) -> usize {
        let mut sealed = 0;
        for shared in self.enrolled().iter() {
            let mut parked = shared.parked.lock().expect("no holder panics");
            sealed += parked.seal(self, ctx, is_wanted);
        }
        sealed
    }

    /// Bytes that emptying the parked segments would gain.
    fn gain_of_parked(&self) -> u64 {
        let sessions = self.enrolled();
        let parked = sessions
            .iter()
            .map(|s| s.parked.lock().expect("no holder panics"));
        parked.map(|parked| parked.gain(self)).sum()
    }

    /// Gives readers some time to leave retired.
    fn wait_for_limbo(&self, want: u32) -> Result<RetiredWait, Poisoned> {
        for round in 0..self.config.patience {
            if self.retired.lock().expect("no holder panics").is_empty() {
                return Ok(RetiredWait::Empty);
            }
            let mut cleaner = self.cleaner.lock().expect("no holder panics");
            let reborn = self.rebirth(&mut cleaner.ctx)?;
            drop(cleaner);
            if reborn > 0 || self.free_count() >= want {
                return Ok(RetiredWait::Passing);
            }
            match round < YIELDS {
                true => thread::yield_now(),
                false => thread::sleep(NAP),
            }
        }
        situation!("kv.limbo_held");
        Ok(RetiredWait::Held)
    }

    /// Victims for one pass, best first; none if the bytes that passes could gain make up no segment.
    fn choose(&self, cleaner: &mut Cleaner) -> Vec<u32> {
        let payload = self.geometry.payload() as u64;
        let now = self.written.load(Relaxed);
        let too_many_tombs = self.buried() > u64::from(self.pool.segments()) * payload / 12;
        let mut scored: Vec<(f64, u32)> = Vec::new();
        let mut oldest: Option<(u64, u32)> = None;
        let mut gain = cleaner.log.room_left(self);
        let parked = self.gain_of_parked();
        let mut has_dead_extents = false;
        for segment in 0..self.pool.segments() {
            let info = self.info(segment);
            has_dead_extents |= info.is_dead_extent();
            if !self.is_candidate(segment) {
                continue;
            }
            let dead = self.gain_of(info);
            gain += dead;
            let opened = info.opened.load(Relaxed);
            if oldest.is_none_or(|(o, _)| opened < o) {
                oldest = Some((opened, segment));
            }
            if dead * 64 >= payload {
                let age = now.saturating_sub(info.born.load(Relaxed)) + 1;
                let emptiness = dead as f64 / payload as f64;
                let cost = ((1.0 - emptiness) / emptiness).powi(2) / age as f64;
                scored.push((cost, segment));
            }
        }
        // Extents of large groups go with the segment that their group's record lies in. A session that writes little else
        // would have it open for long.
        let has_groups = |info: &SegmentInfo| info.groups.load(Relaxed) > 0;
        if has_dead_extents && self.seal_parked(&mut cleaner.ctx, &has_groups) > 0 {
            return self.choose(cleaner);
        }
        if gain < payload {
            if gain + parked >= payload {
                // What idle sessions have open is what is missing.
                self.seal_parked(&mut cleaner.ctx, &|_| true);
                return self.choose(cleaner);
            }
            return Vec::new();
        }
        let most = (self.pass_bytes() / self.geometry.segment_bytes).clamp(1, PASS_SEGMENTS);
        if scored.len() > most {
            scored.select_nth_unstable_by(most - 1, |a, b| a.0.total_cmp(&b.0));
            scored.truncate(most);
        }
        scored.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut victims: Vec<u32> = scored.into_iter().take(most).map(|(_, s)| s).collect();
        // Tombstones wait for the oldest segment: when they are many, it goes whatever it holds.
        if let Some((_, segment)) = oldest.filter(|_| too_many_tombs)
            && !victims.contains(&segment)
        {
            victims.insert(0, segment);
            victims.truncate(most);
        }
        victims
    }

    /// Bytes of victims a pass takes: few where a drain is a fence, so that what waits for the pass waits for a
    /// millisecond; more where each pass waits for the device.
    fn pass_bytes(&self) -> usize {
        match self.caps().drain {
            Drain::Fence => PASS_BYTES,
            Drain::Sync | Drain::Relaxed => 4 * PASS_BYTES,
        }
    }

    /// Gives a new life to the segments in retired that no reader can be in (C1). Returns how many.
    pub(crate) fn rebirth(&self, ctx: &mut PersistCtx) -> Result<usize, Poisoned> {
        let oldest = self.epochs.oldest();
        let mut reborn = Vec::new();
        {
            let mut retired = self.retired.lock().expect("no holder panics");
            while let Some(&(epoch, segment)) = retired.front()
                && epoch < oldest
            {
                retired.pop_front();
                reborn.push(segment);
            }
        }
        unreadable::keep_out(self, &mut reborn);
        if reborn.is_empty() {
            return Ok(0);
        }
        situation!("kv.reborn");
        self.bear(ctx, &reborn)?;
        for &segment in &reborn {
            self.give_segment(segment);
        }
        Ok(reborn.len())
    }

    /// Gives up the cleaner's pass and closes its open segments.
    ///
    /// # Errors
    /// [`Poisoned`] if the medium has failed.
    pub(crate) fn close_cleaner(&self) -> Result<(), Poisoned> {
        let mut cleaner = self.cleaner_at_rest()?;
        let Cleaner { ctx, log, .. } = &mut *cleaner;
        log.close(self, ctx);
        Ok(())
    }
}
