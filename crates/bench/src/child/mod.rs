//! `farbank serve` as a child process, with clients for its two protocols.
//!
//! ```text
//!   ServerLaunch ──▶ ChildServer (process, killed when dropped) ◀── RespClient (one RESP connection)
//!                                                               ◀── MemcachedClient (one connection, text protocol)
//! ```

mod client;
mod connection;
mod memcached;
mod server;

pub(crate) use client::{RespClient, RespReply};
pub(crate) use memcached::MemcachedClient;
pub(crate) use server::ChildServer;
pub use server::ServerLaunch;

/// A broken guarantee of the server: the key, what is wrong with it, and the calls on it.
#[derive(Clone, Debug)]
pub struct ServerViolation {
    /// Affected key, or the command or protocol if the violation concerns no single key.
    pub key: String,
    /// Description of the violation.
    pub what: String,
    /// Calls on this key, oldest first.
    pub history: Vec<String>,
}

/// Reason why a run ended early.
#[derive(Debug)]
pub enum RunFailure {
    /// The server broke a guarantee.
    Violation(ServerViolation),
    /// The run could not continue.
    Broken(String),
}

/// Reason why a connection ended.
pub(crate) enum ConnectionStop {
    /// The server process ended or closed the connection, as it does after every kill.
    Gone(String),
    /// The server sent a reply that breaks a guarantee.
    Wrong(Box<ServerViolation>),
}

impl ConnectionStop {
    /// Returns a violation: the reply `what` about `key` breaks a guarantee.
    pub(crate) fn wrong(key: impl ToString, what: impl ToString) -> ConnectionStop {
        ConnectionStop::Wrong(Box::new(ServerViolation {
            key: key.to_string(),
            what: what.to_string(),
            history: Vec::new(),
        }))
    }

    pub(crate) fn into_failure(self) -> RunFailure {
        match self {
            ConnectionStop::Gone(why) => RunFailure::Broken(format!(
                "the server ended or closed the connection before it was killed: {why}"
            )),
            ConnectionStop::Wrong(violation) => RunFailure::Violation(*violation),
        }
    }
}
