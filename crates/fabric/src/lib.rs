//! Memory that is somewhere else: read, write and compare-and-swap it without its server's processor.
//!
//! ```text
//!   compute servers                     memory servers
//!   many clients, little memory         much memory, one service thread
//!   ┌──────────────┐   batch of verbs   ┌─────────────────────────────┐
//!   │ a structure  ├───────────────────▶│ NIC ── host memory          │
//!   │ (tree)       │◀───────────────────┤  └──── lock memory, on chip │
//!   └──────┬───────┘    their answers   └─────────────────────────────┘
//!       Fabric: what a compute server sees of it all
//! ```
//!
//! * [`Fabric`] is the door: batches of [`Verb`]s, in order, to one memory server; calls to its service
//!   thread; a clock.
//! * [`GAddr`] names far memory: a server and a place in its host or lock memory.
//! * [`service`] is what a memory server's thread does: hand out chunks, keep leases, fence.
//! * [`sim`] is the door's simulated twin: the servers, cards and wires of a rack in virtual time.

#![forbid(unsafe_code)]

mod addr;
mod fabric;
pub mod service;
pub mod sim;

pub use addr::GAddr;
pub use fabric::{Fabric, FabricCaps, FabricError, Nanos, Verb};
pub use service::{ServiceRequest, ServiceResponse};
