//! Recovery: by the open, and at the first access to a stripe.

use farbank_pm::{Medium, Off, fault, situation};

use super::LevelHash;
use super::layout::{BITS_MAX, LevelSlot, Levels, level_root};
use crate::error::{IndexError, OpenError};
use crate::pool_heap::TableWorker;

impl<M: Medium> LevelHash<M> {
    /// Completes interrupted moves, and frees runs in doubt. Reads a few buckets per context.
    pub(super) fn recover(&self) -> Result<(), OpenError> {
        self.check_levels()?;
        let mut worker = self.table_pool.worker()?;
        for ctx in 0..self.table_pool.contexts() {
            let noted = Off(self.table_pool.note_of(ctx));
            let mut levels = self.levels().both().into_iter();
            // A note that points into a freed level is ignored. A note of a completed move has no effect.
            if let Some(from) = levels.find_map(|level| self.config.spot_at(level, noted)) {
                self.end_move(&mut worker, from)?;
            }
        }
        let levels = self.levels().both();
        self.table_pool.recover(&mut worker, |block| {
            Ok(levels.iter().any(|level| level.at == block.at))
        })
    }

    /// Clears a noted slot if its pair exists elsewhere, too (IX-LEVEL-5).
    fn end_move(&self, worker: &mut TableWorker, from: LevelSlot) -> Result<(), OpenError> {
        let key = self.pair(from).0;
        let hashes = self.hashes(key);
        let buckets = self.config.buckets(self.levels(), hashes);
        // What a killed process left, in this bucket and in the pair's other buckets, must be durable before the note
        // is replaced.
        for bucket in buckets {
            self.flush_bucket(worker, bucket);
        }
        worker.commit(self.table_pool.medium())?;
        let mut spots = buckets.into_iter().flat_map(|b| self.config.spots(b));
        let elsewhere =
            spots.any(|spot| spot != from && self.is_live(spot) && self.pair(spot).0 == key);
        let is_live = self.is_live(from);
        situation!("level.move_had_ended", !is_live);
        situation!("level.move_not_begun", !elsewhere && is_live);
        if elsewhere && is_live && !fault!("level.moved_stays") {
            situation!("level.move_ended");
            self.clear(worker, from);
            for stripe in self.stripes_of(hashes) {
                self.persist_on_first_access(worker, stripe)?; // like the first access
            }
        }
        Ok(())
    }

    /// Checks that the root's levels are valid.
    pub(super) fn check_levels(&self) -> Result<(), IndexError> {
        let levels @ Levels {
            current,
            top,
            bottom,
        } = self.levels();
        let bits = (1..BITS_MAX).contains(&bottom.bits) && top.bits == bottom.bits + 1;
        if current == 0 || !bits || top.at == bottom.at {
            return Err(IndexError::damaged(format!(
                "the root names {levels:?}; expected two levels, the top one with twice the buckets, at most 2^{BITS_MAX}"
            )));
        }
        for (n, level) in [(current, top), (current - 1, bottom)] {
            let referrer = format!("level {n}, in the root's word {},", level_root(n));
            let bytes = self.config.level_bytes(level.bits);
            self.table_pool.check_run(&referrer, level.at, bytes)?;
        }
        Ok(())
    }

    /// Makes durable what a killed process left in the buckets of a stripe. The buckets hold no references, so nothing
    /// needs validation.
    #[cold]
    pub(super) fn persist_on_first_access(
        &self,
        worker: &mut TableWorker,
        stripe: Off,
    ) -> Result<(), IndexError> {
        let medium = self.table_pool.medium();
        let (side, first) = (stripe.0 / self.stripes, stripe.0 % self.stripes);
        for level in self.levels().both() {
            for n in (first..level.half()).step_by(self.stripes as usize) {
                let bucket = self.config.bucket(level, side as usize, n);
                self.flush_bucket(worker, bucket);
            }
        }
        worker.commit(medium)
    }
}
