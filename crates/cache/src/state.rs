//! Operations under the cache's one lock: pages, free slots, LRU lists and chains. They access the metadata medium
//! only, never the data medium.
//!
//! The pages of a class with free slots are on ten lists, by the share of free slots. A session takes slots from the
//! fullest page, so that the emptiest pages become empty. A page with only free slots can return to the pool.
//!
//! # Invariants
//! MDB-STATE-1  A slot is in exactly one of these states: free in its page, held by a session (free or retired, in its slot
//!     cache or batch), or linked.
//! MDB-STATE-2  A linked slot is in the chain of its tag's bucket and in the LRU list of its class and area.
//! MDB-STATE-3  `free` of a page counts its free slots. The page is on the list for its share of free slots, or on none if
//!     `free` is 0 or the page is reserved.

use std::collections::{BTreeMap, HashMap};

use farbank_pm::sync::MutexGuard;
use farbank_pm::{Medium, PersistCtx};

use crate::areas::AreaTable;
use crate::classes::SlotClasses;
use crate::config::LockWatch;
use crate::key_locks::KeyLocks;
use crate::metadata::{
    ClassCounter, HELD, LruLink, LruList, Metadata, NO_LIST, PARTIALS, PageInfo, SlotId,
    chain_word, follow,
};

/// Items at the old end of a list that an eviction searches for expired ones before it takes the oldest.
const EXPIRED_LOOKED_AT: usize = 50;

/// Areas whose lists are found by index, without hashing: as many as Redis has databases.
const AREAS_BY_PLACE: usize = 16;

/// State outside the metadata medium.
#[derive(Default)]
pub(crate) struct CacheState {
    ctx: PersistCtx,
    /// Number of the list plus one, by class and area, for the first [`AREAS_BY_PLACE`] areas. Most caches have no
    /// other areas.
    near_lists: Vec<u32>,
    lists: HashMap<(u8, u16), u32>,
    /// For each class the areas with a list, and the index of the area from which the next eviction takes an item.
    eviction_turns: Vec<(Vec<u16>, usize)>,
    /// Free pages, which have no class. The last one is taken first.
    pub(crate) free_pages: Vec<u32>,
    /// Free space for links: offset and length in bytes.
    links_free: BTreeMap<u64, u64>,
    /// Free pages that are reserved, because the cache is limited to fewer pages.
    held: Vec<u32>,
}

impl CacheState {
    pub(crate) fn new<N: Medium>(near: &Metadata<N>, classes: usize) -> CacheState {
        let (from, end) = near.links_room();
        CacheState {
            eviction_turns: vec![(Vec::new(), 0); classes],
            near_lists: vec![0; classes * AREAS_BY_PLACE],
            links_free: BTreeMap::from([(from, end - from)]),
            ..CacheState::default()
        }
    }
}

/// The locked state, with the tables it refers to.
pub(crate) struct LockedState<'a, N> {
    pub(crate) near: &'a Metadata<N>,
    pub(crate) classes: &'a SlotClasses,
    pub(crate) areas: &'a AreaTable,
    pub(crate) watch: Option<&'a LockWatch>,
    pub(crate) state: MutexGuard<'a, CacheState>,
}

impl<N> Drop for LockedState<'_, N> {
    #[inline]
    fn drop(&mut self) {
        if let Some(watch) = self.watch {
            watch(false);
        }
    }
}

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

    /// Takes a free page, and space for its links. Returns `None` if there is no free page or no space for the links.
    pub(crate) fn take_page(&mut self, class: u8) -> Option<(u32, u64)> {
        let page = self.state.free_pages.pop()?;
        match self.take_links(Metadata::<N>::links_bytes(self.classes.slots(class))) {
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
            .take_links(Metadata::<N>::links_bytes(slots))
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

    /// Removes an empty page from its class.
    pub(crate) fn drop_page(&mut self, page: u32) {
        let mut info = self.near.info(page);
        let Some(class) = info.class else { return };
        self.unplace(&mut info);
        let bytes = Metadata::<N>::links_bytes(self.classes.slots(class));
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
    fn reserve_page(&mut self, page: u32) {
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

    // -- chains and lists

    /// Links the item in `slot` as the newest of its LRU list. Replaces `old` in its chain, if given.
    pub(crate) fn publish(&mut self, slot: SlotId, class: u8, link: LruLink, old: Option<SlotId>) {
        let list = self.list_of(class, link.area);
        let word = chain_word(link.tag, slot);
        let bucket = self.near.bucket_of_tag(link.tag);
        let linked = LruLink {
            linked: true,
            ..link
        };
        let LockedState { near, state, .. } = self;
        near.set_link(&mut state.ctx, slot, &linked);
        match old {
            Some(old) => {
                // The new item takes the old one's position, so that a reader of the chain finds one of the two.
                near.set_chain(&mut state.ctx, slot, near.chain(old));
                self.redirect(bucket, old, word);
                self.unlink_item(old);
            }
            None => {
                near.set_chain(&mut state.ctx, slot, near.bucket(bucket));
                near.set_bucket(&mut state.ctx, bucket, word);
            }
        }
        self.push_newest(list, slot);
        self.count(class, ClassCounter::Items, 1);
        self.areas.add(link.area, self.classes.slot_bytes(class));
    }

    /// Unlinks the item in `slot` from its chain and its list. The caller then owns the slot.
    pub(crate) fn unlink(&mut self, slot: SlotId) {
        let link = self.near.link(slot);
        let bucket = self.near.bucket_of_tag(link.tag);
        self.redirect(bucket, slot, self.near.chain(slot));
        self.unlink_item(slot);
    }

    /// Replaces slot `from` by `to` in its chain, and at the same position of its list.
    pub(crate) fn relocate(&mut self, from: SlotId, to: SlotId) {
        let link = self.near.link(from);
        let class = self.class_of(from);
        let number = self.list_of(class, link.area);
        let bucket = self.near.bucket_of_tag(link.tag);
        let LockedState { near, state, .. } = self;
        let ctx = &mut state.ctx;
        near.set_chain(ctx, to, near.chain(from));
        near.set_link(ctx, to, &link);
        let mut list = near.list(number);
        match link.prev.checked_sub(1).map(SlotId) {
            None => list.head = to.0 + 1,
            Some(prev) => near.set_neighbours(ctx, prev, near.neighbours(prev).0, to.0 + 1),
        }
        match link.next.checked_sub(1).map(SlotId) {
            None => list.tail = to.0 + 1,
            Some(next) => near.set_neighbours(ctx, next, to.0 + 1, near.neighbours(next).1),
        }
        near.set_list(ctx, number, &list);
        self.redirect(bucket, from, chain_word(link.tag, to));
        let LockedState { near, state, .. } = self;
        near.set_link(&mut state.ctx, from, &LruLink::default());
    }

    /// Stores `word` in place of the chain word or bucket that leads to `slot` in the chain of `bucket`.
    fn redirect(&mut self, bucket: u64, slot: SlotId, word: u64) {
        let LockedState { near, state, .. } = self;
        let mut before = None;
        let mut at = near.bucket(bucket);
        while let Some((_, here)) = follow(at) {
            if here == slot {
                return match before {
                    None => near.set_bucket(&mut state.ctx, bucket, word),
                    Some(before) => near.set_chain(&mut state.ctx, before, word),
                };
            }
            before = Some(here);
            at = near.chain(here);
        }
        unreachable!("a linked slot is in its chain (MDB-STATE-2)");
    }

    /// Removes the item in `slot` from its list and from the counters.
    fn unlink_item(&mut self, slot: SlotId) {
        let link = self.near.link(slot);
        let class = self.class_of(slot);
        let list = self.list_of(class, link.area);
        self.remove(list, slot);
        let LockedState { near, state, .. } = self;
        near.set_link(&mut state.ctx, slot, &LruLink::default());
        self.count(class, ClassCounter::Items, -1);
        let bytes = self.classes.slot_bytes(class);
        self.areas.take(link.area, link.generation, bytes);
    }

    pub(crate) fn class_of(&self, slot: SlotId) -> u8 {
        let class = self.near.class_of(self.near.page_of(slot));
        class.expect("a page in use has a class")
    }

    /// Returns the number of the list of `class` and `area`.
    #[inline]
    fn list_of(&mut self, class: u8, area: u16) -> u32 {
        if usize::from(area) >= AREAS_BY_PLACE {
            return self.look_list_up(class, area);
        }
        let place = usize::from(class) * AREAS_BY_PLACE + usize::from(area);
        match self.state.near_lists[place].checked_sub(1) {
            Some(list) => list,
            None => {
                let list = self.look_list_up(class, area);
                self.state.near_lists[place] = list + 1;
                list
            }
        }
    }

    fn look_list_up(&mut self, class: u8, area: u16) -> u32 {
        let next = self.state.lists.len() as u32;
        let CacheState {
            lists,
            eviction_turns: turns,
            ..
        } = &mut *self.state;
        *lists.entry((class, area)).or_insert_with(|| {
            turns[usize::from(class)].0.push(area);
            next
        })
    }

    fn push_newest(&mut self, number: u32, slot: SlotId) {
        let LockedState { near, state, .. } = self;
        let mut list = near.list(number);
        near.set_neighbours(&mut state.ctx, slot, 0, list.head);
        match list.head.checked_sub(1) {
            Some(head) => {
                let (_, next) = near.neighbours(SlotId(head));
                near.set_neighbours(&mut state.ctx, SlotId(head), slot.0 + 1, next);
            }
            None => list.tail = slot.0 + 1,
        }
        list.head = slot.0 + 1;
        list.items += 1;
        near.set_list(&mut state.ctx, number, &list);
    }

    fn remove(&mut self, number: u32, slot: SlotId) {
        let LockedState { near, state, .. } = self;
        let mut list = near.list(number);
        let (prev, next) = near.neighbours(slot);
        match prev.checked_sub(1) {
            None => list.head = next,
            Some(prev) => {
                let (before, _) = near.neighbours(SlotId(prev));
                near.set_neighbours(&mut state.ctx, SlotId(prev), before, next);
            }
        }
        match next.checked_sub(1) {
            None => list.tail = prev,
            Some(next) => {
                let (_, after) = near.neighbours(SlotId(next));
                near.set_neighbours(&mut state.ctx, SlotId(next), prev, after);
            }
        }
        list.items -= 1;
        near.set_list(&mut state.ctx, number, &list);
    }

    /// Makes the item in `slot` the newest of its list, if it is still there with this `tag`.
    pub(crate) fn mark_recently_used(&mut self, slot: SlotId, tag: u32) {
        let class = self.near.class_of(self.near.page_of(slot));
        // Its page may belong to another class by now.
        let there = |class: &u8| self.near.index_of(slot) < self.classes.slots(*class);
        let Some(class) = class.filter(there) else {
            return;
        };
        let link = self.near.link(slot);
        if !link.linked || link.tag != tag || link.prev == 0 {
            return;
        }
        let list = self.list_of(class, link.area);
        self.remove(list, slot);
        self.push_newest(list, slot);
    }

    fn count(&mut self, class: u8, what: ClassCounter, by: i64) {
        let LockedState { near, state, .. } = self;
        let value = near.tally(class, what).wrapping_add_signed(by);
        near.set_tally(&mut state.ctx, class, what, value);
    }

    // -- eviction

    /// Chooses up to `most` items of `class` to evict, and acquires their key locks. It takes them from `area` if
    /// that has any, otherwise from the areas in turn unless `only_own` is set. The caller marks them dead, unlinks
    /// them and releases the locks.
    pub(crate) fn choose_victims(
        &mut self,
        class: u8,
        area: u16,
        only_own: bool,
        most: usize,
        now_s: u32,
        claims: &KeyLocks,
    ) -> Vec<EvictionVictim> {
        let mut victims = Vec::new();
        let own = self.state.lists.get(&(class, area)).copied();
        if let Some(list) = own {
            self.choose_of(list, most, now_s, claims, &mut victims);
        }
        if !victims.is_empty() || only_own {
            return victims;
        }
        let areas = self.state.eviction_turns[usize::from(class)].0.len();
        for _ in 0..areas {
            let (of_class, turn) = &mut self.state.eviction_turns[usize::from(class)];
            let whose = of_class[*turn % areas];
            *turn = (*turn + 1) % areas;
            let list = self.state.lists[&(class, whose)];
            self.choose_of(list, most, now_s, claims, &mut victims);
            if !victims.is_empty() {
                break;
            }
        }
        victims
    }

    /// Chooses expired items near the old end of a list first, then the oldest ones.
    fn choose_of(
        &mut self,
        list: u32,
        most: usize,
        now_s: u32,
        claims: &KeyLocks,
        victims: &mut Vec<EvictionVictim>,
    ) {
        let tail = self.near.list(list).tail;
        let mut at = tail;
        for _ in 0..EXPIRED_LOOKED_AT {
            let Some(slot) = at.checked_sub(1).map(SlotId) else {
                break;
            };
            let link = self.near.link(slot);
            if link.expires_s != 0 && link.expires_s <= now_s && victims.len() < most {
                victims.extend(EvictionVictim::claim(slot, &link, claims));
            }
            at = link.prev;
        }
        at = tail;
        while victims.len() < most {
            let Some(slot) = at.checked_sub(1).map(SlotId) else {
                break;
            };
            let link = self.near.link(slot);
            if !victims.iter().any(|victim| victim.slot == slot) {
                victims.extend(EvictionVictim::claim(slot, &link, claims));
            }
            at = link.prev;
        }
    }

    /// Unlinks a victim that is durably dead, and counts the eviction.
    pub(crate) fn evict(&mut self, victim: &EvictionVictim) {
        let class = self.class_of(victim.slot);
        let area = self.near.link(victim.slot).area;
        self.unlink(victim.slot);
        self.count(class, ClassCounter::Evicted, 1);
        let number = self.list_of(class, area);
        let LockedState { near, state, .. } = self;
        let mut list = near.list(number);
        list.evicted = list.evicted.wrapping_add(1);
        near.set_list(&mut state.ctx, number, &list);
    }

    /// Returns up to `most` items in `page` for which `wanted` returns true, and acquires their key locks. Skips
    /// items whose lock is held.
    pub(crate) fn choose_in_page(
        &mut self,
        page: u32,
        most: usize,
        claims: &KeyLocks,
        wanted: &dyn Fn(&LruLink) -> bool,
    ) -> Vec<EvictionVictim> {
        let info = self.near.info(page);
        let mut victims = Vec::new();
        for index in 0..info.fresh {
            if victims.len() == most {
                break;
            }
            let slot = self.near.slot(page, index);
            let link = self.near.link(slot);
            if link.linked && info.class.is_some() && wanted(&link) {
                victims.extend(EvictionVictim::claim(slot, &link, claims));
            }
        }
        victims
    }

    /// Reserves and returns the page that [`LockedState::page_to_merge`] chooses, so that no other session empties
    /// it.
    pub(crate) fn hold_page_to_merge(&mut self, class: u8) -> Option<u32> {
        let page = self.page_to_merge(class)?;
        self.reserve_page(page);
        Some(page)
    }

    /// Reserves and returns the page that [`LockedState::page_to_steal`] chooses.
    pub(crate) fn hold_page_to_steal(&mut self, class: u8) -> Option<u32> {
        let page = self.page_to_steal(class)?;
        self.reserve_page(page);
        Some(page)
    }

    /// Returns the emptiest page of `class`, if the other partial pages have enough free slots for its items.
    fn page_to_merge(&self, class: u8) -> Option<u32> {
        let slots = self.classes.slots(class);
        let (mut emptiest, mut free) = (None, 0);
        for tenths in (0..PARTIALS).rev() {
            let mut at = self.near.partial(class, tenths);
            while let Some(page) = at.checked_sub(1) {
                let info = self.near.info(page);
                emptiest = emptiest.or(Some((page, info.free)));
                free += info.free;
                at = info.next;
                // The other pages have free slots for all its items.
                if let Some((page, own)) = emptiest
                    && free - own >= slots - own
                {
                    return Some(page);
                }
            }
        }
        None
    }

    /// Returns the page to empty for `class`: the emptiest page of the class with the most pages.
    fn page_to_steal(&self, class: u8) -> Option<u32> {
        let richest = (0..self.classes.len() as u8)
            .filter(|&other| other != class && self.near.tally(other, ClassCounter::Pages) > 0)
            .max_by_key(|&other| self.near.tally(other, ClassCounter::Pages))?;
        let partial = (0..PARTIALS)
            .rev()
            .find_map(|tenths| self.near.partial(richest, tenths).checked_sub(1));
        partial.or_else(|| {
            let pages = self.near.shape().pages_max as u32;
            (0..pages).find(|&page| {
                let info = self.near.info(page);
                info.class == Some(richest) && info.list == NO_LIST
            })
        })
    }

    /// Returns all lists, with their class and area.
    pub(crate) fn all_lists(&self) -> Vec<(u8, u16, LruList)> {
        let lists = self.state.lists.iter();
        let mut all: Vec<_> = lists
            .map(|(&(class, area), &list)| (class, area, self.near.list(list)))
            .collect();
        all.sort_by_key(|&(class, area, _)| (class, area));
        all
    }
}

/// An item that is about to be removed, whose key lock is held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EvictionVictim {
    pub(crate) slot: SlotId,
    pub(crate) tag: u32,
}

impl EvictionVictim {
    fn claim(slot: SlotId, link: &LruLink, claims: &KeyLocks) -> Option<EvictionVictim> {
        let tag = link.tag;
        claims
            .try_lock(KeyLocks::stripe(tag))
            .then_some(EvictionVictim { slot, tag })
    }
}
