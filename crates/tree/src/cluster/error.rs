//! The error of an operation of a cluster.

use std::fmt;
use std::io;

use farbank_fabric::FabricError;
use farbank_fabric::shm::ShmConnectError;

use crate::error::TreeError;

/// The reason why an operation of a [`Cluster`](super::Cluster) failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum ClusterError {
    /// A session could not begin.
    Connect(ShmConnectError),
    /// An operation of the tree failed.
    Tree(TreeError),
    /// The memory servers have a tree already.
    Exists,
    /// Another client is creating the tree.
    Creating,
    /// The memory servers have data of another structure.
    Occupied,
    /// The tree's descriptor is damaged or has another version.
    Descriptor,
    /// The tree was created with another number of memory servers.
    OtherServers {
        /// Number of servers of the tree.
        found: u16,
        /// Number of servers that were given.
        given: u16,
    },
    /// A memory server can only join by its IP address, which is the same for all clients.
    JoinsByFile,
    /// The memory server is one of the tree's already.
    InTree {
        /// Its number.
        server: u16,
    },
    /// Another memory server is joining as this number.
    OtherJoins {
        /// The number.
        server: u16,
    },
    /// Another memory server is leaving.
    OtherLeaves {
        /// Its number.
        server: u16,
    },
    /// The tree has no memory server of this number.
    NoServer {
        /// The number.
        server: u16,
    },
    /// Memory server 0 cannot leave: it has the leases, the root's address and the list of servers.
    LeaseServerLeaves,
    /// The memory server has left.
    HasLeft {
        /// Its number.
        server: u16,
    },
    /// A memory server was given as one that has left, but it has not.
    HasNotLeft {
        /// Its number.
        server: u16,
    },
    /// The sizes of a new tree are out of range.
    Sizes {
        /// The maximum bytes of a key.
        key_bytes_max: usize,
        /// The maximum bytes of a value.
        value_bytes_max: usize,
    },
    /// The nodes of the tree are longer than the fabric's writes of which a dying client leaves nothing or all.
    NodeTooLong {
        /// Bytes of a node.
        node_bytes: usize,
        /// Maximum bytes of such a write.
        whole_bytes_max: usize,
    },
    /// A tree can have at most 256 memory servers.
    TooManyServers {
        /// Number of servers that were given.
        servers: u16,
    },
    /// The thread of the cluster could not be started.
    Thread(io::Error),
    /// The thread of the cluster has ended, by a panic or without file descriptors.
    Stopped,
}

impl ClusterError {
    /// Returns whether a request to a memory server has failed, so that its effect may be unknown.
    pub(super) fn is_of_fabric(&self) -> bool {
        matches!(self, ClusterError::Tree(TreeError::Fabric(_)))
    }
}

impl fmt::Display for ClusterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClusterError::Connect(error) => error.fmt(f),
            ClusterError::Tree(TreeError::NoTree) => {
                f.write_str("there is no tree on these memory servers: create one first")
            }
            ClusterError::Tree(error) => error.fmt(f),
            ClusterError::Exists => f.write_str("there is a tree on these memory servers already"),
            ClusterError::Creating => f.write_str("another client is creating the tree: try again"),
            ClusterError::Occupied => f.write_str(
                "the memory servers have data of another structure: start them with new memory",
            ),
            ClusterError::Descriptor => f.write_str(
                "the tree's descriptor at byte 136 of server 0 is damaged or has another version",
            ),
            ClusterError::OtherServers { found, given } => write!(
                f,
                "the tree is on {found} memory servers, but {given} addresses were given: list all of them in the order of \
                 their numbers"
            ),
            ClusterError::JoinsByFile => f.write_str(
                "a memory server joins by its IP:PORT, which is the same for all clients, not by its file",
            ),
            ClusterError::InTree { server } => {
                write!(f, "this is memory server {server} of the tree already")
            }
            ClusterError::OtherJoins { server } => write!(
                f,
                "another memory server is joining as number {server}: add that one again first"
            ),
            ClusterError::OtherLeaves { server } => write!(
                f,
                "memory server {server} is leaving: complete or cancel its removal first"
            ),
            ClusterError::NoServer { server } => {
                write!(f, "the tree has no memory server {server}")
            }
            ClusterError::LeaseServerLeaves => f.write_str(
                "memory server 0 cannot leave: it has the leases, the root's address and the list of servers",
            ),
            ClusterError::HasLeft { server } => {
                write!(f, "memory server {server} has left the tree")
            }
            ClusterError::HasNotLeft { server } => write!(
                f,
                "memory server {server} was given as \"-\", but it has not left the tree: give its address"
            ),
            ClusterError::Sizes {
                key_bytes_max,
                value_bytes_max,
            } => write!(
                f,
                "a tree cannot have keys of {key_bytes_max} and values of {value_bytes_max} bytes: expected maxima of 8 to 1024 \
                 and of 1 to {}",
                crate::VALUE_BYTES_MAX
            ),
            ClusterError::NodeTooLong {
                node_bytes,
                whole_bytes_max,
            } => write!(
                f,
                "the tree has nodes of {node_bytes} bytes, and a write over this provider of libfabric has at most \
                 {whole_bytes_max}: use TCP, or a tree with shorter keys"
            ),
            ClusterError::TooManyServers { servers } => {
                write!(
                    f,
                    "a tree can have 256 memory servers, {servers} were given"
                )
            }
            ClusterError::Thread(error) => write!(f, "cannot start a thread: {error}"),
            ClusterError::Stopped => f.write_str("the thread of the cluster has ended"),
        }
    }
}

impl std::error::Error for ClusterError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ClusterError::Connect(error) => Some(error),
            ClusterError::Tree(error) => Some(error),
            ClusterError::Thread(error) => Some(error),
            _ => None,
        }
    }
}

impl From<ShmConnectError> for ClusterError {
    fn from(error: ShmConnectError) -> ClusterError {
        ClusterError::Connect(error)
    }
}

impl From<TreeError> for ClusterError {
    fn from(error: TreeError) -> ClusterError {
        ClusterError::Tree(error)
    }
}

impl From<FabricError> for ClusterError {
    fn from(error: FabricError) -> ClusterError {
        ClusterError::Tree(TreeError::Fabric(error))
    }
}
