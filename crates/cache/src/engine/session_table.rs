//! What each session registers: its number, its epoch slot and its slot cache.

use farbank_pm::epoch::{EpochSlot, EpochTable};
use farbank_pm::sync::atomic::{AtomicU32, Ordering};
use farbank_pm::sync::{Arc, Mutex};

use crate::metadata::SlotId;
use crate::slot_cache::{SlotCache, SlotCaches};

/// Bytes of slots of a class that a session takes at once, at most.
const STASH_BYTES: usize = 64 << 10;

/// The sessions of a cache.
pub(crate) struct SessionTable {
    epochs: EpochTable,
    slot_caches: SlotCaches,
    /// Number of the next session's persistence context.
    next: AtomicU32,
    classes: usize,
    slots_per_refill: usize,
}

impl SessionTable {
    /// Creates an empty table for `classes` slab classes.
    pub(super) fn new(classes: usize, slots_per_refill: usize) -> SessionTable {
        SessionTable {
            epochs: EpochTable::default(),
            slot_caches: SlotCaches::default(),
            next: AtomicU32::new(1),
            classes,
            slots_per_refill,
        }
    }

    /// Adds a session. Returns the number of its persistence context, its epoch slot and its slot cache.
    pub(crate) fn add(&self) -> (u32, EpochSlot, Arc<Mutex<SlotCache>>) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let pin = self.epochs.slot();
        (number, pin, self.slot_caches.add(self.classes))
    }

    #[inline]
    pub(crate) fn epochs(&self) -> &EpochTable {
        &self.epochs
    }

    /// Moves the free slots of all sessions to `free`, except retired slots that readers may still access.
    pub(crate) fn empty_slot_caches(&self, free: &mut Vec<SlotId>) {
        self.slot_caches.empty(&self.epochs, free);
    }

    /// Returns the number of slots of `slot_bytes` bytes that a session takes at once. It is smaller for large slots.
    pub(crate) fn stash_slots(&self, slot_bytes: u32) -> usize {
        let fit = STASH_BYTES / slot_bytes as usize;
        self.slots_per_refill.min(fit).max(1)
    }
}
