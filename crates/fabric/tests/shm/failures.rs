//! Processes that die, stop and are fenced, and servers that end.

use std::fs::OpenOptions;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::time::{Duration, Instant};

use farbank_fabric::shm::ShmFabric;
use farbank_fabric::{Fabric, FabricError, GAddr, ServiceRequest, Verb};
use rustix::process::{Pid, Signal, kill_process};

use crate::block_on;
use crate::cluster::{Cluster, LEASES, child_fabric};
use crate::shared;

/// See [`shared::fence`].
fn fence(fabric: &ShmFabric, compute: u16, epoch: u8) -> Duration {
    block_on(fabric, shared::fence(fabric, compute, epoch))
}

/// FABRIC-4.
#[test]
fn a_fenced_process_neither_reads_nor_writes_and_joins_again() {
    let cluster = Cluster::new(2);
    let (dead, alive) = (cluster.fabric(1), cluster.fabric(2));
    alive.reactor().spawn(alive.clone().keep_alive());
    for server in 0..2 {
        let at = GAddr::host(server, 4096);
        block_on(&dead, dead.write(at, vec![1; 8])).unwrap();
    }
    fence(&alive, 1, dead.epoch());
    let at = GAddr::host(1, 4096);
    assert_eq!(block_on(&dead, dead.read(at, 8)), Err(FabricError::Fenced));
    let refused = block_on(&dead, dead.write(at, vec![2; 8]));
    assert_eq!(refused, Err(FabricError::Fenced));
    let refused = block_on(&dead, dead.call(1, ServiceRequest::Chunk));
    assert_eq!(refused, Err(FabricError::Fenced));
    let again = cluster.fabric(1);
    assert!(again.epoch() > dead.epoch());
    // The end of the former owner does not disturb the next.
    drop(dead);
    block_on(&again, again.write(at, vec![3; 100])).unwrap();
    assert_eq!(block_on(&alive, alive.read(at, 100)), Ok(vec![3; 100]));
}

/// Bytes of a write that takes so long that a process is nearly always within it.
const LONG: usize = 1 << 19;
const WRITTEN: GAddr = GAddr::host(1, 1 << 20);
const STARTED: GAddr = GAddr::host(0, 8192);

/// The process of the next tests. It writes on server 1.
#[test]
fn child_that_writes_long() {
    let Some(first) = child_fabric() else {
        return;
    };
    first.reactor().spawn(first.clone().keep_alive());
    // Every second process writes in the slot of another thread.
    let fabric = match first.epoch() % 2 {
        0 => first.clone(),
        _ => ShmFabric::connect_thread(first.reactor(), &first.membership()).unwrap(),
    };
    let written = block_on(&fabric, async {
        let started = u64::from(fabric.epoch()).to_le_bytes().to_vec();
        fabric.write(STARTED, started).await?;
        for round in 0_u8.. {
            fabric.write(WRITTEN, vec![round; LONG]).await?;
            if round == u8::MAX {
                break;
            }
        }
        for round in (0_u8..=u8::MAX).cycle() {
            fabric.write(WRITTEN, vec![round; LONG]).await?;
        }
        Ok(())
    });
    assert_eq!(written, Err(FabricError::Fenced));
}

/// Starts a writing child as compute server 1. Returns it with its epoch when it writes.
fn start_writer(cluster: &Cluster, watcher: &ShmFabric) -> (Child, u8) {
    block_on(watcher, watcher.write(STARTED, vec![0; 8])).unwrap();
    let child = cluster.spawn("failures::child_that_writes_long", 1);
    let epoch = block_on(watcher, async {
        loop {
            let started = watcher.read(STARTED, 8).await.unwrap();
            if started[0] != 0 {
                return started[0];
            }
            watcher.sleep(1_000_000).await;
        }
    });
    std::thread::sleep(Duration::from_millis(20));
    (child, epoch)
}

fn is_whole(fabric: &ShmFabric) -> bool {
    let bytes = block_on(fabric, fabric.read(WRITTEN, LONG)).unwrap();
    bytes.iter().all(|byte| *byte == bytes[0])
}

#[test]
fn a_write_of_a_killed_process_is_completed_before_its_epoch_has_ended_for_others() {
    let cluster = Cluster::new(2);
    let watcher = cluster.fabric(2);
    watcher.reactor().spawn(watcher.clone().keep_alive());
    let mut torn = 0;
    for _ in 0..6 {
        let (mut child, epoch) = start_writer(&cluster, &watcher);
        child.kill().unwrap();
        child.wait().unwrap();
        torn += u32::from(!is_whole(&watcher));
        fence(&watcher, 1, epoch);
        assert!(is_whole(&watcher), "a torn write after the fence");
    }
    println!("{torn} of 6 kills left a torn write");
    let left = std::fs::read_dir(cluster.folder.path()).unwrap();
    // Two memories, the record of the watcher, and those of the last process.
    assert!(left.count() <= 5, "files of killed processes are left");
}

#[test]
fn a_process_that_is_stopped_within_a_batch_is_killed_when_its_lease_has_expired() {
    let cluster = Cluster::new(2);
    let watcher = cluster.fabric(2);
    watcher.reactor().spawn(watcher.clone().keep_alive());
    let mut killed = 0;
    for _ in 0..4 {
        let (mut child, epoch) = start_writer(&cluster, &watcher);
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::STOP).unwrap();
        let took = fence(&watcher, 1, epoch);
        assert!(took < LEASES.compute * 20, "{took:?}");
        let fill = block_on(&watcher, watcher.write(WRITTEN, vec![77; LONG]));
        fill.unwrap();
        // Fails if it was killed.
        let _ = kill_process(pid, Signal::CONT);
        let status = child.wait().unwrap();
        // A child that was stopped between two batches ends with the error that it expects.
        assert!(status.success() || status.signal() == Some(9), "{status:?}");
        killed += u32::from(status.signal() == Some(9));
        let bytes = block_on(&watcher, watcher.read(WRITTEN, LONG)).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 77), "a late write");
    }
    println!("{killed} of 4 stopped processes were killed");
}

#[test]
fn a_server_that_ends_is_noticed_and_its_successor_has_another_generation() {
    let mut cluster = Cluster::new(2);
    let fabric = cluster.fabric(1);
    let at = GAddr::host(1, 4096);
    block_on(&fabric, fabric.write(at, vec![5; 64])).unwrap();
    cluster.stop(1);
    cluster.start(1);
    let gone = block_on(&fabric, async {
        loop {
            match fabric.read(at, 64).await {
                Ok(_) | Err(FabricError::Timeout { server: 1 }) => fabric.sleep(1_000_000).await,
                other => return other,
            }
        }
    });
    assert_eq!(gone, Err(FabricError::Empty { server: 1 }));
    // Server 0 has its generation.
    assert!(block_on(&fabric, fabric.read(GAddr::host(0, 4096), 8)).is_ok());
    let again = cluster.fabric(2);
    assert_eq!(block_on(&again, again.read(at, 64)), Ok(vec![5; 64]));
}

#[test]
fn a_batch_to_a_server_that_has_ended_fails_in_time() {
    let mut cluster = Cluster::new(2);
    let reactor = farbank_fabric::tcp::Reactor::new(Default::default()).unwrap();
    let settings = farbank_fabric::shm::ShmSettings {
        timeout: Duration::from_millis(300),
        ..cluster.settings(1)
    };
    let fabric = ShmFabric::connect(&reactor, settings).unwrap();
    cluster.stop(1);
    let started = Instant::now();
    let verbs = vec![Verb::write(GAddr::host(1, 4096), vec![1; 8])];
    let ended = block_on(&fabric, fabric.batch(1, verbs));
    assert_eq!(ended, Err(FabricError::Timeout { server: 1 }));
    assert!(started.elapsed() < Duration::from_secs(3));
}

#[test]
fn a_truncated_file_is_an_error_and_no_signal() {
    for truncated in 0..2 {
        let cluster = Cluster::new(2);
        let fabric = cluster.fabric(1);
        let at = GAddr::host(1, 3 << 20);
        block_on(&fabric, fabric.write(at, vec![1; 64])).unwrap();
        let file = OpenOptions::new().write(true).open(cluster.path(truncated));
        file.unwrap().set_len(8192).unwrap();
        let expected = FabricError::Damaged { server: truncated };
        for _ in 0..3 {
            let read = block_on(&fabric, fabric.read(at, 64));
            assert_eq!(read, Err(expected), "server {truncated}");
            let written = block_on(&fabric, fabric.write(at, vec![2; 64]));
            assert_eq!(written, Err(expected), "server {truncated}");
        }
    }
}
