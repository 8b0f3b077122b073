//! The nodes that a compute server can allocate on one memory server.

use farbank_fabric::GAddr;

use crate::chunk_pool::ChunkPool;

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

    /// Allocates a node: a freed one, with its last version, or a new one. Returns `None` if there is no space.
    pub(crate) fn take(&mut self, server: u16, node_bytes: u64) -> Option<(GAddr, u8)> {
        if let Some(node) = self.freed.pop() {
            return Some(node);
        }
        let at = self.chunks.take(node_bytes)?;
        Some((GAddr::host(server, at), 0))
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
