//! Opening and closing of a pool: [`open`] returns a [`Db`], and a [`Db`] returns [`Session`]s.

use std::fmt;
use std::path::Path;

use farbank_kv::{AnyKv, Config, Inconsistency, segment_bytes_for};
use farbank_pm::Kind;
use farbank_pm::media::{self, OpenOptions, ReadMode, SyncPolicy};
use farbank_pm::pool::CopiedPoolPolicy;
use farbank_store::{Error, Store};

use crate::session::Session;

/// Options for opening or creating a pool.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size of a new pool, in bytes.
    pub pool_bytes: u64,
    /// Size up to which the pool may grow as it fills, in bytes; 0: it does not grow.
    pub pool_bytes_max: u64,
    /// DRAM for copies of small values that are read often, in bytes; 0: no copies.
    pub read_cache_bytes: u64,
    /// Required kind of medium; `None` selects the best kind that the path supports.
    pub medium: Option<Kind>,
    /// When writes to an ordinary file become durable.
    pub sync: SyncPolicy,
    /// How an ordinary file is read.
    pub read_by: ReadMode,
    /// Treatment of a copy of a pool that was in use or had crashed. Keys may be missing in such a copy.
    pub copies: CopiedPoolPolicy,
    /// Whether to accept a file system that pools should not be on: see
    /// [`OpenOptions::accept_file_system`].
    pub accept_file_system: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            pool_bytes: 1 << 30,
            pool_bytes_max: 0,
            read_cache_bytes: Config::default().read_cache_bytes,
            medium: None,
            sync: SyncPolicy::Always,
            read_by: ReadMode::Mapping,
            copies: CopiedPoolPolicy::Refuse,
            accept_file_system: false,
        }
    }
}

/// Error of [`open`].
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The path, its file or its device cannot be opened or created.
    Medium(media::OpenError),
    /// The content is no pool that can be opened.
    Pool(farbank_kv::OpenError),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Medium(error) => error.fmt(f),
            OpenError::Pool(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Medium(error) => Some(error),
            OpenError::Pool(error) => Some(error),
        }
    }
}

/// Opens the pool at `path`, or creates one of [`Options::pool_bytes`] if the path does not exist. On `Ok` the pool has
/// all writes that were acknowledged before, and they are durable. Only one process at a time can open a pool.
///
/// # Errors
/// [`OpenError::Medium`] if the path cannot be opened or created, or another process has it open. [`OpenError::Pool`]
/// if the content is no pool, is damaged beyond repair, or is a copy of a pool in use ([`Options::copies`]).
///
/// # Examples
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("pool");
/// let db = farbank::open(&path, &farbank::Options { pool_bytes: 16 << 20, ..Default::default() })?;
/// assert_eq!(db.session().get(b"greeting")?, None);
/// db.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Db, OpenError> {
    let path = path.as_ref();
    let how = OpenOptions {
        medium: options.medium,
        sync: options.sync,
        read_by: options.read_by,
        accept_file_system: options.accept_file_system,
        ..OpenOptions::default()
    };
    let opened = match path.exists() {
        true => media::open_path(path, &how).map(|medium| (medium, None)),
        false => media::prepare_path(path, options.pool_bytes, &how, &mut |_, _| {})
            .map(|(medium, name)| (medium, Some(name))),
    };
    let (medium, name) = opened.map_err(OpenError::Medium)?;
    let made = name.is_some();
    let config = Config {
        pool_bytes_max: options.pool_bytes_max,
        read_cache_bytes: options.read_cache_bytes,
        copies: options.copies,
        ..Config::default()
    };
    let engine = match made {
        true => AnyKv::create(medium, segment_bytes_for(options.pool_bytes), config),
        false => AnyKv::open(medium, config),
    };
    let engine = engine.map_err(OpenError::Pool)?;
    if let Some(name) = name {
        name.publish().map_err(OpenError::Medium)?;
    }
    Ok(Db(engine))
}

/// An open pool. Threads share it, and each uses its own session.
pub struct Db(AnyKv);

impl Db {
    /// Returns a new session, for one thread.
    ///
    /// # Examples
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let small = farbank::Options { pool_bytes: 16 << 20, ..Default::default() };
    /// # let db = farbank::open(folder.path().join("pool"), &small)?;
    /// std::thread::scope(|scope| {
    ///     for thread in 0..4_u8 {
    ///         let db = &db;
    ///         scope.spawn(move || {
    ///             let mut session = db.session();
    ///             session.put(&[thread], b"here")?;
    ///             session.commit()
    ///         });
    ///     }
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn session(&self) -> Session<'_> {
        Session::new(self.store().session(), self)
    }

    /// Returns the store, with statistics, the durability of its medium, and the report of the open.
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        self.0.store()
    }

    /// Whether this is a copy of a pool that was in use, opened with [`CopiedPoolPolicy::Inspect`].
    #[must_use]
    pub fn is_copy(&self) -> bool {
        self.0.is_copy()
    }

    /// Verifies the engine's counts and maps against the records in the pool. No session may write meanwhile.
    ///
    /// # Errors
    /// The first contradiction found.
    pub fn verify(&self) -> Result<(), Inconsistency> {
        self.0.verify()
    }

    /// Calls `each` for every live record that fails a checksum, with its offset in the pool, its database and its key.
    /// If its header is damaged, the database is 0 and the key empty. Scans do not list these keys, because they may be
    /// damaged themselves.
    pub fn damaged(&self, each: &mut dyn FnMut(u64, u8, &[u8])) {
        self.0.damaged(each);
    }

    /// Closes the pool cleanly. On `Ok` all committed writes are durable, and the next open reads the index snapshot.
    /// If a `Db` is dropped without a close, the next open scans the log, as after a kill. Sessions borrow the `Db`,
    /// so no session can write after a close.
    ///
    /// # Errors
    /// [`Error::Poisoned`] if the medium has failed, or in a forked child. [`Error::NoSnapshot`] if the pool is too
    /// full for its index snapshot: all committed writes are durable, but the next open scans the log.
    pub fn close(self) -> Result<(), Error> {
        self.0.close()
    }
}
