//! Space accounting: the used and total capacity of the pool.
//!
//! ```text
//!   pool  =  reserves of the cleaner, of deletes and of open segments
//!         +  capacity:  live records │ tombstones │ extents │ slack of the cleaner
//! ```
//!
//! # Invariants
//! KV-SPACE-1  The end of a sealed segment that was too short for the next record is *waste*: no cleaning gains it
//!     while records have these lengths. The share of waste in sealed segments reduces the part of the capacity that
//!     extents do not take, in steps. It does not reduce the part of extents: a pool of large values has few sealed
//!     segments, and their waste does not apply to extents.

use crossbeam_utils::CachePadded;
use farbank_pm::sync::atomic::{
    AtomicI64, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Relaxed,
};

use crate::format::geometry::Geometry;
use crate::format::segment::{SegmentInfo, SegmentState};

/// 1 / `TOMBSTONES_SHARE` of the capacity is reserved for tombstones.
const TOMBSTONES_SHARE: u64 = 64;
/// Resolution of the share of waste: it is counted in 1 / `WASTE_PARTS`.
const WASTE_PARTS: u64 = 1 << 16;
/// The share of waste is updated only if that changes the capacity by more than 1 / `WASTE_STEP`.
const WASTE_STEP: u64 = 50;

/// Bytes in use, and the capacity.
#[derive(Debug)]
pub(crate) struct SpaceAccounting {
    payload: u64,
    records_end: usize,
    inline_max: usize,
    live: CachePadded<AtomicI64>,
    tombstone_bytes: CachePadded<AtomicI64>,
    /// Segments that hold extents of large values and of groups.
    extents: AtomicU32,
    /// Bytes of large values in these segments.
    extent_bytes: AtomicI64,
    /// Capacity in bytes of records if every segment could be filled to its end.
    capacity_unwasted: AtomicU64,
    /// Sealed segments, and the unused bytes at their ends.
    sealed: AtomicU32,
    waste: AtomicU64,
    /// Share of wasted bytes that the capacity currently accounts for.
    waste_share: AtomicU64,
}

impl SpaceAccounting {
    pub(crate) fn new(geometry: &Geometry) -> SpaceAccounting {
        SpaceAccounting {
            payload: geometry.payload() as u64,
            records_end: geometry.records_end(),
            inline_max: geometry.inline_max(),
            live: CachePadded::default(),
            tombstone_bytes: CachePadded::default(),
            extents: AtomicU32::new(0),
            extent_bytes: AtomicI64::new(0),
            capacity_unwasted: AtomicU64::new(0),
            sealed: AtomicU32::new(0),
            waste: AtomicU64::new(0),
            waste_share: AtomicU64::new(0),
        }
    }

    /// Adds to the bytes of live records.
    #[inline]
    pub(crate) fn count_live(&self, more: i64) {
        self.live.fetch_add(more, Relaxed);
    }

    /// Adds to the bytes of tombstones.
    #[inline]
    pub(crate) fn count_tombstones(&self, more: i64) {
        self.tombstone_bytes.fetch_add(more, Relaxed);
    }

    /// Counts a segment that has become an extent.
    pub(crate) fn count_extent(&self, info: &SegmentInfo) {
        self.extents.fetch_add(1, AcqRel);
        if info.state() == SegmentState::Extent {
            self.extent_bytes.fetch_add(info.extent_bytes(), Relaxed);
        }
    }

    /// Stops counting an extent. `is_value`: whether it held bytes of a large value.
    pub(crate) fn uncount_extent(&self, info: &SegmentInfo, is_value: bool) {
        if is_value {
            self.extent_bytes.fetch_sub(info.extent_bytes(), Relaxed);
        }
        self.extents.fetch_sub(1, AcqRel);
    }

    /// Returns the number of extents.
    pub(crate) fn extents(&self) -> u32 {
        self.extents.load(Relaxed)
    }

    /// Returns the bytes of large values in extents.
    pub(crate) fn extent_bytes(&self) -> i64 {
        self.extent_bytes.load(Relaxed)
    }

    /// Returns the bytes of live records, including large values outside the log.
    pub(crate) fn live_bytes(&self) -> u64 {
        let live = self.live.load(Relaxed) + self.extent_bytes.load(Relaxed);
        live.max(0) as u64
    }

    /// Bytes of live values, with their records and extents.
    fn live_value_bytes(&self) -> u64 {
        let live = self.live.load(Relaxed) + self.extents_payload() as i64;
        live.max(0) as u64
    }

    /// Bytes that extents take. Each counts as a whole segment.
    fn extents_payload(&self) -> u64 {
        u64::from(self.extents.load(Relaxed)) * self.payload
    }

    /// Bytes of tombstones that are not dropped yet.
    pub(crate) fn tombstone_bytes(&self) -> u64 {
        self.tombstone_bytes.load(Relaxed).max(0) as u64
    }

    /// Bytes of live values and of tombstones.
    pub(crate) fn occupied(&self) -> u64 {
        self.live_value_bytes() + self.tombstone_bytes()
    }

    /// Bytes of records, including tombstones, that the pool holds before it refuses writes.
    pub(crate) fn capacity(&self) -> u64 {
        let whole = self.capacity_unwasted.load(Relaxed);
        whole.saturating_sub(self.bytes_wasted(self.waste_share.load(Relaxed)))
    }

    /// Sets the capacity to what `kept` reserved segments of `segments` leave.
    pub(crate) fn recount_capacity(&self, segments: u64, kept: u64) {
        let whole = segments.saturating_sub(kept) * self.payload / 100 * 95;
        self.capacity_unwasted.store(whole, Relaxed);
        self.follow_waste();
    }

    /// Updates the share of waste (KV-SPACE-1). A small change is ignored. Otherwise a full pool could refuse a value
    /// in place of one just deleted, because cleaning has packed other records less well. The cleaner's slack is
    /// larger.
    fn follow_waste(&self) {
        let sealed = u64::from(self.sealed.load(Relaxed)) * self.payload;
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
        let left = self.records_end.saturating_sub(used);
        match left < self.inline_max {
            true => left as u64,
            false => 0,
        }
    }

    /// Bytes that cleaning gains from a sealed segment: dead records, and an unused end that is not waste.
    pub(crate) fn gain_of(&self, info: &SegmentInfo) -> u64 {
        let kept = u64::from(info.live_bytes()) + u64::from(info.tombstone_bytes.load(Relaxed));
        let payload = self.payload;
        if kept == 0 {
            return payload;
        }
        payload.saturating_sub(kept + self.waste_of(info))
    }

    /// Counts a segment that has been sealed.
    pub(crate) fn count_sealed(&self, info: &SegmentInfo) {
        self.waste.fetch_add(self.waste_of(info), Relaxed);
        self.sealed.fetch_add(1, Relaxed);
        self.follow_waste();
    }

    /// Stops counting a sealed segment.
    pub(crate) fn uncount_sealed(&self, info: &SegmentInfo) {
        self.waste.fetch_sub(self.waste_of(info), Relaxed);
        self.sealed.fetch_sub(1, Relaxed);
        self.follow_waste();
    }

    /// Counts those of `infos` that are sealed. None may be counted yet.
    pub(crate) fn count_all_sealed<'a>(&self, infos: impl Iterator<Item = &'a SegmentInfo>) {
        let sealed = infos.filter(|info| info.state() == SegmentState::Sealed);
        let (mut count, mut waste) = (0, 0);
        for info in sealed {
            count += 1;
            waste += self.waste_of(info);
        }
        self.sealed.store(count, Relaxed);
        self.waste.store(waste, Relaxed);
    }

    /// Number of extents that a record of `len` bytes takes: 0 if it lies in the log.
    pub(crate) fn extents_for(&self, len: usize) -> usize {
        match len > self.inline_max {
            true => len.div_ceil(self.payload as usize),
            false => 0,
        }
    }

    /// Bytes of capacity that a value of `len` bytes takes if it lies in extents. Each extent counts as a whole
    /// segment.
    pub(crate) fn room_of_large(&self, len: usize) -> usize {
        len.div_ceil(self.payload as usize) * self.payload as usize
    }

    /// Whether `len` more bytes of values leave the tombstones their share of the capacity.
    pub(crate) fn leaves_tombstones_room(&self, len: u64) -> bool {
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

    /// Whether so many bytes are in use that cleaning gains little.
    pub(crate) fn is_nearly_full(&self) -> bool {
        self.occupied() > self.capacity() / 8 * 7
    }
}
