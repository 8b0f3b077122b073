//! Allocation of nodes and blocks on memory servers.

use farbank_fabric::{Fabric, GAddr, ServiceRequest, ServiceResponse, Verb};

use crate::block::{BlockRef, block, size_of};
use crate::client::{Client, FetchedNode};
use crate::error::TreeError;

impl<F: Fabric> Client<F> {
    /// Allocates a node on `server`: a freed one, with its last version, or a new one from a chunk.
    pub(crate) async fn allocate(&self, server: u16) -> Result<(GAddr, u8), TreeError> {
        let node_bytes = self.config().layout.node_bytes as u64;
        loop {
            if let Some(node) = self.nodes(server, |nodes| nodes.take(server, node_bytes)) {
                return Ok(node);
            }
            match self.call(server, ServiceRequest::Chunk).await? {
                ServiceResponse::Chunk { at, bytes } => {
                    self.nodes(server, |nodes| nodes.set_chunk(at, bytes));
                }
                _ => return Err(TreeError::Full { server }),
            }
        }
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
        let mut asked = false;
        let (at, number) = loop {
            if let Some(taken) = self.blocks(server, |blocks| blocks.take(server, class)) {
                break taken;
            }
            match self.call(server, ServiceRequest::Chunk).await? {
                ServiceResponse::Chunk { at, bytes } if !asked => {
                    self.blocks(server, |blocks| blocks.set_chunk(at, bytes));
                    asked = true;
                }
                _ => return Err(TreeError::Full { server }),
            }
        };
        let name = BlockRef::new(at, bytes, number);
        Ok((name.0, Verb::write(at, block(name, value))))
    }

    /// Makes a block available again. No entry refers to it, and no write that refers to it can follow.
    pub(crate) fn free_block(&self, name: BlockRef) {
        self.blocks(name.at().server(), |blocks| blocks.put_back(name));
    }
}
