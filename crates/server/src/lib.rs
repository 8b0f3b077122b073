//! RESP and memcached's protocol over any [`Store`](farbank_kv::store::Store): what Redis's and memcached's
//! clients talk to.
//!
//! ```text
//!   accept ──▶ worker 0 ─┬─ connection: input ─▶ requests ─▶ commands ─▶ session ─▶ store
//!         └──▶ worker 1  │               output ◀── replies ◀─────┘         │
//!               ...      └─ commit once a turn of the loop ◀── ticket ◀─────┘
//! ```
//!
//! A [`Server`] binds, then runs a few worker threads. Each owns its connections and one session of
//! the store, and executes requests in place: nothing but a long request is handed to another thread. All requests that
//! one turn of its loop finds, of all its connections, are one batch with one commit; a reply that
//! tells of an undurable write is withheld until the batch's ticket turns, and the worker does other
//! things meanwhile.
//!
//! What a connection speaks is said by the address it came to ([`Endpoint`]); all of them share workers,
//! batches and values.
//!
//! * `conn` is one connection: its buffers, and what is withheld. `turn` is what it lends its protocol; `shelf` has
//!   buffers that connections take in turn.
//! * `executor` is what a thread executes requests with; `long` is the thread that executes the long ones, so that
//!   requests of other clients do not wait for them.
//! * `worker` is the loop; `listener` accepts and starts it all; `unix_socket` is an address that is a file.
//! * [`resp`] reads Redis's requests and writes replies; `cmd` has a file for each family of commands, and
//!   the one table of them all.
//! * [`memcached`] is the other protocol, requests and commands.
//! * `hotkeys` are those asked for most; [`glob`] are the patterns of SCAN, KEYS and CONFIG GET.
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
