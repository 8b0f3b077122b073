//! Recovery by the open. Segments are repaired at their first access.

use farbank_pm::{Medium, WORD, fault, situation};

use super::DashLh;
use super::layout::{ARRAYS, BITS_MAX, CHAINED, DIRECTORY, DIRECTORY_BYTES, STATE};
use crate::dash::DashTable;
use crate::error::{IndexError, OpenError};
use crate::pool_heap::{HeapBlock, TableWorker};

impl<M: Medium> DashLh<M> {
    /// Frees arrays and buckets that no entry and no stash refers to. Reads a few words per context, and the directory.
    pub(super) fn recover(&self) -> Result<(), OpenError> {
        self.check_directory()?;
        self.each_array(|array, at| self.note_array(array, at));
        let mut worker = self.table_pool.worker()?;
        for ctx in 0..self.table_pool.contexts() {
            for block in self.table_pool.in_doubt(ctx)? {
                self.flush_links(&mut worker, block)?;
            }
        }
        self.table_pool
            .recover(&mut worker, |block| self.is_live(block))
    }

    /// Flushes the words of the stash to which a block in doubt is chained. They must be durable, because the worker's
    /// next allocation replaces this intent.
    fn flush_links(&self, worker: &mut TableWorker, block: HeapBlock) -> Result<(), IndexError> {
        let owner = self.dash().owner(block.at);
        if block.class.is_none() || owner > self.state().count() || !self.has(owner) {
            return Ok(());
        }
        let (dash, segment) = (self.dash(), self.segment(owner));
        let chained = dash.chain_of(segment, CHAINED, owner)?;
        situation!("dash-lh.chain_in_doubt", !chained.is_empty());
        situation!("dash-lh.chain_of_the_next", owner == self.state().count());
        let words = chained.iter().map(|block| block.at);
        for at in std::iter::once(dash.last_stash(segment)).chain(words) {
            self.table_pool.medium().flush(&mut worker.ctx, at, WORD);
        }
        Ok(())
    }

    /// Returns whether the array of a segment exists.
    pub(super) fn has(&self, number: u64) -> bool {
        let array = self.config.array_of(number);
        array < ARRAYS && !self.array(array).is_null()
    }

    /// Checks the root's words, and that the entries name arrays for all segments and at most for one more.
    pub(super) fn check_directory(&self) -> Result<(), IndexError> {
        let referrer = format!("the directory, in the root's word {DIRECTORY},");
        self.table_pool
            .check_run(&referrer, self.directory, DIRECTORY_BYTES)?;
        let state = self.state();
        if !state.is_sound() {
            return Err(IndexError::damaged(format!(
                "the root's word {STATE} is {state:?}, expected bits from 1 to {BITS_MAX} and next below 2^bits"
            )));
        }
        let last = self.config.array_of(state.count() - 1);
        let coming = self.config.array_of(state.count());
        let mut named = Vec::new();
        for array in 0..ARRAYS {
            let (at, entry) = (self.array(array), self.entry(array));
            let sound = match at.is_null() {
                true => array > last,
                false => array <= coming && !named.contains(&at),
            };
            if !sound {
                return Err(IndexError::damaged(format!(
                    "entry {array} of the directory, at {entry:?}, names {at:?}; with {} segments, expected arrays 0 to {last}, each once",
                    state.count()
                )));
            }
            if !at.is_null() {
                let referrer = format!("entry {array} of the directory, {entry:?},");
                let bytes = self.config.array_bytes(array);
                self.table_pool.check_run(&referrer, at, bytes)?;
                named.push(at);
            }
        }
        Ok(())
    }

    fn is_live(&self, block: HeapBlock) -> Result<bool, IndexError> {
        if block.class.is_none() {
            let mut named = block.at == self.directory || fault!("dash-lh.array_leaks");
            self.each_array(|_, at| named |= at == block.at);
            return Ok(named);
        }
        let owner = self.dash().owner(block.at);
        if owner > self.state().count() || !self.has(owner) {
            return Ok(false);
        }
        let chained = self.dash().chain_of(self.segment(owner), CHAINED, owner)?;
        Ok(chained.contains(&block))
    }
}
