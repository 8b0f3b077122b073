//! New segments, splits, and buckets chained to a stash.

use farbank_pm::simd::ones;
use farbank_pm::{Medium, Off, PersistCtx, situation};

use super::layout::HEAD;
use super::{DashSegments, KeyHashes, SegmentPlace};
use crate::error::IndexError;
use crate::pool_heap::TableWorker;

/// A pair to be moved to another bucket and slot.
struct PairMove {
    from: (Off, u32),
    to: (Off, u32),
    pair: (u64, u64),
    finger: u8,
    guest: bool,
}

impl<M: Medium> DashSegments<'_, M> {
    /// Initialises an empty segment over any earlier content. Nothing is flushed.
    pub(crate) fn make(&self, ctx: &mut PersistCtx, segment: Off) {
        self.clear_words(ctx, segment);
        for (bucket, _) in self.buckets(segment) {
            self.clear(ctx, bucket, None);
        }
    }

    /// Clears the first words of all buckets of a segment, except the word that leads to chained buckets. Stash and
    /// buckets then record no stashed keys.
    pub(crate) fn clear_words(&self, ctx: &mut PersistCtx, segment: Off) {
        let buckets = self.form.shape.buckets() + u64::from(self.form.shape.stash);
        for n in 0..buckets {
            let bucket = segment.plus(n * self.form.bucket_bytes);
            if self.form.chain.is_none() || bucket != self.last_stash(segment) {
                self.medium.store(ctx, bucket, 0);
            }
        }
    }

    /// Copies to `young` the pairs of `elder` whose hashes satisfy `keys.owned`. The words of `young` are clear, and no
    /// other thread reads it. Each pair keeps its bucket and slot; pairs of the stash go to their home or next bucket
    /// if it has a free slot. The copies are not flushed, except buckets chained to the stash: these are durable and
    /// stay if the split fails, for the next attempt.
    pub(crate) fn copy_some(
        &self,
        worker: &mut TableWorker,
        (elder, young): (Off, Off),
        keys: &KeyHashes<'_>,
    ) -> Result<(), IndexError> {
        // One prefetch of the whole segment, not one per bucket.
        self.medium
            .prefetch(elder, self.form.segment_bytes as usize);
        for n in 0..self.form.shape.buckets() {
            let (from, to) = (self.bucket(elder, n), self.bucket(young, n));
            self.clear(&mut worker.ctx, to, Some(from));
            let bits = self.bits(from);
            let (mask, pairs) = self.those(from, bits, |key| keys.own(key));
            for slot in ones(mask) {
                self.put(&mut worker.ctx, to, slot, pairs.pair(slot));
            }
            self.set_bits(&mut worker.ctx, to, bits.only(mask));
        }
        let owner = self.medium.load(young);
        for (n, to) in self.stashes(young).enumerate() {
            match n < self.form.shape.stash as usize {
                true => self.clear(&mut worker.ctx, to, None),
                false => self.clear_chained(&mut worker.ctx, to, owner),
            }
        }
        for from in self.stashes(elder) {
            let (mask, pairs) = self.those(from, self.bits(from), |key| keys.own(key));
            for pair in ones(mask).map(|slot| pairs.pair(slot)) {
                self.insert_copy(worker, young, keys.place(pair.0), pair)?;
            }
        }
        self.rebuild_overflow_words(&mut worker.ctx, young, keys);
        Ok(())
    }

    /// Copies a pair of another segment's stash to a segment that no other thread reads: into its home or next bucket,
    /// or into the stash.
    fn insert_copy(
        &self,
        worker: &mut TableWorker,
        segment: Off,
        place: SegmentPlace,
        pair: (u64, u64),
    ) -> Result<(), IndexError> {
        let stash = || {
            let free = |bucket| Some(((bucket, self.free_in(bucket)?), false));
            self.stashes(segment).find_map(free)
        };
        let near = self.room(segment, place, |_| 0);
        situation!("dash.copied_home", near.is_some());
        let ((bucket, slot), guest) = match (near.or_else(stash), self.form.chain) {
            (Some(free), _) => free,
            (None, Some(class)) => ((self.chain_one(worker, segment, class)?, 0), false),
            (None, None) => {
                unreachable!("the pairs of one stash fit into another of the same size")
            }
        };
        self.put(&mut worker.ctx, bucket, slot, pair);
        self.mark(&mut worker.ctx, bucket, slot, place.finger, guest);
        Ok(())
    }

    /// Moves pairs of the stash to their home or next buckets, as far as these have free slots, and rebuilds the words
    /// about the stash. Durable on `Ok`. Takes three drains: the pairs, the bits that mark them live, the bits that
    /// mark the old ones dead (IX-DASH-1, IX-DASH-2).
    pub(crate) fn move_stash_home(
        &self,
        worker: &mut TableWorker,
        segment: Off,
        keys: &KeyHashes<'_>,
    ) -> Result<(), IndexError> {
        self.fetch_heads(segment);
        let moves = self.moves_home(segment, keys);
        if !moves.is_empty() {
            situation!("dash.brought_home");
            let ctx = &mut worker.ctx;
            for PairMove { to, pair, .. } in &moves {
                self.put_apart(ctx, to.0, to.1, *pair);
            }
            worker.commit(self.medium)?;
            let ctx = &mut worker.ctx;
            for moved in &moves {
                let (bucket, slot) = moved.to;
                self.mark(ctx, bucket, slot, moved.finger, moved.guest);
                self.flush_bits(ctx, bucket);
            }
            worker.commit(self.medium)?;
            let ctx = &mut worker.ctx;
            for PairMove { from, .. } in &moves {
                self.set_bits(ctx, from.0, self.bits(from.0).without(1 << from.1));
                self.flush_bits(ctx, from.0);
            }
            worker.commit(self.medium)?;
        }
        self.rebuild_overflow_words(&mut worker.ctx, segment, keys);
        Ok(())
    }

    /// Prefetches the headers of all buckets: some processors drop a line from the cache when it is written back.
    fn fetch_heads(&self, segment: Off) {
        for (bucket, _) in self.buckets(segment) {
            self.medium.prefetch(bucket, HEAD as usize);
        }
    }

    /// Returns the possible moves of stash pairs to their home or next buckets.
    fn moves_home(&self, segment: Off, keys: &KeyHashes<'_>) -> Vec<PairMove> {
        let mut moves: Vec<PairMove> = Vec::new();
        for bucket in self.stashes(segment) {
            for slot in ones(self.bits(bucket).live()) {
                let pair = self.pair(bucket, slot);
                let place = keys.place(pair.0);
                let taken = |bucket| {
                    let there = moves.iter().filter(|other| other.to.0 == bucket);
                    there.fold(0, |mask, other| mask | 1 << other.to.1)
                };
                if let Some((to, guest)) = self.room(segment, place, taken) {
                    moves.push(PairMove {
                        from: (bucket, slot),
                        to,
                        pair,
                        finger: place.finger,
                        guest,
                    });
                }
            }
        }
        moves
    }

    /// Returns a free slot in a pair's home or next bucket that is not `taken`, and whether the pair is a guest there.
    fn room(
        &self,
        segment: Off,
        place: SegmentPlace,
        taken: impl Fn(Off) -> u64,
    ) -> Option<((Off, u32), bool)> {
        let (home, next) = self.pair_of(segment, place);
        let mut near = [(home, false), (next, true)].into_iter();
        near.find_map(|(bucket, guest)| {
            let slot = self.free_beside(bucket, taken(bucket))?;
            Some(((bucket, slot), guest))
        })
    }

    /// Flushes a segment and the buckets chained to its stash.
    pub(crate) fn flush(&self, ctx: &mut PersistCtx, segment: Off) {
        let bytes = self.form.segment_bytes as usize;
        self.medium.flush(ctx, segment, bytes);
        for bucket in self.chained(segment) {
            self.medium
                .flush(ctx, bucket, self.form.bucket_bytes as usize);
        }
    }

    /// Chains one more, empty bucket to the stash. Durable on `Ok`; nothing is changed on an error.
    pub(super) fn chain_one(
        &self,
        worker: &mut TableWorker,
        segment: Off,
        class: usize,
    ) -> Result<Off, IndexError> {
        let bucket = self.table_pool.allocate(worker, class)?;
        situation!("dash-lh.chained");
        let (last, owner) = (self.stashes(segment).last(), self.medium.load(segment));
        self.medium.store(&mut worker.ctx, bucket, 0);
        self.clear_chained(&mut worker.ctx, bucket, owner);
        self.medium.flush(&mut worker.ctx, bucket, HEAD as usize);
        worker.commit(self.medium)?; // IX-DASH-5
        let last = last.expect("a segment has a stash");
        worker.put_word(self.medium, last, bucket.0)?;
        Ok(bucket)
    }
}
