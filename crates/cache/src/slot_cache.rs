//! A session's purse: slots it may use without asking, and those it gave up that somebody may still read.
//!
//! The thread-local quota: a session takes a few slots of a class at a time, so that most writes need not lock for
//! one. Purses can be emptied by others, because a session that rests would keep pages from becoming empty.
//!
//! ```text
//!   pages ── a few at once ──▶ stash ── a write ──▶ linked ── replaced, deleted, evicted ──▶ retired ── its readers
//!     ▲                          ▲                                                            │       have gone
//!     └──────────────────────────┴────────────────────────────────────────────────────────────┘
//! ```

use std::sync::PoisonError;

use farbank_pm::epoch::EpochTable;
use farbank_pm::fault;
use farbank_pm::sync::{Arc, Mutex, MutexGuard};

use crate::metadata::SlotId;

/// A slot that was given up.
#[derive(Clone, Copy)]
struct RetiredSlot {
    slot: SlotId,
    class: u8,
    /// When; [`u64::MAX`]: not retired yet.
    epoch: u64,
}

/// What a session keeps.
pub(crate) struct SlotCache {
    stash: Vec<Vec<SlotId>>,
    retired: Vec<RetiredSlot>,
    /// Of `retired`, the last so many are not retired yet.
    fresh: usize,
}

impl SlotCache {
    fn new(classes: usize) -> SlotCache {
        SlotCache {
            stash: vec![Vec::new(); classes],
            retired: Vec::new(),
            fresh: 0,
        }
    }

    /// A free slot of `class`, if there is one.
    pub(crate) fn take(&mut self, class: u8) -> Option<SlotId> {
        self.stash[usize::from(class)].pop()
    }

    /// Keeps free slots of `class`.
    pub(crate) fn keep(&mut self, class: u8, slots: &[SlotId]) {
        self.stash[usize::from(class)].extend_from_slice(slots);
    }

    /// Keeps the slot of an item that was unlinked, until its readers have gone. How many such there are.
    pub(crate) fn give_up(&mut self, slot: SlotId, class: u8) -> usize {
        self.retired.push(RetiredSlot {
            slot,
            class,
            epoch: u64::MAX,
        });
        self.fresh += 1;
        self.retired.len()
    }

    /// Slots of `class` that will be free when their readers have gone.
    pub(crate) fn is_coming(&self, class: u8) -> bool {
        self.retired.iter().any(|gone| gone.class == class)
    }

    /// Takes back what nobody reads any more: up to `most` slots of `class` into the stash, the others into `free`.
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
        let oldest = epochs.oldest();
        let SlotCache { stash, retired, .. } = self;
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

    /// Empties the stash into `free`, and of the retired what nobody reads any more.
    pub(crate) fn empty(&mut self, epochs: &EpochTable, free: &mut Vec<SlotId>) {
        for slots in &mut self.stash {
            free.append(slots);
        }
        self.recycle(epochs, None, 0, free);
    }
}

/// The purses of all sessions.
#[derive(Default)]
pub(crate) struct SlotCaches(Mutex<Vec<Arc<Mutex<SlotCache>>>>);

impl SlotCaches {
    /// A new session's. It is forgotten when the session has dropped it empty.
    pub(crate) fn add(&self, classes: usize) -> Arc<Mutex<SlotCache>> {
        let purse = Arc::new(Mutex::new(SlotCache::new(classes)));
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|purse| Arc::strong_count(purse) > 1 || !open(purse).retired.is_empty());
        all.push(Arc::clone(&purse));
        purse
    }

    /// Empties all purses into `free`, as far as nobody reads what they hold.
    pub(crate) fn empty(&self, epochs: &EpochTable, free: &mut Vec<SlotId>) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for purse in all.iter() {
            open(purse).empty(epochs, free);
        }
    }
}

/// Opens a purse. What it holds is whole at all times.
pub(crate) fn open(purse: &Mutex<SlotCache>) -> MutexGuard<'_, SlotCache> {
    purse.lock().unwrap_or_else(PoisonError::into_inner)
}
