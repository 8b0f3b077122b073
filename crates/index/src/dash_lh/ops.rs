//! The selection of a segment by a hash. The operations on a segment are those of `dash`.

use farbank_pm::{Medium, Off};

use super::layout::{DIRECTORY_BYTES, LinearState};
use super::{DashLh, NAME};
use crate::dash::{DashSegments, DashTable, LockedDashSegment, SegmentPlace};
use crate::error::IndexError;
use crate::locks::{LockTable, VersionedRef};
use crate::pool_heap::{TablePool, TableWorker};

impl<M: Medium> DashTable for DashLh<M> {
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

    type Way = LinearState;

    #[inline]
    fn lookup(&self, hash: u64) -> VersionedRef<LinearState> {
        let state = self.state();
        VersionedRef {
            to: self.segment(state.number(hash)),
            source: state,
        }
    }

    #[inline]
    fn is_current(&self, hash: u64, led: VersionedRef<LinearState>) -> bool {
        let now = self.state();
        now == led.source || now.number(hash) == led.source.number(hash)
    }

    /// Does nothing: a lookup reads two words of DRAM that are usually cached.
    fn prefetch_lookup(&self, _: u64) {}

    fn validate(&self, segment: Off, hash: u64) -> Result<(), IndexError> {
        let (says, number) = (
            self.table_pool.medium().load(segment),
            self.state().number(hash),
        );
        if says == number {
            return Ok(());
        }
        Err(IndexError::damaged(format!(
            "the segment at {segment:?} has number {says:#x}, expected {number}"
        )))
    }

    fn owns(&self, segment: Off, hash: u64) -> bool {
        self.table_pool.medium().load(segment) == self.state().number(hash)
    }

    fn grow(
        &self,
        worker: &mut TableWorker,
        held: LockedDashSegment<'_>,
    ) -> Result<(), IndexError> {
        drop(held); // a split below may lock the same segment
        self.split_some(worker)
    }

    /// A segment's number, used as a hash, leads to the segment.
    fn each_segment(
        &self,
        each: &mut dyn FnMut(Off, u64) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        (0..self.state().count()).try_for_each(|number| each(self.segment(number), number))
    }

    /// The slots of an array count as soon as it exists.
    fn parts(&self) -> Result<(u64, u64), IndexError> {
        let (shape, dash) = (self.config.shape, self.dash());
        let (mut chained, mut segments) = (0, 0);
        self.each_segment(&mut |segment, _| {
            chained += dash.chained(segment).count() as u64;
            Ok(())
        })?;
        self.each_array(|array, _| segments += self.config.segments(array));
        let slots = segments * shape.segment_slots() + chained * u64::from(shape.slots);
        let bytes = segments * self.form.segment_bytes + chained * shape.bucket_bytes();
        Ok((slots, bytes + DIRECTORY_BYTES))
    }

    fn dram_bytes(&self) -> u64 {
        self.locks.bytes() + size_of_val(&*self.zeroths) as u64
    }

    fn check_all(&self) -> Result<(), IndexError> {
        self.check_segments()
    }
}
