//! The choice of items to evict, and of pages to empty.

use farbank_pm::Medium;

use super::LockedState;
use crate::key_locks::KeyLocks;
use crate::metadata::{ClassCounter, LruLink, NO_LIST, PARTIALS, SlotId};

/// Items at the old end of a list that an eviction searches for expired ones before it takes the oldest.
const EXPIRED_LOOKED_AT: usize = 50;

impl<N: Medium> LockedState<'_, N> {
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

    /// Chooses expired items near the old ends of the lists first, then the oldest ones, or those that S3-FIFO chooses.
    /// `list` is the LRU list or the main queue.
    fn choose_of(
        &mut self,
        list: u32,
        most: usize,
        now_s: u32,
        claims: &KeyLocks,
        victims: &mut Vec<EvictionVictim>,
    ) {
        self.choose_expired(list, most, now_s, claims, victims);
        if self.uses.is_some() {
            let small = self.small_list(list);
            self.choose_expired(small, most, now_s, claims, victims);
            self.choose_from_queues(list, most, claims, victims);
            return;
        }
        let mut at = self.near.list(list).tail;
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

    /// Chooses expired items near the old end of a list.
    fn choose_expired(
        &self,
        list: u32,
        most: usize,
        now_s: u32,
        claims: &KeyLocks,
        victims: &mut Vec<EvictionVictim>,
    ) {
        let mut at = self.near.list(list).tail;
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
    }

    /// Unlinks a victim that is durably dead, and counts the eviction.
    pub(crate) fn evict(&mut self, victim: &EvictionVictim) {
        let class = self.class_of(victim.slot);
        self.note_ghost(victim.slot);
        self.unlink(victim.slot);
        self.count(class, ClassCounter::Evicted, 1);
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
}

/// An item that is about to be removed, whose key lock is held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EvictionVictim {
    pub(crate) slot: SlotId,
    pub(crate) tag: u32,
}

impl EvictionVictim {
    pub(super) fn claim(slot: SlotId, link: &LruLink, claims: &KeyLocks) -> Option<EvictionVictim> {
        let tag = link.tag;
        claims
            .try_lock(KeyLocks::stripe(tag))
            .then_some(EvictionVictim { slot, tag })
    }
}
