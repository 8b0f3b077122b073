//! The first drain of a table that failed: what has happened since may be visible and not durable, and nobody may build on it.

use farbank_pm::Poisoned;
use farbank_pm::sync::OnceLock;

use crate::index::IndexError;

/// Shared by all workers of a table, its allocator and its locks.
#[derive(Default)]
pub(crate) struct SharedFailure(OnceLock<Poisoned>);

impl SharedFailure {
    /// Says that a drain has failed.
    #[cold]
    pub(super) fn note(&self, poisoned: &Poisoned) {
        self.0.get_or_init(|| poisoned.clone());
    }

    /// Whether one has.
    #[inline]
    pub(crate) fn is_noted(&self) -> bool {
        self.0.get().is_some()
    }

    /// Refuses, if one has.
    #[inline]
    pub(crate) fn refuse(&self) -> Result<(), IndexError> {
        match self.0.get() {
            None => Ok(()),
            Some(poisoned) => Err(poisoned.clone().into()),
        }
    }
}
