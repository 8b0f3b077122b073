//! Errors of a child process and of its connections.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use crate::network::NetworkError;

/// Reason why a server under test cannot be used any more, although it broke no guarantee.
#[derive(Debug)]
#[non_exhaustive]
pub enum ChildError {
    /// The program could not be started.
    Start {
        /// Path of the program.
        program: PathBuf,
        /// Error of the start.
        source: io::Error,
    },
    /// The first lines of the server's output could not be read.
    Banner(io::Error),
    /// The server ended before it was ready.
    NotReady {
        /// How the process ended.
        status: String,
        /// What the process printed.
        banner: String,
    },
    /// The process could not be killed or waited for.
    Process(io::Error),
    /// The server ended before it was killed.
    EndedEarly(ExitStatus),
    /// The server was stopped and ended with an error.
    BadExit {
        /// How the process ended.
        status: ExitStatus,
        /// The signal or the command that stopped it.
        request: &'static str,
    },
    /// A connection was lost before the server was killed.
    Disconnected(io::Error),
    /// The server reported that its medium has failed. Holds the reply.
    MediumFailed(String),
    /// A server in this process failed.
    InProcess(Box<dyn std::error::Error + Send + Sync>),
    /// A process that executes rounds of calls did not end one.
    Round(String),
    /// The hosts of the processes could not be created or changed.
    Network(NetworkError),
}

impl fmt::Display for ChildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChildError::Start { program, source } => {
                write!(f, "cannot start {}: {source}", program.display())
            }
            ChildError::Banner(source) => {
                write!(f, "cannot read the server's first lines: {source}")
            }
            ChildError::NotReady { status, banner } => {
                write!(
                    f,
                    "the server did not start ({status}); it printed: {banner}"
                )
            }
            ChildError::Process(source) => source.fmt(f),
            ChildError::EndedEarly(status) => {
                write!(f, "the server ended before it was killed: {status}")
            }
            ChildError::BadExit { status, request } => {
                write!(
                    f,
                    "the server ended with {status} after {request}, expected success"
                )
            }
            ChildError::Disconnected(source) => write!(
                f,
                "the server ended or closed the connection before it was killed: {source}"
            ),
            ChildError::InProcess(source) => source.fmt(f),
            ChildError::MediumFailed(reply) => {
                write!(f, "the server's medium has failed: {reply}")
            }
            ChildError::Round(what) => f.write_str(what),
            ChildError::Network(source) => source.fmt(f),
        }
    }
}

impl std::error::Error for ChildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ChildError::Start { source, .. }
            | ChildError::Banner(source)
            | ChildError::Process(source)
            | ChildError::Disconnected(source) => Some(source),
            ChildError::Network(source) => Some(source),
            ChildError::InProcess(source) => Some(&**source),
            ChildError::NotReady { .. }
            | ChildError::EndedEarly(_)
            | ChildError::BadExit { .. }
            | ChildError::MediumFailed(_)
            | ChildError::Round(_) => None,
        }
    }
}

impl From<NetworkError> for ChildError {
    fn from(error: NetworkError) -> ChildError {
        ChildError::Network(error)
    }
}

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
    Broken(ChildError),
}

impl fmt::Display for RunFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunFailure::Violation(violation) => {
                write!(f, "key {}: {}", violation.key, violation.what)
            }
            RunFailure::Broken(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RunFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RunFailure::Violation(_) => None,
            RunFailure::Broken(error) => Some(error),
        }
    }
}

impl From<ChildError> for RunFailure {
    fn from(error: ChildError) -> RunFailure {
        RunFailure::Broken(error)
    }
}

impl From<ConnectionStop> for RunFailure {
    fn from(stop: ConnectionStop) -> RunFailure {
        match stop {
            ConnectionStop::Gone(source) => ChildError::Disconnected(source).into(),
            ConnectionStop::MediumFailed(reply) => ChildError::MediumFailed(reply).into(),
            ConnectionStop::Wrong(violation) => RunFailure::Violation(*violation),
        }
    }
}

/// Reason why a connection ended.
#[derive(Debug)]
pub(crate) enum ConnectionStop {
    /// The server process ended or closed the connection, as it does after every kill.
    Gone(io::Error),
    /// The server reported that its medium has failed. Holds the reply.
    MediumFailed(String),
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
}

/// Description of a value's bytes that no write of its key has stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct UnwrittenValue(pub(crate) String);

impl fmt::Display for UnwrittenValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UnwrittenValue {}
