//! Creating, opening and closing an engine ([`Kv`]), and its implementation of [`Store`] and [`Session`].

use std::fmt;

use farbank_pm::pool::{Pool, PoolError, PoolIdentity, PoolLayout};
use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::sync::{Arc, Mutex, thread, unpoisoned};
use farbank_pm::{Caps, Medium, PersistCounters, PersistCtx, Poisoned, Ticket};

use farbank_store::{
    Backup, Error, LogStats, OpenReport, PoolStats, ReadCacheStats, Session, SharedDatabaseMap,
    Stats, Store, StoreHealth, WriteStats,
};

use crate::backup::KvBackup;
use crate::cleaner::background::clean_in_background;
use crate::cleaner::requests::CleanOutcome;
use crate::config::{CleaningMode, Config};
use crate::engine::Engine;
use crate::engine::inconsistency::Inconsistency;
use crate::format::pool_root::PoolHistory;
use crate::index::POOL_BYTES_MAX;
use crate::segments::live_map::LiveMap;
use crate::session::KvSession;

/// Smallest number of segments in a pool.
pub const SEGMENTS_MIN: u64 = 12;

/// Reason why a pool could not be created or opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The pool's superblock, or its medium, cannot be used.
    Pool(PoolError),
    /// The pool has too few segments, or is too large for the index. The text gives the limit.
    Size(String),
    /// The pool belongs to another engine.
    Foreign,
    /// The superblock has no valid mapping of the databases' numbers, but this word.
    DatabaseMap(u64),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Pool(error) => error.fmt(f),
            OpenError::Size(why) => f.write_str(why),
            OpenError::Foreign => f.write_str(
                "the pool was made by the cache: serve it with --engine mdb, or name another one",
            ),
            OpenError::DatabaseMap(word) => write!(
                f,
                "the superblock's word 8 is {word:#x}, which maps two databases to the same number: a program with an \
                 error has written it; restore the pool from a backup"
            ),
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

/// Returns the segment size for a pool of `pool_bytes`: 2 MiB, or less where that would leave fewer than 1,024 segments.
/// Pools of 4 to 16 MiB have fewer, of 16 KiB: in segments of a few records, cleaning costs more than writing. In pools
/// below 256 MiB the longest keys and values do not fit.
///
/// ```
/// let sizes = [1, 4, 16, 64, 1024, 4096].map(|mib| farbank_kv::segment_bytes_for(mib << 20) >> 10);
/// assert_eq!(sizes, [4, 16, 16, 64, 1024, 2048]);
/// ```
#[must_use]
pub fn segment_bytes_for(pool_bytes: u64) -> u64 {
    let least = match pool_bytes >= 4 << 20 {
        true => 16 << 10,
        false => 4 << 10,
    };
    let fit = (pool_bytes / 1024).max(1);
    (1 << fit.ilog2()).clamp(least, 2 << 20)
}

/// A durable key-value store on one medium. Threads share it; each uses a session of its own.
pub struct Kv<M: Medium> {
    pub(crate) engine: Arc<Engine<M>>,
    cleaner: Mutex<Option<thread::JoinHandle<()>>>,
    sweeper: Arc<Mutex<KvSession<M>>>,
}

impl<M: Medium> Kv<M> {
    /// Creates an empty store on all of `medium`, in segments of `segment_bytes` (a power of two, at least 4 KiB).
    /// Durable on `Ok`.
    pub fn create(medium: M, segment_bytes: u64, config: Config) -> Result<Kv<M>, OpenError> {
        let identity = PoolIdentity::fresh().map_err(PoolError::Random)?;
        Kv::create_as(medium, segment_bytes, identity, config)
    }

    /// As [`Kv::create`], with a given identity: under the simulator the same calls then write the same bytes.
    pub fn create_as(
        medium: M,
        segment_bytes: u64,
        identity: PoolIdentity,
        config: Config,
    ) -> Result<Kv<M>, OpenError> {
        let mut ctx = PersistCtx::new(0);
        let layout = PoolLayout { segment_bytes };
        let pool = Pool::create_versioned(medium, &mut ctx, &layout, identity, 2)?;
        Kv::on(pool, config)
    }

    /// Opens the store on `medium` and recovers it if it was not closed cleanly. Every acknowledged write is found,
    /// and on `Ok` everything that was found is durable. [`Kv::opened`] returns the report.
    pub fn open(medium: M, config: Config) -> Result<Kv<M>, OpenError> {
        let mut ctx = PersistCtx::new(0);
        let pool = Pool::open_with(medium, &mut ctx, config.copies)?;
        Kv::on(pool, config)
    }

    fn on(pool: Pool<M>, config: Config) -> Result<Kv<M>, OpenError> {
        check_size(&pool)?;
        if PoolHistory::is_foreign(&pool.root()) {
            return Err(OpenError::Foreign);
        }
        if let Some(word) = PoolHistory::wrong_database_map(&pool.root()) {
            return Err(OpenError::DatabaseMap(word));
        }
        let background = config.cleaning == CleaningMode::Background;
        let engine = crate::recovery::open(pool, config)?;
        let sweeper = Arc::new(Mutex::new(KvSession::new(Arc::clone(&engine))));
        let cleaner = background.then(|| {
            let (engine, sweeper) = (Arc::clone(&engine), Arc::clone(&sweeper));
            thread::spawn(move || clean_in_background(&engine, &sweeper))
        });
        Ok(Kv {
            engine,
            cleaner: Mutex::new(cleaner),
            sweeper,
        })
    }

    /// Creates a session for one worker.
    pub fn session(&self) -> Box<dyn Session> {
        Box::new(KvSession::new(Arc::clone(&self.engine)))
    }

    /// Returns the report of the open.
    #[must_use]
    pub fn opened(&self) -> &OpenReport {
        &self.engine.counters.opened
    }

    /// Returns whether this is a copy of a pool in use, opened for inspection only: see
    /// [`CopiedPoolPolicy::Inspect`](farbank_pm::pool::CopiedPoolPolicy::Inspect).
    #[must_use]
    pub fn is_copy(&self) -> bool {
        self.engine.access().pool().is_copy()
    }

    /// Cleans until one more segment is free, removes expired values, and writes the segment maps and the
    /// checkpoint that are due.
    /// Returns false if there is nothing to gain. For stores with [`CleaningMode::Inline`].
    pub fn clean(&self) -> Result<bool, Error> {
        unpoisoned(self.sweeper.lock()).sweep()?;
        let outcome = self
            .engine
            .clean_until(self.engine.segments.free_count() + 1)?;
        self.engine.write_all_maps()?;
        self.engine.write_checkpoint_if_due()?;
        Ok(outcome == CleanOutcome::Gained)
    }

    /// Runs one slice of cleaning, however many segments are free.
    #[cfg(feature = "check")]
    pub(crate) fn clean_slice(&self) -> Result<(), Error> {
        Ok(self.engine.help_clean(u64::MAX).map(drop)?)
    }

    /// Does one slice of a checkpoint, or begins one that is due.
    #[cfg(feature = "check")]
    pub(crate) fn checkpoint_slice(&self) -> Result<(), Error> {
        Ok(self.engine.advance_checkpoint(1).map(drop)?)
    }

    /// Checks the engine's accounting of its segments (live, dead and free bytes) against the log. No session may
    /// write meanwhile; nothing is cleaned, and no checkpoint is written.
    ///
    /// # Errors
    /// The first contradiction found.
    pub fn verify(&self) -> Result<(), Inconsistency> {
        let _sweeper = unpoisoned(self.sweeper.lock());
        let _checkpoints = self.engine.cleaning.checkpoints.hold();
        let _cleaner = self.engine.lock_cleaner_without_pass()?;
        crate::engine::verify::verify(&self.engine)
    }

    /// Calls `each` with every indexed record that fails a checksum: its offset, and its database and key as far as
    /// they can be read (they may be damaged too). [`Session::scan`] does not list these records. Extents of large
    /// values are not checked.
    pub fn damaged(&self, each: &mut dyn FnMut(u64, u8, &[u8])) {
        crate::engine::verify::damaged(&self.engine, each);
    }

    /// Closes the store cleanly and returns the medium; see [`Store::close`].
    ///
    /// # Errors
    /// [`Error::SessionsAlive`] and [`Error::NoSnapshot`] as in [`Store::close`]; [`Error::Poisoned`] if the medium
    /// has failed, or in a forked child.
    pub fn close(self) -> Result<Option<M>, Error> {
        self.engine.check_poison()?;
        let sessions = self.sessions_alive() + usize::from(self.engine.backup.is_taken());
        if sessions > 0 {
            return Err(Error::SessionsAlive { sessions });
        }
        self.stop();
        let mut ctx = PersistCtx::new(0);
        unpoisoned(self.sweeper.lock()).close()?;
        self.engine.close_cleaner()?;
        // Needed where drains are relaxed: a clean close loses nothing.
        self.engine.settle(Ticket::DURABLE)?;
        self.engine.recycle_retired(&mut ctx)?;
        let saved = crate::recovery::snapshot::save(&self.engine, &mut ctx);
        if matches!(saved, Ok(()) | Err(Error::NoSnapshot { .. })) {
            self.engine.access().pool().record_clean_close(&mut ctx)?;
        }
        saved?;
        Ok(self.into_medium())
    }

    /// Returns the medium without closing the store, as after a kill. `None` if the engine is still referenced
    /// elsewhere.
    pub fn into_medium(self) -> Option<M> {
        self.stop();
        let engine = Arc::clone(&self.engine);
        drop(self);
        Arc::into_inner(engine).map(|engine| engine.segments.into_medium())
    }

    /// Returns the number of sessions that were created and not dropped.
    fn sessions_alive(&self) -> usize {
        // All but the engine's own entry and the expiry sweeper's.
        self.engine.sessions.count() - 2
    }

    fn stop(&self) {
        if !self.engine.access().is_own_process() {
            return; // In a forked child the cleaner's thread does not exist.
        }
        self.engine.cleaning.stop();
        if let Some(cleaner) = unpoisoned(self.cleaner.lock()).take() {
            cleaner.join().expect("the cleaner does not panic");
        }
    }
}

impl<M: Medium> Drop for Kv<M> {
    fn drop(&mut self) {
        self.stop();
    }
}

fn check_size<M: Medium>(pool: &Pool<M>) -> Result<(), OpenError> {
    let (segments, bytes) = (u64::from(pool.segments()), pool.segment_bytes());
    let end = pool.segment(0).0 + segments * bytes;
    if segments < SEGMENTS_MIN {
        return Err(OpenError::Size(format!(
            "the pool has {segments} segments of {bytes} bytes; the minimum is {SEGMENTS_MIN} segments: \
             make the pool larger, or its segments smaller"
        )));
    }
    if end > POOL_BYTES_MAX {
        return Err(OpenError::Size(format!(
            "the pool has {end} bytes; the limit is {POOL_BYTES_MAX}: make the pool smaller"
        )));
    }
    Ok(())
}

impl<M: Medium> Store for Kv<M> {
    fn session(&self) -> Box<dyn Session> {
        Kv::session(self)
    }

    fn caps(&self) -> &Caps {
        self.engine.caps()
    }

    fn stats(&self) -> Stats {
        let engine = &*self.engine;
        let mut read_cache = ReadCacheStats {
            bytes: engine.read_cache.bytes(),
            ..ReadCacheStats::default()
        };
        let mut persistence = PersistCounters::default();
        for session in engine.sessions.lock().iter() {
            persistence += *unpoisoned(session.counters.lock());
            read_cache.hits += session.cache_hits.load(Relaxed);
            read_cache.misses += session.cache_misses.load(Relaxed);
        }
        if let Some(cleaner) = engine.cleaning.try_lock() {
            persistence += cleaner.counters();
        }
        Stats {
            keys: engine.under_one_mapping(|map| {
                std::array::from_fn(|db| engine.keys_under(map, db as u8))
            }),
            expired_keys: engine.counters.expired.load(Relaxed),
            damaged_records: engine.counters.damaged.load(Relaxed),
            index_bytes: engine.index.bytes(),
            pool: PoolStats {
                bytes: engine.medium().len(),
                segment_bytes: engine.geometry().segment_bytes() as u64,
                segments: engine.segments.count(),
                segments_free: engine.segments.free_count(),
                live_bytes: engine.space().live_bytes(),
                capacity_bytes: engine.space().capacity(),
            },
            writes: WriteStats {
                user_bytes: engine.counters.user_bytes.load(Relaxed),
                moved_bytes: engine.counters.moved_bytes.load(Relaxed),
                segments_cleaned: engine.counters.cleaned.load(Relaxed),
            },
            log: Some(LogStats {
                tombstone_bytes: engine.space().tombstone_bytes(),
                live_map_bytes: 2 * LiveMap::bytes(engine.medium().len()),
                segment_maps_written: engine.cleaning.try_maps().map_or(0, |maps| maps.count()),
                checkpoints_written: engine.cleaning.checkpoints.written(),
                checkpoint_bytes: u64::from(engine.cleaning.checkpoints.segments())
                    * engine.geometry().segment_bytes() as u64,
            }),
            read_cache: Some(read_cache),
            cache: None,
            persistence,
        }
    }

    fn pool_bytes(&self) -> u64 {
        self.engine.medium().len()
    }

    fn opened(&self) -> &OpenReport {
        Kv::opened(self)
    }

    fn health(&self) -> StoreHealth {
        StoreHealth {
            poisoned: self.engine.poll(Ticket::NEVER).err(),
            file: self.engine.medium().file_trouble(),
            growth_error: self.engine.cleaning.growth.error(),
        }
    }

    fn databases(&self) -> Option<&SharedDatabaseMap> {
        Some(&self.engine.databases.map)
    }

    fn backup(&self) -> Result<Box<dyn Backup>, Error> {
        Ok(Box::new(KvBackup::begin(Arc::clone(&self.engine))?))
    }

    fn on_turn(&self, wake: std::sync::Arc<dyn Fn() + Send + Sync>) {
        self.engine.cleaning.requests.on_room(Arc::clone(&wake));
        self.engine.medium().on_durable(wake);
    }

    fn close(self: Box<Self>) -> Result<(), Error> {
        Kv::close(*self).map(|_| ())
    }
}
