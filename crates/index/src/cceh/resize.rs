//! Splitting a segment.

use farbank_pm::{Medium, WORD, fault, situation};

use super::Cceh;
use crate::error::{IndexError, OpenError};
use crate::extendible::{ExtendibleDirectory, LockedSegment, SEGMENT, SegmentHeader, set_header};
use crate::pool_heap::TableWorker;

impl<M: Medium> Cceh<M> {
    /// Creates the first directory, and a segment for each entry.
    pub(super) fn make_first(&self) -> Result<(), OpenError> {
        ExtendibleDirectory::make(
            &self.table_pool,
            self.config.depth,
            |worker, segment, header| {
                let (medium, image) = (self.table_pool.medium(), self.image(header, &[]));
                medium.copy_in(&mut worker.ctx, segment, &[&image]);
            },
        )
    }

    /// Returns the bytes of a segment with these slots, each given as its position in the segment, key and value.
    fn image(&self, header: SegmentHeader, slots: &[(u64, u64, u64)]) -> Vec<u8> {
        let mut image = vec![0; self.config.segment_bytes() as usize];
        let mut put = |at: u64, word: u64| {
            image[at as usize..][..WORD].copy_from_slice(&word.to_le_bytes());
        };
        put(0, header.word());
        for (at, key, value) in slots {
            put(*at, *key);
            put(at + WORD as u64, *value);
        }
        image
    }

    /// Splits a segment without a free slot for a key. On an error nothing is changed.
    pub(super) fn split(
        &self,
        worker: &mut TableWorker,
        held: &LockedSegment<'_>,
    ) -> Result<(), IndexError> {
        let _for = worker.reshape();
        let LockedSegment {
            segment, header, ..
        } = *held;
        self.directory.may_split(&self.table_pool, header)?;
        let young = self.table_pool.allocate(worker, SEGMENT)?;
        let mut moved = Vec::new();
        let half = header.half(1);
        self.each_live(segment, |slot, key, value| {
            if half.owns(self.table_pool.hash(key)) {
                moved.push((slot.0 - segment.0, key, value));
            }
        });
        situation!("cceh.split_moves_some", !moved.is_empty());
        situation!("cceh.split_moves_nothing", moved.is_empty());
        let medium = self.table_pool.medium();
        medium.copy_in(&mut worker.ctx, young, &[&self.image(half, &moved)]);
        worker.commit(medium)?; // IX-EXT-1
        self.locks.mark_new(young);
        if fault!("cceh.depth_first") {
            set_header(&self.table_pool, worker, segment, header.half(0))?;
        }
        self.directory
            .publish(&self.table_pool, worker, header, young)?;
        set_header(&self.table_pool, worker, segment, header.half(0)) // IX-EXT-3
    }
}
