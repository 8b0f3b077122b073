//! Growth: a larger array replaces one with too many chained buckets.

use farbank_pm::sync::atomic::Ordering;
use farbank_pm::{Medium, Off, WORD, fault, situation};

use super::Clht;
use super::copy::CopyOutcome;
use super::layout::{ARRAY, Array, BITS_MAX, CHAINED, OLD, YOUNG};
use crate::error::{IndexError, OpenError};
use crate::pool_heap::TableWorker;

impl<M: Medium> Clht<M> {
    /// Creates the first array. A crash before it is completely durable leaves no table.
    pub(super) fn make_first(&self) -> Result<(), OpenError> {
        let mut worker = self.table_pool.worker()?;
        let array = self.take_run(&mut worker, self.config.bits)?;
        (self.table_pool).clear(&mut worker.ctx, array.at, array.bytes());
        Ok(self.table_pool.set_root(&mut worker, ARRAY, array.word())?)
    }

    /// Allocates a run for an array. It is in doubt until a word of the root names it durably.
    fn take_run(&self, worker: &mut TableWorker, bits: u32) -> Result<Array, IndexError> {
        let array = Array {
            at: Off::NULL,
            bits,
        };
        let at = self.table_pool.allocate_run(worker, array.bytes())?;
        Ok(Array { at, bits })
    }

    /// Returns the number of chained buckets at which `array` is replaced.
    pub(super) fn limit(&self, array: Array) -> u64 {
        let percent = u64::from(self.config.chained_percent);
        (array.buckets().saturating_mul(percent) / 100).max(1)
    }

    /// Replaces `old` by a larger array, unless another worker has already. If another worker is replacing it, helps.
    /// If space is lacking or a chain is damaged, the array stays and chains get longer; a later insert tries again.
    pub(super) fn grow(&self, worker: &mut TableWorker, old: Array) -> Result<(), IndexError> {
        let Ok(_growing) = self.growing.try_lock() else {
            self.help(worker, old);
            return Ok(());
        };
        let chained = self.chained.load(Ordering::Relaxed);
        if self.array() != old || chained < self.grow_at.load(Ordering::Relaxed) {
            return Ok(());
        }
        let _for = worker.reshape();
        match self.replace(worker, old) {
            Err(
                IndexError::Full { .. } | IndexError::Crowded { .. } | IndexError::Damaged { .. },
            ) => {
                situation!("clht.not_replaced");
                let later = self.chained.load(Ordering::Relaxed) / 8 * 9 + 1;
                self.grow_at.store(later, Ordering::Relaxed);
                Ok(())
            }
            other => other,
        }
    }

    fn replace(&self, worker: &mut TableWorker, old: Array) -> Result<(), IndexError> {
        let bits = old.bits + self.config.growth_bits;
        if bits > BITS_MAX {
            return Err(IndexError::Crowded { bits: old.bits });
        }
        let young = self.take_run(worker, bits)?;
        worker.commit(self.table_pool.medium())?;
        if !fault!("clht.young_not_named") {
            self.name_both(worker, young, old)?;
        }
        let CopyOutcome {
            made,
            left,
            refused,
        } = self.copy(worker, old, young);
        if let Some(refused) = refused {
            self.copying.end();
            self.dismantle(worker, YOUNG, young, made)?;
            return Err(refused);
        }
        let published = self.table_pool.set_root(worker, ARRAY, young.word()); // IX-CLHT-5
        if published.is_ok() {
            situation!("clht.replaced");
            self.chained.store(made.len() as u64, Ordering::Relaxed);
            self.grow_at.store(self.limit(young), Ordering::Relaxed);
            self.array.store(young.word(), Ordering::Release);
        }
        self.copying.end();
        published?;
        self.dismantle(worker, OLD, old, left)
    }

    /// Names the new and the old array in the root, before the first bucket is allocated for the new one.
    fn name_both(
        &self,
        worker: &mut TableWorker,
        young: Array,
        old: Array,
    ) -> Result<(), IndexError> {
        let medium = self.table_pool.medium();
        medium.store(&mut worker.ctx, self.table_pool.root(YOUNG), young.word());
        medium.store(&mut worker.ctx, self.table_pool.root(OLD), old.word());
        medium.flush(&mut worker.ctx, self.table_pool.root(YOUNG), 2 * WORD);
        worker.commit(medium)
    }

    /// Frees the array in word `named` of the root, and its chained buckets (IX-CLHT-7).
    pub(super) fn dismantle(
        &self,
        worker: &mut TableWorker,
        named: u64,
        array: Array,
        chained: Vec<Off>,
    ) -> Result<(), IndexError> {
        let freed = self
            .table_pool
            .free_all(worker, CHAINED, chained, |worker| {
                self.table_pool.about_to_free(worker, array.at)
            })?;
        self.table_pool.set_root(worker, named, 0)?;
        self.table_pool.free(worker, freed);
        Ok(())
    }
}
