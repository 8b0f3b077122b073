//! [`OpenOptions`], the options to open or create a medium.

use std::fmt;
use std::sync::Arc;

use super::reader::ReadMode;
use super::space::{FileIo, KernelIo};
use crate::medium::Kind;

/// Options to open or create a medium.
#[derive(Clone)]
pub struct OpenOptions {
    /// Required medium. `None` chooses the default medium of the path.
    pub medium: Option<Kind>,
    /// When the writes of a [`File`](super::File) are made durable. [`Mapped`](super::Mapped) ignores it.
    pub sync: SyncPolicy,
    /// How the bytes of a [`File`](super::File) are read. [`Mapped`](super::Mapped) ignores it.
    pub read_by: ReadMode,
    /// Whether an ordinary file is mapped, as [`Mapped`](super::Mapped) DRAM whose bytes are in the page cache. Stores are fast and
    /// survive a kill, but not a power cut. Lines are not written back, on a file in memory (tmpfs) either. For
    /// caches that can start empty after a restart of the machine: writes continue even after the file was removed.
    pub page_cache: bool,
    /// Whether to accept a file system that is refused by default, because other machines can have the file
    /// open too or because it does not sync. Also accepts a file whose blocks stay shared with a copy of it.
    pub accept_file_system: bool,
    /// Whether a new pool may overwrite data on a device, including another pool.
    pub force: bool,
    /// Called with one line for people if an open waits, because another host may have the pool open.
    pub notice: Option<WaitNotice>,
    /// System calls. Tests replace them to inject failures.
    pub io: Arc<dyn FileIo>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            medium: None,
            sync: SyncPolicy::default(),
            read_by: ReadMode::default(),
            page_cache: false,
            accept_file_system: false,
            force: false,
            notice: None,
            io: Arc::new(KernelIo),
        }
    }
}

impl fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenOptions")
            .field("medium", &self.medium)
            .field("sync", &self.sync)
            .finish_non_exhaustive()
    }
}

/// When a file's writes are made durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SyncPolicy {
    /// Before they are acknowledged: a ticket becomes durable by an `fdatasync`.
    #[default]
    Always,
    /// Once a second. A drain returns a durable ticket at once.
    EverySec,
    /// When the pool is closed. A drain returns a durable ticket at once.
    Never,
}

impl SyncPolicy {
    /// All policies.
    pub const ALL: [SyncPolicy; 3] = [SyncPolicy::Always, SyncPolicy::EverySec, SyncPolicy::Never];

    /// The policy's name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            SyncPolicy::Always => "always",
            SyncPolicy::EverySec => "everysec",
            SyncPolicy::Never => "never",
        }
    }
}

/// Callback with one line for people, called when an open waits.
pub type WaitNotice = Arc<dyn Fn(&str) + Send + Sync>;
