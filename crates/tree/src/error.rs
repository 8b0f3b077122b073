//! The error of an operation.

use std::fmt;

use farbank_fabric::{FabricError, GAddr};

/// The reason why an operation failed. After a fabric error, the operation may have taken effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TreeError {
    /// A verb or a call failed.
    Fabric(FabricError),
    /// A memory server has no memory for a new node or block.
    Full {
        /// The memory server.
        server: u16,
    },
    /// The cluster holds no tree.
    NoTree,
    /// The tree on a memory server has another layout.
    OtherLayout {
        /// The memory server.
        server: u16,
    },
    /// A key is longer than the keys of this tree.
    KeyTooLong {
        /// Its length in bytes.
        bytes: usize,
        /// The maximum length in bytes.
        most: usize,
    },
    /// A value is longer than the values of this tree.
    ValueTooLong {
        /// Its length in bytes.
        bytes: usize,
        /// The maximum length in bytes.
        most: usize,
    },
    /// The operation is for word values but the tree has byte values, or the reverse ([`crate::Config::values`]).
    OtherValues,
    /// The value is 0, which the published layout reserves.
    Reserved,
    /// Every read of a value took longer than the time in which its block may be reused.
    Late {
        /// That time in nanoseconds.
        ns_max: u64,
    },
    /// A node or block is corrupted.
    Damaged {
        /// Its address.
        at: GAddr,
    },
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TreeError::Fabric(error) => error.fmt(f),
            TreeError::Full { server } => {
                write!(f, "memory server {server} has no memory for another node")
            }
            TreeError::NoTree => f.write_str("there is no tree on these servers: the root address is null"),
            TreeError::OtherLayout { server } => write!(
                f,
                "the tree on memory server {server} was created with another size or format of nodes or keys"
            ),
            TreeError::KeyTooLong { bytes, most } => {
                write!(f, "the key has {bytes} bytes, the maximum is {most}")
            }
            TreeError::ValueTooLong { bytes, most } => {
                write!(
                    f,
                    "the value has {bytes} bytes, the maximum is {most}"
                )
            }
            TreeError::OtherValues => f.write_str(
                "the operation does not fit the tree's values: use get and insert for words, get_bytes and insert_bytes for bytes",
            ),
            TreeError::Reserved => f.write_str("value 0 cannot be stored: it means absent in the published layout"),
            TreeError::Late { ns_max } => write!(
                f,
                "each read of the value took longer than {} ms, the limit for reads of values: use a faster network, or fewer \
                 clients on this machine",
                ns_max / 1_000_000
            ),
            TreeError::Damaged { at } => write!(f, "the node or block at {at:?} is corrupted"),
        }
    }
}

impl std::error::Error for TreeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TreeError::Fabric(error) => Some(error),
            _ => None,
        }
    }
}

impl From<FabricError> for TreeError {
    fn from(error: FabricError) -> TreeError {
        TreeError::Fabric(error)
    }
}
