//! Consistency check of slots, pages, lists and chains.

use std::collections::HashSet;
use std::fmt;

use farbank_pm::Medium;

use super::LockedState;
use crate::metadata::{ClassCounter, HELD, PARTIALS, PageInfo, SlotId, follow};

/// Contradiction between slots, pages, lists and chains. Texts in it are the metadata found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Inconsistency {
    /// A slot is only in a chain or only in a list.
    HalfLinked {
        /// Number of the slot.
        slot: u32,
    },
    /// A slot in a chain has a wrong or repeated link.
    ChainLink {
        /// Number of the slot.
        slot: u32,
        /// Bucket of the chain.
        bucket: u64,
        /// The slot's links.
        link: String,
    },
    /// A slot in a list has a wrong or repeated link.
    ListLink {
        /// Number of the slot.
        slot: u32,
        /// Class of the list.
        class: u8,
        /// Area of the list.
        area: u16,
        /// The slot's links.
        link: String,
    },
    /// The head of a list contradicts its items.
    ListHead {
        /// Class of the list.
        class: u8,
        /// Area of the list.
        area: u16,
        /// Number of items on the list.
        items: u32,
        /// The head of the list.
        head: String,
    },
    /// A slot is both free and in use, or the free list of its page is too long.
    FreeList {
        /// Number of the page.
        page: u32,
        /// Index of the slot in the page.
        index: u32,
        /// The page's allocation state.
        info: String,
    },
    /// The free slots of a page and those in use do not add up to its slots.
    PageSlots {
        /// Number of the page.
        page: u32,
        /// Slots of the page.
        slots: u32,
        /// Slots on its free list, or never used.
        free: u32,
        /// Slots with an item.
        in_use: u32,
        /// The page's allocation state.
        info: String,
    },
    /// A page is on the wrong list of partial pages.
    PageList {
        /// Number of the page.
        page: u32,
        /// The page's allocation state.
        info: String,
    },
    /// The pages do not add up to those of the pool.
    PageCount {
        /// Pages with a class.
        classed: u64,
        /// Free pages.
        free: u64,
        /// Reserved pages.
        held: u64,
        /// Pages of the pool.
        pages: u64,
    },
    /// The number of pages that the classes count is not the number of pages that have a class.
    ClassedPages {
        /// Pages that the classes count.
        counted: u64,
        /// Pages with a class.
        found: u64,
    },
    /// The areas count more bytes than are in use.
    AreaBytes {
        /// Bytes that the areas count.
        counted: u64,
        /// Bytes of slots with an item.
        in_use: u64,
    },
}

impl fmt::Display for Inconsistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Inconsistency::HalfLinked { slot } => write!(
                f,
                "slot {slot} is only in a chain or only in a list, but must be in both"
            ),
            Inconsistency::ChainLink { slot, bucket, link } => write!(
                f,
                "slot {slot} in the chain of bucket {bucket} has a wrong or repeated link: {link}"
            ),
            Inconsistency::ListLink {
                slot,
                class,
                area,
                link,
            } => write!(
                f,
                "slot {slot} in the list of class {class}, area {area} has a wrong or repeated link: {link}"
            ),
            Inconsistency::ListHead {
                class,
                area,
                items,
                head,
            } => write!(
                f,
                "the list of class {class}, area {area} is {head}, but has {items} items"
            ),
            Inconsistency::FreeList { page, index, info } => write!(
                f,
                "slot {index} of page {page} is both free and in use, or the free list is too long: {info}"
            ),
            Inconsistency::PageSlots {
                page,
                slots,
                free,
                in_use,
                info,
            } => write!(
                f,
                "page {page} has {slots} slots, but {free} are free and {in_use} in use: {info}"
            ),
            Inconsistency::PageList { page, info } => {
                write!(f, "page {page} is on the wrong list: {info}")
            }
            Inconsistency::PageCount {
                classed,
                free,
                held,
                pages,
            } => write!(
                f,
                "{classed} pages with a class, {free} free and {held} reserved pages do not add up to the pool's {pages}"
            ),
            Inconsistency::ClassedPages { counted, found } => write!(
                f,
                "the classes count {counted} pages, but {found} pages have a class"
            ),
            Inconsistency::AreaBytes { counted, in_use } => write!(
                f,
                "areas count {counted} bytes, but only {in_use} bytes of slots are in use"
            ),
        }
    }
}

impl std::error::Error for Inconsistency {}

impl<N: Medium> LockedState<'_, N> {
    /// Checks MDB-STATE-1 to MDB-STATE-3 for a pool of `pages` pages. All slot caches must be empty.
    pub(crate) fn verify(&self, pages: u32) -> Result<(), Inconsistency> {
        let chained = self.chained()?;
        let listed = self.listed()?;
        if let Some(&SlotId(slot)) = chained.symmetric_difference(&listed).next() {
            return Err(Inconsistency::HalfLinked { slot });
        }
        let mut bytes = 0;
        for page in 0..pages {
            bytes += self.page_is_sound(page, &chained)?;
        }
        self.check_page_count(pages)?;
        let counted: u64 = (0..self.areas.count())
            .map(|area| self.areas.bytes(area as u16))
            .sum();
        match counted > bytes {
            true => Err(Inconsistency::AreaBytes {
                counted,
                in_use: bytes,
            }),
            false => Ok(()),
        }
    }

    fn check_page_count(&self, pages: u32) -> Result<(), Inconsistency> {
        let (free, held) = (self.free_pages() as u64, self.pages_held());
        let classed: u64 = (0..self.classes.len() as u8)
            .map(|class| self.near.tally(class, ClassCounter::Pages))
            .sum();
        let has_class = |page: &u32| self.near.info(*page).class.is_some();
        let found = (0..pages).filter(has_class).count() as u64;
        if found != classed {
            return Err(Inconsistency::ClassedPages {
                counted: classed,
                found,
            });
        }
        let pages = u64::from(pages);
        match classed + free + held == pages {
            true => Ok(()),
            false => Err(Inconsistency::PageCount {
                classed,
                free,
                held,
                pages,
            }),
        }
    }

    fn chained(&self) -> Result<HashSet<SlotId>, Inconsistency> {
        let mut all = HashSet::new();
        for bucket in 0..self.near.buckets() {
            let mut word = self.near.bucket(bucket);
            while let Some((tag, slot)) = follow(word) {
                let link = self.near.link(slot);
                if !all.insert(slot) || !link.linked || link.tag != tag {
                    return Err(Inconsistency::ChainLink {
                        slot: slot.0,
                        bucket,
                        link: format!("{link:?}"),
                    });
                }
                word = self.near.chain(slot);
            }
        }
        Ok(all)
    }

    fn listed(&self) -> Result<HashSet<SlotId>, Inconsistency> {
        let mut all = HashSet::new();
        for (class, area, is_small, list) in self.all_lists() {
            let (mut at, mut before, mut items) = (list.head, 0, 0);
            while let Some(slot) = at.checked_sub(1).map(SlotId) {
                let link = self.near.link(slot);
                let of_list = link.area == area && link.is_small == is_small;
                let right = of_list && self.class_of(slot) == class && link.prev == before;
                if !right || !all.insert(slot) {
                    return Err(Inconsistency::ListLink {
                        slot: slot.0,
                        class,
                        area,
                        link: format!("{link:?}"),
                    });
                }
                (before, at) = (at, link.next);
                items += 1;
            }
            if before != list.tail || items != list.items {
                return Err(Inconsistency::ListHead {
                    class,
                    area,
                    items,
                    head: format!("{list:?}"),
                });
            }
        }
        Ok(all)
    }

    /// Checks a page. Returns the bytes of its slots in use.
    fn page_is_sound(&self, page: u32, used: &HashSet<SlotId>) -> Result<u64, Inconsistency> {
        let page_info = self.near.info(page);
        let Some(class) = page_info.class else {
            return Ok(0);
        };
        let info = format!("{page_info:?}");
        let slots = self.classes.slots(class);
        let in_use = (0..slots)
            .filter(|&index| used.contains(&self.near.slot(page, index)))
            .count() as u32;
        let free = self.count_free(page, &page_info, slots, used)?;
        if free != page_info.free || free + in_use != slots {
            return Err(Inconsistency::PageSlots {
                page,
                slots,
                free,
                in_use,
                info,
            });
        }
        let is_listed = u64::from(page_info.list) < PARTIALS;
        if is_listed != (page_info.free > 0) && page_info.list != HELD {
            return Err(Inconsistency::PageList { page, info });
        }
        Ok(u64::from(in_use) * u64::from(self.classes.slot_bytes(class)))
    }

    /// Returns the number of free slots of a page: those on its free list, and those never used.
    fn count_free(
        &self,
        page: u32,
        info: &PageInfo,
        slots: u32,
        used: &HashSet<SlotId>,
    ) -> Result<u32, Inconsistency> {
        let mut free = slots - info.fresh;
        let mut at = info.free_head;
        while let Some(index) = at.checked_sub(1) {
            free += 1;
            if used.contains(&self.near.slot(page, index)) || free > slots {
                return Err(Inconsistency::FreeList {
                    page,
                    index,
                    info: format!("{info:?}"),
                });
            }
            at = self.near.chain(self.near.slot(page, index)) as u32;
        }
        Ok(free)
    }
}
