//! `farbank serve` as a child process, with clients for its two protocols.
//!
//! ```text
//!   ServerLaunch ──▶ ChildServer (process, killed when dropped) ◀── RespClient (one RESP connection)
//!                                                               ◀── MemcachedClient (one connection, text protocol)
//! ```

mod client;
mod connection;
mod error;
mod memcached;
mod server;

pub use client::append_command;
pub(crate) use client::{RespClient, RespReply};
pub use error::{ChildError, RunFailure, ServerViolation};
pub(crate) use error::{ConnectionStop, UnwrittenValue};
pub(crate) use memcached::MemcachedClient;
pub(crate) use server::ChildServer;
pub use server::ServerLaunch;
