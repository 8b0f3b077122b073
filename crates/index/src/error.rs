//! The errors of tables: of an operation, and of a creation or an open.

use std::fmt;

use farbank_pm::Poisoned;
use farbank_pm::pool::PoolError;

use crate::kind_word::name_of;

/// The reason why an operation failed. The table is unchanged, now and after a crash, unless the medium failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IndexError {
    /// The pool has no free space of the size that the table needs next.
    Full {
        /// Bytes that the table needs in one piece.
        bytes: u64,
    },
    /// Too many keys have similar hashes: they find no slot, although the table is already much larger than its keys
    /// need. A larger pool would not help.
    Crowded {
        /// Number of hash bits by which the table distinguishes keys.
        bits: u32,
    },
    /// All contexts of the pool are in use by workers.
    Workers {
        /// Number of contexts of the pool.
        most: u32,
    },
    /// A word in the pool has a value that the table never writes, and the operation needs what the word refers to.
    Damaged {
        /// The value found, the value expected, and the offset.
        what: String,
    },
    /// The medium failed. The last change may be kept or lost. No later operation is acknowledged.
    Poisoned(Poisoned),
}

impl fmt::Display for IndexError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IndexError::Full { bytes } => write!(
                f,
                "the pool is full: the table needs {bytes} contiguous bytes; remove keys, or create a larger pool"
            ),
            IndexError::Crowded { bits } => write!(
                f,
                "too many keys agree in the {bits} hash bits by which the table distinguishes keys, more bits than so few \
                 keys need; a larger pool does not help; remove some of these keys, or create the table again \
                 with another hash seed"
            ),
            IndexError::Workers { most } => write!(
                f,
                "the pool was created for {most} workers and all are in use; create it again with more contexts"
            ),
            IndexError::Damaged { what } => write!(
                f,
                "the table is damaged: {what}; restore the pool from a backup"
            ),
            IndexError::Poisoned(poisoned) => poisoned.fmt(f),
        }
    }
}

impl std::error::Error for IndexError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            IndexError::Poisoned(poisoned) => Some(poisoned),
            _ => None,
        }
    }
}

impl From<Poisoned> for IndexError {
    fn from(poisoned: Poisoned) -> IndexError {
        IndexError::Poisoned(poisoned)
    }
}

impl IndexError {
    /// Returns a [`IndexError::Damaged`]. `what` holds the value found, the value expected, and the offset.
    #[cold]
    pub(crate) fn damaged(what: impl Into<String>) -> IndexError {
        IndexError::Damaged { what: what.into() }
    }
}

/// The reason why a table cannot be created or opened. An open that fails leaves the table unchanged.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The medium holds no pool, the pool is damaged, or the medium failed.
    Pool(PoolError),
    /// The pool holds another kind of table, or none.
    Kind {
        /// The kind that the caller expected.
        expected: &'static str,
        /// The value in the superblock.
        found: u64,
    },
    /// The table has the layout of another version of Farbank.
    Layout {
        /// The layout number of this version.
        expected: u64,
        /// The value in the superblock.
        found: u64,
    },
    /// A word in the pool has a value that a table never writes.
    Damaged {
        /// The value found, the value expected, and the offset.
        what: String,
    },
    /// The table's blocks do not fit into the pool's chunks.
    Chunks {
        /// Bytes of the block that does not fit.
        block_bytes: u64,
        /// Bytes of a chunk.
        chunk_bytes: u64,
    },
    /// The table did not fit into the pool, or the medium failed.
    Refused(IndexError),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Pool(error) => error.fmt(f),
            OpenError::Kind { expected, found: 0 } => write!(
                f,
                "the pool holds no table, expected {expected}; its creation may have been interrupted; create it again"
            ),
            OpenError::Kind { expected, found } => write!(
                f,
                "the pool holds a table of kind {:?}, expected {expected}; open it with its own kind",
                name_of(*found)
            ),
            OpenError::Layout { expected, found } => write!(
                f,
                "the table's layout is number {found}, expected {expected}; open it with the version of Farbank that created it"
            ),
            OpenError::Damaged { what } => IndexError::damaged(what).fmt(f),
            OpenError::Chunks {
                block_bytes,
                chunk_bytes,
            } => write!(
                f,
                "blocks of {block_bytes} bytes do not fit into chunks of {chunk_bytes}; create the pool with larger chunks"
            ),
            OpenError::Refused(refused) => refused.fmt(f),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Pool(error) => Some(error),
            OpenError::Refused(refused) => Some(refused),
            _ => None,
        }
    }
}

impl From<PoolError> for OpenError {
    fn from(error: PoolError) -> OpenError {
        OpenError::Pool(error)
    }
}

impl From<IndexError> for OpenError {
    fn from(refused: IndexError) -> OpenError {
        match refused {
            IndexError::Damaged { what } => OpenError::Damaged { what },
            refused => OpenError::Refused(refused),
        }
    }
}

impl From<Poisoned> for OpenError {
    fn from(poisoned: Poisoned) -> OpenError {
        OpenError::Refused(poisoned.into())
    }
}
