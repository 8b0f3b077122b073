//! Requests of compute servers that a memory server's service thread handles.
//!
//! Data never passes through this thread. It allocates chunks of its server's memory. The thread of the lease
//! server also manages the leases of compute servers. If a lease was not renewed for
//! [`ClusterConstants::lease_ns`](crate::sim::ClusterConstants::lease_ns), any other compute server can have its
//! holder fenced. Every memory server refuses the holder's verbs before the lease server reports that it is dead
//! (FABRIC-4 of [`Fabric`](crate::Fabric)).

/// The lease server: the memory server whose service thread manages the leases.
pub const LEASE_SERVER: u16 = 0;

/// A request to a memory server's service thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServiceRequest {
    /// Allocates a chunk of the server's host memory.
    Chunk,
    /// Renews the lease of the calling compute server. For the lease server only.
    Renew,
    /// Checks the lease of another compute server. If it has expired, fences that server first. For the lease
    /// server only.
    CheckLease {
        /// The compute server to check.
        compute: u16,
        /// The epoch in which that server holds the lease. Each time it is fenced, its epoch increases.
        epoch: u8,
    },
    /// Starts a new lease of the calling compute server after it was fenced. For the lease server only.
    Join,
    /// Ends the use of the caller's epoch. The caller holds no lock and sends no further verb. For the lease server
    /// only, which may give the same epoch to the next compute server that joins.
    Leave,
    /// Reserves the server's host memory before byte `to`, so that no chunk of it is allocated. For memory that a
    /// structure uses at fixed addresses.
    Reserve {
        /// End of the reserved memory.
        to: u64,
    },
}

/// A response of a memory server's service thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServiceResponse {
    /// A new chunk of the server's host memory.
    Chunk {
        /// Offset of its first byte.
        at: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// The server has no free memory.
    Full,
    /// The lease is renewed. To [`ServiceRequest::CheckLease`]: the lease has not expired.
    Alive,
    /// The compute server is fenced: none of its verbs takes effect any more.
    Expired,
    /// The new epoch of the calling compute server.
    Epoch(u8),
    /// The number and the epoch of a compute server that has joined over a network.
    Joined {
        /// Number of the compute server.
        compute: u16,
        /// Its epoch.
        epoch: u8,
        /// Number of the process among those that have used the epoch. All but the first continue an epoch that the process
        /// before has left.
        process: u32,
    },
    /// The epoch is no longer in use.
    Left,
    /// The memory is reserved.
    Reserved,
}
