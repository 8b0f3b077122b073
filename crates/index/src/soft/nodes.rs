//! Nodes that are free, known in DRAM alone. Each worker has some in hand; the others are in common.

use crossbeam_utils::CachePadded;
use farbank_pm::sync::Mutex;

/// Nodes that go from hand to common, or back, at a time.
const BATCH: usize = 64;

/// The free nodes, by number.
pub(super) struct Free {
    common: Mutex<Vec<u64>>,
    /// Each in lines of its own.
    hands: Vec<CachePadded<Mutex<Vec<u64>>>>,
}

impl Free {
    pub(super) fn new(lanes: u32) -> Free {
        Free {
            common: Mutex::default(),
            hands: (0..lanes).map(|_| CachePadded::default()).collect(),
        }
    }

    /// A node for worker `number`, from its hand or from common.
    pub(super) fn take(&self, number: u32) -> Option<u64> {
        let mut hand = self.hands[number as usize]
            .lock()
            .expect("no holder panics");
        if hand.is_empty() {
            let mut common = self.common.lock().expect("no holder panics");
            let rest = common.len().saturating_sub(BATCH);
            hand.extend(common.drain(rest..));
        }
        hand.pop()
    }

    /// A node from whoever has one: the pool has no more.
    pub(super) fn take_from_any(&self) -> Option<u64> {
        self.all()
            .find_map(|nodes| nodes.lock().expect("no holder panics").pop())
    }

    /// Takes back a node of worker `number`'s.
    pub(super) fn give(&self, number: u32, node: u64) {
        let mut hand = self.hands[number as usize]
            .lock()
            .expect("no holder panics");
        hand.push(node);
        if hand.len() > 2 * BATCH {
            let mut common = self.common.lock().expect("no holder panics");
            common.extend(hand.drain(..BATCH));
        }
    }

    /// Puts nodes in common; the first is taken first.
    pub(super) fn put(&self, nodes: impl DoubleEndedIterator<Item = u64>) {
        let mut common = self.common.lock().expect("no holder panics");
        common.extend(nodes.rev());
    }

    /// How many are free. Nobody takes or gives meanwhile.
    pub(super) fn count(&self) -> u64 {
        self.all()
            .map(|nodes| nodes.lock().expect("no holder panics").len() as u64)
            .sum()
    }

    fn all(&self) -> impl Iterator<Item = &Mutex<Vec<u64>>> {
        let hands = self.hands.iter().map(|hand| &**hand);
        std::iter::once(&self.common).chain(hands)
    }

    /// Bytes of DRAM.
    pub(super) fn bytes(&self) -> u64 {
        self.count() * size_of::<u64>() as u64
    }
}
