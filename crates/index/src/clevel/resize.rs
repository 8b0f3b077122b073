//! Growth: a level is added on top, and the bottom level is emptied.

use farbank_pm::sync::atomic::Ordering;
use farbank_pm::sync::unpoisoned;
use farbank_pm::{Medium, Off, situation};

use super::Clevel;
use super::layout::{
    CURSOR, EMPTY, LEVELS, Level, LevelsWord, META, TOP_BITS_MAX, bucket_in, cursor, level_root,
};
use crate::error::{IndexError, OpenError};
use crate::pool_heap::TableWorker;

/// A new level with more slots than this per key of the table is not added.
const SLOTS_A_KEY: u64 = 16;

impl<M: Medium> Clevel<M> {
    /// Creates the two levels of a new table.
    pub(super) fn make_first(&self) -> Result<(), OpenError> {
        let mut worker = self.table_pool.worker()?;
        for n in 0..2 {
            let bits = self.config.top_bits - 1 + n;
            self.make_level(&mut worker, u64::from(n), bits)?;
        }
        let meta = LevelsWord {
            bottom: 0,
            count: 2,
        };
        Ok(self.set_meta(&mut worker, meta)?)
    }

    /// Creates an empty, durable level with number `n`. The root's word for it is in the line of `META` and is stored
    /// before `META` counts the level (IX-CLEVEL-1).
    pub(super) fn make_level(
        &self,
        worker: &mut TableWorker,
        n: u64,
        bits: u32,
    ) -> Result<(), IndexError> {
        let (medium, bytes) = (self.table_pool.medium(), self.level_bytes(bits));
        let at = self.table_pool.allocate_run(worker, bytes)?;
        self.table_pool.clear(&mut worker.ctx, at, bytes);
        worker.commit(medium)?;
        let word = Level { at, bits }.word();
        let named = self.table_pool.root(level_root(n));
        medium.store(&mut worker.ctx, named, word);
        self.levels[(n % LEVELS) as usize].store(word, Ordering::Release);
        Ok(())
    }

    pub(super) fn set_meta(
        &self,
        worker: &mut TableWorker,
        meta: LevelsWord,
    ) -> Result<(), IndexError> {
        self.table_pool.set_root(worker, META, meta.word())?;
        self.meta.store(meta.word(), Ordering::Release);
        Ok(())
    }

    /// Enlarges the table for a key without a free slot in the levels of `seen`: adds a level twice as large as the top
    /// one, and empties the bottom level. Nothing is changed on an error.
    pub(super) fn grow(
        &self,
        worker: &mut TableWorker,
        seen: LevelsWord,
    ) -> Result<(), IndexError> {
        let _for = worker.reshape();
        let _growing = unpoisoned(self.growing.lock());
        let meta = self.meta();
        if meta != seen {
            return Ok(());
        }
        if self.empty_bottoms(worker)? && meta.is_resizing() {
            situation!("clevel.resize_ended");
            return Ok(()); // an interrupted resize is now complete
        }
        let meta = self.meta();
        let top = self.level(meta.levels().end - 1);
        if meta.count == LEVELS || top.bits == TOP_BITS_MAX || self.is_sparse(top)? {
            return Err(IndexError::Crowded { bits: top.bits });
        }
        self.make_level(worker, meta.levels().end, top.bits + 1)?;
        let count = meta.count + 1;
        self.set_meta(worker, LevelsWord { count, ..meta })?;
        situation!("clevel.level_added");
        self.empty_bottoms(worker)?;
        Ok(())
    }

    /// Returns whether a level above `top` would have so many slots that only keys with similar hashes can need it. A
    /// new level of at most one chunk is always allowed.
    fn is_sparse(&self, top: Level) -> Result<bool, IndexError> {
        let bits = top.bits + 1;
        if self.level_bytes(bits) <= self.table_pool.chunk_bytes() {
            return Ok(false);
        }
        let (mut keys, slots) = (0, u64::from(self.config.slots) << bits);
        self.each_taken(|_, _, _| {
            keys += 1;
            Ok(())
        })?;
        Ok(keys * SLOTS_A_KEY < slots)
    }

    /// Empties bottom levels until two levels are left. Returns `false` if the slots above did not suffice. The next
    /// insert without a free slot then adds a level and continues.
    fn empty_bottoms(&self, worker: &mut TableWorker) -> Result<bool, IndexError> {
        while self.meta().is_resizing() {
            if !self.empty_bottom(worker)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits for all writers that may have seen an older `META` (IX-CLEVEL-5).
    fn await_writers(&self) -> Result<(), IndexError> {
        for stripe in 0..self.stripes {
            drop(self.locks.lock_without_validation(Off(stripe))?);
        }
        Ok(())
    }

    /// Moves the slots of the bottom level up, and drops the level. Returns whether there were enough free slots.
    fn empty_bottom(&self, worker: &mut TableWorker) -> Result<bool, IndexError> {
        self.await_writers()?;
        let meta = self.meta();
        let level = self.level(meta.bottom);
        let word = self.table_pool.medium().load(self.table_pool.root(CURSOR));
        let start = bucket_in(word, meta.bottom);
        for bucket in start..level.buckets() {
            let word = cursor(meta.bottom, bucket);
            self.table_pool.set_root(worker, CURSOR, word)?; // IX-CLEVEL-7
            for slot in self.slots(level, bucket) {
                if !self.move_up(worker, slot)? {
                    return Ok(false);
                }
            }
        }
        let freed = self.table_pool.about_to_free(worker, level.at)?;
        self.set_meta(
            worker,
            LevelsWord {
                bottom: meta.bottom + 1,
                count: meta.count - 1,
            },
        )?;
        situation!("clevel.bottom_dropped");
        self.await_writers()?;
        self.table_pool.free(worker, freed); // readers check `META` again after reading (IX-CLEVEL-6)
        Ok(true)
    }

    /// Moves one slot of the bottom level up. Returns whether there was a free slot.
    fn move_up(&self, worker: &mut TableWorker, slot: Off) -> Result<bool, IndexError> {
        let medium = self.table_pool.medium();
        loop {
            let word = medium.load(slot);
            if word == EMPTY {
                return Ok(true);
            }
            // The pair may be freed and reused for another key until the key's lock is held.
            let pair = self.pair_of(slot, word)?;
            let hash = self.table_pool.hash(medium.load(pair));
            let _guard = self.hold(hash)?;
            let settled = medium.load(slot) == word;
            if !settled || self.table_pool.hash(medium.load(pair)) != hash {
                continue;
            }
            if !self.link(worker, hash, pair)? {
                return Ok(false);
            }
            self.replace(worker, slot, EMPTY)?; // IX-CLEVEL-7
            situation!("clevel.moved_up");
            return Ok(true);
        }
    }
}
