//! A fabric over TCP, between processes and hosts. Nothing needs to be installed.
//!
//! ```text
//!   compute server: each thread                         memory server: a process
//!   ┌──────────────────────────────────────┐            ┌──────────────────────────────────┐
//!   │ clients: futures on a Reactor        │            │ TcpServer: a thread for each     │
//!   │    │ batch, call          ▲ results  │   frames   │ connection                       │
//!   │ TcpFabric: a link for each server ───┼───────────▶│   └─▶ MemoryNode: verbs, service │
//!   │    requests pipelined by their ids   │◀───────────┤                                  │
//!   └──────────────────────────────────────┘            └──────────────┬───────────────────┘
//!                                        members report to server 0 ───┘ for leases of their own
//! ```
//!
//! A frame carries an ordered list of verbs. The memory server executes it and answers with one frame. So the write of a
//! node with the release of its lock is one round trip, and so are a lock and a read. All requests that the clients of a
//! thread make before it waits go out in one system call, and the server answers them in one.
//!
//! Both sides wait by blocking in the kernel. With [`WaitMode::Spin`] they poll, which is faster only on cores of their own.
//!
//! # Files
//! * `reactor`: the executor of a compute server's clients: futures, timers, sockets.
//! * `client`: [`TcpFabric`]. `membership`: its process in one epoch. `link`: its connection to one memory server.
//! * `listener`: [`TcpServer`]. `sockets`: its open sockets. `execution`: requests. `member`: its reports to the lease server.
//! * `one_sided` and `endpoints`, by the feature `libfabric`: the server's thread and the client's side of a connection whose verbs
//!   go to an endpoint.
//! * `handshake`: both sides of the handshake. `buffer`: received bytes and the frames in them.
//!
//! # Invariants
//! These refine FABRIC-1 to FABRIC-4 of [`Fabric`](crate::Fabric), together with those of [`server`](crate::server).
//!
//! TCP-1  A connection carries the requests of one fabric in the order in which they were posted, and one thread of the memory
//!     server executes them in that order. (FABRIC-2)
//! TCP-2  A fabric has at most one connection to a server that executes requests. It numbers its attempts, and the server
//!     admits only the newest of its thread (MEMSRV-3). So a request of an earlier connection executes before the first of the next, or
//!     never. (FABRIC-2)
//! TCP-3  A request is sent at most once. If its connection breaks or its time is over, it ends with `Timeout` and the
//!     connection is closed. (FABRIC-3)
//! TCP-4  A fabric is of one thread, and belongs to one epoch of its compute server and to one generation of each memory server. After `Fenced`,
//!     or `Empty` of a server, it never executes a request again, there or at all. (FABRIC-4)
//! TCP-5  Memory for a connection is bounded: by one frame and a read buffer on the server, which reads no further request
//!     while the client does not take its results.
//!
//! # Limits
//! All memory servers of the list must be reachable when a fabric connects, because the sizes of their lock memory decide where
//! structures have their locks.
//!
//! The threads of a process share its epoch and lease ([`Membership`]). The first thread joins, and one thread renews the lease.
//! The order of FABRIC-2 is that of one fabric, so threads order their requests by locks.
//!
//! A number of a compute server has 63 epochs. A process that ends with [`TcpFabric::leave`] uses up none, and one that is
//! killed uses up one.
//!
//! The frames after the handshake carry no authentication code (`wire`): the network must be trusted.

mod buffer;
mod client;
#[cfg(feature = "libfabric")]
mod endpoints;
mod execution;
mod handshake;
mod link;
mod listener;
mod member;
mod membership;
#[cfg(feature = "libfabric")]
mod one_sided;
mod reactor;
mod sockets;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::SocketAddr;

pub use client::{ServerInfo, TcpFabric};
pub use listener::{TcpServer, TcpServerSettings};
pub use membership::{Membership, TcpSettings};
#[cfg(feature = "libfabric")]
pub(crate) use reactor::EventSource;
pub use reactor::{Reactor, TaskHandle};

use crate::wire::WireError;

pub use crate::wire::{KEY_BYTES_MIN, PROTOCOL_VERSION, Refusal, SharedKey};

/// How a thread waits for the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WaitMode {
    /// It blocks in the kernel.
    #[default]
    Block,
    /// It polls.
    Spin,
}

/// The reason why a connection to a memory server could not be made.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// No server listens at this address, or it does not answer.
    Io(SocketAddr, io::Error),
    /// The server's bytes are no valid frame.
    Wire(SocketAddr, WireError),
    /// The server has another key.
    BadKey(SocketAddr),
    /// The server refuses the connection.
    Refused(SocketAddr, Refusal),
    /// The server has restarted since the fabric connected.
    OtherGeneration(SocketAddr),
    /// The server could not open an endpoint of libfabric.
    NoEndpoint(SocketAddr),
    /// The compute server has used all its epochs; use another number.
    EpochsUsed {
        /// The compute server.
        compute: u16,
    },
    /// All numbers of compute servers are in use, or have used all their epochs.
    NoNumber,
    /// The process has had 256 fabrics in its epoch: join again.
    Threads,
    /// The list of servers is empty or has more than 65,536.
    Servers {
        /// Number of servers.
        count: usize,
    },
    /// The list of servers has no address of the lease server.
    NoLeaseServer,
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::Io(at, error) => write!(f, "memory server at {at}: {error}"),
            ConnectError::Wire(at, error) => write!(f, "memory server at {at}: {error}"),
            ConnectError::BadKey(at) => {
                write!(f, "memory server at {at}: it does not have the same key")
            }
            ConnectError::Refused(at, refusal) => write!(f, "memory server at {at}: {refusal}"),
            ConnectError::OtherGeneration(at) => {
                write!(
                    f,
                    "memory server at {at}: it has restarted in another generation"
                )
            }
            ConnectError::NoEndpoint(at) => write!(
                f,
                "memory server at {at}: libfabric has no resources for another endpoint, for example file descriptors"
            ),
            ConnectError::EpochsUsed { compute } => write!(
                f,
                "compute server {compute} has used all its epochs: connect under another number"
            ),
            ConnectError::NoNumber => f.write_str(
                "all 1023 numbers of compute servers are in use or have used all their epochs: end some clients, or \
                 start the memory servers with new memory",
            ),
            ConnectError::Threads => {
                f.write_str("a process can have 256 fabrics in one epoch: connect in a new epoch")
            }
            ConnectError::Servers { count } => {
                write!(
                    f,
                    "the list of memory servers has {count} addresses, expected 1 to 65536"
                )
            }
            ConnectError::NoLeaseServer => f.write_str(
                "the list of memory servers has no address of server 0, which never leaves",
            ),
        }
    }
}

impl std::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ConnectError::Io(_, error) => Some(error),
            ConnectError::Wire(_, error) => Some(error),
            _ => None,
        }
    }
}
