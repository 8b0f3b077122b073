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
//! # Layers
//! Imports point down only:
//!
//! | folder or file | content |
//! |---|---|
//! | `net` | sockets and threads: `listener`, `worker`, `executor`, `long_requests` |
//! | `admin` | figures over HTTP, for monitoring |
//! | `commands` | Redis: one file per family, the table of all commands, the pipeline. `commands::memcached`: the same for memcached |
//! | `exec_context` | what a pipeline and a command work with, for both protocols |
//! | `state` | what all threads share: settings, store, connections |
//! | `lua` | Lua states that execute scripts; calls commands through a trait |
//! | `stats` | counters, the most requested keys, the process |
//! | `settings`, `settings_error`, `keyspace_events`, `eviction_policy` | options at start, and those that CONFIG SET changes |
//! | `config_lines` | the lines of a redis.conf |
//! | `protocol` | wire formats: [`resp`] is Redis's, [`memcached`] is memcached's |
//! | [`rdb`] | strings in the format of Redis's files, for DUMP and RESTORE |
//! | `buffers`, [`glob`], `lock` | buffers of connections, patterns of SCAN and KEYS, locks |
//!
//! # To add something
//! * A command: a function in its family in `commands`, and a row in `commands::table`. A command of memcached: a
//!   function in `commands::memcached`, and a line in its `pipeline`.
//! * A protocol: `WireProtocol` in `settings`; its format in `protocol`; its commands and pipeline in a folder of
//!   `commands`; its state of a connection in `ProtocolState` (`net::connection`), and of all connections in
//!   `ServerParts` (`net::executor`).
//! * A metric: a `Counter` in `stats::counters`, a line in `commands::info` and in `admin::figures`.
//! * A blocking command: a reason to wait in `TurnStatus` (`exec_context`), beside `awaits_room`. The list of waiting
//!   clients is in `state`; the write that ends the wait wakes a worker as a published message does (`WorkerMsg` in `net::worker_pool`).
#![forbid(unsafe_code)]

mod admin;
mod buffers;
mod commands;
mod config_lines;
mod eviction_policy;
mod exec_context;
pub mod glob;
mod hex;
mod keyspace_events;
mod lock;
mod lua;
mod net;
mod protocol;
pub mod rdb;
mod settings;
mod settings_error;
mod state;
mod stats;

pub use commands::config::is_settable as is_settable_parameter;
pub use commands::config_aliases::name_of_alias as parameter_of_alias;
pub use commands::memcached::credentials::check as check_memcached_auth_file;
pub use commands::start_users::{DefaultUser, default_user};
pub use commands::table::has_command;
pub use config_lines::bind_words;
pub use keyspace_events::{KeyspaceEvents, UnknownEventClass};
pub use net::listener::{BindError, Server, ServerHandle};
pub use protocol::resp::parse::{quoted as quoted_word, words_of as split_words};
pub use protocol::{memcached, resp};
pub use settings::{
    ClientsMemory, ConfigFile, Endpoint, LiveParameter, Password, ProtectedActions, REDIS_VERSION,
    ServerOptions, TlsClients, TlsSettings, UnixSocket, UserRules, WireProtocol,
};
pub use settings_error::SettingsError;
pub use state::tls::check as check_tls;
