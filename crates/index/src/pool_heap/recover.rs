//! Recovery of the blocks and runs that may be allocated without a reference, and the consistency check of the
//! allocator.

use std::collections::BTreeSet;

use farbank_pm::{LINE, Medium, Off, situation};

use super::heap::{ChunkUse, FREED, HeapBlock, RUN};
use super::{TablePool, TableWorker};
use crate::error::{IndexError, OpenError};

impl<M: Medium> TablePool<M> {
    /// Frees blocks and runs that a crash left allocated but not linked, or unlinked but not freed. `is_live` says
    /// whether the table refers to a block. Durable on `Ok`, as is everything that `worker` has flushed. Reads one line
    /// per context, independent of the number of keys.
    pub(crate) fn recover(
        &self,
        worker: &mut TableWorker,
        mut is_live: impl FnMut(HeapBlock) -> Result<bool, IndexError>,
    ) -> Result<(), OpenError> {
        let ctx = &mut worker.ctx;
        for number in 0..self.heap.contexts() {
            for block in self.in_doubt(number)? {
                // A killed process may have cleared the bit without making it durable.
                self.flush_bit(ctx, block);
                let (is_run, is_out) = (block.class.is_none(), self.is_handed_out(block));
                situation!("ground.block_back", !is_run && !is_out);
                if is_out && !is_live(block)? {
                    situation!("ground.block_freed_by_open", !is_run);
                    situation!("ground.run_freed_by_open", is_run);
                    self.clear_on_medium(ctx, block);
                    if is_run {
                        self.heap.forget_run(block);
                    }
                }
            }
        }
        Ok(worker.commit(self.medium())?)
    }

    /// Returns the blocks and runs that context `number` allocated or freed last.
    pub(crate) fn in_doubt(&self, number: u32) -> Result<Vec<HeapBlock>, OpenError> {
        let word = |n| Off(self.medium().load(self.heap.ctx_word(number, n)));
        let mut found = Vec::new();
        for class in 0..RUN {
            let group = word(class);
            if group.is_null() {
                continue;
            }
            let blocks = self.heap.blocks_of(group, class as usize);
            let (first, blocks) = blocks.ok_or_else(|| damaged(number, class, group))?;
            let intent = self.medium().load(group);
            if intent > blocks {
                return Err(damaged(number, class, group));
            }
            if intent > 0 {
                found.push(self.heap.nth_block(first, intent - 1, class as usize));
            }
        }
        // The run may have been freed since, and its chunks reused for blocks.
        let runs = self.heap.block_at(word(RUN)).filter(|b| b.class.is_none());
        found.extend(runs);
        found.extend((FREED..FREED + 2).filter_map(|n| self.heap.block_at(word(n))));
        Ok(found)
    }

    /// Checks that the allocated blocks and runs are exactly those that `reach` reports, each once. Reads the whole
    /// pool; for checks.
    pub(crate) fn check(&self, reach: impl FnOnce(&mut dyn FnMut(Off))) -> Result<(), IndexError> {
        let mut reached = BTreeSet::new();
        let mut twice = None;
        reach(&mut |at| {
            if !reached.insert(at.0) {
                twice = Some(at);
            }
        });
        if let Some(at) = twice {
            return Err(IndexError::damaged(format!(
                "two references lead to {at:?}"
            )));
        }
        let out = self.allocated();
        if let Some(at) = out.difference(&reached).next() {
            let what = format!("{:?} is allocated, but nothing refers to it", Off(*at));
            return Err(IndexError::damaged(what));
        }
        match reached.difference(&out).next() {
            Some(at) => Err(IndexError::damaged(format!(
                "{:?} is in use, but not allocated",
                Off(*at)
            ))),
            None => Ok(()),
        }
    }

    fn allocated(&self) -> BTreeSet<u64> {
        let runs = (0..self.pool.segments()).filter_map(|chunk| {
            let at = self.pool.segment(chunk);
            let is_run = matches!(self.heap.use_of(chunk), Some(ChunkUse::Run(_)));
            (is_run && self.is_handed_out(HeapBlock { at, class: None })).then_some(at.0)
        });
        let blocks = (0..RUN as usize).flat_map(|class| self.allocated_blocks(class));
        runs.chain(blocks.map(|block| block.at.0)).collect()
    }

    /// Flushes the allocation bits of all blocks of `class`, so that the worker's next drain makes them durable: a
    /// killed process may have cleared bits.
    pub(crate) fn flush_bits(&self, worker: &mut TableWorker, class: usize) {
        for group in self.groups(class) {
            self.medium().flush(&mut worker.ctx, group, LINE);
        }
    }

    /// Returns all allocated blocks of `class`. Reads all groups.
    pub(crate) fn allocated_blocks(&self, class: usize) -> impl Iterator<Item = HeapBlock> {
        self.groups(class).flat_map(move |group| {
            let blocks = self.heap.blocks_of(group, class);
            let (first, blocks) = blocks.expect("a slab has groups");
            let taken = (0..blocks).filter(move |n| self.is_set(group, *n));
            taken.map(move |n| self.heap.nth_block(first, n, class))
        })
    }

    fn groups(&self, class: usize) -> impl Iterator<Item = Off> {
        let slabs = (0..self.pool.segments())
            .filter(move |chunk| self.heap.use_of(*chunk) == Some(ChunkUse::Slab(class)));
        slabs.flat_map(move |chunk| self.heap.groups_of(chunk, class))
    }
}

fn damaged(ctx: u32, class: u64, group: Off) -> OpenError {
    OpenError::Damaged {
        what: format!(
            "context {ctx} has {group:?} as its group of blocks of class {class}, but no such group is there, or the group's \
             intent is out of range"
        ),
    }
}
