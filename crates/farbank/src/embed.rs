//! The store as a library: a path becomes a [`Db`], a [`Db`] gives [`Session`]s.

use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

use farbank_kv::store::{self, Error, Key, Store, Value, View};
use farbank_kv::{Config, Kv, segment_bytes_for};
use farbank_pm::media::{self, AnyMedium, File, Mapped, OpenOptions, SyncPolicy};
use farbank_pm::pool::Copies;
use farbank_pm::{Kind, Medium};

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
    /// What becomes of a copy of a pool that was in use, or had crashed: keys may be missing in it.
    pub copies: Copies,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            pool_bytes: 1 << 30,
            pool_bytes_max: 0,
            read_cache_bytes: Config::default().read_cache_bytes,
            medium: None,
            sync: SyncPolicy::Always,
            copies: Copies::Refuse,
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

impl std::error::Error for OpenError {}

/// Opens the pool at `path`, or makes one if nothing is there. Everything that was acknowledged
/// before is in it. One process at a time has a pool open.
pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Db, OpenError> {
    let path = path.as_ref();
    let how = OpenOptions {
        medium: options.medium,
        sync: options.sync,
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
    /// A door for one thread.
    #[must_use]
    pub fn session(&self) -> Session<'_> {
        Session(self.store().session(), PhantomData)
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

    /// Closes cleanly: what was committed is durable, and the next open is quick. A `Db` that is
    /// only dropped is as after a kill: the next open reads the log.
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

/// One thread's door to a [`Db`]. It sees its own writes at once; others see them, and they are
/// durable as the medium can make them, when [`Session::commit`] has returned.
pub struct Session<'a>(Box<dyn store::Session>, PhantomData<&'a Db>);

impl Session<'_> {
    /// The value of `key`.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        let found = self
            .0
            .get(named(key), View::Pending, &mut value, &mut |_, _| {});
        self.0.rest(); // The next use may be far off.
        Ok(found?.then_some(value))
    }

    /// Stores `value` under `key`, whatever was there.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let value = Value {
            bytes: value,
            ..Value::default()
        };
        self.0.put(named(key), value).map(|_| ())
    }

    /// Deletes `key`. Returns whether it was there.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        let there = self.0.delete(named(key));
        self.0.rest();
        there
    }

    /// Makes everything this session wrote durable, and waits for it.
    pub fn commit(&mut self) -> Result<(), Error> {
        let ticket = self.0.commit()?;
        Ok(self.0.wait(ticket)?)
    }

    /// Everything else a session can do: expiry, groups, updates, scans, tickets. Who reads by these and commits
    /// nothing calls [`store::Session::rest`] before a pause.
    pub fn all(&mut self) -> &mut dyn store::Session {
        &mut *self.0
    }
}

fn named(bytes: &[u8]) -> Key<'_> {
    Key { db: 0, bytes }
}
