//! The index of `v2`, in DRAM: chains of key nodes.
//!
//! ```text
//!   heads: u32 x 2^bits        nodes, 28 bytes each, referred to by number; 0 means none
//!   ┌────┬────┬─ ... ─┐        ┌────────┬──────┬──────┬─────────┬──────┬─────────────┐
//!   │  0 │ 17 │       │───────▶│ key:16 │ at:4 │ next │ version │ size │ value bytes │
//!   └────┴────┴─ ... ─┘        └────────┴──────┴──────┴─────────┴──────┴─────────────┘
//! ```
//!
//! A node has 28 bytes, as in the authors' description. In the published code it has 25: it omits three bytes of the
//! key that the head's number implies. That works only for a hash of at least 24 bits, as at full scale. A node is
//! written under its stripe's lock. It consists of atomics, so that no unsafe code is needed.

use std::ops::Range;

use farbank_pm::grow_table::GrowTable;
use farbank_pm::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::block::UNIT;
use crate::engine::{Error, Key};
use crate::limits::ContestLimits;
use crate::space::ScaledCounts;

/// Number of nodes that a thread reserves at a time, at full scale.
const PUBLISHED_RUN: u64 = 128 << 10;
/// Number of nodes at full scale, and number of keys at full scale.
const PUBLISHED_NODES: (u64, u64) = (225 << 20, 229_037_390);

#[derive(Default)]
struct V2Node {
    key: [AtomicU32; 4],
    at: AtomicU32,
    next: AtomicU32,
    /// Version, size and length, from the low bits up.
    meta: AtomicU32,
}

/// Place of a key's record, and a copy of some of its header fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct V2Place {
    /// Number of the record's block.
    pub number: u32,
    pub version: u8,
    /// Bytes of the block, in units.
    pub size: u8,
    pub value_bytes: u16,
}

impl V2Place {
    pub(crate) fn block_bytes(self) -> usize {
        usize::from(self.size) * UNIT
    }

    fn meta(self) -> u32 {
        u32::from(self.version) | u32::from(self.size) << 8 | u32::from(self.value_bytes) << 16
    }
}

/// The index: keys and the places of their records.
pub(crate) struct V2Index {
    heads: GrowTable<AtomicU32>,
    head_count: u64,
    nodes: Box<[V2Node]>,
    /// The first node that no thread has reserved.
    next_run: AtomicU64,
    run: u64,
}

/// Number of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct V2NodeId(u32);

fn words_of(key: &Key) -> [u32; 4] {
    let mut words = key.chunks_exact(4);
    std::array::from_fn(|_| {
        let bytes = words.next().expect("four words");
        u32::from_le_bytes(bytes.try_into().expect("four bytes"))
    })
}

impl V2Index {
    pub(crate) fn new(terms: &ContestLimits) -> V2Index {
        let run = ScaledCounts::to(terms).count(PUBLISHED_RUN).max(4);
        let (nodes, keys) = PUBLISHED_NODES;
        let published = (u128::from(terms.keys) * u128::from(nodes)).div_ceil(u128::from(keys));
        // Each thread may hold a run with hardly any node used, and node 0 means "none".
        let needed = terms.keys + terms.threads as u64 * run + 1;
        let heads = GrowTable::new(1 << terms.hash_bits);
        heads.reserve(1 << terms.hash_bits);
        V2Index {
            heads,
            head_count: 1 << terms.hash_bits,
            nodes: (0..needed.max(published as u64))
                .map(|_| V2Node::default())
                .collect(),
            next_run: AtomicU64::new(1),
            run,
        }
    }

    fn head(&self, hash: u64) -> &AtomicU32 {
        self.heads.get((hash & (self.head_count - 1)) as usize)
    }

    /// Returns the node of `key`, if there is one, and the number of nodes visited.
    pub(crate) fn find(&self, hash: u64, key: &Key) -> (Option<V2NodeId>, u64) {
        let words = words_of(key);
        let mut number = self.head(hash).load(Relaxed);
        let mut probes = 0;
        while number != 0 {
            let node = &self.nodes[number as usize];
            probes += 1;
            if node
                .key
                .iter()
                .zip(words)
                .all(|(a, b)| a.load(Relaxed) == b)
            {
                return (Some(V2NodeId(number)), probes);
            }
            number = node.next.load(Relaxed);
        }
        (None, probes)
    }

    pub(crate) fn place(&self, id: V2NodeId) -> V2Place {
        let node = &self.nodes[id.0 as usize];
        let meta = node.meta.load(Relaxed);
        V2Place {
            number: node.at.load(Relaxed),
            version: meta as u8,
            size: (meta >> 8) as u8,
            value_bytes: (meta >> 16) as u16,
        }
    }

    pub(crate) fn set_place(&self, id: V2NodeId, place: V2Place) {
        let node = &self.nodes[id.0 as usize];
        node.at.store(place.number, Relaxed);
        node.meta.store(place.meta(), Relaxed);
    }

    /// Allocates a node from the thread's run, or from a new run.
    pub(crate) fn allot(&self, run: &mut Range<u32>) -> Result<V2NodeId, Error> {
        if run.start >= run.end {
            let all = self.nodes.len() as u64;
            let start = self.next_run.fetch_add(self.run, Relaxed).min(all);
            *run = start as u32..(start + self.run).min(all) as u32;
        }
        run.next().map(V2NodeId).ok_or(Error::Full)
    }

    /// Returns the node that was allocated last to the run.
    pub(crate) fn release(&self, run: &mut Range<u32>, id: V2NodeId) {
        debug_assert_eq!(run.start, id.0 + 1);
        run.start = id.0;
    }

    /// Inserts `key` at the head of its chain.
    pub(crate) fn insert(&self, id: V2NodeId, hash: u64, key: &Key, place: V2Place) {
        let (node, head) = (&self.nodes[id.0 as usize], self.head(hash));
        for (to, word) in node.key.iter().zip(words_of(key)) {
            to.store(word, Relaxed);
        }
        self.set_place(id, place);
        node.next.store(head.load(Relaxed), Relaxed);
        head.store(id.0, Relaxed);
    }

    /// Returns the bytes of DRAM that the heads and the nodes take.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.heads.bytes() as u64, size_of_val(&*self.nodes) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_28_bytes_as_described_by_the_authors() {
        assert_eq!(size_of::<V2Node>(), 28);
        let (nodes, keys) = PUBLISHED_NODES;
        assert!(keys + 16 * PUBLISHED_RUN < nodes, "every thread's run fits");
    }

    #[test]
    fn the_newest_key_of_a_chain_is_found_first() {
        let terms = ContestLimits {
            hash_bits: 0,
            keys: 3,
            ..ContestLimits::finals(1 << 16).with_threads(1)
        };
        let (index, mut run) = (V2Index::new(&terms), 0..0);
        let place = |number| V2Place {
            number,
            version: 1,
            size: 7,
            value_bytes: 80,
        };
        for n in 1..=3_u8 {
            let id = index.allot(&mut run).unwrap();
            index.insert(id, 0, &[n; 16], place(u32::from(n)));
        }
        for (n, probes) in [(3, 1), (2, 2), (1, 3)] {
            let (id, looked_at) = index.find(0, &[n; 16]);
            assert_eq!(index.place(id.unwrap()), place(u32::from(n)));
            assert_eq!(looked_at, probes);
        }
        assert_eq!(index.find(0, &[4; 16]), (None, 3));
    }
}
