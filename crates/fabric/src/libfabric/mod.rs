//! A fabric over libfabric, for networks that it has providers for. The library is loaded when it is needed; nothing of it is needed
//! to build this crate. It is compiled by the feature `libfabric`.
//!
//! ```text
//!   compute server: each thread                              memory server: a thread for each connection
//!   ┌──────────────────────────────────────┐                 ┌───────────────────────────────────────┐
//!   │ LibfabricFabric ── verbs: Transfers ─┼── endpoints ───▶│ ServedEndpoint ─▶ the provider reads   │
//!   │   │                                  │                 │   and changes the registered memory   │
//!   │   └ calls: chunks, leases, epochs ───┼── TCP ─────────▶│ MemoryNode: admission, leases         │
//!   └──────────────────────────────────────┘                 └───────────────────────────────────────┘
//! ```
//!
//! A compute server joins, renews its lease and allocates chunks over the connection of [`tcp`](crate::tcp). Over this connection it
//! asks for an endpoint, and gets its address and a random key. The memory server opens one endpoint for each thread
//! of a compute server, with a registration of its lock memory and host memory. Reads, writes and atomics of the thread are atomics
//! of libfabric on this memory. Decision 026 has the reasons.
//!
//! # Files
//! * `abi`: libfabric's C interface. `library`: loads it, and finds providers. `signals`: signal handlers that survive the loading.
//!   `error`: why it cannot be used.
//! * `endpoint`: an endpoint and its objects. `transfers`: its operations under way.
//! * `service`: the endpoints of a memory server.
//! * `fabric`: [`LibfabricFabric`]. `batches`: its batches, as sequences of transfers.
//!
//! # Invariants
//! These refine FABRIC-1 to FABRIC-4 of [`Fabric`](crate::Fabric), together with those of [`server`](crate::server).
//!
//! LIBFABRIC-1  A provider executes verbs only when a thread of the memory server calls it (manual progress). The thread of an endpoint
//!     does that within the admission of its compute server, as it does for a batch over TCP (MEMSRV-3), and closes the endpoint
//!     when the admission is refused. So no verb executes after the end of its epoch. (FABRIC-4)
//! LIBFABRIC-2  One endpoint at a time executes verbs. So atomics of different endpoints exclude each other, whatever instructions a provider
//!     executes.
//! LIBFABRIC-3  A verb is one atomic of libfabric, if it is not longer than the provider's maximum. A provider
//!     executes it when it has arrived as a whole. So a word is never torn, and a compute server that dies leaves no part of a
//!     write. (FABRIC-1)
//! LIBFABRIC-4  A verb has ended when the memory server has answered it. The next verb of its batch is posted
//!     then, unless the provider grants the order of both. (FABRIC-2, FABRIC-3)
//! LIBFABRIC-5  After an error or a late answer, a fabric posts no further verb to the server. (FABRIC-3)
//!
//! # Failures
//! | failure                              | effect                                                                          |
//! |--------------------------------------|---------------------------------------------------------------------------------|
//! | a process dies within a batch        | the verbs that it has not posted never execute; each other verb as a whole, or not |
//! | a process pauses beyond its lease    | its endpoints are closed before any of its late verbs executes                  |
//! | a connection or an endpoint breaks   | `Timeout`; the other one is closed, too                                         |
//! | a memory server restarts             | `Timeout`; the compute server joins again                                       |
//!
//! # Limits
//! * Tested with the provider `tcp;ofi_rxm` of libfabric 1.17 and, over RDMA in software, with `verbs;ofi_rxm`. With `net;ofi_rxm`,
//!   requests to other servers may end with `Timeout` after the end of one.
//! * Each thread of a compute server takes about 13 file descriptors of a memory server.
//! * A write that is longer than an atomic of the provider, about 16 KiB, is several. A compute server that dies may leave a part of it.
//! * Verbs have no authentication but the random key of their registration. Use a trusted network.

mod abi;
mod batches;
mod endpoint;
mod error;
mod fabric;
mod library;
mod service;
mod signals;
mod transfers;

pub use abi::{FieldLayout, constants, layouts};
pub use error::LibfabricError;
pub use fabric::{LibfabricConnectError, LibfabricFabric};
pub(crate) use service::{LibfabricService, ServedEndpoint};

/// The provider that is used unless another one is selected.
pub const DEFAULT_PROVIDER: &str = "tcp;ofi_rxm";

/// Returns the names of the providers of the installed library that have what the fabric needs.
///
/// # Errors
/// The library is not installed, or is older than 1.17.
pub fn providers() -> Result<Vec<String>, LibfabricError> {
    Ok(library::Library::load()?.providers())
}

/// Returns the major and the minor version of the installed library.
///
/// # Errors
/// The library is not installed, or is older than 1.17.
pub fn version() -> Result<(u32, u32), LibfabricError> {
    Ok(library::Library::load()?.version())
}
