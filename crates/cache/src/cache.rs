//! The cache: creation, opening, closing, and the operations on all of it.

use std::io;

use farbank_pm::media::Mapped;
use farbank_pm::pool::{Pool, PoolError, PoolIdentity};
use farbank_pm::sync::Arc;
use farbank_pm::{Caps, Medium, PersistCtx, Ticket};
use farbank_store::{
    AreaUsage, CacheStore, Error, ItemSession, OpenReport, Session, SlabClass, Stats, Store,
    StoreHealth,
};

use crate::config::Config;
use crate::engine::Engine;
use crate::maintenance::MaintenanceThread;
use crate::metadata::MetadataRoom;
use crate::open_error::OpenError;
use crate::recover;
use crate::session::CacheSession;
use crate::state::Inconsistency;
use crate::worker::CacheWorker;

/// Default size of a page in bytes.
pub const PAGE_BYTES: u64 = 1 << 20;

/// A cache with items on the data medium `F` and metadata on `N`. Threads share it; each uses a session of its own.
pub struct Cache<F: Medium, N: Medium = Mapped> {
    engine: Arc<Engine<N, F>>,
    maintenance: MaintenanceThread,
    opened: OpenReport,
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
        let is_maintained = config.background_maintenance;
        let (engine, opened) = recover::open(near, pool, config)?;
        let engine = Arc::new(engine);
        let maintenance = match is_maintained {
            true => MaintenanceThread::start(&engine),
            false => MaintenanceThread::default(),
        };
        Ok(Cache {
            engine,
            maintenance,
            opened,
            session_count: Arc::new(()),
        })
    }

    /// Creates a session for one worker. It has Tair's operations besides those of [`Session`].
    #[must_use]
    pub fn new_session(&self) -> CacheSession<F, N> {
        CacheSession::new(Arc::clone(&self.engine), Arc::clone(&self.session_count))
    }

    #[cfg(test)]
    pub(crate) fn engine(&self) -> &Engine<N, F> {
        &self.engine
    }

    /// Returns the report of the open.
    #[must_use]
    pub fn opened(&self) -> &OpenReport {
        &self.opened
    }

    /// Returns the number of pages without a class.
    #[must_use]
    pub fn pages_free(&self) -> usize {
        self.engine.lock().free_pages()
    }

    /// Returns the number of pages of the pool.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.engine.data().pages()
    }

    /// Limits the cache to `pages` pages of its pool, also after a restart. Empties other pages: moves their items
    /// where there are free slots, and evicts the others. Returns the number of pages in use then.
    pub fn resize(&self, pages: u32) -> Result<u32, Error> {
        CacheWorker::new(Arc::clone(&self.engine)).resize(pages)
    }

    /// Removes all expired and cleared items, and merges sparse pages. Returns the number of pages freed.
    pub fn tidy(&self) -> Result<u64, Error> {
        let before = self.engine.counters().pages_freed();
        let mut worker = CacheWorker::new(Arc::clone(&self.engine));
        worker.return_slots_of_all_sessions();
        worker.follow_clock()?;
        worker.sweep(0, u32::MAX)?;
        while worker.merge()? {}
        let after = self.engine.counters().pages_freed();
        Ok(after - before)
    }

    /// Makes a class that evicts little give up a page for classes that evict more, as background maintenance does
    /// once a second. Returns whether a page was given up.
    pub fn balance(&self) -> Result<bool, Error> {
        let mut worker = CacheWorker::new(Arc::clone(&self.engine));
        worker.return_slots_of_all_sessions();
        worker.balance()
    }

    /// Checks that slots, pages, lists and chains agree (MDB-STATE-1 to MDB-STATE-3). No session may run meanwhile.
    ///
    /// # Errors
    /// The first contradiction found.
    pub fn verify(&self) -> Result<(), Inconsistency> {
        let _one = self.engine.lock_round();
        CacheWorker::new(Arc::clone(&self.engine)).return_slots_of_all_sessions();
        let pages = self.engine.data().pages();
        self.engine.lock().verify(pages)
    }

    /// Closes cleanly; see [`Store::close`]. Returns the medium.
    ///
    /// # Errors
    /// [`Error::SessionsAlive`], see [`Store::close`]; [`Error::Poisoned`] if the medium has failed, or in a forked
    /// child.
    pub fn close(self) -> Result<Option<F>, Error> {
        self.engine.check_process()?;
        let sessions = Arc::strong_count(&self.session_count) - 1;
        if sessions > 0 {
            return Err(Error::SessionsAlive { sessions });
        }
        self.stop();
        let engine = &*self.engine;
        let mut ctx = PersistCtx::new(0);
        // All data is durable, also on a medium with relaxed drains, before the root says that the close was clean.
        let data = engine.data();
        data.medium().wait_until_durable(Ticket::DURABLE)?;
        engine.keep_time(&mut ctx)?;
        data.update_root(&mut ctx, |root| root.clean = true)?;
        data.pool().record_clean_close(&mut ctx)?;
        Ok(self.into_medium())
    }

    /// Returns the medium without closing the cache, as after a kill. Returns `None` if a session still exists.
    pub fn into_medium(self) -> Option<F> {
        self.stop();
        let engine = Arc::clone(&self.engine);
        drop(self);
        Arc::into_inner(engine).map(Engine::into_medium)
    }

    fn stop(&self) {
        self.maintenance.stop(&self.engine);
    }
}

impl<F: Medium, N: Medium> Drop for Cache<F, N> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<F: Medium, N: Medium> Store for Cache<F, N> {
    fn session(&self) -> Box<dyn Session> {
        Box::new(self.new_session())
    }

    fn caps(&self) -> &Caps {
        self.engine.data().medium().caps()
    }

    fn stats(&self) -> Stats {
        self.engine.stats()
    }

    fn pool_bytes(&self) -> u64 {
        self.engine.data().medium().len()
    }

    fn opened(&self) -> &OpenReport {
        Cache::opened(self)
    }

    fn health(&self) -> StoreHealth {
        StoreHealth {
            poisoned: self.engine.data().medium().poll(Ticket::NEVER).err(),
            file: self.engine.data().medium().file_trouble(),
            growth_error: self.engine.growth_error(),
        }
    }

    fn as_cache(&self) -> Option<&dyn CacheStore> {
        Some(self)
    }

    fn item_bytes_max(&self) -> usize {
        self.engine.data().page_bytes() as usize
    }

    fn on_turn(&self, wake: std::sync::Arc<dyn Fn() + Send + Sync>) {
        self.engine.data().medium().on_durable(wake);
    }

    fn on_evicted(&self, listener: std::sync::Arc<dyn farbank_store::EvictionListener>) {
        self.engine.set_eviction_listener(listener);
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
        self.engine.areas().check(area)?;
        self.engine.clear(&mut PersistCtx::new(0), Some(area))
    }

    fn set_quota(&self, area: u16, quota_bytes: Option<u64>) -> Result<(), Error> {
        self.engine.areas().check(area)?;
        self.engine.areas().set_quota(area, quota_bytes);
        Ok(())
    }

    fn area_usage(&self, area: u16) -> AreaUsage {
        let areas = self.engine.areas();
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
