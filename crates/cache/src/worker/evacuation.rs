//! Evacuation: removes expired and cleared items, and empties pages.
//!
//! To empty a page, the worker moves each item of the page to a free slot in another page of its class, or evicts it.
//! A move copies the item, waits until the copy is durable, marks the old item dead, waits again, and only then
//! replaces the old slot by the new one in its chain and list. A power cut leaves the old item, both (with the same
//! version), or the new one.

use farbank_pm::sync::{Arc, thread};
use farbank_pm::{Medium, situation};
use farbank_store::Error;

use super::CacheWorker;
use super::slots::RemovalReason;
use crate::key_locks::KeyLocks;
use crate::metadata::{LruLink, SlotId};
use crate::state::EvictionVictim;

/// Items moved or evicted per acquisition of the lock. Tair's 300 cause a noticeable pause.
const AT_ONCE: usize = 64;
/// Number of attempts to empty a page while other sessions still hold slots of it.
const EVACUATION_ATTEMPTS: usize = 100;

/// What to do with the items of a page that is being emptied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EvacuationMode {
    Move,
    Evict,
}

impl<N: Medium, F: Medium> CacheWorker<N, F> {
    /// Removes expired and cleared items from `pages` pages, starting at `from`. Returns the page at which the next
    /// call should start.
    pub(crate) fn sweep(&mut self, from: u32, pages: u32) -> Result<u32, Error> {
        let engine = Arc::clone(&self.engine);
        let all = engine.data().pages();
        let now_s = (engine.now_ms() / 1000) as u32;
        let areas = engine.areas();
        let dead = |link: &LruLink| {
            (link.expires_s != 0 && link.expires_s < now_s)
                || link.generation != areas.generation(link.area)
        };
        for page in (from..all).take(pages as usize) {
            loop {
                let victims =
                    engine
                        .lock()
                        .choose_in_page(page, AT_ONCE, engine.key_locks(), &dead);
                self.remove_victims(&victims, RemovalReason::ExpiredOrCleared)?;
                let removed = victims.len() as u64;
                engine.counters().add_reclaimed(removed);
                // A short list need not be the last one: of two items in the same stripe only one is chosen at a
                // time.
                if victims.is_empty() {
                    break;
                }
            }
        }
        self.return_all_slots();
        let next = from.saturating_add(pages);
        Ok(if next >= all { 0 } else { next })
    }

    /// Empties one page of a class whose other pages have enough free slots for its items. Returns whether there was
    /// one.
    pub(crate) fn merge(&mut self) -> Result<bool, Error> {
        let engine = Arc::clone(&self.engine);
        for class in 0..engine.class_count() {
            let page = engine.lock().hold_page_to_merge(class);
            if let Some(page) = page
                && self.empty_page(page, EvacuationMode::Move)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Frees a page for `class`: merges a sparse page, or empties a page of another class by evicting its items.
    /// Returns whether a page was freed.
    pub(super) fn steal_page(&mut self, class: u8) -> Result<bool, Error> {
        let engine = Arc::clone(&self.engine);
        if self.merge()? {
            return Ok(true);
        }
        let page = engine.lock().hold_page_to_steal(class);
        match page {
            Some(page) => self.empty_page(page, EvacuationMode::Evict),
            None => Ok(false),
        }
    }

    /// Empties `page`, which is reserved, and returns it to the pool. Returns false if another session holds a slot
    /// of it for too long.
    pub(super) fn empty_page(&mut self, page: u32, how: EvacuationMode) -> Result<bool, Error> {
        let engine = Arc::clone(&self.engine);
        for _ in 0..EVACUATION_ATTEMPTS {
            let victims = engine
                .lock()
                .choose_in_page(page, AT_ONCE, engine.key_locks(), &|_| true);
            match how {
                EvacuationMode::Evict => self.remove_victims(&victims, RemovalReason::Evicted)?,
                EvacuationMode::Move => self.move_all(&victims)?,
            }
            self.return_slots_of_all_sessions();
            if engine.lock().is_empty(page) {
                situation!("mdb.page_merged", how == EvacuationMode::Move);
                situation!("mdb.page_stolen", how == EvacuationMode::Evict);
                self.give_back(page);
                return Ok(true);
            }
            if victims.is_empty() {
                thread::yield_now();
            }
        }
        engine.lock().put_back(page);
        Ok(false)
    }

    /// Returns an empty, reserved page to the pool. The erased head is not durable, so after a power cut the page may
    /// have its class again, and be empty. A later user of the page makes its own head durable first.
    fn give_back(&mut self, page: u32) {
        let engine = &*self.engine;
        engine.data().erase_page_head(&mut self.ctx, page);
        let mut locked = engine.lock();
        locked.return_page(page);
        engine.counters().add_page_freed();
    }

    /// Moves `victims` to other pages of their class, as far as there are free slots. The others stay.
    fn move_all(&mut self, victims: &[EvictionVictim]) -> Result<(), Error> {
        let engine = Arc::clone(&self.engine);
        let Some(first) = victims.first() else {
            return Ok(());
        };
        let mut room = Vec::new();
        {
            let mut locked = engine.lock();
            let class = locked.class_of(first.slot);
            locked.take_slots(class, victims.len(), &mut room);
        }
        let moves: Vec<(SlotId, SlotId)> =
            victims.iter().map(|victim| victim.slot).zip(room).collect();
        situation!("mdb.moved", !moves.is_empty());
        let moved = self.copy_all(&moves);
        if moved.is_ok() {
            let mut locked = engine.lock();
            for &(from, to) in &moves {
                locked.relocate(from, to);
            }
        }
        for victim in victims {
            engine.key_locks().release(KeyLocks::stripe(victim.tag));
        }
        moved?;
        for (from, _) in moves {
            self.retire_slot(from);
        }
        Ok(())
    }

    fn copy_all(&mut self, moves: &[(SlotId, SlotId)]) -> Result<(), Error> {
        let engine = Arc::clone(&self.engine);
        let mut body = Vec::new();
        for &(from, to) in moves {
            let at = engine.place_of(to).expect("it is in a page");
            // The header does not fit the slot, so the item is damaged. It is not moved, and the new slot is marked
            // dead.
            let Some(found) = engine.item_in(from) else {
                self.mark_dead(at);
                continue;
            };
            let item = (found.at, found.head);
            engine.data().copy_item(&mut self.ctx, item, at, &mut body);
            engine.counters().add_moved_bytes(found.head.bytes() as u64);
        }
        self.drain()?;
        for &(from, _) in moves {
            let at = engine.place_of(from).expect("it is in a page");
            self.mark_dead(at);
        }
        self.drain()
    }
}
