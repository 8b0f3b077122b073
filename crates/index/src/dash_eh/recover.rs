//! Recovery. An open recovers the directory; a segment is validated and repaired at its first access.

use farbank_pm::{Medium, Off};

use super::DashEh;
use crate::error::{IndexError, OpenError};

impl<M: Medium> DashEh<M> {
    /// Completes interrupted splits, then frees segments and directories that nothing refers to. Reads a few words per
    /// context.
    pub(super) fn recover(&self) -> Result<(), OpenError> {
        self.directory.recover(&self.table_pool)
    }

    /// Checks that the segment for `hash` is one, and that exactly its entries name it (IX-EXT-5).
    pub(super) fn validate_segment(&self, segment: Off, hash: u64) -> Result<(), IndexError> {
        self.directory.validate(&self.table_pool, segment, hash)
    }
}
