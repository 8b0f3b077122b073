//! Splitting a segment.

use farbank_pm::{Medium, fault};

use super::DashEh;
use crate::dash::{DashTable, KeyHashes, LockedDashSegment};
use crate::error::{IndexError, OpenError};
use crate::extendible::{ExtendibleDirectory, SEGMENT, SegmentHeader, set_header};
use crate::pool_heap::TableWorker;

impl<M: Medium> DashEh<M> {
    /// Creates the first directory, and a segment for each entry.
    pub(super) fn make_first(&self) -> Result<(), OpenError> {
        let (dash, medium) = (self.dash(), self.table_pool.medium());
        ExtendibleDirectory::make(
            &self.table_pool,
            self.config.depth,
            |worker, segment, header| {
                dash.make(&mut worker.ctx, segment);
                medium.store(&mut worker.ctx, segment, header.word());
                dash.flush(&mut worker.ctx, segment);
            },
        )
    }

    /// Splits a full segment under its lock. Nothing is changed on an error.
    pub(super) fn split(
        &self,
        worker: &mut TableWorker,
        held: &LockedDashSegment<'_>,
    ) -> Result<(), IndexError> {
        let _for = worker.reshape();
        let (dash, medium, segment) = (self.dash(), self.table_pool.medium(), held.segment);
        let header = SegmentHeader::serving(medium, segment, held.hash)?;
        self.directory.may_split(&self.table_pool, header)?;
        let [stay, moved] = [0, 1].map(|bit| header.half(bit));
        let hasher = self.table_pool.hasher();
        let place = &|hash| self.place(hash);
        let young = self.table_pool.allocate(worker, SEGMENT)?;
        dash.clear_words(&mut worker.ctx, young);
        let owned = &|hash| moved.owns(hash);
        dash.copy_some(
            worker,
            (segment, young),
            &KeyHashes {
                hasher,
                place,
                owned,
            },
        )?;
        medium.store(&mut worker.ctx, young, moved.word());
        dash.flush(&mut worker.ctx, young);
        worker.commit(medium)?; // IX-EXT-1
        self.locks.mark_new(young);
        let owned = &|hash| stay.owns(hash);
        let own = KeyHashes {
            hasher,
            place,
            owned,
        };
        if fault!("dash-eh.bits_first") {
            dash.drop_foreign(&mut worker.ctx, segment, &own);
        }
        self.directory
            .publish(&self.table_pool, worker, header, young)?;
        dash.drop_foreign(&mut worker.ctx, segment, &own); // IX-DASHEH-3
        set_header(&self.table_pool, worker, segment, stay)?; // IX-EXT-3
        dash.move_stash_home(worker, segment, &own)
    }
}
