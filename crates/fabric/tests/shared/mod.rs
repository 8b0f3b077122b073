//! What the tests of TCP and of shared memory have in common: memory servers, and the guarantees of one batch.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use farbank_fabric::server::{LeaseSettings, MemoryNode, MemorySettings, WordMemory};
use farbank_fabric::tcp::{SharedKey, TcpServer, TcpServerSettings};
use farbank_fabric::{Fabric, FabricError, GAddr, Verb};
use farbank_pm::media::Mapped;

pub(crate) const LOCK_BYTES: u64 = 64 << 10;
pub(crate) const CHUNK_BYTES: u64 = 256 << 10;
/// Bytes of a memory.
pub(crate) const MEMORY_BYTES: u64 = 4 << 20;
/// Timeout of requests.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn key() -> SharedKey {
    SharedKey::new(*b"a key for tests only").unwrap()
}

pub(crate) fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

/// Starts memory server `server` on `listener`, in a new generation. `path`: the file of its memory, if processes may map it.
pub(crate) fn start_server(
    server: u16,
    (medium, path): (Mapped, Option<&Path>),
    leases: LeaseSettings,
    listener: TcpListener,
    lease_server: Option<SocketAddr>,
) -> TcpServer {
    let settings = MemorySettings {
        lock_bytes: LOCK_BYTES,
        chunk_bytes: CHUNK_BYTES,
        ..MemorySettings::new(server)
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let memory = WordMemory::open(medium, settings, now.as_nanos() as u64).unwrap();
    let node = MemoryNode::new(memory, leases);
    let node = match path {
        Some(path) => node.shared_at(path),
        None => node,
    };
    let settings = TcpServerSettings {
        lease_server,
        ..TcpServerSettings::new(key())
    };
    TcpServer::start(listener, Arc::new(node), settings).unwrap()
}

/// Checks that the verbs of a batch on `server` execute in order, and see each other's effects. Writes 7 to the 1,000 bytes
/// at the returned address.
pub(crate) async fn executes_a_batch_in_order(fabric: &impl Fabric, server: u16) -> GAddr {
    let (at, lock) = (GAddr::host(server, 4100), GAddr::lock(server, 16));
    let verbs = vec![
        Verb::write(at, vec![7; 1000]),
        Verb::read(at, 1000),
        Verb::write(lock, 0x1111_2222_u64.to_le_bytes().to_vec()),
        Verb::masked_cas(lock, 0x2222, 0x3333, 0xffff),
        Verb::masked_cas(lock, 0x2222, 0x4444, 0xffff),
        Verb::add(lock, 1),
        Verb::read(lock, 8),
    ];
    let done = fabric.batch(server, verbs).await.unwrap();
    let found: Vec<u64> = done[3..6].iter().map(Verb::found).collect();
    assert_eq!(found, [0x1111_2222, 0x1111_3333, 0x1111_3333]);
    assert_eq!(done[1].clone().into_bytes(), [7; 1000]);
    let word = 0x1111_3334_u64.to_le_bytes();
    assert_eq!(done[6].clone().into_bytes(), word);
    at
}

/// Checks that batches with an invalid verb on server 0 are rejected, and that none of their verbs executes.
pub(crate) async fn rejects_invalid_batches(fabric: &impl Fabric) {
    let at = GAddr::host(0, 4096);
    for invalid in [
        Verb::read(GAddr::host(0, 1 << 40), 8),
        Verb::write(GAddr::lock(0, LOCK_BYTES - 4), vec![1; 8]),
        Verb::cas(GAddr::host(0, 4097), 0, 1),
        Verb::read(at, 2 << 20),
    ] {
        let verbs = vec![Verb::write(at, vec![9; 8]), invalid];
        let rejected = FabricError::Rejected { server: 0 };
        assert_eq!(fabric.batch(0, verbs).await.err(), Some(rejected));
    }
    assert_eq!(fabric.read(at, 8).await.unwrap(), [0; 8]);
}
