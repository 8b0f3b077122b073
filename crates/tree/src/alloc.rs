//! Allocation of nodes and blocks on memory servers.

use farbank_fabric::{Fabric, ServiceRequest, ServiceResponse, Verb};

use crate::block::{BlockRef, ValueBlocks, block, block_read_ns_max, size_of};
use crate::client::{Client, FetchedNode};
use crate::error::TreeError;
use crate::node_allocator::{NewNode, NodeAllocator};
use crate::spare_memory::SpareMemory;

/// Maximum number of records of spare memory that one allocation takes.
const SPARE_MAX: u32 = 16;

/// The use of a part of spare memory.
#[derive(Clone, Copy)]
enum SpareFor {
    Nodes,
    Blocks,
}

impl<F: Fabric> Client<F> {
    /// Allocates a node on `server`: a freed one, or one that was never used.
    pub(crate) async fn allocate(&self, server: u16) -> Result<NewNode, TreeError> {
        match self.nodes(server, NodeAllocator::take_freed) {
            Some(node) => Ok(node),
            None => self.allocate_unused(server).await,
        }
    }

    /// Allocates a node on `server` that was never used.
    pub(crate) async fn allocate_unused(&self, server: u16) -> Result<NewNode, TreeError> {
        let node_bytes = self.config().layout.node_bytes as u64;
        let mut spare = 0;
        loop {
            let take = |nodes: &mut NodeAllocator| nodes.take_unused_node(server, node_bytes);
            if let Some(node) = self.nodes(server, take) {
                return Ok(node);
            }
            if spare < SPARE_MAX && self.add_spare_of(server, SpareFor::Nodes).await? {
                spare += 1;
                continue;
            }
            match self.call(server, ServiceRequest::Chunk).await? {
                ServiceResponse::Chunk { at, bytes } if bytes >= node_bytes => {
                    self.nodes(server, |nodes| nodes.add_chunk(at, bytes));
                }
                _ => return Err(TreeError::Full { server }),
            }
        }
    }

    /// Adds memory that another compute server has left on `server`. Returns whether there was any.
    async fn add_spare_of(&self, server: u16, user: SpareFor) -> Result<bool, TreeError> {
        let Some(memory) = self.take_spare(server).await? else {
            return Ok(false);
        };
        match (memory, user) {
            (SpareMemory::Part { at, end }, SpareFor::Nodes) => {
                self.nodes(server, |nodes| nodes.add_chunk(at, end - at));
            }
            (SpareMemory::Part { at, end }, SpareFor::Blocks) => {
                self.blocks(server, |blocks| blocks.add_chunk(at, end - at));
            }
            (SpareMemory::Block(name), _) => self.free_block(name),
        }
        Ok(true)
    }

    /// Makes a leaf available for reuse, to which nothing leads any more. A client that still has its address detects
    /// the change by the header.
    pub(crate) fn reuse(&self, found: &FetchedNode) {
        let server = found.at.server();
        self.nodes(server, |nodes| {
            nodes.put_back(found.at, found.page.version())
        });
    }

    /// Allocates a block for `value` on `server`. Returns its name and the verb that writes it.
    pub(crate) async fn new_block(
        &self,
        server: u16,
        value: &[u8],
    ) -> Result<(u64, Verb), TreeError> {
        let (bytes, class) = size_of(value.len());
        let (mut asked, mut spare) = (false, 0);
        let (at, number) = loop {
            let (now, rest_ns) = (self.fabric().now(), block_read_ns_max(self.config()));
            let take = |blocks: &mut ValueBlocks| blocks.take(server, class, now, rest_ns);
            if let Some(taken) = self.blocks(server, take) {
                break taken;
            }
            if spare < SPARE_MAX && self.add_spare_of(server, SpareFor::Blocks).await? {
                spare += 1;
                continue;
            }
            match self.call(server, ServiceRequest::Chunk).await? {
                ServiceResponse::Chunk { at, bytes } if !asked => {
                    self.blocks(server, |blocks| blocks.add_chunk(at, bytes));
                    asked = true;
                }
                _ => return Err(TreeError::Full { server }),
            }
        };
        if !BlockRef::has_place(at) {
            return Err(TreeError::Full { server });
        }
        let name = BlockRef::new(at, bytes, number);
        Ok((name.0, Verb::write(at, block(name, value))))
    }

    /// Makes a block available again. No entry refers to it, and no write that refers to it can follow.
    pub(crate) fn free_block(&self, name: BlockRef) {
        self.blocks(name.at().server(), |blocks| blocks.put_back(name));
    }
}
