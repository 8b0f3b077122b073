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
//! A compute server is a process. Its threads share an index cache and local locks, and each runs many clients ([`Compute`]).
//!
//! Clients read and write nodes with one-sided verbs; memory servers only store them. A lookup whose parent is cached
//! takes one round trip. A write takes three: take the lock; read the leaf; write the entry and release the lock, in
//! one batch. It takes two if another client of the same compute server has handed over the lock. Values that are not
//! words are stored in blocks beside the leaves (`value_blocks`), and are written in the same batch.
//!
//! # Files
//! Each line uses only those below it.
//! ```text
//!   cluster  sim_test                           a tree over TCP without futures; trials
//!   conditional                                 compare-and-swap
//!   value_blocks  cache_warmup                  byte values; a cache as after a long run
//!   ops  range                                  the operations of a client
//!   key_sharing                                 operations that clients share
//!   drain                                       a memory server that leaves
//!   split  merge                                growth and shrinking
//!   locked_node                                 a node that is locked and read
//!   lookup  alloc  bulk_load                    steps of an operation; a new tree without clients
//!   node_read                                   reads of nodes, and the detection of damaged ones
//!   lock                                        locks, and hand-over within a compute server
//!   spare_memory  list_reads                    memory that compute servers leave to others; the servers that get new nodes
//!   client                                      a client, its compute server, access to memory servers
//!   lock_table  key_calls  block  node_allocator  server_list  cache   the parts of a compute server's state
//!   page                                        the bytes of a node
//!   hashed_leaf                                 leaves of which a lookup reads a part
//!   layout  key  superblock  config             layout and configuration
//!   chunk_pool
//! ```
//!
//! # Invariants
//! TREE-NODE-1  Only the client that holds a node's lock (`lock`) writes the node, after its first write. It writes the whole node or one entry at a
//!     time, so that readers, which take no lock, can detect torn reads (`layout`).
//! TREE-NODE-2  Every key belongs to the one leaf in the chain of siblings whose fence keys include it. A client checks the
//!     fence keys, the level and the state of each node it reads: cached nodes and addresses are hints.
//! TREE-NODE-3  Every single write preserves TREE-NODE-2: a new node is written before the node that leads to it (`split`), and a leaf's
//!     entries are in its sibling before the leaf is freed (`merge`).
//! TREE-NODE-4  An operation does not wait for a lock while it holds one.
//! TREE-NODE-5  Before a compute server uses the memory of a memory server, it checks the tree's mark there. Bytes that were
//!     never written are no node.
//! TREE-NODE-6  A freed leaf is used again while clients may still have its address. A new leaf there is first written as moving from the
//!     leaf that is split (`merge`). So a client that finds it this way uses it only after the old leaf leads to it.
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
//! A compute server that dies leaks memory: the rest of its chunks and the nodes it had freed. After one timeout of a memory
//! server, a client's operations on that server fail at once, and so do those of clients queued behind it for one of
//! the server's locks. So errors come after one timeout, and one for each other compute server whose client held a lock that the
//! call waited for, not after one for each client. A new incarnation of the compute
//! server may use that memory server again. A separator of a freed leaf is not repaired; it costs some extra reads.
//! `sim_test` tests all of this.
//!
//! # Deviations from the paper
//! The default layout has a version in each line, because network cards do not fetch lines in order (Ziegler et al.,
//! SIGMOD 2023). The published layout is [`Config::sherman_published`]. Internal nodes are unordered, too, and a
//! separator is added by writing the whole node. Range queries follow siblings. A version mismatch leads to another
//! read and never means absent. Deletes merge leaves. Locks contain their owner's epoch.

#![forbid(unsafe_code)]

mod alloc;
mod block;
mod bulk_load;
mod cache;
mod cache_warmup;
mod chunk_pool;
mod client;
mod cluster;
mod conditional;
mod config;
mod drain;
mod error;
pub mod faults;
mod hashed_leaf;
mod key;
mod key_calls;
mod key_sharing;
mod layout;
mod leaf_window;
mod list_reads;
mod lock;
mod lock_table;
mod locked_node;
mod lookup;
mod merge;
mod node_allocator;
mod node_read;
pub mod op_stats;
mod ops;
mod page;
mod phase;
mod range;
mod server_list;
#[cfg(feature = "check")]
pub mod sim_test;
mod spare_memory;
mod split;
mod superblock;
mod value_blocks;

pub use block::VALUE_BYTES_MAX;
pub use bulk_load::{FillTarget, create, fill};
pub use client::{Client, Compute, SharedCompute};
pub use cluster::{
    Cluster, ClusterError, ClusterInfo, ClusterSettings, ClusterStats, KeyValue, TreeDescriptor,
    TreeSettings,
};
pub use conditional::CasOutcome;
pub use config::{Config, HOST_LOCKS_MAX, LocalLockMode, LockPlacement, ReleasePolicy, ValueMode};
pub use drain::DrainCounts;
pub use error::TreeError;
pub use key::{KEY_BYTES_MAX, Key};
pub use layout::{NodeFormat, NodeLayout};
pub use value_blocks::fill_bytes;
