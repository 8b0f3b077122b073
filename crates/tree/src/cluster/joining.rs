//! Memory servers that join a tree after its creation.
//!
//! ```text
//!   server 0, byte 160   │ state 8 │ list of servers (`server_list`)
//!             byte 1024  │ address of the first server that has joined 32 │ of the second 32 │ ...            up to byte 4096
//!
//!   address              │ check 4 │ fabric 2 │ port 2 │ IP address 16 │ 0 8 │         fabric: 1 TCP, 2 libfabric
//!
//!   state     0 ──▶ adding, by an owner ──▶ 0                       by compare-and-swap, as for the creation (`descriptor`)
//!
//!   address ──▶ mark on the new server ──▶ announced + 1 ──▶ three lease times ──▶ in use + 1
//!                                           sessions end and        splits put nodes
//!                                           begin with the address  on the new server
//! ```
//!
//! # Invariants
//! TREE-JOIN-1  A server is announced when its address and the tree's mark in its memory are complete.
//! TREE-JOIN-2  A node leads to a server only if it is in use. A session looks at the list four times in a lease time, and
//!     ends if it does not know an announced server. So when a server comes into use, either no session is left that does not
//!     know it, or the session's lease has ended. A session that is late nevertheless gets `FabricError::Unlisted`.
//! TREE-JOIN-3  One client at a time changes the list of servers, and each of its steps can be repeated. If the client dies before the
//!     server is in use, the next one must add the same server, and continues.
//!
//! # Crash argument
//! The client that adds a server, or a memory server, can be killed after any step. Until the announcement no session uses the address
//! or the mark, so the steps before it are repeated. The announcement and the use are one word each. In between, sessions know
//! the server and put nothing there.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::Range;

use farbank_fabric::service::LEASE_SERVER;
use farbank_fabric::shm::{ServerAddress, ShmFabric};
use farbank_fabric::{Fabric, GAddr};

use super::ClusterError;
use super::descriptor::{TreeDescriptor, read_descriptor, reserve, take_word};
use crate::bulk_load::first_free;
use crate::error::TreeError;
use crate::server_list::{JOINED_MAX, ListCopy, ServerList, read_list, write_numbers};
use crate::superblock::{HOST_LOCKS_AT, mark};

const STATE: GAddr = GAddr::host(0, 160);
const ADDRESSES_AT: u64 = 1024;
const ADDRESS_BYTES: usize = 32;
/// Lease times between a change of the list and the moment when no session is left that does not know it.
const WAITED_LEASES: u64 = 3;
const _: () = assert!(ADDRESSES_AT + JOINED_MAX as u64 * ADDRESS_BYTES as u64 <= HOST_LOCKS_AT);

/// A tree, as a session finds it.
pub(super) enum OpenedTree {
    Open(TreeDescriptor, ListCopy),
    /// The session knows other servers than those of the list.
    OtherServers(ServerChanges),
}

/// The changes of the list of servers that a session does not know.
pub(super) struct ServerChanges {
    /// Number of servers before those that have joined.
    pub(super) known: u16,
    /// The addresses of servers that have joined, in the order of their numbers.
    pub(super) joined: Vec<ServerAddress>,
    /// Servers that have left.
    pub(super) left: Vec<u16>,
}

impl ServerChanges {
    /// Applies the changes to `servers`. Returns whether anything has changed.
    pub(super) fn apply(self, servers: &mut Vec<ServerAddress>) -> bool {
        let before = servers.clone();
        servers.truncate(self.known.into());
        servers.extend(self.joined);
        for server in self.left {
            if let Some(address) = servers.get_mut(usize::from(server)) {
                *address = ServerAddress::Left;
            }
        }
        *servers != before
    }
}

/// Opens the tree on the memory servers of `fabric`.
pub(super) async fn open_tree(fabric: &ShmFabric) -> Result<OpenedTree, ClusterError> {
    let descriptor = read_descriptor(fabric).await?;
    let (created, given) = (descriptor.servers, fabric.servers());
    let read_ns = fabric.now();
    let list = read_list(fabric, created).await?;
    if !(created..=list.announced).contains(&given) {
        return Err(ClusterError::OtherServers {
            found: list.announced,
            given,
        });
    }
    let is_missing = |server: &u16| !fabric.uses(*server) && !list.has_left(*server);
    if let Some(server) = (0..given).find(is_missing) {
        return Err(ClusterError::HasNotLeft { server });
    }
    if knows(fabric, &list) {
        let copy = ListCopy::read(list, created, read_ns);
        return Ok(OpenedTree::Open(descriptor, copy));
    }
    Ok(OpenedTree::OtherServers(ServerChanges {
        known: given,
        joined: read_addresses(fabric, created, given..list.announced).await?,
        left: list.left().collect(),
    }))
}

/// Returns whether `fabric` uses the servers of `list`, and no others.
pub(super) fn knows(fabric: &ShmFabric, list: &ServerList) -> bool {
    fabric.servers() >= list.announced && list.left().all(|server| !fabric.uses(server))
}

/// Returns the servers that have left the tree on server 0 of `fabric`, which may use no other server. Without a tree, none.
pub(super) async fn left_servers(fabric: &ShmFabric) -> Result<Vec<u16>, ClusterError> {
    let created = match read_descriptor(fabric).await {
        Ok(descriptor) => descriptor.servers,
        Err(ClusterError::Tree(TreeError::NoTree)) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let list = read_list(fabric, created).await?;
    Ok(list.left().collect())
}

/// Reads the addresses of `servers`, which have joined.
async fn read_addresses(
    fabric: &ShmFabric,
    created: u16,
    servers: Range<u16>,
) -> Result<Vec<ServerAddress>, ClusterError> {
    let mut addresses = Vec::new();
    for server in servers {
        let bytes = fabric
            .read(address_at(server, created), ADDRESS_BYTES)
            .await?;
        addresses.push(decode_address(&bytes).ok_or(ClusterError::Descriptor)?);
    }
    Ok(addresses)
}

fn address_at(server: u16, created: u16) -> GAddr {
    let number = u64::from(server - created);
    GAddr::host(LEASE_SERVER, ADDRESSES_AT + number * ADDRESS_BYTES as u64)
}

fn encode_address(address: &ServerAddress) -> Option<[u8; ADDRESS_BYTES]> {
    let (fabric, socket) = match address {
        ServerAddress::Tcp(socket) => (1_u16, socket),
        ServerAddress::Libfabric(socket) => (2, socket),
        ServerAddress::Shm(_) | ServerAddress::Left => return None,
    };
    let ip = match socket.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut bytes = [0; ADDRESS_BYTES];
    bytes[4..6].copy_from_slice(&fabric.to_le_bytes());
    bytes[6..8].copy_from_slice(&socket.port().to_le_bytes());
    bytes[8..24].copy_from_slice(&ip.octets());
    let check = crc32c::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&check.to_le_bytes());
    Some(bytes)
}

fn decode_address(bytes: &[u8]) -> Option<ServerAddress> {
    let bytes: &[u8; ADDRESS_BYTES] = bytes.try_into().ok()?;
    let (check, fields) = bytes.split_first_chunk()?;
    if u32::from_le_bytes(*check) != crc32c::crc32c(fields) {
        return None;
    }
    let (fabric, rest) = fields.split_first_chunk()?;
    let (port, rest) = rest.split_first_chunk()?;
    let (ip, _) = rest.split_first_chunk::<16>()?;
    let ip = Ipv6Addr::from(*ip);
    let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
    let socket = SocketAddr::new(ip, u16::from_le_bytes(*port));
    match u16::from_le_bytes(*fabric) {
        1 => Some(ServerAddress::Tcp(socket)),
        2 => Some(ServerAddress::Libfabric(socket)),
        _ => None,
    }
}

/// Adds the last memory server of `fabric`, whose address is `address`, to the tree. Waits until no session is left that does not
/// know it.
pub(super) async fn add_server(
    fabric: &ShmFabric,
    tree: &TreeDescriptor,
    address: &ServerAddress,
) -> Result<(), ClusterError> {
    let entry = encode_address(address).ok_or(ClusterError::JoinsByFile)?;
    tree.check_nodes(fabric)?;
    as_owner_of_list(fabric, add_as_owner(fabric, tree, &entry)).await
}

/// Runs `change` as the one client that changes the list of servers (TREE-JOIN-3).
pub(super) async fn as_owner_of_list<T>(
    fabric: &ShmFabric,
    change: impl Future<Output = Result<T, ClusterError>>,
) -> Result<T, ClusterError> {
    let owned = match take_word(fabric, STATE).await? {
        Ok(owned) => owned,
        Err(_) => return Err(ClusterError::Descriptor),
    };
    let done = change.await;
    if !done.as_ref().is_err_and(ClusterError::is_of_fabric) {
        fabric.cas(STATE, owned, 0).await?;
    }
    done
}

async fn add_as_owner(
    fabric: &ShmFabric,
    tree: &TreeDescriptor,
    entry: &[u8; ADDRESS_BYTES],
) -> Result<(), ClusterError> {
    let server = fabric.servers() - 1;
    if server < tree.servers {
        return Err(ClusterError::InTree { server });
    }
    if server - tree.servers >= JOINED_MAX {
        let servers = server + 1;
        return Err(ClusterError::TooManyServers { servers });
    }
    let place = address_at(server, tree.servers);
    let before = read_list(fabric, tree.servers).await?;
    if let Some(server) = before.leaving {
        return Err(ClusterError::OtherLeaves { server });
    }
    let is_own = fabric.read(place, ADDRESS_BYTES).await? == entry;
    let is_announced = before.announced == server + 1 && is_own;
    if is_announced && before.in_use == server + 1 {
        return Ok(());
    }
    if !is_announced && (before.announced != server || before.in_use != server) {
        return Err(match before.in_use < before.announced {
            true => ClusterError::OtherJoins {
                server: before.in_use,
            },
            false => ClusterError::OtherServers {
                found: before.announced,
                given: server,
            },
        });
    }
    if !is_announced {
        check_memory(fabric, tree, server, is_own).await?;
        fabric.write(place, entry.to_vec()).await?;
        mark_memory(fabric, tree, server).await?;
    }
    let announced = before.with_numbers(server + 1, server);
    let in_use = before.with_numbers(server + 1, server + 1);
    // TREE-JOIN-1, TREE-JOIN-2
    write_numbers(fabric, &announced).await?;
    wait_for_sessions(fabric).await;
    Ok(write_numbers(fabric, &in_use).await?)
}

/// Waits until no session is left that has begun before a change of the list and does not know it.
pub(super) async fn wait_for_sessions(fabric: &ShmFabric) {
    fabric.sleep(WAITED_LEASES * fabric.lease_ns()).await;
}

/// Checks that the memory of `server` is empty, except for what an earlier attempt has written if its address `is_own`.
async fn check_memory(
    fabric: &ShmFabric,
    tree: &TreeDescriptor,
    server: u16,
    is_own: bool,
) -> Result<(), ClusterError> {
    let (at, mark) = mark(server, &tree.config().layout);
    let found = fabric.read(at, mark.len()).await?;
    let is_empty = found.iter().all(|byte| *byte == 0);
    match is_empty || (is_own && found == mark) {
        true => Ok(()),
        false => Err(ClusterError::Occupied),
    }
}

/// Reserves the start of the memory of `server`, and writes the tree's mark there.
async fn mark_memory(
    fabric: &ShmFabric,
    tree: &TreeDescriptor,
    server: u16,
) -> Result<(), ClusterError> {
    reserve(fabric, server, first_free()).await?;
    let (at, mark) = mark(server, &tree.config().layout);
    Ok(fabric.write(at, mark).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_decoded_as_they_were_encoded_and_a_changed_byte_is_detected() {
        for text in ["127.0.0.1:7413", "[::1]:9", "libfabric:10.0.0.1:65535"] {
            let address: ServerAddress = text.parse().unwrap();
            let bytes = encode_address(&address).unwrap();
            assert_eq!(decode_address(&bytes), Some(address));
            for at in 0..bytes.len() {
                let mut other = bytes;
                other[at] ^= 1;
                assert_eq!(decode_address(&other), None, "byte {at} of {text}");
            }
        }
        assert_eq!(decode_address(&[0; ADDRESS_BYTES]), None);
        assert_eq!(encode_address(&"shm:/memory".parse().unwrap()), None);
    }
}
