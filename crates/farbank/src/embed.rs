//! Opening and closing: a path becomes a [`Db`], a [`Db`] gives [`Session`]s.

use std::fmt;
use std::path::Path;

use farbank_kv::store::{Error, Store};
use farbank_kv::{Config, Kv, segment_bytes_for};
use farbank_pm::media::{self, AnyMedium, File, Mapped, OpenOptions, ReadMode, SyncPolicy};
use farbank_pm::pool::CopiedPoolPolicy;
use farbank_pm::{Kind, Medium};

use crate::session::Session;

/// How to open a pool, or make it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of a pool that has to be made.
    pub pool_bytes: u64,
    /// Bytes the pool may grow to as it fills; 0: it does not grow.
    pub pool_bytes_max: u64,
    /// DRAM for copies of small values that are read often, in bytes; 0: none are kept.
    pub read_cache_bytes: u64,
    /// The medium that must be had; `None` takes what the path is best at.
    pub medium: Option<Kind>,
    /// When writes to an ordinary file become durable.
    pub sync: SyncPolicy,
    /// How an ordinary file is read.
    pub read_by: ReadMode,
    /// What becomes of a copy of a pool that was in use, or had crashed: keys may be missing in it.
    pub copies: CopiedPoolPolicy,
    /// Whether a file system is taken that pools should not be on: see
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

/// Why there is no store at a path.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The path, its file or its device.
    Medium(media::OpenError),
    /// What is stored there.
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

/// Opens the pool at `path`, or makes one of [`Options::pool_bytes`] if nothing is there. On `Ok` everything that was
/// acknowledged before is in it, and durable. One process at a time has a pool open.
///
/// # Errors
/// [`OpenError::Medium`] if the path cannot be opened or made, or another process has it open; [`OpenError::Pool`] if
/// what is there is no pool, is damaged beyond repair, or is a copy of a pool in use ([`Options::copies`]).
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
    let engine = match medium {
        AnyMedium::Mapped(medium) => start(medium, made, options).map(Engine::Mapped),
        AnyMedium::File(medium) => start(medium, made, options).map(Engine::File),
    };
    let engine = engine.map_err(OpenError::Pool)?;
    if let Some(name) = name {
        name.publish().map_err(OpenError::Medium)?;
    }
    Ok(Db(engine))
}

fn start<M: Medium>(
    medium: M,
    made: bool,
    options: &Options,
) -> Result<Kv<M>, farbank_kv::OpenError> {
    let config = Config {
        pool_bytes_max: options.pool_bytes_max,
        read_cache_bytes: options.read_cache_bytes,
        copies: options.copies,
        ..Config::default()
    };
    match made {
        true => Kv::create(medium, segment_bytes_for(options.pool_bytes), config),
        false => Kv::open(medium, config),
    }
}

enum Engine {
    Mapped(Kv<Mapped>),
    File(Kv<File>),
}

/// An open pool. Threads share it; each takes a session of its own.
pub struct Db(Engine);

impl Db {
    /// A session for one thread.
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

    /// The whole store: statistics, what the medium promises, how the pool came back.
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        match &self.0 {
            Engine::Mapped(kv) => kv,
            Engine::File(kv) => kv,
        }
    }

    /// Whether this is a copy of a pool that was in use, opened with [`Copies::Inspect`].
    #[must_use]
    pub fn is_copy(&self) -> bool {
        match &self.0 {
            Engine::Mapped(kv) => kv.is_copy(),
            Engine::File(kv) => kv.is_copy(),
        }
    }

    /// Counts the pool's segments again, against what the engine believes of them. Nobody may write
    /// meanwhile. `Err` says what does not add up.
    pub fn verify(&self) -> Result<(), String> {
        match &self.0 {
            Engine::Mapped(kv) => kv.verify(),
            Engine::File(kv) => kv.verify(),
        }
    }

    /// Calls `each` with every record that fails a checksum: its place in the pool, and what is left of its
    /// database and its key. Scans do not list those keys, as they may be damaged themselves.
    pub fn damaged(&self, each: &mut dyn FnMut(u64, u8, &[u8])) {
        match &self.0 {
            Engine::Mapped(kv) => kv.damaged(each),
            Engine::File(kv) => kv.damaged(each),
        }
    }

    /// Closes cleanly: on `Ok` all that was committed is durable, and the next open is quick. A `Db` that is
    /// only dropped is as after a kill: the next open reads the log. Sessions borrow the `Db`, so that none can write
    /// after this.
    ///
    /// # Errors
    /// [`Error::Poisoned`] if the medium has failed, or in a forked child. [`Error::NoSnapshot`] if the pool is too full
    /// for its index snapshot: all that was committed is durable, but the next open reads the log.
    pub fn close(self) -> Result<(), Error> {
        match self.0 {
            Engine::Mapped(kv) => kv.close().map(|_| ()),
            Engine::File(kv) => match kv.close()? {
                Some(file) => Ok(file.close()?),
                None => Ok(()),
            },
        }
    }
}
