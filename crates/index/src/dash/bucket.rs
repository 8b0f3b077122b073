//! The bytes of a bucket.

use farbank_pm::model::Category;
use farbank_pm::simd::bytes_equal;
use farbank_pm::{LINE, Medium, Off, PersistCtx, WORD};

use super::{DashSegments, PairSlot, SegmentPlace};
use crate::pool_heap::TableWorker;
use farbank_pm::simd::ones;

/// Where a bucket's bits are.
const BITS: u64 = 8;
const FINGERS: u64 = 16;
/// Bytes before its pairs.
pub(super) const HEAD: u64 = 32;
/// Bytes of a pair.
pub(super) const PAIR: u64 = 16;

/// Which pairs of a bucket are live, and which of those are guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PairBits(pub(crate) u64);

impl PairBits {
    const GUESTS: u32 = PAIRS as u32;
    const OWNER: u32 = 2 * PairBits::GUESTS;
    const ALL: u64 = (1 << PAIRS) - 1;
    /// Where published code keeps its lock.
    const LOCK: u64 = 1 << 63;

    pub(crate) fn live(self) -> u64 {
        self.0 & PairBits::ALL
    }

    pub(super) fn guests(self) -> u64 {
        self.0 >> PairBits::GUESTS & PairBits::ALL
    }

    pub(super) fn residents(self) -> u64 {
        self.live() & !self.guests()
    }

    fn with(self, slot: u32, guest: bool) -> PairBits {
        PairBits(self.0 | 1 << slot | u64::from(guest) << (slot + PairBits::GUESTS))
    }

    /// Those of an empty chained bucket.
    fn chained(owner: u64) -> PairBits {
        PairBits(owner << PairBits::OWNER)
    }

    pub(super) fn owner(self) -> u64 {
        self.0 >> PairBits::OWNER
    }

    /// Those without the pairs of a mask.
    pub(crate) fn without(self, slots: u64) -> PairBits {
        PairBits(self.0 & !(slots | slots << PairBits::GUESTS))
    }

    /// Those of the pairs of a mask.
    pub(crate) fn only(self, slots: u64) -> PairBits {
        self.without(PairBits::ALL & !slots)
    }
}

/// Most pairs of a bucket.
const PAIRS: usize = 14;

/// The pairs of a bucket, live or not, as they were when it was read.
pub(super) struct BucketPairs([u64; 2 * PAIRS]);

impl BucketPairs {
    /// The pair in a slot.
    #[inline]
    pub(super) fn pair(&self, slot: u32) -> (u64, u64) {
        let word = 2 * slot as usize;
        (self.0[word], self.0[word + 1])
    }
}

/// What comes before a bucket's pairs.
#[derive(Clone, Copy)]
pub(super) struct BucketHeader {
    pub(super) overflow: OverflowWord,
    pub(super) bits: PairBits,
    fingers: [u64; 2],
}

impl BucketHeader {
    /// Which slots have this fingerprint, a bit each.
    #[inline]
    pub(super) fn alike(self, finger: u8) -> u64 {
        bytes_equal(self.fingers, finger)
    }
}

impl<M: Medium> DashSegments<'_, M> {
    #[inline]
    pub(crate) fn bits(&self, bucket: Off) -> PairBits {
        PairBits(self.medium.load(bucket.plus(BITS)) & !PairBits::LOCK)
    }

    #[inline]
    fn slot(&self, bucket: Off, slot: u32) -> Off {
        bucket.plus(self.form.pairs_at + u64::from(slot) * PAIR)
    }

    #[inline]
    pub(super) fn pair(&self, bucket: Off, slot: u32) -> (u64, u64) {
        let [key, value] = self.medium.load_words(self.slot(bucket, slot), 1);
        (key, value)
    }

    /// All pairs of a bucket, read at once.
    #[inline]
    pub(super) fn pairs(&self, bucket: Off) -> BucketPairs {
        let first = self.slot(bucket, 0);
        if self.form.shape.slots as usize == PAIRS {
            return BucketPairs(self.medium.load_words(first, 1));
        }
        let mut pairs = BucketPairs([0; 2 * PAIRS]);
        for (n, word) in (pairs.0.iter_mut().enumerate()).take(2 * self.form.shape.slots as usize) {
            *word = self.medium.load(first.plus((n * WORD) as u64));
        }
        pairs
    }

    /// Where a pair's value is.
    fn value_of(pair: Off) -> Off {
        pair.plus(WORD as u64)
    }

    /// Where the value at a spot is.
    #[inline]
    pub(super) fn value_at(&self, spot: PairSlot) -> Off {
        Self::value_of(self.slot(spot.bucket, spot.slot))
    }

    /// The value at a spot.
    #[inline]
    pub(super) fn value(&self, spot: PairSlot) -> u64 {
        self.medium.load(self.value_at(spot))
    }

    /// All of a bucket but its pairs.
    #[inline]
    pub(super) fn head(&self, bucket: Off) -> BucketHeader {
        let [overflow, bits, first, second] = self.medium.load_words(bucket, 1);
        BucketHeader {
            overflow: OverflowWord(overflow),
            bits: PairBits(bits & !PairBits::LOCK),
            fingers: [first, second],
        }
    }

    /// Whether the pair in a slot has `key`.
    #[inline]
    pub(super) fn has_key(&self, bucket: Off, slot: u32, key: u64) -> bool {
        self.key(bucket, slot) == key
    }

    /// The key of the pair in a slot.
    #[inline]
    pub(super) fn key(&self, bucket: Off, slot: u32) -> u64 {
        self.medium.load(self.slot(bucket, slot))
    }

    /// A pair that is not live.
    pub(super) fn free_in(&self, bucket: Off) -> Option<u32> {
        self.free_beside(bucket, 0)
    }

    /// A pair that is not live, nor one of a mask.
    pub(super) fn free_beside(&self, bucket: Off, taken: u64) -> Option<u32> {
        let slot = (!(self.bits(bucket).live() | taken)).trailing_zeros();
        (slot < self.form.shape.slots).then_some(slot)
    }

    pub(super) fn finger(&self, bucket: Off, slot: u32) -> u8 {
        let at = bucket.plus(FINGERS + u64::from(slot / 8) * WORD as u64);
        (self.medium.load(at) >> (slot % 8 * 8)) as u8
    }

    /// Stores a pair that is not live.
    pub(super) fn put(&self, ctx: &mut PersistCtx, bucket: Off, slot: u32, pair: (u64, u64)) {
        let at = self.slot(bucket, slot);
        self.medium.store(ctx, at, pair.0);
        self.medium.store(ctx, Self::value_of(at), pair.1);
    }

    /// Whether the pair in a slot becomes durable by itself, not with its bits (S1).
    #[inline]
    pub(super) fn is_apart(&self, bucket: Off, slot: u32) -> bool {
        self.form.as_published || self.slot(bucket, slot).0 >= bucket.0 + LINE as u64
    }

    /// Writes a pair that is not live, for the next drain to make durable. Nothing of its line was looked at.
    #[track_caller]
    pub(super) fn put_apart(&self, ctx: &mut PersistCtx, bucket: Off, slot: u32, pair: (u64, u64)) {
        let at = self.slot(bucket, slot);
        self.medium.copy_in_pair(ctx, at, pair.into());
    }

    /// Makes a pair live.
    pub(super) fn mark(
        &self,
        ctx: &mut PersistCtx,
        bucket: Off,
        slot: u32,
        finger: u8,
        guest: bool,
    ) {
        let at = bucket.plus(FINGERS + u64::from(slot / 8) * WORD as u64);
        let shift = slot % 8 * 8;
        let others = self.medium.load(at) & !(0xff << shift);
        self.medium
            .store(ctx, at, others | u64::from(finger) << shift);
        self.set_bits(ctx, bucket, self.bits(bucket).with(slot, guest)); // S1
    }

    pub(crate) fn set_bits(&self, ctx: &mut PersistCtx, bucket: Off, bits: PairBits) {
        self.medium.store(ctx, bucket.plus(BITS), bits.0);
    }

    /// Has a bucket's bits and fingerprints, which are in one line, made durable by the next drain.
    #[inline]
    #[track_caller]
    pub(super) fn flush_bits(&self, ctx: &mut PersistCtx, bucket: Off) {
        self.medium.flush(ctx, bucket.plus(BITS), 3 * WORD);
    }

    /// Makes all a bucket's pairs dead; its fingerprints become those of `like`.
    pub(crate) fn clear(&self, ctx: &mut PersistCtx, bucket: Off, like: Option<Off>) {
        self.clear_to(ctx, bucket, PairBits(0), like);
    }

    /// Makes all a chained bucket's pairs dead. Whose it is it says all the while: it may be linked already.
    pub(super) fn clear_chained(&self, ctx: &mut PersistCtx, bucket: Off, owner: u64) {
        self.clear_to(ctx, bucket, PairBits::chained(owner), None);
    }

    fn clear_to(&self, ctx: &mut PersistCtx, bucket: Off, bits: PairBits, like: Option<Off>) {
        self.set_bits(ctx, bucket, bits);
        for at in [FINGERS, FINGERS + WORD as u64] {
            let fingers = like.map_or(0, |like| self.medium.load(like.plus(at)));
            self.medium.store(ctx, bucket.plus(at), fingers);
        }
    }

    /// Stores the locks of the published code, one a bucket, if this is arranged as published. No reader looks at them.
    #[inline]
    pub(super) fn lock_far(&self, worker: &mut TableWorker, segment: Off, place: SegmentPlace) {
        self.store_far_locks(worker, segment, place, PairBits::LOCK);
    }

    /// Stores that they are free, after the drain of what they guard: the lines are dirty once more.
    #[inline]
    pub(super) fn unlock_far(&self, worker: &mut TableWorker, segment: Off, place: SegmentPlace) {
        self.store_far_locks(worker, segment, place, 0);
    }

    #[inline]
    fn store_far_locks(
        &self,
        worker: &mut TableWorker,
        segment: Off,
        place: SegmentPlace,
        lock: u64,
    ) {
        if !self.form.as_published {
            return;
        }
        let _for = Category::Lock.spend();
        let (home, next) = self.pair_of(segment, place);
        for bucket in [home, next] {
            let bits = self.bits(bucket);
            self.set_bits(&mut worker.ctx, bucket, PairBits(bits.0 | lock));
        }
    }
}

/// A bucket's word: what of its keys is in the stash.
///
/// ```text
///   0         32             36              44              48       64
///   │ 4 fingers │ which are set │ stash of each │ guests of it │ count │
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OverflowWord(pub(super) u64);

impl OverflowWord {
    /// That nothing is.
    pub(super) const NONE: OverflowWord = OverflowWord(0);
    const ENTRIES: u32 = 4;
    const SET: u32 = 32;
    const STASH: u32 = 36;
    const GUEST: u32 = 44;
    const COUNT: u32 = 48;
    const COUNT_MAX: u64 = u64::MAX >> OverflowWord::COUNT;
    /// The stash that stands for all after it, too.
    const LAST: u64 = 3;

    /// How many keys no entry is about; the most it can say stays, and means many.
    pub(super) fn count(self) -> u64 {
        self.0 >> OverflowWord::COUNT
    }

    fn bit(self, from: u32, n: u32) -> bool {
        self.0 >> (from + n) & 1 == 1
    }

    fn stash(self, n: u32) -> u64 {
        self.0 >> (OverflowWord::STASH + 2 * n) & 3
    }

    /// The entries for a fingerprint whose home is the bucket, or, being `guest`, the one before.
    #[inline]
    fn entries(self, finger: u8, guest: bool) -> u64 {
        let guests = self.0 >> OverflowWord::GUEST;
        let whose = if guest { guests } else { !guests };
        let all = (1 << OverflowWord::ENTRIES) - 1;
        bytes_equal([self.0, 0], finger) & self.0 >> OverflowWord::SET & whose & all
    }

    /// Whether there is an entry for a fingerprint.
    #[inline]
    pub(super) fn has(self, finger: u8, guest: bool) -> bool {
        self.entries(finger, guest) != 0
    }

    /// Whether the stash may have a key of a fingerprint: an entry says so, or there are more than entries.
    #[inline]
    pub(super) fn may_have(self, finger: u8, guest: bool) -> bool {
        self.count() > 0 || self.has(finger, guest)
    }

    /// Whether an entry for a fingerprint names bucket `stash` of the stash.
    #[inline]
    pub(super) fn names(self, finger: u8, guest: bool, stash: u64) -> bool {
        ones(self.entries(finger, guest)).any(|n| self.stash(n) == stash.min(OverflowWord::LAST))
    }

    /// With one entry more, if there is room.
    pub(super) fn with(self, finger: u8, guest: bool, stash: u64) -> Option<OverflowWord> {
        let n = (0..OverflowWord::ENTRIES).find(|n| !self.bit(OverflowWord::SET, *n))?;
        let free = self.0 & !(0xff << (8 * n) | 3 << (OverflowWord::STASH + 2 * n));
        Some(OverflowWord(
            free & !(1 << (OverflowWord::GUEST + n))
                | u64::from(finger) << (8 * n)
                | 1 << (OverflowWord::SET + n)
                | stash.min(OverflowWord::LAST) << (OverflowWord::STASH + 2 * n)
                | u64::from(guest) << (OverflowWord::GUEST + n),
        ))
    }

    /// Without one of its entries like this, if there is one.
    pub(super) fn without(self, finger: u8, guest: bool, stash: u64) -> Option<OverflowWord> {
        let n = ones(self.entries(finger, guest))
            .find(|n| self.stash(*n) == stash.min(OverflowWord::LAST))?;
        Some(OverflowWord(self.0 & !(1 << (OverflowWord::SET + n))))
    }

    pub(super) fn counting(self, by: i64) -> OverflowWord {
        if self.count() == OverflowWord::COUNT_MAX {
            return self;
        }
        OverflowWord(self.0.wrapping_add_signed(by << OverflowWord::COUNT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_taken_back_one_by_one() {
        let mut word = OverflowWord(0);
        for (stash, guest) in [(0, false), (1, true), (1, false), (3, true)] {
            word = word.with(7, guest, stash).unwrap();
        }
        assert_eq!(word.with(9, false, 0), None, "four are all");
        let named = |word: OverflowWord, finger, guest| {
            let stashes = (0..5).filter(move |stash| word.names(finger, guest, *stash));
            stashes.collect::<Vec<_>>()
        };
        assert_eq!(named(word, 7, true), [1, 3, 4], "3 is all from 3 on");
        assert_eq!(named(word, 7, false), [0, 1]);
        assert!(named(word, 8, false).is_empty());
        assert_eq!(word.without(7, false, 3), None);
        let word = word.without(7, true, 1).unwrap();
        assert_eq!(named(word, 7, true), [3, 4]);
        let word = word.with(8, false, 2).unwrap();
        assert_eq!(named(word, 8, false), [2]);
    }

    #[test]
    fn a_count_that_is_full_stays_so() {
        let mut word = OverflowWord(1);
        assert_eq!(word.counting(1).counting(1).counting(-1).count(), 1);
        for _ in 0..70_000 {
            word = word.counting(1);
        }
        assert_eq!((word.count(), word.counting(-1)), (0xffff, word));
    }
}
