//! Sets and gets of `v1`.

use farbank_pm::medium::persist;
use farbank_pm::sync::Arc;
use farbank_pm::{Lane, Medium, Off, Poisoned};

use super::Core;
use super::chain::{Found, Header, Place, WORD};
use crate::engine::{Error, Key, Tally, Worker};
use crate::space::{Block, For, Holding, UNIT, align16};
use crate::terms::hash_of;

/// Bytes of a record before its first value.
pub(super) const HEADER: usize = 32;

/// One thread's door.
pub(super) struct Door<M: Medium> {
    core: Arc<Core<M>>,
    own: Own,
}

/// What belongs to one thread.
struct Own {
    lane: Lane,
    holding: Holding,
    tally: Tally,
}

impl<M: Medium> Door<M> {
    pub(super) fn new(core: Arc<Core<M>>) -> Door<M> {
        let holding = core.space.enter();
        Door {
            own: Own {
                lane: Lane::new(holding.thread as u32),
                holding,
                tally: Tally::default(),
            },
            core,
        }
    }
}

impl<M: Medium> Drop for Door<M> {
    fn drop(&mut self) {
        *self.core.tally.lock().expect("no holder panics") += self.own.tally;
        self.core.space.leave(self.own.holding.clone());
    }
}

impl<M: Medium> Worker for Door<M> {
    fn set(&mut self, key: &Key, value: &[u8]) -> Result<(), Error> {
        self.core.set(&mut self.own, key, value)
    }

    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> bool {
        self.core.get(&mut self.own, key, out)
    }
}

impl<M: Medium> Core<M> {
    fn find_for(&self, own: &mut Own, hash: u64, key: &Key) -> Option<Found> {
        let (found, probes) = self.find(hash, key);
        match found {
            Some(_) => own.tally.hit(probes),
            None => own.tally.miss(probes),
        }
        found
    }

    fn set(&self, own: &mut Own, key: &Key, value: &[u8]) -> Result<(), Error> {
        let room = align16(value.len());
        self.space.check(HEADER + room);
        let hash = hash_of(key);
        let _stripe = self.stripes.lock(hash);
        self.cache.forget(hash, key);
        let Some(found) = self.find_for(own, hash, key) else {
            return self.insert(own, hash, key, value);
        };
        own.tally.updates += 1;
        let old = Block {
            number: found.place.value,
            bytes: usize::from(found.place.room),
        };
        if let Some(spare) = self.spare_for(own, old, room)? {
            self.move_value(own, found, spare, value)?;
            self.space.keep_spare(&mut own.holding, old);
            own.tally.swaps += 1;
        } else {
            let block = self.allot(own, room, For::Update)?;
            self.move_value(own, found, block, value)?;
            self.space.free(own.holding.thread, old);
        }
        Ok(())
    }

    fn insert(&self, own: &mut Own, hash: u64, key: &Key, value: &[u8]) -> Result<(), Error> {
        let block = self.allot(own, HEADER + align16(value.len()), For::Insert)?;
        let header = Header {
            prev: self.head(hash),
            key: *key,
            place: Place {
                value: block.number + (HEADER / UNIT) as u32,
                room: (block.bytes - HEADER) as u16,
                length: value.len() as u16,
            },
        };
        self.write(own, Off(block.at()), &[&header.encode(), value])?;
        self.switch(own, self.head_at(hash), u64::from(block.number))?;
        self.keep_head(hash, u64::from(block.number));
        own.tally.inserts += 1;
        Ok(())
    }

    /// The spare that an update of `old` is to be swapped with, if it is to be.
    fn spare_for(&self, own: &mut Own, old: Block, room: usize) -> Result<Option<Block>, Error> {
        if !self.tuning.swaps || old.bytes < room {
            return Ok(None);
        }
        self.make_spares(own)?;
        let spare = self.space.spare(&own.holding, old.bytes);
        Ok(spare.map(|number| Block { number, ..old }))
    }

    /// Cuts a spare of each size, as far as there is room.
    fn make_spares(&self, own: &mut Own) -> Result<(), Error> {
        if std::mem::replace(&mut own.holding.has_spares, true) {
            return Ok(());
        }
        let layout = self.space.layout();
        let most = layout.blocks.1 - HEADER;
        for bytes in (layout.blocks.0..=most).step_by(UNIT) {
            match self.space.append(&mut own.holding, bytes, |_| Ok(())) {
                Err(Error::Full) => break,
                spare => self.space.keep_spare(&mut own.holding, spare?),
            }
        }
        Ok(())
    }

    fn allot(&self, own: &mut Own, bytes: usize, what: For) -> Result<Block, Error> {
        self.space.allot(&mut own.holding, bytes, what, |_| Ok(()))
    }

    /// Writes the value to `block`, then has the record lead there (I1).
    fn move_value(
        &self,
        own: &mut Own,
        found: Found,
        block: Block,
        value: &[u8],
    ) -> Result<(), Poisoned> {
        self.write(own, Off(block.at()), &[value])?;
        let place = Place {
            value: block.number,
            room: block.bytes as u16,
            length: value.len() as u16,
        };
        self.switch(own, found.record.plus(WORD as u64), place.word())
    }

    /// Writes what nothing leads to yet, durably.
    fn write(&self, own: &mut Own, at: Off, parts: &[&[u8]]) -> Result<(), Poisoned> {
        self.medium.copy_in(&mut own.lane, at, parts);
        let ticket = self.medium.drain(&mut own.lane);
        self.medium.wait(ticket)
    }

    /// Stores a word, durably (I2).
    fn switch(&self, own: &mut Own, at: Off, word: u64) -> Result<(), Poisoned> {
        self.medium.store(&mut own.lane, at, word);
        persist(&self.medium, &mut own.lane, at, size_of::<u64>())
    }

    fn get(&self, own: &mut Own, key: &Key, out: &mut Vec<u8>) -> bool {
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
