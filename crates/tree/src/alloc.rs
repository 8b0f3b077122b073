//! Allocation of nodes and blocks on memory servers.

use farbank_fabric::{Fabric, ServiceRequest, ServiceResponse, Verb};

use crate::block::{BlockRef, ValueBlocks, block, block_read_ns_max, size_of};
use crate::client::{Client, FetchedNode};
use crate::error::TreeError;
use crate::node_allocator::{NewNode, NodeAllocator};
use crate::spare_memory::SpareMemory;

/// Maximum number of records of spare memory that one allocation takes.
const SPARE_MAX: u32 = 16;

/// Nodes that an allocation may return.
#[derive(Clone, Copy)]
pub(crate) enum NodeOrigin {
    /// Freed leaves (TREE-NODE-6), and nodes that were never used.
    Any,
    /// Nodes that were never used.
    Unused,
}

/// The use of a part of spare memory.
#[derive(Clone, Copy)]
enum SpareFor {
    Nodes,
    Blocks,
}

impl<F: Fabric> Client<F> {
    /// Returns `first` and then the other servers that get new nodes, while this client holds a lock (TREE-LIST-1). Without the list, only
    /// `first`.
    pub(crate) async fn servers_from(&self, first: u16) -> Vec<u16> {
        let list = self.server_list().await;
        let others = list.into_iter().flat_map(|list| list.after(first));
        let others = others.filter(|server| *server != first);
        std::iter::once(first).chain(others).collect()
    }

    /// Allocates a node on the first of `servers` that can be used and has memory.
    ///
    /// # Errors
    /// That of the first server that is full; if none is, that of the last one.
    pub(crate) async fn allocate_on(
        &self,
        servers: &[u16],
        origin: NodeOrigin,
    ) -> Result<NewNode, TreeError> {
        let allocate = async |server| match origin {
            NodeOrigin::Any => self.allocate(server).await,
            NodeOrigin::Unused => self.allocate_unused(server).await,
        };
        self.on_first(servers, allocate).await
    }

    /// Allocates a block for `value` on the first of `servers` that can be used and has memory. Returns its name and the verb that writes
    /// it.
    ///
    /// # Errors
    /// As for [`Client::allocate_on`].
    pub(crate) async fn new_block_on(
        &self,
        servers: &[u16],
        value: &[u8],
    ) -> Result<(u64, Verb), TreeError> {
        let allocate = async |server| self.new_block(server, value).await;
        self.on_first(servers, allocate).await
    }

    /// Calls `allocate` for `servers` that can be used, until it succeeds.
    ///
    /// # Errors
    /// That of the first server that is full; if none is, that of the last one. Without servers, [`TreeError::Full`].
    async fn on_first<T>(
        &self,
        servers: &[u16],
        allocate: impl AsyncFn(u16) -> Result<T, TreeError>,
    ) -> Result<T, TreeError> {
        let mut failed = None;
        for server in servers {
            let allocated = match self.usable(*server).await {
                Ok(()) => allocate(*server).await,
                Err(error) => Err(error),
            };
            match allocated {
                Ok(allocated) => return Ok(allocated),
                Err(_) if matches!(failed, Some(TreeError::Full { .. })) => {}
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or(TreeError::Full { server: 0 }))
    }

    /// Checks that `server` has not failed and has this tree's mark.
    async fn usable(&self, server: u16) -> Result<(), TreeError> {
        self.reachable(server)?;
        self.admit(server).await
    }

    /// Allocates a node on `server`: a freed one, or one that was never used.
    async fn allocate(&self, server: u16) -> Result<NewNode, TreeError> {
        match self.nodes(server, NodeAllocator::take_freed) {
            Some(node) => Ok(node),
            None => self.allocate_unused(server).await,
        }
    }

    /// Allocates a node on `server` that was never used.
    async fn allocate_unused(&self, server: u16) -> Result<NewNode, TreeError> {
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
