//! One thread at a table.

use farbank_pm::model::{Category, Spending};
use farbank_pm::sync::Arc;
use farbank_pm::{Counters, Lane, Medium, Off, WORD};

use super::heap::{Block, Group, Heap};
use crate::index::Refused;

/// One thread at a table: its lane at the medium, and what it has in hand of the allocator. Used by one thread at
/// a time, and only at the table that made it.
pub struct Worker {
    pub(crate) lane: Lane,
    pub(super) heap: Arc<Heap>,
    pub(super) number: u32,
    /// The group it takes blocks from, of each class.
    pub(super) groups: Vec<Group>,
    /// Which of the words for what is being freed comes next.
    pub(super) freeing: u64,
    /// Runs whose records are on their way out: anybody's after the next drain. If there is none, the next open's.
    pub(super) freed: Vec<Block>,
    reshapes: u64,
}

impl Worker {
    pub(super) fn new(heap: &Arc<Heap>) -> Result<Worker, Refused> {
        let number = heap.take_lane()?;
        Ok(Worker {
            lane: Lane::new(number + 1),
            heap: Arc::clone(heap),
            number,
            groups: heap.no_groups(),
            freeing: 0,
            freed: Vec::new(),
            reshapes: 0,
        })
    }

    /// What this worker has asked of the medium so far: exact counts.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.lane.counters
    }

    /// How often it has begun to change the structure so far: a split, a doubling, a new array.
    #[must_use]
    pub fn reshapes(&self) -> u64 {
        self.reshapes
    }

    /// It changes the structure from here to the end of the scope.
    pub(crate) fn reshape(&mut self) -> Spending {
        self.reshapes += 1;
        Category::Resize.spend()
    }

    /// Its lane at the pool, which nobody else has meanwhile.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Replaces a word. It and all this worker flushed before is durable when it returns.
    #[track_caller]
    pub(crate) fn put_word<M: Medium>(
        &mut self,
        medium: &M,
        at: Off,
        word: u64,
    ) -> Result<(), Refused> {
        self.heap.failure.refuse()?; // B7
        medium.store(&mut self.lane, at, word);
        medium.flush(&mut self.lane, at, WORD);
        self.commit(medium)
    }

    /// Waits until all this worker flushed is durable.
    #[track_caller]
    pub(crate) fn commit<M: Medium>(&mut self, medium: &M) -> Result<(), Refused> {
        let ticket = medium.drain(&mut self.lane);
        if let Err(poisoned) = medium.settle(ticket) {
            self.heap.failure.note(&poisoned);
            return Err(poisoned.into());
        }
        for run in self.freed.drain(..) {
            self.heap.shelve(run);
        }
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.heap
            .give_back(self.number, std::mem::take(&mut self.groups));
    }
}
