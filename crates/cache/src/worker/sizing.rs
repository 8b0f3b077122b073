//! Size: grows and shrinks the pool, and moves pages between classes.
//!
//! The background thread grows the pool when few pages are free. If it is too slow, a session that needs a page and
//! finds none grows the pool before it evicts anything. The superblock durably includes new pages before any of them
//! is used. A power cut between the two leaves a medium that is longer than its pool.

use farbank_pm::Medium;
use farbank_pm::sync::Arc;
use farbank_store::Error;

use super::CacheWorker;
use super::evacuation::EvacuationMode;

impl<N: Medium, F: Medium> CacheWorker<N, F> {
    /// Grows the pool while few pages are free, so that no session has to.
    pub(crate) fn grow_ahead(&mut self) {
        let engine = &*self.engine;
        let mut is_larger = true;
        while is_larger && engine.is_growth_near() && !engine.is_stopping() {
            is_larger = engine.grow(&mut self.ctx);
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
        engine
            .data()
            .update_root(&mut self.ctx, |root| root.pages_held = kept)?;
        Ok(engine.data().pages() - kept as u32)
    }

    /// Reserves free pages until only `pages` are left in use. Returns whether there were enough free ones. The pool
    /// cannot grow meanwhile, nor while any page is reserved.
    fn hold_all_but(&self, pages: u32) -> bool {
        let _no_growth = self.engine.lock_growth();
        let held = u64::from(self.engine.data().pages().saturating_sub(pages));
        self.engine.lock().hold_pages(held) == held
    }

    fn empty_largest(&mut self) -> Result<bool, Error> {
        let page = self.engine.lock().hold_page_to_steal(u8::MAX);
        match page {
            Some(page) => self.empty_page(page, EvacuationMode::Evict),
            None => Ok(false),
        }
    }

    /// Makes a class give up a page, if no page is free and the classes are out of balance. Returns whether one did.
    pub(crate) fn balance(&mut self) -> Result<bool, Error> {
        let engine = Arc::clone(&self.engine);
        let mut balance = engine.lock_balance();
        let locked = engine.lock();
        let (classes, free_pages) = (locked.slab_classes(), locked.free_pages());
        drop(locked);
        let giver = balance.giver(classes).filter(|_| free_pages == 0);
        let given = match giver {
            Some(giver) => self.give_page(giver)?,
            None => false,
        };
        if balance.is_outdated(given) {
            balance.restart(&engine.lock().slab_classes());
        }
        Ok(given)
    }

    /// Evicts the oldest items of `class` until one of its pages can be emptied. Returns whether a page was emptied.
    fn give_page(&mut self, class: u8) -> Result<bool, Error> {
        let engine = Arc::clone(&self.engine);
        // The bound is twice the slots of a page, because other sessions may take the freed slots.
        for _ in 0..2 * engine.data().classes().slots(class) {
            let page = engine.lock().hold_page_to_merge(class);
            if let Some(page) = page {
                return self.empty_page(page, EvacuationMode::Move);
            }
            if !self.evict_some(class, 0, false)? {
                break;
            }
            self.return_slots_of_all_sessions();
        }
        Ok(false)
    }
}
