//! The first access to a segment after an open: validation and repair.

use std::collections::BTreeSet;

use farbank_pm::simd::ones;
use farbank_pm::{Medium, Off, PersistCtx, fault, situation};

use super::layout::{BucketPairs, OverflowWord, PairBits};
use super::{DashSegments, KeyHashes};
use crate::error::IndexError;
use crate::pool_heap::{HeapBlock, TableWorker};

impl<M: Medium> DashSegments<'_, M> {
    /// Checks that a segment's bits are valid, and that its chained buckets are allocated and name this segment (IX-DASH-6).
    #[cold]
    pub(crate) fn validate(&self, segment: Off) -> Result<(), IndexError> {
        if let Some(class) = self.form.chain {
            let owner = self.medium.load(segment);
            self.chain_of(segment, class, owner)?;
        }
        let room = (1 << self.form.shape.slots) - 1;
        for (bucket, _) in self.buckets(segment) {
            let bits = self.bits(bucket);
            if bits.live() & !room != 0 || bits.guests() & !bits.live() != 0 {
                return Err(IndexError::damaged(format!(
                    "the bits of bucket {bucket:?} in segment {segment:?} are {:#x}; expected live pairs within mask {room:#x}, and \
                     guests only among the live pairs",
                    bits.0
                )));
            }
        }
        Ok(())
    }

    /// Returns the buckets chained to the stash of a segment that is not validated yet. Checks that each is allocated
    /// and names `owner`.
    pub(crate) fn chain_of(
        &self,
        segment: Off,
        class: usize,
        owner: u64,
    ) -> Result<Vec<HeapBlock>, IndexError> {
        let first = Off(self.medium.load(self.last_stash(segment)));
        let referrer = "the stash of segment";
        let next = |at| Off(self.medium.load(at));
        self.table_pool.chain((referrer, segment), first, class, next, |block| {
            let says = self.owner(block.at);
            if says == owner && self.table_pool.is_block(block.at, class) {
                return Ok(());
            }
            Err(IndexError::damaged(format!(
                "{referrer} {segment:?} leads to {:?}, expected an allocated bucket of segment {owner:#x}, found owner {says:#x}",
                block.at
            )))
        })
    }

    /// Runs at the first access to a segment after an open: makes it durable, completes what a crash interrupted, then
    /// rebuilds the words about the stash.
    #[cold]
    pub(crate) fn persist_on_first_access(
        &self,
        worker: &mut TableWorker,
        segment: Off,
        keys: &KeyHashes<'_>,
    ) -> Result<(), IndexError> {
        self.flush(&mut worker.ctx, segment);
        worker.commit(self.medium)?;
        let mut mended = self.drop_foreign(&mut worker.ctx, segment, keys);
        situation!("dash.split_mended", mended);
        if !fault!("dash.no_mending") {
            for n in 0..self.form.shape.buckets() {
                let displaced = self.drop_displaced(&mut worker.ctx, segment, n);
                situation!("dash.displaced_twice", displaced);
                mended |= displaced;
            }
            let homed = self.drop_homed(&mut worker.ctx, segment, keys);
            situation!("dash.brought_home_twice", homed);
            mended |= homed;
        }
        if mended {
            worker.commit(self.medium)?;
        }
        self.rebuild_overflow_words(&mut worker.ctx, segment, keys);
        Ok(())
    }

    /// Marks dead the live pairs of a bucket whose keys satisfy `meant`, and flushes the bits. Returns whether there
    /// were any.
    fn drop_some(&self, ctx: &mut PersistCtx, bucket: Off, meant: impl Fn(u64) -> bool) -> bool {
        let bits = self.bits(bucket);
        let (dead, _) = self.those(bucket, bits, meant);
        if dead != 0 {
            self.set_bits(ctx, bucket, bits.without(dead));
            self.flush_bits(ctx, bucket);
        }
        dead != 0
    }

    /// Returns the mask of the live pairs whose keys satisfy `meant`, and all pairs of the bucket.
    pub(super) fn those(
        &self,
        bucket: Off,
        bits: PairBits,
        meant: impl Fn(u64) -> bool,
    ) -> (u64, BucketPairs) {
        let pairs = self.pairs(bucket);
        let found = ones(bits.live()).filter(|slot| meant(pairs.pair(*slot).0));
        (found.fold(0, |mask, slot| mask | 1 << slot), pairs)
    }

    /// Marks dead, with a flush, the guests that are also in their home, bucket `n` (IX-DASH-2).
    fn drop_displaced(&self, ctx: &mut PersistCtx, segment: Off, n: u64) -> bool {
        let (home, next) = (self.bucket(segment, n), self.bucket(segment, n + 1));
        let residents = ones(self.bits(home).residents());
        let residents: BTreeSet<u64> = residents.map(|slot| self.pair(home, slot).0).collect();
        self.drop_some(ctx, next, |key| residents.contains(&key))
    }

    /// Marks dead, with a flush, the pairs of the stash that are also in their home or next bucket (IX-DASH-2).
    fn drop_homed(&self, ctx: &mut PersistCtx, segment: Off, keys: &KeyHashes<'_>) -> bool {
        let mut dropped = false;
        for bucket in self.stashes(segment) {
            let homed = |key| self.find_near(segment, keys.place(key), key).is_some();
            dropped |= self.drop_some(ctx, bucket, homed);
        }
        dropped
    }

    /// Rebuilds the buckets' words about the stash (IX-DASH-4).
    pub(crate) fn rebuild_overflow_words(
        &self,
        ctx: &mut PersistCtx,
        segment: Off,
        keys: &KeyHashes<'_>,
    ) {
        let homes = (0..self.form.shape.buckets()).map(|n| self.bucket(segment, n));
        for home in homes.filter(|home| self.overflow(*home) != OverflowWord::NONE) {
            self.medium.store(ctx, home, OverflowWord::NONE.0); // other lines stay clean
        }
        for (n, bucket) in (0..).zip(self.stashes(segment)) {
            for slot in ones(self.bits(bucket).live()) {
                let place = keys.place(self.pair(bucket, slot).0);
                self.note(ctx, segment, place, n);
            }
        }
    }

    /// Marks dead, with a flush, the pairs whose keys do not belong to the segment. Returns whether there were any.
    pub(crate) fn drop_foreign(
        &self,
        ctx: &mut PersistCtx,
        segment: Off,
        keys: &KeyHashes<'_>,
    ) -> bool {
        let mut dropped = false;
        for (bucket, _) in self.buckets(segment) {
            dropped |= self.drop_some(ctx, bucket, |key| !keys.own(key));
        }
        dropped
    }
}
