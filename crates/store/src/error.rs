//! Errors of operations on a store.

use std::fmt;
use std::sync::Arc;

use farbank_pm::Poisoned;

use crate::value::{DATABASES, KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Reason why a backup is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackupError {
    /// The store cannot make a consistent backup.
    Unsupported,
    /// There is another backup of the store.
    Running,
    /// FLUSHALL has removed the keys before they were read.
    Flushed,
    /// Writers have replaced values faster than the backup has read them.
    Overrun,
    /// Writes that were staged at the moment of the backup were neither committed nor dropped in time.
    Unsettled,
}

impl fmt::Display for BackupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BackupError::Unsupported => {
                "this engine cannot make a consistent backup: a cache (--engine mdb) has none"
            }
            BackupError::Running => "another backup of the store is in progress",
            BackupError::Flushed => "FLUSHALL removed the keys during the backup",
            BackupError::Overrun => {
                "writers replaced values faster than the backup could read them; \
                 try again, with a higher limit or a faster disk"
            }
            BackupError::Unsettled => {
                "a session held uncommitted writes for too long while a backup began; try again"
            }
        })
    }
}

/// Reason why an operation failed. A failed operation has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The medium failed; see [`Poisoned`].
    Poisoned(Poisoned),
    /// The pool has no room for this write. Deletes still succeed.
    Full,
    /// The pool has no room for this write and could not grow, for the reason given. Deletes still succeed.
    CannotGrow(Arc<str>),
    /// The key is too long for this store.
    KeyTooLong {
        /// Length of the key in bytes.
        bytes: usize,
        /// Largest length in bytes: [`KEY_BYTES_MAX`], or less in a pool with small segments.
        bytes_max: usize,
    },
    /// The value is too long for this store.
    ValueTooLong {
        /// Length of the value in bytes.
        bytes: usize,
        /// Largest length in bytes: [`VALUE_BYTES_MAX`], or less in a pool with small segments and in a group.
        bytes_max: usize,
    },
    /// The writes of a group do not fit into one record.
    GroupTooLong {
        /// Bytes of the group's records.
        bytes: usize,
        /// Largest number of bytes.
        bytes_max: usize,
    },
    /// The database does not exist: databases are numbered below [`DATABASES`].
    NoDatabase {
        /// The database's number.
        db: u8,
    },
    /// The body of a group used a key that is not among the group's keys.
    NotInGroup,
    /// Another session has staged a write of the key and not committed it, and waiting for that session would
    /// deadlock or has taken too long; see [`ConflictPolicy`](crate::ConflictPolicy).
    Conflict,
    /// The store cannot be closed while sessions exist.
    SessionsAlive {
        /// Number of sessions.
        sessions: usize,
    },
    /// The store was closed and every acknowledged write is durable, but the pool has no room for the index snapshot.
    /// The next open scans the log, as after a kill.
    NoSnapshot {
        /// Free segments that the snapshot needs.
        needed: u32,
        /// Free segments in the pool.
        free: u32,
    },
    /// An item does not fit into the cache's largest slot.
    ItemTooLarge {
        /// Bytes of the item, key and overhead included.
        bytes: usize,
        /// Bytes of the largest slot.
        bytes_max: usize,
    },
    /// The item is locked: writes fail until it is unlocked.
    Locked,
    /// The cache has no area of this number.
    NoArea {
        /// The area's number.
        area: u16,
        /// Number of areas. They are numbered from 0.
        areas: u32,
    },
    /// A backup is not possible, or cannot be completed.
    Backup(BackupError),
    /// The store cannot exchange databases.
    NoSwap,
    /// Writes that other sessions had staged were neither committed nor dropped in time, so databases were not exchanged.
    Unsettled,
    /// The record that holds the key's value fails its checksum. The number is the record's offset.
    Damaged(u64),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Poisoned(p) => p.fmt(f),
            Error::Backup(error) => error.fmt(f),
            Error::Full => f.write_str(
                "the pool has no room for this write: delete keys, or make the pool larger",
            ),
            Error::CannotGrow(why) => write!(
                f,
                "the pool is full and cannot grow: {why}; delete keys, or free space on its file system"
            ),
            Error::KeyTooLong { bytes, bytes_max } => write!(
                f,
                "the key has {bytes} bytes; the limit is {bytes_max}{}",
                small_segments(*bytes_max, KEY_BYTES_MAX)
            ),
            Error::ValueTooLong { bytes, bytes_max } => write!(
                f,
                "the value has {bytes} bytes; the limit is {bytes_max}{}",
                small_segments(*bytes_max, VALUE_BYTES_MAX)
            ),
            Error::GroupTooLong { bytes, bytes_max } => write!(
                f,
                "the group writes {bytes} bytes; the limit for one group is {bytes_max}: use several groups, or a \
                 pool with larger segments"
            ),
            Error::NoDatabase { db } => {
                write!(f, "there is no database {db}: the databases are 0 to {}", DATABASES - 1)
            }
            Error::NotInGroup => {
                f.write_str("the group's body used a key that is not in the group: name it")
            }
            Error::Conflict => f.write_str(
                "another session has staged a write of this key and not committed it: commit or drop that session, \
                 commit the staged writes of this session, and retry",
            ),
            Error::SessionsAlive { sessions } => write!(
                f,
                "the store was not closed cleanly: {sessions} of its sessions still exist; drop them first"
            ),
            Error::NoSnapshot { needed, free } => write!(
                f,
                "the store was closed and every write is durable, but its index snapshot needs {needed} free segments \
                 and the pool has {free}: the next open scans the log and takes longer; delete keys, or make the pool \
                 larger"
            ),
            Error::ItemTooLarge { bytes, bytes_max } => write!(
                f,
                "an item of {bytes} bytes does not fit the cache's largest slot of {bytes_max} bytes: store a smaller \
                 item, or create the pool with larger pages"
            ),
            Error::NoArea { area, areas } => write!(
                f,
                "there is no area {area}: a pool with pages of this size has {areas} areas, numbered from 0"
            ),
            Error::NoSwap => f.write_str(
                "this engine cannot exchange databases: a cache (--engine mdb) keeps the numbers of its areas",
            ),
            Error::Unsettled => f.write_str(
                "the databases were not exchanged: a session held uncommitted writes for too long; try again",
            ),
            Error::Locked => f.write_str("the item is locked: unlock it first"),
            Error::Damaged(at) => write!(
                f,
                "the record at offset {at:#x} is damaged: it fails its checksum; its bytes are kept; \
                 overwrite or delete the key"
            ),
        }
    }
}

impl Error {
    /// Returns whether the operation failed because the pool has no room for the write.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, Error::Full | Error::CannotGrow(_))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Poisoned(poisoned) => poisoned.source(),
            _ => None,
        }
    }
}

/// Returns the end of an error message: why a limit is below the general one.
fn small_segments(bytes_max: usize, most: usize) -> &'static str {
    match bytes_max < most {
        true => " in a pool with segments of this size, or in a group",
        false => "",
    }
}

impl From<Poisoned> for Error {
    fn from(p: Poisoned) -> Error {
        Error::Poisoned(p)
    }
}
