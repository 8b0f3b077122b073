//! [`OpenError`], the reason why a medium could not be opened or created.

use std::io;
use std::path::{Path, PathBuf};
use std::{error, fmt};

use crate::medium::Kind;
use crate::pool;

/// Reason why a medium could not be opened or created.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// A system call failed.
    Io {
        /// The file.
        path: PathBuf,
        /// Operation that failed: "open", "lock", ...
        doing: &'static str,
        /// Error of the system call.
        source: io::Error,
    },
    /// Another process, or this one, has the pool open.
    InUse {
        /// The file.
        path: PathBuf,
        /// Id and name of that process, if the kernel reports them.
        by: Option<(u32, String)>,
    },
    /// Another host has the file open: it counts up its lease.
    OtherHost {
        /// The file.
        path: PathBuf,
        /// Name of the other host.
        host: String,
    },
    /// A file already exists at the path of the new pool.
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The device already contains data. See [`OpenOptions::force`](super::OpenOptions::force).
    Occupied {
        /// The device.
        path: PathBuf,
        /// The data that was recognised.
        what: String,
    },
    /// The device or file system has too little space. No file was left behind.
    NoSpace {
        /// The file.
        path: PathBuf,
        /// Bytes that were requested.
        bytes: u64,
    },
    /// The file has a hole within the pool.
    Sparse {
        /// The file.
        path: PathBuf,
        /// Offset of the hole.
        hole: u64,
        /// Length of the pool in bytes.
        bytes: u64,
    },
    /// The file is shorter than a superblock.
    TooShort {
        /// The file.
        path: PathBuf,
        /// Length of the file in bytes.
        bytes: u64,
    },
    /// A pool should not be on this file system. See [`OpenOptions::accept_file_system`](super::OpenOptions::accept_file_system).
    FileSystem {
        /// The file.
        path: PathBuf,
        /// Name of the file system.
        name: String,
        /// The risk.
        why: &'static str,
    },
    /// The file shares blocks with a copy of it, and they could not be replaced by blocks of its own.
    Shared {
        /// The file.
        path: PathBuf,
        /// Bytes in shared blocks; 0 if they could not be counted.
        bytes: u64,
        /// Error of the rewrite.
        source: io::Error,
    },
    /// A mapping of the file does not show the bytes written to it.
    Incoherent {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read past the page cache ([`ReadMode::Direct`](super::ReadMode::Direct)).
    NoDirectReads {
        /// The file.
        path: PathBuf,
        /// Name of the file system.
        file_system: String,
        /// The failed operation and its error.
        source: io::Error,
    },
    /// The path cannot be the requested medium.
    Unavailable {
        /// The file.
        path: PathBuf,
        /// The requested medium.
        medium: Kind,
        /// What the path is, and the media it can be.
        why: &'static str,
    },
}

impl OpenError {
    pub(super) fn io(path: &Path, doing: &'static str, source: io::Error) -> OpenError {
        OpenError::Io {
            path: path.into(),
            doing,
            source,
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Io {
                path,
                doing,
                source,
            } => {
                write!(f, "cannot {doing} {}: {source}", path.display())
            }
            OpenError::InUse { path, by } => {
                write!(f, "{} is in use", path.display())?;
                match by {
                    Some((pid, name)) => write!(f, " by process {pid} ({name})"),
                    None => write!(f, " by another process"),
                }
            }
            OpenError::OtherHost { path, host } => write!(
                f,
                "{} is in use on another host, {host:?}: stop the server there first",
                path.display()
            ),
            OpenError::Exists { path } => write!(
                f,
                "{} already exists: open it, or remove it to create a new pool there",
                path.display()
            ),
            OpenError::Occupied { path, what } => write!(
                f,
                "{} already contains {what}, which a new pool would overwrite",
                path.display()
            ),
            OpenError::NoSpace { path, bytes } => {
                write!(
                    f,
                    "not enough space for the {bytes} bytes of {}",
                    path.display()
                )
            }
            OpenError::Sparse { path, hole, bytes } => write!(
                f,
                "{} has a hole at byte {hole}, before the end of the pool at {bytes}: writing there \
                 could run out of space. If it was copied, copy it again with cp --sparse=never; \
                 if its creation was interrupted, remove it; if its file system stores zeros as \
                 holes (ZFS with compression does), turn that off for it",
                path.display()
            ),
            OpenError::TooShort { path, bytes } => write!(
                f,
                "{} is not a pool: it has {bytes} bytes, fewer than the {} of a superblock",
                path.display(),
                pool::HEAD_BYTES
            ),
            OpenError::FileSystem { path, name, why } => {
                write!(
                    f,
                    "{} is on {name}, which is not safe for a pool: {why}",
                    path.display()
                )
            }
            OpenError::Shared {
                path,
                bytes,
                source,
            } => write!(
                f,
                "{} shares {bytes} bytes with a copy of it (reflink, snapshot), and the shared blocks could not be \
                 replaced: {source}. Writing to them could run out of space",
                path.display()
            ),
            OpenError::Incoherent { path } => write!(
                f,
                "{}: a mapping of the file does not show the bytes written to it, so reads would be \
                 wrong: this file system cannot hold a pool",
                path.display()
            ),
            OpenError::NoDirectReads {
                path,
                file_system,
                source,
            } => write!(
                f,
                "{} is on {file_system}, which does not support direct reads ({source})",
                path.display()
            ),
            OpenError::Unavailable { path, medium, why } => {
                write!(
                    f,
                    "{} cannot be the {} medium: it is {why}",
                    path.display(),
                    medium.name()
                )
            }
        }
    }
}

impl error::Error for OpenError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            OpenError::Io { source, .. }
            | OpenError::Shared { source, .. }
            | OpenError::NoDirectReads { source, .. } => Some(source),
            _ => None,
        }
    }
}
