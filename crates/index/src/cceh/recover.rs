//! Recovery. Most of it is the directory's: an open completes interrupted splits. Buckets become durable at their first
//! access.

use farbank_pm::{Medium, Off};

use super::Cceh;
use crate::error::{IndexError, OpenError};
use crate::pool_heap::TableWorker;

impl<M: Medium> Cceh<M> {
    /// Completes interrupted splits, then frees segments and directories that nothing refers to. Reads a few words per
    /// context.
    pub(super) fn recover(&self) -> Result<(), OpenError> {
        self.directory.recover(&self.table_pool)
    }

    /// Validates the segment for `hash`, and makes durable what a killed process left in its buckets. Its header is
    /// durable already: a header that a split may have left volatile is in doubt (IX-EXT-4), and recovery has flushed it.
    #[cold]
    pub(super) fn persist_on_first_access(
        &self,
        worker: &mut TableWorker,
        segment: Off,
        hash: u64,
    ) -> Result<(), IndexError> {
        self.directory.validate(&self.table_pool, segment, hash)?;
        let buckets = Self::slot(segment, 0);
        let bytes = self.config.segment_bytes() - (buckets.0 - segment.0);
        self.table_pool
            .persist_on_first_access(worker, buckets, bytes)
    }
}
