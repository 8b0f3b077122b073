//! The handle of one thread on a table.

use farbank_pm::model::{Category, CategoryScope};
use farbank_pm::sync::Arc;
use farbank_pm::{Medium, Off, PersistCounters, PersistCtx, WORD};

use super::heap::{BlockGroup, HeapBlock, PoolHeap};
use crate::error::IndexError;

/// The handle of one thread on a table: its persistence context, and the blocks that the allocator reserves for it. A
/// worker is used by one thread at a time, and only with the table that created it.
pub struct TableWorker {
    pub(crate) ctx: PersistCtx,
    pub(super) heap: Arc<PoolHeap>,
    pub(super) number: u32,
    /// The group this worker allocates blocks from, per class.
    pub(super) groups: Vec<BlockGroup>,
    /// Number of frees so far. Its parity selects the context's word that names the next one.
    pub(super) freeing: u64,
    /// Runs whose records are cleared but not yet drained. Their chunks can be reused after the next drain; without
    /// one, the next open frees them.
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

    /// Returns the exact counts of this worker's operations on the medium.
    #[must_use]
    pub fn counters(&self) -> PersistCounters {
        self.ctx.counters
    }

    /// Returns how often this worker has begun to change the table's structure: a split, a doubling, a new array.
    #[must_use]
    pub fn reshapes(&self) -> u64 {
        self.reshapes
    }

    /// Counts a change of the structure, and attributes the costs until the end of the returned scope to it.
    pub(crate) fn reshape(&mut self) -> CategoryScope {
        self.reshapes += 1;
        Category::Resize.scope()
    }

    /// Returns the number of this worker's context, which is exclusively its own.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Replaces a word. On `Ok`, it and everything this worker flushed before are durable.
    #[track_caller]
    pub(crate) fn put_word<M: Medium>(
        &mut self,
        medium: &M,
        at: Off,
        word: u64,
    ) -> Result<(), IndexError> {
        self.heap.failure.check()?; // IX-HEAP-7
        medium.store(&mut self.ctx, at, word);
        medium.flush(&mut self.ctx, at, WORD);
        self.commit(medium)
    }

    /// Drains, and waits until everything this worker flushed is durable.
    #[track_caller]
    pub(crate) fn commit<M: Medium>(&mut self, medium: &M) -> Result<(), IndexError> {
        let ticket = medium.drain(&mut self.ctx);
        if let Err(poisoned) = medium.wait_until_durable(ticket) {
            self.heap.failure.note(&poisoned);
            return Err(poisoned.into());
        }
        for run in self.freed.drain(..) {
            self.heap.make_available(run);
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
