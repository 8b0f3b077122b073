//! Servers that die, restart, pause or are fenced.

use std::cell::Cell;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use farbank_fabric::service::LEASE_SERVER;
use farbank_fabric::tcp::{ConnectError, Reactor, TcpFabric, TcpSettings, WaitMode};
use farbank_fabric::{Fabric, FabricError, GAddr, ServiceRequest, ServiceResponse, Verb};

use crate::cluster::{Cluster, LEASES};
use crate::proxy::Proxy;
use crate::shared::{fence, uses_all_but_server_1};

/// FABRIC-4.
#[test]
fn a_compute_server_without_a_lease_is_fenced_on_every_server_and_rejoins_in_a_new_epoch() {
    let cluster = Cluster::new(3);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let (dead, alive) = (cluster.fabric(&reactor, 1), cluster.fabric(&reactor, 2));
    reactor.spawn(alive.clone().keep_alive());
    reactor.block_on(async {
        for server in 0..3 {
            let at = GAddr::host(server, 4096);
            dead.write(at, vec![1; 8]).await.unwrap();
        }
        fence(&alive, 1, dead.epoch()).await;
        for server in 0..3 {
            let at = GAddr::host(server, 4096);
            let refused = dead.write(at, vec![2; 8]).await;
            assert_eq!(refused, Err(FabricError::Fenced), "server {server}");
            assert_eq!(alive.read(at, 8).await.unwrap(), [1; 8]);
        }
        let ended = dead.call(LEASE_SERVER, ServiceRequest::Renew).await;
        assert_eq!(ended, Err(FabricError::Fenced));
        let again = cluster.fabric(&reactor, 1);
        assert!(again.epoch() > dead.epoch());
        let at = GAddr::host(2, 4096);
        again.write(at, vec![3; 8]).await.unwrap();
    });
}

/// LEASE-6.
#[test]
fn all_threads_of_a_process_are_fenced_with_it_and_leave_with_it() {
    let cluster = Cluster::new(2);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let alive = cluster.fabric(&reactor, 2);
    reactor.spawn(alive.clone().keep_alive());
    let process = || {
        let first = cluster.fabric(&reactor, 1);
        let membership = first.membership();
        let others = [(); 2].map(|()| TcpFabric::connect_thread(&reactor, &membership).unwrap());
        let [second, third] = others;
        [first, second, third]
    };
    let refused = async |threads: [TcpFabric; 3]| {
        for thread in threads {
            for server in 0..2 {
                let refused = thread.write(GAddr::host(server, 4096), vec![9; 8]).await;
                assert_eq!(refused, Err(FabricError::Fenced), "server {server}");
            }
        }
    };
    reactor.block_on(async {
        let threads = process();
        for (server, thread) in [0, 1, 1].into_iter().zip(&threads) {
            let at = GAddr::host(server, 4096);
            thread.write(at, vec![1; 8]).await.unwrap();
        }
        let epoch = threads[0].epoch();
        fence(&alive, 1, epoch).await;
        refused(threads).await;
        let threads = process();
        assert!(threads.iter().all(|thread| thread.epoch() > epoch));
        threads[0].leave().await.unwrap();
        let left = threads[0].epoch();
        let next = process();
        assert!(next.iter().all(|thread| thread.epoch() == left));
        refused(threads).await;
        for server in 0..2 {
            let at = GAddr::host(server, 4096);
            assert_eq!(next[2].read(at, 8).await.unwrap(), [1; 8]);
        }
    });
}

#[test]
fn a_compute_server_that_renews_its_lease_is_alive() {
    let cluster = Cluster::new(2);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let (one, other) = (cluster.fabric(&reactor, 1), cluster.fabric(&reactor, 2));
    reactor.spawn(one.clone().keep_alive());
    reactor.spawn(other.clone().keep_alive());
    reactor.block_on(async {
        let started = Instant::now();
        while started.elapsed() < LEASES.compute * 4 {
            let check = ServiceRequest::CheckLease {
                compute: 1,
                epoch: one.epoch(),
            };
            let answer = other.call(LEASE_SERVER, check).await;
            assert_eq!(answer, Ok(ServiceResponse::Alive));
            other.sleep(5_000_000).await;
        }
        one.read(GAddr::host(1, 4096), 8).await.unwrap();
    });
}

#[test]
fn a_process_that_starts_again_under_its_number_ends_its_earlier_epoch() {
    let cluster = Cluster::new(2);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let earlier = cluster.fabric(&reactor, 1);
    let later = cluster.fabric(&reactor, 1);
    assert!(later.epoch() > earlier.epoch());
    reactor.block_on(async {
        fence(&later, 1, earlier.epoch()).await;
        for server in 0..2 {
            let refused = earlier.read(GAddr::host(server, 4096), 8).await;
            assert_eq!(refused, Err(FabricError::Fenced));
            later.read(GAddr::host(server, 4096), 8).await.unwrap();
        }
    });
}

#[test]
fn a_fence_needs_no_server_whose_lease_has_ended() {
    let mut cluster = Cluster::new(2);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let (dead, alive) = (cluster.fabric(&reactor, 1), cluster.fabric(&reactor, 2));
    reactor.spawn(alive.clone().keep_alive());
    cluster.stop(1);
    reactor.block_on(async {
        fence(&alive, 1, dead.epoch()).await;
        let refused = dead.read(GAddr::host(0, 4096), 8).await;
        assert_eq!(refused, Err(FabricError::Fenced));
    });
}

/// LEASE-1: a member that the lease server does not reach executes nothing.
#[test]
fn a_member_without_a_lease_serves_nothing_until_it_has_one() {
    let mut cluster = Cluster::new(2);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let fabric = cluster.fabric(&reactor, 1);
    let at = GAddr::host(1, 4096);
    reactor.block_on(fabric.write(at, vec![1; 8])).unwrap();
    cluster.stop(0);
    thread::sleep(LEASES.member * 2);
    let refused = reactor.block_on(fabric.read(at, 8));
    assert_eq!(refused, Err(FabricError::Timeout { server: 1 }));
    cluster.restart(0);
    let fabric = cluster.fabric(&reactor, 1);
    let read = reactor.block_on(fabric.read(at, 8));
    assert_eq!(read, Ok(vec![1; 8]));
}

#[test]
fn a_server_that_restarts_with_empty_memory_is_empty_for_earlier_connections() {
    let mut cluster = Cluster::new(2);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let fabric = cluster.fabric(&reactor, 1);
    let at = GAddr::host(1, 4096);
    reactor.block_on(async {
        fabric.write(at, vec![1; 8]).await.unwrap();
        cluster.restart(1);
        // The first request may have been sent on the old connection.
        let _ = fabric.read(at, 8).await;
        let refused = fabric.read(at, 8).await;
        assert_eq!(refused, Err(FabricError::Empty { server: 1 }));
        fabric.read(GAddr::host(0, 4096), 8).await.unwrap();
        let again = cluster.fabric(&reactor, 1);
        assert_eq!(again.read(at, 8).await.unwrap(), [0; 8]);
    });
}

#[test]
fn a_dead_server_causes_a_timeout_and_the_others_continue() {
    let mut cluster = Cluster::new(2);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let settings = TcpSettings {
        timeout: Duration::from_millis(200),
        ..cluster.settings(1)
    };
    let fabric = TcpFabric::connect(&reactor, settings).unwrap();
    cluster.stop(1);
    reactor.block_on(async {
        for _ in 0..2 {
            let started = Instant::now();
            let error = fabric.read(GAddr::host(1, 4096), 8).await;
            assert_eq!(error, Err(FabricError::Timeout { server: 1 }));
            assert!(started.elapsed() < Duration::from_secs(5));
            fabric.read(GAddr::host(0, 4096), 8).await.unwrap();
        }
    });
}

#[test]
fn a_server_that_is_not_used_needs_not_run_and_gets_no_request() {
    let mut cluster = Cluster::new(4);
    cluster.stop(1);
    let mut settings = cluster.settings(3);
    settings.servers[1] = None;
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let fabric = TcpFabric::connect(&reactor, settings.clone()).unwrap();
    let thread = TcpFabric::connect_thread(&reactor, &fabric.membership()).unwrap();
    reactor.block_on(async {
        uses_all_but_server_1(&fabric).await;
        uses_all_but_server_1(&thread).await;
    });
    assert!(fabric.uses(0) && !fabric.uses(1) && fabric.uses(3) && !fabric.uses(4));
    settings.servers[0] = None;
    let error = TcpFabric::connect(&reactor, settings).err().unwrap();
    assert!(matches!(error, ConnectError::NoLeaseServer), "{error}");
}

#[test]
fn a_dropped_future_does_not_disturb_the_requests_behind_it() {
    let cluster = Cluster::new(1);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let fabric = cluster.fabric(&reactor, 1);
    reactor.block_on(async {
        for n in 1..200_u64 {
            drop(fabric.read(GAddr::host(0, 8192), 500));
            let found = fabric.fetch_add(GAddr::host(0, 4096), 1).await;
            assert_eq!(found, Ok(n - 1));
        }
    });
}

/// TCP-2, TCP-3: each request executes at most once, and those that succeed exactly once, in order.
#[test]
fn requests_on_connections_that_break_execute_at_most_once() {
    const CUTS: usize = 6;
    let cluster = Cluster::new(1);
    let proxy = Proxy::new(cluster.addresses[0]);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let settings = TcpSettings {
        servers: vec![Some(proxy.address)],
        ..cluster.settings(1)
    };
    let fabric = TcpFabric::connect(&reactor, settings).unwrap();
    let (counter, data) = (GAddr::host(0, 4096), GAddr::host(0, 8192));
    let is_done = Rc::new(Cell::new(false));
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let (fabric, is_done) = (fabric.clone(), Rc::clone(&is_done));
            reactor.spawn(async move {
                let (mut added, mut unknown) = (0_u64, 0_u64);
                let mut newest = None;
                while !is_done.get() {
                    let add = vec![Verb::add(counter, 1), Verb::write(data, vec![1; 3000])];
                    match fabric.batch(0, add).await {
                        Ok(done) => {
                            assert!(newest < Some(done[0].found()));
                            newest = Some(done[0].found());
                            added += 1;
                        }
                        Err(FabricError::Timeout { server: 0 }) => unknown += 1,
                        Err(error) => panic!("{error}"),
                    }
                }
                (added, unknown)
            })
        })
        .collect();
    reactor.block_on(async {
        for _ in 0..CUTS {
            fabric.sleep(15_000_000).await;
            proxy.cut();
        }
        is_done.set(true);
        let (mut added, mut unknown) = (0, 0);
        for client in clients {
            let ended = client.await;
            added += ended.0;
            unknown += ended.1;
        }
        // The last cut may show only now. The connection after it is whole.
        let found = match fabric.fetch_add(counter, 0).await {
            Err(FabricError::Timeout { server: 0 }) => fabric.fetch_add(counter, 0).await,
            found => found,
        };
        let found = found.unwrap();
        assert!(
            (added..=added + unknown).contains(&found),
            "{found} of {added} to {added} + {unknown}"
        );
        assert!(added > 100 && unknown > 0, "{added}, {unknown}");
    });
}

/// LEASE-6.
#[test]
fn a_left_epoch_goes_to_the_next_process_and_the_former_is_refused_everywhere() {
    let cluster = Cluster::new(3);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let settings = TcpSettings {
        compute: None,
        ..cluster.settings(0)
    };
    let first = TcpFabric::connect(&reactor, settings.clone()).unwrap();
    let other = TcpFabric::connect(&reactor, settings.clone()).unwrap();
    assert_ne!(first.compute(), other.compute());
    reactor.block_on(async {
        let at = GAddr::host(1, 4096);
        first.write(at, vec![1; 8]).await.unwrap();
        first.leave().await.unwrap();
        for _ in 0..100 {
            let next = TcpFabric::connect(&reactor, settings.clone()).unwrap();
            assert_eq!(
                (next.compute(), next.epoch()),
                (first.compute(), first.epoch())
            );
            for server in 0..3 {
                let read = next.read(GAddr::host(server, 4096), 8).await;
                assert!(read.is_ok(), "{read:?}");
            }
            next.leave().await.unwrap();
        }
        assert_eq!(first.read(at, 8).await, Err(FabricError::Fenced));
    });
}
