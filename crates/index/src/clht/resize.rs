//! Another array in the place of one that has too many chained buckets.

use farbank_pm::sync::atomic::Ordering;
use farbank_pm::{LINE, Medium, Off, WORD, fault};

use super::Clht;
use super::layout::{ARRAY, Array, BITS_MAX, CHAINED, OLD, SLOTS, YOUNG, image, next_of};
use crate::ground::{Block, OpenError, Worker};
use crate::hash::hash;
use crate::index::Refused;

/// Chains whose first buckets are fetched together.
const AHEAD: u64 = 16;

impl<M: Medium> Clht<M> {
    /// The first array.
    pub(super) fn make_first(&self) -> Result<(), OpenError> {
        let mut worker = self.ground.worker()?;
        let array = self.make_array(&mut worker, self.config.bits)?;
        Ok(self.ground.set_root(&mut worker, ARRAY, array.word())?)
    }

    /// An array of empty buckets, durable. It is in doubt until a word of the root names it.
    fn make_array(&self, worker: &mut Worker, bits: u32) -> Result<Array, Refused> {
        const ZEROS: [u8; 4096] = [0; 4096];
        let medium = self.ground.medium();
        let at = Off(0);
        let bytes = Array { at, bits }.bytes();
        let at = self.ground.allocate_run(worker, bytes)?;
        let mut done = 0;
        while done < bytes {
            let part = (bytes - done).min(ZEROS.len() as u64);
            let zeros = &ZEROS[..part as usize];
            medium.copy_in(&mut worker.lane, at.plus(done), &[zeros]);
            done += part;
        }
        worker.commit(medium)?;
        Ok(Array { at, bits })
    }

    /// How many chained buckets are too many.
    pub(super) fn limit(&self, array: Array) -> u64 {
        let percent = u64::from(self.config.chained_percent);
        (array.buckets().saturating_mul(percent) / 100).max(1)
    }

    /// Replaces `old` by an array some times as large, unless somebody has. If there is no room for that, or a chain is
    /// damaged, chains grow longer: it is tried again when there are some more.
    pub(super) fn grow(&self, worker: &mut Worker, old: Array) -> Result<(), Refused> {
        let _for = worker.reshape();
        let _growing = self.growing.lock().expect("no holder panics");
        let chained = self.chained.load(Ordering::Relaxed);
        if self.array() != old || chained < self.grow_at.load(Ordering::Relaxed) {
            return Ok(());
        }
        match self.replace(worker, old) {
            Err(Refused::Full { .. } | Refused::Damaged { .. }) => {
                let later = self.chained.load(Ordering::Relaxed) / 8 * 9 + 1;
                self.grow_at.store(later, Ordering::Relaxed);
                Ok(())
            }
            other => other,
        }
    }

    fn replace(&self, worker: &mut Worker, old: Array) -> Result<(), Refused> {
        let bits = old.bits + self.config.growth_bits;
        if bits > BITS_MAX {
            let bytes = old.bytes() << self.config.growth_bits;
            return Err(Refused::Full { bytes });
        }
        let young = self.make_array(worker, bits)?;
        if !fault!("clht.young_not_named") {
            self.name_both(worker, young, old);
        }
        let built = self.copy(worker, old, young);
        let chained = match built {
            Ok(chained) => chained,
            Err(refused) => {
                self.copied.store(0, Ordering::Release);
                self.dismantle(worker, YOUNG, young)?;
                return Err(refused);
            }
        };
        self.ground.set_root(worker, ARRAY, young.word())?; // I5
        self.array.store(young.word(), Ordering::Release);
        self.copied.store(0, Ordering::Release);
        self.chained.store(chained, Ordering::Relaxed);
        self.grow_at.store(self.limit(young), Ordering::Relaxed);
        self.dismantle(worker, OLD, old)
    }

    /// Says in the root which array is being built, and in whose place. Drained before a bucket is chained to the young one.
    fn name_both(&self, worker: &mut Worker, young: Array, old: Array) {
        let medium = self.ground.medium();
        medium.store(&mut worker.lane, self.ground.root(YOUNG), young.word());
        medium.store(&mut worker.lane, self.ground.root(OLD), old.word());
        medium.flush(&mut worker.lane, self.ground.root(YOUNG), 2 * WORD);
    }

    /// Copies all chains, durable on `Ok`; how many chained buckets they take now.
    fn copy(&self, worker: &mut Worker, old: Array, young: Array) -> Result<u64, Refused> {
        let (mut chained, together) = (0, 1 << self.config.lock_bits);
        for from in (0..old.buckets()).step_by(together) {
            let to = from + together as u64;
            self.prefetch(old, to..to + together as u64);
            let first = old.bucket(from);
            let accept = || self.accept(worker, old, first);
            let guard = self.locks.lock(first, accept)?;
            self.copied.store(to, Ordering::Release);
            drop(guard); // nobody changes these any more (I6)
            for index in from..to {
                chained += self.copy_chain(worker, old, young, index)?;
            }
        }
        for from in (0..young.buckets()).step_by(together) {
            self.locks.is_new(young.bucket(from));
        }
        worker.commit(self.ground.medium())?;
        Ok(chained)
    }

    /// Has the CPU fetch the first buckets of chains that are read soon, as far as there are such.
    fn prefetch(&self, array: Array, chains: std::ops::Range<u64>) {
        let end = chains.end.min(array.buckets());
        let bytes = end.saturating_sub(chains.start) as usize * LINE;
        let at = array.bucket(chains.start);
        self.ground.medium().prefetch(at, bytes);
    }

    /// Copies chain `index` of `old` to the chains of `young` it divides into.
    fn copy_chain(
        &self,
        worker: &mut Worker,
        old: Array,
        young: Array,
        index: u64,
    ) -> Result<u64, Refused> {
        let mut chained = 0;
        let mut pairs = Vec::new();
        self.each_live(old.bucket(index), |_, key, value| pairs.push((key, value)));
        for to in (index..young.buckets()).step_by(old.buckets() as usize) {
            let goes_there = |(key, _): &(u64, u64)| young.index(hash(*key)) == to;
            let there: Vec<_> = pairs.iter().copied().filter(goes_there).collect();
            let first = young.bucket(to);
            let mut parts = there.chunks(SLOTS as usize);
            let Some(part) = parts.next() else {
                continue; // as empty as it was made
            };
            let medium = self.ground.medium();
            medium.copy_in(&mut worker.lane, first, &[&image(0, part)]);
            let mut last = first;
            for part in parts {
                last = self.extend(worker, first, last, part)?;
                chained += 1;
            }
        }
        Ok(chained)
    }

    /// Frees an array that word `named` of the root names, and its chained buckets. A bucket that says it belongs elsewhere
    /// was freed, and taken again, before a crash (I7).
    pub(super) fn dismantle(
        &self,
        worker: &mut Worker,
        named: u64,
        array: Array,
    ) -> Result<(), Refused> {
        let medium = self.ground.medium();
        let mut chained = Vec::new();
        let next = |at| Off(medium.load(next_of(at)));
        for index in 0..array.buckets() {
            if index.is_multiple_of(AHEAD) {
                self.prefetch(array, index..index + AHEAD);
            }
            let first = array.bucket(index);
            let who = format!("the bucket {first:?} of an array to be freed");
            let ours = |block: Block| Ok(medium.load(block.at) == first.0);
            let all = (self.ground).chain(&who, next(first), CHAINED, next, ours)?;
            chained.extend(all);
        }
        let freed = self.ground.free_all(worker, chained, |worker| {
            self.ground.about_to_free(worker, array.at)
        })?;
        self.ground.set_root(worker, named, 0)?;
        self.ground.free(worker, freed);
        Ok(())
    }
}
