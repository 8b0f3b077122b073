//! The copy of an array by several workers.
//!
//! An array is copied in parts: the chains that share a lock. Workers that would wait for the resize take parts, too.
//! The resizer waits until all parts are finished.
//!
//! ```text
//!   old    │part 0│part 1│part 2│ ...      `taken`: the parts before it are taken or finished
//!             └──────┬──────┬──────┐
//!   young  │part 0│ ... │part 0│ ... │     a part is copied to several ranges, which no other worker writes
//! ```

use farbank_pm::model::Category;
use farbank_pm::sync::atomic::{AtomicU64, Ordering};
use farbank_pm::sync::{Mutex, unpoisoned};
use farbank_pm::{LINE, Medium, Off, fault, situation};

use super::Clht;
use super::layout::{Array, CHAINED, SLOTS, image, next_of};
use crate::error::IndexError;
use crate::locks::wait;
use crate::pool_heap::TableWorker;

/// The state shared by the workers that copy an array.
#[derive(Default)]
pub(super) struct ArrayCopy {
    /// Number of array buckets that are taken. 0: no copy is in progress; `CLOSED`: no more may be taken.
    taken: AtomicU64,
    /// Number of buckets that are finished: copied or abandoned.
    done: AtomicU64,
    /// Number of buckets of the array. Like `young`, it changes only while no worker has a part.
    all: AtomicU64,
    /// The word of the array to which the buckets are copied.
    young: AtomicU64,
    outcome: Mutex<CopyOutcome>,
}

const CLOSED: u64 = u64::MAX;

/// The results of the finished parts.
#[derive(Default)]
pub(super) struct CopyOutcome {
    /// Chained buckets allocated for the new array.
    pub(super) made: Vec<Off>,
    /// Chained buckets of the old array.
    pub(super) left: Vec<Off>,
    /// The error, if the copy failed.
    pub(super) refused: Option<IndexError>,
}

impl ArrayCopy {
    /// Returns whether bucket `index` of the array is taken, so that it must not be changed any more.
    #[inline]
    pub(super) fn has_taken(&self, index: u64) -> bool {
        index < self.taken.load(Ordering::Acquire)
    }

    /// Begins a copy. The first `part` buckets belong to the caller.
    fn begin(&self, old: Array, young: Array, part: u64) {
        self.all.store(old.buckets(), Ordering::Relaxed);
        self.young.store(young.word(), Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        self.taken.store(part, Ordering::Release);
    }

    /// Takes the next `part` buckets, and returns the first. A worker that read an older `all` may get `None` although
    /// buckets are left.
    fn take(&self, part: u64) -> Option<u64> {
        let all = self.all.load(Ordering::Relaxed);
        let next = |taken| (0 < taken && taken < all).then(|| taken + part);
        let took = (self.taken).fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        took.ok()
    }

    /// Records the results of `done` taken buckets. If the copy failed, the buckets not taken yet are abandoned.
    fn finish(&self, mut done: u64, came: CopyOutcome) {
        let all = self.all.load(Ordering::Relaxed);
        let mut outcome = unpoisoned(self.outcome.lock());
        outcome.made.extend(came.made);
        outcome.left.extend(came.left);
        if came.refused.is_some() {
            outcome.refused = came.refused;
            done += all.saturating_sub(self.taken.swap(CLOSED, Ordering::AcqRel));
        }
        drop(outcome);
        self.done.fetch_add(done, Ordering::Release);
    }

    /// Waits until all parts are finished, and returns the results. No part can be taken afterwards.
    fn await_all(&self) -> CopyOutcome {
        let (mut tries, all) = (0, self.all.load(Ordering::Relaxed));
        while !fault!("clht.helpers_left_behind") && self.done.load(Ordering::Acquire) < all {
            wait(&mut tries);
        }
        self.taken.store(CLOSED, Ordering::Release);
        std::mem::take(&mut *unpoisoned(self.outcome.lock()))
    }

    fn young(&self) -> Array {
        Array::of(self.young.load(Ordering::Relaxed))
    }

    /// Ends the copy: the array has been replaced, or stays.
    pub(super) fn end(&self) {
        self.taken.store(0, Ordering::Release);
    }
}

impl<M: Medium> Clht<M> {
    /// Copies all chains of `old`. Durable on return, if no worker failed.
    pub(super) fn copy(&self, worker: &mut TableWorker, old: Array, young: Array) -> CopyOutcome {
        self.copying.begin(old, young, self.part());
        self.copy_parts(worker, Some(0));
        self.copying.await_all()
    }

    /// Copies parts of `old` that are not taken, if it is being replaced, and waits until the replacement ends.
    #[cold]
    pub(super) fn help(&self, worker: &mut TableWorker, old: Array) {
        let _for = Category::Resize.scope();
        let mut tries = 0;
        while self.array() == old && self.copying.has_taken(0) {
            let first = self.copying.take(self.part());
            self.copy_parts(worker, first);
            wait(&mut tries);
        }
    }

    /// Returns the buckets of a part: those that share a lock.
    fn part(&self) -> u64 {
        1 << self.config.lock_bits
    }

    /// Copies parts until none is left, beginning with the taken one at `next`. All are drained together, and then
    /// finished.
    fn copy_parts(&self, worker: &mut TableWorker, mut next: Option<u64>) {
        let (mut came, mut copied) = (CopyOutcome::default(), 0);
        while let Some(index) = next {
            copied += self.part();
            came.refused = self.copy_part(worker, index, &mut came).err();
            if came.refused.is_some() {
                break; // the parts not taken yet are abandoned
            }
            next = self.copying.take(self.part());
        }
        if copied > 0 {
            let drained = worker.commit(self.table_pool.medium());
            came.refused = came.refused.or(drained.err());
            self.copying.finish(copied, came);
        }
    }

    /// Copies the part at bucket `from` of the array. Durable after the worker's next drain.
    fn copy_part(
        &self,
        worker: &mut TableWorker,
        from: u64,
        came: &mut CopyOutcome,
    ) -> Result<(), IndexError> {
        // Neither changes while a worker has a part.
        let (old, young) = (self.array(), self.copying.young());
        let (medium, part) = (self.table_pool.medium(), self.part());
        self.prefetch(old, from + part..from + 2 * part);
        let accept = || self.persist_on_first_access(worker, old, old.bucket(from));
        drop(self.locks.lock(old.bucket(from), accept)?); // no worker changes this part any more (IX-CLHT-6)
        for first in (from..from + part).map(|index| old.bucket(index)) {
            medium.prefetch(Off(medium.load(next_of(first))), LINE);
        }
        let stretches = young.buckets() / old.buckets();
        let mut lines = vec![[0; LINE]; (stretches * part) as usize];
        let mut pairs = Vec::new();
        for index in from..from + part {
            let first = old.bucket(index);
            self.each_bucket(first, |bucket| {
                came.left.extend((bucket != first).then_some(bucket))
            });
            self.each_live(first, |_, key, value| {
                let hash = self.table_pool.hash(key);
                if old.index(hash) == index {
                    pairs.push((young.index(hash), key, value)); // a key in the wrong chain is damage, and is dropped
                }
            });
            pairs.sort_unstable();
            for there in pairs.chunk_by(|a, b| a.0 == b.0) {
                let to = there[0].0;
                let line = to / old.buckets() * part + index - from;
                lines[line as usize] =
                    self.make_chain(worker, young.bucket(to), there, &mut came.made)?;
            }
            pairs.clear();
        }
        for (to, lines) in (from..)
            .step_by(old.buckets() as usize)
            .zip(lines.chunks(part as usize))
        {
            medium.copy_in(&mut worker.ctx, young.bucket(to), &[lines.as_flattened()]);
            self.locks.mark_new(young.bucket(to));
        }
        Ok(())
    }

    /// Writes chained buckets for the pairs that do not fit into the bucket at `first`. Returns that bucket's bytes.
    fn make_chain(
        &self,
        worker: &mut TableWorker,
        first: Off,
        pairs: &[(u64, u64, u64)],
        made: &mut Vec<Off>,
    ) -> Result<[u8; LINE], IndexError> {
        let medium = self.table_pool.medium();
        let (here, others) = pairs.split_at(pairs.len().min(SLOTS as usize));
        let mut next = Off::NULL;
        situation!("clht.chained_by_copy", !others.is_empty());
        for some in others.chunks(SLOTS as usize) {
            let bucket = self.table_pool.allocate(worker, CHAINED)?;
            made.push(bucket);
            let bytes = image(first, pairs_of(some), next);
            medium.copy_in(&mut worker.ctx, bucket, &[&bytes]);
            next = bucket;
        }
        Ok(image(Off::NULL, pairs_of(here), next))
    }

    /// Prefetches the first buckets of `chains`, as far as they exist.
    fn prefetch(&self, array: Array, chains: std::ops::Range<u64>) {
        let end = chains.end.min(array.buckets());
        let bytes = end.saturating_sub(chains.start) as usize * LINE;
        self.table_pool
            .medium()
            .prefetch(array.bucket(chains.start), bytes);
    }
}

fn pairs_of(placed: &[(u64, u64, u64)]) -> impl Iterator<Item = (u64, u64)> {
    placed.iter().map(|(_, key, value)| (*key, *value))
}
