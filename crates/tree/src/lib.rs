//! A B+tree whose nodes are stored on memory servers: Sherman (Wang et al., SIGMOD 2022), and FG and FG+, which are the
//! same tree with techniques switched off.
//!
//! ```text
//!   server 0, byte 64: the root's address
//!                 ┌──────────────┐
//!   level 2       │ k5 ▶   k9 ▶  │                                 a node: fence keys [lowest, highest), a sibling,
//!                 └┬────┬─────┬──┘                                 unordered entries; 1 KiB, on any server
//!   level 1    ┌───▼──┐┌▼─────┐┌▼─────┐
//!              │      ├▶      ├▶      │──▶ null                    cached by compute servers, as hints (`cache`)
//!              └┬──┬──┘└┬──┬──┘└┬──┬──┘
//!   leaves     ┌▼┐┌▼┐  ┌▼┐┌▼┐  ┌▼┐┌▼┐
//!              └─┴▶┴──▶ ...                                        read: one round trip; written: lock, read, write
//! ```
//!
//! Clients read and write nodes with one-sided verbs; memory servers only store them. A lookup whose parent is cached
//! takes one round trip. A write takes three: take the lock; read the leaf; write the entry and release the lock, in
//! one batch. It takes two if another client of the same compute server has handed over the lock. Values that are not
//! words are stored in blocks beside the leaves (`value_blocks`), and are written in the same batch.
//!
//! # Invariants
//! TREE-NODE-1  Only the client that holds a node's lock (`lock`) writes the node. It writes the whole node or one entry at a
//!     time, so that readers, which take no lock, can detect torn reads (`layout`).
//! TREE-NODE-2  Every key belongs to the one leaf in the chain of siblings whose fence keys include it. A client checks the
//!     fence keys, the level and the state of each node it reads: cached nodes and addresses are hints.
//! TREE-NODE-3  Every single write preserves TREE-NODE-2: a new node is written before the node that leads to it (`split`), and a leaf's
//!     entries are in its sibling before the leaf is freed (`merge`).
//! TREE-NODE-4  An operation does not wait for a lock while it holds one.
//! TREE-NODE-5  Before a compute server uses the memory of a memory server, it checks the tree's mark there. Bytes that were
//!     never written are no node.
//!
//! # Failures
//! | failure                          | other clients see             | and do                                        |
//! |----------------------------------|-------------------------------|-----------------------------------------------|
//! | a compute server, holding a lock | the same owner for too long   | have it fenced; take the lock (`lock`, TREE-LOCK-3)    |
//! | ... between the nodes of a split | a node without a separator    | reach it by its sibling, add the separator    |
//! | ... within a merge               | a leaf that is moving         | check if siblings lead to it; complete it     |
//! | ... leaf freed, separator left   | a separator to a wrong leaf   | search from the left, by siblings (`lookup`)  |
//! | one that resumes after its lease | nothing (its verbs fail)      | it gets [`TreeError::Fabric`] and joins again |
//! | a memory server                  | [`TreeError::Fabric`] in time | stop using it, continue on the other servers  |
//! | one that restarts empty          | new generation, no mark (TREE-NODE-5)  | the same                                      |
//!
//! A dead compute server leaks memory: the rest of its chunks and the nodes it had freed. After one timeout of a memory
//! server, a client's operations on that server fail at once, and so do those of clients queued behind it for one of
//! the server's locks. So errors come within a lease, not after one timeout each. A new incarnation of the compute
//! server may use that memory server again. A separator of a freed leaf is not repaired; it costs some extra reads.
//! `sim_test` tests all of this.
//!
//! # Deviations from the paper
//! The default layout has a version in each line, because network cards do not fetch lines in order (Ziegler et al.,
//! SIGMOD 2023). The published layout is [`Config::sherman_published`]. Internal nodes are unordered, too, and a
//! separator is added by writing the whole node. Range queries follow siblings. A version mismatch leads to another
//! read and never means absent. Deletes merge leaves. Locks contain their owner's epoch.

#![forbid(unsafe_code)]

mod bulk_load;
mod cache;
mod cache_warmup;
mod client;
mod config;
pub mod faults;
mod key;
mod layout;
mod lock;
mod lookup;
mod merge;
pub mod op_stats;
mod ops;
mod page;
mod phase;
mod range;
#[cfg(feature = "check")]
pub mod sim_test;
mod split;
mod value_blocks;

use std::fmt;

use farbank_fabric::GAddr;

pub use bulk_load::{FillTarget, create, fill};
pub use client::{Client, Compute};
pub use config::{Config, HOST_LOCKS_MAX, LocalLockMode, LockPlacement, ReleasePolicy, ValueMode};
pub use key::{KEY_BYTES_MAX, Key};
pub use layout::{NodeFormat, NodeLayout};
pub use value_blocks::{VALUE_BYTES_MAX, fill_bytes};

/// The reason why an operation failed. After a fabric error, the operation may have taken effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TreeError {
    /// A verb or a call failed.
    Fabric(farbank_fabric::FabricError),
    /// A memory server has no memory for a new node or block.
    Full {
        /// The memory server.
        server: u16,
    },
    /// The cluster holds no tree.
    NoTree,
    /// The tree on a memory server has another layout.
    OtherLayout {
        /// The memory server.
        server: u16,
    },
    /// A key is longer than the keys of this tree.
    KeyTooLong {
        /// Its length in bytes.
        bytes: usize,
        /// The maximum length in bytes.
        most: usize,
    },
    /// A value is longer than the values of this tree.
    ValueTooLong {
        /// Its length in bytes.
        bytes: usize,
        /// The maximum length in bytes.
        most: usize,
    },
    /// The operation is for word values but the tree has byte values, or the reverse ([`Config::values`]).
    OtherValues,
    /// The value is 0, which the published layout reserves.
    Reserved,
    /// A node or block is corrupted.
    Damaged {
        /// Its address.
        at: GAddr,
    },
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TreeError::Fabric(error) => error.fmt(f),
            TreeError::Full { server } => {
                write!(f, "memory server {server} has no memory for another node")
            }
            TreeError::NoTree => f.write_str("there is no tree on these servers: the root address is null"),
            TreeError::OtherLayout { server } => write!(
                f,
                "the tree on memory server {server} was created with another size or format of nodes or keys"
            ),
            TreeError::KeyTooLong { bytes, most } => {
                write!(f, "the key has {bytes} bytes, the maximum is {most}")
            }
            TreeError::ValueTooLong { bytes, most } => {
                write!(
                    f,
                    "the value has {bytes} bytes, the maximum is {most}"
                )
            }
            TreeError::OtherValues => f.write_str(
                "the operation does not fit the tree's values: use get and insert for words, get_bytes and insert_bytes for bytes",
            ),
            TreeError::Reserved => f.write_str("value 0 cannot be stored: it means absent in the published layout"),
            TreeError::Damaged { at } => write!(f, "the node or block at {at:?} is corrupted"),
        }
    }
}

impl std::error::Error for TreeError {}

impl From<farbank_fabric::FabricError> for TreeError {
    fn from(error: farbank_fabric::FabricError) -> TreeError {
        TreeError::Fabric(error)
    }
}
