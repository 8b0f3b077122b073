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
//! * `connection`: one connection, its input buffer and its state. `output`: its replies, and which of them are held.
//! * `exec_context`: what a protocol works with while it executes requests. `buffer_pool`: buffers that connections
//!   share.
//! * `executor`: executes requests on a thread. `long_requests`: the thread that executes long requests, so that other
//!   clients do not wait for them.
//! * `worker`: the event loop. `listener`: binds, accepts and starts the threads. `unix_socket`: the Unix socket.
//! * `shared`: state that all threads share. `settings`: options at start, and those that CONFIG SET changes.
//! * [`resp`]: parses Redis requests and writes replies. `commands`: one file per family of Redis commands, and the
//!   table of all commands.
//! * [`memcached`]: memcached's requests and commands.
//! * `hotkeys`: finds the most requested keys. [`glob`]: the patterns of SCAN, KEYS and CONFIG GET.
#![forbid(unsafe_code)]

mod buffer_pool;
mod commands;
mod connection;
mod exec_context;
mod executor;
pub mod glob;
mod hotkeys;
mod listener;
mod long_requests;
pub mod memcached;
mod output;
pub mod resp;
mod settings;
mod shared;
mod unix_socket;
mod worker;

pub use listener::{BindError, Server, ServerHandle};
pub use settings::{ClientsMemory, Endpoint, ProtectedActions, ServerOptions, WireProtocol};
pub use unix_socket::UnixSocket;
