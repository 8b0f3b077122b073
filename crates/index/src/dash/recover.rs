//! Operations on whole segments: repair after an open, split, consistency check.

use std::collections::BTreeSet;

use farbank_pm::{LINE, Medium, Off, PersistCtx, fault, situation};

use super::layout::{BucketPairs, HEAD, OverflowWord, PairBits};
use super::{DashSegments, SegmentPlace};
use crate::error::IndexError;
use crate::hash::Hasher;
use crate::pool_heap::{HeapBlock, TableWorker};
use farbank_pm::simd::ones;

/// Functions of keys by their hashes, for one segment.
pub(crate) struct KeyHashes<'a> {
    pub(crate) hasher: Hasher,
    /// Returns the home bucket and the fingerprint of a hash.
    pub(crate) place: &'a dyn Fn(u64) -> SegmentPlace,
    /// Returns whether a hash belongs to this segment.
    pub(crate) owned: &'a dyn Fn(u64) -> bool,
}

impl KeyHashes<'_> {
    fn place(&self, key: u64) -> SegmentPlace {
        (self.place)(self.hasher.hash(key))
    }

    fn own(&self, key: u64) -> bool {
        (self.owned)(self.hasher.hash(key))
    }
}

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

    /// Checks that a segment's bits are valid, and that its chained buckets are allocated and name this segment (IX-DASH-6).
    #[cold]
    pub(crate) fn validate(&self, segment: Off) -> Result<(), IndexError> {
        if let Some(class) = self.form.chain {
            let owner = self.medium.load(segment);
            self.chain_of(segment, class, owner)?;
        }
        let room = (1 << self.form.shape.slots) - 1;
        for (bucket, _) in self.buckets(segment) {
            let bits = self.bits(bucket);
            if bits.live() & !room != 0 || bits.guests() & !bits.live() != 0 {
                return Err(IndexError::damaged(format!(
                    "the bits of bucket {bucket:?} in segment {segment:?} are {:#x}; expected live pairs within mask {room:#x}, and \
                     guests only among the live pairs",
                    bits.0
                )));
            }
        }
        Ok(())
    }

    /// Returns the buckets chained to the stash of a segment that is not validated yet. Checks that each is allocated
    /// and names `owner`.
    pub(crate) fn chain_of(
        &self,
        segment: Off,
        class: usize,
        owner: u64,
    ) -> Result<Vec<HeapBlock>, IndexError> {
        let first = Off(self.medium.load(self.last_stash(segment)));
        let referrer = "the stash of segment";
        let next = |at| Off(self.medium.load(at));
        self.table_pool.chain((referrer, segment), first, class, next, |block| {
            let says = self.owner(block.at);
            if says == owner && self.table_pool.is_block(block.at, class) {
                return Ok(());
            }
            Err(IndexError::damaged(format!(
                "{referrer} {segment:?} leads to {:?}, expected an allocated bucket of segment {owner:#x}, found owner {says:#x}",
                block.at
            )))
        })
    }

    /// Runs at the first access to a segment after an open: makes it durable, completes what a crash interrupted, then
    /// rebuilds the words about the stash.
    #[cold]
    pub(crate) fn persist_on_first_access(
        &self,
        worker: &mut TableWorker,
        segment: Off,
        keys: &KeyHashes<'_>,
    ) -> Result<(), IndexError> {
        self.flush(&mut worker.ctx, segment);
        worker.commit(self.medium)?;
        let mut mended = self.drop_foreign(&mut worker.ctx, segment, keys);
        situation!("dash.split_mended", mended);
        if !fault!("dash.no_mending") {
            for n in 0..self.form.shape.buckets() {
                let displaced = self.drop_displaced(&mut worker.ctx, segment, n);
                situation!("dash.displaced_twice", displaced);
                mended |= displaced;
            }
            let homed = self.drop_homed(&mut worker.ctx, segment, keys);
            situation!("dash.brought_home_twice", homed);
            mended |= homed;
        }
        if mended {
            worker.commit(self.medium)?;
        }
        self.rebuild_overflow_words(&mut worker.ctx, segment, keys);
        Ok(())
    }

    /// Marks dead the live pairs of a bucket whose keys satisfy `meant`, and flushes the bits. Returns whether there
    /// were any.
    fn drop_some(&self, ctx: &mut PersistCtx, bucket: Off, meant: impl Fn(u64) -> bool) -> bool {
        let bits = self.bits(bucket);
        let (dead, _) = self.those(bucket, bits, meant);
        if dead != 0 {
            self.set_bits(ctx, bucket, bits.without(dead));
            self.flush_bits(ctx, bucket);
        }
        dead != 0
    }

    /// Returns the mask of the live pairs whose keys satisfy `meant`, and all pairs of the bucket.
    fn those(
        &self,
        bucket: Off,
        bits: PairBits,
        meant: impl Fn(u64) -> bool,
    ) -> (u64, BucketPairs) {
        let pairs = self.pairs(bucket);
        let found = ones(bits.live()).filter(|slot| meant(pairs.pair(*slot).0));
        (found.fold(0, |mask, slot| mask | 1 << slot), pairs)
    }

    /// Marks dead, with a flush, the guests that are also in their home, bucket `n` (IX-DASH-2).
    fn drop_displaced(&self, ctx: &mut PersistCtx, segment: Off, n: u64) -> bool {
        let (home, next) = (self.bucket(segment, n), self.bucket(segment, n + 1));
        let residents = ones(self.bits(home).residents());
        let residents: BTreeSet<u64> = residents.map(|slot| self.pair(home, slot).0).collect();
        self.drop_some(ctx, next, |key| residents.contains(&key))
    }

    /// Marks dead, with a flush, the pairs of the stash that are also in their home or next bucket (IX-DASH-2).
    fn drop_homed(&self, ctx: &mut PersistCtx, segment: Off, keys: &KeyHashes<'_>) -> bool {
        let mut dropped = false;
        for bucket in self.stashes(segment) {
            let homed = |key| self.find_near(segment, keys.place(key), key).is_some();
            dropped |= self.drop_some(ctx, bucket, homed);
        }
        dropped
    }

    /// Rebuilds the buckets' words about the stash (IX-DASH-4).
    pub(crate) fn rebuild_overflow_words(
        &self,
        ctx: &mut PersistCtx,
        segment: Off,
        keys: &KeyHashes<'_>,
    ) {
        let homes = (0..self.form.shape.buckets()).map(|n| self.bucket(segment, n));
        for home in homes.filter(|home| self.overflow(*home) != OverflowWord::NONE) {
            self.medium.store(ctx, home, OverflowWord::NONE.0); // other lines stay clean
        }
        for (n, bucket) in (0..).zip(self.stashes(segment)) {
            for slot in ones(self.bits(bucket).live()) {
                let place = keys.place(self.pair(bucket, slot).0);
                self.note(ctx, segment, place, n);
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

    /// Marks dead, with a flush, the pairs whose keys do not belong to the segment. Returns whether there were any.
    pub(crate) fn drop_foreign(
        &self,
        ctx: &mut PersistCtx,
        segment: Off,
        keys: &KeyHashes<'_>,
    ) -> bool {
        let mut dropped = false;
        for (bucket, _) in self.buckets(segment) {
            dropped |= self.drop_some(ctx, bucket, |key| !keys.own(key));
        }
        dropped
    }

    /// Prefetches the whole home bucket, so that most searches wait for memory once, not for the fingerprints and then
    /// the pair. Prefetches the first line of the next bucket.
    #[inline]
    pub(crate) fn prefetch(&self, segment: Off, place: SegmentPlace) {
        let (home, next) = self.pair_of(segment, place);
        self.medium.prefetch(next, LINE);
        self.medium.prefetch(home, self.form.bucket_bytes as usize);
    }

    /// Prefetches the headers of the home and next buckets, all that an insert usually reads.
    #[inline]
    pub(crate) fn prefetch_heads(&self, segment: Off, place: SegmentPlace) {
        let (home, next) = self.pair_of(segment, place);
        self.medium.prefetch(home, HEAD as usize);
        self.medium.prefetch(next, HEAD as usize);
    }

    /// Checks an accessed segment: every key occurs once, and a search finds it.
    pub(crate) fn check(&self, segment: Off, keys: &KeyHashes<'_>) -> Result<(), IndexError> {
        let mut seen = BTreeSet::new();
        let mut wrong = None;
        self.each(segment, |spot, key, _| {
            if !seen.insert(key) {
                wrong = Some(format!("key {key:#x} is in {segment:?} twice"));
            } else if !keys.own(key) {
                wrong = Some(format!(
                    "key {key:#x} is live in {segment:?}, but belongs to another segment"
                ));
            } else if self.find(segment, keys.place(key), key) != Some(spot) {
                wrong = Some(format!(
                    "key {key:#x} lies at {spot:?}, where it is not looked for"
                ));
            }
        });
        for chained in self.chained(segment) {
            let (owner, word) = (self.owner(chained), self.medium.load(segment));
            if owner != word {
                wrong = Some(format!(
                    "bucket {chained:?}, chained to {segment:?}, has owner {owner:#x}, expected {word:#x}"
                ));
            }
        }
        wrong.map_or(Ok(()), |what| Err(IndexError::damaged(what)))
    }
}
