//! The guarantees of a fabric (FABRIC-1 to FABRIC-4) over real sockets.

mod cluster;
mod failures;
mod hostile;
mod proxy;
#[path = "../shared/mod.rs"]
mod shared;

use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use cluster::Cluster;
use farbank_fabric::service::LEASE_SERVER;
use farbank_fabric::tcp::{Reactor, WaitMode};
use farbank_fabric::{Fabric, GAddr, ServiceRequest, ServiceResponse, Verb};
use shared::{
    CHUNK_BYTES, LOCK_BYTES, TIMEOUT, executes_a_batch_in_order, many_clients_share,
    reads_rounds_in_order, rejects_invalid_batches, word, write_rounds,
};

#[test]
fn verbs_have_the_results_of_the_trait() {
    let cluster = Cluster::new(2);
    for wait in [WaitMode::Block, WaitMode::Spin] {
        let reactor = Reactor::new(wait).unwrap();
        let fabric = cluster.fabric(&reactor, 1);
        reactor.block_on(executes_a_batch_in_order(&fabric, 1));
        assert_eq!(fabric.caps(1).lock_bytes, LOCK_BYTES);
    }
}

#[test]
fn requests_of_many_clients_share_a_connection() {
    let cluster = Cluster::new(2);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let fabric = cluster.fabric(&reactor, 1);
    many_clients_share(&reactor, &fabric);
}

/// FABRIC-1: words are whole. FABRIC-2: a batch takes effect in order, also for clients of other connections.
#[test]
fn a_reader_sees_the_writes_of_a_batch_in_order_and_no_torn_word() {
    const ROUNDS: u64 = 3000;
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

/// Lock and read in one batch, write and release in one batch: what command combination needs.
#[test]
fn clients_that_lock_by_compare_and_swap_lose_no_update() {
    const THREADS: u16 = 3;
    const CLIENTS: u64 = 4;
    const ROUNDS: u64 = 60;
    let cluster = Cluster::new(1);
    let (lock, data) = (GAddr::lock(0, 64), GAddr::host(0, 4096));
    thread::scope(|scope| {
        for compute in 0..THREADS {
            let cluster = &cluster;
            scope.spawn(move || {
                let reactor = Reactor::new(WaitMode::Block).unwrap();
                let fabric = cluster.fabric(&reactor, compute);
                let clients: Vec<_> = (0..CLIENTS)
                    .map(|_| reactor.spawn(increment(fabric.clone(), lock, data, ROUNDS)))
                    .collect();
                reactor.block_on(async {
                    for client in clients {
                        client.await;
                    }
                });
            });
        }
    });
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let fabric = cluster.fabric(&reactor, 9);
    let bytes = reactor.block_on(fabric.read(data, 1024)).unwrap();
    for counter in bytes.chunks(8) {
        assert_eq!(word(counter), u64::from(THREADS) * CLIENTS * ROUNDS);
    }
}

/// Increments each word of a kilobyte under a 16-bit lock.
async fn increment(fabric: impl Fabric, lock: GAddr, data: GAddr, rounds: u64) {
    const MASK: u64 = 0xffff_0000;
    for _ in 0..rounds {
        let bytes = loop {
            let verbs = vec![
                Verb::masked_cas(lock, 0, 1 << 16, MASK),
                Verb::read(data, 1024),
            ];
            let mut done = fabric.batch(0, verbs).await.unwrap();
            if done[0].found() & MASK == 0 {
                break done.remove(1).into_bytes();
            }
        };
        let next: Vec<u8> = bytes
            .chunks(8)
            .flat_map(|bytes| (word(bytes) + 1).to_le_bytes())
            .collect();
        let release = Verb::write(lock.plus(2), vec![0; 2]);
        let verbs = vec![Verb::write(data, next), release];
        fabric.batch(0, verbs).await.unwrap();
    }
}

#[test]
fn chunks_of_all_clients_are_disjoint_and_end_with_the_memory() {
    let cluster = Cluster::new(1);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let fabrics = Rc::new([cluster.fabric(&reactor, 1), cluster.fabric(&reactor, 2)]);
    reactor.block_on(async {
        let reserve = ServiceRequest::Reserve { to: 300_000 };
        let reserved = fabrics[0].call(0, reserve).await.unwrap();
        assert_eq!(reserved, ServiceResponse::Reserved);
        let mut starts = Vec::new();
        for turn in 0.. {
            match fabrics[turn % 2]
                .call(0, ServiceRequest::Chunk)
                .await
                .unwrap()
            {
                ServiceResponse::Chunk { at, bytes } => {
                    assert_eq!(bytes, CHUNK_BYTES);
                    starts.push(at);
                }
                ServiceResponse::Full => break,
                other => panic!("{other:?}"),
            }
        }
        assert!(starts.len() > 4 && starts[0] >= 300_000, "{starts:?}");
        let apart = |pair: &[u64]| pair[1] - pair[0] == CHUNK_BYTES;
        assert!(starts.windows(2).all(apart), "{starts:?}");
    });
}

#[test]
fn a_server_rejects_invalid_verbs_and_executes_none_of_their_batch() {
    let cluster = Cluster::new(1);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let fabric = cluster.fabric(&reactor, 1);
    reactor.block_on(rejects_invalid_batches(&fabric));
}

#[test]
fn a_blocked_wait_ends_at_the_time_of_a_sleep() {
    let cluster = Cluster::new(1);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let fabric = cluster.fabric(&reactor, 1);
    let started = Instant::now();
    reactor.block_on(fabric.sleep(30_000_000));
    let took = started.elapsed();
    assert!(
        (Duration::from_millis(30)..TIMEOUT).contains(&took),
        "{took:?}"
    );
    let renewed = reactor.block_on(fabric.call(LEASE_SERVER, ServiceRequest::Renew));
    assert_eq!(renewed, Ok(ServiceResponse::Alive));
}
