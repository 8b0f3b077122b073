//! The start of each memory server's host memory.
//!
//! ```text
//!   0   8      64               128                  192            256                   1024               4096           RESERVED_BYTES
//!   │   │ mark │ root's address │ descriptor, list   │ spare memory │ servers that have   │ addresses of     │ locks, if in │ nodes and
//!                (server 0)       of servers           `spare_memory`  left (server 0)       servers            host memory    blocks ...
//!                                 (server 0)                                                 (server 0)
//! ```

use farbank_fabric::GAddr;

use crate::config::HOST_LOCKS_MAX;
use crate::layout::{NodeFormat, NodeLayout};

/// The root's address, on server 0.
pub(crate) const ROOT: GAddr = GAddr::host(0, 64);
/// Offset of the locks in host memory, one word each.
pub(crate) const HOST_LOCKS_AT: u64 = 4096;
/// Bytes at the start of each server's host memory that are not used for chunks.
pub(crate) const RESERVED_BYTES: u64 = HOST_LOCKS_AT + HOST_LOCKS_MAX * 8;

/// Returns the mark that identifies a part of the tree in a server's memory: its address and its bytes.
pub(crate) fn mark(server: u16, layout: &NodeLayout) -> (GAddr, Vec<u8>) {
    const AT: u64 = 8;
    let mut bytes = b"frbktree".to_vec();
    bytes.extend((layout.node_bytes as u32).to_le_bytes());
    bytes.extend((layout.key_bytes as u16).to_le_bytes());
    let neighbourhood = if layout.is_hashed() {
        layout.neighbourhood_lines as u8
    } else {
        0
    };
    bytes.push(u8::from(layout.format == NodeFormat::Paper) | neighbourhood << 1);
    bytes.push(layout.checked.into());
    (GAddr::host(server, AT), bytes)
}
