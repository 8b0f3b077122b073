//! A fabric over shared memory, between processes of one host whose memory is coherent. It is not for memory that several
//! hosts share, such as CXL 2.0 pools, where caches are not coherent.
//!
//! ```text
//!   compute process                                     memory server: farbank memory-server --pool FILE
//!   ┌────────────────────────────────────┐              ┌─────────────────────────────┐
//!   │ ShmFabric ── verbs: loads, stores, │   mapping    │ MemoryNode on the same file │
//!   │   │          atomics ──────────────┼─────▶ FILE ◀─┼── verbs of TCP clients      │
//!   │   └ calls: chunks, leases, epochs ─┼── TCP ───────┼─▶ service, lease manager    │
//!   └────────────────────────────────────┘              └─────────────────────────────┘
//! ```
//!
//! The memory server is the one of [`tcp`](crate::tcp), with its memory in a file: on tmpfs, on a DAX file system or device, or
//! in the page cache. Clients of other hosts can use it by TCP at the same time. The file's header has the address of the
//! server's socket, on which a compute process joins, renews its lease and allocates chunks. Decision 022 has the reasons.
//!
//! # Files
//! * `address`: [`ServerAddress`], a socket, a file, or a socket of a server whose verbs arrive over libfabric.
//! * `attachment`: the mapping of one server's memory, and the verbs on it.
//! * `fabric`: [`ShmFabric`]. `remote`: the way to servers that are not mapped, TCP or libfabric.
//!
//! # Invariants
//! These refine FABRIC-1 to FABRIC-4 of [`Fabric`](crate::Fabric), together with those of [`server`](crate::server).
//!
//! SHM-1  All access to a mapping is by atomic words (MEMSRV-1). A batch is validated as a whole before its first verb
//!     executes, and executes when it is posted, on the thread that posts it. (FABRIC-1, FABRIC-2)
//! SHM-2  A batch is executed on the mapping only if no batch of the fabric is under way on the connection to the server.
//!     Otherwise it is sent. So all batches take effect in the order in which they were posted. (FABRIC-2)
//! SHM-3  A batch with a write or an atomic ends with a full fence, before its result is returned. (FABRIC-3)
//! SHM-4  Such a batch executes between the beginning and the end of a batch in a slot of the process in the lease server's
//!     memory, if the floor of its epoch was not higher at the beginning (SLOT-1). A process has eight slots. Threads that have the
//!     same enter it one after another, under a lock. (FABRIC-4)
//! SHM-5  A read checks the floor after its last load. So the bytes that it returns were read before the end of the epoch.
//! SHM-6  A batch checks that the server serves its memory in the generation to which the fabric is connected. A server that has
//!     ended is noticed by its connection. Until then verbs execute on its file, which is the memory of its successor.
//!
//! # Failures
//! | failure                              | effect                                                                      |
//! |--------------------------------------|-----------------------------------------------------------------------------|
//! | a process dies within a batch        | the batch has executed in part, word by word in its order; SLOT sees the end |
//! | a process stops within a batch       | after the lease, the lease server kills it (SLOT-3)                         |
//! | a process stops between batches      | `Fenced` when it continues                                                  |
//! | a memory server ends                 | `Timeout`, and `Empty` when another process serves the file                 |
//! | the file is truncated                | `Damaged`; no SIGBUS                                                        |
//! | the file is removed                  | none: the memory lives as long as a process maps it                         |
//!
//! Unlike over a network, a batch of a dying process may take effect in part, as a process that dies between two batches.
//! A structure that tolerates the first n writes of a batch for any n tolerates this. The tree does: its writes in one
//! batch are in the order that readers and successors need.
//!
//! # Limits
//! * The lease server must be reached by its file if any server is, because the slots are in its memory.
//! * Processes that may write the file are trusted: they can change any byte, and name a process that maps the file as
//!   stopped. The server's rights and those of the compute processes must allow the lease server to kill them.
//! * All processes are in one PID namespace. A process in another one cannot connect.
//! * If the file of the lease server is replaced by a new one, all processes and servers must end first. The new lease server
//!   does not know the slots in the old file.

mod address;
mod attachment;
mod fabric;
mod remote;

use std::fmt;
use std::io;
use std::path::PathBuf;

use farbank_pm::media::OpenError;

pub use address::{BadServerAddress, ServerAddress};
pub use fabric::{ShmFabric, ShmMembership, ShmSettings};

#[cfg(feature = "libfabric")]
use crate::libfabric::{LibfabricConnectError, LibfabricError};
use crate::server::MemoryError;
use crate::tcp::ConnectError;

/// The reason why a compute server could not connect.
#[derive(Debug)]
#[non_exhaustive]
pub enum ShmConnectError {
    /// A connection by TCP failed.
    Connect(ConnectError),
    /// The file of a server cannot be mapped.
    Open(OpenError),
    /// The file is no memory of a memory server.
    Memory(PathBuf, MemoryError),
    /// No process serves the memory in the file.
    NotServed(PathBuf),
    /// The server at the address in the file serves another memory: it has restarted, or the file is a copy.
    OtherMemory(PathBuf),
    /// The server is in another PID namespace.
    OtherNamespace(PathBuf),
    /// The server knows the file by another path.
    OtherPath(PathBuf),
    /// The lease server was given by its address, and another server by its file.
    LeaseServerByTcp,
    /// This process cannot be identified.
    Process(io::Error),
    /// Some servers were given by libfabric and others were not.
    MixedLibfabric,
    /// A server was given by libfabric, and the program was built without the feature `libfabric`.
    WithoutLibfabric,
    /// libfabric cannot be used.
    #[cfg(feature = "libfabric")]
    Libfabric(LibfabricError),
}

impl fmt::Display for ShmConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShmConnectError::Connect(error) => error.fmt(f),
            ShmConnectError::Open(error) => error.fmt(f),
            ShmConnectError::Memory(path, error) => {
                write!(f, "shared memory {}: {error}", path.display())
            }
            ShmConnectError::NotServed(path) => write!(
                f,
                "shared memory {}: no memory server serves it; start `farbank memory-server --pool {0}`",
                path.display()
            ),
            ShmConnectError::OtherMemory(path) => write!(
                f,
                "shared memory {}: the memory server at the address in it serves another memory; the server has \
                 restarted, or the file is a copy",
                path.display()
            ),
            ShmConnectError::OtherNamespace(path) => write!(
                f,
                "shared memory {}: its memory server runs in another PID namespace; use its IP:PORT",
                path.display()
            ),
            ShmConnectError::OtherPath(path) => write!(
                f,
                "shared memory {}: its memory server has opened it by another path, or it is a copy; use the path of --pool",
                path.display()
            ),
            ShmConnectError::LeaseServerByTcp => f.write_str(
                "memory server 0 must be given by its file (shm:PATH) if another server is",
            ),
            ShmConnectError::Process(error) => write!(f, "cannot read /proc/self/stat: {error}"),
            ShmConnectError::MixedLibfabric => {
                f.write_str("either all memory servers must be given as libfabric:IP:PORT, or none")
            }
            ShmConnectError::WithoutLibfabric => f.write_str(
                "this program was built without libfabric: build it with `--features libfabric`",
            ),
            #[cfg(feature = "libfabric")]
            ShmConnectError::Libfabric(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ShmConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ShmConnectError::Connect(error) => Some(error),
            ShmConnectError::Open(error) => Some(error),
            ShmConnectError::Memory(_, error) => Some(error),
            ShmConnectError::Process(error) => Some(error),
            #[cfg(feature = "libfabric")]
            ShmConnectError::Libfabric(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(feature = "libfabric")]
impl From<LibfabricConnectError> for ShmConnectError {
    fn from(error: LibfabricConnectError) -> ShmConnectError {
        match error {
            LibfabricConnectError::Connect(error) => ShmConnectError::Connect(error),
            LibfabricConnectError::Library(error) => ShmConnectError::Libfabric(error),
        }
    }
}

impl From<ConnectError> for ShmConnectError {
    fn from(error: ConnectError) -> ShmConnectError {
        ShmConnectError::Connect(error)
    }
}
