//! Space accounting: the used and total capacity of the pool, and the admission of writes.
//!
//! ```text
//!   pool  =  reserves of the cleaner, of deletes and of open segments
//!         +  capacity:  live records │ tombstones │ extents │ slack of the cleaner
//! ```
//!
//! Admission is arithmetic: a refused write costs a few loads and moves no data. The arithmetic never admits a write
//! for which the cleaner cannot make space. So an admitted write waits for a bounded amount of cleaning only.
//!
//! # Invariants
//! KV-SPACE-1  The end of a sealed segment that was too short for the next record is *waste*: no cleaning gains it
//!     while records have these lengths. The share of waste in sealed segments reduces the part of the capacity that
//!     extents do not take, in steps. It does not reduce the part of extents: a pool of large values has few sealed
//!     segments, and their waste does not apply to extents.
//! KV-SPACE-2  Near the capacity, a write is admitted against all bytes that are live, staged or not yet counted, of
//!     all sessions. Far from it a session reads only the shared counters and its own.
//! KV-SPACE-3  Open segments count as at most 1 / [`OPEN_SHARE`] of the segments, or as two for each lifetime class if
//!     that is more. The limit holds for any number of sessions, because idle sessions park their open segments.

use farbank_pm::Medium;
use farbank_pm::sync::atomic::Ordering::Relaxed;

use crate::engine::Engine;
use crate::segment::{SegmentInfo, SegmentState};

/// 1 / `TOMBSTONES_SHARE` of the capacity is reserved for tombstones.
const TOMBSTONES_SHARE: u64 = 64;
/// Open segments count as 1 / `OPEN_SHARE` of the segments at most.
const OPEN_SHARE: u64 = 32;
/// Resolution of the share of waste: it is counted in 1 / `WASTE_PARTS`.
const WASTE_PARTS: u64 = 1 << 16;
/// The share of waste is updated only if that changes the capacity by more than 1 / `WASTE_STEP`.
const WASTE_STEP: u64 = 50;
/// Sessions count exactly when no more than 1 / `EXACT_SHARE` of the capacity is left.
const EXACT_SHARE: u64 = 16;

impl<M: Medium> Engine<M> {
    /// Number of segments that only the cleaner may take, so that it can always make progress.
    pub(crate) fn cleaner_reserve(&self) -> u32 {
        2 + self.classes() as u32
    }

    /// Number of segments, besides the cleaner's, that only deletes may take.
    pub(crate) fn delete_reserve(&self) -> u32 {
        1 + self.classes() as u32
    }

    /// Number of free segments below which sessions that do not wait request space.
    pub(crate) fn free_segments_low(&self) -> u32 {
        self.cleaner_reserve() + self.delete_reserve() + self.classes() as u32
    }

    /// Number of free segments below which the background thread begins to clean. It is close to
    /// [`stock_high`](Self::stock_high), so that writers need not help while the thread waits for a CPU.
    pub(crate) fn free_segments_wanted(&self) -> u32 {
        let (low, high) = (self.free_segments_low(), self.free_segments_high());
        high - (high - low) / 4
    }

    /// Whether the pool should grow before writers need it: it may grow, cleaning would gain little, and free segments
    /// or free capacity are less than half a growth step. Writers do not use that up while the pool grows.
    pub(crate) fn should_grow(&self) -> bool {
        if !self.may_grow() || !self.is_nearly_full() {
            return false;
        }
        let least = self.growth_step() / 2;
        let bytes = least as usize * self.geometry.payload();
        self.free_count() < self.free_segments_wanted().max(least) || !self.fits_exactly(bytes)
    }

    /// Whether so many bytes are in use that cleaning gains little.
    pub(crate) fn is_nearly_full(&self) -> bool {
        self.occupied() > self.capacity() / 8 * 7
    }

    /// Number of free segments up to which the background thread cleans once it has begun.
    pub(crate) fn free_segments_high(&self) -> u32 {
        self.free_segments_low() + (self.pool.segments() / 64).max(4)
    }

    /// Bytes of records, including tombstones, that the pool holds before it refuses writes.
    pub(crate) fn capacity(&self) -> u64 {
        let whole = self.capacity_unwasted.load(Relaxed);
        whole.saturating_sub(self.bytes_wasted(self.waste_share.load(Relaxed)))
    }

    /// Recomputes the capacity: what the reserves of the cleaner, of deletes and of open segments leave.
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

    /// Updates the share of waste (KV-SPACE-1). A small change is ignored. Otherwise a full pool could refuse a value
    /// in place of one just deleted, because cleaning has packed other records less well. The cleaner's slack is
    /// larger.
    fn follow_waste(&self) {
        let sealed = u64::from(self.sealed.load(Relaxed)) * self.geometry.payload() as u64;
        let now = (self.waste.load(Relaxed).min(sealed) * WASTE_PARTS).checked_div(sealed);
        let (now, before) = (now.unwrap_or(0), self.waste_share.load(Relaxed));
        let change = self.bytes_wasted(now).abs_diff(self.bytes_wasted(before));
        if change > self.capacity_unwasted.load(Relaxed) / WASTE_STEP {
            self.waste_share.store(now, Relaxed);
        }
    }

    /// Bytes of waste in the pool, if `share` of the capacity without extents is waste.
    fn bytes_wasted(&self, share: u64) -> u64 {
        let whole = self.capacity_unwasted.load(Relaxed);
        let in_log = whole.saturating_sub(self.extents_payload());
        (u128::from(in_log) * u128::from(share) / u128::from(WASTE_PARTS)) as u64
    }

    /// Bytes of waste at the end of a segment. A segment that was sealed early has none: its unused end is long enough
    /// for any record, and cleaning gains it.
    fn waste_of(&self, info: &SegmentInfo) -> u64 {
        let used = info.used.load(Relaxed) as usize;
        let left = self.geometry.records_end().saturating_sub(used);
        match left < self.geometry.inline_max() {
            true => left as u64,
            false => 0,
        }
    }

    /// Bytes that cleaning gains from a sealed segment: dead records, and an unused end that is not waste.
    pub(crate) fn gain_of(&self, info: &SegmentInfo) -> u64 {
        let kept = u64::from(info.live_bytes()) + u64::from(info.tombstone_bytes.load(Relaxed));
        let payload = self.geometry.payload() as u64;
        if kept == 0 {
            return payload;
        }
        payload.saturating_sub(kept + self.waste_of(info))
    }

    /// Marks a segment as sealed, and counts its waste.
    pub(crate) fn note_sealed(&self, segment: u32) {
        let info = self.info(segment);
        info.set_state(SegmentState::Sealed);
        self.waste.fetch_add(self.waste_of(info), Relaxed);
        self.sealed.fetch_add(1, Relaxed);
        self.follow_waste();
    }

    /// Stops counting a sealed segment, which no longer holds records or is quarantined.
    pub(crate) fn note_emptied(&self, segment: u32) {
        self.waste
            .fetch_sub(self.waste_of(self.info(segment)), Relaxed);
        self.sealed.fetch_sub(1, Relaxed);
        self.follow_waste();
    }

    /// Counts the waste of all sealed segments, at an open.
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

    /// Bytes of live values, with their records and extents.
    fn live_value_bytes(&self) -> u64 {
        let live = self.live.load(Relaxed) + self.extents_payload() as i64;
        live.max(0) as u64
    }

    /// Bytes that extents take. Each counts as a whole segment.
    fn extents_payload(&self) -> u64 {
        u64::from(self.extents.load(Relaxed)) * self.geometry.payload() as u64
    }

    /// Bytes of tombstones that are not dropped yet.
    pub(crate) fn tombstone_bytes(&self) -> u64 {
        self.tombstone_bytes.load(Relaxed).max(0) as u64
    }

    /// Bytes of live values and of tombstones.
    pub(crate) fn occupied(&self) -> u64 {
        self.live_value_bytes() + self.tombstone_bytes()
    }

    /// Bytes of all sessions that are not counted in [`Engine::live`] yet: staged or unpublished records, and counts
    /// that sessions have not flushed.
    fn outstanding(&self) -> u64 {
        let sessions = self.enrolled();
        let sum: i64 = sessions.iter().map(|s| s.outstanding.load(Relaxed)).sum();
        sum.max(0) as u64
    }

    /// Whether `len` more bytes of values fit, besides the `own` bytes that the calling session has not counted yet
    /// (KV-SPACE-2).
    #[inline]
    pub(crate) fn fits(&self, len: usize, own: i64) -> bool {
        let capacity = self.capacity();
        let near = capacity - capacity / EXACT_SHARE;
        self.occupied() + own.max(0) as u64 + len as u64 <= near || self.fits_exactly(len)
    }

    /// Whether `len` more bytes of values fit, besides the uncounted bytes of all sessions.
    #[cold]
    pub(crate) fn fits_exactly(&self, len: usize) -> bool {
        let len = len as u64 + self.outstanding();
        self.leaves_tombstones_room(len) && self.occupied() + len <= self.capacity()
    }

    /// Number of extents that a record of `len` bytes takes: 0 if it lies in the log.
    pub(crate) fn extents_for(&self, len: usize) -> usize {
        match len > self.geometry.inline_max() {
            true => len.div_ceil(self.geometry.payload()),
            false => 0,
        }
    }

    /// Bytes of capacity that a value of `len` bytes takes if it lies in extents. Each extent counts as a whole
    /// segment.
    pub(crate) fn room_of_large(&self, len: usize) -> usize {
        len.div_ceil(self.geometry.payload()) * self.geometry.payload()
    }

    /// Whether `len` more bytes of values would fit if there were no tombstones. Values leave a share of the capacity
    /// to tombstones. So a pool full of values accepts many deletes, and values in place of the deleted ones, before
    /// the segments that tombstones wait for must be emptied, which moves most of the pool.
    pub(crate) fn would_fit(&self, len: usize) -> bool {
        self.leaves_tombstones_room(len as u64 + self.outstanding())
    }

    /// Whether there are extents of large groups whose members have all been replaced. Cleaning the segment with the
    /// group's record frees them.
    pub(crate) fn has_dead_extents(&self) -> bool {
        (0..self.pool.segments()).any(|segment| self.info(segment).is_dead_extent())
    }

    /// Whether `len` more bytes of values do not fit besides the tombstones, and there are tombstones to remove.
    pub(crate) fn lacks_room_for_tombstones(&self, len: usize) -> bool {
        let occupied = self.occupied() + self.outstanding();
        occupied + len as u64 > self.capacity() && !self.has_few_tombstones()
    }

    /// Whether `len` more bytes of values leave the tombstones their share of the capacity.
    fn leaves_tombstones_room(&self, len: u64) -> bool {
        let capacity = self.capacity();
        self.live_value_bytes() + len <= capacity - capacity / TOMBSTONES_SHARE
    }

    /// Whether there are so many tombstones that the segments that they wait for should be emptied.
    pub(crate) fn has_many_tombstones(&self) -> bool {
        self.tombstone_bytes() > self.capacity() / TOMBSTONES_SHARE / 2
    }

    /// Whether tombstones take at most a quarter of their share.
    pub(crate) fn has_few_tombstones(&self) -> bool {
        self.tombstone_bytes() <= self.capacity() / TOMBSTONES_SHARE / 4
    }

    /// Returns the opening stamp below which open segments should be sealed early, because many tombstones wait for
    /// them.
    /// `None` if there are few tombstones.
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

    /// Returns the capacity of a pool with `extents` extents, after `sealed` of its segments were sealed at four fifths
    /// of their length, and the capacity before that.
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
        assert_eq!(
            capacity, whole,
            "a full pool would refuse a value in place of another"
        );
    }
}
