//! A store and its state: what an open found, and what is wrong now.

use std::sync::Arc;

use farbank_pm::{Caps, FileTrouble, Poisoned};

use crate::backup::Backup;
use crate::cache_store::CacheStore;
use crate::databases::SharedDatabaseMap;
use crate::error::{BackupError, Error};
use crate::session::Session;
use crate::stats::Stats;
use crate::value::{Key, VALUE_BYTES_MAX};

/// Report of an open: what it found in the pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpenReport {
    /// Whether the last close was clean and its index snapshot was used.
    pub clean: bool,
    /// Number of live keys.
    pub keys: u64,
    /// Records read by the scan (0 after a clean close).
    pub records_scanned: u64,
    /// Keys that a checkpoint of the index had, so that the scan did not read their records.
    pub keys_checkpointed: u64,
    /// Segments of which the scan read only the records marked in their segment maps.
    pub segments_mapped: u64,
    /// Messages for people: durations, and any damage found. Empty when nothing needs attention.
    pub damage: Vec<String>,
    /// Duration of the open in milliseconds.
    pub elapsed_ms: f64,
}

/// Problems of an open store. The default is a healthy store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreHealth {
    /// Error after which the store acknowledges nothing more.
    pub poisoned: Option<Poisoned>,
    /// Problem with the pool's file.
    pub file: Option<FileTrouble>,
    /// Error of the last attempt to grow the pool, if it failed.
    pub growth_error: Option<Arc<str>>,
}

impl StoreHealth {
    /// Returns one word for monitoring, for the worst problem: `ok`, or `lease-lost`, `truncated`, `removed`,
    /// `replaced`, `unreadable`, `poisoned`, `moved`, `cannot-grow`.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            StoreHealth {
                file: Some(file), ..
            } if file.what != "moved" => file.what,
            StoreHealth {
                poisoned: Some(_), ..
            } => "poisoned",
            StoreHealth {
                file: Some(file), ..
            } => file.what,
            StoreHealth {
                growth_error: Some(_),
                ..
            } => "cannot-grow",
            _ => "ok",
        }
    }
}

/// Receives the keys that a cache evicts.
pub trait EvictionListener: Send + Sync {
    /// Whether [`EvictionListener::evicted`] is to be called.
    fn is_on(&self) -> bool;
    /// Called after a key was evicted, while the cache executes a write. Must not access the store.
    fn evicted(&self, key: Key<'_>);
}

/// A durable store, shared by threads.
pub trait Store: Send + Sync {
    /// Creates a session for one more worker.
    fn session(&self) -> Box<dyn Session>;
    /// Returns the persistence guarantees of the medium.
    fn caps(&self) -> &Caps;
    /// Returns the current figures.
    fn stats(&self) -> Stats;
    /// Returns the current size of the pool in bytes.
    fn pool_bytes(&self) -> u64 {
        self.stats().pool.bytes
    }
    /// Returns the report of the open.
    fn opened(&self) -> &OpenReport;
    /// Returns the store's current problems. Cheap: it reads only flags.
    fn health(&self) -> StoreHealth {
        StoreHealth::default()
    }
    /// Returns the operations that only caches have, if the store is a cache.
    fn as_cache(&self) -> Option<&dyn CacheStore> {
        None
    }
    /// Returns the approximate size in bytes of the largest item that the store accepts. Slightly smaller items may
    /// be refused.
    fn item_bytes_max(&self) -> usize {
        VALUE_BYTES_MAX
    }
    /// Returns the mapping of the databases' numbers, if the store can exchange databases. A stored number follows the keys
    /// of its database through every swap.
    fn databases(&self) -> Option<&SharedDatabaseMap> {
        None
    }
    /// Begins a backup of this moment. There is one at a time.
    ///
    /// # Errors
    /// [`Error::Backup`]; [`Error::Poisoned`].
    fn backup(&self) -> Result<Box<dyn Backup>, Error> {
        Err(Error::Backup(BackupError::Unsupported))
    }
    /// Registers `wake`, called from any thread when tickets may have become durable or room may have been made.
    fn on_turn(&self, wake: Arc<dyn Fn() + Send + Sync>);
    /// Registers `listener` for the keys that the store evicts. A store that does not evict ignores it.
    fn on_evicted(&self, listener: Arc<dyn EvictionListener>) {
        let _ = listener;
    }
    /// Closes the store cleanly: everything committed is durable, and an index snapshot makes the next open fast.
    ///
    /// # Errors
    /// [`Error::SessionsAlive`] if sessions exist. Nothing is lost: the next open scans the log, as after a kill, and
    /// finds all that these sessions have acknowledged and still acknowledge.
    ///
    /// [`Error::NoSnapshot`] if the snapshot does not fit into the pool even after cleaning. The store is closed and
    /// everything is durable.
    fn close(self: Box<Self>) -> Result<(), Error>;
}
