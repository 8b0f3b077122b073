//! Server for Redis (RESP) and memcached clients over any [`Store`](farbank_store::Store).
//!
//! ```text
//!   accept ──▶ worker 0 ─┬─ connection: input ─▶ requests ─▶ commands ─▶ session ─▶ store
//!         └──▶ worker 1  │               output ◀── replies ◀─────┘         │
//!               ...      └─ one commit per loop iteration ◀─── ticket ◀─────┘
//! ```
//!
//! A [`Server`] binds its addresses, then runs a few worker threads. Each worker owns its connections and one session
//! of the store, and executes requests in place. Only long requests go to another thread. All requests that one
//! iteration of the worker's loop executes, over all its connections, form one batch with one commit. A reply that
//! reveals an undurable write is held until the batch's ticket is durable; the worker serves other requests meanwhile.
//!
//! The address that a client connects to determines the protocol ([`Endpoint`]). Both protocols share workers, batches
//! and values.
//!
//! * `net`: sockets and threads. `listener` accepts, `worker` is the event loop, `executor` executes requests,
//!   `long_requests` executes those that would delay other clients.
//! * `protocol`: the wire formats. [`resp`] is Redis's, [`memcached`] is memcached's.
//! * `commands`: one file per family of Redis commands, the table of all, and the commands of memcached.
//! * `exec_context`: what a protocol works with while it executes requests. `buffers`: the memory of input and replies.
//! * `state`: what all threads share. `stats`: what they count. `settings`: options at start, and those that CONFIG SET
//!   changes. [`glob`]: the patterns of SCAN, KEYS and CONFIG GET.
#![forbid(unsafe_code)]

mod buffers;
mod commands;
mod exec_context;
pub mod glob;
mod net;
mod protocol;
mod settings;
mod state;
mod stats;

pub use net::listener::{BindError, Server, ServerHandle};
pub use net::unix_socket::UnixSocket;
pub use protocol::{memcached, resp};
pub use settings::{ClientsMemory, Endpoint, ProtectedActions, ServerOptions, WireProtocol};
