//! Operations under the cache's one lock: pages, free slots, LRU lists and chains. They access the metadata medium
//! only, never the data medium.
//!
//! * `pages` has the pages of each class, their free slots, and the space for links.
//! * `lists` has the chains and the LRU lists.
//! * `victims` chooses items to evict, and pages to empty. `s3_fifo` is the other order of eviction.
//! * `verify` checks all of them.
//!
//! The pages of a class with free slots are on ten lists, by the share of free slots. A session takes slots from the
//! fullest page, so that the emptiest pages become empty. A page with only free slots can return to the pool.
//!
//! # Invariants
//! MDB-STATE-1  A slot is in exactly one of these states: free in its page, held by a session (free or retired, in its slot
//!     cache or batch), or linked.
//! MDB-STATE-2  A linked slot is in the chain of its tag's bucket and in a list of its class and area: the LRU list, or the queue
//!     of S3-FIFO that its link names.
//! MDB-STATE-3  `free` of a page counts its free slots. The page is on the list for its share of free slots, or on none if
//!     `free` is 0 or the page is reserved.

mod lists;
mod pages;
mod s3_fifo;
mod verify;
mod victims;

use std::collections::{BTreeMap, HashMap};

use farbank_pm::sync::{Mutex, MutexGuard, lock};
use farbank_pm::{Medium, PersistCtx};
use farbank_store::SlabClass;

use crate::areas::AreaTable;
use crate::classes::SlotClasses;
use crate::config::{EvictionOrder, LockWatch};
use crate::metadata::{ClassCounter, Metadata, SlotId};

use self::s3_fifo::GhostTable;
pub(crate) use self::s3_fifo::SlotUses;
pub use self::verify::Inconsistency;
pub(crate) use self::victims::EvictionVictim;

/// Areas whose lists are found by index, without hashing: as many as Redis has databases.
const AREAS_BY_PLACE: usize = 16;

/// The metadata, and the lock under which it is written.
pub(crate) struct LockedMetadata<N> {
    metadata: Metadata<N>,
    state: Mutex<CacheState>,
    /// Only with [`EvictionOrder::S3Fifo`].
    uses: Option<SlotUses>,
    watch: Option<LockWatch>,
}

impl<N: Medium> LockedMetadata<N> {
    /// Wraps the metadata of an empty cache with `classes` slab classes.
    pub(crate) fn new(
        metadata: Metadata<N>,
        classes: usize,
        eviction: EvictionOrder,
        watch: Option<LockWatch>,
    ) -> LockedMetadata<N> {
        let shape = metadata.shape();
        let mut state = CacheState::new(&metadata, classes);
        let uses = match eviction {
            EvictionOrder::Lru => None,
            EvictionOrder::S3Fifo => {
                state.ghosts = Some(GhostTable::new(metadata.buckets() / 2));
                Some(SlotUses::new(shape.pages_max << shape.slot_bits))
            }
        };
        LockedMetadata {
            state: Mutex::new(state),
            metadata,
            uses,
            watch,
        }
    }

    /// Returns the counts of uses, with [`EvictionOrder::S3Fifo`].
    #[inline]
    pub(crate) fn uses(&self) -> Option<&SlotUses> {
        self.uses.as_ref()
    }

    /// Returns the metadata, for what is read without the lock (MDB-META-2).
    #[inline]
    pub(crate) fn metadata(&self) -> &Metadata<N> {
        &self.metadata
    }

    /// Acquires the lock. Poisoning is ignored, because the guarded state is consistent at all times.
    pub(crate) fn lock<'a>(
        &'a self,
        classes: &'a SlotClasses,
        areas: &'a AreaTable,
    ) -> LockedState<'a, N> {
        let state = lock(&self.state);
        if let Some(watch) = &self.watch {
            watch(true);
        }
        LockedState {
            near: &self.metadata,
            classes,
            areas,
            uses: self.uses.as_ref(),
            watch: self.watch.as_ref(),
            state,
        }
    }
}

/// State outside the metadata medium.
#[derive(Default)]
struct CacheState {
    ctx: PersistCtx,
    /// Number of the list plus one, by class and area, for the first [`AREAS_BY_PLACE`] areas. Most caches have no
    /// other areas.
    near_lists: Vec<u32>,
    lists: HashMap<(u8, u16), u32>,
    /// Items of all classes.
    items: u64,
    /// Only with [`EvictionOrder::S3Fifo`].
    ghosts: Option<GhostTable>,
    /// For each class the areas with a list, and the index of the area from which the next eviction takes an item.
    eviction_turns: Vec<(Vec<u16>, usize)>,
    /// Free pages, which have no class. The last one is taken first.
    free_pages: Vec<u32>,
    /// Free space for links: offset and length in bytes.
    links_free: BTreeMap<u64, u64>,
    /// Free pages that are reserved, because the cache is limited to fewer pages.
    held: Vec<u32>,
}

impl CacheState {
    fn new<N: Medium>(near: &Metadata<N>, classes: usize) -> CacheState {
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
    near: &'a Metadata<N>,
    classes: &'a SlotClasses,
    areas: &'a AreaTable,
    uses: Option<&'a SlotUses>,
    watch: Option<&'a LockWatch>,
    state: MutexGuard<'a, CacheState>,
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
    pub(crate) fn class_of(&self, slot: SlotId) -> u8 {
        let class = self.near.class_of(self.near.page_of(slot));
        class.expect("a page in use has a class")
    }

    /// Returns the figures of a class.
    fn slab_class(&self, class: u8) -> SlabClass {
        let tally = |what| self.near.tally(class, what);
        let slot_bytes = u64::from(self.classes.slot_bytes(class));
        let slots_per_page = u64::from(self.classes.slots(class));
        let (pages, items) = (tally(ClassCounter::Pages), tally(ClassCounter::Items));
        SlabClass {
            id: u32::from(class) + 1,
            slot_bytes,
            slots_per_page,
            pages,
            slots_used: items,
            slots_free: pages * slots_per_page - items,
            items,
            item_bytes: items * slot_bytes,
            evicted: tally(ClassCounter::Evicted),
            ..SlabClass::default()
        }
    }

    /// Returns the figures of all classes, also of those without pages.
    pub(crate) fn slab_classes(&self) -> Vec<SlabClass> {
        let classes = 0..self.classes.len() as u8;
        classes.map(|class| self.slab_class(class)).collect()
    }

    /// Returns the bytes of links that a page of `class` needs.
    fn links_bytes(&self, class: u8) -> u64 {
        Metadata::<N>::links_bytes(self.classes.slots(class))
    }

    fn count(&mut self, class: u8, what: ClassCounter, by: i64) {
        let LockedState { near, state, .. } = self;
        let value = near.tally(class, what).wrapping_add_signed(by);
        near.set_tally(&mut state.ctx, class, what, value);
        if let ClassCounter::Items = what {
            state.items = state.items.wrapping_add_signed(by);
        }
    }
}
