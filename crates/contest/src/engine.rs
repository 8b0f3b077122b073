//! The interface of an engine, as the contest's driver calls it.

use std::fmt;
use std::ops::RangeInclusive;

use farbank_pm::Poisoned;

/// Bytes of a key.
pub const KEY_BYTES: usize = 16;
/// Allowed lengths of a value, in bytes.
pub const VALUE_BYTES: RangeInclusive<usize> = 80..=1024;

/// A key.
pub type Key = [u8; KEY_BYTES];

/// Reason why a value was not stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// Far memory, or a table sized by the limits, is full. Nothing was changed.
    Full,
    /// Far memory failed. The value may or may not be durable, and the engine acknowledges no further write.
    Poisoned(Poisoned),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Full => {
                f.write_str("the engine is full: no block or index entry is left for this value")
            }
            Error::Poisoned(poisoned) => poisoned.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Full => None,
            Error::Poisoned(poisoned) => Some(poisoned),
        }
    }
}

impl From<Poisoned> for Error {
    fn from(poisoned: Poisoned) -> Error {
        Error::Poisoned(poisoned)
    }
}

/// Reason why an engine was not opened.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The medium, its contents, the limits and the tuning do not fit each other.
    Unfit(String),
    /// Far memory failed.
    Poisoned(Poisoned),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Unfit(what) => f.write_str(what),
            OpenError::Poisoned(poisoned) => poisoned.fmt(f),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Unfit(_) => None,
            OpenError::Poisoned(poisoned) => Some(poisoned),
        }
    }
}

impl From<Poisoned> for OpenError {
    fn from(poisoned: Poisoned) -> OpenError {
        OpenError::Poisoned(poisoned)
    }
}

/// Operation counts of an engine, kept by the engine itself. The medium counts accesses to far memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EngineStats {
    /// Sets of keys that the engine did not hold.
    pub inserts: u64,
    /// Sets of keys that the engine held.
    pub updates: u64,
    /// Updates written to the thread's spare block; the old block becomes the spare.
    pub swaps: u64,
    /// Gets answered by the read cache.
    pub cache_hits: u64,
    /// Gets that missed the read cache; 0 without a read cache.
    pub cache_misses: u64,
    /// Lookups that found their key after 1, 2, 3, or at least 4 probes.
    pub depth: [u64; 4],
    /// Probes of lookups that found their key.
    pub probes_of_hits: u64,
    /// Probes of lookups that did not find their key.
    pub probes_of_misses: u64,
    /// Lookups that did not find their key.
    pub misses: u64,
}

impl std::ops::AddAssign for EngineStats {
    fn add_assign(&mut self, other: EngineStats) {
        self.inserts += other.inserts;
        self.updates += other.updates;
        self.swaps += other.swaps;
        self.cache_hits += other.cache_hits;
        self.cache_misses += other.cache_misses;
        for (mine, theirs) in self.depth.iter_mut().zip(other.depth) {
            *mine += theirs;
        }
        self.probes_of_hits += other.probes_of_hits;
        self.probes_of_misses += other.probes_of_misses;
        self.misses += other.misses;
    }
}

impl EngineStats {
    /// Counts a lookup that found its key after `probes` probes.
    pub fn hit(&mut self, probes: u64) {
        self.depth[probes.clamp(1, 4) as usize - 1] += 1;
        self.probes_of_hits += probes;
    }

    /// Counts a lookup that did not find its key after `probes` probes.
    pub fn miss(&mut self, probes: u64) {
        self.misses += 1;
        self.probes_of_misses += probes;
    }
}

/// An open engine on some medium.
///
/// The caller must not write one key from two threads at a time. A key may be read while it is written.
pub trait Engine: Send + Sync {
    /// Returns a worker for one thread. The worker keeps the engine open.
    ///
    /// At most [`ContestLimits::threads`](crate::ContestLimits::threads) workers exist at a time. The caller drops a
    /// phase's workers before it makes the next phase's.
    fn worker(&self) -> Box<dyn Worker>;

    /// Returns the bytes of DRAM in use, by purpose: `index`, `keys`, `read cache`, `recycle pools`, ...
    fn dram(&self) -> Vec<(&'static str, u64)>;

    /// Returns the bytes of far memory that the engine has taken so far.
    fn far_bytes(&self) -> u64;

    /// Returns the counts of all workers that have been dropped.
    fn stats(&self) -> EngineStats;
}

/// One thread's handle on an [`Engine`].
pub trait Worker: Send {
    /// Stores `value` under `key`. On `Ok` the value is durable, unless the engine promises no durability at all.
    fn set(&mut self, key: &Key, value: &[u8]) -> Result<(), Error>;

    /// Replaces `out` with the value of `key`. Returns false if `key` is not stored; `out` is then unspecified.
    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> bool;

    /// Executes all of `asks` in order. On `Ok` the sets are as durable as after [`Worker::set`].
    ///
    /// An engine overrides this method if it can prefetch for later requests or make several sets durable at once.
    fn run_batch(&mut self, asks: &mut [EngineRequest<'_>]) -> Result<(), Error> {
        for ask in asks {
            match ask {
                EngineRequest::Set(key, value) => self.set(key, value)?,
                EngineRequest::Get(key, out, found) => **found = self.get(key, out),
            }
        }
        Ok(())
    }
}

/// One request of a batch for [`Worker::run_batch`].
#[derive(Debug)]
pub enum EngineRequest<'a> {
    /// Store this value under this key.
    Set(&'a Key, &'a [u8]),
    /// Replace the buffer with the value of this key, and store in the flag whether the key was found.
    Get(&'a Key, &'a mut Vec<u8>, &'a mut bool),
}
