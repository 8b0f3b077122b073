//! After a crash; and the whole table looked through.

use std::collections::BTreeSet;

use farbank_pm::{Medium, Off, fault};

use super::LevelHash;
use super::layout::{BITS_MAX, Spot};
use crate::ground::{OpenError, Worker};

impl<M: Medium> LevelHash<M> {
    /// Ends moves that were cut short, and frees what is in doubt. Reads a few buckets a lane.
    pub(super) fn recover(&self) -> Result<(), OpenError> {
        self.check_levels()
            .map_err(|what| OpenError::Damaged { what })?;
        let mut worker = self.ground.worker()?;
        for lane in 0..self.ground.lanes() {
            let noted = Off(self.ground.noted(lane));
            let mut levels = self.levels().both().into_iter();
            // A note of a level that is gone says nothing, and neither does one that was ended.
            if let Some(from) = levels.find_map(|level| self.config.spot_at(level, noted)) {
                self.end_move(&mut worker, from)?;
            }
        }
        drop(worker);
        let levels = self.levels().both();
        self.ground
            .recover(|block| levels.iter().any(|level| level.at == block.at))
    }

    /// Clears a place whose pair is somewhere else, too (I5).
    fn end_move(&self, worker: &mut Worker, from: Spot) -> Result<(), OpenError> {
        let key = self.pair(from).0;
        let buckets = (self.config).buckets(self.levels(), self.config.hashes(key));
        // What a killed process left must be durable before the note is replaced: there, and wherever the pair went.
        for bucket in buckets {
            self.flush_bucket(worker, bucket);
        }
        worker.commit(self.ground.medium())?;
        let mut spots = buckets.into_iter().flat_map(|b| self.config.spots(b));
        let elsewhere =
            spots.any(|spot| spot != from && self.is_live(spot) && self.pair(spot).0 == key);
        if elsewhere && self.is_live(from) && !fault!("level.moved_stays") {
            self.clear(worker, from)?;
        }
        Ok(())
    }

    /// Whether the levels are ones the table makes.
    fn check_levels(&self) -> Result<(), String> {
        let levels = self.levels();
        let fits = levels.both().into_iter().all(|level| {
            let fits = || {
                let end = (level.at.0).checked_add(self.config.level_bytes(level.bits))?;
                Some(end <= self.ground.medium().len())
            };
            !level.at.is_null() && (1..=BITS_MAX).contains(&level.bits) && fits() == Some(true)
        });
        let sound = fits && levels.current > 0 && levels.top.bits == levels.bottom.bits + 1;
        if sound {
            Ok(())
        } else {
            Err(format!("the root names {levels:?}"))
        }
    }

    pub(super) fn check_all(&self) -> Result<(), String> {
        self.check_levels()?;
        let (mut keys, mut wrong) = (BTreeSet::new(), None);
        self.each_live(|level, side, spot| {
            let key = self.pair(spot).0;
            let home = self
                .config
                .bucket(level, side, self.config.hashes(key)[side]);
            if home != spot.bucket {
                wrong = Some(format!(
                    "key {key:#x} lies at {spot:?}, where it is not looked for"
                ));
            } else if !keys.insert(key) {
                wrong = Some(format!("key {key:#x} is there twice, once at {spot:?}"));
            }
        });
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        self.ground.check(|reach| {
            let levels = self.levels().both();
            levels.iter().for_each(|level| reach(level.at));
        })
    }
}
