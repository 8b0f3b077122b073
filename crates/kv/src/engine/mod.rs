//! The state that all sessions of one pool share.

mod admission;
pub(crate) mod backup;
pub(crate) mod checkpoint;
mod databases;
pub(crate) mod extents;
pub(crate) mod flush;
mod growth;
pub(crate) mod inconsistency;
pub(crate) mod lookup;
pub(crate) mod map_writer;
pub(crate) mod piece_chain;
mod superblock;
pub(crate) mod unreadable;
pub(crate) mod verify;

use crossbeam_utils::CachePadded;
use farbank_pm::epoch::{EpochSlot, EpochTable};
use farbank_pm::pool::Pool;
use farbank_pm::situation;
use farbank_pm::sync::atomic::{
    AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use farbank_pm::sync::{Arc, Mutex, MutexGuard, unpoisoned};
use farbank_pm::{Caps, Medium, Off, Poisoned, Ticket};
use farbank_store::clock::ClockShift;
use farbank_store::{DatabaseMap, Error, OpenReport};

use crate::cleaner::pace::CleaningPace;
use crate::cleaner::requests::CleanerRequests;
use crate::cleaner::state::Cleaner;
use crate::config::{CleaningMode, Config};
use crate::engine::backup::BackupState;
use crate::engine::checkpoint::Checkpointer;
use crate::engine::databases::Databases;
use crate::engine::growth::GrowthState;
use crate::engine::superblock::Superblock;
use crate::format::geometry::Geometry;
use crate::format::pool_root::RootWords;
use crate::format::record::RecordType;
use crate::format::segment::SegmentInfo;
use crate::format::segment_map::MapWriter;
use crate::index::{BucketRef, HashIndex};
use crate::pending::PendingWrites;
use crate::pending::stripe::{PendingWrite, Stripe};
use crate::read_cache::ReadCache;
use crate::segments::Segments;
use crate::segments::pool_access::PoolAccess;
use crate::segments::space::SpaceAccounting;
use crate::session_log::{RelocationOrigin, SessionLog};
use crate::sessions::{SessionRegistry, SessionShared};

/// Error: no free segment may be taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

/// What the open has found, and counters that only grow.
#[derive(Debug, Default)]
pub(crate) struct EngineCounters {
    pub opened: OpenReport,
    pub user_bytes: AtomicU64,
    pub moved_bytes: AtomicU64,
    pub cleaned: AtomicU64,
    pub expired: AtomicU64,
    pub damaged: AtomicU64,
}

/// What cleans the pool and makes room in it.
pub(crate) struct Cleaning {
    cleaner: Mutex<Cleaner>,
    maps: Mutex<MapWriter>,
    pub pace: CleaningPace,
    pub growth: GrowthState,
    pub requests: CleanerRequests,
    pub checkpoints: Checkpointer,
    /// Set when the background thread must end.
    stop: AtomicBool,
}

impl Cleaning {
    fn new(slot: EpochSlot) -> Cleaning {
        Cleaning {
            cleaner: Mutex::new(Cleaner::new(u32::MAX - 1, slot)),
            maps: Mutex::default(),
            pace: CleaningPace::default(),
            growth: GrowthState::default(),
            requests: CleanerRequests::default(),
            checkpoints: Checkpointer::new(u32::MAX - 2),
            stop: AtomicBool::new(false),
        }
    }

    /// Locks the cleaner.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Cleaner> {
        unpoisoned(self.cleaner.lock())
    }

    /// Locks the cleaner if no other thread holds it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Cleaner>> {
        self.cleaner.try_lock().ok()
    }

    /// Locks the map writer.
    pub(crate) fn maps(&self) -> MutexGuard<'_, MapWriter> {
        unpoisoned(self.maps.lock())
    }

    /// Locks the map writer if no other thread holds it.
    pub(crate) fn try_maps(&self) -> Option<MutexGuard<'_, MapWriter>> {
        self.maps.try_lock().ok()
    }

    /// Makes the background thread end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Release);
        self.requests.wake_cleaner();
    }

    /// Returns whether the background thread must end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Acquire)
    }
}

/// An open pool with its index, its sessions and its cleaner. Each field owns a part of the state.
pub(crate) struct Engine<M: Medium> {
    pub segments: Segments<M>,
    pub superblock: Superblock,
    pub index: HashIndex,
    pub read_cache: ReadCache,
    pub pending: PendingWrites,
    pub sessions: SessionRegistry,
    pub cleaning: Cleaning,
    pub backup: BackupState,
    /// In lines of its own: every operation reads it, and other fields change often.
    pub databases: CachePadded<Databases>,
    pub epochs: EpochTable,
    pub counters: EngineCounters,
    pub config: Config,
}

impl<M: Medium> Engine<M> {
    /// Creates the engine of a pool that is yet to be read: no segment has facts, and the index is empty.
    pub(crate) fn assemble(pool: Pool<M>, config: Config) -> Engine<M> {
        let words = RootWords::from_root(&pool.root());
        let epochs = EpochTable::default();
        let open_epoch = words.open_epoch.wrapping_add(1) as u32;
        Engine {
            segments: Segments::new(pool, open_epoch, config.classes),
            superblock: Superblock::new(words, &config),
            index: HashIndex::new(0),
            read_cache: ReadCache::new(0, 0),
            pending: PendingWrites::default(),
            sessions: SessionRegistry::default(),
            cleaning: Cleaning::new(epochs.slot()),
            backup: BackupState::default(),
            databases: CachePadded::new(Databases::new(words.databases)),
            epochs,
            counters: EngineCounters::default(),
            config,
        }
    }

    /// Sets the engine's index and creates its stripes. Sequence numbers continue from `seq_max`.
    pub(crate) fn install(&mut self, index: HashIndex, seq_max: u64) {
        let stripes = 1_usize << index.first_depth().min(10);
        self.pending = PendingWrites::new(stripes, seq_max);
        self.read_cache = ReadCache::new(self.config.read_cache_bytes, stripes);
        self.index = index;
    }

    /// Returns the access to the pool.
    #[inline]
    pub(crate) fn access(&self) -> &PoolAccess<M> {
        self.segments.access()
    }

    #[inline]
    pub(crate) fn medium(&self) -> &M {
        self.segments.medium()
    }

    pub(crate) fn caps(&self) -> &Caps {
        self.segments.caps()
    }

    #[inline]
    pub(crate) fn geometry(&self) -> &Geometry {
        self.segments.geometry()
    }

    /// Returns the accounting of the pool's space.
    #[inline]
    pub(crate) fn space(&self) -> &SpaceAccounting {
        self.segments.space()
    }

    #[inline]
    pub(crate) fn info(&self, segment: u32) -> &SegmentInfo {
        self.segments.info(segment)
    }

    #[inline]
    pub(crate) fn info_at(&self, at: Off) -> &SegmentInfo {
        self.segments.info_at(at)
    }

    /// Returns the stripe of the keys with `hash`.
    #[inline]
    pub(crate) fn stripe(&self, hash: u64) -> &Stripe {
        self.pending.stripe(hash)
    }

    #[inline]
    pub(crate) fn check_poison(&self) -> Result<(), Poisoned> {
        self.access().check_poison()
    }

    /// Polls a ticket. An error poisons the pool.
    pub(crate) fn poll(&self, ticket: Ticket) -> Result<bool, Poisoned> {
        self.access().poll(ticket)
    }

    /// Waits until everything drained so far is certainly durable. An error poisons the pool.
    pub(crate) fn settle(&self, ticket: Ticket) -> Result<(), Poisoned> {
        self.access().settle(ticket)
    }

    /// Changes the engine's words in the superblock. Durable on `Ok`.
    pub(crate) fn set_root(&self, change: impl FnOnce(&mut RootWords)) -> Result<(), Poisoned> {
        self.superblock.change(self.access(), change)
    }

    /// Returns whether a value with sequence number `seq` that expires at `expires_ms` has expired; see
    /// [`Superblock::is_expired`].
    #[inline]
    pub(crate) fn is_expired(&self, expires_ms: u64, seq: u64) -> bool {
        self.superblock.is_expired(self.access(), expires_ms, seq)
    }

    /// Returns the number of keys in `db` under the mapping `map`.
    pub(crate) fn keys_under(&self, map: DatabaseMap, db: u8) -> u64 {
        self.sessions.keys(usize::from(map.stored(db)))
    }

    /// Repeats `read` until the mapping has not changed meanwhile. Returns the last result.
    pub(crate) fn under_one_mapping<T>(&self, read: impl Fn(DatabaseMap) -> T) -> T {
        loop {
            let view = self.databases.map.view();
            let result = read(view.map);
            if self.databases.map.is_current(&view) {
                return result;
            }
        }
    }

    /// Returns the hash of the key of the record at `at`, if the key can be read.
    pub(crate) fn rehash(&self, at: Off) -> Option<u64> {
        self.segments.rehash(at)
    }

    /// Takes a free segment if more than `keep` segments would remain free.
    pub(crate) fn take_segment(&self, keep: u32) -> Option<u32> {
        let Some((segment, left)) = self.segments.take(keep) else {
            self.cleaning.requests.wake_cleaner();
            return None;
        };
        if self.config.cleaning == CleaningMode::Background
            && (left < self.free_segments_wanted() || self.should_grow())
        {
            self.cleaning.requests.wake_cleaner(); // The cleaner starts before writers have to wait.
        }
        Some(segment)
    }

    /// Ensures that a record of `len` bytes fits into the open segment of `class` of `log`. Opens another segment if
    /// more than `keep` free segments would remain. The new segment gets the ages of `origin` (`None`: the current
    /// ones).
    pub(crate) fn make_room(
        &self,
        log: &mut SessionLog,
        (class, len): (usize, usize),
        keep: u32,
        origin: Option<RelocationOrigin>,
    ) -> Result<(), NoRoom> {
        if !log.has_room(&self.segments, class, len) {
            let segment = self.take_segment(keep).ok_or(NoRoom)?;
            log.open(&self.segments, class, segment, origin);
        }
        Ok(())
    }

    /// Registers a session: returns its id and its shared state.
    pub(crate) fn register_session(&self) -> (u32, Arc<SessionShared>) {
        let registered = self.sessions.add();
        self.recount_capacity();
        registered
    }

    /// Unregisters a session. Its counts move to the engine's own entry.
    pub(crate) fn unregister_session(&self, shared: &Arc<SessionShared>) {
        self.sessions.remove(shared);
        self.recount_capacity();
    }

    /// Prefetches what a write of `hash`'s key accesses first: its stripe, and the directory word of its index group.
    #[inline]
    pub(crate) fn fetch_for_write(&self, hash: u64) {
        farbank_pm::grow_table::prefetch_for_write(self.stripe(hash));
        self.index.touch_group(hash);
        self.read_cache.fetch(hash);
    }

    /// Returns the store's time, with which expiries are compared.
    pub(crate) fn now_ms(&self) -> u64 {
        self.superblock.clock().now_ms()
    }

    /// Adopts the wall clock's time if it has differed from the store's for long enough.
    pub(crate) fn follow_clock(&self) -> Result<(), Poisoned> {
        match self.superblock.clock().shift() {
            None => {}
            Some(ClockShift::Ahead) => self.superblock.clock().set_ahead(),
            Some(ClockShift::Behind) => self.set_clock_back()?,
        }
        Ok(())
    }

    /// Sets the store's clock back to the wall clock, if that is behind.
    pub(crate) fn set_clock_back(&self) -> Result<(), Poisoned> {
        // Excludes relocations in progress (KV-PASS-4) and half-published groups: both lock stripes after these
        // locks.
        let _cleaner = self.lock_cleaner_without_pass()?;
        let _group = self.pending.lock_groups();
        let mut stripes = self.pending.lock_all();
        let seq_max = stripes.iter().map(|stripe| stripe.seq()).max().unwrap_or(0);
        for stripe in &mut stripes {
            stripe.raise_seq(seq_max);
        }
        let set_back = self
            .superblock
            .clock()
            .set_back(seq_max, |setbacks, acted_ms| {
                self.set_root(|words| (words.setbacks, words.clock_ms) = (*setbacks, acted_ms))
            })?;
        if set_back {
            self.sweep_all();
        }
        Ok(())
    }

    /// Makes the expiry sweep visit every segment that holds a value with an expiry.
    fn sweep_all(&self) {
        for info in self.segments.infos() {
            if info.expires_ms.load(Relaxed) != 0 {
                info.expires_ms.store(1, Relaxed);
            }
        }
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

    /// Returns the reclaim stamp of a record that is about to be listed. The caller holds its stripe's lock.
    pub(crate) fn reclaim_stamp_of(&self, what: RecordType) -> u64 {
        match what {
            RecordType::Tombstone => self.segments.stamp(),
            _ => PendingWrite::NO_RECLAIM_STAMP,
        }
    }

    /// Returns the error for a write that finds no room.
    #[cold]
    pub(crate) fn full(&self) -> Error {
        self.cleaning
            .growth
            .error()
            .map_or(Error::Full, Error::CannotGrow)
    }

    /// Returns whether the pool may grow and the attempt may succeed.
    pub(crate) fn may_grow(&self) -> bool {
        self.growth_step() > 0 && self.cleaning.growth.may_succeed()
    }

    /// Returns how many segments the next growth step adds.
    pub(crate) fn growth_step(&self) -> u32 {
        let has = self.segments.count(); // Read first: another thread may grow the pool; none shrinks it.
        self.segments_next() - has
    }

    /// Returns the number of segments after the next growth step.
    fn segments_next(&self) -> u32 {
        let most = self
            .access()
            .pool()
            .segments_within(self.config.pool_bytes_max);
        self.access().pool().segments_next(most)
    }

    /// Grows the pool by one step. Returns false if it may not grow or there is no space.
    pub(crate) fn grow_pool(&self) -> bool {
        if !self.cleaning.growth.may_succeed() {
            return false;
        }
        let before = self.segments.count();
        let mut superblock = self.superblock.lock();
        if self.segments.count() != before {
            return true;
        }
        let after = self.segments_next();
        if after <= before {
            return false;
        }
        if let Err(error) = self.access().pool().grow(&mut superblock.ctx, after) {
            self.cleaning.growth.failed(&error);
            return false;
        }
        situation!("kv.grown");
        self.cleaning.growth.succeeded();
        self.segments.reserve(after);
        let fresh: Vec<u32> = (before..after).collect();
        let initialised = self.segments.initialise(&mut superblock.ctx, &fresh);
        drop(superblock);
        let count = u64::from(after);
        let note_initialised = || {
            self.set_root(|words| {
                words.segments_initialised = words.segments_initialised.max(count)
            })
        };
        if initialised.and_then(|()| note_initialised()).is_err() {
            return false;
        }
        for segment in before..after {
            self.segments.give(segment);
        }
        self.recount_capacity();
        true
    }

    /// Splits index groups until the index has caught up with its growth. The caller must hold no locks.
    pub(crate) fn grow_index(&self) {
        if self.index.wants_touch() && self.config.cleaning == CleaningMode::Background {
            self.cleaning.requests.wake_cleaner();
        }
        while self.index.wants_split() {
            let Some(_split) = self.cleaning.checkpoints.begin_split() else {
                return;
            };
            let stripe = self.stripe(self.index.next_split());
            let _locked = stripe.lock();
            self.index.split(&self.epochs, &|at| self.rehash(at));
        }
    }
}
