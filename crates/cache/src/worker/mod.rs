//! A session's worker: finds items, and free slots for new ones.
//!
//! ```text
//!   get     pin ─ walk the chain (DRAM) ─ copy the item ─ check its crc ─ unpin
//!   put     slot from the slot cache, a page or an eviction (`slots`) ─ stage in the batch (`writer`)
//!   evict   lock: choose, lock keys ─ mark dead ─ drain ─ lock: unlink ─ release key locks
//! ```
//!
//! * `slots` finds free slots and evicts items.
//! * `evacuation` empties pages, and removes expired and cleared items.
//! * `sizing` grows and shrinks the pool, and moves pages between classes.
//!
//! # Invariants
//! MDB-WORK-1  A session makes an item durably dead before it unlinks it. So only the newest of a key's versions on the
//!     medium can come back, in whatever way the newest one is removed.
//! MDB-WORK-2  An item is durable before it is published. So a power cut cannot lose an item that a reader has seen, unless a
//!     write of the same key was under way.
//! MDB-WORK-3  A slot is used again only after every reader that could have found it has unpinned.
//! MDB-WORK-4  The lock is never held while far memory is read or written. A key lock is held, because it serialises the
//!     writers of the key.
//! MDB-WORK-5  A session never waits for a key lock or for a free slot while pinned.
//!
//! # Crash argument
//! | crash before drain of | recovery sees                               | recovery does                           |
//! |-----------------------|---------------------------------------------|-----------------------------------------|
//! | a put                 | old item live or dead, new one whole or not | keeps the newest whole item, or none    |
//! | a delete              | the item live or dead                       | keeps it if it is live                  |
//! | an eviction           | the item live or dead                       | keeps it if live: it is the newest (MDB-WORK-1) |

mod evacuation;
mod sizing;
mod slots;

use farbank_pm::epoch::EpochSlot as PinSlot;
use farbank_pm::sync::{Arc, Mutex};
use farbank_pm::{Medium, Off, PersistCounters, PersistCtx};
use farbank_store::{Error, ItemKey};

use crate::engine::Engine;
use crate::item::FoundItem;
use crate::layout::ItemHeader;
use crate::metadata::SlotId;
use crate::slot_cache::SlotCache;

/// Reads that a session buffers before it updates the LRU lists.
const BUFFERED_READS: usize = 64;

/// Worker of one session, or of maintenance.
pub(crate) struct CacheWorker<N: Medium, F: Medium> {
    engine: Arc<Engine<N, F>>,
    ctx: PersistCtx,
    pin: PinSlot,
    slot_cache: Arc<Mutex<SlotCache>>,
    /// Whether the slot cache holds many retired slots.
    has_many_retired: bool,
    /// Slots and tags of the items read since the last update of the LRU lists.
    buffered_reads: Vec<(SlotId, u32)>,
}

impl<N: Medium, F: Medium> CacheWorker<N, F> {
    pub(crate) fn new(engine: Arc<Engine<N, F>>) -> CacheWorker<N, F> {
        let (number, pin, slot_cache) = engine.sessions().add();
        CacheWorker {
            ctx: PersistCtx::new(number),
            pin,
            slot_cache,
            has_many_retired: false,
            buffered_reads: Vec::with_capacity(BUFFERED_READS),
            engine,
        }
    }

    #[inline]
    pub(crate) fn engine(&self) -> &Arc<Engine<N, F>> {
        &self.engine
    }

    /// Returns the worker's operations on the data medium so far.
    pub(crate) fn persist_counters(&self) -> PersistCounters {
        self.ctx.counters
    }

    // -- reading

    #[inline]
    pub(crate) fn pin(&self) {
        self.engine.sessions().epochs().pin(&self.pin);
    }

    #[inline]
    pub(crate) fn unpin(&self) {
        self.pin.unpin();
    }

    /// Returns the item of `name`, if it is live. Needs a pin.
    #[inline]
    pub(crate) fn find_live(&self, hash: u64, name: &ItemKey<'_>) -> Option<FoundItem> {
        let found = self.engine.find(hash, name);
        found.filter(|found| self.engine.is_live(found))
    }

    /// Appends the value of `found` to `out`. Returns false, with nothing appended, if its crc is wrong.
    #[inline]
    pub(crate) fn copy_value(
        &self,
        found: &FoundItem,
        name: &ItemKey<'_>,
        out: &mut Vec<u8>,
    ) -> bool {
        let engine = &*self.engine;
        let is_valid = engine
            .data()
            .copy_value(found.at, &found.head, name.key, out);
        if !is_valid {
            engine.counters().add_damaged();
        }
        is_valid
    }

    /// Records a read of `found`, which makes it the newest of its LRU list at the next update. With S3-FIFO, counts the
    /// read at once.
    #[inline]
    pub(crate) fn used(&mut self, found: &FoundItem, hash: u64) {
        if self.engine.note_use(found.slot) {
            return;
        }
        self.buffered_reads.push((found.slot, (hash >> 32) as u32));
        if self.buffered_reads.len() >= BUFFERED_READS {
            self.update_lru_lists();
        }
    }

    /// Updates the LRU lists with the buffered reads.
    pub(crate) fn update_lru_lists(&mut self) {
        if self.buffered_reads.is_empty() {
            return;
        }
        let mut locked = self.engine.lock();
        for (slot, tag) in self.buffered_reads.drain(..) {
            locked.mark_recently_used(slot, tag);
        }
    }

    // -- writing

    /// Writes an item into `slot`, which the worker holds. Durable after the next drain.
    pub(crate) fn write_item(&mut self, slot: SlotId, head: &ItemHeader, key: &[u8], value: &[u8]) {
        let at = self.engine.place_of(slot).expect("its page has a class");
        self.engine
            .data()
            .write_item(&mut self.ctx, at, head, key, value);
    }

    /// Marks the item at `at` dead. Durable after the next drain.
    pub(crate) fn mark_dead(&mut self, at: Off) {
        self.engine.data().mark_dead(&mut self.ctx, at);
    }

    /// Drains and waits.
    pub(crate) fn drain(&mut self) -> Result<(), Error> {
        Ok(self.engine.data().drain(&mut self.ctx)?)
    }

    /// Removes all current items of every area, durably on `Ok`.
    pub(crate) fn clear_all(&mut self) -> Result<(), Error> {
        self.engine.clear(&mut self.ctx, None)
    }

    // -- time

    /// Follows the wall clock if it has differed from the cache's clock for long enough.
    pub(crate) fn follow_clock(&mut self) -> Result<(), Error> {
        Ok(self.engine.follow_clock(&mut self.ctx)?)
    }

    /// Records the clock durably.
    pub(crate) fn keep_time(&mut self) -> Result<(), Error> {
        Ok(self.engine.keep_time(&mut self.ctx)?)
    }
}

impl<N: Medium, F: Medium> Drop for CacheWorker<N, F> {
    fn drop(&mut self) {
        if !self.engine.is_own_process() {
            return; // A forked child: this state belongs to its parent.
        }
        // Slots that are still read stay in the slot cache, which other sessions can empty.
        self.return_all_slots();
    }
}
