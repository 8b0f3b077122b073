//! The first failed drain of a table. Later changes may be visible but not durable, so no operation may rely on them.

use farbank_pm::Poisoned;
use farbank_pm::sync::OnceLock;

use crate::error::IndexError;

/// The error of the first failed drain. Shared by all workers of a table, its allocator and its locks.
#[derive(Default)]
pub(crate) struct SharedFailure(OnceLock<Poisoned>);

impl SharedFailure {
    /// Records that a drain failed. Only the first failure is kept.
    #[cold]
    pub(crate) fn note(&self, poisoned: &Poisoned) {
        self.0.get_or_init(|| poisoned.clone());
    }

    /// Returns whether a drain has failed.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.0.get().is_some()
    }

    /// Returns the recorded error if a drain has failed.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), IndexError> {
        match self.0.get() {
            None => Ok(()),
            Some(poisoned) => Err(poisoned.clone().into()),
        }
    }
}
