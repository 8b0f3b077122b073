//! What is done to a whole segment: mending it after an open, halving it, looking it through.

use std::collections::BTreeSet;

use farbank_pm::{LINE, Medium, Off, PersistCtx, fault, situation};

use super::bucket::{BucketPairs, HEAD, OverflowWord, PairBits};
use super::{DashSegments, SegmentPlace};
use crate::hash::Hasher;
use crate::index::IndexError;
use crate::pool_heap::{HeapBlock, TableWorker};
use farbank_pm::simd::ones;

/// What a table knows of keys, by their hashes.
pub(crate) struct KeyHashes<'a> {
    pub(crate) hasher: Hasher,
    /// Where a key's home in its segment is.
    pub(crate) place: &'a dyn Fn(u64) -> SegmentPlace,
    /// Whether a key is this segment's.
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

/// A pair that goes from a bucket and slot to another.
struct PairMove {
    from: (Off, u32),
    to: (Off, u32),
    pair: (u64, u64),
    finger: u8,
    guest: bool,
}

impl<M: Medium> DashSegments<'_, M> {
    /// Makes an empty segment of whatever bytes are there, not durable yet.
    pub(crate) fn make(&self, ctx: &mut PersistCtx, segment: Off) {
        self.clear_words(ctx, segment);
        for (bucket, _) in self.buckets(segment) {
            self.clear(ctx, bucket, None);
        }
    }

    /// Makes the words of a segment zero, whatever they were, but for the one that leads to what is chained, if something can
    /// be: none of its stash is used.
    pub(crate) fn clear_words(&self, ctx: &mut PersistCtx, segment: Off) {
        let buckets = self.form.shape.buckets() + u64::from(self.form.shape.stash);
        for n in 0..buckets {
            let bucket = segment.plus(n * self.form.bucket_bytes);
            if self.form.chain.is_none() || bucket != self.last_stash(segment) {
                self.medium.store(ctx, bucket, 0);
            }
        }
    }

    /// Whether a segment's bits are such as it writes, and so are those chained to it, each in use and its own (S6).
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
                    "the bits of bucket {bucket:?}, of segment {segment:?}, are {:#x}, which was expected to be live pairs among \
                     {room:#x}, and guests among those",
                    bits.0
                )));
            }
        }
        Ok(())
    }

    /// What is chained to the stash of a segment that was not looked at yet, if all of it says that it is `owner`'s.
    pub(crate) fn chain_of(
        &self,
        segment: Off,
        class: usize,
        owner: u64,
    ) -> Result<Vec<HeapBlock>, IndexError> {
        let first = Off(self.medium.load(self.last_stash(segment)));
        let who = "the stash of segment";
        let next = |at| Off(self.medium.load(at));
        self.ground.chain((who, segment), first, class, next, |block| {
            let says = self.owner(block.at);
            if says == owner && self.ground.is_block(block.at, class) {
                return Ok(());
            }
            Err(IndexError::damaged(format!(
                "{who} {segment:?} leads to {:?}, which was expected to be a bucket in use of segment {owner:#x}, and says {says:#x}",
                block.at
            )))
        })
    }

    /// What whoever first touches a segment after an open does: makes it durable as it is, then ends what a crash cut short,
    /// then says anew what is in the stash.
    #[cold]
    pub(crate) fn persist_on_first_access(
        &self,
        worker: &mut TableWorker,
        segment: Off,
        keys: &KeyHashes<'_>,
    ) -> Result<(), IndexError> {
        self.flush(&mut worker.ctx, segment);
        worker.commit(self.medium)?;
        let mut mended = self.keep_own(&mut worker.ctx, segment, keys);
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
        self.tell_stash(&mut worker.ctx, segment, keys);
        Ok(())
    }

    /// Makes dead, to be drained, the pairs of a bucket whose keys are meant.
    fn drop_some(&self, ctx: &mut PersistCtx, bucket: Off, meant: impl Fn(u64) -> bool) -> bool {
        let bits = self.bits(bucket);
        let (dead, _) = self.those(bucket, bits, meant);
        if dead != 0 {
            self.set_bits(ctx, bucket, bits.without(dead));
            self.flush_bits(ctx, bucket);
        }
        dead != 0
    }

    /// Which live pairs of a bucket have keys that are meant; and all its pairs.
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

    /// Makes dead, to be drained, the guests that are in their home, bucket `n`, too (S2).
    fn drop_displaced(&self, ctx: &mut PersistCtx, segment: Off, n: u64) -> bool {
        let (home, next) = (self.bucket(segment, n), self.bucket(segment, n + 1));
        let residents = ones(self.bits(home).residents());
        let residents: BTreeSet<u64> = residents.map(|slot| self.pair(home, slot).0).collect();
        self.drop_some(ctx, next, |key| residents.contains(&key))
    }

    /// Makes dead, to be drained, what is in the stash and where it belongs, too (S2).
    fn drop_homed(&self, ctx: &mut PersistCtx, segment: Off, keys: &KeyHashes<'_>) -> bool {
        let mut dropped = false;
        for bucket in self.stashes(segment) {
            let homed = |key| self.find_near(segment, keys.place(key), key).is_some();
            dropped |= self.drop_some(ctx, bucket, homed);
        }
        dropped
    }

    /// Says in the buckets' words what is in the stash, anew (S4).
    pub(crate) fn tell_stash(&self, ctx: &mut PersistCtx, segment: Off, keys: &KeyHashes<'_>) {
        let homes = (0..self.form.shape.buckets()).map(|n| self.bucket(segment, n));
        for home in homes.filter(|home| self.overflow(*home) != OverflowWord::NONE) {
            self.medium.store(ctx, home, OverflowWord::NONE.0); // else its line need not be written
        }
        for (n, bucket) in (0..).zip(self.stashes(segment)) {
            for slot in ones(self.bits(bucket).live()) {
                let place = keys.place(self.pair(bucket, slot).0);
                self.note(ctx, segment, place, n);
            }
        }
    }

    /// Writes to `young`, whose words are clear and which nobody sees, the pairs of `elder` whose keys are meant: each where it was, and
    /// those of the stash where they belong if that has room now. Not durable yet, but for what is chained to the stash: that
    /// stays, whatever comes of it, for whoever tries again.
    pub(crate) fn copy_some(
        &self,
        worker: &mut TableWorker,
        (elder, young): (Off, Off),
        keys: &KeyHashes<'_>,
    ) -> Result<(), IndexError> {
        // Asked for at once, rather than bucket by bucket.
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
                self.settle(worker, young, keys.place(pair.0), pair)?;
            }
        }
        self.tell_stash(&mut worker.ctx, young, keys);
        Ok(())
    }

    /// Writes a pair of another's stash to a segment that nobody sees: where it belongs, or to its stash.
    fn settle(
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
            (None, None) => unreachable!("what was in one stash fits into another"),
        };
        self.put(&mut worker.ctx, bucket, slot, pair);
        self.mark(&mut worker.ctx, bucket, slot, place.finger, guest);
        Ok(())
    }

    /// Moves pairs of the stash where they belong, as far as there is room, and says anew what stays. Durable on `Ok`: a drain
    /// for the pairs, one that makes them live, one that makes them dead where they were (S1, S2).
    pub(crate) fn bring_home(
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
        self.tell_stash(&mut worker.ctx, segment, keys);
        Ok(())
    }

    /// Has the CPU fetch what all buckets have before their pairs: some processors forget a line that they write back.
    fn fetch_heads(&self, segment: Off) {
        for (bucket, _) in self.buckets(segment) {
            self.medium.prefetch(bucket, HEAD as usize);
        }
    }

    /// Which pairs of the stash can go where they belong.
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

    /// A place for a pair where it belongs that is not `taken`, and whether it is a guest there.
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

    /// Has all of a segment, with what is chained to its stash, made durable by the next drain.
    pub(crate) fn flush(&self, ctx: &mut PersistCtx, segment: Off) {
        let bytes = self.form.segment_bytes as usize;
        self.medium.flush(ctx, segment, bytes);
        for bucket in self.chained(segment) {
            self.medium
                .flush(ctx, bucket, self.form.bucket_bytes as usize);
        }
    }

    /// Chains one more bucket, empty, to the stash. Durable on `Ok`; nothing is changed on an error.
    pub(super) fn chain_one(
        &self,
        worker: &mut TableWorker,
        segment: Off,
        class: usize,
    ) -> Result<Off, IndexError> {
        let bucket = self.ground.allocate(worker, class)?;
        situation!("dash-lh.chained");
        let (last, owner) = (self.stashes(segment).last(), self.medium.load(segment));
        self.medium.store(&mut worker.ctx, bucket, 0);
        self.clear_chained(&mut worker.ctx, bucket, owner);
        self.medium.flush(&mut worker.ctx, bucket, HEAD as usize);
        worker.commit(self.medium)?; // S5
        let last = last.expect("a segment has a stash");
        worker.put_word(self.medium, last, bucket.0)?;
        Ok(bucket)
    }

    /// Makes dead, to be drained, the pairs whose keys are not a segment's; whether there were any.
    pub(crate) fn keep_own(
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

    /// Has the CPU fetch the home of a place whole, so that most searches wait for memory once, not for fingerprints and then
    /// for the pair; and of the next bucket what says whether it is needed.
    #[inline]
    pub(crate) fn prefetch(&self, segment: Off, place: SegmentPlace) {
        let (home, next) = self.pair_of(segment, place);
        self.medium.prefetch(next, LINE);
        self.medium.prefetch(home, self.form.bucket_bytes as usize);
    }

    /// Has the CPU fetch of two buckets what says which pairs they have: an insert reads no more, as a rule.
    #[inline]
    pub(crate) fn prefetch_heads(&self, segment: Off, place: SegmentPlace) {
        let (home, next) = self.pair_of(segment, place);
        self.medium.prefetch(home, HEAD as usize);
        self.medium.prefetch(next, HEAD as usize);
    }

    /// Whether a segment that was touched is sound: each key once, and found.
    pub(crate) fn check(&self, segment: Off, keys: &KeyHashes<'_>) -> Result<(), IndexError> {
        let mut seen = BTreeSet::new();
        let mut wrong = None;
        self.each(segment, |spot, key, _| {
            if !seen.insert(key) {
                wrong = Some(format!("key {key:#x} is in {segment:?} twice"));
            } else if !keys.own(key) {
                wrong = Some(format!("key {key:#x} is not of {segment:?}, and live"));
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
                    "{chained:?}, chained to {segment:?}, says {owner:#x}, not {word:#x}"
                ));
            }
        }
        wrong.map_or(Ok(()), |what| Err(IndexError::damaged(what)))
    }
}
