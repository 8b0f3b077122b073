//! Insert, get, update, remove.

use farbank_pm::model::Category;
use farbank_pm::{Medium, Off, WORD};

use super::DashEh;
use crate::dash::Place;
use crate::extendible::Held;
use crate::ground::Worker;
use crate::hash::hash;
use crate::index::Refused;

impl<M: Medium> DashEh<M> {
    /// Two lines, two drains; three more of each if a pair must make room. A split adds two segments and their entries
    /// of the directory, in three.
    pub(super) fn insert_hashed(
        &self,
        worker: &mut Worker,
        hash: u64,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, Refused> {
        let (dash, place) = (self.dash(), self.config.place(hash));
        loop {
            let held = self.hold(worker, hash, place);
            if let Some(spot) = dash.find(held.segment, place, key) {
                let at = dash.value_of(spot.bucket, spot.slot);
                return Ok(Some(self.ground.medium().load(at)));
            }
            if dash.insert(worker, held.segment, place, (key, value))? {
                return Ok(None);
            }
            self.split(worker, &held)?;
        }
    }

    pub(super) fn get_hashed(&self, worker: &mut Worker, hash: u64, key: u64) -> Option<u64> {
        let _for = Category::KeyValue.spend();
        let (dash, place) = (self.dash(), self.config.place(hash));
        loop {
            let segment = self.lookup(hash);
            let version = self.locks.begin(segment, || self.accept(worker, segment));
            if self.lookup(hash) != segment {
                continue; // split since we looked
            }
            let spot = dash.find(segment, place, key);
            let value = |spot| self.ground.medium().load(spot);
            let found = spot.map(|spot| value(dash.value_of(spot.bucket, spot.slot)));
            if self.locks.unchanged(segment, version) {
                return found;
            }
        }
    }

    /// One line, one drain.
    pub(super) fn update_hashed(
        &self,
        worker: &mut Worker,
        hash: u64,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, Refused> {
        let (dash, place) = (self.dash(), self.config.place(hash));
        let held = self.hold(worker, hash, place);
        match dash.find(held.segment, place, key) {
            Some(spot) => dash.update(worker, spot, value).map(Some),
            None => Ok(None),
        }
    }

    /// One line, one drain.
    pub(super) fn remove_hashed(
        &self,
        worker: &mut Worker,
        hash: u64,
        key: u64,
    ) -> Result<Option<u64>, Refused> {
        let (dash, place) = (self.dash(), self.config.place(hash));
        let held = self.hold(worker, hash, place);
        let Some(spot) = dash.find(held.segment, place, key) else {
            return Ok(None);
        };
        let at = dash.value_of(spot.bucket, spot.slot);
        let old = self.ground.medium().load(at);
        dash.remove(worker, held.segment, place, spot)?;
        Ok(Some(old))
    }

    /// Has the CPU fetch what lookups of `keys` will read: entries first, then locks and bits of both buckets.
    pub(super) fn fetch_hashed(&self, keys: &[u64]) {
        let (medium, directory) = (self.ground.medium(), self.directory.directory());
        for key in keys {
            medium.prefetch(directory.entry_of(hash(*key)), WORD);
        }
        for key in keys {
            let hash = hash(*key);
            let segment = self.lookup(hash);
            self.locks.prefetch(segment);
            self.dash().prefetch(segment, self.config.place(hash));
        }
    }

    /// Takes the lock of the segment `hash` leads to.
    fn hold(&self, worker: &mut Worker, hash: u64, place: Place) -> Held<'_> {
        let accept = |segment| self.accept(worker, segment);
        let held = self.directory.hold(&self.ground, &self.locks, hash, accept);
        self.touch_far_locks(worker, held.segment, place);
        held
    }

    /// Writes the locks of the paper, one a bucket.
    fn touch_far_locks(&self, worker: &mut Worker, segment: Off, place: Place) {
        if self.config.far_locks {
            let _for = Category::Lock.spend();
            let (home, next) = self.dash().pair_of(segment, place);
            self.dash().touch_far_lock(&mut worker.lane, home);
            self.dash().touch_far_lock(&mut worker.lane, next);
        }
    }
}
