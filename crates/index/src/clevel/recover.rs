//! Recovery.

use farbank_pm::{Medium, Off, WORD, fault, situation};

use super::Clevel;
use super::layout::{
    CURSOR, EMPTY, LEVELS, Level, META, PAIR, TOP_BITS_MAX, bucket_in, level_root,
};
use crate::error::{IndexError, OpenError};
use crate::pool_heap::{HeapBlock, TableWorker};

impl<M: Medium> Clevel<M> {
    /// Resolves the bucket that was being emptied, and the last operations of the contexts. Reads a few buckets per
    /// context.
    pub(super) fn recover(&self) -> Result<(), OpenError> {
        self.check_levels()?;
        let mut worker = self.table_pool.worker()?;
        let moved = self.moved(&mut worker)?;
        for ctx in 0..self.table_pool.contexts() {
            for block in self.table_pool.in_doubt(ctx)? {
                if block.class == Some(PAIR) {
                    let hash = self
                        .table_pool
                        .hash(self.table_pool.medium().load(block.at));
                    self.flush_buckets(&mut worker, hash);
                }
            }
        }
        // Pairs are freed, and slots cleared, only after their replacements are durable.
        let medium = self.table_pool.medium();
        worker.commit(medium)?;
        for slot in moved {
            medium.store(&mut worker.ctx, slot, EMPTY);
            medium.flush(&mut worker.ctx, slot, WORD);
        }
        self.table_pool
            .recover(&mut worker, |block| Ok(self.is_live(block)))
    }

    /// Checks that the root's levels are valid.
    pub(super) fn check_levels(&self) -> Result<(), IndexError> {
        let meta = self.meta();
        if !(2..=LEVELS).contains(&meta.count) {
            return Err(IndexError::damaged(format!(
                "the root's word {META} is {meta:?}, expected 2 to {LEVELS} levels"
            )));
        }
        let (mut below, mut named): (Option<Level>, Vec<Off>) = (None, Vec::new());
        for n in meta.levels() {
            let level = self.level(n);
            let referrer = format!("level {n}, in the root's word {},", level_root(n));
            let bits = below.map_or(1..=TOP_BITS_MAX, |below| below.bits + 1..=below.bits + 1);
            if level.bits > TOP_BITS_MAX || !bits.contains(&level.bits) {
                return Err(IndexError::damaged(format!(
                    "{referrer} has 2^{} buckets, expected 2^{} to 2^{}",
                    level.bits,
                    bits.start(),
                    bits.end()
                )));
            }
            let bytes = self.level_bytes(level.bits);
            self.table_pool.check_run(&referrer, level.at, bytes)?;
            if named.contains(&level.at) {
                return Err(IndexError::damaged(format!(
                    "{referrer} has the run of another level"
                )));
            }
            below = Some(level);
            named.push(level.at);
        }
        Ok(())
    }

    /// Flushes the buckets of `hash` in every level.
    fn flush_buckets(&self, worker: &mut TableWorker, hash: u64) {
        for n in self.meta().levels() {
            let level = self.level(n);
            for bucket in self.buckets_of(level, hash) {
                self.flush_bucket(worker, level, bucket);
            }
        }
    }

    fn flush_bucket(&self, worker: &mut TableWorker, level: Level, bucket: u64) {
        let bytes = self.config.bucket_bytes();
        let at = level.at.plus(bucket * bytes);
        let medium = self.table_pool.medium();
        medium.flush(&mut worker.ctx, at, bytes as usize);
    }

    /// Returns the slots of the cursor's bucket that were already moved up. The caller clears them when the upper slots
    /// are durable (IX-CLEVEL-7).
    fn moved(&self, worker: &mut TableWorker) -> Result<Vec<Off>, OpenError> {
        let (medium, meta) = (self.table_pool.medium(), self.meta());
        if !meta.is_resizing() {
            return Ok(Vec::new());
        }
        let level = self.level(meta.bottom);
        let bucket = bucket_in(medium.load(self.table_pool.root(CURSOR)), meta.bottom);
        if bucket >= level.buckets() {
            return Err(OpenError::Damaged {
                what: format!(
                    "the cursor, in the root's word {CURSOR}, is at bucket {bucket} of {level:?}, which has fewer buckets"
                ),
            });
        }
        situation!("clevel.open_while_resizing");
        self.flush_bucket(worker, level, bucket);
        let words = self.slots(level, bucket).map(|s| (s, medium.load(s)));
        let taken: Vec<_> = words.filter(|(_, word)| *word != EMPTY).collect();
        let mut moved = Vec::new();
        for (slot, word) in taken {
            let hash = self.table_pool.hash(medium.load(self.pair_of(slot, word)?));
            let above = meta.levels().skip(1);
            if above.clone().any(|n| self.leads(self.level(n), hash, word)) {
                situation!("clevel.moved_twice_at_open");
                self.flush_buckets(worker, hash);
                moved.push(slot);
            }
        }
        Ok(moved)
    }

    /// Returns whether a slot of `hash` in `level` holds `word`.
    fn leads(&self, level: Level, hash: u64, word: u64) -> bool {
        let medium = self.table_pool.medium();
        self.slots_of(level, hash)
            .any(|slot| medium.load(slot) == word)
    }

    /// Returns whether the table refers to `block`.
    fn is_live(&self, block: HeapBlock) -> bool {
        let mut levels = self.meta().levels().map(|n| self.level(n));
        match block.class {
            None => levels.any(|level| level.at == block.at),
            Some(_) if fault!("clevel.free_last") => false,
            Some(_) => {
                let hash = self
                    .table_pool
                    .hash(self.table_pool.medium().load(block.at));
                let word = self.slot_word(block.at, hash);
                levels.any(|level| self.leads(level, hash, word))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use farbank_pm::sim::{Persistency, Sim};

    use super::*;
    use crate::clevel::ClevelConfig;
    use crate::clevel::layout::{LevelsWord, cursor};
    use crate::pool_heap::PoolPlan;

    #[test]
    fn a_cursor_behind_the_last_bucket_is_refused() {
        let plan = PoolPlan {
            chunk_bytes: 4 << 10,
            contexts: 1,
            ..PoolPlan::published()
        };
        let sim = Sim::new(1 << 20, Persistency::Eadr);
        let table = Clevel::create(sim.clone(), &plan, ClevelConfig::small()).unwrap();
        let mut worker = table.table_pool.worker().unwrap();
        let insert = |worker: &mut TableWorker, key| {
            let hash = table.table_pool.hash(key);
            table.insert_hashed(worker, hash, key, !key).unwrap();
        };
        for key in 1..=40 {
            insert(&mut worker, key);
        }
        // A third level, as after a crash while the bottom one is emptied.
        let before = table.meta();
        let top = table.level(before.levels().end - 1);
        table
            .make_level(&mut worker, before.levels().end, top.bits + 1)
            .unwrap();
        let count = before.count + 1;
        table
            .set_meta(&mut worker, LevelsWord { count, ..before })
            .unwrap();
        let meta = table.meta();
        assert!(meta.is_resizing());
        let (buckets, at) = (
            table.level(meta.bottom).buckets(),
            table.table_pool.root(CURSOR),
        );
        let open_at = |bucket| {
            let mut image = sim.visible();
            image.set_word(at, cursor(meta.bottom, bucket));
            Clevel::open(Sim::from_image(image, Persistency::Eadr))
        };
        assert!(open_at(buckets - 1).is_ok());
        for wrong in [buckets, buckets + 1] {
            let refused = open_at(wrong).map(drop);
            let is_damaged =
                matches!(&refused, Err(OpenError::Damaged { what }) if what.contains("cursor"));
            assert!(is_damaged, "bucket {wrong}: {refused:?}");
        }
    }
}
