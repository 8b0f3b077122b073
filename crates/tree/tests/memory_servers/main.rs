//! The tree over TCP and over shared memory: two memory servers, and two compute servers with threads and several clients each.

mod threads;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use farbank_fabric::server::{LeaseSettings, MemoryNode, MemorySettings, WordMemory};
use farbank_fabric::shm::{ServerAddress, ShmFabric, ShmSettings};
use farbank_fabric::tcp::{Reactor, SharedKey, TcpServer, TcpServerSettings, WaitMode};
use farbank_fabric::{Fabric, GAddr, ServiceRequest};
use farbank_pm::media::{AnyMedium, Mapped, OpenOptions, create_path};
use farbank_pm::rng::Rng;
use farbank_tree::{
    Client, Cluster, ClusterError, ClusterSettings, Compute, Config, FillTarget, NodeFormat,
    NodeLayout, TreeError, TreeSettings, create,
};
use tempfile::TempDir;
use threads::on_threads;

const SERVERS: u16 = 2;
const COMPUTES: u16 = 2;
const CLIENTS: u64 = 6;

/// Returns Sherman with nodes of 256 bytes, so that splits and merges are frequent.
fn config(layout: NodeLayout) -> Config {
    Config {
        layout: NodeLayout {
            node_bytes: 256,
            ..layout
        },
        entries_alone: !layout.checked,
        doubt_ns: 50_000_000,
        ..Config::sherman()
    }
}

/// Returns the layout for networks whose reads may take longer than the version window: checksums in place of versions.
fn checked() -> NodeLayout {
    NodeLayout {
        checked: true,
        ..NodeLayout::new(NodeFormat::Paper)
    }
}

fn key() -> SharedKey {
    SharedKey::new(*b"a key for tests only").unwrap()
}

/// How compute servers reach the memory servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Transport {
    Tcp,
    Shm,
}

const TRANSPORTS: [Transport; 2] = [Transport::Tcp, Transport::Shm];

/// The memory servers of a test. Their drop ends them.
struct Servers {
    _running: Vec<TcpServer>,
    addresses: Vec<ServerAddress>,
    /// The folder of the memories.
    _folder: TempDir,
}

fn start_servers(transport: Transport) -> Servers {
    const BYTES: u64 = 32 << 20;
    let folder = tempfile::tempdir().unwrap();
    let (mut running, mut addresses) = (Vec::<TcpServer>::new(), Vec::new());
    for server in 0..SERVERS {
        let path = folder.path().join(format!("memory{server}"));
        let medium = match transport {
            Transport::Tcp => Mapped::anonymous(BYTES).unwrap(),
            Transport::Shm => {
                let options = OpenOptions {
                    page_cache: true,
                    ..OpenOptions::default()
                };
                let made = create_path(&path, BYTES, &options, &mut |_, _| {});
                let AnyMedium::Mapped(medium) = made.unwrap() else {
                    panic!("the file can be mapped")
                };
                medium
            }
        };
        let memory = WordMemory::open(medium, MemorySettings::new(server), 1).unwrap();
        let leases = LeaseSettings {
            compute: Duration::from_secs(1),
            member: Duration::from_millis(500),
        };
        let node = MemoryNode::new(memory, leases);
        let node = match transport {
            Transport::Tcp => node,
            Transport::Shm => node.shared_at(&path),
        };
        let settings = TcpServerSettings {
            lease_server: running.first().map(TcpServer::address),
            ..TcpServerSettings::new(key())
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let started = TcpServer::start(listener, Arc::new(node), settings).unwrap();
        addresses.push(match transport {
            Transport::Tcp => ServerAddress::Tcp(started.address()),
            Transport::Shm => ServerAddress::Shm(path),
        });
        running.push(started);
    }
    Servers {
        _running: running,
        addresses,
        _folder: folder,
    }
}

fn settings(servers: Vec<ServerAddress>, compute: u16) -> ShmSettings {
    ShmSettings {
        servers,
        compute: Some(compute),
        key: key(),
        timeout: Duration::from_secs(20),
    }
}

fn connect(reactor: &Reactor, servers: &Servers, compute: u16) -> ShmFabric {
    ShmFabric::connect(reactor, settings(servers.addresses.clone(), compute)).unwrap()
}

/// Writes the nodes of a new tree through a fabric.
struct RemoteFill<'a>(&'a ShmFabric);

impl FillTarget for RemoteFill<'_> {
    fn put(&mut self, at: GAddr, bytes: &[u8]) {
        let write = self.0.write(at, bytes.to_vec());
        self.0.reactor().block_on(write).unwrap();
    }

    fn taken(&mut self, server: u16, at: u64) {
        let reserve = self.0.call(server, ServiceRequest::Reserve { to: at });
        self.0.reactor().block_on(reserve).unwrap();
    }
}

fn compute_of(fabric: &ShmFabric, config: Config) -> Compute<ShmFabric> {
    Compute::new(fabric.clone(), fabric.compute(), fabric.epoch(), config)
}

/// Inserts, reads, removes and scans keys that only this client writes, against a model. Returns the model.
async fn work(
    client: Client<ShmFabric>,
    (number, all): (u64, u64),
    rounds: u64,
) -> Result<BTreeMap<u64, u64>, TreeError> {
    let mut rng = Rng::new(number);
    let mut mine = BTreeMap::new();
    for n in 1..=rounds {
        let key = rng.below(80) * all + number;
        match rng.below(8) {
            0 | 1 => {
                let old = client.remove(key).await?;
                assert_eq!(old, mine.remove(&key), "key {key} removed");
            }
            2 | 3 => {
                let found = client.get(key).await?;
                assert_eq!(found, mine.get(&key).copied(), "key {key} read");
            }
            4 if n % 4 == 0 => {
                let range = client.range(key, 40).await?;
                let found: Vec<_> = range
                    .iter()
                    .map(|(key, value)| (key.first(), *value))
                    .filter(|(key, _)| key % all == number)
                    .collect();
                let expected = mine.range(key..).map(|(key, value)| (*key, *value));
                let expected: Vec<_> = expected.take(found.len()).collect();
                assert_eq!(found, expected, "range from key {key}");
            }
            _ => {
                let old = client.insert(key, n).await?;
                assert_eq!(old, mine.insert(key, n), "key {key} replaced");
            }
        }
    }
    Ok(mine)
}

#[test]
fn clients_of_two_processes_agree_with_a_model_with_checksums() {
    for transport in TRANSPORTS {
        agree_with_a_model(transport, config(checked()), 1, 300);
    }
}

#[test]
fn clients_of_two_processes_agree_with_a_model_with_versions() {
    let config = config(NodeLayout::new(NodeFormat::Safe));
    agree_with_a_model(Transport::Tcp, config, 1, 100);
}

fn agree_with_a_model(transport: Transport, config: Config, threads: usize, rounds: u64) {
    let servers = start_servers(transport);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let creator = connect(&reactor, &servers, 9);
    create(&config, SERVERS, &mut RemoteFill(&creator));
    let all = Mutex::new(BTreeMap::new());
    let together = Barrier::new(usize::from(COMPUTES) * threads);
    thread::scope(|scope| {
        for compute in 0..COMPUTES {
            let (all, together, servers) = (&all, &together, &servers);
            scope.spawn(move || {
                on_threads(
                    servers,
                    compute,
                    config,
                    threads,
                    |thread, reactor, tree| {
                        together.wait();
                        let first = (usize::from(compute) * threads + thread) as u64 * CLIENTS;
                        let count = u64::from(COMPUTES) * threads as u64 * CLIENTS;
                        let clients: Vec<_> = (first..first + CLIENTS)
                            .map(|number| {
                                reactor.spawn(work(tree.client(), (number, count), rounds))
                            })
                            .collect();
                        reactor.block_on(async {
                            for client in clients {
                                let mut mine = client.await.unwrap();
                                all.lock().unwrap().append(&mut mine);
                            }
                        });
                    },
                );
            });
        }
    });
    let expected: Vec<(u64, u64)> = all.into_inner().unwrap().into_iter().collect();
    assert!(expected.len() > 100, "{}", expected.len());
    let client = compute_of(&creator, config).client();
    let range = reactor.block_on(client.range(0, usize::MAX >> 1)).unwrap();
    let found: Vec<_> = range
        .into_iter()
        .map(|(key, value)| (key.first(), value))
        .collect();
    assert_eq!(found, expected);
}

/// A compute server that disappears while it holds a lock is fenced, and its lock is taken.
#[test]
fn the_lock_of_a_dead_compute_server_is_taken_over() {
    TRANSPORTS.into_iter().for_each(take_over_locks);
}

fn take_over_locks(transport: Transport) {
    let config = config(checked());
    let servers = start_servers(transport);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let creator = connect(&reactor, &servers, 9);
    create(&config, SERVERS, &mut RemoteFill(&creator));
    let dead = connect(&reactor, &servers, 1);
    // Every lock of both servers, in the format of the tree: the number plus one, and 6 bits of the epoch.
    let owner = (2_u16 << 6 | u16::from(dead.epoch())).to_le_bytes();
    reactor.block_on(async {
        for server in 0..SERVERS {
            let bytes = dead.caps(server).lock_bytes as usize;
            let locks = owner.repeat(bytes / 2);
            dead.write(GAddr::lock(server, 0), locks).await.unwrap();
        }
    });
    drop(dead);
    let fabric = connect(&reactor, &servers, 0);
    reactor.spawn(fabric.clone().keep_alive());
    let client = compute_of(&fabric, config).client();
    reactor.block_on(async {
        assert_eq!(client.insert(5, 50).await, Ok(None));
        assert_eq!(client.get(5).await, Ok(Some(50)));
    });
    let taken_over = client.take_op().taken_over;
    assert!(taken_over > 0, "no lock was taken over");
}

#[test]
fn memory_servers_with_data_of_another_structure_are_not_used() {
    TRANSPORTS.into_iter().for_each(refuse_other_data);
}

fn refuse_other_data(transport: Transport) {
    let servers = start_servers(transport);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let creator = connect(&reactor, &servers, 9);
    // A tree without the descriptor that a cluster's tree has.
    create(&config(checked()), SERVERS, &mut RemoteFill(&creator));
    let cluster = Cluster::connect(ClusterSettings::new(servers.addresses.clone(), key())).unwrap();
    let created = cluster.create(&TreeSettings::default());
    assert!(
        matches!(created, Err(ClusterError::Occupied)),
        "{created:?}"
    );
    let read = cluster.get(b"key");
    assert!(matches!(read, Err(ClusterError::Occupied)), "{read:?}");
}

/// Several blocks and chunks that a client leaves are used by two later clients, each by one of them.
#[test]
fn memory_that_a_client_leaves_is_used_once() {
    TRANSPORTS.into_iter().for_each(leave_memory);
}

fn leave_memory(transport: Transport) {
    const KEYS: usize = 60;
    let servers = start_servers(transport);
    let connect =
        || Cluster::connect(ClusterSettings::new(servers.addresses.clone(), key())).unwrap();
    let value = |key: &str| key.as_bytes().repeat(1 + key.len() * 7);
    let keys = |name: &'static str| (0..KEYS).map(move |n| format!("{name} {n:03}"));
    let first = connect();
    first.create(&TreeSettings::default()).unwrap();
    for key in keys("first") {
        first.put(key.as_bytes(), &value(&key)).unwrap();
    }
    for key in keys("first").skip(KEYS / 4) {
        assert!(first.delete(key.as_bytes()).unwrap());
    }
    drop(first);
    let (second, third) = (connect(), connect());
    thread::scope(|scope| {
        for (name, cluster) in [("other", &second), ("third", &third)] {
            scope.spawn(move || {
                for key in keys(name) {
                    cluster.put(key.as_bytes(), &value(&key)).unwrap();
                }
            });
        }
    });
    let kept = keys("first").take(KEYS / 4);
    for key in kept.chain(keys("other")).chain(keys("third")) {
        let found = second.get(key.as_bytes()).unwrap();
        assert!(found == Some(value(&key)), "{key} has another value");
    }
}

/// Returns a tree with large nodes, so that a process is often within the write of one.
fn large_nodes() -> Config {
    Config {
        layout: NodeLayout {
            node_bytes: 64 << 10,
            ..checked()
        },
        ..config(checked())
    }
}

/// The process of the next test. It writes one leaf until it is killed.
#[test]
fn child_that_inserts() {
    let Ok(servers) = std::env::var("FARBANK_TEST_SERVERS") else {
        return;
    };
    let servers = servers.split(',').map(|server| server.parse().unwrap());
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let fabric = ShmFabric::connect(&reactor, settings(servers.collect(), 1)).unwrap();
    reactor.spawn(fabric.clone().keep_alive());
    let client = compute_of(&fabric, large_nodes()).client();
    reactor.block_on(async {
        for value in 2.. {
            client.insert(5, value).await.unwrap();
        }
    });
}

/// A node that a process leaves half written is whole for a client that only reads, after the lease of the process.
#[test]
fn a_reader_gets_past_a_write_that_a_kill_has_interrupted() {
    const KILLS: u32 = 8;
    let servers = start_servers(Transport::Shm);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let reader = connect(&reactor, &servers, 9);
    reactor.spawn(reader.clone().keep_alive());
    create(&large_nodes(), SERVERS, &mut RemoteFill(&reader));
    let client = compute_of(&reader, large_nodes()).client();
    let get = || reactor.block_on(client.get(5)).unwrap();
    let names: Vec<_> = servers.addresses.iter().map(ToString::to_string).collect();
    let (mut last, mut waits) = (0, 0);
    for kill in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child_that_inserts", "--exact"])
            .env("FARBANK_TEST_SERVERS", names.join(","))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // The child has begun when the value changes.
        let deadline = Instant::now() + Duration::from_secs(20);
        while get().is_none_or(|value| value == last) {
            assert!(Instant::now() < deadline, "the child does not write");
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_micros(u64::from(kill) * 97));
        child.kill().unwrap();
        child.wait().unwrap();
        let began = Instant::now();
        last = get().unwrap();
        let took = began.elapsed();
        assert!(took < Duration::from_secs(10), "{took:?}");
        waits += u32::from(took > Duration::from_millis(100));
    }
    println!("{waits} of {KILLS} kills left a torn node");
}
