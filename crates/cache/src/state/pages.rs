//! Pages of the classes, their free slots, and the space for the links of a page's items.

use farbank_pm::Medium;

use super::LockedState;
use crate::metadata::{ClassCounter, HELD, LruLink, NO_LIST, PARTIALS, PageInfo, SlotId};

impl<N: Medium> LockedState<'_, N> {
    // -- pages

    /// Reserves `wanted` free pages, or all free pages if there are fewer, and releases reserved pages beyond `wanted`. Returns
    /// the number of reserved pages.
    pub(crate) fn hold_pages(&mut self, wanted: u64) -> u64 {
        let state = &mut *self.state;
        while (state.held.len() as u64) < wanted {
            let Some(page) = state.free_pages.pop() else {
                break;
            };
            state.held.push(page);
        }
        while state.held.len() as u64 > wanted {
            state.free_pages.extend(state.held.pop());
        }
        state.held.len() as u64
    }

    /// Returns the number of reserved pages.
    pub(crate) fn pages_held(&self) -> u64 {
        self.state.held.len() as u64
    }

    /// Returns the number of free pages, which have no class.
    pub(crate) fn free_pages(&self) -> usize {
        self.state.free_pages.len()
    }

    /// Adds free pages. The last one is taken first.
    pub(crate) fn add_free_pages(&mut self, pages: impl IntoIterator<Item = u32>) {
        self.state.free_pages.extend(pages);
    }

    /// Takes a free page, and space for its links. Returns `None` if there is no free page or no space for the links.
    pub(crate) fn take_page(&mut self, class: u8) -> Option<(u32, u64)> {
        let page = self.state.free_pages.pop()?;
        match self.take_links(self.links_bytes(class)) {
            Some(links) => Some((page, links)),
            None => {
                self.state.free_pages.push(page);
                None
            }
        }
    }

    /// Takes the first free space for `bytes` of links.
    fn take_links(&mut self, bytes: u64) -> Option<u64> {
        let rooms = &mut self.state.links_free;
        let (&at, &len) = rooms.iter().find(|&(_, &len)| len >= bytes)?;
        rooms.remove(&at);
        if len > bytes {
            rooms.insert(at + bytes, len - bytes);
        }
        Some(at)
    }

    /// Frees space for links, and joins it with adjacent free space.
    fn give_links(&mut self, at: u64, bytes: u64) {
        let rooms = &mut self.state.links_free;
        let (mut at, mut len) = (at, bytes);
        if let Some((&before, &its)) = rooms.range(..at).next_back()
            && before + its == at
        {
            rooms.remove(&before);
            (at, len) = (before, its + len);
        }
        if let Some(after) = rooms.remove(&(at + len)) {
            len += after;
        }
        rooms.insert(at, len);
    }

    /// Adds a new page to `class`, with all slots free.
    pub(crate) fn add_page(&mut self, page: u32, class: u8, links: u64) {
        let LockedState { near, state, .. } = self;
        near.set_links(&mut state.ctx, page, links);
        let info = PageInfo {
            class: Some(class),
            list: NO_LIST,
            free: self.classes.slots(class),
            ..PageInfo::default()
        };
        near.set_info(&mut state.ctx, page, &info);
        self.count(class, ClassCounter::Pages, 1);
        self.place(page, info);
    }

    /// Adds a page that recovery found. None of its slots is free until [`LockedState::free_what_is_not_linked`].
    pub(crate) fn adopt_page(&mut self, page: u32, class: u8) {
        let slots = self.classes.slots(class);
        let links = self
            .take_links(self.links_bytes(class))
            .expect("there is room for every page's links");
        let LockedState { near, state, .. } = self;
        near.set_links(&mut state.ctx, page, links);
        let info = PageInfo {
            class: Some(class),
            list: NO_LIST,
            fresh: slots,
            ..PageInfo::default()
        };
        near.set_info(&mut state.ctx, page, &info);
        for index in 0..slots {
            near.set_link(&mut state.ctx, near.slot(page, index), &LruLink::default());
        }
        self.count(class, ClassCounter::Pages, 1);
    }

    /// Frees every slot of adopted pages that has no item.
    pub(crate) fn free_what_is_not_linked(&mut self, pages: u32) {
        for page in 0..pages {
            let info = self.near.info(page);
            for index in (0..info.fresh).rev() {
                let slot = self.near.slot(page, index);
                if !self.near.link(slot).linked {
                    self.free_slot(slot);
                }
            }
        }
    }

    /// Removes an empty page from its class, and adds it to the free pages.
    pub(crate) fn return_page(&mut self, page: u32) {
        self.drop_page(page);
        self.state.free_pages.push(page);
    }

    fn drop_page(&mut self, page: u32) {
        let mut info = self.near.info(page);
        let Some(class) = info.class else { return };
        self.unplace(&mut info);
        let bytes = self.links_bytes(class);
        let links = self.near.links_of(page);
        self.give_links(links, bytes);
        let LockedState { near, state, .. } = self;
        near.set_info(&mut state.ctx, page, &PageInfo::default());
        self.count(class, ClassCounter::Pages, -1);
    }

    /// Returns whether every slot of `page` is free.
    pub(crate) fn is_empty(&self, page: u32) -> bool {
        let info = self.near.info(page);
        info.class
            .is_some_and(|class| info.free == self.classes.slots(class))
    }

    /// Reserves `page`: takes it off its list, so that no session takes a slot of it from now on.
    pub(super) fn reserve_page(&mut self, page: u32) {
        let mut info = self.near.info(page);
        self.unplace(&mut info);
        info.list = HELD;
        let LockedState { near, state, .. } = self;
        near.set_info(&mut state.ctx, page, &info);
    }

    /// Puts a reserved page back on its list.
    pub(crate) fn put_back(&mut self, page: u32) {
        let info = self.near.info(page);
        if info.list == HELD {
            self.place(page, info);
        }
    }

    /// Returns the list that a page belongs on.
    fn tenths(&self, info: &PageInfo) -> u8 {
        let class = info.class.expect("a page with slots has a class");
        match info.free {
            0 => NO_LIST,
            free => (u64::from(free - 1) * PARTIALS / u64::from(self.classes.slots(class))) as u8,
        }
    }

    fn place(&mut self, page: u32, mut info: PageInfo) {
        let class = info.class.expect("a page with slots has a class");
        info.list = self.tenths(&info);
        (info.prev, info.next) = (0, 0);
        let LockedState { near, state, .. } = self;
        if info.list != NO_LIST {
            info.next = near.partial(class, info.list.into());
            if let Some(next) = info.next.checked_sub(1) {
                let mut after = near.info(next);
                after.prev = page + 1;
                near.set_info(&mut state.ctx, next, &after);
            }
            near.set_partial(&mut state.ctx, class, info.list.into(), page + 1);
        }
        near.set_info(&mut state.ctx, page, &info);
    }

    fn unplace(&mut self, info: &mut PageInfo) {
        if u64::from(info.list) >= PARTIALS {
            info.list = NO_LIST;
            return;
        }
        let class = info.class.expect("a page with slots has a class");
        let LockedState { near, state, .. } = self;
        match info.prev.checked_sub(1) {
            None => near.set_partial(&mut state.ctx, class, info.list.into(), info.next),
            Some(prev) => {
                let mut before = near.info(prev);
                before.next = info.next;
                near.set_info(&mut state.ctx, prev, &before);
            }
        }
        if let Some(next) = info.next.checked_sub(1) {
            let mut after = near.info(next);
            after.prev = info.prev;
            near.set_info(&mut state.ctx, next, &after);
        }
        (info.list, info.prev, info.next) = (NO_LIST, 0, 0);
    }

    // -- slots

    /// Takes up to `most` free slots of `class`, from the fullest pages first.
    pub(crate) fn take_slots(&mut self, class: u8, most: usize, to: &mut Vec<SlotId>) {
        let mut left = most;
        for tenths in 0..PARTIALS {
            while left > 0 {
                let Some(page) = self.near.partial(class, tenths).checked_sub(1) else {
                    break;
                };
                left -= self.take_from(page, left, to);
            }
        }
    }

    fn take_from(&mut self, page: u32, most: usize, to: &mut Vec<SlotId>) -> usize {
        let mut info = self.near.info(page);
        let mut taken = 0;
        while taken < most && info.free > 0 {
            let index = match info.free_head.checked_sub(1) {
                Some(index) => {
                    info.free_head = self.near.chain(self.near.slot(page, index)) as u32;
                    index
                }
                None => {
                    info.fresh += 1;
                    info.fresh - 1
                }
            };
            let slot = self.near.slot(page, index);
            let LockedState { near, state, .. } = self;
            near.set_link(&mut state.ctx, slot, &LruLink::default());
            info.free -= 1;
            taken += 1;
            to.push(slot);
        }
        self.move_page(page, info);
        taken
    }

    /// Frees `slot`. Returns its page if the page is empty now.
    pub(crate) fn free_slot(&mut self, slot: SlotId) -> Option<u32> {
        let page = self.near.page_of(slot);
        let mut info = self.near.info(page);
        let LockedState { near, state, .. } = self;
        near.set_chain(&mut state.ctx, slot, info.free_head.into());
        info.free_head = near.index_of(slot) + 1;
        info.free += 1;
        self.move_page(page, info);
        self.is_empty(page).then_some(page)
    }

    /// Writes `info` and moves the page to its list, if that has changed (MDB-STATE-3).
    fn move_page(&mut self, page: u32, mut info: PageInfo) {
        if info.list == HELD || self.tenths(&info) == info.list {
            let LockedState { near, state, .. } = self;
            near.set_info(&mut state.ctx, page, &info);
            return;
        }
        self.unplace(&mut info);
        self.place(page, info);
    }
}
