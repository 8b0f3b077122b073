//! Sets and gets of `v2`.

use std::ops::Range;

use farbank_pm::sync::{Arc, unpoisoned};
use farbank_pm::{Medium, Off, PersistCtx, Poisoned};

use super::index::{V2NodeId, V2Place};
use super::record::{self, HEADER};
use super::{START, V2Core, WritesPerRecord};
use crate::block::{AllottedBlock, UNIT, align16, offset};
use crate::engine::{EngineStats, Error, Key, Worker};
use crate::limits::hash_of;
use crate::space::{self, BlockUse, ThreadBlocks};

/// One thread's handle on the engine.
pub(super) struct V2Worker<M: Medium> {
    core: Arc<V2Core<M>>,
    own: V2ThreadState,
}

/// State of one thread.
struct V2ThreadState {
    ctx: PersistCtx,
    holding: ThreadBlocks,
    nodes: Range<u32>,
    record: Vec<u8>,
    tally: EngineStats,
}

impl<M: Medium> V2Worker<M> {
    pub(super) fn new(core: Arc<V2Core<M>>) -> V2Worker<M> {
        let holding = core.space.register_thread();
        V2Worker {
            own: V2ThreadState {
                ctx: PersistCtx::new(holding.thread as u32),
                holding,
                nodes: 0..0,
                record: Vec::new(),
                tally: EngineStats::default(),
            },
            core,
        }
    }
}

impl<M: Medium> Drop for V2Worker<M> {
    fn drop(&mut self) {
        *unpoisoned(self.core.tally.lock()) += self.own.tally;
        self.core.space.unregister_thread(self.own.holding.clone());
    }
}

impl<M: Medium> Worker for V2Worker<M> {
    fn set(&mut self, key: &Key, value: &[u8]) -> Result<(), Error> {
        self.core.set(&mut self.own, key, value)
    }

    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> bool {
        self.core.get(&mut self.own, key, out)
    }
}

impl<M: Medium> V2Core<M> {
    /// Initialises a new pool of zeros.
    pub(super) fn begin(&self, ctx: &mut PersistCtx) -> Result<(), Poisoned> {
        if self.tuning.preheat {
            space::preheat(&self.medium, ctx)?;
        }
        self.advance(ctx, START)
    }

    /// Stores `next` durably as the end of the last segment (V2-INV-1).
    fn advance(&self, ctx: &mut PersistCtx, next: u64) -> Result<(), Poisoned> {
        self.medium.copy_in(ctx, Off(0), &[&next.to_le_bytes()]);
        let ticket = self.medium.drain(ctx);
        self.medium.wait(ticket)
    }

    fn find(&self, own: &mut V2ThreadState, hash: u64, key: &Key) -> Option<V2NodeId> {
        let (node, probes) = self.index.find(hash, key);
        match node {
            Some(_) => own.tally.hit(probes),
            None => own.tally.miss(probes),
        }
        node
    }

    fn set(&self, own: &mut V2ThreadState, key: &Key, value: &[u8]) -> Result<(), Error> {
        let needed = align16(HEADER + value.len());
        self.space.check_block_bytes(needed);
        let hash = hash_of(key);
        let _stripe = self.stripes.lock(hash);
        self.cache.evict(hash, key);
        match self.find(own, hash, key) {
            None => self.insert(own, hash, (key, value), needed),
            Some(node) => {
                own.tally.updates += 1;
                let old = self.index.place(node);
                match self.spare_for(own, old, needed)? {
                    Some(spare) => self.swap(own, node, (key, value), spare),
                    None => self.append(own, node, (key, value), needed),
                }
            }
        }
    }

    fn insert(
        &self,
        own: &mut V2ThreadState,
        hash: u64,
        (key, value): (&Key, &[u8]),
        needed: usize,
    ) -> Result<(), Error> {
        let node = self.index.allot(&mut own.nodes)?;
        let block = match self.allot(own, needed, BlockUse::Insert) {
            Ok(block) => block,
            Err(error) => {
                self.index.release(&mut own.nodes, node);
                return Err(error);
            }
        };
        let place = self.write(own, (key, value), 1, block)?;
        self.index.insert(node, hash, key, place);
        own.tally.inserts += 1;
        Ok(())
    }

    /// Returns the spare to which an update of `old` is written, if the update is a swap.
    fn spare_for(
        &self,
        own: &mut V2ThreadState,
        old: V2Place,
        needed: usize,
    ) -> Result<Option<AllottedBlock>, Error> {
        if !self.tuning.swaps || old.block_bytes() < needed {
            return Ok(None);
        }
        self.make_spares(own)?;
        let Some(number) = self.space.spare(&own.holding, old.block_bytes()) else {
            return Ok(None);
        };
        let apart = u64::from(number.abs_diff(old.number)) * UNIT as u64;
        let moves =
            own.holding.appends_for_locality_left > 0 && apart > self.space.layout().segment_bytes;
        Ok((!moves).then_some(AllottedBlock {
            number,
            bytes: old.block_bytes(),
        }))
    }

    /// Cuts a spare of each size, until memory is full. Writes to each a header by which recovery recognises a spare.
    fn make_spares(&self, own: &mut V2ThreadState) -> Result<(), Error> {
        if std::mem::replace(&mut own.holding.has_spares, true) {
            return Ok(());
        }
        let (least, most) = self.space.layout().blocks;
        for bytes in (least..=most).step_by(UNIT) {
            let advance = |next| self.advance(&mut own.ctx, next);
            let spare = match self.space.append(&mut own.holding, bytes, advance) {
                Err(Error::Full) => return Ok(()),
                spare => spare?,
            };
            let word = record::spare(bytes);
            self.medium.copy_in(&mut own.ctx, Off(spare.at()), &[&word]);
            let ticket = self.medium.drain(&mut own.ctx);
            self.medium.wait(ticket)?;
            self.space.set_spare(&mut own.holding, spare);
        }
        Ok(())
    }

    fn swap(
        &self,
        own: &mut V2ThreadState,
        node: V2NodeId,
        pair: (&Key, &[u8]),
        spare: AllottedBlock,
    ) -> Result<(), Error> {
        let old = self.index.place(node);
        let place = self.write(own, pair, old.version.wrapping_add(1), spare)?;
        let old = AllottedBlock {
            number: old.number,
            ..spare
        };
        self.space.set_spare(&mut own.holding, old);
        self.index.set_place(node, place);
        own.tally.swaps += 1;
        Ok(())
    }

    fn append(
        &self,
        own: &mut V2ThreadState,
        node: V2NodeId,
        pair: (&Key, &[u8]),
        needed: usize,
    ) -> Result<(), Error> {
        let block = self.allot(own, needed, BlockUse::Update)?;
        own.holding.appends_for_locality_left =
            own.holding.appends_for_locality_left.saturating_sub(1);
        let old = self.index.place(node);
        let mut place = self.write(own, pair, old.version.wrapping_add(1), block)?;
        if !self.tuning.appends_count {
            place.version = old.version; // V2-DEFECT-3
        }
        let freed = AllottedBlock {
            number: old.number,
            bytes: old.block_bytes(),
        };
        self.space.free(own.holding.thread, freed);
        self.index.set_place(node, place);
        Ok(())
    }

    fn allot(
        &self,
        own: &mut V2ThreadState,
        bytes: usize,
        what: BlockUse,
    ) -> Result<AllottedBlock, Error> {
        let advance = |next| self.advance(&mut own.ctx, next);
        self.space.allot(&mut own.holding, bytes, what, advance)
    }

    /// Writes a record durably to `block` (V2-INV-2).
    fn write(
        &self,
        own: &mut V2ThreadState,
        pair: (&Key, &[u8]),
        version: u8,
        block: AllottedBlock,
    ) -> Result<V2Place, Poisoned> {
        record::encode(
            &mut own.record,
            pair,
            version,
            block.bytes,
            self.tuning.checksum,
        );
        let (ctx, at, mut bytes) = (&mut own.ctx, Off(block.at()), &own.record[..]);
        if self.tuning.writes == WritesPerRecord::Two {
            let (word, rest) = bytes.split_at(farbank_pm::WORD);
            self.medium
                .copy_in(ctx, at.plus(word.len() as u64), &[rest]);
            let ticket = self.medium.drain(ctx);
            self.medium.wait(ticket)?;
            bytes = word;
        }
        self.medium.copy_in(ctx, at, &[bytes]);
        let ticket = self.medium.drain(ctx);
        self.medium.wait(ticket)?;
        Ok(V2Place {
            number: block.number,
            version,
            size: (block.bytes / UNIT) as u8,
            value_bytes: pair.1.len() as u16,
        })
    }

    fn get(&self, own: &mut V2ThreadState, key: &Key, out: &mut Vec<u8>) -> bool {
        if self.tuning.value_reuse {
            out.clear();
        } else {
            *out = Vec::new();
        }
        let hash = hash_of(key);
        let _stripe = self.stripes.lock(hash);
        if !self.cache.is_off() {
            if self.cache.get(hash, key, out) {
                own.tally.cache_hits += 1;
                return true;
            }
            own.tally.cache_misses += 1;
        }
        let Some(node) = self.find(own, hash, key) else {
            return false;
        };
        let place = self.index.place(node);
        let value = Off(offset(place.number)).plus(HEADER as u64);
        self.medium
            .append_out(value, usize::from(place.value_bytes), out);
        self.cache.fill(hash, key, out);
        true
    }
}
