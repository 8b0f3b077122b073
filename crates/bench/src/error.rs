//! Errors of a measurement.

use std::fmt;
use std::io;

/// Reason why a measurement failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The medium could not be created or opened.
    Medium(farbank_pm::media::OpenError),
    /// The store could not be created or opened.
    Open(farbank_kv::OpenError),
    /// An operation on the store failed.
    Store(farbank_store::Error),
    /// An I/O operation failed.
    Io {
        /// What could not be done, as in "open the file".
        what: String,
        /// Error of the operation.
        source: io::Error,
    },
    /// A program to compare with is not installed.
    Missing {
        /// Name of the program.
        program: String,
        /// Debian package that contains it.
        package: &'static str,
    },
    /// Any other error, as text.
    Failed(String),
    /// The progress callback stopped the run.
    Stopped,
}

impl Error {
    /// Returns a function that turns an I/O error into "cannot `what`: error".
    pub fn doing(what: impl fmt::Display) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io {
            what: what.to_string(),
            source,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Medium(error) => error.fmt(f),
            Error::Open(error) => error.fmt(f),
            Error::Store(error) => error.fmt(f),
            Error::Io { what, source } => write!(f, "cannot {what}: {source}"),
            Error::Missing { program, .. } => write!(f, "cannot find the program {program}"),
            Error::Failed(why) => f.write_str(why),
            Error::Stopped => f.write_str("the run was stopped before its end"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Medium(error) => Some(error),
            Error::Open(error) => Some(error),
            Error::Store(error) => Some(error),
            Error::Io { source, .. } => Some(source),
            Error::Missing { .. } | Error::Failed(_) | Error::Stopped => None,
        }
    }
}

impl From<farbank_pm::media::OpenError> for Error {
    fn from(error: farbank_pm::media::OpenError) -> Error {
        Error::Medium(error)
    }
}

impl From<farbank_kv::OpenError> for Error {
    fn from(error: farbank_kv::OpenError) -> Error {
        Error::Open(error)
    }
}

impl From<farbank_store::Error> for Error {
    fn from(error: farbank_store::Error) -> Error {
        Error::Store(error)
    }
}

impl From<farbank_pm::Poisoned> for Error {
    fn from(error: farbank_pm::Poisoned) -> Error {
        Error::Store(error.into())
    }
}
