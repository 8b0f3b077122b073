//! Experiments on the cache: the placement of its metadata and the cost of its lock, its hit ratio, and hot keys.

mod hits;
mod hot;
mod partition;
mod placement;

use std::fmt::Display;
use std::path::PathBuf;

use farbank_cache::{Cache, Config, EvictionOrder, PAGE_BYTES};
use farbank_pm::media::Mapped;
use farbank_store::Key;

use crate::figure::{Error, ProgressFn, Report};

pub use hot::ITEMS_MIN as HOT_ITEMS_MIN;

/// Experiment on the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheExperiment {
    /// Writes on the model of far memory. Metadata is next to the items, spread over DIMMs, or in DRAM. Pages are
    /// prepared under the lock, outside of it, or when they are used.
    Arrangements,
    /// Hit ratios of the cache, with LRU and with S3-FIFO, and of memcached, at equal memory.
    Hits,
    /// Throughput of hot keys relative to uniform ones, and the number of merged writes.
    Hot,
}

/// Options of a run.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Experiment to run.
    pub experiment: CacheExperiment,
    /// For `Arrangements`: number of virtual workers.
    pub threads: u32,
    /// For `Arrangements`: number of DIMMs of the model.
    pub dimms: u32,
    /// For `Arrangements`: nanoseconds of an operation without memory accesses.
    pub cpu_ns: u32,
    /// For `Arrangements`: number of items, each stored and then written once more. For `Hits` and `Hot`: number of
    /// keys; for `Hot` at least [`HOT_ITEMS_MIN`].
    pub items: u64,
    /// Length of a value in bytes.
    pub value_bytes: usize,
    /// For `Hits`: requests of a run, of which the first half fills the cache. For `Hot`: operations of a round.
    pub requests: u64,
    /// For `Hits` and `Hot`: memory of each cache in MiB.
    pub mib: u64,
    /// For `Hits`: path of memcached. `None` measures our cache only.
    pub memcached: Option<PathBuf>,
    /// Seed of the random choices.
    pub seed: u64,
}

/// Runs an experiment. `watch` returns whether to continue.
///
/// # Errors
/// The cache or memcached fails, memory cannot be mapped, or `watch` stopped the run.
pub fn run(options: &CacheOptions, watch: ProgressFn<'_>) -> Result<Report, Error> {
    match options.experiment {
        CacheExperiment::Arrangements => placement::run(options, watch),
        CacheExperiment::Hits => hits::run(options, watch),
        CacheExperiment::Hot => hot::run(options, watch),
    }
}

/// Creates an empty cache with `mib` MiB for items in memory of this process, with real write-backs and fences. No
/// maintenance thread runs.
fn in_memory(mib: u64, eviction: EvictionOrder) -> Result<Cache<Mapped>, Error> {
    // The superblock and the table of areas come in addition.
    let bytes = (mib << 20) + 2 * PAGE_BYTES;
    let medium = Mapped::anonymous(bytes).map_err(Error::doing("map memory"))?;
    let config = Config {
        background_maintenance: false,
        eviction,
        ..Config::default()
    };
    Cache::create(medium, PAGE_BYTES, config).map_err(failed)
}

/// Returns a key of database 0.
fn named(name: &[u8]) -> Key<'_> {
    Key { db: 0, bytes: name }
}

fn failed(error: impl Display) -> Error {
    Error::Failed(error.to_string())
}
