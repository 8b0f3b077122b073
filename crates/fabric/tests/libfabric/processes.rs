//! Processes that are killed and paused while they write.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use farbank_fabric::libfabric::LibfabricFabric;
use farbank_fabric::tcp::{Reactor, WaitMode};
use farbank_fabric::{Fabric, GAddr};
use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::{Cluster, LEASES};
use crate::shared::{fence, settings_at};

/// Bytes of a write: the node of a tree with long keys, which is one atomic.
const NODE: usize = 12 << 10;
const WRITTEN: GAddr = GAddr::host(1, 1 << 20);
const ADDRESSES: &str = "FARBANK_TEST_ADDRESSES";

/// The process of the next tests. It writes on server 1 as compute server 1, until its epoch ends.
#[test]
fn child_that_writes() {
    let Ok(addresses) = std::env::var(ADDRESSES) else {
        return;
    };
    let addresses = addresses.split(',').map(|text| text.parse().unwrap());
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let settings = settings_at(addresses.collect(), 1);
    let fabric = LibfabricFabric::connect(&reactor, settings).unwrap();
    reactor.spawn(fabric.control().clone().keep_alive());
    for round in (1_u8..=u8::MAX).cycle() {
        // Two writes at a time, so that the socket is seldom empty.
        let (first, second) = (
            fabric.write(WRITTEN, vec![round; NODE]),
            fabric.write(WRITTEN, vec![round; NODE]),
        );
        let both = reactor.block_on(async { first.await.and(second.await) });
        if both.is_err() {
            return;
        }
    }
}

/// A child process that is killed when the test ends.
struct Writer(Child);

impl Writer {
    /// Starts the child, and waits until it writes.
    fn start(cluster: &Cluster, reactor: &Reactor, watcher: &LibfabricFabric) -> Writer {
        reactor
            .block_on(watcher.write(WRITTEN, vec![0; NODE]))
            .unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["processes::child_that_writes", "--exact", "--nocapture"])
            .env(ADDRESSES, cluster.addresses_text())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let writer = Writer(child.unwrap());
        while read(reactor, watcher)[0] == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        writer
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Fails if it has ended.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn read(reactor: &Reactor, fabric: &LibfabricFabric) -> Vec<u8> {
    reactor.block_on(fabric.read(WRITTEN, NODE)).unwrap()
}

fn watcher(cluster: &Cluster, reactor: &Reactor) -> LibfabricFabric {
    let watcher = cluster.fabric(reactor, 2);
    reactor.spawn(watcher.control().clone().keep_alive());
    assert!(watcher.whole_write_bytes_max() >= NODE);
    watcher
}

/// LIBFABRIC-3.
#[test]
fn a_process_that_is_killed_within_a_write_leaves_the_whole_or_nothing() {
    let cluster = Cluster::new(2);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let watcher = watcher(&cluster, &reactor);
    for kill in 0..20_u64 {
        let writer = Writer::start(&cluster, &reactor, &watcher);
        thread::sleep(Duration::from_micros(700 * kill));
        drop(writer);
        thread::sleep(Duration::from_millis(5));
        let bytes = read(&reactor, &watcher);
        let first = bytes[0];
        assert!(
            bytes.iter().all(|byte| *byte == first),
            "kill {kill} left a torn write"
        );
    }
}

/// FABRIC-4: what is left in sockets and queues of a paused process does not arrive after the end of its epoch.
#[test]
fn a_paused_process_makes_no_late_write() {
    let cluster = Cluster::new(2);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let watcher = watcher(&cluster, &reactor);
    // A fence and a join begin an epoch each.
    for epoch in [1, 3, 5, 7] {
        let mut writer = Writer::start(&cluster, &reactor, &watcher);
        writer.signal(Signal::STOP);
        reactor.block_on(fence(&watcher, 1, epoch));
        reactor
            .block_on(watcher.write(WRITTEN, vec![0; NODE]))
            .unwrap();
        writer.signal(Signal::CONT);
        assert!(
            writer.0.wait().unwrap().success(),
            "the writer ends with its epoch"
        );
        thread::sleep(LEASES.compute / 8);
        assert!(
            read(&reactor, &watcher) == vec![0; NODE],
            "a late write in epoch {epoch}"
        );
    }
}
