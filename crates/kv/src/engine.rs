//! The state that all sessions of one pool share.

use crossbeam_utils::CachePadded;
use farbank_pm::epoch::EpochTable;
use farbank_pm::fault;
use farbank_pm::grow_table::GrowTable;
use farbank_pm::key_hash::KeyHash;
use farbank_pm::pool::Pool;
use farbank_pm::process_stamp::ProcessStamp;
use farbank_pm::situation;
use farbank_pm::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};
use farbank_pm::sync::{Arc, Mutex, MutexGuard};
use farbank_pm::{Caps, Drain, Medium, Off, PersistCtx, Poisoned, Ticket};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::cleaner::Cleaner;
use crate::cleaning_pace::CleaningPace;
use crate::config::{CleaningMode, Config};
use crate::free_segments::FreeSegments;
use crate::growth::GrowthState;
use crate::index::{BucketRef, HashIndex};
use crate::live_map::LiveMap;
use crate::pool_root::RootWords;
use crate::read_cache::ReadCache;
use crate::record::RecordType;
use crate::segment::{FIRST, OVERHEAD, SegmentInfo, SegmentPlace, SegmentState};
use crate::segment_map::{MapWriter, map_bytes};
use crate::session_log::OpenSegments;
use crate::stripe::{PendingWrite, Stripe};
use farbank_store::clock::{ClockShift, StoreClock};
use farbank_store::{DATABASES, Error, OpenReport};

/// Segment layout of the pool, and the secrets derived from its id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub first: u64,
    pub segment_bytes: usize,
    /// Bytes of the map at the end of a segment, before the tail. 0 in a pool of format version 1, which has no maps.
    pub map_bytes: usize,
    shift: u32,
    pub pool_key: u64,
    key_hash: KeyHash,
    /// Seed of the key hash of format version 1. `None` in later versions, which use `key_hash`.
    seed_of_version_1: Option<u64>,
}

impl Geometry {
    fn of<M: Medium>(pool: &Pool<M>) -> Geometry {
        let id = pool.id();
        Geometry {
            first: pool.segment(0).0,
            segment_bytes: pool.segment_bytes() as usize,
            map_bytes: match pool.version() {
                1 => 0,
                _ => map_bytes(pool.segment_bytes() as usize),
            },
            shift: pool.segment_bytes().trailing_zeros(),
            pool_key: xxh3_64_with_seed(&id, 1),
            key_hash: pool.key_hash(),
            seed_of_version_1: (pool.version() == 1).then(|| xxh3_64_with_seed(&id, 2)),
        }
    }

    /// Returns the bytes of records that a segment holds.
    pub(crate) fn payload(&self) -> usize {
        self.segment_bytes - OVERHEAD - self.map_bytes
    }

    /// Returns the largest end of the records, in bytes from a segment's start: there the map begins, or without a
    /// map the tail.
    pub(crate) fn records_end(&self) -> usize {
        FIRST + self.payload()
    }

    /// Returns the length of the longest record that lies in the log. Longer values get segments of their own.
    pub(crate) fn inline_max(&self) -> usize {
        self.payload() / 4
    }

    /// Returns the segment that contains `at`.
    #[inline]
    pub(crate) fn segment_of(&self, at: Off) -> u32 {
        ((at.0 - self.first) >> self.shift) as u32
    }

    /// Returns the position of `at` in its segment.
    #[inline]
    pub(crate) fn within(&self, at: Off) -> usize {
        (at.0 - self.first) as usize & (self.segment_bytes - 1)
    }

    pub(crate) fn base(&self, segment: u32) -> Off {
        Off(self.first + (u64::from(segment) << self.shift))
    }

    pub(crate) fn place(&self, segment: u32) -> SegmentPlace {
        SegmentPlace {
            at: self.base(segment),
            bytes: self.segment_bytes,
            pool: self.pool_key,
        }
    }

    #[inline]
    pub(crate) fn hash(&self, db: u8, key: &[u8]) -> u64 {
        match self.seed_of_version_1 {
            None => self.key_hash.hash(u32::from(db), key),
            Some(seed) => xxh3_64_with_seed(key, seed.wrapping_add(u64::from(db))),
        }
    }
}

/// State of a session that other threads read.
#[derive(Debug, Default)]
pub(crate) struct SessionShared {
    pub keys: [AtomicI64; DATABASES],
    /// Gets answered by the read cache, and gets that missed it.
    pub cache_hits: AtomicU64,
    pub cache_misses: AtomicU64,
    pub counters: Mutex<farbank_pm::PersistCounters>,
    /// Bytes of values that [`Engine::live`] does not count yet.
    pub outstanding: AtomicI64,
    /// The session's open segments, while it has nothing unpublished.
    pub parked: Mutex<OpenSegments>,
}

/// Counters that only grow.
#[derive(Debug, Default)]
pub(crate) struct EngineCounters {
    pub user_bytes: AtomicU64,
    pub moved_bytes: AtomicU64,
    pub cleaned: AtomicU64,
    pub expired: AtomicU64,
    pub damaged: AtomicU64,
}

/// An open pool.
pub(crate) struct Engine<M: Medium> {
    pub pool: Pool<M>,
    pub geometry: Geometry,
    pub config: Config,
    pub index: HashIndex,
    pub read_cache: ReadCache,
    pub stripes: Vec<CachePadded<Stripe>>,
    pub segments: GrowTable<SegmentInfo>,
    pub live_map: LiveMap,
    /// Map of the tombstones that were once their key's newest record. A bit is cleared when its segment is recycled.
    pub tombstone_map: LiveMap,
    pub maps: Mutex<MapWriter>,
    pub epochs: EpochTable,
    pub free: FreeSegments,
    pub growth: GrowthState,
    pub pace: CleaningPace,
    /// Number of segment openings so far. A tombstone's reclaim stamp is the number at which it was listed.
    pub stamp: CachePadded<AtomicU64>,
    pub generation: AtomicU64,
    /// Bytes appended so far. Ages of segments are measured in it.
    pub written: CachePadded<AtomicU64>,
    pub live: CachePadded<AtomicI64>,
    pub tombstone_bytes: CachePadded<AtomicI64>,
    /// Segments that hold extents of large values and of groups.
    pub extents: AtomicU32,
    /// Bytes of large values in these segments.
    pub extent_bytes: AtomicI64,
    /// Capacity in bytes of records if every segment could be filled to its end.
    pub capacity_unwasted: AtomicU64,
    /// Sealed segments, and the unused bytes at their ends.
    pub sealed: AtomicU32,
    pub waste: AtomicU64,
    /// Share of wasted bytes that the capacity currently accounts for.
    pub waste_share: AtomicU64,
    /// Emptied segments that readers may still use: epoch, segment.
    pub retired: Mutex<std::collections::VecDeque<(u64, u32)>>,
    /// Version counter of group publications. Odd while a group is being published.
    pub group_version: CachePadded<AtomicU64>,
    pub group_lock: Mutex<()>,
    pub split_lock: Mutex<()>,
    pub flushed_seq: AtomicU64,
    pub clock: StoreClock,
    pub root: Mutex<(PersistCtx, RootWords)>,
    pub cleaner: Mutex<Cleaner>,
    pub sessions: Mutex<Vec<Arc<SessionShared>>>,
    pub next_session: AtomicU32,
    /// Number of this opening of the pool (the open epoch).
    pub open_epoch: u32,
    /// Opening stamp of every segment that held records when the pool was opened.
    pub open_epoch_stamp: u64,
    pub counters: EngineCounters,
    /// The process that opened the pool. A forked child must not use the engine.
    pub process: ProcessStamp,
    pub opened: OpenReport,
    pub poisoned: Mutex<Option<Poisoned>>,
    pub is_poisoned: AtomicBool,
    pub stop: AtomicBool,
}

impl<M: Medium> Engine<M> {
    pub(crate) fn assemble(
        pool: Pool<M>,
        config: Config,
        index: HashIndex,
        segments: GrowTable<SegmentInfo>,
        opened: OpenReport,
    ) -> Engine<M> {
        let geometry = Geometry::of(&pool);
        let words = RootWords::from_root(&pool.root());
        let epochs = EpochTable::default();
        Engine {
            geometry,
            live_map: LiveMap::new(pool.medium().len()),
            tombstone_map: LiveMap::new(pool.medium().len()),
            maps: Mutex::default(),
            read_cache: ReadCache::new(0, 0),
            stripes: Vec::new(),
            free: FreeSegments::default(),
            growth: GrowthState::default(),
            pace: CleaningPace::default(),
            stamp: CachePadded::default(),
            generation: AtomicU64::new(0),
            written: CachePadded::default(),
            live: CachePadded::default(),
            tombstone_bytes: CachePadded::default(),
            extents: AtomicU32::new(0),
            extent_bytes: AtomicI64::new(0),
            capacity_unwasted: AtomicU64::new(0),
            sealed: AtomicU32::new(0),
            waste: AtomicU64::new(0),
            waste_share: AtomicU64::new(0),
            retired: Mutex::default(),
            group_version: CachePadded::default(),
            group_lock: Mutex::default(),
            split_lock: Mutex::default(),
            flushed_seq: AtomicU64::new(words.flushed_seq),
            clock: StoreClock::new(
                (config.clock.clone(), config.uptime.clone()),
                config.step_held_ms,
                words.clock_ms,
                &words.setbacks,
            ),
            root: Mutex::new((PersistCtx::new(u32::MAX), words)),
            cleaner: Mutex::new(Cleaner::new(u32::MAX - 1, epochs.slot())),
            epochs,
            sessions: Mutex::new(vec![Arc::default()]),
            next_session: AtomicU32::new(1),
            open_epoch_stamp: 0,
            open_epoch: words.open_epoch.wrapping_add(1) as u32,
            counters: EngineCounters::default(),
            process: ProcessStamp::current(),
            poisoned: Mutex::default(),
            is_poisoned: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            pool,
            config,
            index,
            segments,
            opened,
        }
    }

    /// Starts the counter of segment openings. All segments that hold records now get the oldest stamp.
    pub(crate) fn start_stamps(&mut self) {
        self.open_epoch_stamp = self.generation.load(Relaxed);
        self.stamp.store(self.open_epoch_stamp, Relaxed);
    }

    /// Sets the engine's index and creates its stripes. Sequence numbers continue from `seq_max`.
    pub(crate) fn install(&mut self, index: HashIndex, seq_max: u64) {
        let stripes = 1_usize << index.first_depth().min(10);
        self.stripes = (0..stripes)
            .map(|_| CachePadded::<Stripe>::default())
            .collect();
        for stripe in &self.stripes {
            stripe.lock().raise_seq(seq_max);
        }
        self.read_cache = ReadCache::new(self.config.read_cache_bytes, stripes);
        self.index = index;
    }

    #[inline]
    pub(crate) fn medium(&self) -> &M {
        self.pool.medium()
    }

    pub(crate) fn caps(&self) -> &Caps {
        self.medium().caps()
    }

    /// Returns whether a drain's ticket is durable as soon as it is issued.
    #[inline]
    pub(crate) fn tickets_are_durable_at_once(&self) -> bool {
        self.caps().drain != Drain::Sync
    }

    /// Returns whether a completed ticket proves durability. With relaxed drains only a settle proves it. Then no
    /// record may certify the records before it, and no segment is sealed.
    #[inline]
    pub(crate) fn drains_are_real(&self) -> bool {
        self.caps().drain != Drain::Relaxed
    }

    #[inline]
    pub(crate) fn stripe(&self, hash: u64) -> &Stripe {
        &self.stripes[self.stripe_number(hash)]
    }

    /// Returns whether any session has staged writes that are not drained.
    #[cfg(feature = "check")]
    pub(crate) fn is_staged(&self) -> bool {
        let staged = |stripe: &CachePadded<Stripe>| stripe.lock().all().any(|p| p.ticket.is_none());
        self.stripes.iter().any(staged)
    }

    #[inline]
    pub(crate) fn stripe_number(&self, hash: u64) -> usize {
        hash as usize & (self.stripes.len() - 1)
    }

    /// Prefetches what a write of `hash`'s key accesses first: its stripe, and the directory word of its index group.
    #[inline]
    pub(crate) fn fetch_for_write(&self, hash: u64) {
        farbank_pm::grow_table::prefetch_for_write(self.stripe(hash));
        self.index.touch_group(hash);
        self.read_cache.fetch(hash);
    }

    /// Prefetches the counters that change when the record at `at` dies.
    #[inline]
    pub(crate) fn fetch_for_count(&self, at: Off) {
        farbank_pm::grow_table::prefetch_for_write(self.info_at(at));
        self.live_map.fetch(at);
    }

    #[inline]
    pub(crate) fn info(&self, segment: u32) -> &SegmentInfo {
        self.segments.get(segment as usize)
    }

    #[inline]
    pub(crate) fn info_at(&self, at: Off) -> &SegmentInfo {
        self.info(self.geometry.segment_of(at))
    }

    /// Returns the store's time, with which expiries are compared.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Returns whether a value with sequence number `seq` that expires at `expires_ms` has expired. An expired value
    /// stays expired, even if the machine's clock is set back: the time is made durable first (on a file: by the
    /// background thread, within a second).
    #[inline]
    pub(crate) fn is_expired(&self, expires_ms: u64, seq: u64) -> bool {
        self.clock.has_expired(expires_ms, seq, || {
            if self.caps().drain == Drain::Fence {
                // An error has poisoned the engine, so the next write fails.
                self.record_time().ok();
            }
        })
    }

    /// Makes the latest time at which a value was found expired durable.
    pub(crate) fn record_time(&self) -> Result<(), Poisoned> {
        self.clock
            .record(|acted_ms| self.set_root(|words| words.clock_ms = words.clock_ms.max(acted_ms)))
    }

    /// Adopts the wall clock's time if it has differed from the store's for long enough.
    pub(crate) fn follow_clock(&self) -> Result<(), Poisoned> {
        match self.clock.shift() {
            None => {}
            Some(ClockShift::Ahead) => self.clock.set_ahead(),
            Some(ClockShift::Behind) => self.set_clock_back()?,
        }
        Ok(())
    }

    /// Sets the store's clock back to the wall clock, if that is behind.
    pub(crate) fn set_clock_back(&self) -> Result<(), Poisoned> {
        // Excludes relocations in progress (KV-PASS-4) and half-published groups: both lock stripes after these
        // locks.
        let _cleaner = self.lock_cleaner_without_pass()?;
        let _group = self.group_lock.lock().expect("no holder panics");
        let mut stripes: Vec<_> = self.stripes.iter().map(|stripe| stripe.lock()).collect();
        let seq_max = stripes.iter().map(|stripe| stripe.seq()).max().unwrap_or(0);
        for stripe in &mut stripes {
            stripe.raise_seq(seq_max);
        }
        let set_back = self.clock.set_back(seq_max, |setbacks, acted_ms| {
            self.set_root(|words| (words.setbacks, words.clock_ms) = (*setbacks, acted_ms))
        })?;
        if set_back {
            self.sweep_all();
        }
        Ok(())
    }

    /// Makes the expiry sweep visit every segment that holds a value with an expiry.
    fn sweep_all(&self) {
        for segment in 0..self.pool.segments() {
            let due = &self.info(segment).expires_ms;
            if due.load(Relaxed) != 0 {
                due.store(1, Relaxed);
            }
        }
    }

    /// Changes the engine's words in the superblock. Durable on `Ok`.
    pub(crate) fn set_root(&self, change: impl FnOnce(&mut RootWords)) -> Result<(), Poisoned> {
        let mut root = self.root.lock().expect("no holder panics");
        let (ctx, words) = &mut *root;
        let before = *words;
        change(words);
        if *words == before {
            return Ok(());
        }
        let result = self.pool.set_root(ctx, &words.to_root());
        if let Err(poisoned) = &result {
            *words = before;
            self.poison(poisoned);
        }
        result
    }

    /// Poisons the engine: nothing is acknowledged any more.
    pub(crate) fn poison(&self, why: &Poisoned) {
        self.poisoned
            .lock()
            .expect("no holder panics")
            .get_or_insert_with(|| why.clone());
        self.is_poisoned.store(true, Release);
    }

    #[inline]
    pub(crate) fn check_poison(&self) -> Result<(), Poisoned> {
        if !self.is_poisoned.load(Acquire) {
            return self.process.check();
        }
        match &*self.poisoned.lock().expect("no holder panics") {
            Some(poisoned) => Err(poisoned.clone()),
            None => Ok(()),
        }
    }

    /// Polls a ticket. An error poisons the engine.
    pub(crate) fn poll(&self, ticket: Ticket) -> Result<bool, Poisoned> {
        self.medium()
            .poll(ticket)
            .inspect_err(|why| self.poison(why))
    }

    /// Waits until everything drained so far is certainly durable. An error poisons the engine.
    pub(crate) fn settle(&self, ticket: Ticket) -> Result<(), Poisoned> {
        if fault!("kv.settled_by_tickets") {
            return self.wait(ticket);
        }
        self.medium()
            .wait_until_durable(ticket)
            .inspect_err(|why| self.poison(why))
    }

    /// Waits for a ticket. An error poisons the engine.
    pub(crate) fn wait(&self, ticket: Ticket) -> Result<(), Poisoned> {
        self.medium()
            .wait(ticket)
            .inspect_err(|why| self.poison(why))
    }

    /// Adds an index entry for the record at `at`, whose key has none. The caller holds the stripe's lock.
    #[inline]
    pub(crate) fn insert(&self, hash: u64, at: Off) {
        self.index
            .insert(hash, at, &self.epochs, &|at| self.rehash(at));
    }

    /// Makes room in a full index group and returns the group's new location. The caller holds the stripe's lock.
    pub(crate) fn grow_group(&self, spot: &BucketRef) -> BucketRef {
        self.index
            .lengthen(spot, &self.epochs, &|at| self.rehash(at))
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

    /// Returns the reclaim stamp of a record that is about to be listed. The caller holds its stripe's lock.
    pub(crate) fn reclaim_stamp_of(&self, what: RecordType) -> u64 {
        match what {
            RecordType::Tombstone => self.stamp.load(Relaxed),
            _ => PendingWrite::NO_RECLAIM_STAMP,
        }
    }

    /// Takes a free segment if more than `keep` segments would remain free.
    pub(crate) fn take_segment(&self, keep: u32) -> Option<u32> {
        let Some((segment, left)) = self.free.take(keep) else {
            self.free.wake_cleaner();
            return None;
        };
        if self.config.cleaning == CleaningMode::Background
            && (left < self.free_segments_wanted() || self.should_grow())
        {
            self.free.wake_cleaner(); // The cleaner starts before writers have to wait.
        }
        let info = self.info(segment);
        let generation = info.generation.load(Relaxed);
        let seed = self
            .geometry
            .place(segment)
            .record_seed(generation, self.open_epoch);
        info.seed.store(seed, Relaxed);
        let base = self.geometry.base(segment);
        for map in [&self.live_map, &self.tombstone_map] {
            map.clear_all(base, self.geometry.segment_bytes);
        }
        info.opened
            .store(self.stamp.fetch_add(1, Relaxed) + 1, Relaxed);
        info.used.store(FIRST as u32, Relaxed);
        Some(segment)
    }

    /// Initialises `segments` as free, each with a new generation. Durable on `Ok` (KV-SEG-1: tail, then head).
    pub(crate) fn initialise_segments(
        &self,
        ctx: &mut PersistCtx,
        segments: &[u32],
    ) -> Result<(), Poisoned> {
        let lives: Vec<(SegmentPlace, u64, &SegmentInfo)> = segments
            .iter()
            .map(|s| {
                (
                    self.geometry.place(*s),
                    self.new_generation(),
                    self.info(*s),
                )
            })
            .collect();
        if !self.drains_are_real() && !fault!("kv.reborn_before_sync") {
            // The writes that replaced these segments' records were published when drained; make them durable first.
            self.settle(Ticket::DURABLE)?;
        }
        for (place, generation, _) in &lives {
            place.write_tail(self.medium(), ctx, *generation);
        }
        self.settle(self.medium().drain(ctx))?;
        for (place, generation, _) in &lives {
            place.write_head(self.medium(), ctx, *generation);
        }
        self.settle(self.medium().drain(ctx))?;
        // A thread that frees an extent checks its generation and retires it under this lock (KV-LARGE-4).
        let _limbo = self.retired.lock().expect("no holder panics");
        for (_, generation, info) in &lives {
            info.reset(*generation);
        }
        Ok(())
    }

    /// Returns an initialised segment to the free list.
    pub(crate) fn give_segment(&self, segment: u32) {
        self.info(segment).set_state(SegmentState::Free);
        self.free.give(segment);
    }

    /// Returns how many open segments, one for each class of expected lifetime, a session keeps. Small pools have few
    /// classes.
    pub(crate) fn classes(&self) -> usize {
        match (self.config.classes, self.pool.segments()) {
            (0, 0..=63) => 1,
            (0, 64..=255) => 2,
            (0, _) => crate::session_log::CLASSES,
            (classes, _) => classes.min(crate::session_log::CLASSES),
        }
    }

    /// Returns the bytes of live records, including large values outside the log.
    pub(crate) fn live_bytes(&self) -> u64 {
        let live = self.live.load(Relaxed) + self.extent_bytes.load(Relaxed);
        live.max(0) as u64
    }

    pub(crate) fn new_generation(&self) -> u64 {
        if fault!("kv.same_generation") {
            return self.generation.load(Relaxed).max(1);
        }
        self.generation.fetch_add(1, Relaxed) + 1
    }

    /// Returns the error for a write that finds no room.
    #[cold]
    pub(crate) fn full(&self) -> Error {
        self.growth.error().map_or(Error::Full, Error::CannotGrow)
    }

    /// Returns whether the pool may grow and the attempt may succeed.
    pub(crate) fn may_grow(&self) -> bool {
        self.growth_step() > 0 && self.growth.may_succeed()
    }

    /// Returns how many segments the next growth step adds.
    pub(crate) fn growth_step(&self) -> u32 {
        let has = self.pool.segments(); // Read first: another thread may grow the pool; none shrinks it.
        self.segments_next() - has
    }

    /// Returns the number of segments after the next growth step.
    fn segments_next(&self) -> u32 {
        let most = self.pool.segments_within(self.config.pool_bytes_max);
        self.pool.segments_next(most)
    }

    /// Grows the pool by one step. Returns false if it may not grow or there is no space.
    pub(crate) fn grow_pool(&self) -> bool {
        if !self.growth.may_succeed() {
            return false;
        }
        let before = self.pool.segments();
        let mut root = self.root.lock().expect("no holder panics");
        let ctx = &mut root.0;
        if self.pool.segments() != before {
            return true;
        }
        let after = self.segments_next();
        if after <= before {
            return false;
        }
        if let Err(error) = self.pool.grow(ctx, after) {
            self.growth.failed(&error);
            return false;
        }
        situation!("kv.grown");
        self.growth.succeeded();
        self.segments.reserve(after as usize);
        self.live_map.reserve(self.medium().len());
        self.tombstone_map.reserve(self.medium().len());
        let fresh: Vec<u32> = (before..after).collect();
        if self.initialise_segments(ctx, &fresh).is_err() {
            return false;
        }
        drop(root);
        let born = u64::from(after);
        if self
            .set_root(|words| words.segments_initialised = words.segments_initialised.max(born))
            .is_err()
        {
            return false;
        }
        for segment in before..after {
            self.give_segment(segment);
        }
        self.recount_capacity();
        true
    }

    /// Splits index groups until the index has caught up with its growth. The caller must hold no locks.
    pub(crate) fn grow_index(&self) {
        if self.index.wants_touch() && self.config.cleaning == CleaningMode::Background {
            self.free.wake_cleaner();
        }
        while self.index.wants_split() {
            let Ok(_one) = self.split_lock.try_lock() else {
                return;
            };
            let stripe = self.stripe(self.index.next_split());
            let _locked = stripe.lock();
            self.index.split(&self.epochs, &|at| self.rehash(at));
        }
    }

    /// Registers a session: returns its id and its shared state. The first entry is the engine's own: it holds the
    /// counts found at open and those of dropped sessions.
    pub(crate) fn register_session(&self) -> (u32, Arc<SessionShared>) {
        let shared = Arc::new(SessionShared::default());
        self.enrolled().push(Arc::clone(&shared));
        self.recount_capacity();
        (self.next_session.fetch_add(1, Relaxed), shared)
    }

    /// Unregisters a session. Its counts move to the engine's own entry.
    pub(crate) fn unregister_session(&self, shared: &Arc<SessionShared>) {
        let mut sessions = self.enrolled();
        let Some(place) = sessions.iter().position(|s| Arc::ptr_eq(s, shared)) else {
            return;
        };
        sessions.swap_remove(place);
        let heir = &sessions[0];
        for (to, from) in heir.keys.iter().zip(&shared.keys) {
            to.fetch_add(from.load(Relaxed), Relaxed);
        }
        for (to, from) in [
            (&heir.cache_hits, &shared.cache_hits),
            (&heir.cache_misses, &shared.cache_misses),
        ] {
            to.fetch_add(from.load(Relaxed), Relaxed);
        }
        let counters = *shared.counters.lock().expect("no holder panics");
        *heir.counters.lock().expect("no holder panics") += counters;
        drop(sessions);
        self.recount_capacity();
    }

    /// Locks the list of registered sessions' shared state.
    pub(crate) fn enrolled(&self) -> MutexGuard<'_, Vec<Arc<SessionShared>>> {
        self.sessions.lock().expect("no holder panics")
    }

    /// Returns the number of keys in `db`.
    pub(crate) fn keys(&self, db: usize) -> u64 {
        let sum: i64 = self
            .enrolled()
            .iter()
            .map(|s| s.keys[db].load(Relaxed))
            .sum();
        sum.max(0) as u64
    }
}
