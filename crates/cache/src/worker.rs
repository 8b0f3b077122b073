//! A session's worker: finds items, and free slots for new ones.
//!
//! ```text
//!   get     pin ─ walk the chain (DRAM) ─ copy the item ─ check its crc ─ unpin
//!   put     slot from the slot cache, a page or an eviction ─ stage in the batch (`batch`)
//!   evict   lock: choose, lock keys ─ mark dead ─ drain ─ lock: unlink ─ release key locks
//! ```
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

use std::time::Duration;

use farbank_pm::epoch::EpochSlot as PinSlot;
use farbank_pm::sync::atomic::Ordering;
use farbank_pm::sync::{Arc, Mutex, thread};
use farbank_pm::{Medium, Off, PersistCtx, fault, situation};
use farbank_store::{ConflictPolicy, Error, ItemKey, ValueMeta};

use crate::batch::SessionBatch;
use crate::engine::Engine;
use crate::key_locks::KeyLocks;
use crate::layout::{HIDDEN, ITEM_HEAD_BYTES, ItemHeader};
use crate::metadata::{LruLink, SlotId, follow};
use crate::slot_cache::{SlotCache, lock_cache};
use crate::state::EvictionVictim;

/// Reads that a session buffers before it updates the LRU lists.
const BUMPS: usize = 64;
/// Number of retired slots at which a session tries to reclaim them.
const RETIRED_SLOTS_MAX: usize = 64;
/// Attempts of a writer to get a slot before it fails with a full cache. Readers that hold up retired slots may not
/// have a CPU.
const SLOT_ATTEMPTS: usize = 10_000;
/// Number of attempts that yield the CPU. Later attempts sleep, so that all attempts last at least half a second.
const YIELDS: usize = 1_000;
/// Time of one sleep.
const SLEEP: Duration = Duration::from_micros(50);

/// An item found on the data medium.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundItem {
    pub(crate) slot: SlotId,
    pub(crate) at: Off,
    pub(crate) head: ItemHeader,
}

impl FoundItem {
    /// Returns whether ordinary reads show the item. A hidden item needs
    /// [`CacheSession::get_hidden`](crate::CacheSession).
    pub(crate) fn is_shown(&self) -> bool {
        self.head.marks & HIDDEN == 0
    }

    pub(crate) fn meta(&self) -> ValueMeta {
        ValueMeta {
            value_bytes: self.head.value_len as usize,
            expires_ms: self.head.expires_ms,
            flags: self.head.flags,
            kind: self.head.kind,
            version: self.head.version,
        }
    }
}

/// An item and its value.
pub(crate) type FoundValue<'a> = (&'a FoundItem, &'a [u8]);

/// Worker of one session.
pub(crate) struct CacheWorker<N: Medium, F: Medium> {
    pub(crate) engine: Arc<Engine<N, F>>,
    pub(crate) ctx: PersistCtx,
    pin: PinSlot,
    pub(crate) slot_cache: Arc<Mutex<SlotCache>>,
    /// Whether the slot cache holds many retired slots.
    has_many_retired: bool,
    buffered_reads: Vec<(SlotId, u32)>,
    pub(crate) batch: SessionBatch,
    pub(crate) conflicts: ConflictPolicy,
    /// Bytes of items stored, and writes replaced by a later one of their batch, that are not yet in the cache's
    /// totals.
    pub(crate) stored_bytes: u64,
    pub(crate) merged_writes: u64,
    pub(crate) scratch: Vec<u8>,
}

impl<N: Medium, F: Medium> CacheWorker<N, F> {
    pub(crate) fn new(engine: Arc<Engine<N, F>>) -> CacheWorker<N, F> {
        let number = engine.sessions.fetch_add(1, Ordering::Relaxed);
        CacheWorker {
            ctx: PersistCtx::new(number),
            pin: engine.epochs.slot(),
            slot_cache: engine.slot_caches.add(engine.classes.len()),
            has_many_retired: false,
            buffered_reads: Vec::with_capacity(BUMPS),
            batch: SessionBatch::default(),
            conflicts: ConflictPolicy::default(),
            stored_bytes: 0,
            merged_writes: 0,
            scratch: Vec::new(),
            engine,
        }
    }

    // -- reading

    #[inline]
    pub(crate) fn pin(&self) {
        self.engine.epochs.pin(&self.pin);
    }

    #[inline]
    pub(crate) fn unpin(&self) {
        self.pin.unpin();
    }

    /// Returns the item of `name`, if it is live. Needs a pin.
    #[inline]
    pub(crate) fn find_live(&self, hash: u64, name: &ItemKey<'_>) -> Option<FoundItem> {
        let found = self.engine.find(hash, name);
        found.filter(|found| self.is_live(found))
    }

    /// Copies the key of `found` to `key`. Needs a pin.
    pub(crate) fn key_of(&self, found: &FoundItem, key: &mut Vec<u8>) {
        key.clear();
        let at = found.at.plus(ITEM_HEAD_BYTES as u64);
        let len = usize::from(found.head.key_len);
        self.engine.far().append_out(at, len, key);
    }

    /// Returns whether `found` is neither expired nor cleared.
    #[inline]
    pub(crate) fn is_live(&self, found: &FoundItem) -> bool {
        let engine = &*self.engine;
        !engine.is_expired(found.head.expires_ms, found.head.version)
            && found.head.version > engine.areas.cleared(found.head.area)
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
        let from = out.len();
        let at = found.at.plus((ITEM_HEAD_BYTES + name.key.len()) as u64);
        engine
            .far()
            .append_out(at, found.head.value_len as usize, out);
        let seed = crate::layout::seed(engine.secret, found.at);
        if found.head.crc_of(seed, name.key, &out[from..]) == found.head.crc {
            return true;
        }
        out.truncate(from);
        engine.tally.damaged.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Records a read of `found`, which makes it the newest of its LRU list at the next update.
    #[inline]
    pub(crate) fn used(&mut self, found: &FoundItem, hash: u64) {
        self.buffered_reads.push((found.slot, (hash >> 32) as u32));
        if self.buffered_reads.len() >= BUMPS {
            self.update_lru_lists();
        }
    }

    /// Updates the LRU lists with the buffered reads.
    pub(crate) fn update_lru_lists(&mut self) {
        if self.buffered_reads.is_empty() {
            return;
        }
        let engine = Arc::clone(&self.engine);
        let mut locked = engine.lock();
        for (slot, tag) in self.buffered_reads.drain(..) {
            locked.mark_recently_used(slot, tag);
        }
    }

    // -- writing

    /// Marks the item at `at` dead. Durable after the next drain.
    pub(crate) fn mark_dead(&mut self, at: Off) {
        let far = self.engine.pool.medium();
        far.store(&mut self.ctx, at, 0);
        far.flush(&mut self.ctx, at, 8);
    }

    /// Drains and waits.
    pub(crate) fn drain(&mut self) -> Result<(), Error> {
        let far = self.engine.pool.medium();
        let ticket = far.drain(&mut self.ctx);
        far.wait(ticket)?;
        Ok(())
    }

    // -- slots

    /// Takes a free slot of `class` for an item of `area`, if that needs neither a new page nor an eviction.
    #[inline]
    pub(crate) fn take_slot_without_eviction(&mut self, class: u8, area: u16) -> Option<SlotId> {
        if self.engine.areas.quota(area).is_some() {
            return None;
        }
        let slot = lock_cache(&self.slot_cache).take(class);
        slot.or_else(|| self.free_slot(class))
    }

    /// Takes a free slot of `class`: a retired one that is free again, or one of a page.
    #[cold]
    fn free_slot(&mut self, class: u8) -> Option<SlotId> {
        self.recycle(Some(class));
        if let Some(slot) = lock_cache(&self.slot_cache).take(class) {
            return Some(slot);
        }
        let engine = Arc::clone(&self.engine);
        let want = engine.stash_slots(class);
        let mut taken = Vec::with_capacity(want);
        engine.lock().take_slots(class, want, &mut taken);
        let slot = taken.pop()?;
        lock_cache(&self.slot_cache).keep(class, &taken);
        Some(slot)
    }

    /// Takes a free slot of `class` for an item of `area`, evicting items if necessary. Must not be called while
    /// pinned.
    pub(crate) fn take_slot(&mut self, class: u8, area: u16) -> Result<SlotId, Error> {
        self.evict_to_quota(class, area)?;
        if let Some(slot) = lock_cache(&self.slot_cache).take(class) {
            return Ok(slot);
        }
        self.update_lru_lists();
        self.find_slot(class, area)
    }

    /// Evicts items of `area` until another one of `class` is within its quota: from that class first, then from the
    /// others.
    fn evict_to_quota(&mut self, class: u8, area: u16) -> Result<(), Error> {
        let Some(quota) = self.engine.areas.quota(area) else {
            return Ok(());
        };
        let engine = Arc::clone(&self.engine);
        let bytes = u64::from(engine.classes.slot_bytes(class));
        let mut classes = std::iter::once(class).chain(0..engine.classes.len() as u8);
        let mut from = classes.next();
        while engine.areas.bytes(area) + bytes > quota {
            let Some(of) = from else { break };
            if !self.evict_some(of, area, true)? {
                from = classes.next();
            }
        }
        Ok(())
    }

    fn find_slot(&mut self, class: u8, area: u16) -> Result<SlotId, Error> {
        for attempt in 0..SLOT_ATTEMPTS {
            if let Some(slot) = self.free_slot(class) {
                return Ok(slot);
            }
            if self.take_page(class)? || self.grow() {
                continue;
            }
            // Retired slots will become free. Evict more only if there are none.
            let coming = lock_cache(&self.slot_cache).is_coming(class);
            if !coming && !self.evict_some(class, area, false)? {
                self.steal_page(class)?;
            }
            match attempt {
                0 => {}
                1..YIELDS => thread::yield_now(),
                _ => thread::sleep(SLEEP),
            }
        }
        Err(match self.engine.growth_error() {
            Some(why) => Error::CannotGrow(why),
            None => Error::Full,
        })
    }

    /// Reclaims the retired slots that no reader can access any more (MDB-WORK-3): slots of `class` to the stash, others to
    /// their pages.
    fn recycle(&mut self, class: Option<u8>) {
        let engine = Arc::clone(&self.engine);
        let most = class.map_or(0, |class| engine.stash_slots(class) * 2);
        let mut free = Vec::new();
        lock_cache(&self.slot_cache).recycle(&engine.epochs, class, most, &mut free);
        self.return_slots(&free);
    }

    /// Returns free slots to their pages.
    fn return_slots(&mut self, slots: &[SlotId]) {
        if slots.is_empty() {
            return;
        }
        let engine = Arc::clone(&self.engine);
        let mut locked = engine.lock();
        for &slot in slots {
            locked.free_slot(slot);
        }
    }

    /// Retires the slot of an unlinked item.
    pub(crate) fn retire_slot(&mut self, slot: SlotId) {
        let class = self
            .engine
            .metadata
            .class_of(self.engine.metadata.page_of(slot));
        let class = class.expect("a page in use has a class");
        self.has_many_retired =
            lock_cache(&self.slot_cache).give_up(slot, class) >= RETIRED_SLOTS_MAX;
    }

    /// Reclaims retired slots between operations if there are many.
    pub(crate) fn reclaim_retired_if_many(&mut self) {
        if std::mem::take(&mut self.has_many_retired) {
            self.recycle(None);
        }
    }

    /// Takes a free page of the pool for `class`. Returns whether there was one.
    fn take_page(&mut self, class: u8) -> Result<bool, Error> {
        let engine = Arc::clone(&self.engine);
        let mut locked = engine.lock();
        let Some((page, links)) = locked.take_page(class) else {
            return Ok(false);
        };
        if engine.config.formatting == crate::config::PageFormatting::WholeInsideLock {
            let written = self.format(page, class);
            locked.add_page(page, class, links);
            return written.map(|()| true);
        }
        let free_pages = locked.state.free_pages.len();
        drop(locked);
        engine.wake_for_growth(free_pages);
        self.format(page, class)?;
        engine.lock().add_page(page, class, links);
        Ok(true)
    }

    /// Writes the head of a new page, durably. Also marks its slots dead, if slots are formatted with their page.
    fn format(&mut self, page: u32, class: u8) -> Result<(), Error> {
        let engine = Arc::clone(&self.engine);
        let (slot_bytes, at) = (engine.classes.slot_bytes(class), engine.page_at(page));
        let head = crate::layout::page_head(engine.secret, page, class, slot_bytes);
        let bytes = head.map(u64::to_le_bytes);
        if engine.config.formatting != crate::config::PageFormatting::AtUse {
            for index in 0..engine.classes.slots(class) {
                let slot = engine.slot_at(page, index, class);
                engine.far().store(&mut self.ctx, slot, 0);
                engine.far().flush(&mut self.ctx, slot, 8);
            }
        }
        engine
            .far()
            .copy_in(&mut self.ctx, at, &[&bytes[0], &bytes[1]]);
        self.drain()
    }

    /// Evicts a few items of `class`, from `area` first. With `own`, evicts only from `area`. Returns whether there
    /// were any.
    pub(crate) fn evict_some(&mut self, class: u8, area: u16, own: bool) -> Result<bool, Error> {
        let engine = Arc::clone(&self.engine);
        let want = engine.stash_slots(class);
        let now_s = (engine.now_ms() / 1000) as u32;
        let most = if own { 1 } else { want };
        let victims =
            engine
                .lock()
                .choose_victims(class, area, own, most, now_s, &engine.key_locks);
        self.remove_victims(&victims, RemovalReason::Evicted)?;
        Ok(!victims.is_empty())
    }

    /// Marks `victims` dead, durably, and unlinks them.
    pub(crate) fn remove_victims(
        &mut self,
        victims: &[EvictionVictim],
        why: RemovalReason,
    ) -> Result<(), Error> {
        if victims.is_empty() {
            return Ok(());
        }
        situation!("mdb.evicted", why == RemovalReason::Evicted);
        situation!("mdb.removed", why == RemovalReason::ExpiredOrCleared);
        let engine = Arc::clone(&self.engine);
        for victim in victims {
            let at = engine.place_of(victim.slot).expect("it is linked");
            if !fault!("mdb.evicted_not_marked") {
                self.mark_dead(at);
            }
        }
        let drained = self.drain();
        if drained.is_ok() {
            let mut locked = engine.lock();
            for victim in victims {
                match why {
                    RemovalReason::Evicted => locked.evict(victim),
                    RemovalReason::ExpiredOrCleared => locked.unlink(victim.slot),
                }
            }
        }
        for victim in victims {
            engine.key_locks.release(KeyLocks::stripe(victim.tag));
            if drained.is_ok() {
                self.retire_slot(victim.slot);
            }
        }
        drained
    }

    /// Returns all that the session holds, before it is dropped or idle.
    pub(crate) fn return_all_slots(&mut self) {
        self.unpin();
        self.update_lru_lists();
        let mut free = Vec::new();
        lock_cache(&self.slot_cache).empty(&self.engine.epochs, &mut free);
        self.return_slots(&free);
    }

    /// Returns the slots that all sessions keep.
    pub(crate) fn return_slots_of_all_sessions(&mut self) {
        self.return_all_slots();
        let mut free = Vec::new();
        self.engine
            .slot_caches
            .empty(&self.engine.epochs, &mut free);
        self.return_slots(&free);
    }
}

/// Reason for the removal of an item.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RemovalReason {
    /// Its slot was needed.
    Evicted,
    /// It was expired or cleared.
    ExpiredOrCleared,
}

impl<N: Medium, F: Medium> Engine<N, F> {
    /// Returns the item of `name`, expired and cleared ones included, without checking its value. Needs a pin, or
    /// exclusive access.
    #[inline]
    pub(crate) fn find(&self, hash: u64, name: &ItemKey<'_>) -> Option<FoundItem> {
        let tag = (hash >> 32) as u32;
        let mut word = self.metadata.bucket(self.metadata.bucket_of(hash));
        while let Some((its, slot)) = follow(word) {
            if its == tag
                && let Some(found) = self.item_in(slot)
                && found.head.area == name.area
                && usize::from(found.head.key_len) == name.key.len()
                && found.head.prefix_len == name.prefix_bytes
                && self
                    .far()
                    .matches(found.at.plus(ITEM_HEAD_BYTES as u64), name.key)
            {
                return Some(found);
            }
            word = self.metadata.chain(slot);
        }
        None
    }

    /// Returns the item in `slot`, which a chain leads to. Returns `None` if its header does not fit its slot, so
    /// that the item is damaged. Needs a pin, or exclusive access.
    #[inline]
    pub(crate) fn item_in(&self, slot: SlotId) -> Option<FoundItem> {
        let page = self.metadata.page_of(slot);
        let class = self.metadata.class_of(page)?;
        let at = self.slot_at(page, self.metadata.index_of(slot), class);
        let head = ItemHeader::read(self.far(), at);
        let fits = head.bytes() <= self.classes.slot_bytes(class) as usize;
        fits.then_some(FoundItem { slot, at, head })
    }

    /// Returns the links of an item with this header.
    pub(crate) fn link_of(&self, hash: u64, head: &ItemHeader) -> LruLink {
        let generation = self.areas.generation(head.area);
        let cleared = head.version <= self.areas.cleared(head.area);
        LruLink {
            tag: (hash >> 32) as u32,
            area: head.area,
            expires_s: u32::try_from(head.expires_ms.div_ceil(1000)).unwrap_or(0),
            // An item that was cleared while it was written is not counted.
            generation: generation.wrapping_sub(u32::from(cleared)),
            ..LruLink::default()
        }
    }
}

impl<N: Medium, F: Medium> Drop for CacheWorker<N, F> {
    fn drop(&mut self) {
        if !self.engine.process.is_current() {
            return; // A forked child: this state belongs to its parent.
        }
        self.abandon();
        // Slots that are still read stay in the slot cache, which other sessions can empty.
        self.return_all_slots();
    }
}
