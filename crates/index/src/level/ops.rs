//! Insert, get, update, remove.

use farbank_pm::model::Category;
use farbank_pm::sync::atomic::Ordering;
use farbank_pm::{Medium, Off, WORD, fault, situation};

use super::LevelHash;
use super::layout::{HashPair, Level, LevelSlot, Levels, PAIR_BYTES};
use crate::index::IndexError;
use crate::locks::LockGuard;
use crate::pool_heap::TableWorker;

/// All four buckets of a key, under the locks of its two stripes.
pub(super) struct LockedBuckets<'a> {
    levels: Levels,
    stripes: [Off; 2],
    _guards: [LockGuard<'a>; 2],
}

impl<M: Medium> LevelHash<M> {
    /// One line, one drain; three of each if a resident must be moved; what resizing takes is beside it.
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
        let _for = Category::KeyValue.spend();
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
            let value = found.map(|spot| self.ground.medium().load(spot.value()));
            if seen.0.unchanged()
                && seen.1.unchanged()
                && self.current.load(Ordering::Acquire) == levels.current
            {
                return Ok(value); // I4, I6
            }
        }
    }

    /// One line, one drain: the pair goes to a free slot of its bucket, and one store of the tokens switches; if there is
    /// none, the value is replaced where it is.
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
        let medium = self.ground.medium();
        match self.free_in(spot.bucket) {
            Some(free) => {
                situation!("level.update_moves");
                self.put_pair(worker, free, (key, value))?;
                let mut tokens = self.tokens(spot.bucket) & !self.config.token(spot.slot);
                if fault!("level.swap_in_two") {
                    worker.put_word(medium, spot.bucket, tokens)?;
                }
                tokens |= self.config.token(free.slot);
                worker.put_word(medium, spot.bucket, tokens)?; // I3
            }
            None => {
                situation!("level.update_in_place");
                worker.put_word(medium, spot.value(), value)?;
            }
        }
        Ok(Some(old))
    }

    /// One line, one drain.
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

    /// Has the CPU fetch what lookups of `keys` will read.
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
            self.ground.medium().prefetch(bucket, WORD);
        }
    }

    /// The locks of a key, as places: of each side, the buckets whose indices end in the same bits as its own, on all levels.
    #[inline]
    pub(super) fn stripes_of(&self, hashes: HashPair) -> [Off; 2] {
        let [first, second] = hashes;
        let mask = self.stripes - 1;
        [Off(first & mask), Off(self.stripes + (second & mask))]
    }

    /// Takes the locks of a key, the first side's first. While the table is being resized, waits for that.
    fn hold(
        &self,
        worker: &mut TableWorker,
        hashes: HashPair,
    ) -> Result<LockedBuckets<'_>, IndexError> {
        let [first, second] = self.stripes_of(hashes);
        self.prefetch(self.levels(), hashes); // taking a lock waits for all reads before it
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
            drop(self.growing.lock().expect("no holder panics"));
        }
    }

    /// Makes durable what a killed process left in the buckets of a stripe. Nothing in them leads anywhere.
    #[cold]
    pub(super) fn persist_on_first_access(
        &self,
        worker: &mut TableWorker,
        stripe: Off,
    ) -> Result<(), IndexError> {
        let medium = self.ground.medium();
        let (side, first) = (stripe.0 / self.stripes, stripe.0 % self.stripes);
        for level in self.levels().both() {
            for n in (first..level.half()).step_by(self.stripes as usize) {
                let bucket = self.config.bucket(level, side as usize, n);
                self.flush_bucket(worker, bucket);
            }
        }
        worker.commit(medium)
    }

    #[track_caller]
    pub(super) fn flush_bucket(&self, worker: &mut TableWorker, bucket: Off) {
        let bytes = self.config.bucket_bytes as usize;
        self.ground.medium().flush(&mut worker.ctx, bucket, bytes);
    }

    /// Where `key` is. Without its locks what is found is believed only if nothing has changed.
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

    /// The first free place of a bucket.
    pub(super) fn free_in(&self, bucket: Off) -> Option<LevelSlot> {
        let tokens = self.tokens(bucket);
        let mut spots = self.config.spots(bucket);
        spots.find(|spot| tokens & self.config.token(spot.slot) == 0)
    }

    /// A free place: of the top level if it has one, in the emptier bucket.
    fn vacancy(&self, buckets: [Off; 4]) -> Option<LevelSlot> {
        buckets.chunks(2).find_map(|level| {
            let free = level.iter().filter_map(|bucket| self.free_in(*bucket));
            free.min_by_key(|spot| spot.slot)
        })
    }

    /// Moves a resident of one of the key's full buckets to its other bucket of that level, or from the bottom level to the
    /// top; the place that makes. A resident whose other lock somebody has stays.
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

    /// Moves the pair at `from` to one of its buckets of a level, if there is a free place.
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

    /// Moves a pair. It is twice there in between, so its old place is noted for recovery.
    fn relocate(
        &self,
        worker: &mut TableWorker,
        from: LevelSlot,
        to: LevelSlot,
    ) -> Result<(), IndexError> {
        let _for = Category::Resize.spend();
        self.ground.note(worker, from.key().0)?; // I5
        self.fill(worker, to, self.pair(from))?;
        self.clear(worker, from);
        if from.is_one_line() {
            return Ok(()); // what is put there next is drained with this, in the order of the stores
        }
        self.persist_tokens(worker, from)
    }

    /// Stores a pair and makes it live, durably.
    #[track_caller]
    fn fill(
        &self,
        worker: &mut TableWorker,
        spot: LevelSlot,
        pair: (u64, u64),
    ) -> Result<(), IndexError> {
        let _for = Category::KeyValue.spend();
        let medium = self.ground.medium();
        let tokens = self.tokens(spot.bucket) | self.config.token(spot.slot);
        if fault!("level.token_first") {
            medium.store(&mut worker.ctx, spot.bucket, tokens);
        }
        self.put_pair(worker, spot, pair)?;
        worker.put_word(medium, spot.bucket, tokens)
    }

    /// Stores a pair where none is, so that it is durable if what is stored to the tokens next is (I2).
    pub(super) fn put_pair(
        &self,
        worker: &mut TableWorker,
        spot: LevelSlot,
        (key, value): (u64, u64),
    ) -> Result<(), IndexError> {
        let medium = self.ground.medium();
        medium.store(&mut worker.ctx, spot.key(), key);
        medium.store(&mut worker.ctx, spot.value(), value);
        if !spot.is_one_line() {
            medium.flush(&mut worker.ctx, spot.key(), PAIR_BYTES as usize);
            worker.commit(medium)?;
        }
        Ok(())
    }

    /// Makes a place free.
    pub(super) fn clear(&self, worker: &mut TableWorker, spot: LevelSlot) {
        let tokens = self.tokens(spot.bucket) & !self.config.token(spot.slot);
        self.ground
            .medium()
            .store(&mut worker.ctx, spot.bucket, tokens);
    }

    /// Makes durable which pairs of a place's bucket are live.
    #[track_caller]
    fn persist_tokens(&self, worker: &mut TableWorker, spot: LevelSlot) -> Result<(), IndexError> {
        let medium = self.ground.medium();
        medium.flush(&mut worker.ctx, spot.bucket, WORD);
        worker.commit(medium)
    }
}
