//! The description of what a check found wrong.

use std::error::Error;
use std::fmt;

/// Description of a violation: what a checked structure did, and what it should have done.
///
/// It is not an [`Error`], so that every error converts into it with `?`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation(String);

impl Violation {
    /// Returns a violation with this description.
    pub fn new(what: impl Into<String>) -> Violation {
        Violation(what.into())
    }

    /// Returns the same violation with `context` before its description.
    #[must_use]
    pub fn context(self, context: impl fmt::Display) -> Violation {
        Violation(format!("{context}: {}", self.0))
    }
}

impl<E: Error> From<E> for Violation {
    fn from(error: E) -> Violation {
        Violation(error.to_string())
    }
}

impl From<Violation> for String {
    fn from(violation: Violation) -> String {
        violation.0
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
