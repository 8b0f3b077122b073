//! The guarantees of a fabric (FABRIC-1 to FABRIC-4) over libfabric. Needs the library, and is run by the suite `tree-libfabric`. The
//! environment variable `FARBANK_PROVIDER` selects another provider.

mod cluster;
mod layout;
mod processes;

use std::thread;
use std::time::{Duration, Instant};

use cluster::{Cluster, LEASES};
use farbank_fabric::libfabric::{
    LibfabricConnectError, LibfabricError, LibfabricFabric, providers,
};
use farbank_fabric::service::LEASE_SERVER;
use farbank_fabric::tcp::{ConnectError, Reactor, Refusal, TcpFabric, WaitMode};
use farbank_fabric::{Fabric, FabricError, GAddr, ServiceRequest, ServiceResponse, Verb};

use crate::cluster::{LOCK_BYTES, word};

#[test]
fn verbs_have_the_results_of_the_trait() {
    let cluster = Cluster::new(2);
    for wait in [WaitMode::Block, WaitMode::Spin] {
        let reactor = Reactor::new(wait).unwrap();
        let fabric = cluster.fabric(&reactor, 1);
        let caps = fabric.caps(1);
        assert_eq!((caps.lock_bytes, caps.masked_cas), (LOCK_BYTES, false));
        let (at, lock) = (GAddr::host(1, 4100), GAddr::lock(1, 16));
        let verbs = vec![
            Verb::write(at, vec![7; 1001]),
            Verb::read(at, 1001),
            Verb::write(lock, 0x1111_2222_u64.to_le_bytes().to_vec()),
            Verb::cas(lock, 0x1111_2222, 0x3333),
            Verb::cas(lock, 0x1111_2222, 0x4444),
            Verb::add(lock, 1),
            Verb::read(lock, 8),
            Verb::read(at.plus(3), 3),
        ];
        let done = reactor.block_on(fabric.batch(1, verbs)).unwrap();
        let found: Vec<u64> = done[3..6].iter().map(Verb::found).collect();
        assert_eq!(found, [0x1111_2222, 0x3333, 0x3333]);
        assert_eq!(done[1].clone().into_bytes(), [7; 1001]);
        assert_eq!(done[6].clone().into_bytes(), 0x3334_u64.to_le_bytes());
        assert_eq!(done[7].clone().into_bytes(), [7; 3]);
    }
}

#[test]
fn invalid_batches_are_rejected_and_none_of_their_verbs_executes() {
    let cluster = Cluster::new(1);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let fabric = cluster.fabric(&reactor, 1);
    let at = GAddr::host(0, 4096);
    reactor.block_on(async {
        for invalid in [
            Verb::read(GAddr::host(0, 1 << 40), 8),
            Verb::write(GAddr::lock(0, LOCK_BYTES - 4), vec![1; 8]),
            Verb::cas(GAddr::host(0, 4097), 0, 1),
            Verb::masked_cas(at, 0, 1, 0xffff),
            Verb::read(at, 2 << 20),
        ] {
            let verbs = vec![Verb::write(at, vec![9; 8]), invalid];
            let rejected = FabricError::Rejected { server: 0 };
            assert_eq!(fabric.batch(0, verbs).await.err(), Some(rejected));
        }
        assert_eq!(fabric.read(at, 8).await.unwrap(), [0; 8]);
    });
}

#[test]
fn verbs_that_are_longer_than_an_atomic_of_the_provider_are_read_back() {
    let cluster = Cluster::new(1);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let fabric = cluster.fabric(&reactor, 1);
    let max = fabric.whole_write_bytes_max();
    assert!(max >= 4096, "{max}");
    reactor.block_on(async {
        for (at, len) in [
            (8192, 1_000_000),
            (8192, max),
            (8192, max + 8),
            (8193, 100_003),
            (8200, 2 * max),
        ] {
            let bytes: Vec<u8> = (0..len).map(|n| (n * 7 + n / 256) as u8).collect();
            let at = GAddr::host(0, at);
            fabric.write(at, bytes.clone()).await.unwrap();
            assert!(
                fabric.read(at, len).await.unwrap() == bytes,
                "{len} bytes at {at:?}"
            );
        }
    });
}

#[test]
fn requests_of_many_clients_share_an_endpoint() {
    let cluster = Cluster::new(2);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let fabric = cluster.fabric(&reactor, 1);
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

#[test]
fn a_batch_whose_future_is_dropped_is_completed() {
    let cluster = Cluster::new(1);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let fabric = cluster.fabric(&reactor, 1);
    let at = GAddr::host(0, 4096);
    reactor.block_on(async {
        drop(fabric.batch(0, (0..50).map(|_| Verb::add(at, 1)).collect()));
        let deadline = fabric.now() + 5_000_000_000;
        while word(&fabric.read(at, 8).await.unwrap()) < 50 {
            assert!(fabric.now() < deadline, "the batch does not continue");
        }
    });
}

/// FABRIC-1: words are whole. FABRIC-2: a batch takes effect in order, also for clients of other endpoints.
#[test]
fn a_reader_sees_the_writes_of_a_batch_in_order_and_no_torn_word() {
    const ROUNDS: u64 = 2000;
    let cluster = Cluster::new(1);
    let (first, second) = (GAddr::host(0, 8192), GAddr::host(0, 65_536));
    thread::scope(|scope| {
        scope.spawn(|| {
            let reactor = Reactor::new(WaitMode::Block).unwrap();
            let fabric = cluster.fabric(&reactor, 1);
            reactor.block_on(async {
                for round in 1..=ROUNDS {
                    let words = (round * 0x0101_0101_0101).to_le_bytes().repeat(32);
                    let flag = round.to_le_bytes().to_vec();
                    let verbs = vec![Verb::write(first, words), Verb::write(second, flag)];
                    fabric.batch(0, verbs).await.unwrap();
                }
            });
        });
        scope.spawn(|| {
            let reactor = Reactor::new(WaitMode::Block).unwrap();
            let fabric = cluster.fabric(&reactor, 2);
            reactor.block_on(async {
                loop {
                    let verbs = vec![Verb::read(second, 8), Verb::read(first, 256)];
                    let mut done = fabric.batch(0, verbs).await.unwrap();
                    let data = done.remove(1).into_bytes();
                    let flag = word(&done.remove(0).into_bytes());
                    for bytes in data.chunks(8) {
                        let found = word(bytes);
                        assert_eq!(found % 0x0101_0101_0101, 0, "a torn word: {found:#x}");
                        let round = found / 0x0101_0101_0101;
                        assert!(round >= flag, "the flag is {flag}, the data is {round}");
                    }
                    if flag == ROUNDS {
                        return;
                    }
                }
            });
        });
    });
}

#[test]
fn threads_that_lock_by_compare_and_swap_lose_no_update() {
    const CLIENTS: u64 = 4;
    const ROUNDS: u64 = 50;
    let cluster = Cluster::new(1);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let first = cluster.fabric(&reactor, 0);
    let membership = first.membership();
    let (lock, data) = (GAddr::lock(0, 64), GAddr::host(0, 4096));
    thread::scope(|scope| {
        for thread in 0..3_u64 {
            let membership = membership.clone();
            scope.spawn(move || {
                let reactor = Reactor::new(WaitMode::Block).unwrap();
                let fabric = LibfabricFabric::connect_thread(&reactor, &membership).unwrap();
                let clients: Vec<_> = (0..CLIENTS)
                    .map(|client| {
                        let (fabric, me) = (fabric.clone(), thread * CLIENTS + client + 1);
                        reactor.spawn(async move {
                            for _ in 0..ROUNDS {
                                while fabric.cas(lock, 0, me).await.unwrap() != 0 {}
                                let sum = word(&fabric.read(data, 8).await.unwrap());
                                let verbs = vec![
                                    Verb::write(data, (sum + 1).to_le_bytes().to_vec()),
                                    Verb::write(lock, vec![0; 8]),
                                ];
                                fabric.batch(0, verbs).await.unwrap();
                            }
                        })
                    })
                    .collect();
                reactor.block_on(async {
                    for client in clients {
                        client.await;
                    }
                });
            });
        }
    });
    let sum = reactor.block_on(first.read(data, 8)).unwrap();
    assert_eq!(word(&sum), 3 * CLIENTS * ROUNDS);
}

/// Checks the lease of `compute` until it has expired.
async fn fence(fabric: &LibfabricFabric, compute: u16, epoch: u8) {
    let began = Instant::now();
    let check = ServiceRequest::CheckLease { compute, epoch };
    while fabric.call(LEASE_SERVER, check).await.unwrap() != ServiceResponse::Expired {
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "the lease does not end"
        );
        fabric.sleep(5_000_000).await;
    }
}

/// FABRIC-4. The fenced fabric knows of nothing when it writes: its reactor did not run meanwhile.
#[test]
fn a_compute_server_without_a_lease_is_fenced_on_every_server() {
    let cluster = Cluster::new(3);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let own = Reactor::new(WaitMode::Block).unwrap();
    let (dead, alive) = (cluster.fabric(&own, 1), cluster.fabric(&reactor, 2));
    reactor.spawn(alive.control().clone().keep_alive());
    let at = |server| GAddr::host(server, 4096);
    own.block_on(async {
        for server in 0..3 {
            dead.write(at(server), vec![1; 8]).await.unwrap();
        }
    });
    reactor.block_on(fence(&alive, 1, dead.epoch()));
    for server in 0..3 {
        let refused = own.block_on(dead.write(at(server), vec![2; 8]));
        let is_refused = matches!(
            refused,
            Err(FabricError::Fenced | FabricError::Timeout { .. })
        );
        assert!(is_refused, "server {server}: {refused:?}");
        thread::sleep(LEASES.compute / 4);
        assert_eq!(reactor.block_on(alive.read(at(server), 8)).unwrap(), [1; 8]);
    }
    let again = cluster.fabric(&own, 1);
    assert!(again.epoch() > dead.epoch());
    own.block_on(again.write(at(2), vec![3; 8])).unwrap();
}

#[test]
fn a_server_that_ends_is_a_timeout_and_others_are_still_used() {
    let mut cluster = Cluster::new(2);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let fabric = cluster.fabric(&reactor, 1);
    cluster.stop(1);
    reactor.block_on(async {
        let lost = fabric.write(GAddr::host(1, 4096), vec![1; 8]).await;
        assert_eq!(lost, Err(FabricError::Timeout { server: 1 }));
        fabric
            .write(GAddr::host(0, 4096), vec![1; 8])
            .await
            .unwrap();
    });
}

#[test]
fn a_client_of_another_fabric_is_refused_and_hears_which_one_to_use() {
    let cluster = Cluster::new(1);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let refused = TcpFabric::connect(&reactor, cluster.settings(1))
        .err()
        .unwrap();
    assert!(
        matches!(refused, ConnectError::Refused(_, Refusal::NeedsLibfabric)),
        "{refused}"
    );
    assert!(refused.to_string().contains("libfabric:IP:PORT"));
    let other = Cluster::without_libfabric();
    let refused = LibfabricFabric::connect(&reactor, other.settings(1))
        .err()
        .unwrap();
    let expected = matches!(
        refused,
        LibfabricConnectError::Connect(ConnectError::Refused(_, Refusal::NoLibfabric))
    );
    assert!(expected, "{refused}");
}

#[test]
fn a_missing_provider_names_those_that_exist() {
    let found = providers().unwrap();
    assert!(found.iter().any(|name| name == "tcp;ofi_rxm"), "{found:?}");
    let error = Cluster::start_error("no-such-provider");
    assert!(
        matches!(error, LibfabricError::NoProvider { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("tcp;ofi_rxm"), "{error}");
    let error = Cluster::start_error("net");
    assert!(matches!(error, LibfabricError::NoAtomics { .. }), "{error}");
    let error = Cluster::start_error("shm");
    assert!(
        matches!(error, LibfabricError::NoDescriptor { .. }),
        "{error}"
    );
}
