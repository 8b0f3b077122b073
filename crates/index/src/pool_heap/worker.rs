//! One thread at a table.

use farbank_pm::model::{Category, CategoryScope};
use farbank_pm::sync::Arc;
use farbank_pm::{Medium, Off, PersistCounters, PersistCtx, WORD};

use super::heap::{BlockGroup, HeapBlock, PoolHeap};
use crate::index::IndexError;

/// One thread at a table: its context at the medium, and what it has in hand of the allocator. Used by one thread at
/// a time, and only at the table that made it.
pub struct TableWorker {
    pub(crate) ctx: PersistCtx,
    pub(super) heap: Arc<PoolHeap>,
    pub(super) number: u32,
    /// The group it takes blocks from, of each class.
    pub(super) groups: Vec<BlockGroup>,
    /// Which of the words for what is being freed comes next.
    pub(super) freeing: u64,
    /// Runs whose records are on their way out: anybody's after the next drain. If there is none, the next open's.
    pub(super) freed: Vec<HeapBlock>,
    reshapes: u64,
}

impl TableWorker {
    pub(super) fn new(heap: &Arc<PoolHeap>) -> Result<TableWorker, IndexError> {
        let number = heap.take_ctx()?;
        Ok(TableWorker {
            ctx: PersistCtx::new(number + 1),
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
    pub fn counters(&self) -> PersistCounters {
        self.ctx.counters
    }

    /// How often it has begun to change the structure so far: a split, a doubling, a new array.
    #[must_use]
    pub fn reshapes(&self) -> u64 {
        self.reshapes
    }

    /// It changes the structure from here to the end of the scope.
    pub(crate) fn reshape(&mut self) -> CategoryScope {
        self.reshapes += 1;
        Category::Resize.spend()
    }

    /// Its context at the pool, which nobody else has meanwhile.
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
    ) -> Result<(), IndexError> {
        self.heap.failure.refuse()?; // B7
        medium.store(&mut self.ctx, at, word);
        medium.flush(&mut self.ctx, at, WORD);
        self.commit(medium)
    }

    /// Waits until all this worker flushed is durable.
    #[track_caller]
    pub(crate) fn commit<M: Medium>(&mut self, medium: &M) -> Result<(), IndexError> {
        let ticket = medium.drain(&mut self.ctx);
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

impl Drop for TableWorker {
    fn drop(&mut self) {
        self.heap
            .give_back(self.number, std::mem::take(&mut self.groups));
    }
}
