//! Search, insert, update and removal of a pair in a segment.

use farbank_pm::model::Category;
use farbank_pm::simd::ones;
use farbank_pm::{LINE, Medium, Off, PersistCtx, situation};

use super::layout::{BucketHeader, HEAD, OverflowWord};
use super::{DashSegments, InsertOutcome, PairSlot, SegmentPlace};
use crate::error::IndexError;
use crate::pool_heap::TableWorker;

impl<M: Medium> DashSegments<'_, M> {
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

    /// Finds `key`. Reads the fingerprint lines of two buckets, and of the stash only if their words require it.
    #[inline]
    pub(crate) fn find(&self, segment: Off, place: SegmentPlace, key: u64) -> Option<PairSlot> {
        let (home, next) = self.pair_of(segment, place);
        let heads = (self.head(home), self.head(next));
        let near = self.find_among((home, next), heads, place.finger, key);
        if near.is_some() {
            return near;
        }
        let (own, lent) = (heads.0.overflow, heads.1.overflow);
        if !own.may_have(place.finger, false) && !lent.has(place.finger, true) {
            return None; // no stash bucket is read
        }
        self.find_in_stash(segment, (own, lent), place.finger, key)
    }

    /// Finds `key` in its home or the next bucket.
    #[inline]
    pub(super) fn find_near(
        &self,
        segment: Off,
        place: SegmentPlace,
        key: u64,
    ) -> Option<PairSlot> {
        let (home, next) = self.pair_of(segment, place);
        let heads = (self.head(home), self.head(next));
        self.find_among((home, next), heads, place.finger, key)
    }

    /// Finds `key` among the residents of the first bucket and the guests of the second. One loop over both avoids a
    /// branch on which bucket holds it.
    #[inline]
    fn find_among(
        &self,
        buckets: (Off, Off),
        heads: (BucketHeader, BucketHeader),
        finger: u8,
        key: u64,
    ) -> Option<PairSlot> {
        const SECOND: u32 = 32;
        let residents = heads.0.alike(finger) & heads.0.bits.residents();
        let guests = heads.1.alike(finger) & heads.1.bits.guests();
        let mut alike = residents | guests << SECOND;
        while alike != 0 {
            let n = alike.trailing_zeros();
            alike &= alike - 1;
            let bucket = if n < SECOND { buckets.0 } else { buckets.1 };
            let (slot, stash) = (n % SECOND, None);
            if self.has_key(bucket, slot, key) {
                return Some(PairSlot {
                    bucket,
                    slot,
                    stash,
                });
            }
        }
        None
    }

    /// Finds `key` in the stash buckets that the words of its two buckets name for it.
    fn find_in_stash(
        &self,
        segment: Off,
        (own, lent): (OverflowWord, OverflowWord),
        finger: u8,
        key: u64,
    ) -> Option<PairSlot> {
        let all = own.count() > 0;
        (0..)
            .zip(self.stashes(segment))
            .filter(|(n, _)| all || own.names(finger, false, *n) || lent.names(finger, true, *n))
            .find_map(|(n, bucket)| {
                let head = self.head(bucket);
                let mut slots = ones(head.alike(finger) & head.bits.live());
                let slot = slots.find(|slot| self.has_key(bucket, *slot, key))?;
                let stash = Some(n);
                Some(PairSlot {
                    bucket,
                    slot,
                    stash,
                })
            })
    }

    /// Inserts a pair whose key is absent. Costs two flushes and two drains, or one each if the pair shares the line of
    /// its bits. A displacement adds up to three of each.
    pub(crate) fn insert(
        &self,
        worker: &mut TableWorker,
        segment: Off,
        place: SegmentPlace,
        pair: (u64, u64),
    ) -> Result<InsertOutcome, IndexError> {
        let (home, next) = self.pair_of(segment, place);
        let full = |bucket| self.bits(bucket).live().count_ones();
        let guest = full(next) < full(home);
        let bucket = if guest { next } else { home };
        let mut free = self.free_in(bucket).map(|slot| (bucket, slot, guest));
        if free.is_none() {
            free = self.displace(worker, segment, place)?;
        }
        if let Some((bucket, slot, guest)) = free {
            situation!("dash.resident", !guest);
            situation!("dash.guest", guest);
            self.write(worker, (bucket, slot), pair, place.finger, guest)?;
            return Ok(InsertOutcome::There);
        }
        self.insert_in_stash(worker, segment, place, pair)
    }

    /// Inserts a pair into the stash, if it has a free slot or may grow.
    fn insert_in_stash(
        &self,
        worker: &mut TableWorker,
        segment: Off,
        place: SegmentPlace,
        pair: (u64, u64),
    ) -> Result<InsertOutcome, IndexError> {
        let room = |(n, bucket)| Some((n, bucket, self.free_in(bucket)?));
        let stashes = || (0..).zip(self.stashes(segment));
        // As in the paper, odd homes start with the second stash bucket.
        let (fixed, skipped) = (self.form.shape.stash as usize, (place.bucket & 1) as usize);
        let found = stashes().take(fixed).skip(skipped);
        let found = found.chain(stashes().take(skipped));
        let found = found.chain(stashes().skip(fixed));
        let ((n, bucket, slot), added) = match (found.filter_map(room).next(), self.form.chain) {
            (Some(found), _) => (found, InsertOutcome::There),
            (None, None) => {
                situation!("dash.full");
                return Ok(InsertOutcome::Full);
            }
            (None, Some(class)) => {
                let n = stashes().count() as u64;
                let bucket = self.chain_one(worker, segment, class)?;
                ((n, bucket, 0), InsertOutcome::Chained)
            }
        };
        situation!("dash.first_stash", n == 0);
        situation!("dash.other_stash", n > 0);
        self.write(worker, (bucket, slot), pair, place.finger, false)?;
        self.note(&mut worker.ctx, segment, place, n);
        Ok(added)
    }

    /// Displaces a pair of one of two full buckets into its other bucket. Returns the freed slot, and whether a new
    /// pair in it is a guest.
    fn displace(
        &self,
        worker: &mut TableWorker,
        segment: Off,
        place: SegmentPlace,
    ) -> Result<Option<(Off, u32, bool)>, IndexError> {
        let (home, next) = self.pair_of(segment, place);
        let after = self.bucket(segment, place.bucket + 2);
        let before = self.bucket(segment, place.bucket.wrapping_sub(1));
        for (from, to, to_next) in [(next, after, true), (home, before, false)] {
            let bits = self.bits(from);
            let movable = if to_next {
                bits.residents()
            } else {
                bits.guests()
            };
            let (Some(slot), Some(free)) = (ones(movable).next(), self.free_in(to)) else {
                continue;
            };
            let (pair, finger) = (self.pair(from, slot), self.finger(from, slot));
            self.write(worker, (to, free), pair, finger, to_next)?; // IX-DASH-2
            self.take_away(worker, from, slot)?;
            situation!("dash.resident_displaced", to_next);
            situation!("dash.guest_displaced", !to_next);
            return Ok(Some((from, slot, to_next)));
        }
        Ok(None)
    }

    /// Writes a pair and marks it live. Durable on `Ok`.
    fn write(
        &self,
        worker: &mut TableWorker,
        (bucket, slot): (Off, u32),
        pair: (u64, u64),
        finger: u8,
        guest: bool,
    ) -> Result<(), IndexError> {
        let _for = Category::KeyValue.scope();
        if self.is_apart(bucket, slot) {
            situation!("dash.pair_apart");
            self.put_apart(&mut worker.ctx, bucket, slot, pair);
            worker.commit(self.medium)?; // IX-DASH-1
        } else {
            situation!("dash.pair_beside_bits");
            self.put(&mut worker.ctx, bucket, slot, pair);
        }
        self.mark(&mut worker.ctx, bucket, slot, finger, guest);
        self.flush_bits(&mut worker.ctx, bucket);
        worker.commit(self.medium)
    }

    /// Marks a pair dead. Durable on `Ok`.
    fn take_away(
        &self,
        worker: &mut TableWorker,
        bucket: Off,
        slot: u32,
    ) -> Result<(), IndexError> {
        let _for = Category::KeyValue.scope();
        let bits = self.bits(bucket).without(1 << slot);
        self.set_bits(&mut worker.ctx, bucket, bits);
        self.flush_bits(&mut worker.ctx, bucket);
        worker.commit(self.medium)
    }

    /// Removes a pair: one flush, one drain.
    pub(crate) fn remove(
        &self,
        worker: &mut TableWorker,
        segment: Off,
        place: SegmentPlace,
        spot: PairSlot,
    ) -> Result<(), IndexError> {
        self.take_away(worker, spot.bucket, spot.slot)?;
        if let Some(stash) = spot.stash {
            self.unnote(&mut worker.ctx, segment, place, stash);
        }
        Ok(())
    }

    /// Replaces a pair's value: one flush, one drain. Returns the old value.
    pub(crate) fn update(
        &self,
        worker: &mut TableWorker,
        spot: PairSlot,
        value: u64,
    ) -> Result<u64, IndexError> {
        let _for = Category::KeyValue.scope();
        let old = self.value(spot);
        worker.put_word(self.medium, self.value_at(spot), value)?;
        Ok(old)
    }

    #[inline]
    pub(super) fn overflow(&self, bucket: Off) -> OverflowWord {
        OverflowWord(self.medium.load(bucket))
    }

    /// Records in a bucket's word that a key with this place is in the stash (IX-DASH-4).
    pub(super) fn note(&self, ctx: &mut PersistCtx, segment: Off, place: SegmentPlace, stash: u64) {
        let (home, next) = self.pair_of(segment, place);
        let (own, lent) = (self.overflow(home), self.overflow(next));
        if let Some(own) = own.with(place.finger, false, stash) {
            situation!("dash.stashed_of_home");
            self.medium.store(ctx, home, own.0);
        } else if let Some(lent) = lent.with(place.finger, true, stash) {
            situation!("dash.stashed_of_next");
            self.medium.store(ctx, next, lent.0);
        } else {
            situation!("dash.stashed_counted");
            self.medium.store(ctx, home, own.counting(1).0);
        }
    }

    /// Undoes [`DashSegments::note`]. Of two keys with equal home, fingerprint and stash bucket it may remove the
    /// other's entry; the remaining entry is identical.
    fn unnote(&self, ctx: &mut PersistCtx, segment: Off, place: SegmentPlace, stash: u64) {
        let (home, next) = self.pair_of(segment, place);
        let (own, lent) = (self.overflow(home), self.overflow(next));
        if let Some(own) = own.without(place.finger, false, stash) {
            self.medium.store(ctx, home, own.0);
        } else if let Some(lent) = lent.without(place.finger, true, stash) {
            situation!("dash.unstashed_of_next");
            self.medium.store(ctx, next, lent.0);
        } else {
            situation!("dash.unstashed_counted");
            self.medium.store(ctx, home, own.counting(-1).0);
        }
    }
}
