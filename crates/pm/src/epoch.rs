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
pub struct Epochs {
    current: CachePadded<AtomicU64>,
    slots: Mutex<Vec<Arc<Slot>>>,
}

/// One reader's place. Pinning again moves the pin on: what was found before may go.
pub struct Slot {
    pinned: CachePadded<AtomicU64>,
}

impl Default for Epochs {
    fn default() -> Epochs {
        Epochs {
            current: CachePadded::new(AtomicU64::new(1)),
            slots: Mutex::default(),
        }
    }
}

impl Epochs {
    /// A new reader's slot. It is forgotten when the reader drops it.
    pub fn slot(&self) -> Arc<Slot> {
        let slot = Arc::new(Slot {
            pinned: CachePadded::new(AtomicU64::new(IDLE)),
        });
        let mut slots = self.slots.lock().expect("no holder panics");
        slots.retain(|s| Arc::strong_count(s) > 1);
        slots.push(Arc::clone(&slot));
        slot
    }

    /// Pins `slot`: what can be reached from now on stays until [`Slot::unpin`], or until it is pinned
    /// again.
    #[inline]
    pub fn pin(&self, slot: &Slot) {
        // Whoever finds this pin in place of an earlier one finds that one's reads done (E4).
        slot.pinned
            .store(self.current.load(Ordering::Relaxed), Ordering::Release);
        // The pin is visible before anything the reader loads afterwards (E1).
        fence(Ordering::SeqCst);
    }

    /// The epoch under which to retire what has just been unlinked; later pins cannot reach it.
    pub fn retire(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.current.fetch_add(1, Ordering::SeqCst)
    }

    /// The oldest epoch any slot is pinned at, or the current one.
    pub fn oldest(&self) -> u64 {
        fence(Ordering::SeqCst);
        let current = self.current.load(Ordering::SeqCst);
        let slots = self.slots.lock().expect("no holder panics");
        let oldest = slots.iter().map(|s| s.pinned.load(Ordering::SeqCst)).min();
        oldest.unwrap_or(IDLE).min(current)
    }
}

impl Slot {
    /// Lets go: nothing found under the pin may be followed any more.
    #[inline]
    pub fn unpin(&self) {
        self.pinned.store(IDLE, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_retired_under_a_pin_is_free_only_after_it() {
        let epochs = Epochs::default();
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
        let epochs = Epochs::default();
        drop(epochs.slot());
        let _other = epochs.slot();
        let retired = epochs.retire();
        assert!(epochs.oldest() > retired);
    }
}
