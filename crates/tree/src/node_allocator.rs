//! The nodes that a compute server can allocate on one memory server.

use farbank_fabric::GAddr;

/// Freed nodes, and the unused part of a chunk.
#[derive(Default)]
pub(crate) struct NodeAllocator {
    /// Start and end of the unused part of a chunk.
    chunk: Option<(u64, u64)>,
    /// Leaves freed by merges, with their last versions.
    freed: Vec<(GAddr, u8)>,
}

impl NodeAllocator {
    /// Allocates a node: a freed one, with its last version, or a new one. Returns `None` if there is no space.
    pub(crate) fn take(&mut self, server: u16, node_bytes: u64) -> Option<(GAddr, u8)> {
        if let Some(node) = self.freed.pop() {
            return Some(node);
        }
        let (at, end) = self.chunk?;
        if at + node_bytes > end {
            return None;
        }
        self.chunk = Some((at + node_bytes, end));
        Some((GAddr::host(server, at), 0))
    }

    /// Replaces the chunk, which is used up, by another.
    pub(crate) fn set_chunk(&mut self, at: u64, bytes: u64) {
        self.chunk = Some((at, at + bytes));
    }

    /// Makes a freed leaf available again.
    pub(crate) fn put_back(&mut self, at: GAddr, version: u8) {
        self.freed.push((at, version));
    }
}
