//! Epochs: when nobody reads an offset any more.
//!
//! A reader *pins* its slot while it follows offsets. Whoever unlinked something *retires* it under
//! the current epoch, and may reuse it once every pinned slot has been pinned later than that.
//!
//! # Invariants
//! E1  A pinned slot holds an epoch no newer than the one that was current when it was pinned.
//! E2  What was unlinked before epoch `e` was advanced past is invisible to readers pinned after.
//! E3  Hence an offset retired at `e` is free as soon as `oldest() > e`.
//! E4  Everything read under a pin has been read before the pin is seen to be gone, be it let go or
//!     moved on.
//!
//! `tests/loom.rs` tries them under the memory model.

use crossbeam_utils::CachePadded;

use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::{Arc, Mutex};

/// A slot that pins nothing.
const IDLE: u64 = u64::MAX;

/// The epochs of one structure.
pub struct EpochTable {
    current: CachePadded<AtomicU64>,
    /// Of every slot that lives, and of dropped ones, idle, until the next slot is made.
    slots: Mutex<Vec<Arc<PinnedEpoch>>>,
}

/// The epoch a reader is pinned at, or [`IDLE`].
type PinnedEpoch = CachePadded<AtomicU64>;

/// One reader's pin. Pinning again moves the pin on: what was found before may go.
///
/// Dropping a slot ends its pin. A slot that is leaked while pinned (`std::mem::forget`) holds back
/// every later reclamation for as long as its [`Epochs`] live: nothing tells it from a slow reader.
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
    /// A new reader's slot, pinned by nothing. It is forgotten when the reader drops it.
    pub fn slot(&self) -> EpochSlot {
        let pinned = Arc::new(CachePadded::new(AtomicU64::new(IDLE)));
        let mut slots = self.slots.lock().expect("no holder panics");
        slots.retain(|pinned| Arc::strong_count(pinned) > 1);
        slots.push(Arc::clone(&pinned));
        EpochSlot { pinned }
    }

    /// Pins `slot`: what can be reached from now on stays until [`Slot::unpin`], until it is pinned
    /// again, or until the slot is dropped.
    ///
    /// A slot of other epochs protects nothing here and holds back reclamation there. Offsets that
    /// were found before the pin are not protected by it.
    #[inline]
    pub fn pin(&self, slot: &EpochSlot) {
        // Whoever finds this pin in place of an earlier one finds that one's reads done (E4).
        slot.pinned
            .store(self.current.load(Ordering::Relaxed), Ordering::Release);
        // The pin is visible before anything the reader loads afterwards (E1).
        fence(Ordering::SeqCst);
    }

    /// The epoch under which to retire what has just been unlinked; later pins cannot reach it.
    /// What a reader can still reach when this is called is not protected from reuse.
    pub fn retire(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.current.fetch_add(1, Ordering::SeqCst)
    }

    /// The oldest epoch any slot is pinned at, or the current one. Waits for no reader.
    pub fn oldest(&self) -> u64 {
        fence(Ordering::SeqCst);
        let current = self.current.load(Ordering::SeqCst);
        let slots = self.slots.lock().expect("no holder panics");
        let oldest = slots.iter().map(|s| s.load(Ordering::SeqCst)).min();
        oldest.unwrap_or(IDLE).min(current)
    }
}

impl EpochSlot {
    /// Lets go: nothing found under the pin may be followed any more. Of an idle slot: no effect.
    #[inline]
    pub fn unpin(&self) {
        self.pinned.store(IDLE, Ordering::Release);
    }
}

impl Drop for EpochSlot {
    /// A reader that ends while pinned, as one does that panics, reads nothing any more (E4).
    fn drop(&mut self) {
        self.unpin();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_retired_under_a_pin_is_free_only_after_it() {
        let epochs = EpochTable::default();
        let reader = epochs.slot();
        epochs.pin(&reader);
        let retired = epochs.retire();
        assert!(epochs.oldest() <= retired, "the reader may still follow it");
        reader.unpin();
        assert!(epochs.oldest() > retired);
        epochs.pin(&reader);
        assert!(epochs.oldest() > retired, "a later pin cannot reach it");
    }

    #[test]
    fn a_dropped_reader_holds_nothing_back() {
        let epochs = EpochTable::default();
        drop(epochs.slot());
        let _other = epochs.slot();
        let retired = epochs.retire();
        assert!(epochs.oldest() > retired);
    }

    #[test]
    fn a_slot_dropped_while_pinned_does_not_block_reclamation() {
        let epochs = EpochTable::default();
        let reader = epochs.slot();
        epochs.pin(&reader);
        let retired = epochs.retire();
        assert!(epochs.oldest() <= retired, "the reader may still follow it");
        drop(reader);
        assert!(epochs.oldest() > retired, "no slot was made since the drop");
    }

    #[test]
    fn a_reader_that_panics_while_pinned_does_not_block_reclamation() {
        let epochs = EpochTable::default();
        let reader = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let slot = epochs.slot();
            epochs.pin(&slot);
            panic!("a reader's own mistake");
        }));
        assert!(reader.is_err());
        let retired = epochs.retire();
        assert!(epochs.oldest() > retired);
    }
}
