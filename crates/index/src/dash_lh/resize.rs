//! Splits in linear order, and the creation of arrays.

use farbank_pm::sync::atomic::Ordering;
use farbank_pm::sync::unpoisoned;
use farbank_pm::{LINE, Medium, Off, WORD, fault, situation};

use super::layout::{ARRAYS, BITS_MAX, CHAINED, DIRECTORY, DIRECTORY_BYTES, LinearState, STATE};
use super::{DashLh, DashLhConfig};
use crate::dash::{DashTable, KeyHashes};
use crate::error::IndexError;
use crate::pool_heap::{TablePool, TableWorker};

/// A segment with more slots than this per pair is not split.
const SLOTS_A_PAIR: u64 = 16;

impl DashLhConfig {
    /// Creates an empty directory and the initial state. Both become durable with the first segments.
    pub(super) fn make_directory<M: Medium>(
        &self,
        ground: &TablePool<M>,
        worker: &mut TableWorker,
    ) -> Result<(), IndexError> {
        let (medium, at) = (
            ground.medium(),
            ground.allocate_run(worker, DIRECTORY_BYTES)?,
        );
        // The first line is flushed with the first entry.
        for word in (0..LINE).step_by(WORD) {
            medium.store(&mut worker.ctx, at.plus(word as u64), 0);
        }
        let zeros = [0; DIRECTORY_BYTES as usize - LINE];
        medium.copy_in(&mut worker.ctx, at.plus(LINE as u64), &[&zeros]);
        let state = LinearState {
            bits: self.bits,
            next: 0,
        };
        medium.store(&mut worker.ctx, ground.root(STATE), state.word());
        medium.store(&mut worker.ctx, ground.root(DIRECTORY), at.0);
        medium.flush(&mut worker.ctx, ground.root(STATE), 2 * WORD);
        Ok(())
    }
}

impl<M: Medium> DashLh<M> {
    /// Creates the initial segments. Durable on `Ok`.
    pub(super) fn make_first(&self, worker: &mut TableWorker) -> Result<(), IndexError> {
        let (dash, medium) = (self.dash(), self.table_pool.medium());
        for number in 0..self.state().count() {
            self.reserve(worker, number)?;
            let segment = self.segment(number);
            dash.make(&mut worker.ctx, segment);
            medium.store(&mut worker.ctx, segment, number);
            dash.flush(&mut worker.ctx, segment);
        }
        worker.commit(medium)
    }

    /// Creates the array of a new segment, if it does not exist. Its directory entry is flushed, and becomes durable
    /// with the segment. Nothing is changed on an error.
    fn reserve(&self, worker: &mut TableWorker, number: u64) -> Result<(), IndexError> {
        let array = self.config.array_of(number);
        if array >= ARRAYS {
            let bytes = self.config.array_bytes(array);
            return Err(IndexError::Full { bytes });
        }
        let (medium, entry) = (self.table_pool.medium(), self.entry(array));
        let is_to_be_made = self.array(array).is_null();
        situation!("dash-lh.array_was_made", !is_to_be_made);
        if is_to_be_made {
            situation!("dash-lh.array_made");
            let at = self.make_array(worker, array)?;
            medium.store(&mut worker.ctx, entry, at.0);
            self.note_array(array, at);
        }
        medium.flush(&mut worker.ctx, entry, WORD); // the thread that stored it may not have drained it
        Ok(())
    }

    /// Allocates an array without an entry, whose segments have no chained buckets. Durable on `Ok` (IX-DASHLH-5).
    fn make_array(&self, worker: &mut TableWorker, array: u64) -> Result<Off, IndexError> {
        let (dash, medium) = (self.dash(), self.table_pool.medium());
        let bytes = self.config.array_bytes(array);
        let at = self.table_pool.allocate_run(worker, bytes)?;
        if fault!("dash-lh.reserved") {
            medium.store(&mut worker.ctx, self.entry(array), u64::MAX);
        }
        for n in 0..self.config.segments(array) {
            let last = dash.last_stash(at.plus(n * self.form.segment_bytes));
            medium.store(&mut worker.ctx, last, 0);
            medium.flush(&mut worker.ctx, last, WORD);
        }
        worker.commit(medium)?;
        Ok(at)
    }

    /// Performs the configured number of splits after a stash has grown. If space is lacking, or the next segment is
    /// damaged, no split happens; the next growth of a stash tries again.
    pub(super) fn split_some(&self, worker: &mut TableWorker) -> Result<(), IndexError> {
        let _for = worker.reshape();
        let _growing = unpoisoned(self.growing.lock());
        for _ in 0..self.config.splits {
            match self.split(worker) {
                Err(
                    IndexError::Full { .. }
                    | IndexError::Crowded { .. }
                    | IndexError::Damaged { .. },
                ) => {
                    situation!("dash-lh.not_split");
                    return Ok(());
                }
                other => other?,
            }
        }
        Ok(())
    }

    /// Returns whether the next segment has so few pairs that the chained bucket elsewhere must come from keys with
    /// similar hashes. Splits do not help those. A table smaller than a chunk is never sparse.
    fn is_sparse(&self, state: LinearState) -> bool {
        let (shape, dash) = (self.config.shape, self.dash());
        if state.count() * shape.segment_bytes() < self.table_pool.chunk_bytes() {
            return false;
        }
        let (pairs, homes) = dash.live_at_home(self.segment(state.next));
        pairs * SLOTS_A_PAIR < homes
    }

    /// Splits the next segment. Nothing is changed on an error.
    fn split(&self, worker: &mut TableWorker) -> Result<(), IndexError> {
        let (before, dash, medium) = (self.state(), self.dash(), self.table_pool.medium());
        let (number, after) = (before.count(), before.after());
        if after.bits > BITS_MAX {
            return Err(IndexError::Crowded { bits: before.bits });
        }
        if self.is_sparse(before) {
            return Ok(());
        }
        self.reserve(worker, number)?;
        let (elder, young) = (self.segment(before.next), self.segment(number));
        let accept = || self.persist_on_first_access(worker, elder, before.next);
        let _elder = self.locks.lock(elder, accept)?;
        let hasher = self.table_pool.hasher();
        let place = &|hash| self.place(hash);
        let owned = &|hash| after.number(hash) == number;
        let left = dash.chain_of(young, CHAINED, number)?; // left by an interrupted copy
        situation!("dash-lh.chain_left", !left.is_empty());
        dash.clear_words(&mut worker.ctx, young);
        medium.store(&mut worker.ctx, young, number);
        dash.copy_some(
            worker,
            (elder, young),
            &KeyHashes {
                hasher,
                place,
                owned,
            },
        )?;
        dash.flush(&mut worker.ctx, young);
        worker.commit(medium)?; // IX-DASHLH-3
        self.locks.mark_new(young);
        self.table_pool.set_root(worker, STATE, after.word())?;
        self.state.store(after.word(), Ordering::Release); // IX-DASHLH-4
        situation!("dash-lh.round_begins", after.bits > before.bits);
        let owned = &|hash| after.number(hash) == before.next;
        let own = KeyHashes {
            hasher,
            place,
            owned,
        };
        dash.drop_foreign(&mut worker.ctx, elder, &own);
        worker.commit(medium)?;
        dash.move_stash_home(worker, elder, &own)
    }
}
