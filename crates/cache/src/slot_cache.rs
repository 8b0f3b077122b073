//! A session's slot cache: free slots that it can use without the lock, and retired slots that readers may still
//! access.
//!
//! This is Tair's thread-local quota: a session takes a few slots of a class at a time, so that most writes need no
//! lock to get one. Other sessions can empty a slot cache, because an idle session would otherwise keep pages from
//! becoming empty.
//!
//! ```text
//!   pages ── a few at once ──▶ stash ── a write ──▶ linked ── replaced, deleted, evicted ──▶ retired ── readers
//!     ▲                          ▲                                                            │       unpinned
//!     └──────────────────────────┴────────────────────────────────────────────────────────────┘
//! ```

use farbank_pm::epoch::EpochTable;
use farbank_pm::fault;
use farbank_pm::sync::{Arc, Mutex, MutexGuard, lock};

use crate::metadata::SlotId;

/// A slot whose item was unlinked.
#[derive(Clone, Copy)]
struct RetiredSlot {
    slot: SlotId,
    class: u8,
    /// Epoch of its retirement; [`u64::MAX`] if it has none yet.
    epoch: u64,
}

/// Slots that a session keeps.
pub(crate) struct SlotCache {
    free: Vec<Vec<SlotId>>,
    retired: Vec<RetiredSlot>,
    /// Number of entries at the end of `retired` that have no epoch yet.
    fresh: usize,
}

impl SlotCache {
    fn new(classes: usize) -> SlotCache {
        SlotCache {
            free: vec![Vec::new(); classes],
            retired: Vec::new(),
            fresh: 0,
        }
    }

    /// Takes a free slot of `class`, if there is one.
    pub(crate) fn take(&mut self, class: u8) -> Option<SlotId> {
        self.free[usize::from(class)].pop()
    }

    /// Adds free slots of `class`.
    pub(crate) fn keep(&mut self, class: u8, slots: &[SlotId]) {
        self.free[usize::from(class)].extend_from_slice(slots);
    }

    /// Retires the slot of an unlinked item until its readers have unpinned. Returns the number of retired slots.
    pub(crate) fn give_up(&mut self, slot: SlotId, class: u8) -> usize {
        self.retired.push(RetiredSlot {
            slot,
            class,
            epoch: u64::MAX,
        });
        self.fresh += 1;
        self.retired.len()
    }

    /// Returns whether a retired slot of `class` will become free when its readers have unpinned.
    pub(crate) fn is_coming(&self, class: u8) -> bool {
        self.retired.iter().any(|gone| gone.class == class)
    }

    /// Frees the retired slots that no reader can access any more: up to `most` slots of `class` go to the stash, the
    /// others to `free`.
    pub(crate) fn recycle(
        &mut self,
        epochs: &EpochTable,
        class: Option<u8>,
        most: usize,
        free: &mut Vec<SlotId>,
    ) {
        if self.fresh > 0 {
            let epoch = epochs.retire();
            let from = self.retired.len() - self.fresh;
            for gone in &mut self.retired[from..] {
                gone.epoch = epoch;
            }
            self.fresh = 0;
        }
        let oldest = epochs.oldest_pinned();
        let SlotCache {
            free: stash,
            retired,
            ..
        } = self;
        retired.retain(|gone| {
            let over = gone.epoch < oldest || fault!("mdb.reused_at_once");
            let own = &mut stash[usize::from(gone.class)];
            if over && class == Some(gone.class) && own.len() < most {
                own.push(gone.slot);
            } else if over {
                free.push(gone.slot);
            }
            !over
        });
    }

    /// Moves all free slots to `free`, and the retired slots that no reader can access any more.
    pub(crate) fn empty(&mut self, epochs: &EpochTable, free: &mut Vec<SlotId>) {
        for slots in &mut self.free {
            free.append(slots);
        }
        self.recycle(epochs, None, 0, free);
    }
}

/// The slot caches of all sessions.
#[derive(Default)]
pub(crate) struct SlotCaches(Mutex<Vec<Arc<Mutex<SlotCache>>>>);

impl SlotCaches {
    /// Creates the slot cache of a new session. It is removed after the session was dropped and no retired slots are
    /// left.
    pub(crate) fn add(&self, classes: usize) -> Arc<Mutex<SlotCache>> {
        let cache = Arc::new(Mutex::new(SlotCache::new(classes)));
        let mut all = lock(&self.0);
        all.retain(|cache| Arc::strong_count(cache) > 1 || !lock_cache(cache).retired.is_empty());
        all.push(Arc::clone(&cache));
        cache
    }

    /// Moves the slots of all sessions to `free`, except retired slots that readers may still access.
    pub(crate) fn empty(&self, epochs: &EpochTable, free: &mut Vec<SlotId>) {
        let all = lock(&self.0);
        for cache in all.iter() {
            lock_cache(cache).empty(epochs, free);
        }
    }
}

/// Locks a slot cache. Poisoning is ignored, because its state is consistent at all times.
pub(crate) fn lock_cache(cache: &Mutex<SlotCache>) -> MutexGuard<'_, SlotCache> {
    lock(cache)
}
