//! The selection of a segment by a hash. The operations on a segment are those of `dash`.

use farbank_pm::{Medium, Off, WORD};

use super::{DashEh, NAME};
use crate::dash::{DashSegments, DashTable, LockedDashSegment, SegmentPlace};
use crate::error::IndexError;
use crate::extendible::{DirectoryEntry, SegmentHeader};
use crate::locks::{LockTable, VersionedRef};
use crate::pool_heap::{TablePool, TableWorker};

impl<M: Medium> DashTable for DashEh<M> {
    type Medium = M;

    const NAME: &'static str = NAME;

    #[inline]
    fn table_pool(&self) -> &TablePool<M> {
        &self.table_pool
    }

    #[inline]
    fn dash(&self) -> DashSegments<'_, M> {
        DashSegments::of(&self.table_pool, &self.form)
    }

    #[inline]
    fn locks(&self) -> &LockTable {
        &self.locks
    }

    #[inline]
    fn place(&self, hash: u64) -> SegmentPlace {
        self.config.place(hash)
    }

    type Way = DirectoryEntry;

    #[inline]
    fn lookup(&self, hash: u64) -> VersionedRef<DirectoryEntry> {
        self.directory.lookup(&self.table_pool, hash)
    }

    #[inline]
    fn is_current(&self, _: u64, led: VersionedRef<DirectoryEntry>) -> bool {
        self.directory.is_current(&self.table_pool, led)
    }

    #[inline]
    fn prefetch_lookup(&self, hash: u64) {
        let entry = self.directory.directory().entry_of(hash);
        self.table_pool.medium().prefetch(entry, WORD);
    }

    fn validate(&self, segment: Off, hash: u64) -> Result<(), IndexError> {
        self.validate_segment(segment, hash)
    }

    fn owns(&self, segment: Off, hash: u64) -> bool {
        SegmentHeader::at(self.table_pool.medium(), segment).owns(hash)
    }

    fn grow(
        &self,
        worker: &mut TableWorker,
        held: LockedDashSegment<'_>,
    ) -> Result<(), IndexError> {
        self.split(worker, &held)
    }

    fn each_segment(
        &self,
        each: &mut dyn FnMut(Off, u64) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        self.directory.each_segment(&self.table_pool, each)
    }

    fn parts(&self) -> Result<(u64, u64), IndexError> {
        let mut segments = 0;
        self.each_segment(&mut |_, _| {
            segments += 1;
            Ok(())
        })?;
        let bytes = segments * self.form.segment_bytes + self.directory.directory().bytes();
        Ok((segments * self.config.shape.segment_slots(), bytes))
    }

    fn check_all(&self) -> Result<(), IndexError> {
        self.check_segments()
    }
}
