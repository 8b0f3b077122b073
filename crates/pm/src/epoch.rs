//! Epoch-based reclamation: when no reader can access an offset any more.
//!
//! A reader *pins* its slot while it follows offsets. A thread that unlinks data *retires* it under
//! the current epoch. It may reuse the space once every pinned slot was pinned in a later epoch.
//!
//! # Invariants
//! PM-EPOCH-1  A pinned slot holds an epoch no newer than the one that was current when it was pinned.
//! PM-EPOCH-2  Data unlinked before epoch `e` ended is unreachable for readers that pin after epoch `e` ended.
//! PM-EPOCH-3  Hence an offset retired at `e` is free as soon as `oldest() > e`.
//! PM-EPOCH-4  All reads under a pin happen before another thread sees that the pin has ended or moved on.
//!
//! `tests/loom.rs` checks them under the memory model.

use crossbeam_utils::CachePadded;

use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::{Arc, Mutex, lock};

/// A slot that pins nothing.
const IDLE: u64 = u64::MAX;

/// The epochs of one structure.
pub struct EpochTable {
    current: CachePadded<AtomicU64>,
    /// The pins of all slots. The idle pin of a dropped slot stays until the next slot is created.
    slots: Mutex<Vec<Arc<PinnedEpoch>>>,
}

/// The epoch a reader is pinned at, or [`IDLE`].
type PinnedEpoch = CachePadded<AtomicU64>;

/// One reader's pin. Pinning again moves the pin on: offsets found before may then be reclaimed.
///
/// Dropping a slot ends its pin. A slot that is leaked while pinned (`std::mem::forget`) prevents every
/// later reclamation in its [`EpochTable`], which cannot distinguish it from a slow reader.
pub struct EpochSlot {
    pinned: Arc<PinnedEpoch>,
}

impl Default for EpochTable {
    fn default() -> EpochTable {
        EpochTable {
            current: CachePadded::new(AtomicU64::new(1)),
            slots: Mutex::default(),
        }
    }
}

impl EpochTable {
    /// Creates the slot of a new reader, not pinned.
    pub fn slot(&self) -> EpochSlot {
        let pinned = Arc::new(CachePadded::new(AtomicU64::new(IDLE)));
        let mut slots = lock(&self.slots);
        slots.retain(|pinned| Arc::strong_count(pinned) > 1);
        slots.push(Arc::clone(&pinned));
        EpochSlot { pinned }
    }

    /// Pins `slot`. Data reachable from now on is not reclaimed until [`EpochSlot::unpin`], until the slot
    /// is pinned again, or until the slot is dropped.
    ///
    /// A slot of another table protects nothing here and delays reclamation there. The pin does not
    /// protect offsets that were found before it.
    #[inline]
    pub fn pin(&self, slot: &EpochSlot) {
        // Release: a thread that sees this pin instead of an earlier one sees the earlier reads done (PM-EPOCH-4).
        slot.pinned
            .store(self.current.load(Ordering::Relaxed), Ordering::Release);
        // The pin is visible before anything the reader loads afterwards (PM-EPOCH-1).
        fence(Ordering::SeqCst);
    }

    /// Returns the epoch under which to retire data that was just unlinked. Later pins cannot reach it.
    /// The data must be unlinked before the call: otherwise a later pin could still reach it.
    pub fn retire(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.current.fetch_add(1, Ordering::SeqCst)
    }

    /// Returns the oldest epoch that a slot is pinned at, or the current one if none is. Never waits.
    pub fn oldest_pinned(&self) -> u64 {
        fence(Ordering::SeqCst);
        let current = self.current.load(Ordering::SeqCst);
        let slots = lock(&self.slots);
        let oldest = slots.iter().map(|s| s.load(Ordering::SeqCst)).min();
        oldest.unwrap_or(IDLE).min(current)
    }
}

impl EpochSlot {
    /// Ends the pin: the reader may not follow offsets found under it any more. No effect on an idle slot.
    #[inline]
    pub fn unpin(&self) {
        self.pinned.store(IDLE, Ordering::Release);
    }
}

impl Drop for EpochSlot {
    /// Ends the pin. A reader that ends while pinned, for example by a panic, reads nothing any more (PM-EPOCH-4).
    fn drop(&mut self) {
        self.unpin();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_retired_under_a_pin_is_free_only_after_the_pin_ends() {
        let epochs = EpochTable::default();
        let reader = epochs.slot();
        epochs.pin(&reader);
        let retired = epochs.retire();
        assert!(
            epochs.oldest_pinned() <= retired,
            "the reader may still follow it"
        );
        reader.unpin();
        assert!(epochs.oldest_pinned() > retired);
        epochs.pin(&reader);
        assert!(
            epochs.oldest_pinned() > retired,
            "a later pin cannot reach it"
        );
    }

    #[test]
    fn a_dropped_slot_does_not_block_reclamation() {
        let epochs = EpochTable::default();
        drop(epochs.slot());
        let _other = epochs.slot();
        let retired = epochs.retire();
        assert!(epochs.oldest_pinned() > retired);
    }

    #[test]
    fn a_slot_dropped_while_pinned_does_not_block_reclamation() {
        let epochs = EpochTable::default();
        let reader = epochs.slot();
        epochs.pin(&reader);
        let retired = epochs.retire();
        assert!(
            epochs.oldest_pinned() <= retired,
            "the reader may still follow it"
        );
        drop(reader);
        assert!(
            epochs.oldest_pinned() > retired,
            "no slot was made since the drop"
        );
    }

    #[test]
    fn a_reader_that_panics_while_pinned_does_not_block_reclamation() {
        let epochs = EpochTable::default();
        let reader = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let slot = epochs.slot();
            epochs.pin(&slot);
            panic!("a panic of the reader");
        }));
        assert!(reader.is_err());
        let retired = epochs.retire();
        assert!(epochs.oldest_pinned() > retired);
    }
}
