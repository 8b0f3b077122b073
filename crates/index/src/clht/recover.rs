//! Recovery: by the open, and at the first access to a chain.

use farbank_pm::sync::atomic::Ordering;
use farbank_pm::{LINE, Medium, Off, situation};

use super::Clht;
use super::layout::{ARRAY, Array, BITS_MAX, CHAINED, OLD, YOUNG};
use crate::error::{IndexError, OpenError};
use crate::pool_heap::{HeapBlock, TableWorker};

impl<M: Medium> Clht<M> {
    /// Frees an array that a crash left partly built or partly freed, then the blocks in doubt. Reads a few words per
    /// context, and all chains only after a crash inside a resize.
    pub(super) fn recover(&self) -> Result<(), OpenError> {
        let array = self.named(ARRAY)?.ok_or_else(|| OpenError::Damaged {
            what: format!("the root's word {ARRAY} is 0, expected the array"),
        })?;
        let mut worker = self.table_pool.worker()?;
        for word in [YOUNG, OLD] {
            match self.named(word)? {
                Some(other) if other != array => {
                    situation!("clht.young_freed_by_open", word == YOUNG);
                    situation!("clht.old_freed_by_open", word == OLD);
                    self.table_pool.flush_bits(&mut worker, CHAINED);
                    let chained = self.unreferenced_buckets(array)?;
                    self.dismantle(&mut worker, word, other, chained)?;
                }
                _ => {}
            }
        }
        // The links to a block in doubt must be durable, because the worker's next allocation replaces this intent.
        for ctx in 0..self.table_pool.contexts() {
            for block in self.table_pool.in_doubt(ctx)? {
                if block.class.is_some() && self.is_live(array, block)? {
                    situation!("clht.chain_in_doubt");
                    let medium = self.table_pool.medium();
                    self.each_bucket(Off(medium.load(block.at)), |bucket| {
                        medium.flush(&mut worker.ctx, bucket, LINE);
                    });
                }
            }
        }
        self.table_pool
            .recover(&mut worker, |block| self.is_live(array, block))
    }

    /// Returns the array in word `n` of the root, if the word is not 0.
    fn named(&self, n: u64) -> Result<Option<Array>, OpenError> {
        let word = self.table_pool.medium().load(self.table_pool.root(n));
        if word == 0 {
            return Ok(None);
        }
        let array = Array::of(word);
        if !(self.config.bits..=BITS_MAX).contains(&array.bits) {
            return Err(OpenError::Damaged {
                what: format!(
                    "the root's word {n} is {word:#x}, an array of 2^{} buckets, expected 2^{} to 2^{BITS_MAX}",
                    array.bits, self.config.bits
                ),
            });
        }
        let referrer = format!("the array in the root's word {n}");
        self.table_pool
            .check_run(&referrer, array.at, array.bytes())?;
        Ok(Some(array))
    }

    /// Returns the allocated chained buckets that are in no chain of `array`.
    fn unreferenced_buckets(&self, array: Array) -> Result<Vec<Off>, IndexError> {
        let mut found = Vec::new();
        for block in self.table_pool.allocated_blocks(CHAINED) {
            if !self.is_live(array, block)? {
                found.push(block.at);
            }
        }
        Ok(found)
    }

    fn is_live(&self, array: Array, block: HeapBlock) -> Result<bool, IndexError> {
        if block.class.is_none() {
            return Ok(block.at == array.at);
        }
        let first = Off(self.table_pool.medium().load(block.at));
        Ok(array.has(first) && self.chain_of(first)?.contains(&block))
    }

    /// Validates the chains that share the lock of `first` (IX-CLHT-8), makes durable what a killed process left in them, and
    /// counts their chained buckets.
    #[cold]
    pub(super) fn persist_on_first_access(
        &self,
        worker: &mut TableWorker,
        array: Array,
        first: Off,
    ) -> Result<(), IndexError> {
        let medium = self.table_pool.medium();
        let from = Off(first.0 & !(self.config.lock_bytes() - 1));
        let mut chained = 0;
        for n in 0..1 << self.config.lock_bits {
            let first = from.plus(n * LINE as u64);
            let others = self.chain_of(first)?;
            let others = others.into_iter().map(|block| block.at);
            for bucket in std::iter::once(first).chain(others) {
                medium.flush(&mut worker.ctx, bucket, LINE);
                chained += u64::from(!array.has(bucket));
            }
        }
        worker.commit(medium)?;
        self.chained.fetch_add(chained, Ordering::Relaxed);
        Ok(())
    }
}
