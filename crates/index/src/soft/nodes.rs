//! Nodes that are free, known in DRAM alone. Each worker has some in hand; the others are in common.
//!
//! ```text
//!   list ──unlinked──▶ unlinked ──a batch, or wanted──▶ retired ──nobody pinned since──▶ free ──▶ list
//! ```
//!
//! Who changes the list is pinned: what it met is not used again before it is done. Searches are not pinned, as that would keep
//! the CPU from beginning the next one. They ask afterwards whether nodes were set free meanwhile, as readers of a
//! sequence lock do.
//!
//! # Invariants
//! N1  A node that was unlinked is handed out again when all have gone who were pinned before.
//! N2  The count of rounds is raised before any node of the round is handed out, and with that its words are stored. So a
//!     search that finds the count as it was has met no node but as it was in the list since the search began.

use std::collections::VecDeque;

use crossbeam_utils::CachePadded;
use farbank_pm::epoch::{EpochSlot, EpochTable};
use farbank_pm::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use farbank_pm::sync::{CHECKED, Mutex, MutexGuard, OnceLock};
use farbank_pm::{fault, situation};

use crate::locks::wait;

/// Nodes that go from hand to common or back, and that are retired, at a time.
const BATCH: usize = if CHECKED { 2 } else { 64 };

/// The nodes that are not in the list, by number.
pub(super) struct NodePool {
    common: Mutex<Vec<u64>>,
    /// Fewer in common are few.
    enough: usize,
    /// Whether somebody should see to it that there are more.
    few: CachePadded<AtomicBool>,
    /// Each in lines of its own.
    hands: Vec<CachePadded<Allocation>>,
    epochs: EpochTable,
    /// Rounds of nodes that were set free (N2).
    rounds: CachePadded<AtomicU64>,
}

/// A worker's.
#[derive(Default)]
struct Allocation {
    slot: OnceLock<EpochSlot>,
    nodes: Mutex<AllocationGuard>,
}

#[derive(Default)]
struct AllocationGuard {
    free: Vec<u64>,
    unlinked: Vec<u64>,
    retired: VecDeque<RetiredNodes>,
}

/// Nodes unlinked before `epoch` was over.
struct RetiredNodes {
    epoch: u64,
    nodes: Vec<u64>,
}

/// Somebody changes the list: what it meets is not handed out.
pub(super) struct ListPin<'a>(&'a EpochSlot);

impl Drop for ListPin<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.unpin();
    }
}

/// Which round it was.
#[derive(Clone, Copy)]
pub(super) struct ReclaimRound(u64);

impl AllocationGuard {
    fn retire(&mut self, epochs: &EpochTable) {
        if !self.unlinked.is_empty() {
            let nodes = std::mem::take(&mut self.unlinked);
            let epoch = epochs.retire();
            self.retired.push_back(RetiredNodes { epoch, nodes });
        }
    }

    fn count(&self) -> usize {
        let retired: usize = self.retired.iter().map(|batch| batch.nodes.len()).sum();
        self.free.len() + self.unlinked.len() + retired
    }
}

impl NodePool {
    /// For so many workers; fewer than `enough` in common are few.
    pub(super) fn new(contexts: u32, enough: usize) -> NodePool {
        NodePool {
            common: Mutex::default(),
            enough,
            few: CachePadded::default(),
            hands: (0..contexts).map(|_| CachePadded::default()).collect(),
            epochs: EpochTable::default(),
            rounds: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// Pins worker `number`.
    #[inline]
    pub(super) fn pin(&self, number: u32) -> ListPin<'_> {
        let slot = &self.hands[number as usize].slot;
        let slot = slot.get_or_init(|| self.epochs.slot());
        self.epochs.pin(slot);
        ListPin(slot)
    }

    /// The round it is, before a search.
    #[inline]
    pub(super) fn round(&self) -> ReclaimRound {
        ReclaimRound(self.rounds.load(Ordering::Acquire))
    }

    /// Whether it still is, after it.
    #[inline]
    pub(super) fn is_still(&self, round: ReclaimRound) -> bool {
        fence(Ordering::Acquire);
        self.rounds.load(Ordering::Relaxed) == round.0
    }

    fn hand(&self, number: u32) -> MutexGuard<'_, AllocationGuard> {
        let hand = &self.hands[number as usize];
        hand.nodes.lock().expect("no holder panics")
    }

    fn all_hands(&self) -> impl Iterator<Item = MutexGuard<'_, AllocationGuard>> {
        (0..self.hands.len() as u32).map(|number| self.hand(number))
    }

    fn common(&self) -> MutexGuard<'_, Vec<u64>> {
        self.common.lock().expect("no holder panics")
    }

    /// A node for worker `number`: from its hand, of those it unlinked, or from common.
    pub(super) fn take(&self, number: u32) -> Option<u64> {
        let mut hand = self.hand(number);
        if hand.free.is_empty() && !self.set_free(&mut hand) {
            let mut common = self.common();
            let rest = common.len().saturating_sub(BATCH.min(self.enough));
            hand.free.extend(common.drain(rest..));
            if rest < self.enough {
                self.few.store(true, Ordering::Relaxed);
            }
        }
        hand.free.pop()
    }

    /// Whether the nodes in common have become few, and nobody has been told.
    #[inline]
    pub(super) fn are_few(&self) -> bool {
        self.few.load(Ordering::Relaxed)
    }

    /// As [`Nodes::are_few`]; the caller sees to it.
    pub(super) fn were_few(&self) -> bool {
        self.few.swap(false, Ordering::Relaxed)
    }

    /// A node for worker `number`, which is not pinned, even if that was unlinked just now.
    pub(super) fn take_any(&self, number: u32) -> Option<u64> {
        self.hand(number).retire(&self.epochs);
        self.take(number)
    }

    /// A node from whoever has one: the pool has no more. Who asks is not pinned. If nodes were unlinked, and others are
    /// pinned since before that, waits for those.
    pub(super) fn take_from_all(&self) -> Option<u64> {
        let mut tries = 0;
        loop {
            let mut waits = false;
            for mut hand in self.all_hands() {
                hand.retire(&self.epochs);
                self.set_free(&mut hand);
                if let Some(node) = hand.free.pop() {
                    return Some(node);
                }
                waits |= !hand.retired.is_empty();
            }
            if let Some(node) = self.common().pop() {
                return Some(node);
            }
            if !waits {
                return None;
            }
            wait(&mut tries);
        }
    }

    /// Sets free what was retired and nobody is pinned for any more (N1); whether there was any.
    fn set_free(&self, hand: &mut AllocationGuard) -> bool {
        if hand.retired.is_empty() {
            return false;
        }
        let oldest = if fault!("soft.reused_at_once") {
            u64::MAX
        } else {
            self.epochs.oldest()
        };
        let ripe = hand.retired.partition_point(|batch| batch.epoch < oldest);
        if ripe == 0 {
            return false;
        }
        situation!("soft.node_reused");
        self.rounds.fetch_add(1, Ordering::AcqRel); // N2
        for batch in hand.retired.drain(..ripe) {
            hand.free.extend(batch.nodes);
        }
        true
    }

    /// Takes back a node of worker `number`'s that never was in the list.
    pub(super) fn give(&self, number: u32, node: u64) {
        self.hand(number).free.push(node);
    }

    /// Takes back a node that worker `number` has unlinked.
    pub(super) fn unlinked(&self, number: u32, node: u64) {
        let mut hand = self.hand(number);
        hand.unlinked.push(node);
        if hand.unlinked.len() == BATCH {
            hand.retire(&self.epochs);
            self.set_free(&mut hand);
        }
        if hand.free.len() > 2 * BATCH {
            self.common().extend(hand.free.drain(..BATCH));
        }
    }

    /// Puts nodes in common; the first is taken first.
    pub(super) fn put(&self, nodes: impl DoubleEndedIterator<Item = u64>) {
        self.common().extend(nodes.rev());
    }

    /// How many are free, or will be. Nobody takes or gives meanwhile.
    pub(super) fn count(&self) -> u64 {
        let in_hands: usize = self.all_hands().map(|hand| hand.count()).sum();
        (self.common().len() + in_hands) as u64
    }

    /// Bytes of DRAM.
    pub(super) fn bytes(&self) -> u64 {
        self.count() * size_of::<u64>() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_unlinked_is_handed_out_when_nobody_is_pinned_since_before() {
        let nodes = NodePool::new(2, BATCH);
        let reader = nodes.pin(1);
        let before = nodes.round();
        for node in 1..=BATCH as u64 {
            nodes.unlinked(0, node);
        }
        assert_eq!(nodes.take(0), None);
        assert_eq!(nodes.take_any(0), None);
        assert!(nodes.is_still(before));
        drop(reader);
        assert!(nodes.take(0).is_some());
        assert!(!nodes.is_still(before), "searches are told");
        assert_eq!(nodes.count(), BATCH as u64 - 1);
    }

    #[test]
    fn a_few_that_were_unlinked_are_handed_out_when_wanted() {
        let nodes = NodePool::new(2, BATCH);
        nodes.unlinked(0, 7);
        nodes.unlinked(1, 8);
        assert_eq!(nodes.take(0), None, "it is no batch yet");
        assert_eq!(nodes.take_any(0), Some(7));
        assert_eq!(nodes.take_any(0), None);
        assert_eq!(nodes.take_from_all(), Some(8));
        assert_eq!(nodes.take_from_all(), None);
    }
}
