//! The cache: where its metadata and its lock cost what, how often it finds what it was told, and what hot keys do.

mod hits;
mod hot;
mod partition;
mod placement;

use std::fmt::Display;
use std::path::PathBuf;

use farbank_cache::{Cache, Config, PAGE_BYTES};
use farbank_kv::store::Key;
use farbank_pm::media::Mapped;

use crate::figure::{Error, ProgressFn, Report};

pub use hot::ITEMS_MIN as HOT_ITEMS_MIN;

/// What is found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheExperiment {
    /// Writes on the model of far memory: metadata beside the items, spread over DIMMs, or in DRAM; pages made ready
    /// under the lock, outside of it, or as they are used.
    Arrangements,
    /// How often a read finds its item, at equal memory, beside memcached.
    Hits,
    /// What hot keys do: throughput beside that of uniform ones, and writes that are merged.
    Hot,
}

/// What is run.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// What is found out.
    pub experiment: CacheExperiment,
    /// Of arrangements: virtual workers.
    pub threads: u32,
    /// Of arrangements: DIMMs of the model.
    pub dimms: u32,
    /// Of arrangements: nanoseconds an operation takes besides memory.
    pub cpu_ns: u32,
    /// Of arrangements: items that are stored, then written once more. Of hits and hot: keys; of hot [`HOT_ITEMS_MIN`]
    /// at least.
    pub items: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Of hits: requests of a run; half of them fill the cache first. Of hot: operations of a round.
    pub requests: u64,
    /// Of hits and hot: MiB each cache has.
    pub mib: u64,
    /// Of hits: memcached's program; none: the cache alone.
    pub memcached: Option<PathBuf>,
    /// Decides what chance decides.
    pub seed: u64,
}

/// Runs it. `watch` answers whether to go on.
pub fn run(options: &CacheOptions, watch: ProgressFn<'_>) -> Result<Report, Error> {
    match options.experiment {
        CacheExperiment::Arrangements => placement::run(options, watch),
        CacheExperiment::Hits => hits::run(options, watch),
        CacheExperiment::Hot => hot::run(options, watch),
    }
}

/// An empty cache with `mib` MiB for items in memory of this process, its write-backs and fences real. It is not tended.
fn in_memory(mib: u64) -> Result<Cache<Mapped>, Error> {
    // The superblock and the table of areas are besides.
    let bytes = (mib << 20) + 2 * PAGE_BYTES;
    let medium = Mapped::anonymous(bytes).map_err(Error::doing("map memory"))?;
    let config = Config {
        tended: false,
        ..Config::default()
    };
    Cache::create(medium, PAGE_BYTES, config).map_err(failed)
}

/// A key of the first database.
fn named(name: &[u8]) -> Key<'_> {
    Key { db: 0, bytes: name }
}

fn failed(error: impl Display) -> Error {
    Error::Failed(error.to_string())
}
