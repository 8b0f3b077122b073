//! Admission of writes: which free segments are reserved, and whether a write fits.
//!
//! Admission is arithmetic: a refused write costs a few loads and moves no data. The arithmetic never admits a write
//! for which the cleaner cannot make space. So an admitted write waits for a bounded amount of cleaning only.
//!
//! # Invariants
//! KV-SPACE-2  Near the capacity, a write is admitted against all bytes that are live, staged or not yet counted, of
//!     all sessions. Far from it a session reads only the shared counters and its own.
//! KV-SPACE-3  Open segments count as at most 1 / [`OPEN_SHARE`] of the segments, or as two for each lifetime class if
//!     that is more. The limit holds for any number of sessions, because idle sessions park their open segments.

use farbank_pm::Medium;

use crate::engine::Engine;

/// Open segments count as 1 / `OPEN_SHARE` of the segments at most.
const OPEN_SHARE: u64 = 32;
/// Sessions count exactly when no more than 1 / `EXACT_SHARE` of the capacity is left.
const EXACT_SHARE: u64 = 16;

impl<M: Medium> Engine<M> {
    /// Number of segments that only the cleaner may take, so that it can always make progress.
    pub(crate) fn cleaner_reserve(&self) -> u32 {
        2 + self.segments.classes() as u32
    }

    /// Number of segments, besides the cleaner's, that only deletes may take.
    pub(crate) fn delete_reserve(&self) -> u32 {
        1 + self.segments.classes() as u32
    }

    /// Number of free segments below which sessions that do not wait request space.
    pub(crate) fn free_segments_low(&self) -> u32 {
        self.cleaner_reserve() + self.delete_reserve() + self.segments.classes() as u32
    }

    /// Number of free segments below which the background thread begins to clean. It is close to
    /// [`Engine::free_segments_high`], so that writers need not help while the thread waits for a CPU.
    pub(crate) fn free_segments_wanted(&self) -> u32 {
        let (low, high) = (self.free_segments_low(), self.free_segments_high());
        high - (high - low) / 4
    }

    /// Whether the pool should grow before writers need it: it may grow, cleaning would gain little, and free segments
    /// or free capacity are less than half a growth step. Writers do not use that up while the pool grows.
    pub(crate) fn should_grow(&self) -> bool {
        if !self.may_grow() || !self.space().is_nearly_full() {
            return false;
        }
        let least = self.growth_step() / 2;
        let bytes = least as usize * self.geometry().payload();
        self.segments.free_count() < self.free_segments_wanted().max(least)
            || !self.fits_exactly(bytes)
    }

    /// Number of free segments up to which the background thread cleans once it has begun.
    pub(crate) fn free_segments_high(&self) -> u32 {
        self.free_segments_low() + (self.segments.count() / 64).max(4)
    }

    /// Recomputes the capacity: what the reserves of the cleaner, of deletes and of open segments, and
    /// checkpoints, leave.
    pub(crate) fn recount_capacity(&self) {
        let (segments, classes) = (
            u64::from(self.segments.count()),
            self.segments.classes() as u64,
        );
        let sessions = self.sessions.count() as u64;
        let open = (sessions * classes).min((segments / OPEN_SHARE).max(2 * classes));
        let reserves = self.cleaner_reserve() + self.delete_reserve();
        let kept = u64::from(reserves + self.cleaning.checkpoints.segments()) + open;
        self.space().recount_capacity(segments, kept);
    }

    /// Whether `len` more bytes of values fit, besides the `own` bytes that the calling session has not counted yet
    /// (KV-SPACE-2).
    #[inline]
    pub(crate) fn fits(&self, len: usize, own: i64) -> bool {
        let capacity = self.space().capacity();
        let near = capacity - capacity / EXACT_SHARE;
        self.space().occupied() + own.max(0) as u64 + len as u64 <= near || self.fits_exactly(len)
    }

    /// Whether `len` more bytes of values fit, besides the uncounted bytes of all sessions.
    #[cold]
    pub(crate) fn fits_exactly(&self, len: usize) -> bool {
        let len = len as u64 + self.sessions.outstanding();
        self.space().leaves_tombstones_room(len)
            && self.space().occupied() + len <= self.space().capacity()
    }

    /// Whether `len` more bytes of values would fit if there were no tombstones. Values leave a share of the capacity
    /// to tombstones. So a pool full of values accepts many deletes, and values in place of the deleted ones, before
    /// the segments that tombstones wait for must be emptied, which moves most of the pool.
    pub(crate) fn would_fit(&self, len: usize) -> bool {
        self.space()
            .leaves_tombstones_room(len as u64 + self.sessions.outstanding())
    }

    /// Whether a run of the cleaner can free whole segments at once: extents of replaced groups, or checkpoints.
    pub(crate) fn has_segments_to_free(&self) -> bool {
        self.segments.has_dead_extents() || self.cleaning.checkpoints.segments() > 0
    }

    /// Whether `len` more bytes of values do not fit besides the tombstones, and there are tombstones to remove.
    pub(crate) fn lacks_room_for_tombstones(&self, len: usize) -> bool {
        let occupied = self.space().occupied() + self.sessions.outstanding();
        occupied + len as u64 > self.space().capacity() && !self.space().has_few_tombstones()
    }
}

#[cfg(test)]
mod tests {
    use farbank_pm::sim::{Persistency, Sim};
    use farbank_pm::sync::atomic::Ordering::Relaxed;

    use crate::api::Kv;
    use crate::config::Config;

    /// Returns the capacity of a pool with `extents` extents, after `sealed` of its segments were sealed at four fifths
    /// of their length, and the capacity before that.
    fn capacities(sealed: u32, extents: u32) -> (u64, u64) {
        let medium = Sim::new(32 << 20, Persistency::Adr);
        let kv = Kv::create(medium, 32 << 10, Config::default()).expect("a fresh store");
        let engine = &kv.engine;
        for _ in 0..extents {
            engine.space().count_extent(engine.segments.info(0));
        }
        let whole = engine.space().capacity();
        for segment in 0..sealed {
            let used = engine.geometry().records_end() / 5 * 4;
            engine
                .segments
                .info(segment)
                .used
                .store(used as u32, Relaxed);
            engine.segments.note_sealed(segment);
        }
        (engine.space().capacity(), whole)
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
