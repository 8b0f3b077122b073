//! A larger level in the place of the bottom one.

use farbank_pm::sync::atomic::Ordering;
use farbank_pm::{Medium, Off, WORD, situation};

use super::LevelHash;
use super::layout::{BITS_MAX, CURRENT, Level, LevelSlot, Levels, RING, level_root};
use crate::index::IndexError;
use crate::pool_heap::{HeapBlock, OpenError, TableWorker};

/// Most slots of the bottom level for each of its pairs when a level is added.
const SLOTS_A_PAIR: u64 = 8;
/// Buckets that are written in one piece.
const TOGETHER: u64 = 64;

impl<M: Medium> LevelHash<M> {
    /// The two levels of a new table.
    pub(super) fn make_first(&self) -> Result<(), OpenError> {
        let mut worker = self.ground.worker()?;
        for n in 0..2 {
            let bits = self.config.top_bits - 1 + n;
            let level = self.make_level(&mut worker, bits)?;
            self.build(&mut worker, level, None);
            self.set_top(&mut worker, u64::from(n), level)?;
        }
        Ok(())
    }

    /// A run for a level, its bytes as they were left. It is in doubt until the root names it.
    fn make_level(&self, worker: &mut TableWorker, bits: u32) -> Result<Level, IndexError> {
        let bytes = self.config.level_bytes(bits);
        let at = self.ground.allocate_run(worker, bytes)?;
        Ok(Level { at, bits })
    }

    /// Makes `level`, number `n`, the top one: both words are in one line, stored in this order. Durable when it returns.
    fn set_top(&self, worker: &mut TableWorker, n: u64, level: Level) -> Result<(), IndexError> {
        let medium = self.ground.medium();
        let named = self.ground.root(level_root(n));
        medium.store(&mut worker.ctx, named, level.word());
        self.ground.set_root(worker, CURRENT, n)?;
        self.ring[(n % RING) as usize].store(level.word(), Ordering::Release);
        self.current.store(n, Ordering::Release);
        Ok(())
    }

    /// Makes room for a key that found none in the levels whose top is number `seen`. Nothing is changed on an error.
    pub(super) fn grow(&self, worker: &mut TableWorker, seen: u64) -> Result<(), IndexError> {
        let _for = worker.reshape();
        let _growing = self.growing.lock().expect("no holder panics");
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
        self.ground.free(worker, replaced?); // readers look at `current` again before they believe (I6)
        Ok(())
    }

    /// Whether the bottom level has so few pairs that only keys whose hashes are alike can need a level on the top. One that takes a
    /// chunk at most is always made.
    fn is_sparse(&self, Levels { top, bottom, .. }: Levels) -> bool {
        if self.config.level_bytes(top.bits + 1) <= self.ground.chunk_bytes() {
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

    /// Waits until nobody changes the table who may not have seen that it is closed.
    fn await_writers(&self, worker: &mut TableWorker) -> Result<(), IndexError> {
        for stripe in (0..2 * self.stripes).map(Off) {
            drop(
                self.locks
                    .lock(stripe, || self.persist_on_first_access(worker, stripe))?,
            );
        }
        Ok(())
    }

    /// Makes `interim` the top level; what was the bottom one, to be freed.
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
        let freed = self.ground.about_to_free(worker, levels.bottom.at)?; // its drain is I1's
        self.set_top(worker, levels.current + 1, interim)?;
        situation!("level.grown");
        Ok(freed)
    }

    /// Writes every bucket of `young`, with the pairs of `old`, drained with what comes next. A pair keeps its side: a
    /// bucket of `young` takes pairs of one bucket of `old`, and has room for all of them.
    fn build(&self, worker: &mut TableWorker, young: Level, old: Option<Level>) {
        let bytes = u64::from(self.config.bucket_bytes);
        // The buckets `n` of `old` leads to are `apart`.
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
                    self.ground.medium().copy_in(&mut worker.ctx, at, &[image]);
                }
            }
        }
    }

    /// Does what [`LevelHash::build`] does, pair by pair. A pair keeps its old token, so that nothing is lost if `young` is never
    /// named.
    fn rehash(&self, worker: &mut TableWorker, young: Level, old: Level) -> Result<(), IndexError> {
        let medium = self.ground.medium();
        self.build(worker, young, None);
        worker.commit(medium)?;
        let buckets = (0..2).flat_map(|side| (0..old.half()).map(move |n| (side, n)));
        for (side, n) in buckets {
            let left = self.config.bucket(old, side, n);
            for spot in self.config.spots(left).filter(|spot| self.is_live(*spot)) {
                let pair = self.pair(spot);
                let hash = self.hashes(pair.0)[side];
                let bucket = self.config.bucket(young, side, hash);
                // I7: there is, unless a pair is where its hash does not lead.
                let room = self.free_in(bucket);
                let to = room.ok_or_else(|| {
                    IndexError::damaged(format!(
                        "key {:#x} has no room after a resize: there is a pair in {left:?} that does not belong there",
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

    /// Adds a pair to the bytes of a bucket that has room for it.
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
