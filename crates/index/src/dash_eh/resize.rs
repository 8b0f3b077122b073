//! Splitting a segment.

use farbank_pm::{Medium, fault};

use super::DashEh;
use crate::dash::{Held, Keys, Table};
use crate::extendible::{Extendible, Header, SEGMENT, set_header};
use crate::ground::{OpenError, Worker};
use crate::index::Refused;

impl<M: Medium> DashEh<M> {
    /// The first directory, and a segment for each entry.
    pub(super) fn make_first(&self) -> Result<(), OpenError> {
        let (dash, medium) = (self.dash(), self.ground.medium());
        Extendible::make(
            &self.ground,
            self.config.depth,
            |worker, segment, header| {
                dash.make(&mut worker.lane, segment);
                medium.store(&mut worker.lane, segment, header.word());
                dash.flush(&mut worker.lane, segment);
            },
        )
    }

    /// Splits a segment that has no room for a key, under its lock. Nothing is changed on an error.
    pub(super) fn split(&self, worker: &mut Worker, held: &Held<'_>) -> Result<(), Refused> {
        let _for = worker.reshape();
        let (dash, medium, segment) = (self.dash(), self.ground.medium(), held.segment);
        let header = Header::serving(medium, segment, held.hash)?;
        self.directory.may_split(&self.ground, header)?;
        let [stay, moved] = [0, 1].map(|bit| header.half(bit));
        let hasher = self.ground.hasher();
        let place = &|hash| self.place(hash);
        let young = self.ground.allocate(worker, SEGMENT)?;
        dash.clear_words(&mut worker.lane, young);
        let owned = &|hash| moved.owns(hash);
        dash.copy_some(
            worker,
            (segment, young),
            &Keys {
                hasher,
                place,
                owned,
            },
        )?;
        medium.store(&mut worker.lane, young, moved.word());
        dash.flush(&mut worker.lane, young);
        worker.commit(medium)?; // D1
        self.locks.is_new(young);
        let owned = &|hash| stay.owns(hash);
        let own = Keys {
            hasher,
            place,
            owned,
        };
        if fault!("dash-eh.bits_first") {
            dash.keep_own(&mut worker.lane, segment, &own);
        }
        self.directory
            .publish(&self.ground, worker, header, young)?;
        dash.keep_own(&mut worker.lane, segment, &own); // I3
        set_header(&self.ground, worker, segment, stay)?; // D3
        dash.bring_home(worker, segment, &own)
    }
}
