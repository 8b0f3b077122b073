//! Where a pool is put and how it is made: what `serve` and `pool create` have in common.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use farbank_cache::{CacheHistory, PAGE_BYTES, PAGES_MIN};
use farbank_kv::{POOL_BYTES_MAX, SEGMENTS_MIN, segment_bytes_for};
use farbank_pm::media::{
    AnyMedium, OpenError, OpenOptions, PendingPath, ReadMode, SyncPolicy, device_bytes, open_path,
    prepare_path,
};
use farbank_pm::pool::{COPIES, COPY_BYTES, PoolLayout, summary};
use farbank_pm::{Caps, Kind};

use crate::progress::CommandProgress;
use crate::{Failure, size};

/// What keeps keys in a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum StoreEngine {
    /// A durable store: it keeps what it acknowledged, and refuses writes when it is full.
    Kv,
    /// The Tair MDB cache: what was used least lately goes when it is full; warm after a kill.
    Mdb,
}

/// Which medium, and what a new pool is like.
#[derive(Args)]
pub(crate) struct PoolPlace {
    /// What keeps the keys; what made the pool if it is there, else kv.
    #[arg(long, value_enum)]
    engine: Option<StoreEngine>,
    /// The medium the pool must be on; auto takes what the path is best at.
    #[arg(long, value_enum, default_value = "auto")]
    medium: MediumChoice,
    /// Size of a new pool.
    #[arg(long, value_name = "SIZE", default_value = "1gb", value_parser = size::parse)]
    pub(crate) size: u64,
    /// Segment size of a new pool, a power of two from 4kb to 1gb; chosen from --size if not given. The cache's
    /// pages, and no item is larger: 1mb (less if --size is below 64mb), or what --memcached-item-size needs.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    segment_bytes: Option<u64>,
    /// The item that a cache's page was asked to have room for.
    #[arg(skip)]
    pub(crate) item_bytes: u64,
    /// When a write to a file is durable: before it is acknowledged, once a second, or at the end.
    /// Persistent memory needs no sync and ignores this.
    #[arg(long, value_enum, default_value = "always")]
    sync: SyncChoice,
    #[command(flatten)]
    pub(crate) reading: ReadArgs,
    /// Use a file system that pools should not be on: one that other machines share (NFS, SMB, 9p), or that
    /// does not sync; or a file that shares blocks with a copy of it and cannot be given its own.
    #[arg(long)]
    accept_file_system: bool,
    /// Whether a new pool may overwrite what is on a device.
    #[arg(skip)]
    pub(crate) force: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum MediumChoice {
    Auto,
    Dax,
    Dram,
    File,
}

#[derive(Clone, Copy, ValueEnum)]
enum SyncChoice {
    Always,
    Everysec,
    Never,
}

/// How a file is read.
#[derive(Args)]
pub(crate) struct ReadArgs {
    /// How a file is read. mapped: through a mapping, the fastest. pread: by system calls, so that an error of the disk is
    /// no signal. direct: the same, and what is not cached is read past the page cache. Other media, and the engine mdb,
    /// are always mapped.
    #[arg(long = "io", value_name = "HOW", default_value = ReadMode::Mapping.name(), value_parser = read_by())]
    pub(crate) read_by: ReadMode,
}

fn read_by() -> impl TypedValueParser<Value = ReadMode> {
    let names = ReadMode::ALL.map(ReadMode::name);
    PossibleValuesParser::new(names).map(|name| {
        let named = ReadMode::ALL.into_iter().find(|by| by.name() == name);
        named.expect("the parser takes only these names")
    })
}

impl ReadArgs {
    /// Warns when something else than a mapping was asked for and the medium at `path` has nothing else.
    pub(crate) fn warn_if_unused(&self, path: &Path, caps: &Caps) {
        let asked = self.read_by.name();
        if asked != caps.read_by {
            let (path, kind) = (path.display(), caps.kind.name());
            eprintln!(
                "warning: {path}: --io {asked} has no effect on the {kind} medium, which is always mapped"
            );
        }
    }
}

impl PoolPlace {
    /// Refuses what cannot work before anything is done.
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
        self.check_most("--size", self.size)?;
        if self.size < least {
            let least = size::human(least);
            return Err(Failure::Usage(format!("--size must be at least {least}")));
        }
        Ok(())
    }

    /// Refuses a size, given by `option`, that the engine's index does not reach.
    pub(crate) fn check_most(&self, option: &str, bytes: u64) -> Result<(), Failure> {
        if self.engine == Some(StoreEngine::Mdb) || bytes <= POOL_BYTES_MAX {
            return Ok(());
        }
        let most = size::human(POOL_BYTES_MAX);
        Err(Failure::Usage(format!("{option} must be at most {most}")))
    }

    /// Refuses a medium that memory of this process is not.
    pub(crate) fn check_in_memory(&self) -> Result<(), Failure> {
        match self.medium {
            MediumChoice::Auto | MediumChoice::Dram => Ok(()),
            MediumChoice::Dax | MediumChoice::File => Err(Failure::Usage(
                "--pool none is memory of this process: --medium must be auto or dram".into(),
            )),
        }
    }

    pub(crate) fn segment_bytes(&self) -> u64 {
        self.segment_bytes.unwrap_or_else(|| match self.engine {
            Some(StoreEngine::Mdb) => page_bytes_for(self.size, self.item_bytes),
            _ => segment_bytes_for(self.size),
        })
    }

    /// Finds out what keeps the pool at `path`, if that was not said: what made it, or the durable engine.
    pub(crate) fn find_engine(&mut self, path: &Path) {
        self.engine
            .get_or_insert_with(|| match made_by_cache(path) {
                true => StoreEngine::Mdb,
                false => StoreEngine::Kv,
            });
    }

    /// What keeps the pool.
    pub(crate) fn engine(&self) -> StoreEngine {
        self.engine.unwrap_or(StoreEngine::Kv)
    }

    pub(crate) fn sync(&self) -> SyncPolicy {
        match self.sync {
            SyncChoice::Always => SyncPolicy::Always,
            SyncChoice::Everysec => SyncPolicy::EverySec,
            SyncChoice::Never => SyncPolicy::Never,
        }
    }

    /// Opens what is at `path`.
    pub(crate) fn open(&self, path: &Path) -> Result<AnyMedium, Failure> {
        open_path(path, &self.options()).map_err(|e| refused(&e))
    }

    /// Makes a medium at `path`, where nothing is. It gets its name when a pool is on it.
    pub(crate) fn make(&self, path: &Path) -> Result<(AnyMedium, PendingPath), Failure> {
        // A device is a pool as a whole. What cannot be is refused before it is written to.
        if let Some(bytes) = device_bytes(path).map_err(|e| refused(&e))? {
            self.check_most("the device, which is a pool as a whole,", bytes)?;
        }
        let mut progress = CommandProgress::new("making the pool");
        let made = prepare_path(path, self.size, &self.options(), &mut |done, all| {
            progress.show(done, all);
        });
        let (medium, name) = made.map_err(|e| refused(&e))?;
        medium.prefault(&mut |done, all| progress.show(done, all));
        progress.clear();
        Ok((medium, name))
    }

    fn options(&self) -> OpenOptions {
        let medium = match self.medium {
            MediumChoice::Auto => None,
            MediumChoice::Dax => Some(Kind::Dax),
            MediumChoice::Dram => Some(Kind::Dram),
            MediumChoice::File => Some(Kind::File),
        };
        OpenOptions {
            medium,
            sync: self.sync(),
            read_by: self.reading.read_by,
            // A cache need not survive a power cut: it starts empty then.
            page_cache: self.engine() == StoreEngine::Mdb,
            accept_file_system: self.accept_file_system,
            force: self.force,
            notice: Some(std::sync::Arc::new(|line| eprintln!("{line}"))),
            ..OpenOptions::default()
        }
    }
}

/// Bytes of the smallest cache with pages of `page_bytes`: one page is that of its areas.
pub(crate) fn cache_bytes_min(page_bytes: u64) -> u64 {
    let segment_bytes = page_bytes;
    let pages = PAGES_MIN.saturating_add(1);
    let first = PoolLayout { segment_bytes }.first_segment();
    segment_bytes.saturating_mul(pages).saturating_add(first)
}

/// Bytes of the pages of a cache of `bytes`: an item of `item_bytes`, if one was asked for, has room in
/// one, where that leaves pages enough. Not of itself: a small cache needs pages for many classes.
fn page_bytes_for(bytes: u64, item_bytes: u64) -> u64 {
    let usual = PAGE_BYTES.min(segment_bytes_for(bytes) * 16);
    let roomy = usual.max(item_bytes.next_power_of_two());
    match cache_bytes_min(roomy) <= bytes {
        true => roomy,
        false => usual,
    }
}

/// Whether the pool at `path`, if there is one, is a cache's.
fn made_by_cache(path: &Path) -> bool {
    superblocks(path)
        .ok()
        .and_then(|copies| summary(&copies).ok())
        .is_some_and(|summary| CacheHistory::of(&summary.root).is_some())
}

/// The copies of the superblock of the pool at `path`, as they are.
pub(crate) fn superblocks(path: &Path) -> std::io::Result<[[u8; COPY_BYTES]; 2]> {
    let file = File::open(path)?;
    let mut copies = [[0; COPY_BYTES]; 2];
    for (copy, at) in copies.iter_mut().zip(COPIES) {
        file.read_exact_at(copy, at.0)?;
    }
    Ok(copies)
}

/// Prints what was found at the pool's place.
pub(crate) fn warn(path: &Path, caps: &Caps) {
    for warning in &caps.warnings {
        eprintln!("warning: {}: {warning}", path.display());
    }
}

pub(crate) fn refused(error: &OpenError) -> Failure {
    let hint = match error {
        OpenError::InUse { .. } => Some("one server at a time serves a pool; stop the other one"),
        OpenError::NoSpace { .. } => Some("a smaller --size, or another file system, would do"),
        OpenError::Occupied { .. } => {
            Some("`pool create --force` overwrites it; if it is a pool, `farbank serve` opens it")
        }
        OpenError::FileSystem { .. } => {
            Some("use a local file system that syncs; --accept-file-system takes this one as it is")
        }
        OpenError::Shared { .. } => Some(
            "free some space, or copy the file with `cp --reflink=never` and open the copy; \
             --accept-file-system opens it as it is",
        ),
        OpenError::NoDirectReads { .. } => {
            Some("--io pread reads the file by system calls, through the page cache")
        }
        OpenError::Unavailable { .. } => Some("--medium auto takes what the path is best at"),
        _ => None,
    };
    Failure::Failed {
        error: error.to_string(),
        hint: hint.map(str::to_owned),
    }
}

/// Why the pool at `path`, whose medium is fine, was not opened or made.
pub(crate) fn not_opened(path: &Path, error: impl fmt::Display, copy: bool) -> Failure {
    let hint = "if the original is gone, --accept-copy takes this file as it is";
    Failure::Failed {
        error: format!("{}: {error}", path.display()),
        hint: copy.then(|| hint.to_owned()),
    }
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
