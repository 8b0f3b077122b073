//! The guarantees of a fabric (FABRIC-1 to FABRIC-4) over shared memory.

mod cluster;
mod failures;
mod refusals;
#[expect(dead_code, reason = "other fabrics use more of it")]
#[path = "../shared/mod.rs"]
mod shared;

use std::thread;

use cluster::{Cluster, child_fabric};
use farbank_fabric::shm::ShmFabric;
use farbank_fabric::tcp::{Reactor, TcpFabric, WaitMode};
use farbank_fabric::{Fabric, FabricError, GAddr, ServiceRequest, ServiceResponse, Verb};
use shared::{
    LOCK_BYTES, executes_a_batch_in_order, reads_rounds_in_order, rejects_invalid_batches,
    settings_at, word, write_rounds,
};

pub(crate) fn block_on<T>(fabric: &ShmFabric, main: impl Future<Output = T>) -> T {
    fabric.reactor().block_on(main)
}

#[test]
fn verbs_have_the_results_of_the_trait() {
    let cluster = Cluster::new(2);
    let fabric = cluster.fabric(1);
    block_on(&fabric, async {
        let at = executes_a_batch_in_order(&fabric, 1).await;
        assert_eq!(fabric.read(at, 1000).await.unwrap(), [7; 1000]);
        let chunk = fabric.call(1, ServiceRequest::Chunk).await;
        assert!(matches!(chunk, Ok(ServiceResponse::Chunk { .. })));
        fabric.leave().await.unwrap();
        assert_eq!(fabric.read(at, 8).await, Err(FabricError::Fenced));
    });
    assert_eq!(fabric.caps(1).lock_bytes, LOCK_BYTES);
}

#[test]
fn invalid_verbs_are_rejected_and_none_of_their_batch_executes() {
    let cluster = Cluster::new(1);
    let fabric = cluster.fabric(1);
    let rejected = Some(FabricError::Rejected { server: 0 });
    block_on(&fabric, async {
        rejects_invalid_batches(&fabric).await;
        assert_eq!(fabric.batch(0, Vec::new()).await.err(), rejected);
    });
}

/// The processes of this host and a client over TCP use the same memory.
#[test]
fn a_client_by_tcp_sees_the_writes_on_the_mapping_and_the_other_way_round() {
    let cluster = Cluster::new(2);
    let fabric = cluster.fabric(1);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let addresses = cluster.servers.iter().flatten();
    let addresses = addresses.map(|server| server.address());
    let settings = settings_at(addresses.collect(), 2);
    let remote = TcpFabric::connect(&reactor, settings).unwrap();
    for server in 0..2 {
        let at = GAddr::host(server, 5000);
        block_on(&fabric, fabric.write(at, vec![3; 777])).unwrap();
        assert_eq!(reactor.block_on(remote.read(at, 777)), Ok(vec![3; 777]));
        reactor.block_on(remote.write(at, vec![4; 777])).unwrap();
        assert_eq!(block_on(&fabric, fabric.read(at, 777)), Ok(vec![4; 777]));
    }
}

/// FABRIC-1: words are whole. FABRIC-2: a batch takes effect in order, also for clients of other mappings.
#[test]
fn a_reader_sees_the_writes_of_a_batch_in_order_and_no_torn_word() {
    const ROUNDS: u64 = 100_000;
    let cluster = Cluster::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            let fabric = cluster.fabric(1);
            fabric.reactor().spawn(fabric.clone().keep_alive());
            block_on(&fabric, write_rounds(&fabric, 1, ROUNDS));
        });
        scope.spawn(|| {
            let fabric = cluster.fabric(2);
            fabric.reactor().spawn(fabric.clone().keep_alive());
            block_on(&fabric, reads_rounds_in_order(&fabric, 1, ROUNDS));
        });
    });
}

const LOCK: GAddr = GAddr::lock(0, 64);
const COUNTERS: GAddr = GAddr::host(1, 4096);
const SUM: GAddr = GAddr::host(1, 1 << 20);
const ROUNDS: u64 = 4_000;

/// Increments each word of a kilobyte under a 16-bit lock of another server, and a sum without it.
async fn increment(fabric: &ShmFabric) -> Result<(), FabricError> {
    const MASK: u64 = 0xffff_0000;
    for _ in 0..ROUNDS {
        while fabric.masked_cas(LOCK, 0, 1 << 16, MASK).await? & MASK != 0 {}
        let bytes = fabric.read(COUNTERS, 1024).await?;
        let next: Vec<u8> = bytes
            .chunks(8)
            .flat_map(|bytes| (word(bytes) + 1).to_le_bytes())
            .collect();
        fabric.write(COUNTERS, next).await?;
        fabric.write(LOCK.plus(2), vec![0; 2]).await?;
        fabric.fetch_add(SUM, 3).await?;
    }
    Ok(())
}

/// The process of the next test.
#[test]
fn child_that_increments() {
    let Some(fabric) = child_fabric() else {
        return;
    };
    fabric.reactor().spawn(fabric.clone().keep_alive());
    block_on(&fabric, increment(&fabric)).unwrap();
}

#[test]
fn processes_that_lock_by_compare_and_swap_lose_no_update() {
    const PROCESSES: u16 = 3;
    let cluster = Cluster::new(2);
    let children: Vec<_> = (1..=PROCESSES)
        .map(|compute| cluster.spawn("child_that_increments", compute))
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let fabric = cluster.fabric(9);
    let bytes = block_on(&fabric, fabric.read(COUNTERS, 1024)).unwrap();
    let increments = u64::from(PROCESSES) * ROUNDS;
    for counter in bytes.chunks(8) {
        assert_eq!(word(counter), increments);
    }
    let sum = block_on(&fabric, fabric.read(SUM, 8)).unwrap();
    assert_eq!(word(&sum), 3 * increments);
}

/// Random verbs of one client against a model of the memory.
#[test]
fn random_batches_agree_with_a_model() {
    const BYTES: u64 = 4096;
    let cluster = Cluster::new(1);
    let fabric = cluster.fabric(1);
    fabric.reactor().spawn(fabric.clone().keep_alive());
    let base = GAddr::host(0, 1 << 16);
    let mut model = vec![0_u8; BYTES as usize];
    let mut rng = farbank_pm::rng::Rng::new(5);
    block_on(&fabric, async {
        for _ in 0..20_000 {
            let (mut verbs, mut expected) = (Vec::new(), Vec::new());
            for _ in 0..=rng.below(5) {
                let len = rng.below(200) as usize;
                let from = rng.below(BYTES - len as u64) as usize;
                let at = rng.below(BYTES / 8) as usize * 8;
                let before = word(&model[at..at + 8]);
                let (new, mask) = (rng.draw(), rng.draw() & rng.draw());
                match rng.below(5) {
                    0 | 1 => {
                        verbs.push(Verb::read(base.plus(from as u64), len));
                        expected.push((0, model[from..from + len].to_vec()));
                    }
                    2 => {
                        let bytes: Vec<u8> = (0..len).map(|_| rng.draw() as u8).collect();
                        model[from..from + len].copy_from_slice(&bytes);
                        verbs.push(Verb::write(base.plus(from as u64), bytes.clone()));
                        expected.push((0, bytes));
                    }
                    3 => {
                        let old = before ^ (rng.below(2) & mask);
                        if (old ^ before) & mask == 0 {
                            let word = (before & !mask) | (new & mask);
                            model[at..at + 8].copy_from_slice(&word.to_le_bytes());
                        }
                        verbs.push(Verb::masked_cas(base.plus(at as u64), old, new, mask));
                        expected.push((before, Vec::new()));
                    }
                    _ => {
                        let word = before.wrapping_add(new);
                        model[at..at + 8].copy_from_slice(&word.to_le_bytes());
                        verbs.push(Verb::add(base.plus(at as u64), new));
                        expected.push((before, Vec::new()));
                    }
                }
            }
            let done = fabric.batch(0, verbs).await.unwrap();
            for (verb, (found, bytes)) in done.into_iter().zip(expected) {
                assert_eq!(verb.found(), found);
                assert_eq!(verb.into_bytes(), bytes);
            }
        }
    });
}

/// The slot and the record of writes belong to the process, so its threads must not use them at the same time.
#[test]
fn batches_of_several_threads_of_a_process_do_not_interfere() {
    const THREADS: u64 = 3;
    let cluster = Cluster::new(2);
    let fabric = cluster.fabric(1);
    thread::scope(|scope| {
        for _ in 1..THREADS {
            let membership = fabric.membership();
            scope.spawn(move || {
                let reactor = Reactor::new(WaitMode::Block).unwrap();
                let fabric = ShmFabric::connect_thread(&reactor, &membership).unwrap();
                block_on(&fabric, increment(&fabric)).unwrap();
            });
        }
        block_on(&fabric, increment(&fabric)).unwrap();
    });
    block_on(&fabric, async {
        let counters = fabric.read(COUNTERS, 1024).await.unwrap();
        for counter in counters.chunks(8) {
            assert_eq!(word(counter), THREADS * ROUNDS);
        }
        let sum = fabric.read(SUM, 8).await.unwrap();
        assert_eq!(word(&sum), 3 * THREADS * ROUNDS);
    });
}
