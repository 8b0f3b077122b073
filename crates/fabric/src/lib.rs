//! Disaggregated memory: reads, writes and compare-and-swaps on the memory of another server, without its CPU.
//!
//! ```text
//!   compute servers                     memory servers
//!   many clients, little memory         much memory, one service thread
//!   ┌──────────────┐   batch of verbs   ┌─────────────────────────────┐
//!   │ a structure  ├───────────────────▶│ NIC ── host memory          │
//!   │ (tree)       │◀───────────────────┤  └──── lock memory, on chip │
//!   └──────┬───────┘      results       └─────────────────────────────┘
//!       Fabric: the interface of a compute server
//! ```
//!
//! * [`Fabric`]: the trait through which a compute server accesses memory servers. It has batches of [`Verb`]s,
//!   calls to a server's service thread, and a clock.
//! * [`GAddr`]: an address in far memory, which consists of a server and an offset in its host or lock memory.
//! * [`service`]: the requests that a memory server's thread serves: chunks, leases, fencing.
//! * [`sim`]: a simulated fabric, with the servers, NICs and wires of a cluster in virtual time.
//! * [`tcp`]: a real fabric over TCP. [`server`]: its memory servers.
//! * [`shm`]: the same memory servers, for processes of their host, which execute verbs on a mapping of the memory.
//! * `libfabric`, by the feature of this name: the same memory servers, with verbs over a provider of libfabric.

#![cfg_attr(not(feature = "libfabric"), forbid(unsafe_code))]
#![deny(unsafe_code)]

mod addr;
mod fabric;
mod lease_table;
#[cfg(feature = "libfabric")]
#[expect(unsafe_code, reason = "calls of a C library")]
pub mod libfabric;
pub mod server;
pub mod service;
pub mod shm;
pub mod sim;
pub mod tcp;
mod wire;

pub use addr::GAddr;
pub use fabric::{Fabric, FabricCaps, FabricError, Nanos, Verb};
pub use service::{ServiceRequest, ServiceResponse};
