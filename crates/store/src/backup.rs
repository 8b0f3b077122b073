//! A backup: every key of a store as it was at one moment.

use crate::error::Error;
use crate::value::{DATABASES, Key, StoredItem};

/// Reads every key of a store as it was at the moment of [`Store::backup`](crate::Store::backup), while sessions write.
///
/// The backup contains a group entirely or not at all. If it contains a write, it contains every write that the same
/// session has staged before, and every write that was visible to that session. Writes that were staged at the moment
/// and not committed are in it, unless their session drops them.
///
/// Dropping a backup ends it. Until then, the caller must call [`Backup::step`] often: what writers replace stays in the
/// pool until the backup has read it.
pub trait Backup: Send {
    /// Returns about how many keys each database had at the moment.
    fn keys(&self) -> [u64; DATABASES];

    /// Passes the values that writers have replaced since the last step to `each`, and about `count` other keys; with
    /// a count of 0, no others. Each key is passed once, in no order. Returns false when all were passed.
    ///
    /// # Errors
    /// [`Error::Backup`] if the backup cannot be completed. [`Error::Poisoned`] if the medium has failed.
    fn step(
        &mut self,
        count: usize,
        each: &mut dyn FnMut(Key<'_>, StoredItem<'_>),
    ) -> Result<bool, Error>;

    /// Returns the number of damaged records so far. They are not passed.
    fn damaged(&self) -> u64;
}
