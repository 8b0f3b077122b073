//! The byte layout of a bucket.

use farbank_pm::model::Category;
use farbank_pm::simd::{bytes_equal, ones};
use farbank_pm::{LINE, Medium, Off, PersistCtx, WORD};

use super::{DashSegments, PairSlot, SegmentPlace};
use crate::pool_heap::TableWorker;

/// Position of the bits in a bucket.
const BITS: u64 = 8;
const FINGERS: u64 = 16;
/// Bytes of a bucket's header, before its pairs.
pub(super) const HEAD: u64 = 32;
/// Bytes of a pair.
pub(super) const PAIR: u64 = 16;

/// The bits of a bucket: live pairs, and the guests among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PairBits(pub(crate) u64);

impl PairBits {
    const GUESTS: u32 = PAIRS as u32;
    const OWNER: u32 = 2 * PairBits::GUESTS;
    const ALL: u64 = (1 << PAIRS) - 1;
    /// The bit that holds the lock in the published code.
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

    /// Returns the bits of an empty chained bucket.
    fn chained(owner: u64) -> PairBits {
        PairBits(owner << PairBits::OWNER)
    }

    pub(super) fn owner(self) -> u64 {
        self.0 >> PairBits::OWNER
    }

    /// Returns the bits without the slots of a mask.
    pub(crate) fn without(self, slots: u64) -> PairBits {
        PairBits(self.0 & !(slots | slots << PairBits::GUESTS))
    }

    /// Returns the bits of only the slots of a mask.
    pub(crate) fn only(self, slots: u64) -> PairBits {
        self.without(PairBits::ALL & !slots)
    }
}

/// Maximum number of slots of a bucket.
const PAIRS: usize = 14;

/// Copy of the pairs of a bucket, live or not.
pub(super) struct BucketPairs([u64; 2 * PAIRS]);

impl BucketPairs {
    /// Returns the pair in a slot.
    #[inline]
    pub(super) fn pair(&self, slot: u32) -> (u64, u64) {
        let word = 2 * slot as usize;
        (self.0[word], self.0[word + 1])
    }
}

/// The header of a bucket.
#[derive(Clone, Copy)]
pub(super) struct BucketHeader {
    pub(super) overflow: OverflowWord,
    pub(super) bits: PairBits,
    fingers: [u64; 2],
}

impl BucketHeader {
    /// Returns the mask of the slots with this fingerprint.
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

    /// Reads all pairs of a bucket.
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

    /// Returns the offset of a pair's value.
    fn value_of(pair: Off) -> Off {
        pair.plus(WORD as u64)
    }

    /// Returns the offset of the value at a location.
    #[inline]
    pub(super) fn value_at(&self, spot: PairSlot) -> Off {
        Self::value_of(self.slot(spot.bucket, spot.slot))
    }

    /// Returns the value at a location.
    #[inline]
    pub(super) fn value(&self, spot: PairSlot) -> u64 {
        self.medium.load(self.value_at(spot))
    }

    /// Reads the header of a bucket.
    #[inline]
    pub(super) fn head(&self, bucket: Off) -> BucketHeader {
        let [overflow, bits, first, second] = self.medium.load_words(bucket, 1);
        BucketHeader {
            overflow: OverflowWord(overflow),
            bits: PairBits(bits & !PairBits::LOCK),
            fingers: [first, second],
        }
    }

    /// Returns whether the pair in a slot has `key`.
    #[inline]
    pub(super) fn has_key(&self, bucket: Off, slot: u32, key: u64) -> bool {
        self.key(bucket, slot) == key
    }

    /// Returns the key in a slot.
    #[inline]
    pub(super) fn key(&self, bucket: Off, slot: u32) -> u64 {
        self.medium.load(self.slot(bucket, slot))
    }

    /// Returns a slot without a live pair.
    pub(super) fn free_in(&self, bucket: Off) -> Option<u32> {
        self.free_beside(bucket, 0)
    }

    /// Returns a slot without a live pair that is not in the mask `taken`.
    pub(super) fn free_beside(&self, bucket: Off, taken: u64) -> Option<u32> {
        let slot = (!(self.bits(bucket).live() | taken)).trailing_zeros();
        (slot < self.form.shape.slots).then_some(slot)
    }

    pub(super) fn finger(&self, bucket: Off, slot: u32) -> u8 {
        let at = bucket.plus(FINGERS + u64::from(slot / 8) * WORD as u64);
        (self.medium.load(at) >> (slot % 8 * 8)) as u8
    }

    /// Stores a pair in a free slot.
    pub(super) fn put(&self, ctx: &mut PersistCtx, bucket: Off, slot: u32, pair: (u64, u64)) {
        let at = self.slot(bucket, slot);
        self.medium.store(ctx, at, pair.0);
        self.medium.store(ctx, Self::value_of(at), pair.1);
    }

    /// Returns whether the pair in a slot needs its own flush and drain before its bit is set (IX-DASH-1).
    #[inline]
    pub(super) fn is_apart(&self, bucket: Off, slot: u32) -> bool {
        self.form.as_published || self.slot(bucket, slot).0 >= bucket.0 + LINE as u64
    }

    /// Writes a pair to a free slot and flushes it, without reading its line. The next drain makes it durable.
    #[track_caller]
    pub(super) fn put_apart(&self, ctx: &mut PersistCtx, bucket: Off, slot: u32, pair: (u64, u64)) {
        let at = self.slot(bucket, slot);
        self.medium.copy_in_pair(ctx, at, pair.into());
    }

    /// Marks a pair live.
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
        self.set_bits(ctx, bucket, self.bits(bucket).with(slot, guest)); // IX-DASH-1
    }

    pub(crate) fn set_bits(&self, ctx: &mut PersistCtx, bucket: Off, bits: PairBits) {
        self.medium.store(ctx, bucket.plus(BITS), bits.0);
    }

    /// Flushes a bucket's bits and fingerprints, which share a line.
    #[inline]
    #[track_caller]
    pub(super) fn flush_bits(&self, ctx: &mut PersistCtx, bucket: Off) {
        self.medium.flush(ctx, bucket.plus(BITS), 3 * WORD);
    }

    /// Marks all pairs of a bucket dead. Copies the fingerprints of `like`, or clears them.
    pub(crate) fn clear(&self, ctx: &mut PersistCtx, bucket: Off, like: Option<Off>) {
        self.clear_to(ctx, bucket, PairBits(0), like);
    }

    /// Marks all pairs of a chained bucket dead. Its owner stays set throughout, because the bucket may be linked
    /// already.
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

    /// Stores the locks of the published code, one per bucket, if the table is configured so. No reader uses them.
    #[inline]
    pub(super) fn lock_far(&self, worker: &mut TableWorker, segment: Off, place: SegmentPlace) {
        self.store_far_locks(worker, segment, place, PairBits::LOCK);
    }

    /// Stores the release of these locks, after the drain of the change they guard. This dirties the lines again.
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
        let _for = Category::Lock.scope();
        let (home, next) = self.pair_of(segment, place);
        for bucket in [home, next] {
            let bits = self.bits(bucket);
            self.set_bits(&mut worker.ctx, bucket, PairBits(bits.0 | lock));
        }
    }
}

/// A bucket's word: its keys that are in the stash.
///
/// ```text
///   0         32             36              44              48       64
///   │ 4 fingers │ 4 valid bits  │ stash of each │ 4 guest bits │ count │
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OverflowWord(pub(super) u64);

impl OverflowWord {
    /// No key is in the stash.
    pub(super) const NONE: OverflowWord = OverflowWord(0);
    const ENTRIES: u32 = 4;
    const SET: u32 = 32;
    const STASH: u32 = 36;
    const GUEST: u32 = 44;
    const COUNT: u32 = 48;
    const COUNT_MAX: u64 = u64::MAX >> OverflowWord::COUNT;
    /// Stash number that also stands for all later stash buckets.
    const LAST: u64 = 3;

    /// Returns the number of keys in the stash without an entry. The maximum is sticky and means "many".
    pub(super) fn count(self) -> u64 {
        self.0 >> OverflowWord::COUNT
    }

    fn bit(self, from: u32, n: u32) -> bool {
        self.0 >> (from + n) & 1 == 1
    }

    fn stash(self, n: u32) -> u64 {
        self.0 >> (OverflowWord::STASH + 2 * n) & 3
    }

    /// Returns the mask of entries with a fingerprint. The home of their keys is this bucket, or for `guest` the one
    /// before.
    #[inline]
    fn entries(self, finger: u8, guest: bool) -> u64 {
        let guests = self.0 >> OverflowWord::GUEST;
        let whose = if guest { guests } else { !guests };
        let all = (1 << OverflowWord::ENTRIES) - 1;
        bytes_equal([self.0, 0], finger) & self.0 >> OverflowWord::SET & whose & all
    }

    /// Returns whether an entry has this fingerprint.
    #[inline]
    pub(super) fn has(self, finger: u8, guest: bool) -> bool {
        self.entries(finger, guest) != 0
    }

    /// Returns whether the stash may hold a key with this fingerprint: an entry has it, or keys without entries exist.
    #[inline]
    pub(super) fn may_have(self, finger: u8, guest: bool) -> bool {
        self.count() > 0 || self.has(finger, guest)
    }

    /// Returns whether an entry with this fingerprint names stash bucket `stash`.
    #[inline]
    pub(super) fn names(self, finger: u8, guest: bool, stash: u64) -> bool {
        ones(self.entries(finger, guest)).any(|n| self.stash(n) == stash.min(OverflowWord::LAST))
    }

    /// Returns the word with one more entry, if one is free.
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

    /// Returns the word without one entry of these properties, if it has one.
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
    fn entries_are_removed_one_by_one() {
        let mut word = OverflowWord(0);
        for (stash, guest) in [(0, false), (1, true), (1, false), (3, true)] {
            word = word.with(7, guest, stash).unwrap();
        }
        assert_eq!(word.with(9, false, 0), None, "there are only four entries");
        let named = |word: OverflowWord, finger, guest| {
            let stashes = (0..5).filter(move |stash| word.names(finger, guest, *stash));
            stashes.collect::<Vec<_>>()
        };
        assert_eq!(
            named(word, 7, true),
            [1, 3, 4],
            "stash number 3 stands for all from 3 on"
        );
        assert_eq!(named(word, 7, false), [0, 1]);
        assert!(named(word, 8, false).is_empty());
        assert_eq!(word.without(7, false, 3), None);
        let word = word.without(7, true, 1).unwrap();
        assert_eq!(named(word, 7, true), [3, 4]);
        let word = word.with(8, false, 2).unwrap();
        assert_eq!(named(word, 8, false), [2]);
    }

    #[test]
    fn a_saturated_count_stays_saturated() {
        let mut word = OverflowWord(1);
        assert_eq!(word.counting(1).counting(1).counting(-1).count(), 1);
        for _ in 0..70_000 {
            word = word.counting(1);
        }
        assert_eq!((word.count(), word.counting(-1)), (0xffff, word));
    }
}
