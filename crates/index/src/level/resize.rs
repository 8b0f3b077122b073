//! Growth: a larger level replaces the bottom level.

use farbank_pm::sync::atomic::Ordering;
use farbank_pm::sync::unpoisoned;
use farbank_pm::{Medium, Off, WORD, situation};

use super::LevelHash;
use super::layout::{BITS_MAX, CURRENT, Level, LevelSlot, Levels, RING, level_root};
use crate::error::{IndexError, OpenError};
use crate::pool_heap::{HeapBlock, TableWorker};

/// If the bottom level has more slots than this per pair, no level is added.
const SLOTS_A_PAIR: u64 = 8;
/// Number of buckets written in one copy.
const TOGETHER: u64 = 64;

impl<M: Medium> LevelHash<M> {
    /// Creates the two levels of a new table.
    pub(super) fn make_first(&self) -> Result<(), OpenError> {
        let mut worker = self.table_pool.worker()?;
        for n in 0..2 {
            let bits = self.config.top_bits - 1 + n;
            let level = self.make_level(&mut worker, bits)?;
            self.build(&mut worker, level, None);
            self.set_top(&mut worker, u64::from(n), level)?;
        }
        Ok(())
    }

    /// Allocates a run for a level, with its old content. It is in doubt until the root names it.
    fn make_level(&self, worker: &mut TableWorker, bits: u32) -> Result<Level, IndexError> {
        let bytes = self.config.level_bytes(bits);
        let at = self.table_pool.allocate_run(worker, bytes)?;
        Ok(Level { at, bits })
    }

    /// Makes `level`, with number `n`, the top level. The two words share a line and are stored in this order. Durable
    /// on `Ok`.
    fn set_top(&self, worker: &mut TableWorker, n: u64, level: Level) -> Result<(), IndexError> {
        let medium = self.table_pool.medium();
        let named = self.table_pool.root(level_root(n));
        medium.store(&mut worker.ctx, named, level.word());
        self.table_pool.set_root(worker, CURRENT, n)?;
        self.ring[(n % RING) as usize].store(level.word(), Ordering::Release);
        self.current.store(n, Ordering::Release);
        Ok(())
    }

    /// Enlarges the table for a key without a free slot in the levels whose top has number `seen`. Nothing is changed
    /// on an error.
    pub(super) fn grow(&self, worker: &mut TableWorker, seen: u64) -> Result<(), IndexError> {
        let _for = worker.reshape();
        let _growing = unpoisoned(self.growing.lock());
        let levels = self.levels();
        if levels.current != seen {
            return Ok(());
        }
        let bits = levels.top.bits;
        if bits == BITS_MAX || self.is_sparse(levels) {
            return Err(IndexError::Crowded { bits });
        }
        let interim = self.make_level(worker, bits + 1)?;
        self.closed.store(true, Ordering::Release);
        let replaced = self.replace_bottom(worker, levels, interim);
        self.closed.store(false, Ordering::Release);
        self.table_pool.free(worker, replaced?); // readers check `current` again after reading (IX-LEVEL-6)
        Ok(())
    }

    /// Returns whether the bottom level has so few pairs that only keys with similar hashes can need another level. A
    /// new level of at most one chunk is always allowed.
    fn is_sparse(&self, Levels { top, bottom, .. }: Levels) -> bool {
        if self.config.level_bytes(top.bits + 1) <= self.table_pool.chunk_bytes() {
            return false;
        }
        let buckets = (0..2).flat_map(|side| (0..bottom.half()).map(move |n| (side, n)));
        let pairs = buckets.map(|(side, n)| {
            let tokens = self.tokens(self.config.bucket(bottom, side, n));
            u64::from(tokens.count_ones())
        });
        let slots = bottom.buckets() * u64::from(self.config.slots);
        pairs.sum::<u64>() * SLOTS_A_PAIR < slots
    }

    /// Waits for all writers that may not have seen that the table is closed.
    fn await_writers(&self, worker: &mut TableWorker) -> Result<(), IndexError> {
        for stripe in (0..2 * self.stripes).map(Off) {
            drop(
                self.locks
                    .lock(stripe, || self.persist_on_first_access(worker, stripe))?,
            );
        }
        Ok(())
    }

    /// Makes `interim` the top level. Returns the old bottom level, to be freed.
    fn replace_bottom(
        &self,
        worker: &mut TableWorker,
        levels: Levels,
        interim: Level,
    ) -> Result<HeapBlock, IndexError> {
        self.await_writers(worker)?;
        match self.config.one_by_one {
            true => self.rehash(worker, interim, levels.bottom)?,
            false => self.build(worker, interim, Some(levels.bottom)),
        }
        let freed = self.table_pool.about_to_free(worker, levels.bottom.at)?; // its drain also makes `interim` durable (IX-LEVEL-1)
        self.set_top(worker, levels.current + 1, interim)?;
        situation!("level.grown");
        Ok(freed)
    }

    /// Writes every bucket of `young`, with the pairs of `old`. They become durable with the next drain. A pair keeps
    /// its side: a bucket of `young` receives pairs of only one bucket of `old`, so it has enough slots.
    fn build(&self, worker: &mut TableWorker, young: Level, old: Option<Level>) {
        let bytes = u64::from(self.config.bucket_bytes);
        // Bucket `n` of `old` is distributed over buckets of `young` that are `apart` buckets apart.
        let apart = old.map_or(young.half(), Level::half);
        let together = apart.min(TOGETHER);
        let mut images =
            vec![vec![0; (together * bytes) as usize]; (young.half() / apart) as usize];
        for side in 0..2 {
            for from in (0..apart).step_by(together as usize) {
                images.iter_mut().for_each(|image| image.fill(0));
                for n in 0..together {
                    let Some(old) = old else { continue };
                    let bucket = self.config.bucket(old, side, from + n);
                    for spot in self.config.spots(bucket).filter(|s| self.is_live(*s)) {
                        let hash = self.hashes(self.pair(spot).0)[side];
                        let image = &mut images[(young.side_index(hash) / apart) as usize];
                        self.add(&mut image[(n * bytes) as usize..], self.pair(spot));
                    }
                }
                for (part, image) in (0..).zip(&images) {
                    let at = self.config.bucket(young, side, part * apart + from);
                    self.table_pool
                        .medium()
                        .copy_in(&mut worker.ctx, at, &[image]);
                }
            }
        }
    }

    /// Like [`LevelHash::build`], but pair by pair, with drains in between. A pair keeps its old token, so that nothing
    /// is lost if `young` is never named.
    fn rehash(&self, worker: &mut TableWorker, young: Level, old: Level) -> Result<(), IndexError> {
        let medium = self.table_pool.medium();
        self.build(worker, young, None);
        worker.commit(medium)?;
        let buckets = (0..2).flat_map(|side| (0..old.half()).map(move |n| (side, n)));
        for (side, n) in buckets {
            let left = self.config.bucket(old, side, n);
            for spot in self.config.spots(left).filter(|spot| self.is_live(*spot)) {
                let pair = self.pair(spot);
                let hash = self.hashes(pair.0)[side];
                let bucket = self.config.bucket(young, side, hash);
                // IX-LEVEL-7 guarantees a free slot, unless a damaged bucket holds a pair that does not belong there.
                let room = self.free_in(bucket);
                let to = room.ok_or_else(|| {
                    IndexError::damaged(format!(
                        "no free slot for key {:#x} after a resize: bucket {left:?} holds a pair that does not belong there",
                        pair.0
                    ))
                })?;
                self.put_pair(worker, to, pair)?;
                let tokens = self.tokens(bucket) | self.config.token(to.slot);
                worker.put_word(medium, bucket, tokens)?;
                worker.put_word(medium, left, self.tokens(left))?;
            }
        }
        Ok(())
    }

    /// Adds a pair to the image of a bucket that has a free slot.
    fn add(&self, bucket: &mut [u8], (key, value): (u64, u64)) {
        let tokens = u64::from_le_bytes(*bucket.first_chunk().expect("a bucket has tokens"));
        let slot = u64::from(tokens.count_ones());
        let spot = LevelSlot {
            bucket: Off(0),
            slot,
        };
        let mut put = |at: Off, word: u64| {
            bucket[at.0 as usize..][..WORD].copy_from_slice(&word.to_le_bytes());
        };
        put(spot.key(), key);
        put(spot.value(), value);
        put(spot.bucket, tokens | self.config.token(slot));
    }
}
