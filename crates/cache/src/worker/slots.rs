//! Free slots: from the slot cache, from pages, and by evictions.

use std::time::Duration;

use farbank_pm::sync::{Arc, thread};
use farbank_pm::{Medium, fault, situation};
use farbank_store::{Error, Key};

use super::CacheWorker;
use crate::config::PageFormatting;
use crate::key_locks::KeyLocks;
use crate::metadata::SlotId;
use crate::slot_cache::lock_cache;
use crate::state::EvictionVictim;

/// Number of retired slots at which a session tries to reclaim them.
const RETIRED_SLOTS_MAX: usize = 64;
/// Attempts of a writer to get a slot before it fails with a full cache. Readers that hold up retired slots may not
/// have a CPU.
const SLOT_ATTEMPTS: usize = 10_000;
/// Number of attempts that yield the CPU. Later attempts sleep, so that all attempts last at least half a second.
const YIELDS: usize = 1_000;
/// Time of one sleep.
const SLEEP: Duration = Duration::from_micros(50);

/// Reason for the removal of an item.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RemovalReason {
    /// Its slot was needed.
    Evicted,
    /// It was expired or cleared.
    ExpiredOrCleared,
}

impl<N: Medium, F: Medium> CacheWorker<N, F> {
    /// Takes a free slot of `class` for an item of `area`, if that needs neither a new page nor an eviction.
    #[inline]
    pub(crate) fn take_slot_without_eviction(&mut self, class: u8, area: u16) -> Option<SlotId> {
        if self.engine.areas().quota(area).is_some() {
            return None;
        }
        let slot = lock_cache(&self.slot_cache).take(class);
        slot.or_else(|| self.free_slot(class))
    }

    /// Adds a free slot of `class` to those that the session keeps.
    pub(crate) fn keep_slot(&mut self, class: u8, slot: SlotId) {
        lock_cache(&self.slot_cache).keep(class, &[slot]);
    }

    /// Returns the number of slots of `class` that a session takes at once.
    fn stash_slots(&self, class: u8) -> usize {
        let slot_bytes = self.engine.data().classes().slot_bytes(class);
        self.engine.sessions().stash_slots(slot_bytes)
    }

    /// Takes a free slot of `class`: a retired one that is free again, or one of a page.
    #[cold]
    fn free_slot(&mut self, class: u8) -> Option<SlotId> {
        self.recycle(Some(class));
        if let Some(slot) = lock_cache(&self.slot_cache).take(class) {
            return Some(slot);
        }
        let engine = Arc::clone(&self.engine);
        let want = self.stash_slots(class);
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
        let Some(quota) = self.engine.areas().quota(area) else {
            return Ok(());
        };
        let engine = Arc::clone(&self.engine);
        let bytes = u64::from(engine.data().classes().slot_bytes(class));
        let mut classes = std::iter::once(class).chain(0..engine.class_count());
        let mut from = classes.next();
        while engine.areas().bytes(area) + bytes > quota {
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
            if self.take_page(class)? || self.engine.grow(&mut self.ctx) {
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
        let most = class.map_or(0, |class| self.stash_slots(class) * 2);
        let mut free = Vec::new();
        lock_cache(&self.slot_cache).recycle(engine.sessions().epochs(), class, most, &mut free);
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
        let class = self.engine.class_of(slot);
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
        if engine.formatting() == PageFormatting::WholeInsideLock {
            let written = self.format(page, class);
            locked.add_page(page, class, links);
            return written.map(|()| true);
        }
        let free_pages = locked.free_pages();
        drop(locked);
        engine.wake_for_growth(free_pages);
        self.format(page, class)?;
        engine.lock().add_page(page, class, links);
        Ok(true)
    }

    /// Writes the head of a new page, durably. Also marks its slots dead, if slots are formatted with their page.
    fn format(&mut self, page: u32, class: u8) -> Result<(), Error> {
        let engine = &*self.engine;
        let slots = engine.formatting() != PageFormatting::AtUse;
        engine
            .data()
            .format_page(&mut self.ctx, page, class, slots)?;
        Ok(())
    }

    /// Evicts a few items of `class`, from `area` first. With `own`, evicts only from `area`. Returns whether there
    /// were any.
    pub(super) fn evict_some(&mut self, class: u8, area: u16, own: bool) -> Result<bool, Error> {
        let engine = Arc::clone(&self.engine);
        let want = self.stash_slots(class);
        let now_s = (engine.now_ms() / 1000) as u32;
        let most = if own { 1 } else { want };
        let victims =
            engine
                .lock()
                .choose_victims(class, area, own, most, now_s, engine.key_locks());
        self.remove_victims(&victims, RemovalReason::Evicted)?;
        Ok(!victims.is_empty())
    }

    /// Marks `victims` dead, durably, and unlinks them.
    pub(super) fn remove_victims(
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
        let evicted = match why {
            RemovalReason::Evicted => self.keys_to_report(victims),
            RemovalReason::ExpiredOrCleared => Vec::new(),
        };
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
            engine.key_locks().release(KeyLocks::stripe(victim.tag));
            if drained.is_ok() {
                self.retire_slot(victim.slot);
            }
        }
        if drained.is_ok()
            && let Some(listener) = engine.eviction_listener()
        {
            for (db, bytes) in &evicted {
                listener.evicted(Key { db: *db, bytes });
            }
        }
        drained
    }

    /// Databases and keys of the live ones of `victims`, for the listener. Their key locks are held.
    fn keys_to_report(&self, victims: &[EvictionVictim]) -> Vec<(u8, Vec<u8>)> {
        let engine = &self.engine;
        if engine.eviction_listener().is_none() {
            return Vec::new();
        }
        let key_of = |victim: &EvictionVictim| {
            let found = engine.item_in(victim.slot)?;
            let db = u8::try_from(found.head.area).ok()?;
            let is_reported = engine.is_live(&found) && found.is_shown();
            let mut key = Vec::new();
            engine.data().copy_key(found.at, &found.head, &mut key);
            is_reported.then_some((db, key))
        };
        victims.iter().filter_map(key_of).collect()
    }

    /// Returns all that the session holds, before it is dropped or idle.
    pub(crate) fn return_all_slots(&mut self) {
        self.unpin();
        self.update_lru_lists();
        let mut free = Vec::new();
        lock_cache(&self.slot_cache).empty(self.engine.sessions().epochs(), &mut free);
        self.return_slots(&free);
    }

    /// Returns the slots that all sessions keep.
    pub(crate) fn return_slots_of_all_sessions(&mut self) {
        self.return_all_slots();
        let mut free = Vec::new();
        self.engine.sessions().empty_slot_caches(&mut free);
        self.return_slots(&free);
    }
}
