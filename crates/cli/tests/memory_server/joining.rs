//! `farbank tree add-server`: a memory server joins a tree that clients use.

use std::thread;
use std::time::Duration;

use farbank_fabric::tcp::{Reactor, WaitMode};
use farbank_fabric::{Fabric, GAddr, ServiceRequest, ServiceResponse};
use farbank_tree::TreeSettings;
use rustix::process::Signal;

use super::tree::{TwoServers, Way, start};
use super::writers::{assert_written, keys_of, write_during};
use super::{MemoryServer, connect};

/// Keys that the writers put before the server joins.
const BEFORE: usize = 100;

impl TwoServers {
    /// Starts memory server `number` on a pool of its own.
    pub(super) fn start_next(&self, number: usize) -> MemoryServer {
        let lease_server = self.servers[0].address;
        start(
            self.folder.path(),
            number,
            "127.0.0.1:0",
            Some(lease_server),
        )
    }

    pub(super) fn add(&self, server: &MemoryServer) -> String {
        self.print("add-server", &[&server.address.to_string()])
    }
}

/// Returns the next chunk of memory server 2 as a number.
fn next_chunk(servers: &[&MemoryServer]) -> u64 {
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let fabric = connect(&reactor, servers);
    match reactor.block_on(fabric.call(2, ServiceRequest::Chunk)) {
        Ok(ServiceResponse::Chunk { at, bytes }) => at / bytes,
        other => panic!("{other:?}"),
    }
}

for_each_way!(clients_continue_while_a_server_joins_and_its_nodes_survive_a_kill => join_and_kill);

fn join_and_kill(way: Way) {
    let two = TwoServers::start(way);
    let cluster = two.cluster();
    cluster.create(&TreeSettings::default()).unwrap();
    let (idle, other) = (two.cluster(), two.cluster());
    assert_eq!(idle.get(b"absent").unwrap(), None);
    let clusters = [&cluster, &cluster, &other];
    let (third, counts) = write_during(clusters, BEFORE, || {
        let third = two.start_next(2);
        let printed = two.add(&third);
        let expected = format!("memory server 2 at {} is in use\n", third.address);
        assert_eq!(printed, expected);
        // By then every session knows that the server is in use.
        thread::sleep(Duration::from_millis(500));
        third
    });
    let all: usize = counts.iter().sum();
    for client in [&idle, &cluster, &other, &two.cluster()] {
        assert_eq!(keys_of(client), all);
        assert_eq!(client.info().unwrap().servers.len(), 3);
    }
    let stat = two.print("stat", &["--keys"]);
    assert!(
        stat.contains(&format!("memory server 2 at {}", third.address)),
        "{stat}"
    );
    // Chunks 0 and 1 are reserved. Splits have taken chunk 2.
    let servers = [&two.servers[0], &two.servers[1], &third];
    assert!(next_chunk(&servers) > 2);
    drop((idle, cluster, other));
    let address = third.address.to_string();
    assert_eq!(third.end(Signal::KILL), None);
    let lease_server = Some(two.servers[0].address);
    let _again = start(two.folder.path(), 2, &address, lease_server);
    let after = two.cluster();
    assert_written(&after, &counts);
}

#[test]
fn an_addition_that_was_killed_is_continued() {
    let two = TwoServers::start(Way::Tcp);
    two.print("create", &[]);
    two.print("put", &["key", "value"]);
    let (third, fourth) = (two.start_next(2), two.start_next(3));
    let mut adding = two.command("add-server");
    let mut adding = adding.arg(third.address.to_string()).spawn().unwrap();
    while !two.print("stat", &[]).contains("memory server 2 at") {
        assert_eq!(
            adding.try_wait().unwrap(),
            None,
            "it waits for three leases"
        );
    }
    adding.kill().unwrap();
    adding.wait().unwrap();
    let fourth_address = fourth.address.to_string();
    let text = "another memory server is joining as number 2: add that one again first";
    two.fail("add-server", &[&fourth_address], 1, text);
    assert!(two.add(&third).starts_with("memory server 2"));
    assert!(two.add(&fourth).starts_with("memory server 3"));
    assert!(
        two.add(&fourth).starts_with("memory server 3"),
        "it is in use already"
    );
    two.fail(
        "add-server",
        &[&third.address.to_string()],
        1,
        "memory server 2 of the tree already",
    );
    assert_eq!(two.print("get", &["key"]), "value\n");
}

#[test]
fn servers_that_cannot_join_are_refused_and_the_tree_stays_as_it_is() {
    let two = TwoServers::start(Way::Tcp);
    let third = two.start_next(2);
    let address = third.address.to_string();
    two.fail("add-server", &[&address], 1, "there is no tree");
    two.print("create", &[]);
    two.fail("add-server", &["shm:/memory"], 1, "joins by its IP:PORT");
    let own = two.servers[1].address.to_string();
    two.fail(
        "add-server",
        &[&own],
        1,
        "memory server 1 of the tree already",
    );
    let wrong = two.start_next(3);
    two.fail(
        "add-server",
        &[&wrong.address.to_string()],
        1,
        "has another number",
    );
    occupy(&[&two.servers[0], &two.servers[1], &third]);
    two.fail("add-server", &[&address], 1, "data of another structure");
    drop((third, wrong));
    two.fail(
        "add-server",
        &[&address, "--timeout-ms", "300"],
        1,
        "Connection refused",
    );
    let stat = two.print("stat", &["--keys"]);
    assert!(
        !stat.contains("memory server 2") && stat.contains("0 keys"),
        "{stat}"
    );
}

/// Writes data into memory server 2.
fn occupy(servers: &[&MemoryServer]) {
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let fabric = connect(&reactor, servers);
    let write = fabric.write(GAddr::host(2, 8), vec![1; 8]);
    reactor.block_on(write).unwrap();
}
