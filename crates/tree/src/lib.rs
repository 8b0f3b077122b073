//! A B+tree whose nodes live on memory servers: Sherman (Wang et al., SIGMOD 2022), and FG and FG+, which are the same
//! tree with techniques off.
//!
//! ```text
//!   server 0, byte 64: the root's address
//!                 ┌──────────────┐
//!   level 2       │ k5 ▶   k9 ▶  │                                 a node: fences [lowest, highest), a sibling,
//!                 └┬────┬─────┬──┘                                 entries in no order; 1 KiB, anywhere
//!   level 1    ┌───▼──┐┌▼─────┐┌▼─────┐
//!              │      ├▶      ├▶      │──▶ null                    kept by compute servers, as hints (`cache`)
//!              └┬──┬──┘└┬──┬──┘└┬──┬──┘
//!   leaves     ┌▼┐┌▼┐  ┌▼┐┌▼┐  ┌▼┐┌▼┐
//!              └─┴▶┴──▶ ...                                        read: one round trip; written: lock, read, write
//! ```
//!
//! Clients read and write nodes with one-sided verbs; memory servers do nothing but keep them. A lookup whose parent is kept
//! takes one round trip. A write takes three: take the lock, read the leaf, write the entry back and release, in one
//! batch; two if another client of the same compute server has handed it the lock. Values that are no words lie in blocks beside
//! the leaves (`blocks`), and are written in the same batch.
//!
//! # Invariants
//! B1  A node is written only by who holds its lock (`lock`), and a whole node or one entry of it at a time, so that
//!     readers, who take no lock, can tell what is whole (`layout`).
//! B2  Every key belongs to the one leaf of the chain of siblings whose fences include it. Whoever comes to a node checks its fences, its
//!     level and whether it is freed: kept nodes and addresses are hints.
//! B3  Every write leaves B2 true, by itself: a new node is written before the node that leads to it (`split`), a
//!     leaf's entries are in its neighbour before the leaf is freed (`merge`).
//! B4  An operation waits for no lock while it holds one.
//! B5  Before a compute server believes anything in a memory server's memory it has seen the tree's mark there; what nobody has
//!     written is no node.
//!
//! # When somebody dies
//! | who, when                           | others see                          | and do                                          |
//! |-------------------------------------|-------------------------------------|-------------------------------------------------|
//! | a compute server, holding a lock    | the same owner for too long         | have him fenced, and take the lock (`lock`, H3) |
//! | ... between the nodes of a split    | a node no separator leads to        | reach it over its sibling, add the separator    |
//! | ... within a merge                  | a leaf that is moving               | look whether siblings still lead to it; end it  |
//! | ... its leaf freed, its name left   | a separator that leads astray       | come from the left, over siblings (`seek`)      |
//! | one that wakes up after its lease   | nothing: its verbs are refused      | it fails with [`Error::Fabric`] and joins again |
//! | a memory server                     | [`Error::Fabric`] in time           | ask it no more, go on with what is elsewhere    |
//! | one that comes back empty           | another generation, no mark (B5)    | the same                                        |
//!
//! What is lost with a dead compute server is room: the rest of its chunks and what it had freed. Who has waited in vain for a
//! memory server fails at once from then on, and so does who waits behind him for one of its locks, so that errors
//! come within a lease and not one timeout after another. In its next life it may ask again. What is not repaired is
//! a separator of a leaf that was freed: it costs those it leads astray some reads. `trial` tries all of this.
//!
//! # Where we differ from the paper
//! The default layout has a version in each line, since cards do not fetch lines in order (Ziegler et al., SIGMOD 2023); the published one
//! is [`Config::sherman_published`]. Internal nodes are in no order either, and get separators by whole writes. Range queries follow siblings. A
//! mismatch is read again and never means absent. Deletes merge. Locks name their owner's life.

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

/// Why an operation did not do what was asked. After an error of the fabric it may have been done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TreeError {
    /// A verb or a call failed.
    Fabric(farbank_fabric::FabricError),
    /// No memory for a new node.
    Full {
        /// On which memory server.
        server: u16,
    },
    /// There is no tree there.
    NoTree,
    /// The tree on this server has nodes of another layout.
    OtherLayout {
        /// Which memory server.
        server: u16,
    },
    /// A key that has more bytes than keys of this tree.
    KeyTooLong {
        /// How many it has.
        bytes: usize,
        /// How many it may have.
        most: usize,
    },
    /// A value that has more bytes than values of this tree.
    ValueTooLong {
        /// How many it has.
        bytes: usize,
        /// How many it may have.
        most: usize,
    },
    /// Values of this tree are words and bytes were asked for, or the other way round ([`Config::values`]).
    OtherValues,
    /// The published layout has no value 0.
    Reserved,
    /// A node that contradicts itself.
    Damaged {
        /// Where it is.
        at: GAddr,
    },
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TreeError::Fabric(error) => error.fmt(f),
            TreeError::Full { server } => {
                write!(f, "memory server {server} has no room for a node")
            }
            TreeError::NoTree => f.write_str("there is no tree: its root is null"),
            TreeError::OtherLayout { server } => write!(
                f,
                "the tree on memory server {server} was made with nodes or keys of another size or format"
            ),
            TreeError::KeyTooLong { bytes, most } => {
                write!(f, "a key of {bytes} bytes, where keys have {most}")
            }
            TreeError::ValueTooLong { bytes, most } => {
                write!(
                    f,
                    "a value of {bytes} bytes, where values have {most} at most"
                )
            }
            TreeError::OtherValues => f.write_str(
                "words are got and inserted in a tree of words, bytes in one of values out of line",
            ),
            TreeError::Reserved => f.write_str("value 0 means absent in the published layout"),
            TreeError::Damaged { at } => write!(f, "the node at {at:?} contradicts itself"),
        }
    }
}

impl std::error::Error for TreeError {}

impl From<farbank_fabric::FabricError> for TreeError {
    fn from(error: farbank_fabric::FabricError) -> TreeError {
        TreeError::Fabric(error)
    }
}
