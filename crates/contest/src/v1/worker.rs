//! Sets and gets of `v1`.

use farbank_pm::medium::persist;
use farbank_pm::sync::{Arc, unpoisoned};
use farbank_pm::{Medium, Off, PersistCtx, Poisoned};

use super::V1Core;
use super::chain::{HEADER, V1Header, V1Record, ValuePlace, WORD};
use crate::block::{AllottedBlock, UNIT, align16};
use crate::engine::{EngineStats, Error, Key, Worker};
use crate::limits::hash_of;
use crate::space::{BlockUse, ThreadBlocks};

/// One thread's handle on the engine.
pub(super) struct V1Worker<M: Medium> {
    core: Arc<V1Core<M>>,
    own: V1ThreadState,
}

/// State of one thread.
struct V1ThreadState {
    ctx: PersistCtx,
    holding: ThreadBlocks,
    tally: EngineStats,
}

impl<M: Medium> V1Worker<M> {
    pub(super) fn new(core: Arc<V1Core<M>>) -> V1Worker<M> {
        let holding = core.space.register_thread();
        V1Worker {
            own: V1ThreadState {
                ctx: PersistCtx::new(holding.thread as u32),
                holding,
                tally: EngineStats::default(),
            },
            core,
        }
    }
}

impl<M: Medium> Drop for V1Worker<M> {
    fn drop(&mut self) {
        *unpoisoned(self.core.tally.lock()) += self.own.tally;
        self.core.space.unregister_thread(self.own.holding.clone());
    }
}

impl<M: Medium> Worker for V1Worker<M> {
    fn set(&mut self, key: &Key, value: &[u8]) -> Result<(), Error> {
        self.core.set(&mut self.own, key, value)
    }

    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> bool {
        self.core.get(&mut self.own, key, out)
    }
}

impl<M: Medium> V1Core<M> {
    fn find_for(&self, own: &mut V1ThreadState, hash: u64, key: &Key) -> Option<V1Record> {
        let (found, probes) = self.find(hash, key);
        match found {
            Some(_) => own.tally.hit(probes),
            None => own.tally.miss(probes),
        }
        found
    }

    fn set(&self, own: &mut V1ThreadState, key: &Key, value: &[u8]) -> Result<(), Error> {
        let room = align16(value.len());
        self.space.check_block_bytes(HEADER + room);
        let hash = hash_of(key);
        let _stripe = self.stripes.lock(hash);
        self.cache.evict(hash, key);
        let Some(found) = self.find_for(own, hash, key) else {
            return self.insert(own, hash, key, value);
        };
        own.tally.updates += 1;
        let old = AllottedBlock {
            number: found.place.value,
            bytes: usize::from(found.place.room),
        };
        if let Some(spare) = self.spare_for(own, old, room)? {
            self.move_value(own, found, spare, value)?;
            self.space.set_spare(&mut own.holding, old);
            own.tally.swaps += 1;
        } else {
            let block = self.allot(own, room, BlockUse::Update)?;
            self.move_value(own, found, block, value)?;
            self.space.free(own.holding.thread, old);
        }
        Ok(())
    }

    fn insert(
        &self,
        own: &mut V1ThreadState,
        hash: u64,
        key: &Key,
        value: &[u8],
    ) -> Result<(), Error> {
        let block = self.allot(own, HEADER + align16(value.len()), BlockUse::Insert)?;
        let header = V1Header {
            next: self.head(hash),
            key: *key,
            place: ValuePlace {
                value: block.number + (HEADER / UNIT) as u32,
                room: (block.bytes - HEADER) as u16,
                length: value.len() as u16,
            },
        };
        self.write(own, Off(block.at()), &[&header.encode(), value])?;
        self.store_word_durably(own, self.head_at(hash), u64::from(block.number))?;
        self.mirror_head(hash, u64::from(block.number));
        own.tally.inserts += 1;
        Ok(())
    }

    /// Returns the spare to which an update of `old` is written, if the update is a swap.
    fn spare_for(
        &self,
        own: &mut V1ThreadState,
        old: AllottedBlock,
        room: usize,
    ) -> Result<Option<AllottedBlock>, Error> {
        if !self.tuning.swaps || old.bytes < room {
            return Ok(None);
        }
        self.make_spares(own)?;
        let spare = self.space.spare(&own.holding, old.bytes);
        Ok(spare.map(|number| AllottedBlock { number, ..old }))
    }

    /// Cuts a spare of each size, until memory is full.
    fn make_spares(&self, own: &mut V1ThreadState) -> Result<(), Error> {
        if std::mem::replace(&mut own.holding.has_spares, true) {
            return Ok(());
        }
        let layout = self.space.layout();
        let most = layout.blocks.1 - HEADER;
        for bytes in (layout.blocks.0..=most).step_by(UNIT) {
            match self.space.append(&mut own.holding, bytes, |_| Ok(())) {
                Err(Error::Full) => break,
                spare => self.space.set_spare(&mut own.holding, spare?),
            }
        }
        Ok(())
    }

    fn allot(
        &self,
        own: &mut V1ThreadState,
        bytes: usize,
        what: BlockUse,
    ) -> Result<AllottedBlock, Error> {
        self.space.allot(&mut own.holding, bytes, what, |_| Ok(()))
    }

    /// Writes the value to `block`, then makes the record refer to it (V1-INV-1).
    fn move_value(
        &self,
        own: &mut V1ThreadState,
        found: V1Record,
        block: AllottedBlock,
        value: &[u8],
    ) -> Result<(), Poisoned> {
        self.write(own, Off(block.at()), &[value])?;
        let place = ValuePlace {
            value: block.number,
            room: block.bytes as u16,
            length: value.len() as u16,
        };
        self.store_word_durably(own, found.record.plus(WORD as u64), place.word())
    }

    /// Writes bytes durably. Nothing refers to them yet.
    fn write(&self, own: &mut V1ThreadState, at: Off, parts: &[&[u8]]) -> Result<(), Poisoned> {
        self.medium.copy_in(&mut own.ctx, at, parts);
        let ticket = self.medium.drain(&mut own.ctx);
        self.medium.wait(ticket)
    }

    /// Stores a word durably (V1-INV-2).
    fn store_word_durably(
        &self,
        own: &mut V1ThreadState,
        at: Off,
        word: u64,
    ) -> Result<(), Poisoned> {
        self.medium.store(&mut own.ctx, at, word);
        persist(&self.medium, &mut own.ctx, at, size_of::<u64>())
    }

    fn get(&self, own: &mut V1ThreadState, key: &Key, out: &mut Vec<u8>) -> bool {
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
        let Some(found) = self.find_for(own, hash, key) else {
            return false;
        };
        let (at, length) = (found.place.value_at(), found.place.length);
        self.medium.append_out(at, usize::from(length), out);
        self.cache.fill(hash, key, out);
        true
    }
}
