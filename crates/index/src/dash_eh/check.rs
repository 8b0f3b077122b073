//! The consistency check of the whole table.

use farbank_pm::Medium;

use super::DashEh;
use crate::dash::DashTable;
use crate::error::IndexError;

impl<M: Medium> DashEh<M> {
    /// Checks the directory, then each segment, after its repair.
    pub(super) fn check_segments(&self) -> Result<(), IndexError> {
        self.directory.check(&self.table_pool, |segment, hash| {
            self.check_segment(segment, hash)
        })
    }
}
