//! Where a pool is put and how it is made: what `serve` and `pool create` have in common.

use std::path::Path;

use clap::{Args, ValueEnum};
use farbank_kv::{SEGMENTS_MIN, segment_bytes_for};
use farbank_pm::Kind;
use farbank_pm::media::{AnyMedium, OpenError, OpenOptions, SyncPolicy, create_path, open_path};

use crate::progress::Progress;
use crate::{Failure, size};

/// Which medium, and what a new pool is like.
#[derive(Args)]
pub(crate) struct Place {
    /// The medium the pool must be on; auto takes what the path is best at.
    #[arg(long, value_enum, default_value = "auto")]
    medium: MediumChoice,
    /// Size of a new pool.
    #[arg(long, value_name = "SIZE", default_value = "1gb", value_parser = size::parse)]
    pub(crate) size: u64,
    /// Segment size of a new pool, a power of two from 4kb; chosen from --size if not given.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    segment_bytes: Option<u64>,
    /// When a write to a file is durable: before it is acknowledged, once a second, or at the end.
    /// Persistent memory needs no sync and ignores this.
    #[arg(long, value_enum, default_value = "always")]
    sync: SyncChoice,
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

impl Place {
    /// Refuses what cannot work before anything is done.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let segment_bytes = self.segment_bytes();
        if !segment_bytes.is_power_of_two() || segment_bytes < 4096 {
            let text = "--segment-bytes must be a power of two from 4kb";
            return Err(Failure::Usage(text.into()));
        }
        let least = segment_bytes.saturating_mul(SEGMENTS_MIN + 1);
        if self.size < least {
            let least = size::human(least);
            return Err(Failure::Usage(format!("--size must be at least {least}")));
        }
        Ok(())
    }

    pub(crate) fn segment_bytes(&self) -> u64 {
        self.segment_bytes
            .unwrap_or_else(|| segment_bytes_for(self.size))
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

    /// Makes a medium at `path`, where nothing is.
    pub(crate) fn make(&self, path: &Path) -> Result<AnyMedium, Failure> {
        let mut progress = Progress::new("making the pool");
        let made = create_path(path, self.size, &self.options(), &mut |done, all| {
            progress.show(done, all);
        });
        let medium = made.map_err(|e| refused(&e))?;
        medium.prefault(&mut |done, all| progress.show(done, all));
        progress.clear();
        Ok(medium)
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
            ..OpenOptions::default()
        }
    }
}

pub(crate) fn refused(error: &OpenError) -> Failure {
    let hint = match error {
        OpenError::InUse { .. } => Some("one server at a time serves a pool; stop the other one"),
        OpenError::NoSpace { .. } => Some("a smaller --size, or another file system, would do"),
        OpenError::Unavailable { .. } => Some("--medium auto takes what the path is best at"),
        _ => None,
    };
    Failure::Failed {
        error: error.to_string(),
        hint: hint.map(str::to_owned),
    }
}

/// Removes a pool that was made a moment ago and holds nothing.
pub(crate) fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "the empty pool was left behind");
    }
}
