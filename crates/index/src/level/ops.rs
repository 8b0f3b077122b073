//! Insert, get, update, remove.

use farbank_pm::model::Category;
use farbank_pm::sync::atomic::Ordering;
use farbank_pm::sync::unpoisoned;
use farbank_pm::{Medium, Off, WORD, fault, situation};

use super::LevelHash;
use super::layout::{HashPair, Level, LevelSlot, Levels, PAIR_BYTES};
use crate::error::IndexError;
use crate::locks::LockGuard;
use crate::pool_heap::TableWorker;

/// The locks of a key's two stripes, which cover all four of its buckets.
pub(super) struct LockedBuckets<'a> {
    levels: Levels,
    stripes: [Off; 2],
    _guards: [LockGuard<'a>; 2],
}

impl<M: Medium> LevelHash<M> {
    /// Inserts a key with one line and one drain, or three of each if a resident pair must be moved. A resize costs
    /// extra.
    pub(super) fn insert_hashed(
        &self,
        worker: &mut TableWorker,
        hashes: HashPair,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        loop {
            let held = self.hold(worker, hashes)?;
            let buckets = self.config.buckets(held.levels, hashes);
            if let Some(spot) = self.find(buckets, key) {
                return Ok(Some(self.pair(spot).1));
            }
            let free = match self.vacancy(buckets) {
                None => self.make_room(worker, &held, hashes)?,
                some => some,
            };
            if let Some(spot) = free {
                self.fill(worker, spot, (key, value))?;
                return Ok(None);
            }
            let seen = held.levels.current;
            drop(held);
            self.grow(worker, seen)?;
        }
    }

    pub(super) fn get_hashed(
        &self,
        worker: &mut TableWorker,
        hashes: HashPair,
        key: u64,
    ) -> Result<Option<u64>, IndexError> {
        let _for = Category::KeyValue.scope();
        let [first, second] = self.stripes_of(hashes);
        loop {
            let seen = (
                self.locks
                    .begin(first, || self.persist_on_first_access(worker, first))?,
                self.locks
                    .begin(second, || self.persist_on_first_access(worker, second))?,
            );
            let levels = self.levels();
            let found = self.find(self.config.buckets(levels, hashes), key);
            let value = found.map(|spot| self.table_pool.medium().load(spot.value()));
            if seen.0.unchanged()
                && seen.1.unchanged()
                && self.current.load(Ordering::Acquire) == levels.current
            {
                return Ok(value); // IX-LEVEL-4, IX-LEVEL-6
            }
        }
    }

    /// Updates a key with one line and one drain. The new pair goes to a free slot of the same bucket, and one store of
    /// the tokens switches. Without a free slot, the value is replaced in place.
    pub(super) fn update_hashed(
        &self,
        worker: &mut TableWorker,
        hashes: HashPair,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        let held = self.hold(worker, hashes)?;
        let Some(spot) = self.find(self.config.buckets(held.levels, hashes), key) else {
            return Ok(None);
        };
        let old = self.pair(spot).1;
        let medium = self.table_pool.medium();
        match self.free_in(spot.bucket) {
            Some(free) => {
                situation!("level.update_moves");
                self.put_pair(worker, free, (key, value))?;
                let mut tokens = self.tokens(spot.bucket) & !self.config.token(spot.slot);
                if fault!("level.swap_in_two") {
                    worker.put_word(medium, spot.bucket, tokens)?;
                }
                tokens |= self.config.token(free.slot);
                worker.put_word(medium, spot.bucket, tokens)?; // IX-LEVEL-3
            }
            None => {
                situation!("level.update_in_place");
                worker.put_word(medium, spot.value(), value)?;
            }
        }
        Ok(Some(old))
    }

    /// Removes a key with one line and one drain.
    pub(super) fn remove_hashed(
        &self,
        worker: &mut TableWorker,
        hashes: HashPair,
        key: u64,
    ) -> Result<Option<u64>, IndexError> {
        let held = self.hold(worker, hashes)?;
        let Some(spot) = self.find(self.config.buckets(held.levels, hashes), key) else {
            return Ok(None);
        };
        let old = self.pair(spot).1;
        self.clear(worker, spot);
        self.persist_tokens(worker, spot)?;
        Ok(Some(old))
    }

    /// Prefetches what lookups of `keys` will read.
    pub(super) fn fetch_hashed(&self, keys: &[u64]) {
        let levels = self.levels();
        for key in keys {
            let hashes = self.hashes(*key);
            for stripe in self.stripes_of(hashes) {
                self.locks.prefetch(stripe);
            }
            self.prefetch(levels, hashes);
        }
    }

    #[inline]
    fn prefetch(&self, levels: Levels, hashes: HashPair) {
        for bucket in self.config.buckets(levels, hashes) {
            self.table_pool.medium().prefetch(bucket, WORD);
        }
    }

    /// Returns the positions of a key's two locks in the lock table. A lock covers the buckets of a side whose indices
    /// end in the same bits, on all levels.
    #[inline]
    pub(super) fn stripes_of(&self, hashes: HashPair) -> [Off; 2] {
        let [first, second] = hashes;
        let mask = self.stripes - 1;
        [Off(first & mask), Off(self.stripes + (second & mask))]
    }

    /// Takes the locks of a key, the first side's lock first. Waits while the table is being resized.
    fn hold(
        &self,
        worker: &mut TableWorker,
        hashes: HashPair,
    ) -> Result<LockedBuckets<'_>, IndexError> {
        let [first, second] = self.stripes_of(hashes);
        self.prefetch(self.levels(), hashes); // before the locks: a locked instruction waits for earlier reads
        loop {
            let guards = [
                self.locks
                    .lock(first, || self.persist_on_first_access(worker, first))?,
                self.locks
                    .lock(second, || self.persist_on_first_access(worker, second))?,
            ];
            if !self.closed.load(Ordering::Acquire) {
                return Ok(LockedBuckets {
                    levels: self.levels(),
                    stripes: [first, second],
                    _guards: guards,
                });
            }
            drop(guards);
            drop(unpoisoned(self.growing.lock()));
        }
    }

    #[track_caller]
    pub(super) fn flush_bucket(&self, worker: &mut TableWorker, bucket: Off) {
        let bytes = self.config.bucket_bytes as usize;
        self.table_pool
            .medium()
            .flush(&mut worker.ctx, bucket, bytes);
    }

    /// Finds `key`. A caller without its locks must check afterwards that the versions have not changed.
    #[inline]
    pub(super) fn find(&self, buckets: [Off; 4], key: u64) -> Option<LevelSlot> {
        let mut all = 0_u64;
        for (n, bucket) in buckets.into_iter().enumerate() {
            all |= self.having(bucket, key) << (8 * n);
        }
        let first = u64::from(all.trailing_zeros());
        (all != 0).then(|| LevelSlot {
            bucket: buckets[first as usize / 8],
            slot: first % 8,
        })
    }

    /// Returns the first free slot of a bucket.
    pub(super) fn free_in(&self, bucket: Off) -> Option<LevelSlot> {
        let tokens = self.tokens(bucket);
        let mut spots = self.config.spots(bucket);
        spots.find(|spot| tokens & self.config.token(spot.slot) == 0)
    }

    /// Returns a free slot for a key, in the emptier bucket of the top level, or else of the bottom level.
    fn vacancy(&self, buckets: [Off; 4]) -> Option<LevelSlot> {
        buckets.chunks(2).find_map(|level| {
            let free = level.iter().filter_map(|bucket| self.free_in(*bucket));
            free.min_by_key(|spot| spot.slot)
        })
    }

    /// Moves a resident pair of one of the key's full buckets to its other bucket of that level, or from the bottom
    /// level to the top. Returns the freed slot. A pair whose other lock is taken does not move.
    fn make_room(
        &self,
        worker: &mut TableWorker,
        held: &LockedBuckets<'_>,
        hashes: HashPair,
    ) -> Result<Option<LevelSlot>, IndexError> {
        let Levels { top, bottom, .. } = held.levels;
        for (from, to) in [(top, top), (bottom, bottom), (bottom, top)] {
            let buckets = [0, 1].map(|side| self.config.bucket(from, side, hashes[side]));
            for spot in buckets.into_iter().flat_map(|b| self.config.spots(b)) {
                if self.try_move(worker, held, spot, to)? {
                    situation!("level.moved_on_top", from == top);
                    situation!("level.moved_at_bottom", to == bottom);
                    situation!("level.moved_up", from != to);
                    return Ok(Some(spot));
                }
            }
        }
        Ok(None)
    }

    /// Moves the pair at `from` to one of its buckets of `level`, if that has a free slot.
    fn try_move(
        &self,
        worker: &mut TableWorker,
        held: &LockedBuckets<'_>,
        from: LevelSlot,
        level: Level,
    ) -> Result<bool, IndexError> {
        let hashes = self.hashes(self.pair(from).0);
        for (side, stripe) in self.stripes_of(hashes).into_iter().enumerate() {
            let bucket = self.config.bucket(level, side, hashes[side]);
            if self.free_in(bucket).is_none() {
                continue;
            }
            let _guard = if held.stripes[side] == stripe {
                None
            } else {
                let guard = self
                    .locks
                    .try_lock(stripe, || self.persist_on_first_access(worker, stripe))?;
                if guard.is_none() {
                    continue;
                }
                guard
            };
            if let Some(to) = self.free_in(bucket) {
                situation!("level.moved_in_stripe", held.stripes[side] == stripe);
                situation!("level.moved_to_stripe", held.stripes[side] != stripe);
                self.relocate(worker, from, to)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Moves a pair. It exists twice for a moment, so its old place is noted for recovery.
    fn relocate(
        &self,
        worker: &mut TableWorker,
        from: LevelSlot,
        to: LevelSlot,
    ) -> Result<(), IndexError> {
        let _for = Category::Resize.scope();
        self.table_pool.set_note(worker, from.key().0)?; // IX-LEVEL-5
        self.fill(worker, to, self.pair(from))?;
        self.clear(worker, from);
        if from.is_one_line() {
            return Ok(()); // the next pair stored in this line is drained with this change, in store order
        }
        self.persist_tokens(worker, from)
    }

    /// Stores a pair and marks it live. Durable on `Ok`.
    #[track_caller]
    fn fill(
        &self,
        worker: &mut TableWorker,
        spot: LevelSlot,
        pair: (u64, u64),
    ) -> Result<(), IndexError> {
        let _for = Category::KeyValue.scope();
        let medium = self.table_pool.medium();
        let tokens = self.tokens(spot.bucket) | self.config.token(spot.slot);
        if fault!("level.token_first") {
            medium.store(&mut worker.ctx, spot.bucket, tokens);
        }
        self.put_pair(worker, spot, pair)?;
        worker.put_word(medium, spot.bucket, tokens)
    }

    /// Stores a pair in a free slot, so that it is durable before any later store to the tokens is (IX-LEVEL-2).
    pub(super) fn put_pair(
        &self,
        worker: &mut TableWorker,
        spot: LevelSlot,
        (key, value): (u64, u64),
    ) -> Result<(), IndexError> {
        let medium = self.table_pool.medium();
        medium.store(&mut worker.ctx, spot.key(), key);
        medium.store(&mut worker.ctx, spot.value(), value);
        if !spot.is_one_line() {
            medium.flush(&mut worker.ctx, spot.key(), PAIR_BYTES as usize);
            worker.commit(medium)?;
        }
        Ok(())
    }

    /// Marks a slot free.
    pub(super) fn clear(&self, worker: &mut TableWorker, spot: LevelSlot) {
        let tokens = self.tokens(spot.bucket) & !self.config.token(spot.slot);
        self.table_pool
            .medium()
            .store(&mut worker.ctx, spot.bucket, tokens);
    }

    /// Makes the tokens of a slot's bucket durable.
    #[track_caller]
    fn persist_tokens(&self, worker: &mut TableWorker, spot: LevelSlot) -> Result<(), IndexError> {
        let medium = self.table_pool.medium();
        medium.flush(&mut worker.ctx, spot.bucket, WORD);
        worker.commit(medium)
    }
}
