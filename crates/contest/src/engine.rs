//! What a judge sees of an engine.

use std::fmt;
use std::ops::RangeInclusive;

use farbank_pm::Poisoned;

/// Bytes of a key.
pub const KEY_BYTES: usize = 16;
/// Bytes a value may have.
pub const VALUE_BYTES: RangeInclusive<usize> = 80..=1024;

/// A key.
pub type Key = [u8; KEY_BYTES];

/// Why a value was not stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// There is no place for it, in far memory or in a table sized by the terms; nothing happened.
    Full,
    /// Far memory failed: the value may be durable or not, and nothing is acknowledged any more.
    Poisoned(Poisoned),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Full => f.write_str("the engine has no place left for this value"),
            Error::Poisoned(poisoned) => poisoned.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<Poisoned> for Error {
    fn from(poisoned: Poisoned) -> Error {
        Error::Poisoned(poisoned)
    }
}

/// Why an engine was not opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// Medium, terms, tuning and what is in the medium do not fit each other.
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

impl std::error::Error for OpenError {}

impl From<Poisoned> for OpenError {
    fn from(poisoned: Poisoned) -> OpenError {
        OpenError::Poisoned(poisoned)
    }
}

/// What an engine did, counted by itself. What it cost far memory is counted at the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EngineStats {
    /// Sets of keys that were not there.
    pub inserts: u64,
    /// Sets of keys that were.
    pub updates: u64,
    /// Of the updates, those written to a spare block that the old one took the place of.
    pub swaps: u64,
    /// Gets that were answered by the read cache.
    pub cache_hits: u64,
    /// Gets that were not, where there is a read cache.
    pub cache_misses: u64,
    /// Lookups that found their key at the first, second, third place of its chain or probe, or further on.
    pub depth: [u64; 4],
    /// Places looked at by lookups that found their key.
    pub probes_of_hits: u64,
    /// Places looked at by those that did not.
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
    /// A lookup that found its key after looking at `probes` places.
    pub fn hit(&mut self, probes: u64) {
        self.depth[probes.clamp(1, 4) as usize - 1] += 1;
        self.probes_of_hits += probes;
    }

    /// A lookup that looked at `probes` places and did not find its key.
    pub fn miss(&mut self, probes: u64) {
        self.misses += 1;
        self.probes_of_misses += probes;
    }
}

/// An engine on some medium, open.
///
/// Nobody writes a key while somebody else writes it; one may write it while others read it.
pub trait Engine: Send + Sync {
    /// A door for one thread. There are at most as many at a time as [`crate::Terms::threads`] says; a phase's
    /// workers are dropped before the next phase's are made. It keeps the engine open.
    fn worker(&self) -> Box<dyn Worker>;

    /// Bytes of DRAM it holds, by purpose: `index`, `keys`, `read cache`, `recycle pools`, ...
    fn dram(&self) -> Vec<(&'static str, u64)>;

    /// Bytes of far memory it has taken so far, of those it was given.
    fn far_bytes(&self) -> u64;

    /// What its workers did until they were dropped.
    fn tally(&self) -> EngineStats;
}

/// One thread's door to an [`Engine`].
pub trait Worker: Send {
    /// Stores `value` under `key`. On `Ok` it is durable, where the engine promises that at all.
    fn set(&mut self, key: &Key, value: &[u8]) -> Result<(), Error>;

    /// Makes `out` the value of `key`; false, and `out` may be anything, if there is none.
    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> bool;
    /// Does all of `asks`, in order. On `Ok` its sets are as durable as after [`Worker::set`]; an engine that
    /// gains by knowing what comes next, or by making several sets durable at once, says how.
    fn together(&mut self, asks: &mut [EngineRequest<'_>]) -> Result<(), Error> {
        for ask in asks {
            match ask {
                EngineRequest::Set(key, value) => self.set(key, value)?,
                EngineRequest::Get(key, out, found) => **found = self.get(key, out),
            }
        }
        Ok(())
    }
}

/// One of several operations that are asked for together.
#[derive(Debug)]
pub enum EngineRequest<'a> {
    /// Store this value under this key.
    Set(&'a Key, &'a [u8]),
    /// Make that the value of this key, and say whether there is one.
    Get(&'a Key, &'a mut Vec<u8>, &'a mut bool),
}
