//! Memory servers that join a tree after its creation.
//!
//! ```text
//!   server 0, byte 160   │ state 8 │ numbers: announced 2, in use 2, 0 4 │
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
//! Both numbers are 0 until a server joins: then the servers are those of the descriptor.
//!
//! # Invariants
//! TREE-JOIN-1  A server is announced when its address and the tree's mark in its memory are complete.
//! TREE-JOIN-2  A node leads to a server only if it is in use. A session looks at the numbers four times in a lease time, and
//!     ends if it does not know an announced server. So when a server comes into use, either no session is left that does not
//!     know it, or the session's lease has ended. A session that is late nevertheless gets `FabricError::Unlisted`.
//! TREE-JOIN-3  One client at a time adds a server, and each of its steps can be repeated. If the client dies before the server
//!     is in use, the next one must add the same server, and continues.
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
use super::descriptor::{TreeDescriptor, read_descriptor, reserve, take_word, word_of};
use crate::bulk_load::first_free;
use crate::superblock::mark;

const STATE: GAddr = GAddr::host(0, 160);
const NUMBERS: GAddr = GAddr::host(0, 168);
const ADDRESSES_AT: u64 = 1024;
const ADDRESS_BYTES: usize = 32;
/// Maximum number of servers that join a tree.
const JOINED_MAX: u16 = ((4096 - ADDRESSES_AT) / ADDRESS_BYTES as u64) as u16;
/// Lease times between the announcement of a server and its use.
const WAITED_LEASES: u64 = 3;

/// The numbers of memory servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ServerNumbers {
    /// Servers that every session must know.
    pub(super) announced: u16,
    /// Servers that get new nodes.
    pub(super) in_use: u16,
}

impl ServerNumbers {
    fn encode(self) -> u64 {
        u64::from(self.announced) | u64::from(self.in_use) << 16
    }

    /// Returns the numbers of a tree that was created on `created` servers. `None`: the word is damaged.
    fn decode(word: u64, created: u16) -> Option<ServerNumbers> {
        if word == 0 {
            return Some(ServerNumbers {
                announced: created,
                in_use: created,
            });
        }
        let numbers = ServerNumbers {
            announced: word as u16,
            in_use: (word >> 16) as u16,
        };
        let joined = numbers.announced.checked_sub(created);
        let waiting = numbers.announced.checked_sub(numbers.in_use);
        let is_valid = word >> 32 == 0
            && numbers.in_use >= created
            && joined.is_some_and(|count| count <= JOINED_MAX)
            && waiting.is_some_and(|count| count <= 1);
        is_valid.then_some(numbers)
    }
}

/// Reads the numbers of servers.
pub(super) async fn read_numbers(
    fabric: &ShmFabric,
    created: u16,
) -> Result<ServerNumbers, ClusterError> {
    let word = word_of(&fabric.read(NUMBERS, 8).await?);
    ServerNumbers::decode(word, created).ok_or(ClusterError::Descriptor)
}

/// A tree, as a session finds it.
pub(super) enum OpenedTree {
    Open(TreeDescriptor, ServerNumbers),
    /// The session does not know servers that have joined. Their addresses, in the order of their numbers.
    MoreServers(Vec<ServerAddress>),
}

/// Opens the tree on the memory servers of `fabric`.
pub(super) async fn open_tree(fabric: &ShmFabric) -> Result<OpenedTree, ClusterError> {
    let descriptor = read_descriptor(fabric).await?;
    let (created, given) = (descriptor.servers, fabric.servers());
    let numbers = read_numbers(fabric, created).await?;
    if !(created..=numbers.announced).contains(&given) {
        return Err(ClusterError::OtherServers {
            found: numbers.announced,
            given,
        });
    }
    if given < numbers.announced {
        let joined = read_addresses(fabric, created, given..numbers.announced).await?;
        return Ok(OpenedTree::MoreServers(joined));
    }
    Ok(OpenedTree::Open(descriptor, numbers))
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
    let owned = match take_word(fabric, STATE).await? {
        Ok(owned) => owned,
        Err(_) => return Err(ClusterError::Descriptor),
    };
    let added = add_as_owner(fabric, tree, &entry).await;
    if !added.as_ref().is_err_and(ClusterError::is_of_fabric) {
        fabric.cas(STATE, owned, 0).await?;
    }
    added
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
    let before = read_numbers(fabric, tree.servers).await?;
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
    let announced = ServerNumbers {
        announced: server + 1,
        in_use: server,
    };
    let in_use = ServerNumbers {
        in_use: server + 1,
        ..announced
    };
    // TREE-JOIN-1, TREE-JOIN-2
    write_numbers(fabric, announced).await?;
    fabric.sleep(WAITED_LEASES * fabric.lease_ns()).await;
    write_numbers(fabric, in_use).await
}

async fn write_numbers(fabric: &ShmFabric, numbers: ServerNumbers) -> Result<(), ClusterError> {
    let word = numbers.encode().to_le_bytes().to_vec();
    Ok(fabric.write(NUMBERS, word).await?)
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

    #[test]
    fn numbers_are_those_of_the_creation_until_a_server_joins() {
        let of = |announced, in_use| ServerNumbers { announced, in_use };
        assert_eq!(ServerNumbers::decode(0, 2), Some(of(2, 2)));
        for numbers in [of(3, 2), of(3, 3), of(2 + JOINED_MAX, 2 + JOINED_MAX)] {
            assert_eq!(ServerNumbers::decode(numbers.encode(), 2), Some(numbers));
        }
        for wrong in [
            of(0, u16::MAX),
            of(u16::MAX, u16::MAX),
            of(4, 2),
            of(3, 4),
            of(3, 1),
            of(2, 3),
            of(3 + JOINED_MAX, 3 + JOINED_MAX),
        ] {
            assert_eq!(ServerNumbers::decode(wrong.encode(), 2), None, "{wrong:?}");
        }
        assert_eq!(ServerNumbers::decode(1 << 32 | of(3, 3).encode(), 2), None);
    }
}
