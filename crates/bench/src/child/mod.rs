//! `farbank serve` as a child process, and a client of it.
//!
//! ```text
//!   Launch ──▶ Server (a process that is killed when this goes) ◀── Client (one connection, RESP)
//!                                                               ◀── Memcached (one connection, its text protocol)
//! ```

mod client;
mod connection;
mod memcached;
mod server;

pub(crate) use client::{RespClient, RespReply};
pub(crate) use memcached::MemcachedClient;
pub(crate) use server::ChildServer;
pub use server::ServerLaunch;

/// What must not be: a key, what is wrong with it, and what happened to it.
#[derive(Clone, Debug)]
pub struct ServerViolation {
    /// The key, or what else is concerned.
    pub key: String,
    /// What is wrong.
    pub what: String,
    /// What this key went through, oldest first.
    pub history: Vec<String>,
}

/// Why a run ended early.
#[derive(Debug)]
pub enum RunFailure {
    /// The server broke its promise.
    Violation(ServerViolation),
    /// The run itself could not go on.
    Broken(String),
}

/// Why a connection stopped.
pub(crate) enum ConnectionStop {
    /// The server is gone, as after every kill.
    Gone(String),
    /// It said what it must not.
    Wrong(Box<ServerViolation>),
}

impl ConnectionStop {
    /// The server said of `key` what it must not.
    pub(crate) fn wrong(key: impl ToString, what: impl ToString) -> ConnectionStop {
        ConnectionStop::Wrong(Box::new(ServerViolation {
            key: key.to_string(),
            what: what.to_string(),
            history: Vec::new(),
        }))
    }

    pub(crate) fn into_failure(self) -> RunFailure {
        match self {
            ConnectionStop::Gone(why) => {
                RunFailure::Broken(format!("the server went by itself: {why}"))
            }
            ConnectionStop::Wrong(violation) => RunFailure::Violation(*violation),
        }
    }
}
