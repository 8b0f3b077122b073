//! The pool of free nodes, in DRAM only. Each worker has a private cache of nodes; the others are in a common list.
//!
//! ```text
//!   list ──unlinked──▶ unlinked ──batch full, or needed──▶ retired ──no older pin left──▶ free ──▶ list
//! ```
//!
//! A thread that changes the list is pinned: nodes that it met are not reused before it has finished. Searches are not
//! pinned, because that would keep the CPU from overlapping consecutive searches. A search checks afterwards whether
//! nodes were reclaimed meanwhile, as readers of a seqlock do.
//!
//! # Invariants
//! IX-NODES-1  An unlinked node is reused only after all threads that were pinned before have unpinned.
//! IX-NODES-2  The count of reclaim rounds is raised before any node of the round is handed out, and so before its words are
//!     overwritten. A search that finds the count unchanged has therefore met every node only as it was in the list
//!     since the search began.

use std::collections::VecDeque;

use crossbeam_utils::CachePadded;
use farbank_pm::epoch::{EpochSlot, EpochTable};
use farbank_pm::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use farbank_pm::sync::{CHECKED, Mutex, MutexGuard, OnceLock, unpoisoned};
use farbank_pm::{fault, situation};

use crate::locks::wait;

/// Number of nodes moved between a cache and the common list at a time, and of nodes retired together.
const BATCH: usize = if CHECKED { 2 } else { 64 };

/// The numbers of the nodes that are not in the list.
pub(super) struct NodePool {
    common: Mutex<Vec<u64>>,
    /// Threshold: fewer nodes in the common list than this are few.
    enough: usize,
    /// Whether an area should be created soon.
    few: CachePadded<AtomicBool>,
    /// One cache per worker, each in its own cache lines.
    worker_nodes: Vec<CachePadded<Allocation>>,
    epochs: EpochTable,
    /// Rounds of nodes that were set free (IX-NODES-2).
    rounds: CachePadded<AtomicU64>,
}

/// The epoch slot and the node cache of a worker.
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

/// Nodes unlinked before the end of `epoch`.
struct RetiredNodes {
    epoch: u64,
    nodes: Vec<u64>,
}

/// A pin of a thread that changes the list: nodes that it may meet are not reused.
pub(super) struct ListPin<'a>(&'a EpochSlot);

impl Drop for ListPin<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.unpin();
    }
}

/// The count of reclaim rounds at some moment.
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
    /// Creates the pool for `contexts` workers. Fewer than `enough` nodes in the common list count as few.
    pub(super) fn new(contexts: u32, enough: usize) -> NodePool {
        NodePool {
            common: Mutex::default(),
            enough,
            few: CachePadded::default(),
            worker_nodes: (0..contexts).map(|_| CachePadded::default()).collect(),
            epochs: EpochTable::default(),
            rounds: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// Pins worker `number`.
    #[inline]
    pub(super) fn pin(&self, number: u32) -> ListPin<'_> {
        let slot = &self.worker_nodes[number as usize].slot;
        let slot = slot.get_or_init(|| self.epochs.slot());
        self.epochs.pin(slot);
        ListPin(slot)
    }

    /// Returns the current round, before a search.
    #[inline]
    pub(super) fn round(&self) -> ReclaimRound {
        ReclaimRound(self.rounds.load(Ordering::Acquire))
    }

    /// Returns whether the round is unchanged, after a search.
    #[inline]
    pub(super) fn is_still(&self, round: ReclaimRound) -> bool {
        fence(Ordering::Acquire);
        self.rounds.load(Ordering::Relaxed) == round.0
    }

    fn hand(&self, number: u32) -> MutexGuard<'_, AllocationGuard> {
        let hand = &self.worker_nodes[number as usize];
        unpoisoned(hand.nodes.lock())
    }

    fn all_hands(&self) -> impl Iterator<Item = MutexGuard<'_, AllocationGuard>> {
        (0..self.worker_nodes.len() as u32).map(|number| self.hand(number))
    }

    fn common(&self) -> MutexGuard<'_, Vec<u64>> {
        unpoisoned(self.common.lock())
    }

    /// Returns a node for worker `number`: from its cache, from its retired nodes, or from the common list.
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

    /// Returns whether the common list has few nodes and no worker has reacted yet.
    #[inline]
    pub(super) fn are_few(&self) -> bool {
        self.few.load(Ordering::Relaxed)
    }

    /// Like [`NodePool::are_few`], and clears the flag: the caller creates an area.
    pub(super) fn take_few_flag(&self) -> bool {
        self.few.swap(false, Ordering::Relaxed)
    }

    /// Returns a node for worker `number`, even one that it unlinked just now. The worker is not pinned.
    pub(super) fn take_any(&self, number: u32) -> Option<u64> {
        self.hand(number).retire(&self.epochs);
        self.take(number)
    }

    /// Returns a node from any worker's cache, when the pool has no space for an area. The caller is not pinned. If
    /// unlinked nodes wait for threads pinned earlier, waits for those threads.
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

    /// Frees the retired nodes that no pinned thread can access any more (IX-NODES-1). Returns whether there were any.
    fn set_free(&self, hand: &mut AllocationGuard) -> bool {
        if hand.retired.is_empty() {
            return false;
        }
        let oldest = if fault!("soft.reused_at_once") {
            u64::MAX
        } else {
            self.epochs.oldest_pinned()
        };
        let ripe = hand.retired.partition_point(|batch| batch.epoch < oldest);
        if ripe == 0 {
            return false;
        }
        situation!("soft.node_reused");
        self.rounds.fetch_add(1, Ordering::AcqRel); // IX-NODES-2
        for batch in hand.retired.drain(..ripe) {
            hand.free.extend(batch.nodes);
        }
        true
    }

    /// Takes back a node of worker `number` that was never in the list.
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

    /// Adds nodes to the common list. The first one is taken first.
    pub(super) fn put(&self, nodes: impl DoubleEndedIterator<Item = u64>) {
        self.common().extend(nodes.rev());
    }

    /// Returns the number of nodes that are free or will be. No thread may take or give nodes meanwhile.
    pub(super) fn count(&self) -> u64 {
        let in_hands: usize = self.all_hands().map(|hand| hand.count()).sum();
        (self.common().len() + in_hands) as u64
    }

    /// Returns the bytes of DRAM.
    pub(super) fn bytes(&self) -> u64 {
        self.count() * size_of::<u64>() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unlinked_node_is_reused_after_older_pins_end() {
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
        assert!(!nodes.is_still(before), "searches detect the reuse");
        assert_eq!(nodes.count(), BATCH as u64 - 1);
    }

    #[test]
    fn fewer_unlinked_nodes_than_a_batch_are_reused_on_demand() {
        let nodes = NodePool::new(2, BATCH);
        nodes.unlinked(0, 7);
        nodes.unlinked(1, 8);
        assert_eq!(nodes.take(0), None, "the batch is not full yet");
        assert_eq!(nodes.take_any(0), Some(7));
        assert_eq!(nodes.take_any(0), None);
        assert_eq!(nodes.take_from_all(), Some(8));
        assert_eq!(nodes.take_from_all(), None);
    }
}
