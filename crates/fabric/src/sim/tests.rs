use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::*;
use crate::GAddr;
use crate::service::LEASE_SERVER;

const MIB: u64 = 1 << 20;

fn cluster(seed: u64) -> SimCluster {
    SimCluster::new(2, 2, 4 * MIB, ClusterConstants::default(), seed)
}

/// Runs `client` on compute server 0 and returns its result.
fn run<T: 'static, F: Future<Output = T> + 'static>(sim: &SimCluster, client: F) -> T {
    let made = Rc::new(RefCell::new(None));
    let put = Rc::clone(&made);
    sim.spawn(0, async move { *put.borrow_mut() = Some(client.await) });
    sim.run(&mut |_| false);
    made.take().expect("the client has ended")
}

#[test]
fn a_read_returns_the_bytes_written_and_a_round_trip_takes_two_microseconds() {
    let sim = cluster(1);
    let node = sim.node(0);
    let (bytes, took) = run(&sim, async move {
        let at = GAddr::host(1, 4096);
        node.write(at, vec![7; 100]).await.unwrap();
        let before = node.now();
        let bytes = node.read(at, 100).await.unwrap();
        (bytes, node.now() - before)
    });
    assert_eq!(bytes, [7; 100]);
    assert!((1_800..2_500).contains(&took), "{took} ns");
}

#[test]
fn an_atomic_changes_only_the_bits_of_its_mask() {
    let sim = cluster(1);
    let node = sim.node(0);
    let at = GAddr::lock(1, 8);
    let found = run(&sim, async move {
        node.write(at, 0x1111_2222_u64.to_le_bytes().to_vec())
            .await
            .unwrap();
        let first = node.masked_cas(at, 0x2222, 0x3333, 0xffff).await.unwrap();
        let second = node.masked_cas(at, 0x2222, 0x4444, 0xffff).await.unwrap();
        let third = node.fetch_add(at, 1).await.unwrap();
        [first, second, third]
    });
    assert_eq!(found, [0x1111_2222, 0x1111_3333, 0x1111_3333]);
}

/// Reads a kilobyte while another client fills it with ones, many times. Returns the largest number of changes
/// between old and new in the lines of one read.
fn changes_of_age(in_order: bool) -> usize {
    let once = |seed| {
        let constants = ClusterConstants {
            read_line_order: in_order,
            ..ClusterConstants::default()
        };
        let sim = SimCluster::new(2, 2, 4 * MIB, constants, seed);
        let at = GAddr::host(0, 8192);
        let writer = sim.node(1);
        sim.spawn(1, async move {
            writer.write(at, vec![1; 1024]).await.unwrap();
        });
        let reader = sim.node(0);
        let bytes = run(&sim, async move {
            reader.sleep(seed).await;
            reader.read(at, 1024).await.unwrap()
        });
        let lines: Vec<u8> = bytes.chunks(64).map(|line| line[63]).collect();
        lines.windows(2).filter(|pair| pair[0] != pair[1]).count()
    };
    (0..200).map(once).max().unwrap()
}

#[test]
fn a_read_takes_its_lines_at_different_times_in_any_order() {
    assert!(changes_of_age(false) > 2);
}

#[test]
fn a_read_in_line_order_changes_between_old_and_new_at_most_once() {
    assert!(changes_of_age(true) <= 1);
}

#[test]
fn a_reader_that_sees_a_lock_released_sees_all_writes_before_the_release() {
    for seed in 0..200 {
        let sim = cluster(seed);
        let (lock, data) = (GAddr::lock(1, 0), GAddr::host(1, 4096));
        sim.poke(lock, &1_u64.to_le_bytes());
        let writer = sim.node(1);
        sim.spawn(1, async move {
            writer.sleep(seed * 13).await;
            let release = Verb::write(lock, vec![0; 8]);
            writer
                .batch(1, vec![Verb::write(data, vec![9; 1024]), release])
                .await
                .unwrap();
        });
        let reader = sim.node(0);
        let bytes = run(&sim, async move {
            while reader.cas(lock, 0, 1).await.unwrap() != 0 {}
            reader.read(data, 1024).await.unwrap()
        });
        assert_eq!(bytes, [9; 1024], "seed {seed}");
    }
}

/// Returns the duration of a read that reaches a memory server after 40 atomics of other threads on one word.
fn read_after_atomics(line: VerbOrder, reader: u16, atomics: u16) -> Nanos {
    let constants = ClusterConstants {
        verb_order: line,
        jitter_ns: 0,
        ..ClusterConstants::default()
    };
    let sim = SimCluster::new(3, 3, 4 * MIB, constants, 1);
    for _ in 0..40 {
        let node = sim.node(atomics);
        sim.spawn(atomics, async move {
            node.cas(GAddr::host(2, 4096), 0, 0).await.unwrap();
        });
    }
    let took = Rc::new(Cell::new(0));
    let (put, node) = (Rc::clone(&took), sim.node(reader));
    sim.spawn(reader, async move {
        node.sleep(1_000).await;
        let before = node.now();
        node.read(GAddr::host(2, 8192), 8).await.unwrap();
        put.set(node.now() - before);
    });
    sim.run(&mut |_| false);
    took.get()
}

#[test]
fn an_atomic_that_waits_for_its_bucket_delays_the_verbs_behind_it_in_its_queue() {
    let alone = 2_500;
    let behind = 40 * ClusterConstants::default().host_atomic_ns;
    for (line, same, other) in [
        (VerbOrder::Thread, false, false),
        (VerbOrder::Compute, true, false),
        (VerbOrder::Card, true, true),
    ] {
        for (reader, waits) in [(0, same), (1, other)] {
            let took = read_after_atomics(line, reader, 0);
            let due = if waits {
                behind - 1_000..behind + alone
            } else {
                1..alone
            };
            assert!(due.contains(&took), "{line:?}, server {reader}: {took} ns");
        }
    }
}

#[test]
fn a_crash_may_cut_a_batch_between_its_verbs() {
    let mut seen = [false; 3];
    for ns in 0..600 {
        let sim = cluster(1);
        let node = sim.node(0);
        sim.spawn(0, async move {
            let verbs = vec![
                Verb::write(GAddr::host(1, 4096), vec![1; 1024]),
                Verb::write(GAddr::host(1, 8192), vec![1; 1024]),
            ];
            let _ = node.batch(1, verbs).await;
        });
        let other = sim.node(1);
        let crashed = sim.clone();
        sim.spawn(1, async move {
            other.sleep(ns).await;
            crashed.crash_compute(0);
        });
        sim.run(&mut |_| false);
        let written = |at| {
            let mut bytes = [0; 1024];
            sim.peek(GAddr::host(1, at), &mut bytes);
            bytes[1023]
        };
        match (written(4096), written(8192)) {
            (0, 0) => seen[0] = true,
            (1, 0) => seen[1] = true,
            (1, 1) => seen[2] = true,
            other => panic!("{other:?}: the second write took effect and the first did not"),
        }
    }
    assert_eq!(seen, [true; 3]);
}

#[test]
fn a_compute_server_paused_beyond_its_lease_is_fenced_and_rejoins_in_a_new_epoch() {
    let sim = cluster(1);
    let lease_ns = ClusterConstants::default().lease_ns;
    let sleeper = sim.node(0);
    let refused = Rc::new(Cell::new(None));
    let result = Rc::clone(&refused);
    sim.spawn(0, async move {
        sleeper
            .call(LEASE_SERVER, ServiceRequest::Renew)
            .await
            .unwrap();
        sleeper.sleep(1).await;
        result.set(sleeper.write(GAddr::host(1, 4096), vec![1; 8]).await.err());
    });
    let node = sim.node(1);
    let pausing = sim.clone();
    sim.spawn(1, async move {
        node.sleep(5_000).await;
        pausing.pause_compute(0, 4 * lease_ns);
    });
    let node = sim.node(1);
    let verdicts = Rc::new(RefCell::new(Vec::new()));
    let told = Rc::clone(&verdicts);
    sim.spawn(1, async move {
        for wait in [10_000, 2 * lease_ns] {
            node.sleep(wait).await;
            let ask = ServiceRequest::CheckLease {
                compute: 0,
                epoch: 1,
            };
            let answer = node.call(LEASE_SERVER, ask).await.unwrap();
            told.borrow_mut().push(answer);
        }
    });
    sim.pause_compute(0, 0);
    sim.run(&mut |_| false);
    assert_eq!(
        *verdicts.borrow(),
        [ServiceResponse::Alive, ServiceResponse::Expired]
    );
    let mut bytes = [0; 8];
    sim.peek(GAddr::host(1, 4096), &mut bytes);
    assert_eq!(
        (refused.take(), bytes),
        (None, [1; 8]),
        "it had written before it was paused"
    );
    let node = sim.node(0);
    assert_eq!(node.epoch(), 2);
    assert!(
        run(&sim, async move {
            node.write(GAddr::host(1, 4096), vec![2; 8]).await
        })
        .is_ok()
    );
}

#[test]
fn a_dead_server_causes_a_timeout_and_an_emptied_one_refuses_old_connections() {
    let sim = cluster(1);
    sim.kill_server(1);
    let node = sim.node(0);
    let (error, took) = run(&sim, async move {
        let error = node.read(GAddr::host(1, 4096), 8).await.unwrap_err();
        (error, node.now())
    });
    assert_eq!(error, FabricError::Timeout { server: 1 });
    assert!(took <= ClusterConstants::default().lease_ns, "{took} ns");
    let node = sim.node(0);
    sim.poke(GAddr::host(1, 4096), &[7; 8]);
    sim.empty_server(1);
    let error = run(&sim, async move {
        node.read(GAddr::host(1, 4096), 8).await.unwrap_err()
    });
    assert_eq!(error, FabricError::Empty { server: 1 });
    let node = sim.node(0);
    let zeros = run(
        &sim,
        async move { node.read(GAddr::host(1, 4096), 8).await },
    );
    assert_eq!(zeros, Ok(vec![0; 8]));
}

#[test]
fn the_same_seed_gives_the_same_digest() {
    let digest = |seed| {
        let sim = cluster(seed);
        for client in 0..8 {
            let node = sim.node(client % 2);
            sim.spawn(client % 2, async move {
                for n in 0..50 {
                    let at = GAddr::host(n % 2, 4096 + u64::from(n % 7) * 512);
                    node.write(at, vec![client as u8; 512]).await.unwrap();
                    node.read(at, 1024).await.unwrap();
                }
            });
        }
        sim.run(&mut |_| false);
        sim.digest()
    };
    assert_eq!(digest(7), digest(7));
    assert_ne!(digest(7), digest(8));
}

/// Returns the times at which two clients of one server, on one thread or on two, have computed for `ns`.
fn two_that_work(ns: u64, together: bool) -> [u64; 2] {
    let sim = cluster(1);
    let threads = [sim.thread(0), sim.thread(0)];
    let ends = Rc::new(Cell::new([0; 2]));
    for n in 0..2 {
        let (node, ends) = (sim.node(0), Rc::clone(&ends));
        sim.spawn_on(threads[if together { 0 } else { n }], async move {
            node.work(ns).await;
            let mut all = ends.get();
            all[n] = node.now();
            ends.set(all);
        });
    }
    sim.run(&mut |_| false);
    ends.get()
}

#[test]
fn clients_of_one_thread_take_turns() {
    let apart = two_that_work(1_000, false);
    assert_eq!(apart[0], apart[1]);
    let together = two_that_work(1_000, true);
    assert_eq!(together[1], together[0] + 1_000);
}

#[test]
fn a_client_that_another_client_wakes_continues_after_wake_ns() {
    let sim = cluster(1);
    let (bell, heard) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(0)));
    let (node, put, hear) = (sim.node(0), Rc::clone(&bell), Rc::clone(&heard));
    sim.spawn(0, async move {
        let mut first = true;
        std::future::poll_fn(|context| {
            put.set(Some(context.waker().clone()));
            match std::mem::replace(&mut first, false) {
                true => Poll::Pending,
                false => Poll::Ready(()),
            }
        })
        .await;
        hear.set(node.now());
    });
    let rang = Rc::new(Cell::new(0));
    let (node, ring, when) = (sim.node(0), Rc::clone(&bell), Rc::clone(&rang));
    sim.spawn(0, async move {
        node.sleep(5_000).await;
        when.set(node.now());
        ring.take().expect("the other client waits").wake_by_ref();
    });
    sim.run(&mut |_| false);
    assert_eq!(
        heard.get() - rang.get(),
        ClusterConstants::default().wake_ns
    );
}
