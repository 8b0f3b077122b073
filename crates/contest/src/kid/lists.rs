//! Free blocks of one thread: one linked list per size, with nodes from pages in DRAM.
//!
//! ```text
//!   lists, by size in units of 32 bytes        page of nodes (2 MiB for a partition of 4 GiB)
//!   ┌───┬───┬─ ... ─┬────┐                     ┌──────────────┬──────────────┬─ ... ─┐
//!   │ 0 │ 1 │       │ 33 │ ──▶ node ──▶ node   │ place │ next │ place │ next │       │
//!   └───┴───┴─ ... ─┴────┘                     └──────────────┴──────────────┴─ ... ─┘
//! ```
//!
//! A block is taken from the first list that is not empty, from the requested size upwards. It keeps its own size:
//! blocks are never split or merged. The lists are in DRAM only, and recovery does not rebuild them. So a block that
//! is free at a crash is lost.

use super::place::{RecordPlace, UNIT_BYTES, VALUE_BYTES_MAX};

const SIZES: usize = VALUE_BYTES_MAX.div_ceil(UNIT_BYTES) + 2;
/// The number that means "no node".
const NIL: u64 = u64::MAX;
/// Number of pages that are filled with nodes at the start, if nodes are allocated ahead.
const PAGES_AHEAD: u64 = 32;
/// Size of a partition divided by the size of a page of nodes.
const PAGES_OF_PARTITION: u64 = 2048;

#[derive(Clone, Copy)]
struct FreeNode {
    place: RecordPlace,
    next: u64,
}

/// Pages of nodes. Node `n` is in page `n / page_nodes`.
struct NodeArena {
    pages: Vec<Vec<FreeNode>>,
    page_nodes: usize,
}

impl NodeArena {
    fn node(&mut self, place: RecordPlace, next: u64) -> u64 {
        if self
            .pages
            .last()
            .is_none_or(|page| page.len() == self.page_nodes)
        {
            self.pages.push(Vec::with_capacity(self.page_nodes));
        }
        let full = (self.pages.len() - 1) * self.page_nodes;
        let page = self.pages.last_mut().expect("a page was just pushed");
        page.push(FreeNode { place, next });
        (full + page.len() - 1) as u64
    }

    fn at(&mut self, node: u64) -> &mut FreeNode {
        &mut self.pages[node as usize / self.page_nodes][node as usize % self.page_nodes]
    }
}

/// Free blocks of one thread.
pub(super) struct FreeLists {
    lists: [u64; SIZES],
    /// Head of the list of unused nodes.
    unused: u64,
    arena: NodeArena,
}

impl FreeLists {
    /// Returns empty lists for a partition of `partition_bytes`. With `ahead`, allocates [`PAGES_AHEAD`] pages of
    /// nodes.
    pub(super) fn new(partition_bytes: u64, ahead: bool) -> FreeLists {
        let page_bytes = (partition_bytes / PAGES_OF_PARTITION).max(256);
        // The first 16 bytes of a page are reserved.
        let page_nodes = page_bytes / size_of::<FreeNode>() as u64 - 1;
        let mut lists = FreeLists {
            lists: [NIL; SIZES],
            unused: NIL,
            arena: NodeArena {
                pages: Vec::new(),
                page_nodes: page_nodes as usize,
            },
        };
        if ahead {
            for _ in 0..PAGES_AHEAD * page_nodes {
                lists.unused = lists.arena.node(RecordPlace::default(), lists.unused);
            }
        }
        lists
    }

    /// Returns the bytes of DRAM that the nodes take.
    pub(super) fn bytes(&self) -> u64 {
        (self.arena.pages.len() * (self.arena.page_nodes + 1) * size_of::<FreeNode>()) as u64
    }

    /// Adds the block at `place`.
    pub(super) fn push(&mut self, place: RecordPlace) {
        let head = &mut self.lists[place.block_bytes() / UNIT_BYTES];
        let node = self.unused;
        if node == NIL {
            *head = self.arena.node(place, *head);
            return;
        }
        let reused = self.arena.at(node);
        self.unused = reused.next;
        *reused = FreeNode { place, next: *head };
        *head = node;
    }

    /// Takes the smallest free block of at least `bytes`. `bytes` is a whole number of units.
    pub(super) fn pop(&mut self, bytes: usize) -> Option<RecordPlace> {
        let head = self.lists[bytes / UNIT_BYTES..]
            .iter_mut()
            .find(|head| **head != NIL)?;
        let node = *head;
        let taken = *self.arena.at(node);
        *head = taken.next;
        self.arena.at(node).next = self.unused;
        self.unused = node;
        Some(taken.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_full_scale_the_number_of_nodes_is_the_published_one() {
        let lists = FreeLists::new(4 << 30, true);
        let nodes: usize = lists.arena.pages.iter().map(Vec::len).sum();
        assert_eq!((nodes, lists.bytes()), (4_194_272, 64 << 20));
    }

    #[test]
    fn the_smallest_block_that_is_large_enough_is_taken() {
        let mut lists = FreeLists::new(1 << 16, false);
        for (at, bytes) in [(0, 128), (128, 256), (384, 128), (512, 1056)] {
            lists.push(RecordPlace::new(0, at, bytes, 0));
        }
        let mut took = |bytes| lists.pop(bytes).map(|p| (p.at(), p.block_bytes()));
        assert_eq!(took(160), Some((128, 256)));
        assert_eq!(took(160), Some((512, 1056)));
        assert_eq!(took(160), None);
        assert_eq!(took(128), Some((384, 128)));
        assert_eq!(took(128), Some((0, 128)));
        assert_eq!(took(128), None);
    }

    #[test]
    fn nodes_are_reused() {
        let mut lists = FreeLists::new(1 << 16, false);
        for round in 0..1000 {
            lists.push(RecordPlace::new(0, round * 128, 128, 0));
            lists.push(RecordPlace::new(1, round * 128, 128, 0));
            assert_eq!(lists.pop(128).map(|p| p.part()), Some(1));
            assert_eq!(lists.pop(128).map(|p| p.part()), Some(0));
        }
        assert_eq!(lists.bytes(), 256);
    }
}
