//! What all sessions of one pool share.

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
use crate::clock::{ClockShift, StoreClock};
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
use crate::store::{DATABASES, Error, OpenReport};
use crate::stripe::{PendingWrite, Stripe};

/// How the pool is cut, and the secrets derived from its id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub first: u64,
    pub segment_bytes: usize,
    /// Bytes of a segment's map, before its tail; 0 in a pool of format version 1, which has none.
    pub map_bytes: usize,
    shift: u32,
    pub pool_key: u64,
    key_hash: KeyHash,
    /// The seed of the hash that pools of format version 1 have instead.
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

    /// Bytes of records a segment holds.
    pub(crate) fn payload(&self) -> usize {
        self.segment_bytes - OVERHEAD - self.map_bytes
    }

    /// Where records may end, at most, in bytes from a segment's start: there its map, or its tail, begins.
    pub(crate) fn records_end(&self) -> usize {
        FIRST + self.payload()
    }

    /// The longest record that lies in the log; longer values get segments of their own.
    pub(crate) fn inline_max(&self) -> usize {
        self.payload() / 4
    }

    /// The segment `at` lies in.
    #[inline]
    pub(crate) fn segment_of(&self, at: Off) -> u32 {
        ((at.0 - self.first) >> self.shift) as u32
    }

    /// Where `at` lies in its segment.
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

/// What a session lets the others see.
#[derive(Debug, Default)]
pub(crate) struct SessionShared {
    pub keys: [AtomicI64; DATABASES],
    /// Gets that the read cache answered, and those that it did not.
    pub cache_hits: AtomicU64,
    pub cache_misses: AtomicU64,
    pub counters: Mutex<farbank_pm::PersistCounters>,
    /// Bytes of values that [`Engine::live`] does not count yet.
    pub outstanding: AtomicI64,
    /// Its open segments, while it has nothing unpublished.
    pub parked: Mutex<OpenSegments>,
}

/// Figures that only grow.
#[derive(Debug, Default)]
pub(crate) struct EngineCounters {
    pub user_bytes: AtomicU64,
    pub moved_bytes: AtomicU64,
    pub cleaned: AtomicU64,
    pub expired: AtomicU64,
    pub damaged: AtomicU64,
}

/// One pool, opened.
pub(crate) struct Engine<M: Medium> {
    pub pool: Pool<M>,
    pub geometry: Geometry,
    pub config: Config,
    pub index: HashIndex,
    pub read_cache: ReadCache,
    pub stripes: Vec<CachePadded<Stripe>>,
    pub segments: GrowTable<SegmentInfo>,
    pub live_map: LiveMap,
    /// The same of tombstones: those that were once a key's newest record, until their segment is reborn.
    pub tomb_map: LiveMap,
    pub maps: Mutex<MapWriter>,
    pub epochs: EpochTable,
    pub free: FreeSegments,
    pub growth: GrowthState,
    pub pace: CleaningPace,
    /// Counts segment openings; a tombstone's fence is its value.
    pub stamp: CachePadded<AtomicU64>,
    pub generation: AtomicU64,
    /// Bytes appended so far: the clock of ages.
    pub written: CachePadded<AtomicU64>,
    pub live: CachePadded<AtomicI64>,
    pub tombs: CachePadded<AtomicI64>,
    /// Segments that hold bytes of large values and groups.
    pub extents: AtomicU32,
    /// Bytes of large values in them.
    pub extent_bytes: AtomicI64,
    /// Bytes of records the pool takes if every segment is filled to its end.
    pub capacity_unwasted: AtomicU64,
    /// Sealed segments, and the bytes at their ends that no record fits into.
    pub sealed: AtomicU32,
    pub waste: AtomicU64,
    /// The share of those bytes that the capacity counts with.
    pub waste_share: AtomicU64,
    /// Emptied segments that readers may still be in: epoch, segment.
    pub retired: Mutex<std::collections::VecDeque<(u64, u32)>>,
    /// Odd while a group is being published.
    pub groups: CachePadded<AtomicU64>,
    pub group_lock: Mutex<()>,
    pub split_lock: Mutex<()>,
    pub floor: AtomicU64,
    pub clock: StoreClock,
    pub root: Mutex<(PersistCtx, RootWords)>,
    pub cleaner: Mutex<Cleaner>,
    pub sessions: Mutex<Vec<Arc<SessionShared>>>,
    pub next_session: AtomicU32,
    /// Which opening of the pool this is.
    pub boot: u32,
    /// The stamp of every segment that held something when the pool was opened.
    pub boot_stamp: u64,
    pub tally: EngineCounters,
    /// The one that has the pool open: a forked child uses nothing of this.
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
            tomb_map: LiveMap::new(pool.medium().len()),
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
            tombs: CachePadded::default(),
            extents: AtomicU32::new(0),
            extent_bytes: AtomicI64::new(0),
            capacity_unwasted: AtomicU64::new(0),
            sealed: AtomicU32::new(0),
            waste: AtomicU64::new(0),
            waste_share: AtomicU64::new(0),
            retired: Mutex::default(),
            groups: CachePadded::default(),
            group_lock: Mutex::default(),
            split_lock: Mutex::default(),
            floor: AtomicU64::new(words.floor),
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
            boot_stamp: 0,
            boot: words.boot.wrapping_add(1) as u32,
            tally: EngineCounters::default(),
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

    /// Starts the clock of segment openings: everything there now is as old as it gets.
    pub(crate) fn start_stamps(&mut self) {
        self.boot_stamp = self.generation.load(Relaxed);
        self.stamp.store(self.boot_stamp, Relaxed);
    }

    /// Gives the engine its index, and the stripes that go with it, numbering on from `seq_max`.
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

    /// Whether a drain's ticket is durable when it is issued.
    #[inline]
    pub(crate) fn tickets_turn_at_once(&self) -> bool {
        self.caps().drain != Drain::Sync
    }

    /// Whether a ticket that has turned says something. Where drains are relaxed nothing is ever known
    /// to be durable without settling: no record vouches for others, no end is written down.
    #[inline]
    pub(crate) fn drains_are_real(&self) -> bool {
        self.caps().drain != Drain::Relaxed
    }

    #[inline]
    pub(crate) fn stripe(&self, hash: u64) -> &Stripe {
        &self.stripes[self.stripe_number(hash)]
    }

    /// Whether any session has yet to drain a write.
    #[cfg(feature = "check")]
    pub(crate) fn is_staged(&self) -> bool {
        let staged = |stripe: &CachePadded<Stripe>| stripe.lock().all().any(|p| p.ticket.is_none());
        self.stripes.iter().any(staged)
    }

    #[inline]
    pub(crate) fn stripe_number(&self, hash: u64) -> usize {
        hash as usize & (self.stripes.len() - 1)
    }

    /// Has the CPU fetch what a write of `hash`'s key looks at first: its stripe, and the word of its
    /// group of the index.
    #[inline]
    pub(crate) fn fetch_for_write(&self, hash: u64) {
        farbank_pm::grow_table::prefetch_for_write(self.stripe(hash));
        self.index.touch_group(hash);
        self.read_cache.fetch(hash);
    }

    /// Has the CPU fetch what is changed when the record at `at` lives no more.
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

    /// Now, as expiries see it.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Whether a value numbered `seq` that expires at `expires_ms` is gone. What is once gone stays gone, whatever becomes of the
    /// machine's clock: the time is made durable first (on a file, by the cleaner, within a second).
    #[inline]
    pub(crate) fn is_expired(&self, expires_ms: u64, seq: u64) -> bool {
        self.clock.has_expired(expires_ms, seq, || {
            if self.caps().drain == Drain::Fence {
                // An error has poisoned the engine: writers will hear of it.
                self.record_time().ok();
            }
        })
    }

    /// Makes the latest time that was acted on durable.
    pub(crate) fn record_time(&self) -> Result<(), Poisoned> {
        self.clock
            .record(|acted_ms| self.set_root(|words| words.clock_ms = words.clock_ms.max(acted_ms)))
    }

    /// Follows the wall clock if it has differed for long enough.
    pub(crate) fn follow_clock(&self) -> Result<(), Poisoned> {
        match self.clock.shift() {
            None => {}
            Some(ClockShift::Ahead) => self.clock.set_ahead(),
            Some(ClockShift::Behind) => self.set_clock_back()?,
        }
        Ok(())
    }

    /// Takes the time of a wall clock that is behind, if it is.
    pub(crate) fn set_clock_back(&self) -> Result<(), Poisoned> {
        // No copies in flight (KV-PASS-4), and no group half published: both take stripes after these.
        let _cleaner = self.cleaner_at_rest()?;
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

    /// Has the sweep look at every segment with a value that expires.
    fn sweep_all(&self) {
        for segment in 0..self.pool.segments() {
            let due = &self.info(segment).expires_ms;
            if due.load(Relaxed) != 0 {
                due.store(1, Relaxed);
            }
        }
    }

    /// Changes the engine's words of the superblock; durable on `Ok`.
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

    /// Remembers that nothing may be acknowledged any more.
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

    /// Polls a ticket; an error poisons the engine.
    pub(crate) fn poll(&self, ticket: Ticket) -> Result<bool, Poisoned> {
        self.medium()
            .poll(ticket)
            .inspect_err(|why| self.poison(why))
    }

    /// Waits until everything drained so far is durable for certain; an error poisons the engine.
    pub(crate) fn settle(&self, ticket: Ticket) -> Result<(), Poisoned> {
        if fault!("kv.settled_by_tickets") {
            return self.wait(ticket);
        }
        self.medium()
            .settle(ticket)
            .inspect_err(|why| self.poison(why))
    }

    /// Waits for a ticket; an error poisons the engine.
    pub(crate) fn wait(&self, ticket: Ticket) -> Result<(), Poisoned> {
        self.medium()
            .wait(ticket)
            .inspect_err(|why| self.poison(why))
    }

    /// Under the stripe's lock: makes the index name the record at `at` of a key it has no entry for.
    #[inline]
    pub(crate) fn insert(&self, hash: u64, at: Off) {
        self.index
            .insert(hash, at, &self.epochs, &|at| self.rehash(at));
    }

    /// Under the stripe's lock: makes room in a full group of the index. Where its entries are to be
    /// looked for from now on.
    pub(crate) fn lengthen(&self, spot: &BucketRef) -> BucketRef {
        self.index
            .lengthen(spot, &self.epochs, &|at| self.rehash(at))
    }

    /// Counts a record that the index now points at.
    #[inline]
    pub(crate) fn mark_live(&self, at: Off, len: u32) {
        self.live_map.set(at);
        self.info_at(at).mark_live(len);
    }

    /// Counts a record that the index no longer points at.
    #[inline]
    pub(crate) fn mark_dead(&self, at: Off, len: u32) {
        self.live_map.clear(at);
        self.info_at(at).mark_dead(len);
    }

    /// Counts a tombstone that is its key's newest record.
    #[inline]
    pub(crate) fn bury(&self, at: Off, len: u32) {
        self.tomb_map.set(at);
        self.info_at(at).tombs.fetch_add(len, Relaxed);
    }

    /// The fence of a record that is about to be listed. Under its stripe's lock.
    pub(crate) fn fence_of(&self, what: RecordType) -> u64 {
        match what {
            RecordType::Tomb => self.stamp.load(Relaxed),
            _ => PendingWrite::NO_FENCE,
        }
    }

    /// Takes a free segment if more than `keep` would remain.
    pub(crate) fn take_segment(&self, keep: u32) -> Option<u32> {
        let Some((segment, left)) = self.free.take(keep) else {
            self.free.ring();
            return None;
        };
        if self.config.cleaning == CleaningMode::Background
            && (left < self.stock_wanted() || self.should_grow())
        {
            self.free.ring(); // Before writers have to wait.
        }
        let info = self.info(segment);
        let generation = info.generation.load(Relaxed);
        let seed = self
            .geometry
            .place(segment)
            .record_seed(generation, self.boot);
        info.seed.store(seed, Relaxed);
        let base = self.geometry.base(segment);
        for map in [&self.live_map, &self.tomb_map] {
            map.clear_all(base, self.geometry.segment_bytes);
        }
        info.opened
            .store(self.stamp.fetch_add(1, Relaxed) + 1, Relaxed);
        info.used.store(FIRST as u32, Relaxed);
        Some(segment)
    }

    /// Gives `segments` new, free lives, durable on `Ok` (S1: tail, then head).
    pub(crate) fn bear(&self, ctx: &mut PersistCtx, segments: &[u32]) -> Result<(), Poisoned> {
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
            // What has replaced their records was published when it was drained, and may not be durable.
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
        // Whoever frees an extent looks at its life and takes it under this lock.
        let _limbo = self.retired.lock().expect("no holder panics");
        for (_, generation, info) in &lives {
            info.reset(*generation);
        }
        Ok(())
    }

    /// Gives a reborn segment back.
    pub(crate) fn give_segment(&self, segment: u32) {
        self.info(segment).set_state(SegmentState::Free);
        self.free.give(segment);
    }

    /// Open segments a session keeps, by expected lifetime. Few segments: few classes.
    pub(crate) fn classes(&self) -> usize {
        match (self.config.classes, self.pool.segments()) {
            (0, 0..=63) => 1,
            (0, 64..=255) => 2,
            (0, _) => crate::session_log::CLASSES,
            (classes, _) => classes.min(crate::session_log::CLASSES),
        }
    }

    /// Bytes of live records, those of large values outside of the log included.
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

    /// Why a write that finds no room is refused.
    #[cold]
    pub(crate) fn full(&self) -> Error {
        self.growth.error().map_or(Error::Full, Error::CannotGrow)
    }

    /// Whether the pool may become larger, as far as is known.
    pub(crate) fn may_grow(&self) -> bool {
        self.growth_step() > 0 && self.growth.may_succeed()
    }

    /// Segments that the next step of growth adds.
    pub(crate) fn growth_step(&self) -> u32 {
        let has = self.pool.segments(); // Read first: another thread may make the pool larger, and none makes it smaller.
        self.segments_next() - has
    }

    /// Segments that the pool has after the next step of growth.
    fn segments_next(&self) -> u32 {
        let most = self.pool.segments_within(self.config.pool_bytes_max);
        self.pool.segments_next(most)
    }

    /// Grows the pool by a step, if it may; false if not, or if there is no space.
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
        self.tomb_map.reserve(self.medium().len());
        let fresh: Vec<u32> = (before..after).collect();
        if self.bear(ctx, &fresh).is_err() {
            return false;
        }
        drop(root);
        let born = u64::from(after);
        if self
            .set_root(|words| words.born = words.born.max(born))
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

    /// Splits groups of the index that are behind. No locks may be held.
    pub(crate) fn grow_index(&self) {
        if self.index.wants_touch() && self.config.cleaning == CleaningMode::Background {
            self.free.ring();
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

    /// A fresh identity for a session, and its place to be seen. The first place is the engine's own:
    /// what was there at open, and what sessions leave behind.
    pub(crate) fn enroll(&self) -> (u32, Arc<SessionShared>) {
        let shared = Arc::new(SessionShared::default());
        self.enrolled().push(Arc::clone(&shared));
        self.recount_capacity();
        (self.next_session.fetch_add(1, Relaxed), shared)
    }

    /// Takes a session's place away; its counts stay.
    pub(crate) fn leave(&self, shared: &Arc<SessionShared>) {
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

    /// All sessions' places.
    pub(crate) fn enrolled(&self) -> MutexGuard<'_, Vec<Arc<SessionShared>>> {
        self.sessions.lock().expect("no holder panics")
    }

    /// Keys in `db`.
    pub(crate) fn keys(&self, db: usize) -> u64 {
        let sum: i64 = self
            .enrolled()
            .iter()
            .map(|s| s.keys[db].load(Relaxed))
            .sum();
        sum.max(0) as u64
    }
}
