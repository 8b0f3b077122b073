//! The cache and its sessions: creation, opening, and the implementations of [`Store`] and [`Session`].

use std::fmt;
use std::io;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use farbank_pm::media::Mapped;
use farbank_pm::pool::{Pool, PoolError, PoolIdentity};
use farbank_pm::sync::atomic::Ordering;
use farbank_pm::sync::{Arc, Mutex};
use farbank_pm::{Caps, Medium, PersistCounters, PersistCtx, Poisoned, Ticket};
use farbank_store::{
    Absence, AreaUsage, BeforeValue as Frame, BeforeValues, CacheStore, ConflictPolicy, DATABASES,
    Error, GetStep, GroupDecision, ItemKey, ItemSession, Key, OpenReport, Ops, ReadView, Session,
    SlabClass, Stats, Store, StoreHealth, StoredItem, UpdateDecision, Value, ValueMeta,
};

use crate::batch::{ChangeDecision, NewItem};
use crate::config::Config;
use crate::engine::Engine;
use crate::group::CacheGroup;
use crate::layout::LOCKED;
use crate::metadata::{MetadataRoom, SlotId, follow};
use crate::recover;
use crate::worker::{CacheWorker, FoundItem, FoundValue};

/// Default size of a page in bytes.
pub const PAGE_BYTES: u64 = 1 << 20;
/// Minimum number of pages of a cache, besides the page of the area table.
pub const PAGES_MIN: u64 = 4;
/// Interval of background maintenance.
const TICK: Duration = Duration::from_secs(1);
/// Pages that one round of maintenance searches for expired items.
const PAGES_A_TICK: u32 = 64;

/// Reason why a cache cannot be created or opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The pool's superblock or its medium is unusable.
    Pool(PoolError),
    /// The pool is too small or too large for its pages, or its sizes are invalid. The text says which.
    Size(String),
    /// The pool belongs to another engine.
    NotACache,
    /// Memory for the metadata cannot be allocated.
    Metadata(io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Pool(error) => error.fmt(f),
            OpenError::Size(why) => f.write_str(why),
            OpenError::NotACache => f.write_str(
                "the pool was created by the durable store, not by the cache: serve it with --engine kv, or use \
                 another pool",
            ),
            OpenError::Metadata(error) => write!(f, "cannot allocate memory for the cache's metadata: {error}"),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<PoolError> for OpenError {
    fn from(error: PoolError) -> OpenError {
        OpenError::Pool(error)
    }
}

impl From<Poisoned> for OpenError {
    fn from(error: Poisoned) -> OpenError {
        OpenError::Pool(PoolError::Poisoned(error))
    }
}

/// A cache with items on the data medium `F` and metadata on `N`. Threads share it; each uses a session of its own.
pub struct Cache<F: Medium, N: Medium = Mapped> {
    engine: Arc<Engine<N, F>>,
    tender: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// Token that each session clones: its reference count is the number of sessions plus one.
    session_count: Arc<()>,
}

/// Allocates the metadata medium in DRAM.
fn in_dram(room: MetadataRoom) -> io::Result<Mapped> {
    Mapped::anonymous(room.bytes)
}

impl<F: Medium> Cache<F> {
    /// Creates an empty cache on all of `far`, in pages of `page_bytes` (a power of two from 4 KiB), with its
    /// metadata in DRAM. Durable on `Ok`.
    pub fn create(far: F, page_bytes: u64, config: Config) -> Result<Cache<F>, OpenError> {
        let identity = PoolIdentity::fresh().map_err(PoolError::Random)?;
        Cache::create_as(far, page_bytes, identity, config, in_dram)
    }

    /// Opens the cache on `far`, with its metadata in DRAM. Every item found is the newest acknowledged one of its
    /// key. An item may be missing, as if it had been evicted.
    pub fn open(far: F, config: Config) -> Result<Cache<F>, OpenError> {
        Cache::open_on(far, config, in_dram)
    }
}

impl<F: Medium, N: Medium> Cache<F, N> {
    /// Creates a cache as [`Cache::create`] does, with the given identity. `near` allocates the metadata medium: it
    /// must return zeros, at least as many bytes as requested.
    pub fn create_as(
        far: F,
        page_bytes: u64,
        identity: PoolIdentity,
        config: Config,
        near: impl FnOnce(MetadataRoom) -> io::Result<N>,
    ) -> Result<Cache<F, N>, OpenError> {
        let pool = recover::create(far, page_bytes, identity, &config)?;
        Cache::on(pool, config, near)
    }

    /// Opens a cache as [`Cache::open`] does, with the given metadata medium: see [`Cache::create_as`].
    pub fn open_on(
        far: F,
        config: Config,
        near: impl FnOnce(MetadataRoom) -> io::Result<N>,
    ) -> Result<Cache<F, N>, OpenError> {
        let pool = Pool::open_with(far, &mut PersistCtx::new(0), config.copies)?;
        Cache::on(pool, config, near)
    }

    fn on(
        pool: Pool<F>,
        config: Config,
        near: impl FnOnce(MetadataRoom) -> io::Result<N>,
    ) -> Result<Cache<F, N>, OpenError> {
        let tended = config.background_maintenance;
        let engine = recover::open(near, pool, config)?;
        let tender = tended.then(|| {
            let engine = Arc::clone(&engine);
            std::thread::spawn(move || maintain(engine))
        });
        if let Some(tender) = &tender {
            let _first = engine.maintenance_thread.set(tender.thread().clone());
        }
        Ok(Cache {
            engine,
            tender: Mutex::new(tender),
            session_count: Arc::new(()),
        })
    }

    /// Creates a session for one worker. It has Tair's operations besides those of [`Session`].
    #[must_use]
    pub fn new_session(&self) -> CacheSession<F, N> {
        CacheSession {
            worker: CacheWorker::new(Arc::clone(&self.engine)),
            _alive: Arc::clone(&self.session_count),
            counted: PersistCounters::default(),
            hashes: Vec::new(),
            slots: Vec::new(),
        }
    }

    /// Returns the report of the open.
    #[must_use]
    pub fn opened(&self) -> &OpenReport {
        &self.engine.opened
    }

    /// Returns the number of pages without a class.
    #[must_use]
    pub fn pages_free(&self) -> usize {
        self.engine.lock().state.free_pages.len()
    }

    /// Returns the number of pages of the pool.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.engine.pages()
    }

    /// Limits the cache to `pages` pages of its pool, also after a restart. Empties other pages: moves their items
    /// where there are free slots, and evicts the others. Returns the number of pages in use then.
    pub fn resize(&self, pages: u32) -> Result<u32, Error> {
        CacheWorker::new(Arc::clone(&self.engine)).resize(pages)
    }

    /// Removes all expired and cleared items, and merges sparse pages. Returns the number of pages freed.
    pub fn tidy(&self) -> Result<u64, Error> {
        let before = self.engine.tally.pages_freed.load(Ordering::Relaxed);
        let mut worker = CacheWorker::new(Arc::clone(&self.engine));
        worker.return_slots_of_all_sessions();
        self.engine.follow_clock(&mut worker.ctx)?;
        worker.sweep(0, u32::MAX)?;
        while worker.merge()? {}
        let after = self.engine.tally.pages_freed.load(Ordering::Relaxed);
        Ok(after - before)
    }

    /// Makes a class that evicts little give up a page for classes that evict more, as background maintenance does
    /// once a second. Returns whether a page was given up.
    pub fn balance(&self) -> Result<bool, Error> {
        let mut worker = CacheWorker::new(Arc::clone(&self.engine));
        worker.return_slots_of_all_sessions();
        worker.balance()
    }

    /// Checks that slots, pages, lists and chains agree (MDB-STATE-1 to MDB-STATE-3). No session may run meanwhile. `Err` describes the
    /// first difference.
    pub fn verify(&self) -> Result<(), String> {
        let _one = self
            .engine
            .maintenance_lock
            .lock()
            .expect("no holder panics");
        CacheWorker::new(Arc::clone(&self.engine)).return_slots_of_all_sessions();
        crate::verify::verify(&self.engine)
    }

    /// Closes cleanly; see [`Store::close`]. Returns the medium.
    ///
    /// # Errors
    /// [`Error::SessionsAlive`], see [`Store::close`]; [`Error::Poisoned`] if the medium has failed, or in a forked
    /// child.
    pub fn close(self) -> Result<Option<F>, Error> {
        self.engine.process.check()?;
        let sessions = Arc::strong_count(&self.session_count) - 1;
        if sessions > 0 {
            return Err(Error::SessionsAlive { sessions });
        }
        self.stop();
        let engine = &*self.engine;
        let mut ctx = PersistCtx::new(0);
        // All data is durable, also on a medium with relaxed drains, before the root says that the close was clean.
        engine.far().wait_until_durable(Ticket::DURABLE)?;
        engine.keep_time(&mut ctx)?;
        let mut root = engine.root.lock().unwrap_or_else(PoisonError::into_inner);
        root.clean = true;
        engine.pool.set_root(&mut ctx, &root.to_words())?;
        drop(root);
        engine.pool.record_clean_close(&mut ctx)?;
        Ok(self.into_medium())
    }

    /// Returns the medium without closing the cache, as after a kill. Returns `None` if a session still exists.
    pub fn into_medium(self) -> Option<F> {
        self.stop();
        let engine = Arc::clone(&self.engine);
        drop(self);
        Arc::into_inner(engine).map(|engine| engine.pool.into_medium())
    }

    fn stop(&self) {
        if !self.engine.process.is_current() {
            return; // A forked child: the background thread belongs to its parent.
        }
        self.engine.stop.store(true, Ordering::Release);
        let mut tender = self.tender.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tender) = tender.take() {
            tender.thread().unpark();
            // A panic of the background thread was already reported.
            let _ = tender.join();
        }
    }
}

impl<F: Medium, N: Medium> Drop for Cache<F, N> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Runs background maintenance. Once a second it records the clock, removes expired items from some pages, merges a
/// sparse page and balances classes. When few pages are free it grows the pool.
fn maintain<N: Medium, F: Medium>(engine: Arc<Engine<N, F>>) {
    let mut from = 0;
    let mut next = Instant::now() + TICK;
    while !engine.stop.load(Ordering::Acquire) {
        std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
        let _one = engine.maintenance_lock.lock().expect("no holder panics");
        let mut worker = CacheWorker::new(Arc::clone(&engine));
        worker.grow_ahead();
        if Instant::now() < next {
            continue;
        }
        next = Instant::now() + TICK;
        let done = worker
            .sweep(from, PAGES_A_TICK)
            .map(|next| from = next)
            .and_then(|()| worker.merge())
            .and_then(|_| worker.balance())
            .and_then(|_| Ok(engine.follow_clock(&mut worker.ctx)?))
            .and_then(|()| Ok(engine.keep_time(&mut worker.ctx)?));
        if done.is_err() {
            return; // The medium has failed; the next write returns the error.
        }
    }
}

impl<F: Medium, N: Medium> Store for Cache<F, N> {
    fn session(&self) -> Box<dyn Session> {
        Box::new(self.new_session())
    }

    fn caps(&self) -> &Caps {
        self.engine.far().caps()
    }

    fn stats(&self) -> Stats {
        crate::stats::stats(&self.engine)
    }

    fn pool_bytes(&self) -> u64 {
        self.engine.far().len()
    }

    fn opened(&self) -> &OpenReport {
        Cache::opened(self)
    }

    fn health(&self) -> StoreHealth {
        StoreHealth {
            poisoned: self.engine.far().poll(Ticket::NEVER).err(),
            file: self.engine.far().file_trouble(),
            growth_error: self.engine.growth_error(),
        }
    }

    fn as_cache(&self) -> Option<&dyn CacheStore> {
        Some(self)
    }

    fn item_bytes_max(&self) -> usize {
        self.engine.pool.segment_bytes() as usize
    }

    fn on_turn(&self, wake: std::sync::Arc<dyn Fn() + Send + Sync>) {
        self.engine.far().on_durable(wake);
    }

    fn close(self: Box<Self>) -> Result<(), Error> {
        Cache::close(*self).map(|_| ())
    }
}

impl<F: Medium, N: Medium> CacheStore for Cache<F, N> {
    fn item_session(&self) -> Box<dyn ItemSession> {
        Box::new(self.new_session())
    }

    /// Writes two words, however many items there are.
    fn clear_area(&self, area: u16) -> Result<(), Error> {
        self.engine.areas.check(area)?;
        self.engine.clear(&mut PersistCtx::new(0), Some(area))
    }

    fn set_quota(&self, area: u16, quota_bytes: Option<u64>) -> Result<(), Error> {
        self.engine.areas.check(area)?;
        self.engine.areas.set_quota(area, quota_bytes);
        Ok(())
    }

    fn area_usage(&self, area: u16) -> AreaUsage {
        let areas = &self.engine.areas;
        match areas.check(area) {
            Ok(()) => AreaUsage {
                items: areas.items(area),
                bytes: areas.bytes(area),
            },
            Err(_) => AreaUsage::default(),
        }
    }

    fn slab_classes(&self) -> Vec<SlabClass> {
        let figures = self.stats().cache;
        figures.map_or_else(Vec::new, |figures| figures.classes)
    }
}

/// A session of a cache: a [`Session`] with Tair's operations (see `tair_api.rs`). A write through [`Session`] is
/// durable and visible once it is committed, and other writers of its keys wait for that. A write through an
/// [`ItemKey`] is durable and visible when the call returns.
pub struct CacheSession<F: Medium, N: Medium = Mapped> {
    pub(crate) worker: CacheWorker<N, F>,
    /// The cache cannot be closed while it has sessions.
    _alive: Arc<()>,
    /// Counts of the persistence context that were already added to the cache's totals.
    counted: PersistCounters,
    /// Buffers for prefetching, kept to avoid allocations.
    hashes: Vec<u64>,
    slots: Vec<SlotId>,
}

pub(crate) fn check_database(db: u8) -> Result<(), Error> {
    match usize::from(db) < DATABASES {
        true => Ok(()),
        false => Err(Error::NoDatabase { db }),
    }
}

/// Returns the item key of a key of the common operations.
pub(crate) fn name_of(key: Key<'_>) -> ItemKey<'_> {
    ItemKey::new(key.db.into(), key.bytes)
}

fn draft_of(value: Value<'_>) -> NewItem<'_> {
    NewItem {
        value: value.bytes,
        expires_ms: value.expires_ms,
        flags: value.flags,
        kind: value.kind,
        marks: 0,
    }
}

impl<F: Medium, N: Medium> Ops for CacheSession<F, N> {
    fn get(
        &mut self,
        key: Key<'_>,
        view: ReadView,
        out: &mut Vec<u8>,
        head: Frame<'_>,
    ) -> Result<bool, Error> {
        self.admit(key.db)?;
        let name = name_of(key);
        let hash = self.worker.engine.hash(&name);
        if let Some(entry) = self.worker.batch.find(hash, &name) {
            if view == ReadView::Pending {
                return Ok(self.worker.copy_staged(entry, out, head));
            }
            self.worker.write_batch()?;
        }
        self.worker.pin();
        let found = self
            .worker
            .find_live(hash, &name)
            .filter(FoundItem::is_shown);
        let from = out.len();
        let copied = found.as_ref().is_some_and(|found| {
            !head(&found.meta(), out) || self.worker.copy_value(found, &name, out)
        });
        self.worker.unpin();
        match found {
            Some(found) if copied => self.worker.used(&found, hash),
            _ => out.truncate(from),
        }
        Ok(copied)
    }

    fn meta(&mut self, key: Key<'_>, _: ReadView) -> Result<Option<ValueMeta>, Error> {
        self.admit(key.db)?;
        let name = name_of(key);
        let hash = self.worker.engine.hash(&name);
        self.worker.write_if_staged(hash, &name)?;
        self.worker.pin();
        let shown = self
            .worker
            .find_live(hash, &name)
            .filter(FoundItem::is_shown);
        let meta = shown.map(|found| found.meta());
        self.worker.unpin();
        Ok(meta)
    }

    fn put(&mut self, key: Key<'_>, value: Value<'_>) -> Result<u64, Error> {
        self.admit(key.db)?;
        self.worker.put(&name_of(key), &draft_of(value))
    }

    fn delete(&mut self, key: Key<'_>) -> Result<bool, Error> {
        self.admit(key.db)?;
        let mut was_there = false;
        self.worker.change(&name_of(key), &mut |found| {
            was_there = found.is_some_and(|(found, _)| found.is_shown());
            writable(found)?;
            Ok(ChangeDecision::Delete)
        })?;
        Ok(was_there)
    }

    fn update(
        &mut self,
        key: Key<'_>,
        decide: &mut dyn FnMut(Option<StoredItem<'_>>) -> UpdateDecision,
    ) -> Result<u64, Error> {
        self.admit(key.db)?;
        self.worker.change(&name_of(key), &mut |found| {
            let shown = found.filter(|(found, _)| found.is_shown());
            let change = decide(shown.map(|(found, bytes)| StoredItem {
                bytes,
                meta: found.meta(),
            }));
            if change != UpdateDecision::Keep {
                writable(found)?;
            }
            Ok(change.into())
        })
    }

    fn now_ms(&self) -> u64 {
        self.worker.engine.now_ms()
    }
}

/// Returns an error if the item is locked.
pub(crate) fn writable(found: Option<FoundValue<'_>>) -> Result<(), Error> {
    match found {
        Some((found, _)) if found.head.marks & LOCKED != 0 => Err(Error::Locked),
        _ => Ok(()),
    }
}

impl<F: Medium, N: Medium> CacheSession<F, N> {
    /// Returns an error if the database does not exist, or in a forked child.
    #[inline]
    fn admit(&self, db: u8) -> Result<(), Error> {
        self.worker.engine.process.check()?;
        check_database(db)
    }
}

impl<F: Medium, N: Medium> Session for CacheSession<F, N> {
    fn on_conflict(&mut self, conflicts: ConflictPolicy) {
        self.worker.conflicts = conflicts;
    }

    fn get_many(
        &mut self,
        keys: &[Key<'_>],
        view: ReadView,
        each: &mut dyn FnMut(usize, Option<StoredItem<'_>>),
    ) -> Result<(), Error> {
        self.prefetch(keys, true);
        let mut bytes = Vec::new();
        for (index, &key) in keys.iter().enumerate() {
            bytes.clear();
            let mut meta = ValueMeta::default();
            let found = self.get(key, view, &mut bytes, &mut |found, _| {
                meta = *found;
                true
            })?;
            each(
                index,
                found.then_some(StoredItem {
                    bytes: &bytes,
                    meta,
                }),
            );
        }
        Ok(())
    }

    fn get_many_into(
        &mut self,
        keys: &[Key<'_>],
        view: ReadView,
        out: &mut Vec<u8>,
        head: BeforeValues<'_>,
    ) -> Result<(), Error> {
        self.prefetch(keys, true);
        let start = out.len();
        for &key in keys {
            let mut wanted = GetStep::Value;
            let mut one = |meta: &ValueMeta, out: &mut Vec<u8>| {
                wanted = head(Some(meta), out);
                wanted == GetStep::Value
            };
            let found = self.get(key, view, out, &mut one);
            if !found.inspect_err(|_| out.truncate(start))? {
                wanted = head(None, out);
            }
            if wanted == GetStep::Nothing {
                break;
            }
        }
        Ok(())
    }

    /// Isolated from other writers of `keys`. Its writes become visible and durable key by key: a power cut may leave
    /// a part of them.
    fn group(
        &mut self,
        keys: &[Key<'_>],
        body: &mut dyn FnMut(&mut dyn Ops) -> Result<GroupDecision, Error>,
    ) -> Result<GroupDecision, Error> {
        CacheGroup::run(self, keys, body)
    }

    fn prefetch(&mut self, keys: &[Key<'_>], _: bool) {
        let engine = &*self.worker.engine;
        let mut hashes = std::mem::take(&mut self.hashes);
        hashes.clear();
        hashes.extend(keys.iter().map(|&key| engine.hash(&name_of(key))));
        for &hash in &hashes {
            engine.metadata.prefetch_bucket(hash);
        }
        // A read moves its item in its LRU list, as a write does. Slots that are reused meanwhile are prefetched in
        // vain.
        self.worker.pin();
        self.slots.clear();
        for &hash in &hashes {
            self.slots.extend(engine.prefetch_item(hash));
        }
        for &slot in &self.slots {
            engine.prefetch_neighbours(slot);
        }
        self.worker.unpin();
        self.hashes = hashes;
    }

    fn absence(&mut self, key: Key<'_>) -> Absence {
        let name = name_of(key);
        let hash = self.worker.engine.hash(&name);
        if self.worker.write_if_staged(hash, &name).is_err() {
            return Absence::Missing;
        }
        let engine = &*self.worker.engine;
        self.worker.pin();
        let found = engine.find(hash, &name);
        self.worker.unpin();
        match found.map(|found| found.head) {
            Some(head) if head.version <= engine.areas.cleared(head.area) => Absence::Flushed,
            Some(head) if engine.is_expired(head.expires_ms, head.version) => Absence::Expired,
            _ => Absence::Missing,
        }
    }

    fn scan(
        &mut self,
        db: u8,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&[u8], &ValueMeta),
    ) -> Result<u64, Error> {
        self.admit(db)?;
        self.worker.write_batch()?;
        let engine = Arc::clone(&self.worker.engine);
        let (mut seen, mut key) = (0, Vec::new());
        let mut bucket = cursor.min(engine.metadata.buckets());
        while bucket < engine.metadata.buckets() && seen < count.max(1) {
            self.worker.pin();
            let mut word = engine.metadata.bucket(bucket);
            while let Some((_, slot)) = follow(word) {
                if let Some(found) = engine.item_in(slot)
                    && found.head.area == u16::from(db)
                    && self.worker.is_live(&found)
                    && found.is_shown()
                {
                    self.worker.key_of(&found, &mut key);
                    each(&key, &found.meta());
                    seen += 1;
                }
                word = engine.metadata.chain(slot);
            }
            self.worker.unpin();
            bucket += 1;
        }
        Ok(if bucket == engine.metadata.buckets() {
            0
        } else {
            bucket
        })
    }

    fn len(&mut self, db: u8) -> Result<u64, Error> {
        self.admit(db)?;
        self.worker.write_batch()?;
        Ok(self.worker.engine.areas.items(db.into()))
    }

    fn flush_all(&mut self) -> Result<(), Error> {
        self.worker.write_batch()?;
        let engine = Arc::clone(&self.worker.engine);
        engine.clear(&mut self.worker.ctx, None)
    }

    fn commit(&mut self) -> Result<Ticket, Error> {
        self.worker.write_batch()?;
        self.worker.update_lru_lists();
        let now = self.worker.ctx.counters;
        if now != self.counted {
            let stored = std::mem::take(&mut self.worker.stored_bytes);
            let merged = std::mem::take(&mut self.worker.merged_writes);
            self.worker
                .engine
                .add_counters(&now, &self.counted, stored, merged);
            self.counted = now;
        }
        Ok(Ticket::DURABLE)
    }

    fn durable(&mut self, ticket: Ticket) -> Result<bool, Poisoned> {
        self.worker.engine.far().poll(ticket)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), Poisoned> {
        self.worker.engine.far().wait(ticket)
    }
}
