//! The consistency check of the directory.

use farbank_pm::{Medium, Off};

use super::ExtendibleDirectory;
use crate::error::IndexError;
use crate::pool_heap::TablePool;

impl ExtendibleDirectory {
    /// Checks the directory, runs `check` on each segment, and checks that the allocated blocks are exactly these.
    pub(crate) fn check<M: Medium>(
        &self,
        ground: &TablePool<M>,
        mut check: impl FnMut(Off, u64) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        let mut segments = Vec::new();
        self.each_segment(ground, |segment, hash| {
            segments.push(segment);
            check(segment, hash)
        })?;
        ground.check(|reach| {
            reach(self.directory().at());
            segments.into_iter().for_each(reach);
        })
    }
}
