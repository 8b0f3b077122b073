//! An open structure whose drop cannot end the exploration.

use std::ops::{Deref, DerefMut};

use crate::guard::guarded;
use crate::target::TargetSubject;

/// An open structure.
///
/// After a panic it may hold poisoned locks, and its drop may panic, too. That second panic shows nothing, and is
/// discarded.
pub(super) struct OpenSubject(Option<Box<dyn TargetSubject>>);

impl OpenSubject {
    pub(super) fn new(subject: Box<dyn TargetSubject>) -> OpenSubject {
        OpenSubject(Some(subject))
    }

    /// Returns the structure, to close it.
    pub(super) fn into_inner(mut self) -> Box<dyn TargetSubject> {
        self.0.take().expect(PRESENT)
    }
}

/// Only a drop and [`OpenSubject::into_inner`], which ends in one, remove the structure.
const PRESENT: &str = "the structure is there until the drop";

impl Deref for OpenSubject {
    type Target = dyn TargetSubject;

    fn deref(&self) -> &Self::Target {
        self.0.as_deref().expect(PRESENT)
    }
}

impl DerefMut for OpenSubject {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.0.as_deref_mut().expect(PRESENT)
    }
}

impl Drop for OpenSubject {
    fn drop(&mut self) {
        let subject = self.0.take();
        let _ = guarded(|| drop(subject));
    }
}
