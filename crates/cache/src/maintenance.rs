//! Tending: what has expired goes, sparse pages are merged, classes give pages to each other, the pool grows and
//! shrinks.
//!
//! The pool grows when few pages are free, or, where the background thread is too slow, when a class needs a page and there
//! is none, before anything is evicted for it. The superblock tells of new
//! pages, durably, before any of them is used: between the two a power cut leaves a medium that is longer than its pool.
//!
//! All the rest empties pages. An item of a page that is to go is moved into a free slot of another page of its class,
//! or evicted. A move copies the item whole, waits until the copy is durable, ends the old one's life, waits, and
//! only then has its chain and its list name the copy: a power cut leaves the one, both (the same version twice), or
//! the other.

use std::sync::PoisonError;

use farbank_kv::store::Error;
use farbank_pm::sync::atomic::Ordering;
use farbank_pm::sync::{Arc, thread};
use farbank_pm::{Medium, situation};

use crate::engine::PAGES_AHEAD;
use crate::key_locks::KeyLocks;
use crate::layout::{ITEM_HEAD_BYTES, seed};
use crate::metadata::{LruLink, SlotId};
use crate::state::EvictionVictim;
use crate::worker::{CacheWorker, RemovalReason};

/// Items moved or evicted for one hold of the lock: Tair's 300 are a pause one can see.
const AT_ONCE: usize = 64;
/// How long growth is not tried again where there was no space.
const GROWTH_PAUSE_MS: u64 = 10_000;
/// How often whoever empties a page lets others let go of it.
const PATIENCE: usize = 100;

/// What becomes of the items of a page that is emptied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum EvacuationMode {
    Move,
    Evict,
}

impl<N: Medium, F: Medium> CacheWorker<N, F> {
    /// Removes what has expired or was cleared from `pages` pages from `from` on; where to go on.
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
                    .choose_in_page(page, AT_ONCE, &engine.claims, &dead);
                self.end_all(&victims, RemovalReason::Over)?;
                let removed = victims.len() as u64;
                engine.tally.reclaimed.fetch_add(removed, Ordering::Relaxed);
                // Fewer than could be are not the last: of two in one claim's stripe the other one is left.
                if victims.is_empty() {
                    break;
                }
            }
        }
        self.settle();
        let next = from.saturating_add(pages);
        Ok(if next >= all { 0 } else { next })
    }

    /// Empties one page of a class whose other pages have room for its items; whether there was one.
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

    /// Has the pool grow while few pages are free, so that no session has to.
    pub(crate) fn grow_ahead(&mut self) {
        let engine = Arc::clone(&self.engine);
        let is_near = || engine.lock().state.free_pages.len() < PAGES_AHEAD;
        let mut is_larger = true;
        while is_larger && is_near() && !engine.stop.load(Ordering::Acquire) {
            is_larger = self.grow();
        }
    }

    /// Makes the pool larger by a step, if it may grow and there is space; whether there are new pages.
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
        // The first segment is no page.
        let fresh = before - 1..after - 1;
        engine.lock().state.free_pages.extend(fresh.rev());
        true
    }

    /// Gets a page for `class` from another one, whose items in it go. Whether there was one.
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

    /// Has the cache use `pages` pages of its pool: holds free ones back, or empties some first; or lets go of those
    /// held. How many it uses then.
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

    /// Holds pages back until `pages` are left to use, as far as there are free ones; whether there were enough. Growth
    /// does not come in between, and there is none while pages are held back.
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

    /// Empties `page`, which is held back, and gives it back to the pool; false if somebody holds a slot of it for too long.
    pub(crate) fn empty_page(&mut self, page: u32, how: EvacuationMode) -> Result<bool, Error> {
        let engine = Arc::clone(&self.engine);
        for _ in 0..PATIENCE {
            let victims = engine
                .lock()
                .choose_in_page(page, AT_ONCE, &engine.claims, &|_| true);
            match how {
                EvacuationMode::Evict => self.end_all(&victims, RemovalReason::Evicted)?,
                EvacuationMode::Move => self.move_all(&victims)?,
            }
            self.settle_all();
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

    /// Gives an empty page, which is held back, to the pool. After a power cut its class may have it again, empty: whoever
    /// takes it makes its own head durable first.
    fn give_back(&mut self, page: u32) {
        let engine = Arc::clone(&self.engine);
        engine.far().store(&mut self.ctx, engine.page_at(page), 0);
        let mut locked = engine.lock();
        locked.drop_page(page);
        locked.state.free_pages.push(page);
        engine.tally.pages_freed.fetch_add(1, Ordering::Relaxed);
    }

    /// Moves `victims` into other pages of their class; those there is no room for stay.
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
            engine.claims.release(KeyLocks::stripe(victim.tag));
        }
        moved?;
        for (from, _) in moves {
            self.give_up(from);
        }
        Ok(())
    }

    fn copy_all(&mut self, moves: &[(SlotId, SlotId)]) -> Result<(), Error> {
        let engine = Arc::clone(&self.engine);
        let mut body = Vec::new();
        for &(from, to) in moves {
            let at = engine.place_of(to).expect("it is in a page");
            // What does not fit its slot was damaged: nothing of it is moved, and its copy is no item.
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
            // What was damaged before stays damaged.
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
