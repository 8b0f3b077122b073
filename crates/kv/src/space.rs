//! Space accounting: what the pool holds, what it can hold, and whether a write is admitted.
//!
//! ```text
//!   pool  =  reserves of the cleaner, of deletes and of open segments
//!         +  capacity:  live records │ tombstones │ extents │ slack of the cleaner
//! ```
//!
//! Admission is arithmetic: a refused write costs a few loads and moves nothing. The arithmetic never
//! promises room that the cleaner cannot make, so that an admitted write waits for a bounded amount of
//! cleaning only.
//!
//! # Invariants
//! KV-SPACE-1  The end of a sealed segment that was too short for the record that came next is *waste*: no
//!     cleaning gains it while records have these lengths. Of what extents do not take, capacity shrinks by the share of it,
//!     in steps: a pool of large values has few sealed segments, and one that was sealed early says nothing about extents.
//! KV-SPACE-2  A write is admitted against everything that is live, staged or not yet counted by any session,
//!     once that comes near the capacity. Far from it a session looks at the shared counters and its own only.
//! KV-SPACE-3  Open segments take at most [`OPEN_SHARE`] of the capacity, however many sessions there are:
//!     idle sessions park theirs.

use farbank_pm::Medium;
use farbank_pm::sync::atomic::Ordering::Relaxed;

use crate::engine::Engine;
use crate::segment::{SegmentInfo, SegmentState};

/// Of what a pool takes, tombstones have one part in so many for themselves.
const TOMBSTONES_SHARE: u64 = 64;
/// Of its segments, open ones are counted as one part in so many, at most.
const OPEN_SHARE: u64 = 32;
/// The share of waste is counted in so many parts, and followed where it changes the capacity by one part in so many.
const WASTE_PARTS: u64 = 1 << 16;
const WASTE_STEP: u64 = 50;
/// From this part of the capacity on, sessions count exactly.
const EXACT_SHARE: u64 = 16;

impl<M: Medium> Engine<M> {
    /// Segments that only the cleaner may take, so that it can always go on.
    pub(crate) fn cleaner_reserve(&self) -> u32 {
        2 + self.classes() as u32
    }

    /// Segments beyond the cleaner's that only deletes may take.
    pub(crate) fn delete_reserve(&self) -> u32 {
        1 + self.classes() as u32
    }

    /// Free segments below which sessions that do not wait ask for room.
    pub(crate) fn stock_low(&self) -> u32 {
        self.cleaner_reserve() + self.delete_reserve() + self.classes() as u32
    }

    /// Free segments below which the background thread cleans: near those it cleans up to, so that writers do not have to keep
    /// its pace while it gets the processor.
    pub(crate) fn stock_wanted(&self) -> u32 {
        let (low, high) = (self.stock_low(), self.stock_high());
        high - (high - low) / 4
    }

    /// Whether the pool is to grow before writers need it: it may, cleaning would gain little, and what is left, of free
    /// segments or for values, is less than half a step. Writers do not use that up while the step is made.
    pub(crate) fn should_grow(&self) -> bool {
        if !self.may_grow() || !self.is_nearly_full() {
            return false;
        }
        let least = self.growth_step() / 2;
        let bytes = least as usize * self.geometry.payload();
        self.free_count() < self.stock_wanted().max(least) || !self.fits_exactly(bytes)
    }

    /// Whether so much is live that cleaning gains little, and a pool that may grow had better do so.
    pub(crate) fn is_nearly_full(&self) -> bool {
        self.occupied() > self.capacity() / 8 * 7
    }

    /// Free segments up to which the background thread cleans once it has begun.
    pub(crate) fn stock_high(&self) -> u32 {
        self.stock_low() + (self.pool.segments() / 64).max(4)
    }

    /// Bytes of records, tombstones included, the pool takes before it refuses writes.
    pub(crate) fn capacity(&self) -> u64 {
        let whole = self.capacity_unwasted.load(Relaxed);
        whole.saturating_sub(self.bytes_wasted(self.waste_share.load(Relaxed)))
    }

    /// Counts again what is left when the cleaner, deletes and open segments have theirs.
    pub(crate) fn recount_capacity(&self) {
        let (segments, classes) = (u64::from(self.pool.segments()), self.classes() as u64);
        let sessions = self.enrolled().len() as u64;
        let open = (sessions * classes).min((segments / OPEN_SHARE).max(2 * classes));
        let kept = u64::from(self.cleaner_reserve() + self.delete_reserve()) + open;
        let payload = self.geometry.payload() as u64;
        let whole = segments.saturating_sub(kept) * payload / 100 * 95;
        self.capacity_unwasted.store(whole, Relaxed);
        self.follow_waste();
    }

    /// KV-SPACE-1. A capacity that would change little stays as it is: else a pool that is full could refuse a value in
    /// place of one just deleted, because cleaning has packed others less well. The cleaner's slack is larger.
    fn follow_waste(&self) {
        let sealed = u64::from(self.sealed.load(Relaxed)) * self.geometry.payload() as u64;
        let now = (self.waste.load(Relaxed).min(sealed) * WASTE_PARTS).checked_div(sealed);
        let (now, before) = (now.unwrap_or(0), self.waste_share.load(Relaxed));
        let change = self.bytes_wasted(now).abs_diff(self.bytes_wasted(before));
        if change > self.capacity_unwasted.load(Relaxed) / WASTE_STEP {
            self.waste_share.store(now, Relaxed);
        }
    }

    /// Bytes that waste takes of the pool if its share of what extents leave is `share`.
    fn bytes_wasted(&self, share: u64) -> u64 {
        let whole = self.capacity_unwasted.load(Relaxed);
        let in_log = whole.saturating_sub(self.extents_payload());
        (u128::from(in_log) * u128::from(share) / u128::from(WASTE_PARTS)) as u64
    }

    /// Bytes at the end of a segment, sealed where its records end, that records as long as its own cannot
    /// use. A segment that was sealed early has none: what is left of it is worth gaining.
    fn waste_of(&self, info: &SegmentInfo) -> u64 {
        let used = info.used.load(Relaxed) as usize;
        let left = self.geometry.records_end().saturating_sub(used);
        match left < self.geometry.inline_max() {
            true => left as u64,
            false => 0,
        }
    }

    /// Bytes of a sealed segment that cleaning gains: dead records, and an end that was left unused.
    pub(crate) fn gain_of(&self, info: &SegmentInfo) -> u64 {
        let kept = u64::from(info.live_bytes()) + u64::from(info.tombs.load(Relaxed));
        let payload = self.geometry.payload() as u64;
        if kept == 0 {
            return payload;
        }
        payload.saturating_sub(kept + self.waste_of(info))
    }

    /// A segment is full, or is given up: no record is added any more.
    pub(crate) fn note_sealed(&self, segment: u32) {
        let info = self.info(segment);
        info.set_state(SegmentState::Sealed);
        self.waste.fetch_add(self.waste_of(info), Relaxed);
        self.sealed.fetch_add(1, Relaxed);
        self.follow_waste();
    }

    /// A segment that was sealed no longer holds records.
    pub(crate) fn note_emptied(&self, segment: u32) {
        self.waste
            .fetch_sub(self.waste_of(self.info(segment)), Relaxed);
        self.sealed.fetch_sub(1, Relaxed);
        self.follow_waste();
    }

    /// Counts the waste of all sealed segments, when the pool is opened.
    pub(crate) fn count_waste(&self) {
        let infos = (0..self.pool.segments()).map(|segment| self.info(segment));
        let sealed = infos.filter(|info| info.state() == SegmentState::Sealed);
        let (mut count, mut waste) = (0, 0);
        for info in sealed {
            count += 1;
            waste += self.waste_of(info);
        }
        self.sealed.store(count, Relaxed);
        self.waste.store(waste, Relaxed);
        self.recount_capacity();
    }

    /// Bytes of values that must be kept, with their records.
    fn kept(&self) -> u64 {
        let live = self.live.load(Relaxed) + self.extents_payload() as i64;
        live.max(0) as u64
    }

    /// Bytes that extents take, which are counted whole.
    fn extents_payload(&self) -> u64 {
        u64::from(self.extents.load(Relaxed)) * self.geometry.payload() as u64
    }

    /// Bytes of tombstones that must be kept.
    pub(crate) fn buried(&self) -> u64 {
        self.tombs.load(Relaxed).max(0) as u64
    }

    /// Bytes of records that must be kept.
    pub(crate) fn occupied(&self) -> u64 {
        self.kept() + self.buried()
    }

    /// Bytes that no session has counted in [`Engine::live`] yet: staged, or written and not told.
    fn outstanding(&self) -> u64 {
        let sessions = self.enrolled();
        let sum: i64 = sessions.iter().map(|s| s.outstanding.load(Relaxed)).sum();
        sum.max(0) as u64
    }

    /// Whether there is room for `len` bytes of values more, beside the `own` bytes that the calling session
    /// has not counted yet (KV-SPACE-2).
    #[inline]
    pub(crate) fn fits(&self, len: usize, own: i64) -> bool {
        let capacity = self.capacity();
        let near = capacity - capacity / EXACT_SHARE;
        self.occupied() + own.max(0) as u64 + len as u64 <= near || self.fits_exactly(len)
    }

    #[cold]
    pub(crate) fn fits_exactly(&self, len: usize) -> bool {
        let len = len as u64 + self.outstanding();
        self.leaves_tombstones_room(len) && self.occupied() + len <= self.capacity()
    }

    /// Extents that a record of `len` bytes takes: none if it lies in the log.
    pub(crate) fn extents_for(&self, len: usize) -> usize {
        match len > self.geometry.inline_max() {
            true => len.div_ceil(self.geometry.payload()),
            false => 0,
        }
    }

    /// Bytes that a value of `len` bytes takes of the pool if it lies in extents, which are counted whole.
    pub(crate) fn room_of_large(&self, len: usize) -> usize {
        len.div_ceil(self.geometry.payload()) * self.geometry.payload()
    }

    /// Whether there would be room for `len` bytes of values more without any tombstones. Values leave them a
    /// share: a pool that is full of values takes many deletes, and values in place of those deleted, before the
    /// segments that tombstones wait for must be emptied, which moves most of the pool.
    pub(crate) fn would_fit(&self, len: usize) -> bool {
        self.leaves_tombstones_room(len as u64 + self.outstanding())
    }

    /// Whether extents of large groups are kept whose members have all been replaced: cleaning the segment of their
    /// group's record frees them.
    pub(crate) fn has_dead_extents(&self) -> bool {
        (0..self.pool.segments()).any(|segment| self.info(segment).is_dead_extent())
    }

    /// Whether `len` bytes of values more do not fit beside the tombstones, and there are tombstones to remove.
    pub(crate) fn lacks_room_for_tombstones(&self, len: usize) -> bool {
        let occupied = self.occupied() + self.outstanding();
        occupied + len as u64 > self.capacity() && !self.has_few_tombstones()
    }

    fn leaves_tombstones_room(&self, len: u64) -> bool {
        let capacity = self.capacity();
        self.kept() + len <= capacity - capacity / TOMBSTONES_SHARE
    }

    /// Whether tombstones take so much that the segments they wait for should be emptied.
    pub(crate) fn has_many_tombstones(&self) -> bool {
        self.buried() > self.capacity() / TOMBSTONES_SHARE / 2
    }

    /// Whether tombstones have been removed until their share has room for many again.
    pub(crate) fn has_few_tombstones(&self) -> bool {
        self.buried() <= self.capacity() / TOMBSTONES_SHARE / 4
    }

    /// Open segments from before this stamp should be given up: tombstones that wait for them are many.
    pub(crate) fn rotation_limit(&self) -> Option<u64> {
        let segments = u64::from(self.pool.segments());
        self.has_many_tombstones()
            .then(|| self.stamp.load(Relaxed).saturating_sub(segments / 8))
    }

    pub(crate) fn free_count(&self) -> u32 {
        self.free.count()
    }
}

#[cfg(test)]
mod tests {
    use farbank_pm::media::Mapped;

    use super::*;
    use crate::api::Kv;
    use crate::config::Config;

    /// What a pool takes after `sealed` of its segments were sealed at four fifths of their length, while `extents` of them
    /// are extents; and what it would take if none were.
    fn capacities(sealed: u32, extents: u32) -> (u64, u64) {
        let medium = Mapped::anonymous(32 << 20).expect("memory");
        let kv = Kv::create(medium, 32 << 10, Config::default()).expect("a fresh store");
        let engine = &kv.engine;
        engine.extents.store(extents, Relaxed);
        let whole = engine.capacity();
        for segment in 0..sealed {
            let used = engine.geometry.records_end() / 5 * 4;
            engine.info(segment).used.store(used as u32, Relaxed);
            engine.note_sealed(segment);
        }
        (engine.capacity(), whole)
    }

    #[test]
    fn the_share_of_waste_is_taken_from_what_extents_leave() {
        let (capacity, whole) = capacities(3, 0);
        assert!(capacity < whole / 100 * 85, "{capacity} of {whole}");
        let (capacity, whole) = capacities(3, 500);
        assert!(capacity > whole / 100 * 85, "{capacity} of {whole}");
    }

    #[test]
    fn a_pool_that_is_full_of_extents_loses_no_capacity_when_a_segment_is_sealed_early() {
        let (capacity, whole) = capacities(3, 930);
        assert_eq!(capacity, whole, "it would refuse a value in place of one");
    }
}
