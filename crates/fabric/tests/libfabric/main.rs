//! The guarantees of a fabric (FABRIC-1 to FABRIC-4) over libfabric. Needs the library, and is run by the suite `tree-libfabric`. The
//! environment variable `FARBANK_PROVIDER` selects another provider.

mod cluster;
mod layout;
mod processes;
#[expect(dead_code, reason = "other fabrics use more of it")]
#[path = "../shared/mod.rs"]
mod shared;

use std::thread;

use cluster::{Cluster, LEASES};
use farbank_fabric::libfabric::{
    LibfabricConnectError, LibfabricError, LibfabricFabric, providers,
};
use farbank_fabric::tcp::{ConnectError, Reactor, Refusal, TcpFabric, WaitMode};
use farbank_fabric::{Fabric, FabricError, GAddr, Verb};
use shared::{
    LOCK_BYTES, fence, many_clients_share, reads_rounds_in_order, rejects_a_batch_with,
    rejects_invalid_batches, uses_all_but_server_1, word, write_rounds,
};

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
fn the_library_leaves_the_signals_to_the_program() {
    /// SIGILL, SIGABRT and SIGTERM, for which this program has no handlers.
    const SIGNALS: u64 = 1 << 3 | 1 << 5 | 1 << 14;
    providers().unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = u64::from_str_radix(caught.unwrap().trim(), 16).unwrap();
    assert_eq!(caught & SIGNALS, 0, "{caught:#x}");
}

#[test]
fn invalid_batches_are_rejected_and_none_of_their_verbs_executes() {
    let cluster = Cluster::new(1);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let fabric = cluster.fabric(&reactor, 1);
    reactor.block_on(async {
        rejects_invalid_batches(&fabric).await;
        let masked = Verb::masked_cas(GAddr::host(0, 4096), 0, 1, 0xffff);
        rejects_a_batch_with(&fabric, masked).await;
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
    many_clients_share(&reactor, &fabric);
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
    thread::scope(|scope| {
        scope.spawn(|| {
            let reactor = Reactor::new(WaitMode::Block).unwrap();
            let fabric = cluster.fabric(&reactor, 1);
            reactor.block_on(write_rounds(&fabric, 0, ROUNDS));
        });
        scope.spawn(|| {
            let reactor = Reactor::new(WaitMode::Block).unwrap();
            let fabric = cluster.fabric(&reactor, 2);
            reactor.block_on(reads_rounds_in_order(&fabric, 0, ROUNDS));
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
fn a_server_that_is_not_used_needs_not_run_and_gets_no_request() {
    let mut cluster = Cluster::new(4);
    cluster.stop(1);
    let mut settings = cluster.settings(3);
    settings.servers[1] = None;
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let fabric = LibfabricFabric::connect(&reactor, settings).unwrap();
    let thread = LibfabricFabric::connect_thread(&reactor, &fabric.membership()).unwrap();
    reactor.block_on(async {
        uses_all_but_server_1(&fabric).await;
        uses_all_but_server_1(&thread).await;
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
