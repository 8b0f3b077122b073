//! Commands of both protocols. Those of memcached are in [`memcached`]; the other files here are about Redis's.
//!
//! ```text
//!   pipeline ─▶ dispatch ─▶ transactions ─▶ execute ─▶ function of the family
//!      │           │             │             │               │
//!      ▼           ▼             ▼             ▼               ▼
//!    table ──▶ families ─────────────────────────────────▶ context, error, text
//! ```
//!
//! Imports go down and to the right only; a family never imports the table. What a family needs of the table, for
//! example for COMMAND DOCS, it gets from `ctx.client.table`.
//!
//! A command's function appends its reply to `ctx.out`, or returns a `CommandError`. In that case the bytes it has
//! appended are removed, and the error is the reply. The invariants SRV-CMD-1 and SRV-CMD-2 are in [`execute`].
//!
//! * Families: [`strings`], [`ranges`], [`lcs`], [`counters`], [`bits`], [`bitfield`], [`hyperloglog`], [`pfdebug`], [`keys`],
//!   [`moves`], [`object`], [`dump`], [`migrate`], [`sort`], [`expiry`], [`transactions`], [`pubsub`], [`scripts`], [`functions`],
//!   [`connection`], [`client`], [`tracking`], [`command`], [`config`], [`info`], [`server`], [`slowlog`], [`latency`], [`memory`],
//!   [`persistence`], [`monitor`], [`acl`], [`cluster`], [`debug`]. A family of a new data type is a file beside them.
//! * What families compute with: [`values`] (whole strings), [`long_double`], [`hll`]. [`notify`]: the events they publish.
//! * [`table`]: all commands, one row each; [`subcommands`]: those of containers. A new command is a function in its family and a row here.
//! * [`context`]: what a command works with. [`error`]: why it fails. [`config_fixed`]: parameters without effect. [`config_tls`]: those of TLS.
//!   [`config_aliases`]: other names of parameters. [`config_rewrite`]: CONFIG REWRITE. [`config_paths`]: where backups are written.
//!   [`config_percentiles`]: what INFO latencystats shows.
//!   [`text`]: arguments that are options or quoted. [`redact`]: arguments that logs hide. [`key_access`]: keys and their accesses.
//! * [`lookup`], [`dispatch`], [`execute`]: from a request to a reply. [`pipeline`]: reads requests from the input.
//! * [`optimistic`]: groups of keys that are not known in advance. [`script_run`]: one run of a script. [`function_load`]: one load of a
//!   library.
//! * [`start_users`]: the users at the start.
//! * [`long`]: which requests the thread of long requests executes.

mod acl;
mod bitfield;
mod bits;
mod client;
mod cluster;
mod command;
pub(crate) mod config;
pub(crate) mod config_aliases;
mod config_error;
mod config_fixed;
mod config_numbers;
pub(crate) mod config_paths;
mod config_percentiles;
mod config_rewrite;
mod config_tls;
mod connection;
pub(crate) mod context;
mod counters;
mod debug;
mod dispatch;
mod dump;
mod error;
mod execute;
mod expiry;
pub(crate) mod function_load;
mod functions;
mod hll;
mod hyperloglog;
mod info;
mod key_access;
mod keys;
mod latency;
mod lcs;
mod long;
mod long_double;
mod lookup;
pub(crate) mod maxmemory;
pub(crate) mod memcached;
mod memory;
mod migrate;
mod monitor;
mod moves;
mod notify;
mod object;
mod optimistic;
mod persistence;
mod pfdebug;
pub(crate) mod pipeline;
mod pubsub;
mod ranges;
mod redact;
mod script_run;
mod scripts;
mod server;
mod slowlog;
mod sort;
pub(crate) mod start_users;
mod strings;
mod subcommands;
pub(crate) mod table;
mod text;
mod tracking;
mod transactions;
mod values;
