//! Chains of items with the same hash, and LRU lists of a class and an area.

use farbank_pm::Medium;

use super::{AREAS_BY_PLACE, CacheState, LockedState};
use crate::metadata::{ClassCounter, LruLink, LruList, SlotId, chain_word, follow};

impl<N: Medium> LockedState<'_, N> {
    /// Links the item in `slot` as the newest of its list. Replaces `old` in its chain, if given.
    pub(crate) fn publish(&mut self, slot: SlotId, class: u8, link: LruLink, old: Option<SlotId>) {
        let is_small = self.begins_small(slot, link.tag, old);
        self.link(slot, class, LruLink { is_small, ..link }, old);
    }

    /// As [`LockedState::publish`], for an item that was in the pool when it was opened.
    pub(crate) fn publish_recovered(
        &mut self,
        slot: SlotId,
        class: u8,
        link: LruLink,
        old: Option<SlotId>,
    ) {
        self.link(slot, class, link, old);
    }

    fn link(&mut self, slot: SlotId, class: u8, link: LruLink, old: Option<SlotId>) {
        let list = self.list_of(class, &link);
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
        let number = self.list_of(class, &link);
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
        self.copy_uses(from, to);
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
        let list = self.list_of(class, &link);
        self.remove(list, slot);
        let LockedState { near, state, .. } = self;
        near.set_link(&mut state.ctx, slot, &LruLink::default());
        self.count(class, ClassCounter::Items, -1);
        let bytes = self.classes.slot_bytes(class);
        self.areas.take(link.area, link.generation, bytes);
    }

    /// Returns the number of the list of `class` that an item with this link is on.
    #[inline]
    fn list_of(&mut self, class: u8, link: &LruLink) -> u32 {
        let main = self.main_list(class, link.area);
        match link.is_small {
            true => self.small_list(main),
            false => main,
        }
    }

    /// Returns the number of the small queue beside the list `main`.
    pub(super) fn small_list(&self, main: u32) -> u32 {
        main + (self.near.shape().lists_max / 2) as u32
    }

    /// Returns the number of the LRU list, or of the main queue, of `class` and `area`.
    #[inline]
    pub(super) fn main_list(&mut self, class: u8, area: u16) -> u32 {
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

    pub(super) fn push_newest(&mut self, number: u32, slot: SlotId) {
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

    pub(super) fn remove(&mut self, number: u32, slot: SlotId) {
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
        let list = self.list_of(class, &link);
        self.remove(list, slot);
        self.push_newest(list, slot);
    }

    /// Returns all lists, each with its class, its area, and whether it is a small queue.
    pub(super) fn all_lists(&self) -> Vec<(u8, u16, bool, LruList)> {
        let mut all = Vec::new();
        for (&(class, area), &main) in &self.state.lists {
            all.push((class, area, false, self.near.list(main)));
            if self.uses.is_some() {
                let small = self.small_list(main);
                all.push((class, area, true, self.near.list(small)));
            }
        }
        all.sort_by_key(|&(class, area, is_small, _)| (class, area, is_small));
        all
    }
}
