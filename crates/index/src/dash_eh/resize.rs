//! Splitting a segment.

use farbank_pm::{Medium, fault};

use super::DashEh;
use crate::extendible::{Extendible, Held, SEGMENT, set_header};
use crate::ground::{OpenError, Worker};
use crate::index::Refused;

impl<M: Medium> DashEh<M> {
    /// The first directory, and a segment for each entry.
    pub(super) fn make_first(&self) -> Result<(), OpenError> {
        let (dash, medium) = (self.dash(), self.ground.medium());
        let bytes = self.config.shape.segment_bytes() as usize;
        Extendible::make(
            &self.ground,
            self.config.depth,
            |worker, segment, header| {
                dash.make(&mut worker.lane, segment);
                medium.store(&mut worker.lane, segment, header.word());
                medium.flush(&mut worker.lane, segment, bytes);
            },
        )
    }

    /// Splits a segment that has no room for a key. Nothing is changed on an error.
    pub(super) fn split(&self, worker: &mut Worker, held: &Held<'_>) -> Result<(), Refused> {
        let _for = worker.reshape();
        let Held {
            segment, header, ..
        } = *held;
        let (dash, medium) = (self.dash(), self.ground.medium());
        let young = self.ground.allocate(worker, SEGMENT)?;
        let half = header.half(1);
        dash.clear_words(&mut worker.lane, young);
        self.with_keys(half, |keys| {
            dash.copy_some(&mut worker.lane, (segment, young), keys);
        });
        medium.store(&mut worker.lane, young, half.word());
        let bytes = self.config.shape.segment_bytes() as usize;
        medium.flush(&mut worker.lane, young, bytes);
        worker.commit(medium)?; // D1
        self.locks.is_new(young);
        self.with_keys(header.half(0), |keys| {
            if fault!("dash-eh.bits_first") {
                dash.keep_own(&mut worker.lane, segment, keys);
            }
            self.directory
                .publish(&self.ground, worker, header, young)?;
            dash.keep_own(&mut worker.lane, segment, keys); // I3
            set_header(&self.ground, worker, segment, header.half(0))?; // D3
            dash.tell_stash(&mut worker.lane, segment, keys);
            Ok(())
        })
    }
}
