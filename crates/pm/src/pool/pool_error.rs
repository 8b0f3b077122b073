//! [`PoolError`], the error of a pool that could not be created or opened.

use std::{fmt, io};

use crate::corruption::Corruption;
use crate::medium::{FileId, Poisoned};

/// The error of a pool that could not be created or opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum PoolError {
    /// The medium is poisoned.
    Poisoned(Poisoned),
    /// The requested layout is impossible. The text gives the bound that it breaks.
    Layout(String),
    /// The medium has no pool. The text gives the bytes found, those expected, and where.
    NotAPool(String),
    /// The superblock is damaged: neither copy is valid, or its values are impossible.
    Damaged(Corruption),
    /// The pool has an unsupported format version or unsupported features.
    Unknown(String),
    /// The medium is shorter than the pool on it.
    Short {
        /// Bytes the superblock records.
        recorded: u64,
        /// Bytes the medium has.
        found: u64,
    },
    /// The pool was not closed cleanly, and this is not the file it was open in: it is a copy. See
    /// [`CopiedPoolPolicy`](super::CopiedPoolPolicy).
    Copy {
        /// The file in which the pool was open.
        recorded: FileId,
        /// This file.
        found: FileId,
    },
    /// The system returned no random bytes for the pool's secret id.
    Random(io::Error),
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::Poisoned(p) => p.fmt(f),
            PoolError::Layout(why) | PoolError::NotAPool(why) | PoolError::Unknown(why) => {
                f.write_str(why)
            }
            PoolError::Damaged(corruption) => write!(
                f,
                "the pool is damaged: {corruption}; restore the file from a copy that was made while the pool was \
                 closed"
            ),
            PoolError::Short { recorded, found } => write!(
                f,
                "the pool is cut short: its superblock records {recorded} bytes, but the medium has only \
                 {found}; restore the file from a copy that was made while the pool was closed"
            ),
            PoolError::Copy { recorded, found } => write!(
                f,
                "this is a copy of a pool that was in use or had crashed: acknowledged writes may be \
                 missing in it (the pool was open in the file with inode {} created at {}, this file has \
                 inode {} and was created at {}); open the original file, or close the pool cleanly and \
                 copy it again",
                recorded.inode,
                FileBirth(recorded.created_ns),
                found.inode,
                FileBirth(found.created_ns)
            ),
            PoolError::Random(e) => write!(f, "cannot get random bytes for the pool's id: {e}"),
        }
    }
}

/// A file's creation time in nanoseconds since 1970, for display; 0 if unknown.
struct FileBirth(u64);

impl fmt::Display for FileBirth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SECOND_NS: u64 = 1_000_000_000;
        match self.0 {
            0 => f.write_str("an unknown time"),
            ns => write!(f, "{}.{:09} s", ns / SECOND_NS, ns % SECOND_NS),
        }
    }
}

impl std::error::Error for PoolError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PoolError::Poisoned(p) => Some(p),
            PoolError::Damaged(corruption) => Some(corruption),
            PoolError::Random(e) => Some(e),
            _ => None,
        }
    }
}

impl From<Poisoned> for PoolError {
    fn from(poisoned: Poisoned) -> PoolError {
        PoolError::Poisoned(poisoned)
    }
}
