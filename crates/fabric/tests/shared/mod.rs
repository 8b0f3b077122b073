//! What the tests of all fabrics have in common: memory servers, and the guarantees of batches.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farbank_fabric::server::{LeaseSettings, MemoryNode, MemorySettings, WordMemory};
use farbank_fabric::service::LEASE_SERVER;
use farbank_fabric::tcp::{Reactor, SharedKey, TcpServer, TcpServerSettings, TcpSettings};
use farbank_fabric::{Fabric, FabricError, GAddr, ServiceRequest, ServiceResponse, Verb};
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

/// Returns sockets for `count` memory servers, and their addresses.
pub(crate) fn listeners(count: u16) -> (Vec<TcpListener>, Vec<SocketAddr>) {
    let listeners: Vec<_> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let addresses = listeners
        .iter()
        .map(|listener| listener.local_addr().unwrap())
        .collect();
    (listeners, addresses)
}

/// Returns the settings of compute server `compute`.
pub(crate) fn settings_at(servers: Vec<SocketAddr>, compute: u16) -> TcpSettings {
    TcpSettings {
        servers: servers.into_iter().map(Some).collect(),
        compute: Some(compute),
        key: key(),
        timeout: TIMEOUT,
    }
}

/// Opens the memory of memory server `server` in a new generation. `whole_locks`: locks are whole words.
pub(crate) fn memory_node(
    server: u16,
    medium: Mapped,
    leases: LeaseSettings,
    whole_locks: bool,
) -> MemoryNode<Mapped> {
    let settings = MemorySettings {
        lock_bytes: LOCK_BYTES,
        chunk_bytes: CHUNK_BYTES,
        whole_locks,
        ..MemorySettings::new(server)
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let memory = WordMemory::open(medium, settings, now.as_nanos() as u64).unwrap();
    MemoryNode::new(memory, leases)
}

/// Starts the memory server of `node` on `listener`.
pub(crate) fn start_server(
    node: MemoryNode<Mapped>,
    listener: TcpListener,
    lease_server: Option<SocketAddr>,
) -> TcpServer {
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

/// Checks that batches with an invalid verb on server 0 are rejected, and that none of their verbs executes. And that
/// requests to a server that the fabric does not know are not sent.
pub(crate) async fn rejects_invalid_batches(fabric: &impl Fabric) {
    for invalid in [
        Verb::read(GAddr::host(0, 1 << 40), 8),
        Verb::write(GAddr::lock(0, LOCK_BYTES - 4), vec![1; 8]),
        Verb::cas(GAddr::host(0, 4097), 0, 1),
        Verb::read(GAddr::host(0, 4096), 2 << 20),
    ] {
        rejects_a_batch_with(fabric, invalid).await;
    }
    sends_nothing_to(fabric, fabric.servers()).await;
}

/// Checks that requests to `server`, which the fabric does not know or use, are not sent.
pub(crate) async fn sends_nothing_to(fabric: &impl Fabric, server: u16) {
    let unlisted = Some(FabricError::Unlisted { server });
    let read = fabric.read(GAddr::host(server, 4096), 8).await;
    assert_eq!(read.err(), unlisted);
    let called = fabric.call(server, ServiceRequest::Chunk).await;
    assert_eq!(called.err(), unlisted);
}

/// Checks that a fabric of four servers uses all but server 1.
pub(crate) async fn uses_all_but_server_1(fabric: &impl Fabric) {
    assert_eq!(fabric.servers(), 4);
    for server in [0, 2, 3] {
        let at = GAddr::host(server, 4096);
        fabric.write(at, vec![server as u8 + 1; 8]).await.unwrap();
        let read = fabric.read(at, 8).await.unwrap();
        assert_eq!(read, [server as u8 + 1; 8]);
    }
    sends_nothing_to(fabric, 1).await;
}

/// Checks that a batch with the verb `invalid` on server 0 is rejected, and that no verb of it executes.
pub(crate) async fn rejects_a_batch_with(fabric: &impl Fabric, invalid: Verb) {
    let at = GAddr::host(0, 4096);
    let verbs = vec![Verb::write(at, vec![9; 8]), invalid];
    let rejected = FabricError::Rejected { server: 0 };
    assert_eq!(fabric.batch(0, verbs).await.err(), Some(rejected));
    assert_eq!(fabric.read(at, 8).await.unwrap(), [0; 8]);
}

/// Checks the results of many clients of one fabric to two servers.
pub(crate) fn many_clients_share(reactor: &Reactor, fabric: &(impl Fabric + 'static)) {
    let clients: Vec<_> = (0..64_u64)
        .map(|n| {
            let fabric = fabric.clone();
            reactor.spawn(async move {
                let server = (n % 2) as u16;
                let own = GAddr::host(server, 4096 + n * 512);
                for round in 0..50_u8 {
                    fabric.write(own, vec![round; 300]).await.unwrap();
                    assert_eq!(fabric.read(own, 300).await.unwrap(), [round; 300]);
                    let all = GAddr::host(server, 1 << 19);
                    fabric.fetch_add(all, 1).await.unwrap();
                }
            })
        })
        .collect();
    reactor.block_on(async {
        for client in clients {
            client.await;
        }
        for server in 0..2 {
            let sum = fabric.read(GAddr::host(server, 1 << 19), 8).await.unwrap();
            assert_eq!(sum, (32 * 50_u64).to_le_bytes());
        }
    });
}

/// Words that are written together, and the flag that is written after them in the same batch, on `server`.
const fn rounds_at(server: u16) -> (GAddr, GAddr) {
    (GAddr::host(server, 8192), GAddr::host(server, 65_536))
}

const ROUND_FACTOR: u64 = 0x0101_0101_0101;

/// Writes the rounds that [`reads_rounds_in_order`] reads.
pub(crate) async fn write_rounds(fabric: &impl Fabric, server: u16, rounds: u64) {
    let (data, flag) = rounds_at(server);
    for round in 1..=rounds {
        let words = (round * ROUND_FACTOR).to_le_bytes().repeat(32);
        let number = round.to_le_bytes().to_vec();
        let verbs = vec![Verb::write(data, words), Verb::write(flag, number)];
        fabric.batch(server, verbs).await.unwrap();
    }
}

/// Reads until the last of `rounds`. Checks FABRIC-1, words are whole, and FABRIC-2, a batch takes effect in order, also for
/// other clients.
pub(crate) async fn reads_rounds_in_order(fabric: &impl Fabric, server: u16, rounds: u64) {
    let (data, flag) = rounds_at(server);
    loop {
        let verbs = vec![Verb::read(flag, 8), Verb::read(data, 256)];
        let mut done = fabric.batch(server, verbs).await.unwrap();
        let data = done.remove(1).into_bytes();
        let flag = word(&done.remove(0).into_bytes());
        for bytes in data.chunks(8) {
            let found = word(bytes);
            assert_eq!(found % ROUND_FACTOR, 0, "a torn word: {found:#x}");
            let round = found / ROUND_FACTOR;
            assert!(round >= flag, "the flag is {flag}, the data is {round}");
        }
        if flag == rounds {
            return;
        }
    }
}

/// Checks the lease of `compute` until it has expired. Returns the time that this took.
pub(crate) async fn fence(fabric: &impl Fabric, compute: u16, epoch: u8) -> Duration {
    let began = Instant::now();
    let check = ServiceRequest::CheckLease { compute, epoch };
    loop {
        match fabric.call(LEASE_SERVER, check).await.unwrap() {
            ServiceResponse::Expired => return began.elapsed(),
            ServiceResponse::Alive => fabric.sleep(2_000_000).await,
            other => panic!("{other:?}"),
        }
        assert!(began.elapsed() < TIMEOUT, "the lease does not end");
    }
}
