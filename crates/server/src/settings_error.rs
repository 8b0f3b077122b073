//! The error of settings that cannot be used.

use std::error::Error;
use std::fmt;

/// Reason why settings of a server cannot be used: the setting, its file if it has one, and what is wrong with it.
#[derive(Debug)]
pub struct SettingsError {
    what: String,
    cause: Option<Box<dyn Error + Send + Sync>>,
}

impl SettingsError {
    /// Returns an error with this description.
    pub(crate) fn new(what: impl Into<String>) -> SettingsError {
        SettingsError {
            what: what.into(),
            cause: None,
        }
    }

    /// Returns an error with the description of `cause`.
    pub(crate) fn from_cause(cause: impl Error + Send + Sync + 'static) -> SettingsError {
        SettingsError {
            what: cause.to_string(),
            cause: Some(Box::new(cause)),
        }
    }

    /// Returns the same error with `subject` before its description.
    pub(crate) fn of(self, subject: impl fmt::Display) -> SettingsError {
        SettingsError {
            what: format!("{subject}: {}", self.what),
            ..self
        }
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Error for SettingsError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_deref().map(|cause| cause as _)
    }
}
