//! Errors of the power-cut harness.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use farbank_pm::Poisoned;
use farbank_pm::media::OpenError;
use farbank_pm::pool::PoolError;

use crate::child::{ChildError, ConnectionStop};

/// Reason why a check or a writer of the harness failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum PowerError {
    /// A check found a violation. The findings were printed.
    CheckFailed,
    /// The engine reports that its store is damaged.
    Damaged(String),
    /// The engine failed.
    Engine(Box<dyn Error + Send + Sync>),
    /// The medium of a pool could not be created or opened.
    Medium(OpenError),
    /// The bare pool could not be created or opened.
    Pool(PoolError),
    /// The medium of the bare pool failed.
    Poisoned(Poisoned),
    /// The server process failed.
    Child(ChildError),
    /// The server ended or closed a connection.
    Disconnected(io::Error),
    /// The server sent a reply that does not fit its request.
    Reply(String),
    /// A file or a device could not be read or written.
    Io {
        /// The file, or what was done with it.
        what: String,
        /// Error of the operation.
        source: io::Error,
    },
    /// A command could not be run.
    Run {
        /// Command line.
        command: String,
        /// Error of its start.
        source: io::Error,
    },
    /// A command failed.
    Command {
        /// Command line.
        command: String,
        /// What it printed to its standard error.
        printed: String,
    },
    /// A device holds no log of dm-log-writes.
    NotALog {
        /// Path of the device.
        path: PathBuf,
        /// Version that was expected.
        version: u64,
    },
    /// No subject of the run is an engine.
    NoEngine,
}

impl PowerError {
    /// Wraps an error of the engine.
    pub fn engine(error: impl Into<Box<dyn Error + Send + Sync>>) -> PowerError {
        PowerError::Engine(error.into())
    }

    /// Wraps an I/O error of the file at `path`.
    pub(super) fn io(path: &Path, source: io::Error) -> PowerError {
        PowerError::Io {
            what: path.display().to_string(),
            source,
        }
    }
}

impl fmt::Display for PowerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PowerError::CheckFailed => f.write_str(
                "the check failed: acknowledged writes are lost, or the store is damaged",
            ),
            PowerError::Damaged(what) | PowerError::Reply(what) => f.write_str(what),
            PowerError::Engine(source) => source.fmt(f),
            PowerError::Medium(source) => source.fmt(f),
            PowerError::Pool(source) => source.fmt(f),
            PowerError::Poisoned(source) => source.fmt(f),
            PowerError::Child(source) => source.fmt(f),
            PowerError::Disconnected(source) => write!(f, "the server ended: {source}"),
            PowerError::Io { what, source } => write!(f, "{what}: {source}"),
            PowerError::Run { command, source } => write!(f, "{command}: {source}"),
            PowerError::Command { command, printed } => write!(f, "{command}: {printed}"),
            PowerError::NotALog { path, version } => write!(
                f,
                "{} is not a dm-log-writes log of version {version}",
                path.display()
            ),
            PowerError::NoEngine => f.write_str("no subject is an engine"),
        }
    }
}

impl Error for PowerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            PowerError::Engine(source) => Some(&**source),
            PowerError::Medium(source) => Some(source),
            PowerError::Pool(source) => Some(source),
            PowerError::Poisoned(source) => Some(source),
            PowerError::Child(source) => Some(source),
            PowerError::Disconnected(source)
            | PowerError::Io { source, .. }
            | PowerError::Run { source, .. } => Some(source),
            PowerError::CheckFailed
            | PowerError::Damaged(_)
            | PowerError::Reply(_)
            | PowerError::Command { .. }
            | PowerError::NotALog { .. }
            | PowerError::NoEngine => None,
        }
    }
}

impl From<OpenError> for PowerError {
    fn from(error: OpenError) -> PowerError {
        PowerError::Medium(error)
    }
}

impl From<PoolError> for PowerError {
    fn from(error: PoolError) -> PowerError {
        PowerError::Pool(error)
    }
}

impl From<Poisoned> for PowerError {
    fn from(error: Poisoned) -> PowerError {
        PowerError::Poisoned(error)
    }
}

impl From<ChildError> for PowerError {
    fn from(error: ChildError) -> PowerError {
        PowerError::Child(error)
    }
}

impl From<ConnectionStop> for PowerError {
    fn from(stop: ConnectionStop) -> PowerError {
        match stop {
            ConnectionStop::Gone(source) => PowerError::Disconnected(source),
            ConnectionStop::MediumFailed(reply) => ChildError::MediumFailed(reply).into(),
            ConnectionStop::Wrong(violation) => PowerError::Reply(violation.what),
        }
    }
}
