//! At the first touch after an open; and the whole table looked through. Splits that were cut short are the directory's to
//! end.

use farbank_pm::{Medium, Off};

use super::DashEh;
use crate::ground::Worker;

impl<M: Medium> DashEh<M> {
    /// Makes a segment durable as a killed process left it, and mends it.
    #[cold]
    pub(super) fn accept(&self, worker: &mut Worker, segment: Off) {
        self.with_keys(self.header(segment), |keys| {
            self.dash().accept(worker, &self.ground, segment, keys);
        });
    }

    pub(super) fn check_all(&self) -> Result<(), String> {
        self.directory.check(&self.ground, |segment| {
            let mut refused = None;
            self.locks.begin(segment, || match self.ground.worker() {
                Ok(mut worker) => self.accept(&mut worker, segment),
                Err(why) => refused = Some(why.to_string()),
            });
            refused.map_or(Ok(()), Err)?;
            self.with_keys(self.header(segment), |keys| {
                self.dash().check(segment, keys)
            })
        })
    }
}
