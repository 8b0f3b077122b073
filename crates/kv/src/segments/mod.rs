//! The segments of a pool: their facts in DRAM, which of them are free, and the changes of their states.
//!
//! ```text
//!              take               seal                begin_pass            retire             initialise
//!   Free ────────────▶ Open ────────────▶ Sealed ────────────▶ Cleaning ────────────▶ Retired ────────────▶ Free
//!    │                                      ▲                     │                      ▲
//!    │                                      └──── end of pass ────┘                      │
//!    └─── take ──▶ Extent, Members (large values and groups) ──── empty_extent ──────────┘
//! ```
//!
//! *Stamps* order the openings of segments: each opening has the next number. Tombstones carry the stamp at which they
//! were listed (KV-CLEAN-3).

pub(crate) mod live_map;
pub(crate) mod pool_access;
pub(crate) mod record_walk;
pub(crate) mod records;
pub(crate) mod space;

use std::collections::VecDeque;

use crossbeam_utils::CachePadded;
use farbank_pm::fault;
use farbank_pm::grow_table::GrowTable;
use farbank_pm::pool::Pool;
use farbank_pm::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use farbank_pm::sync::{Mutex, MutexGuard, unpoisoned};
use farbank_pm::{Caps, Medium, Off, PersistCtx, Poisoned, Ticket};

use crate::format::geometry::Geometry;
use crate::format::segment::{CLASSES, FIRST, SegmentInfo, SegmentPlace, SegmentState};
use crate::segments::live_map::LiveMap;
use crate::segments::pool_access::PoolAccess;
use crate::segments::space::SpaceAccounting;

/// Free segments.
#[derive(Debug, Default)]
struct FreeList {
    list: Mutex<VecDeque<u32>>,
    count: AtomicU32,
    /// Largest number of segments that were free at a time since the last [`Segments::forget_most_free`].
    most: AtomicU32,
}

/// Segments that were emptied and that readers may still use: the epoch of each, and the segment.
pub(crate) type RetiredList = VecDeque<(u64, u32)>;

/// Counters that order the openings of segments and the writes to them.
#[derive(Debug, Default)]
struct Stamps {
    /// Number of segment openings so far.
    latest: CachePadded<AtomicU64>,
    /// Opening stamp of every segment that held records when the pool was opened.
    at_open: u64,
    /// Bytes appended so far. Ages of segments are measured in it.
    appended: CachePadded<AtomicU64>,
}

/// An open pool and its segments.
pub(crate) struct Segments<M: Medium> {
    access: PoolAccess<M>,
    geometry: Geometry,
    infos: GrowTable<SegmentInfo>,
    live_map: LiveMap,
    /// Map of the tombstones that were once their key's newest record. A bit is cleared when its segment is recycled.
    tombstone_map: LiveMap,
    free: FreeList,
    retired: Mutex<RetiredList>,
    stamps: Stamps,
    generation: AtomicU64,
    space: SpaceAccounting,
    /// Number of this opening of the pool (the open epoch).
    open_epoch: u32,
    /// Number of lifetime classes that the configuration asks for; 0: by the size of the pool.
    classes_wanted: usize,
}

impl<M: Medium> Segments<M> {
    pub(crate) fn new(pool: Pool<M>, open_epoch: u32, classes_wanted: usize) -> Segments<M> {
        let infos: GrowTable<SegmentInfo> = GrowTable::new(64);
        infos.reserve(pool.segments() as usize);
        let geometry = Geometry::of(&pool);
        Segments {
            space: SpaceAccounting::new(&geometry),
            geometry,
            live_map: LiveMap::new(pool.medium().len()),
            tombstone_map: LiveMap::new(pool.medium().len()),
            infos,
            free: FreeList::default(),
            retired: Mutex::default(),
            stamps: Stamps::default(),
            generation: AtomicU64::new(0),
            open_epoch,
            classes_wanted,
            access: PoolAccess::new(pool),
        }
    }

    pub(crate) fn access(&self) -> &PoolAccess<M> {
        &self.access
    }

    pub(crate) fn into_medium(self) -> M {
        self.access.into_medium()
    }

    #[inline]
    pub(crate) fn medium(&self) -> &M {
        self.access.medium()
    }

    pub(crate) fn caps(&self) -> &Caps {
        self.access.caps()
    }

    #[inline]
    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the number of segments in the pool.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.access.pool().segments()
    }

    /// Returns the number of this opening of the pool.
    pub(crate) fn open_epoch(&self) -> u32 {
        self.open_epoch
    }

    #[inline]
    pub(crate) fn info(&self, segment: u32) -> &SegmentInfo {
        self.infos.get(segment as usize)
    }

    #[inline]
    pub(crate) fn info_at(&self, at: Off) -> &SegmentInfo {
        self.info(self.geometry.segment_of(at))
    }

    /// Returns the facts about all segments, in order.
    pub(crate) fn infos(&self) -> impl Iterator<Item = &SegmentInfo> {
        (0..self.count()).map(|segment| self.info(segment))
    }

    /// Returns the map of the records that the index points at.
    pub(crate) fn live_map(&self) -> &LiveMap {
        &self.live_map
    }

    /// Returns the map of the tombstones that were once their key's newest record.
    pub(crate) fn tombstone_map(&self) -> &LiveMap {
        &self.tombstone_map
    }

    /// Prefetches the counters that change when the record at `at` dies.
    #[inline]
    pub(crate) fn fetch_for_count(&self, at: Off) {
        farbank_pm::grow_table::prefetch_for_write(self.info_at(at));
        self.live_map.fetch(at);
    }

    /// Counts a record that the index now refers to as live.
    #[inline]
    pub(crate) fn mark_live(&self, at: Off, len: u32) {
        self.live_map.set(at);
        self.info_at(at).mark_live(len);
    }

    /// Counts a record that the index no longer refers to as dead.
    #[inline]
    pub(crate) fn mark_dead(&self, at: Off, len: u32) {
        self.live_map.clear(at);
        self.info_at(at).mark_dead(len);
    }

    /// Counts a tombstone that is now its key's newest record.
    #[inline]
    pub(crate) fn mark_tombstone(&self, at: Off, len: u32) {
        self.tombstone_map.set(at);
        self.info_at(at).tombstone_bytes.fetch_add(len, Relaxed);
    }

    /// Returns how many open segments, one for each class of expected lifetime, a session keeps. Small pools have few
    /// classes.
    pub(crate) fn classes(&self) -> usize {
        match (self.classes_wanted, self.count()) {
            (0, 0..=63) => 1,
            (0, 64..=255) => 2,
            (0, _) => CLASSES,
            (classes, _) => classes.min(CLASSES),
        }
    }

    /// Starts the counter of segment openings. All segments that hold records now get the oldest stamp.
    pub(crate) fn start_stamps(&mut self) {
        self.stamps.at_open = self.generation.load(Relaxed);
        self.stamps.latest.store(self.stamps.at_open, Relaxed);
    }

    /// Returns the number of segment openings so far.
    pub(crate) fn stamp(&self) -> u64 {
        self.stamps.latest.load(Relaxed)
    }

    /// Returns the opening stamp of every segment that held records when the pool was opened.
    pub(crate) fn open_epoch_stamp(&self) -> u64 {
        self.stamps.at_open
    }

    /// Returns the bytes appended to the pool so far.
    pub(crate) fn appended(&self) -> u64 {
        self.stamps.appended.load(Relaxed)
    }

    /// Counts appended bytes.
    pub(crate) fn count_appended(&self, bytes: u64) {
        self.stamps.appended.fetch_add(bytes, Relaxed);
    }

    /// Makes [`Segments::appended`] at least `bytes`.
    pub(crate) fn raise_appended(&self, bytes: u64) {
        self.stamps.appended.fetch_max(bytes, Relaxed);
    }

    /// Returns the accounting of the pool's space.
    #[inline]
    pub(crate) fn space(&self) -> &SpaceAccounting {
        &self.space
    }

    /// Marks a segment as sealed, and counts its waste.
    pub(crate) fn note_sealed(&self, segment: u32) {
        let info = self.info(segment);
        info.set_state(SegmentState::Sealed);
        self.space.count_sealed(info);
    }

    /// Stops counting a sealed segment, which no longer holds records or is quarantined.
    pub(crate) fn note_emptied(&self, segment: u32) {
        self.space.uncount_sealed(self.info(segment));
    }

    /// Counts the waste of all sealed segments, at an open.
    pub(crate) fn count_waste(&self) {
        self.space.count_all_sealed(self.infos());
    }

    /// Retires an extent's segment and subtracts it from the counts. Returns false if the segment is not an extent.
    pub(crate) fn empty_extent(&self, info: &SegmentInfo) -> bool {
        let is_value = info.transition(SegmentState::Extent, SegmentState::Retired);
        let is_extent = is_value || info.transition(SegmentState::Members, SegmentState::Retired);
        if is_extent {
            self.space.uncount_extent(info, is_value);
        }
        is_extent
    }

    /// Removes a segment's tombstones from the counts.
    pub(crate) fn drop_tombstones(&self, info: &SegmentInfo) {
        let tombs = info.tombstone_bytes.swap(0, Relaxed);
        self.space.count_tombstones(-i64::from(tombs));
    }

    /// Returns whether a segment is sealed and its records are all published.
    pub(crate) fn is_candidate(&self, segment: u32) -> bool {
        let info = self.info(segment);
        info.state() == SegmentState::Sealed && info.is_end_unwritten.load(Acquire) == 0
    }

    /// Returns whether there are extents of large groups whose members have all been replaced. Cleaning the segment
    /// with the group's record frees them.
    pub(crate) fn has_dead_extents(&self) -> bool {
        self.infos().any(SegmentInfo::is_dead_extent)
    }

    /// Returns the opening stamp below which open segments should be sealed early, because many tombstones wait for
    /// them. `None` if there are few tombstones.
    pub(crate) fn rotation_limit(&self) -> Option<u64> {
        let segments = u64::from(self.count());
        self.space
            .has_many_tombstones()
            .then(|| self.stamp().saturating_sub(segments / 8))
    }

    /// Makes later generations higher than `generation`.
    pub(crate) fn raise_generation(&self, generation: u64) {
        self.generation.fetch_max(generation, Relaxed);
    }

    fn new_generation(&self) -> u64 {
        if fault!("kv.same_generation") {
            return self.generation.load(Relaxed).max(1);
        }
        self.generation.fetch_add(1, Relaxed) + 1
    }

    /// Returns the number of free segments.
    pub(crate) fn free_count(&self) -> u32 {
        self.free.count.load(Acquire)
    }

    /// Returns whether `segments` were free at one moment since the last [`Segments::forget_most_free`].
    pub(crate) fn had_free(&self, segments: u32) -> bool {
        self.free.most.load(Relaxed) >= segments
    }

    /// Makes [`Segments::had_free`] count from now on.
    pub(crate) fn forget_most_free(&self) {
        self.free.most.store(self.free_count(), Relaxed);
    }

    /// Takes a free segment if more than `keep` would remain. Returns it, opened, and the number that remain free.
    pub(crate) fn take(&self, keep: u32) -> Option<(u32, u32)> {
        let (segment, left) = {
            let mut list = unpoisoned(self.free.list.lock());
            if list.len() as u32 <= keep {
                return None;
            }
            let segment = list.pop_front()?;
            let left = list.len() as u32;
            self.free.count.store(left, Release);
            (segment, left)
        };
        let info = self.info(segment);
        let generation = info.generation.load(Relaxed);
        let place = self.geometry.place(segment);
        let seed = place.record_seed(generation, self.open_epoch);
        info.seed.store(seed, Relaxed);
        let base = self.geometry.base(segment);
        for map in [&self.live_map, &self.tombstone_map] {
            map.clear_all(base, self.geometry.segment_bytes());
        }
        info.opened
            .store(self.stamps.latest.fetch_add(1, Relaxed) + 1, Relaxed);
        info.used.store(FIRST as u32, Relaxed);
        Some((segment, left))
    }

    /// Returns an initialised segment to the free list.
    pub(crate) fn give(&self, segment: u32) {
        self.info(segment).set_state(SegmentState::Free);
        let mut list = unpoisoned(self.free.list.lock());
        list.push_back(segment);
        let count = list.len() as u32;
        self.free.count.store(count, Release);
        self.free.most.fetch_max(count, Relaxed);
    }

    /// Locks the list of retired segments. A thread that frees an extent checks its generation and retires it under
    /// this lock (KV-LARGE-4).
    pub(crate) fn retired(&self) -> MutexGuard<'_, RetiredList> {
        unpoisoned(self.retired.lock())
    }

    /// Takes the retired segments of epochs before `oldest`: no reader can be in them any more.
    pub(crate) fn take_unread(&self, oldest: u64) -> Vec<u32> {
        let mut unread = Vec::new();
        let mut retired = self.retired();
        while let Some(&(epoch, segment)) = retired.front()
            && epoch < oldest
        {
            retired.pop_front();
            unread.push(segment);
        }
        unread
    }

    /// Makes room in DRAM for the facts about `count` segments, after the pool has grown.
    pub(crate) fn reserve(&self, count: u32) {
        self.infos.reserve(count as usize);
        self.live_map.reserve(self.medium().len());
        self.tombstone_map.reserve(self.medium().len());
    }

    /// Initialises `segments` as free, each with a new generation. Durable on `Ok` (KV-SEG-1: tail, then head).
    pub(crate) fn initialise(
        &self,
        ctx: &mut PersistCtx,
        segments: &[u32],
    ) -> Result<(), Poisoned> {
        let fresh: Vec<(SegmentPlace, u64, &SegmentInfo)> = segments
            .iter()
            .map(|s| {
                (
                    self.geometry.place(*s),
                    self.new_generation(),
                    self.info(*s),
                )
            })
            .collect();
        if !self.access.drains_are_real() && !fault!("kv.recycled_before_sync") {
            // The writes that replaced these segments' records were published when drained; make them durable first.
            self.access.settle(Ticket::DURABLE)?;
        }
        for (place, generation, _) in &fresh {
            place.write_tail(self.medium(), ctx, *generation);
        }
        self.access.settle(self.medium().drain(ctx))?;
        for (place, generation, _) in &fresh {
            place.write_head(self.medium(), ctx, *generation);
        }
        self.access.settle(self.medium().drain(ctx))?;
        let _retired = self.retired(); // KV-LARGE-4
        for (_, generation, info) in &fresh {
            info.reset(*generation);
        }
        Ok(())
    }
}
