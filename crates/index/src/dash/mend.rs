//! What is done to a whole segment: mending it after an open, halving it, looking it through.

use std::collections::BTreeSet;

use farbank_pm::{LINE, Lane, Medium, Off, WORD, fault};

use super::bucket::{BITS, ones};
use super::{Dash, Place};
use crate::ground::{Ground, Worker};

/// What a table knows of its keys.
pub(crate) struct Keys<'a> {
    /// Where a key's home in its segment is.
    pub(crate) place: &'a dyn Fn(u64) -> Place,
    /// Whether a key is this segment's.
    pub(crate) owned: &'a dyn Fn(u64) -> bool,
}

impl<M: Medium> Dash<'_, M> {
    /// Makes an empty segment of whatever bytes are there, not durable yet.
    pub(crate) fn make(&self, lane: &mut Lane, segment: Off) {
        self.clear_words(lane, segment);
        for (bucket, _) in self.buckets(segment) {
            self.clear(lane, bucket, None);
        }
    }

    /// Makes the words of a segment zero, whatever they were: none of its stash is used.
    pub(crate) fn clear_words(&self, lane: &mut Lane, segment: Off) {
        let buckets = self.shape.buckets() + u64::from(self.shape.stash);
        for n in 0..buckets {
            let bucket = segment.plus(n * self.shape.bucket_bytes());
            self.medium.store(lane, bucket, 0);
        }
    }

    /// What whoever first touches a segment after an open does: makes it durable as it is, then ends what a crash cut short,
    /// then says anew what is in the stash.
    #[cold]
    pub(crate) fn accept(
        &self,
        worker: &mut Worker,
        ground: &Ground<M>,
        segment: Off,
        keys: &Keys<'_>,
    ) {
        let bytes = self.shape.segment_bytes();
        ground.accept(worker, segment, bytes);
        let mut mended = false;
        for (bucket, _) in self.buckets(segment) {
            mended |= self.drop_some(&mut worker.lane, bucket, |key| !(keys.owned)(key));
        }
        if !fault!("dash.no_mending") {
            for n in 0..self.shape.buckets() {
                mended |= self.drop_displaced(&mut worker.lane, segment, n);
            }
        }
        if mended {
            let _ = worker.commit(self.medium); // if the medium failed, nothing more is acknowledged
        }
        self.tell_stash(&mut worker.lane, segment, keys);
    }

    /// Makes dead, to be drained, the pairs of a bucket whose keys are meant.
    fn drop_some(&self, lane: &mut Lane, bucket: Off, meant: impl Fn(u64) -> bool) -> bool {
        let bits = self.bits(bucket);
        let dead = self.mask(bucket, meant);
        if dead != 0 {
            self.set_bits(lane, bucket, bits.without(dead));
            self.medium.flush(lane, bucket.plus(BITS), WORD);
        }
        dead != 0
    }

    /// Which live pairs of a bucket have keys that are meant.
    fn mask(&self, bucket: Off, meant: impl Fn(u64) -> bool) -> u64 {
        let live = ones(self.bits(bucket).live());
        let dead = live.filter(|slot| meant(self.pair(bucket, *slot).0));
        dead.fold(0, |mask, slot| mask | 1 << slot)
    }

    /// Makes dead, to be drained, the guests that are in their home, bucket `n`, too (S2).
    fn drop_displaced(&self, lane: &mut Lane, segment: Off, n: u64) -> bool {
        let (home, next) = (self.bucket(segment, n), self.bucket(segment, n + 1));
        let keys = |bucket, mask| ones(mask).map(move |slot| (slot, self.pair(bucket, slot).0));
        let residents: BTreeSet<u64> = keys(home, self.bits(home).residents())
            .map(|(_, key)| key)
            .collect();
        let bits = self.bits(next);
        let dead = keys(next, bits.guests())
            .filter(|(_, key)| residents.contains(key))
            .fold(0, |mask, (slot, _)| mask | 1 << slot);
        if dead != 0 {
            self.set_bits(lane, next, bits.without(dead));
            self.medium.flush(lane, next.plus(BITS), WORD);
        }
        dead != 0
    }

    /// Says in the buckets' words what is in the stash, anew (S4).
    pub(crate) fn tell_stash(&self, lane: &mut Lane, segment: Off, keys: &Keys<'_>) {
        for n in 0..self.shape.buckets() {
            self.medium.store(lane, self.bucket(segment, n), 0);
        }
        for (n, bucket) in (0..).zip(self.stashes(segment)) {
            for slot in ones(self.bits(bucket).live()) {
                let place = (keys.place)(self.pair(bucket, slot).0);
                self.note(lane, segment, place, n);
            }
        }
    }

    /// Writes to `young`, whose words are clear and which nobody sees, the pairs of `elder` whose keys are meant: each where it was, and
    /// those of the stash where they belong if that has room now. Not durable yet.
    pub(crate) fn copy_some(&self, lane: &mut Lane, (elder, young): (Off, Off), keys: &Keys<'_>) {
        for ((from, _), (to, _)) in self.buckets(elder).zip(self.buckets(young)) {
            self.clear(lane, to, Some(from));
            let mask = self.mask(from, keys.owned);
            for slot in ones(mask) {
                self.put(lane, to, slot, self.pair(from, slot));
            }
            self.set_bits(lane, to, self.bits(from).only(mask));
        }
        for stash in self.stashes(young) {
            for slot in ones(self.bits(stash).live()) {
                let pair = self.pair(stash, slot);
                let place = (keys.place)(pair.0);
                let (home, next) = self.pair_of(young, place);
                let free = [(home, false), (next, true)]
                    .into_iter()
                    .find_map(|(bucket, guest)| Some((bucket, self.free_in(bucket)?, guest)));
                if let Some((bucket, slot_there, guest)) = free {
                    self.put(lane, bucket, slot_there, pair);
                    self.mark(lane, bucket, slot_there, place.finger, guest);
                    self.set_bits(lane, stash, self.bits(stash).without(1 << slot));
                }
            }
        }
        self.tell_stash(lane, young, keys);
    }

    /// Makes dead, to be drained, the pairs whose keys are not a segment's.
    pub(crate) fn keep_own(&self, lane: &mut Lane, segment: Off, keys: &Keys<'_>) {
        for (bucket, _) in self.buckets(segment) {
            self.drop_some(lane, bucket, |key| !(keys.owned)(key));
        }
    }

    /// Has the CPU fetch what a search for a place reads first.
    pub(crate) fn prefetch(&self, segment: Off, place: Place) {
        let (home, next) = self.pair_of(segment, place);
        self.medium.prefetch(home, LINE);
        self.medium.prefetch(next, LINE);
    }

    /// Whether a segment that was touched is sound: each key once, and found.
    pub(crate) fn check(&self, segment: Off, keys: &Keys<'_>) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        let mut wrong = None;
        self.each(segment, |spot, key, _| {
            if !seen.insert(key) {
                wrong = Some(format!("key {key:#x} is in {segment:?} twice"));
            } else if !(keys.owned)(key) {
                wrong = Some(format!("key {key:#x} is not of {segment:?}, and live"));
            } else if self.find(segment, (keys.place)(key), key) != Some(spot) {
                wrong = Some(format!(
                    "key {key:#x} lies at {spot:?}, where it is not looked for"
                ));
            }
        });
        wrong.map_or(Ok(()), Err)
    }
}
