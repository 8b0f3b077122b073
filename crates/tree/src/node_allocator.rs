//! The nodes that a compute server can allocate on one memory server.

use farbank_fabric::GAddr;

use crate::chunk_pool::ChunkPool;

/// A node that was allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NewNode {
    pub(crate) at: GAddr,
    /// Its last version.
    pub(crate) version: u8,
    /// Whether it was a leaf that was freed, so that clients may still have its address (TREE-NODE-6).
    pub(crate) was_leaf: bool,
}

/// Freed nodes, and the unused part of a chunk.
#[derive(Default)]
pub(crate) struct NodeAllocator {
    /// The unused parts of chunks.
    chunks: ChunkPool,
    /// Leaves freed by merges, with their last versions.
    freed: Vec<(GAddr, u8)>,
}

impl NodeAllocator {
    /// Creates an allocator without memory.
    pub(crate) fn new(keeps_rest: bool) -> NodeAllocator {
        NodeAllocator {
            chunks: ChunkPool::new(keeps_rest),
            freed: Vec::new(),
        }
    }

    /// Allocates a node that was freed, if there is one.
    pub(crate) fn take_freed(&mut self) -> Option<NewNode> {
        let (at, version) = self.freed.pop()?;
        Some(NewNode {
            at,
            version,
            was_leaf: true,
        })
    }

    /// Allocates a node that was never used. Returns `None` if there is no space.
    pub(crate) fn take_unused_node(&mut self, server: u16, node_bytes: u64) -> Option<NewNode> {
        let at = self.chunks.take(node_bytes)?;
        Some(NewNode {
            at: GAddr::host(server, at),
            version: 0,
            was_leaf: false,
        })
    }

    /// Adds a chunk.
    pub(crate) fn add_chunk(&mut self, at: u64, bytes: u64) {
        self.chunks.add(at, at + bytes);
    }

    /// Removes the unused parts of chunks. Freed leaves stay, because clients may still read them.
    pub(crate) fn take_unused(&mut self) -> Vec<(u64, u64)> {
        self.chunks.take_all()
    }

    /// Makes a freed leaf available again.
    pub(crate) fn put_back(&mut self, at: GAddr, version: u8) {
        self.freed.push((at, version));
    }
}
