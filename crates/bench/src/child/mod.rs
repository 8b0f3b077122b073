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

pub(crate) use client::{Client, Reply};
pub(crate) use memcached::Memcached;
pub use server::Launch;
pub(crate) use server::Server;

/// What must not be: a key, what is wrong with it, and what happened to it.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The key, or what else is concerned.
    pub key: String,
    /// What is wrong.
    pub what: String,
    /// What this key went through, oldest first.
    pub history: Vec<String>,
}

/// Why a run ended early.
#[derive(Debug)]
pub enum Failure {
    /// The server broke its promise.
    Violation(Violation),
    /// The run itself could not go on.
    Broken(String),
}

/// Why a connection stopped.
pub(crate) enum Stop {
    /// The server is gone, as after every kill.
    Gone(String),
    /// It said what it must not.
    Wrong(Box<Violation>),
}

impl Stop {
    /// The server said of `key` what it must not.
    pub(crate) fn wrong(key: impl ToString, what: impl ToString) -> Stop {
        Stop::Wrong(Box::new(Violation {
            key: key.to_string(),
            what: what.to_string(),
            history: Vec::new(),
        }))
    }

    pub(crate) fn into_failure(self) -> Failure {
        match self {
            Stop::Gone(why) => Failure::Broken(format!("the server went by itself: {why}")),
            Stop::Wrong(violation) => Failure::Violation(*violation),
        }
    }
}
