//! Background maintenance: removes expired items, merges sparse pages, moves pages between classes, grows and shrinks
//! the pool.
//!
//! The background thread grows the pool when few pages are free. If it is too slow, a session that needs a page and
//! finds none grows the pool before it evicts anything. The superblock durably includes new pages before any of them
//! is used. A power cut between the two leaves a medium that is longer than its pool.
//!
//! The other tasks empty pages. They move each item of the page to a free slot in another page of its class, or evict
//! it. A move copies the item, waits until the copy is durable, marks the old item dead, waits again, and only then
//! replaces the old slot by the new one in its chain and list. A power cut leaves the old item, both (with the same
//! version), or the new one.

use std::sync::PoisonError;

use farbank_pm::sync::atomic::Ordering;
use farbank_pm::sync::{Arc, thread};
use farbank_pm::{Medium, situation};
use farbank_store::Error;

use crate::engine::PAGES_AHEAD;
use crate::key_locks::KeyLocks;
use crate::layout::{ITEM_HEAD_BYTES, seed};
use crate::metadata::{LruLink, SlotId};
use crate::state::EvictionVictim;
use crate::worker::{CacheWorker, RemovalReason};

/// Items moved or evicted per acquisition of the lock. Tair's 300 cause a noticeable pause.
const AT_ONCE: usize = 64;
/// Time before growth is tried again after a failure.
const GROWTH_PAUSE_MS: u64 = 10_000;
/// Number of attempts to empty a page while other sessions still hold slots of it.
const EVACUATION_ATTEMPTS: usize = 100;

/// What to do with the items of a page that is being emptied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum EvacuationMode {
    Move,
    Evict,
}

impl<N: Medium, F: Medium> CacheWorker<N, F> {
    /// Removes expired and cleared items from `pages` pages, starting at `from`. Returns the page at which the next
    /// call should start.
    pub(crate) fn sweep(&mut self, from: u32, pages: u32) -> Result<u32, Error> {
        let engine = Arc::clone(&self.engine);
        let all = engine.pages();
        let now_s = (engine.now_ms() / 1000) as u32;
        let areas = &engine.areas;
        let dead = |link: &LruLink| {
            (link.expires_s != 0 && link.expires_s < now_s)
                || link.generation != areas.generation(link.area)
        };
        for page in (from..all).take(pages as usize) {
            loop {
                let victims = engine
                    .lock()
                    .choose_in_page(page, AT_ONCE, &engine.key_locks, &dead);
                self.remove_victims(&victims, RemovalReason::ExpiredOrCleared)?;
                let removed = victims.len() as u64;
                engine.tally.reclaimed.fetch_add(removed, Ordering::Relaxed);
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
        for class in 0..engine.classes.len() as u8 {
            let page = engine.lock().hold_page_to_merge(class);
            if let Some(page) = page
                && self.empty_page(page, EvacuationMode::Move)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Grows the pool while few pages are free, so that no session has to.
    pub(crate) fn grow_ahead(&mut self) {
        let engine = Arc::clone(&self.engine);
        let is_near = || engine.lock().state.free_pages.len() < PAGES_AHEAD;
        let mut is_larger = true;
        while is_larger && is_near() && !engine.stop.load(Ordering::Acquire) {
            is_larger = self.grow();
        }
    }

    /// Grows the pool by one step, if it may grow and there is space. Returns whether there are new pages.
    pub(crate) fn grow(&mut self) -> bool {
        let engine = Arc::clone(&self.engine);
        let before = engine.pool.segments();
        if before >= engine.segments_max
            || engine.clock.uptime_ms() < engine.grows_from_ms.load(Ordering::Relaxed)
        {
            return false;
        }
        let _one_at_a_time = engine
            .growing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if engine.pool.segments() != before {
            return true;
        }
        if engine.lock().pages_held() > 0 {
            return false;
        }
        let after = engine.pool.segments_next(engine.segments_max);
        if let Err(error) = engine.pool.grow(&mut self.ctx, after) {
            let again_ms = engine.clock.uptime_ms() + GROWTH_PAUSE_MS;
            engine.grows_from_ms.store(again_ms, Ordering::Relaxed);
            engine.note_growth(Some(error.to_string().into()));
            return false;
        }
        engine.note_growth(None);
        situation!("mdb.grown");
        // The first segment is not a page.
        let fresh = before - 1..after - 1;
        engine.lock().state.free_pages.extend(fresh.rev());
        true
    }

    /// Frees a page for `class`: merges a sparse page, or empties a page of another class by evicting its items.
    /// Returns whether a page was freed.
    pub(crate) fn steal_page(&mut self, class: u8) -> Result<bool, Error> {
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

    /// Limits the cache to `pages` pages of its pool. Reserves free pages, and empties pages if too few are free, or
    /// releases reserved pages. Returns the number of pages in use then.
    pub(crate) fn resize(&mut self, pages: u32) -> Result<u32, Error> {
        let engine = Arc::clone(&self.engine);
        while !self.hold_all_but(pages.max(1)) {
            if !self.merge()? && !self.empty_largest()? {
                break;
            }
        }
        let kept = engine.lock().pages_held();
        let mut root = engine.root.lock().unwrap_or_else(PoisonError::into_inner);
        root.pages_held = kept;
        engine.pool.set_root(&mut self.ctx, &root.to_words())?;
        Ok(engine.pages() - kept as u32)
    }

    /// Reserves free pages until only `pages` are left in use. Returns whether there were enough free ones. The pool
    /// cannot grow meanwhile, nor while any page is reserved.
    fn hold_all_but(&self, pages: u32) -> bool {
        let growing = &self.engine.growing;
        let _no_growth = growing.lock().unwrap_or_else(PoisonError::into_inner);
        let held = u64::from(self.engine.pages().saturating_sub(pages));
        self.engine.lock().hold_pages(held) == held
    }

    fn empty_largest(&mut self) -> Result<bool, Error> {
        let page = self.engine.lock().hold_page_to_steal(u8::MAX);
        match page {
            Some(page) => self.empty_page(page, EvacuationMode::Evict),
            None => Ok(false),
        }
    }

    /// Empties `page`, which is reserved, and returns it to the pool. Returns false if another session holds a slot
    /// of it for too long.
    pub(crate) fn empty_page(&mut self, page: u32, how: EvacuationMode) -> Result<bool, Error> {
        let engine = Arc::clone(&self.engine);
        for _ in 0..EVACUATION_ATTEMPTS {
            let victims = engine
                .lock()
                .choose_in_page(page, AT_ONCE, &engine.key_locks, &|_| true);
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
        let engine = Arc::clone(&self.engine);
        engine.far().store(&mut self.ctx, engine.page_at(page), 0);
        let mut locked = engine.lock();
        locked.drop_page(page);
        locked.state.free_pages.push(page);
        engine.tally.pages_freed.fetch_add(1, Ordering::Relaxed);
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
            engine.key_locks.release(KeyLocks::stripe(victim.tag));
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
            let mut head = found.head;
            body.clear();
            let behind = found.at.plus(ITEM_HEAD_BYTES as u64);
            engine
                .far()
                .append_out(behind, head.bytes() - ITEM_HEAD_BYTES, &mut body);
            // An item with a wrong crc gets a wrong crc in its copy too, so that the damage stays visible.
            let held = head.crc_of(seed(engine.secret, found.at), &body, &[]) == head.crc;
            head.crc = head.crc_of(seed(engine.secret, at), &body, &[]) ^ u32::from(!held);
            engine
                .far()
                .copy_in(&mut self.ctx, at, &[&head.to_bytes(), &body]);
            let bytes = head.bytes() as u64;
            engine.tally.moved_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        self.drain()?;
        for &(from, _) in moves {
            let at = engine.place_of(from).expect("it is in a page");
            self.mark_dead(at);
        }
        self.drain()
    }
}
