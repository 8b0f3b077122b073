//! Location, medium and creation options of a pool, shared by `serve` and `pool create`.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use clap::builder::TypedValueParser;
use clap::{Args, ValueEnum};
use farbank_cache::{CacheHistory, PAGE_BYTES, PAGES_MIN};
use farbank_kv::{POOL_BYTES_MAX, SEGMENTS_MIN, segment_bytes_for};
use farbank_pm::media::{
    AnyMedium, OpenError, OpenOptions, PendingPath, ReadMode, SyncPolicy, device_bytes, open_path,
    prepare_path,
};
use farbank_pm::pool::{COPIES, COPY_BYTES, PoolLayout, summary};
use farbank_pm::{Caps, Kind};

use crate::common::choice::{AnyOr, named, one_of};
use crate::common::progress::CommandProgress;
use crate::common::{Failure, size};

/// Bytes of a new pool, unless an option says otherwise.
const DEFAULT_BYTES: u64 = 1 << 30;

/// Storage engine of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum StoreEngine {
    /// A durable store: keeps every acknowledged write, and refuses writes when the pool is full.
    Kv,
    /// The Tair MDB cache: evicts the least recently used items when the pool is full; keeps its items across a kill.
    Mdb,
}

/// Options that select the medium and describe a new pool.
#[derive(Args)]
pub(crate) struct PoolPlace {
    /// Storage engine. Default: the engine that created the pool; kv for a new pool.
    #[arg(long, value_enum)]
    engine: Option<StoreEngine>,
    /// Medium that the pool must be on; auto selects the best one that the path supports.
    #[arg(long, default_value = "auto", value_parser = medium())]
    medium: AnyOr<Kind>,
    /// Size of a new pool. Default: 1gb.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Most bytes of a new pool if its size is not given.
    #[arg(skip)]
    pub(crate) default_bytes_max: Option<u64>,
    /// Segment size of a new pool, a power of two from 4kb to 1gb. Default: derived from --size. For mdb this is the
    /// page size, and no item is larger: default 1mb (less if --size is below 64mb), or more if --memcached-item-size
    /// needs it.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    segment_bytes: Option<u64>,
    /// Size of the largest item that a page of a cache must hold, in bytes; 0 if not given.
    #[arg(skip)]
    pub(crate) item_bytes: u64,
    /// When a write to a file is synced: before it is acknowledged, once a second, or only when the pool is closed.
    /// Persistent memory needs no sync and ignores this option.
    #[arg(long, default_value = "always", value_parser = one_of(&SyncPolicy::ALL, SyncPolicy::name))]
    sync: SyncPolicy,
    #[command(flatten)]
    pub(crate) reading: ReadArgs,
    /// Accept a file system that is unsafe for pools: one shared with other machines (NFS, SMB, 9p), or one that does
    /// not sync. Also accept a file that shares blocks with a copy and cannot be given blocks of its own.
    #[arg(long)]
    accept_file_system: bool,
    /// Whether a new pool may overwrite data on a device.
    #[arg(skip)]
    pub(crate) force: bool,
}

/// Returns the parser of `--medium`: a kind of medium that a path can be on, or `auto`.
fn medium() -> impl TypedValueParser<Value = AnyOr<Kind>> {
    let kinds = [Kind::Dax, Kind::Dram, Kind::File];
    let kinds = kinds.map(|kind| (kind.name(), "", AnyOr::One(kind)));
    named([("auto", "", AnyOr::Any)].into_iter().chain(kinds))
}

/// Option that selects how a file is read.
#[derive(Args)]
pub(crate) struct ReadArgs {
    /// How a file is read. mapped: through a memory mapping, the fastest. pread: by system calls, so that a disk
    /// error is an I/O error and not a signal. direct: like pread, but bypasses the page cache for data that is not
    /// in it. Other media and the engine mdb always use a mapping.
    #[arg(long = "io", value_name = "HOW", default_value = ReadMode::Mapping.name(), value_parser = one_of(&ReadMode::ALL, ReadMode::name))]
    pub(crate) read_by: ReadMode,
}

impl ReadArgs {
    /// Prints a warning if `--io` requests a read mode that the medium at `path` does not have.
    pub(crate) fn warn_if_unused(&self, path: &Path, caps: &Caps) {
        let asked = self.read_by.name();
        if asked != caps.read_mode {
            let (path, kind) = (path.display(), caps.kind.name());
            eprintln!(
                "warning: {path}: --io {asked} is ignored: the {kind} medium is always read through a mapping"
            );
        }
    }
}

impl PoolPlace {
    /// Checks the options before anything is created or opened.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let segment_bytes = self.segment_bytes();
        if (PoolLayout { segment_bytes }).check().is_err() {
            let text = "--segment-bytes must be a power of two from 4kb to 1gb";
            return Err(Failure::Usage(text.into()));
        }
        let least = match self.engine {
            Some(StoreEngine::Mdb) => cache_bytes_min(segment_bytes),
            _ => segment_bytes.saturating_mul(SEGMENTS_MIN + 1),
        };
        self.check_most("--size", self.size())?;
        if self.size() < least {
            let option = match self.size {
                None if self.size() < DEFAULT_BYTES => "--max-size",
                _ => "--size",
            };
            let least = size::human(least);
            return Err(Failure::Usage(format!("{option} must be at least {least}")));
        }
        Ok(())
    }

    /// Checks that the engine's index can address a pool of `bytes`, the value of `option`.
    pub(crate) fn check_most(&self, option: &str, bytes: u64) -> Result<(), Failure> {
        if self.engine == Some(StoreEngine::Mdb) || bytes <= POOL_BYTES_MAX {
            return Ok(());
        }
        let most = size::human(POOL_BYTES_MAX);
        Err(Failure::Usage(format!("{option} must be at most {most}")))
    }

    /// Checks that `--medium` is possible for a pool in the memory of this process.
    pub(crate) fn check_in_memory(&self) -> Result<(), Failure> {
        match self.medium {
            AnyOr::Any | AnyOr::One(Kind::Dram) => Ok(()),
            AnyOr::One(_) => Err(Failure::Usage(
                "--pool none is memory of this process: --medium must be auto or dram".into(),
            )),
        }
    }

    /// Bytes of a new pool.
    pub(crate) fn size(&self) -> u64 {
        let most = self.default_bytes_max.unwrap_or(u64::MAX);
        self.size.unwrap_or(DEFAULT_BYTES.min(most))
    }

    pub(crate) fn segment_bytes(&self) -> u64 {
        self.segment_bytes.unwrap_or_else(|| match self.engine {
            Some(StoreEngine::Mdb) => page_bytes_for(self.size(), self.item_bytes),
            _ => segment_bytes_for(self.size()),
        })
    }

    /// Sets the engine if `--engine` is not given: the engine that created the pool at `path`, or kv.
    pub(crate) fn find_engine(&mut self, path: &Path) {
        self.engine
            .get_or_insert_with(|| match made_by_cache(path) {
                true => StoreEngine::Mdb,
                false => StoreEngine::Kv,
            });
    }

    /// Returns the storage engine; kv if none is set.
    pub(crate) fn engine(&self) -> StoreEngine {
        self.engine.unwrap_or(StoreEngine::Kv)
    }

    pub(crate) fn sync(&self) -> SyncPolicy {
        self.sync
    }

    /// Opens the medium at `path`.
    pub(crate) fn open(&self, path: &Path) -> Result<AnyMedium, Failure> {
        open_path(path, &self.options()).map_err(|e| refused(&e))
    }

    /// Creates a medium at `path`, where no file exists. The file gets its name when the pool on it is complete: call
    /// [`PendingPath::publish`].
    pub(crate) fn make(&self, path: &Path) -> Result<(AnyMedium, PendingPath), Failure> {
        // The pool takes up the whole device. Check its size before anything is written.
        if let Some(bytes) = device_bytes(path).map_err(|e| refused(&e))? {
            self.check_most("the size of the device", bytes)?;
        }
        let mut progress = CommandProgress::new("creating the pool");
        let made = prepare_path(path, self.size(), &self.options(), &mut |done, all| {
            progress.show(done, all);
        });
        let (medium, name) = made.map_err(|e| refused(&e))?;
        medium.prefault(&mut |done, all| progress.show(done, all));
        progress.clear();
        Ok((medium, name))
    }

    fn options(&self) -> OpenOptions {
        let medium = match self.medium {
            AnyOr::Any => None,
            AnyOr::One(kind) => Some(kind),
        };
        OpenOptions {
            medium,
            sync: self.sync(),
            read_by: self.reading.read_by,
            // A cache need not survive a power cut: it starts empty after one.
            page_cache: self.engine() == StoreEngine::Mdb,
            accept_file_system: self.accept_file_system,
            force: self.force,
            notice: Some(std::sync::Arc::new(|line| eprintln!("{line}"))),
            ..OpenOptions::default()
        }
    }
}

/// Returns the size in bytes of the smallest cache with pages of `page_bytes`. One page holds the area table.
pub(crate) fn cache_bytes_min(page_bytes: u64) -> u64 {
    let segment_bytes = page_bytes;
    let pages = PAGES_MIN.saturating_add(1);
    let first = PoolLayout { segment_bytes }.first_segment();
    segment_bytes.saturating_mul(pages).saturating_add(first)
}

/// Returns the page size of a cache of `bytes`: a 64th or less, from 64 KiB to [`PAGE_BYTES`]. A page can hold an item of `item_bytes` if enough pages remain.
/// Without `item_bytes` a small cache keeps small pages, because it needs pages for many size classes.
fn page_bytes_for(bytes: u64, item_bytes: u64) -> u64 {
    let usual = (1 << (bytes / 64).max(1).ilog2()).clamp(64 << 10, PAGE_BYTES);
    let roomy = usual.max(item_bytes.next_power_of_two());
    match cache_bytes_min(roomy) <= bytes {
        true => roomy,
        false => usual,
    }
}

/// Returns whether there is a pool at `path` that the mdb engine created.
fn made_by_cache(path: &Path) -> bool {
    superblocks(path)
        .ok()
        .and_then(|copies| summary(&copies).ok())
        .is_some_and(|summary| CacheHistory::of(&summary.root).is_some())
}

/// Reads both copies of the superblock of the pool at `path`, without checking them.
pub(crate) fn superblocks(path: &Path) -> std::io::Result<[[u8; COPY_BYTES]; 2]> {
    let file = File::open(path)?;
    let mut copies = [[0; COPY_BYTES]; 2];
    for (copy, at) in copies.iter_mut().zip(COPIES) {
        file.read_exact_at(copy, at.0)?;
    }
    Ok(copies)
}

/// Prints the medium's warnings about `path`.
pub(crate) fn warn(path: &Path, caps: &Caps) {
    for warning in &caps.warnings {
        eprintln!("warning: {}: {warning}", path.display());
    }
}

pub(crate) fn refused(error: &OpenError) -> Failure {
    let hint = match error {
        OpenError::InUse { .. } => {
            Some("only one process can have a pool open; stop the other one")
        }
        OpenError::NoSpace { .. } => Some("choose a smaller --size or another file system"),
        OpenError::Occupied { .. } => {
            Some("if it is a pool, `farbank serve` opens it; `pool create --force` overwrites it")
        }
        OpenError::FileSystem { .. } => Some(
            "use a local file system that supports sync; --accept-file-system uses this one anyway",
        ),
        OpenError::Shared { .. } => Some(
            "free some space, or copy the file with `cp --reflink=never` and open the copy; \
             --accept-file-system opens it anyway",
        ),
        OpenError::NoDirectReads { .. } => {
            Some("use --io pread, which reads the file by system calls through the page cache")
        }
        OpenError::Unavailable { .. } => {
            Some("use --medium auto, which selects the best medium that the path supports")
        }
        _ => None,
    };
    Failure::Failed {
        error: error.to_string(),
        hint: hint.map(str::to_owned),
    }
}

/// Builds the error for a pool at `path` that cannot be opened or created although its medium can. `copy`: the pool
/// is a copy of one that was in use.
pub(crate) fn not_opened(path: &Path, error: impl fmt::Display, copy: bool) -> Failure {
    let hint = "if the original no longer exists, --accept-copy opens this copy as it is";
    Failure::Failed {
        error: format!("{}: {error}", path.display()),
        hint: copy.then(|| hint.to_owned()),
    }
}

/// Returns the path of the file beside `pool` that keeps the libraries of FUNCTION LOAD.
pub(crate) fn functions_file(pool: &Path) -> PathBuf {
    let mut file = pool.as_os_str().to_owned();
    file.push(".functions");
    file.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_page_has_room_for_the_largest_item_where_there_are_pages_enough() {
        for (size, item, page) in [
            (64, 0, MIB),
            (8, 0, 128 << 10),
            (8, MIB, MIB),
            (7, 512 << 10, 512 << 10),
            (4, MIB, 64 << 10),
            (64, 2 * MIB - 5, 2 * MIB),
            (64, 16 * MIB, MIB),
            (1024, 32 * MIB, 32 * MIB),
        ] {
            assert_eq!(page_bytes_for(size * MIB, item), page, "{size} MiB, {item}");
        }
    }
}
