//! [`TreeDescriptor`]: the sizes of a tree, which its memory servers keep for the clients that open it.
//!
//! ```text
//!   server 0, byte 128     │ state 8 │ version 2 │ servers 2 │ key bytes 2 │ 0 2 │ node bytes 4 │ value bytes 4 │ check 4 │
//!
//!   state   0 ──▶ creating, by an owner ──▶ ready          by compare-and-swap
//!                 └─ owner fenced ─▶ creating, by another
//! ```
//!
//! A creation writes the same bytes at the same addresses each time. So a client that takes over the creation of a dead
//! one repeats it.

use std::collections::BTreeMap;

use farbank_fabric::service::LEASE_SERVER;
use farbank_fabric::shm::ShmFabric;
use farbank_fabric::{Fabric, FabricError, GAddr, ServiceRequest, ServiceResponse, Verb};

use super::ClusterError;
use super::stored_key::LENGTH_BYTES;
use crate::block::VALUE_BYTES_MAX;
use crate::bulk_load::{FillTarget, create};
use crate::config::{Config, ValueMode};
use crate::error::TreeError;
use crate::layout::NodeLayout;
use crate::lock_table::{decode_owner, encode_owner};
use crate::superblock::{ROOT, mark};

const STATE: GAddr = GAddr::host(0, 128);
const FIELDS: GAddr = GAddr::host(0, 136);
const READY: u64 = u64::from_le_bytes(*b"frbktre1");
/// A word with an owner in its low bits.
const OWNED: u64 = 1 << 32;
/// The least owner: compute server 0 in epoch 0.
const OWNER_MIN: u64 = 1 << 6;
const VERSION: u16 = 1;
/// Bytes of the fields and of their check.
const FIELD_BYTES: usize = 20;
/// Minimum number of entries of a node.
const NODE_ENTRIES: usize = 24;
/// Time after which a client asks again whether an owner is alive.
const OWNER_DOUBT_NS: u64 = 20_000_000;
/// Bytes of internal nodes that a client keeps.
const CACHE_BYTES: usize = 64 << 20;
/// 82 ms between the reads of a leaf and of a block, at most.
const BLOCK_REUSE_NS_MIN: u64 = 20_000;
/// Time after which a client that waits for a lock asks whether its owner is alive.
const LOCK_DOUBT_NS: u64 = 50_000_000;

/// The sizes of a new tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeSettings {
    /// Maximum bytes of a key, 8 to 1,024. Each entry takes this much.
    pub key_bytes_max: usize,
    /// Maximum bytes of a value, up to [`VALUE_BYTES_MAX`]. The chunks of the memory servers must be larger.
    pub value_bytes_max: usize,
}

impl Default for TreeSettings {
    fn default() -> TreeSettings {
        TreeSettings {
            key_bytes_max: 64,
            value_bytes_max: VALUE_BYTES_MAX,
        }
    }
}

/// The sizes of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeDescriptor {
    /// Number of memory servers at the creation. Others may have joined.
    pub servers: u16,
    /// Maximum bytes of a key.
    pub key_bytes_max: usize,
    /// Maximum bytes of a value.
    pub value_bytes_max: usize,
    /// Bytes of a node.
    pub node_bytes: usize,
}

impl TreeDescriptor {
    fn new(settings: &TreeSettings, servers: u16) -> Result<TreeDescriptor, ClusterError> {
        let key_bytes_max = settings.key_bytes_max;
        let value_bytes_max = settings.value_bytes_max;
        if !(8..=1024).contains(&key_bytes_max) || !(1..=VALUE_BYTES_MAX).contains(&value_bytes_max)
        {
            return Err(ClusterError::Sizes {
                key_bytes_max,
                value_bytes_max,
            });
        }
        if servers > 256 {
            return Err(ClusterError::TooManyServers { servers });
        }
        let layout = base().layout;
        let layout = layout.with_keys(key_bytes_max + LENGTH_BYTES, NODE_ENTRIES);
        Ok(TreeDescriptor {
            servers,
            key_bytes_max,
            value_bytes_max,
            node_bytes: layout.node_bytes.max(1024),
        })
    }

    /// Returns the configuration of the tree.
    pub(super) fn config(&self) -> Config {
        Config {
            layout: NodeLayout {
                key_bytes: self.key_bytes_max + LENGTH_BYTES,
                node_bytes: self.node_bytes,
                ..base().layout
            },
            values: ValueMode::Blocks {
                bytes_max: self.value_bytes_max,
            },
            spread_splits: true,
            shares_spare: true,
            block_reuse_ns_min: BLOCK_REUSE_NS_MIN,
            cache_bytes: CACHE_BYTES,
            doubt_ns: LOCK_DOUBT_NS,
            ..base()
        }
    }

    /// Checks that a client that dies leaves no part of a node.
    pub(super) fn check_nodes(&self, fabric: &ShmFabric) -> Result<(), ClusterError> {
        match fabric.whole_write_bytes_max() {
            Some(whole_bytes_max) if self.node_bytes > whole_bytes_max => {
                Err(ClusterError::NodeTooLong {
                    node_bytes: self.node_bytes,
                    whole_bytes_max,
                })
            }
            _ => Ok(()),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FIELD_BYTES);
        for field in [VERSION, self.servers, self.key_bytes_max as u16, 0] {
            bytes.extend(field.to_le_bytes());
        }
        for field in [self.node_bytes as u32, self.value_bytes_max as u32] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<TreeDescriptor> {
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let half = |at: usize| Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        if word(16)? != crc32c::crc32c(bytes.get(..16)?) || half(0)? != VERSION {
            return None;
        }
        Some(TreeDescriptor {
            servers: half(2)?,
            key_bytes_max: half(4)?.into(),
            node_bytes: word(8)? as usize,
            value_bytes_max: word(12)? as usize,
        })
    }
}

/// Sherman, with checksums.
fn base() -> Config {
    Config::sherman().with_checksums()
}

/// Reads the sizes of the tree on the memory servers of `fabric`.
pub(super) async fn read_descriptor(fabric: &ShmFabric) -> Result<TreeDescriptor, ClusterError> {
    let verbs = vec![Verb::read(STATE, 8), Verb::read(FIELDS, FIELD_BYTES)];
    let mut done = fabric.batch(LEASE_SERVER, verbs).await?;
    let fields = done.remove(1).into_bytes();
    match word_of(&done.remove(0).into_bytes()) {
        READY => {}
        0 if is_occupied(fabric).await? => return Err(ClusterError::Occupied),
        0 => return Err(ClusterError::Tree(TreeError::NoTree)),
        state if is_owned(state) => return Err(ClusterError::Creating),
        _ => return Err(ClusterError::Occupied),
    }
    let descriptor = TreeDescriptor::decode(&fields).ok_or(ClusterError::Descriptor)?;
    descriptor.check_nodes(fabric)?;
    Ok(descriptor)
}

/// Creates an empty tree on the memory servers of `fabric`.
pub(super) async fn create_tree(
    fabric: &ShmFabric,
    settings: &TreeSettings,
) -> Result<TreeDescriptor, ClusterError> {
    if let Some(server) = (0..fabric.servers()).find(|server| !fabric.uses(*server)) {
        return Err(ClusterError::HasNotLeft { server });
    }
    let descriptor = TreeDescriptor::new(settings, fabric.servers())?;
    descriptor.check_nodes(fabric)?;
    claim(fabric).await?;
    let mut plan = CreationPlan::default();
    create(&descriptor.config(), fabric.servers(), &mut plan);
    for (server, to) in plan.reserved {
        reserve(fabric, server, to).await?;
    }
    for (at, bytes) in plan.writes {
        fabric.write(at, bytes).await?;
    }
    let verbs = vec![
        Verb::write(FIELDS, descriptor.encode()),
        Verb::write(STATE, READY.to_le_bytes().to_vec()),
    ];
    fabric.batch(LEASE_SERVER, verbs).await?;
    Ok(descriptor)
}

/// Reserves the host memory of `server` up to byte `to`.
pub(super) async fn reserve(fabric: &ShmFabric, server: u16, to: u64) -> Result<(), ClusterError> {
    match fabric.call(server, ServiceRequest::Reserve { to }).await {
        Ok(_) => Ok(()),
        Err(FabricError::Rejected { server }) => {
            Err(ClusterError::Tree(TreeError::Full { server }))
        }
        Err(error) => Err(error.into()),
    }
}

/// Takes the right to create the tree.
async fn claim(fabric: &ShmFabric) -> Result<(), ClusterError> {
    let state = word_of(&fabric.read(STATE, 8).await?);
    if state == 0 && is_occupied(fabric).await? {
        return Err(ClusterError::Occupied);
    }
    match take_word(fabric, STATE).await? {
        Ok(_) => Ok(()),
        Err(READY) => Err(ClusterError::Exists),
        Err(found) if is_owned(found) => Err(ClusterError::Creating),
        Err(_) => Err(ClusterError::Occupied),
    }
}

/// Returns whether a word of the states of [`take_word`] has an owner.
fn is_owned(word: u64) -> bool {
    word & !0xffff == OWNED && word & 0xffff >= OWNER_MIN
}

/// Writes this compute server as the owner into the word at `at`, which was 0 or has an owner that is dead. Waits for an owner that is
/// alive. Returns the new word, or the word found if it has no owner, or this compute server.
pub(super) async fn take_word(
    fabric: &ShmFabric,
    at: GAddr,
) -> Result<Result<u64, u64>, ClusterError> {
    let owned = OWNED | encode_owner(fabric.compute(), fabric.epoch());
    let mut expected = 0;
    loop {
        let found = fabric.cas(at, expected, owned).await?;
        if found == expected {
            return Ok(Ok(owned));
        }
        if found == 0 {
            expected = 0; // The owner has left it.
            continue;
        }
        if found == owned || !is_owned(found) {
            return Ok(Err(found));
        }
        let (compute, epoch) = decode_owner(found & 0xffff);
        let check = ServiceRequest::CheckLease { compute, epoch };
        match fabric.call(LEASE_SERVER, check).await? {
            ServiceResponse::Expired => expected = found,
            _ => fabric.sleep(OWNER_DOUBT_NS).await,
        }
    }
}

/// Returns whether the servers have a tree without a descriptor. The state word was 0 before.
async fn is_occupied(fabric: &ShmFabric) -> Result<bool, ClusterError> {
    let mut places = vec![(ROOT, 8)];
    for server in 0..fabric.servers() {
        let (at, bytes) = mark(server, &base().layout);
        places.push((at, bytes.len()));
    }
    for (at, len) in places {
        if fabric.read(at, len).await?.iter().any(|byte| *byte != 0) {
            // A creation may have begun after the state was read.
            let state = fabric.read(STATE, 8).await?;
            return Ok(word_of(&state) == 0);
        }
    }
    Ok(false)
}

pub(super) fn word_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("a word was read"))
}

/// The writes of a creation.
#[derive(Default)]
struct CreationPlan {
    writes: Vec<(GAddr, Vec<u8>)>,
    reserved: BTreeMap<u16, u64>,
}

impl FillTarget for CreationPlan {
    fn put(&mut self, at: GAddr, bytes: &[u8]) {
        self.writes.push((at, bytes.to_vec()));
    }

    fn taken(&mut self, server: u16, at: u64) {
        self.reserved.insert(server, at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_decoded_as_it_was_encoded_and_a_changed_byte_is_detected() {
        let settings = TreeSettings {
            key_bytes_max: 1024,
            ..TreeSettings::default()
        };
        let descriptor = TreeDescriptor::new(&settings, 3).unwrap();
        let bytes = descriptor.encode();
        assert_eq!(bytes.len(), FIELD_BYTES);
        assert_eq!(TreeDescriptor::decode(&bytes), Some(descriptor));
        assert!(descriptor.config().layout.entries() >= NODE_ENTRIES);
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_eq!(TreeDescriptor::decode(&other), None, "byte {at}");
        }
        assert_eq!(TreeDescriptor::decode(&bytes[..10]), None);
    }
}
