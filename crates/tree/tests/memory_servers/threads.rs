//! Threads of one compute server, which share its epoch, its index cache and its local locks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Barrier;
use std::thread;

use farbank_fabric::shm::ShmFabric;
use farbank_fabric::tcp::{Reactor, WaitMode};
use farbank_fabric::{Fabric, FabricError, ServiceRequest};
use farbank_tree::{
    CasOutcome, Client, Cluster, ClusterSettings, Compute, Config, TreeError, TreeSettings, create,
};

use crate::{
    COMPUTES, RemoteFill, SERVERS, Servers, TRANSPORTS, Transport, agree_with_a_model, checked,
    compute_of, config, connect, key, start_servers,
};

/// Calls `work` on `threads` threads of compute server `compute`, with the number of the thread. Returns the results.
pub(crate) fn on_threads<T: Send>(
    servers: &Servers,
    compute: u16,
    config: Config,
    threads: usize,
    work: impl Fn(usize, &Reactor, &Compute<ShmFabric>) -> T + Sync,
) -> Vec<T> {
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let fabric = connect(&reactor, servers, compute);
    reactor.spawn(fabric.clone().keep_alive());
    let first = compute_of(&fabric, config);
    thread::scope(|scope| {
        let others = (1..threads).map(|number| {
            let (membership, shared) = (fabric.membership(), first.shared());
            let work = &work;
            scope.spawn(move || {
                let reactor = Reactor::new(WaitMode::Block).unwrap();
                let fabric = ShmFabric::connect_thread(&reactor, &membership).unwrap();
                work(number, &reactor, &Compute::on_thread(fabric, &shared))
            })
        });
        let others: Vec<_> = others.collect();
        let mut all = vec![work(0, &reactor, &first)];
        // Renews the lease for the others.
        while others.iter().any(|other| !other.is_finished()) {
            reactor.block_on(fabric.sleep(1_000_000));
        }
        all.extend(others.into_iter().map(|other| other.join().unwrap()));
        all
    })
}

/// A write: its key, the value that it stored, and the one that it replaced.
type Write = (u64, u64, Option<u64>);

/// Writes unique values to a few keys. Returns the writes, and the number of locks that were handed over.
async fn write_unique(
    client: Client<ShmFabric>,
    number: u64,
    rounds: u64,
) -> Result<(Vec<Write>, u64), TreeError> {
    const KEYS: u64 = 3;
    let (mut writes, mut handed_over) = (Vec::new(), 0);
    for round in 0..rounds {
        let (key, value) = (round % KEYS, number * rounds + round + 1);
        let old = client.insert(key, value).await?;
        handed_over += u64::from(client.take_op().handed_over);
        writes.push((key, value, old));
    }
    Ok((writes, handed_over))
}

/// Each value is replaced once, except for the last: so no write is lost, and none takes effect twice.
#[test]
fn writes_of_all_threads_form_one_chain_for_each_key() {
    const THREADS: usize = 3;
    for (transport, rounds) in [(Transport::Tcp, 150), (Transport::Shm, 6_000)] {
        let servers = start_servers(transport);
        let reactor = Reactor::new(WaitMode::Block).unwrap();
        let creator = connect(&reactor, &servers, 9);
        let config = config(checked());
        create(&config, SERVERS, &mut RemoteFill(&creator));
        let results = on_threads(&servers, 1, config, THREADS, |thread, reactor, compute| {
            let clients: Vec<_> = (0..2)
                .map(|n| {
                    let number = (thread * 2 + n) as u64;
                    reactor.spawn(write_unique(compute.client(), number, rounds))
                })
                .collect();
            let all = clients.into_iter().map(|client| reactor.block_on(client));
            all.collect::<Result<Vec<_>, _>>().unwrap()
        });
        let mut handed_over = 0;
        let mut chains: BTreeMap<u64, (BTreeSet<_>, BTreeSet<_>)> = BTreeMap::new();
        for (writes, handed) in results.into_iter().flatten() {
            handed_over += handed;
            for (key, value, old) in writes {
                let (stored, replaced) = chains.entry(key).or_default();
                assert!(stored.insert(Some(value)) && replaced.insert(old));
            }
        }
        let client = compute_of(&creator, config).client();
        for (key, (mut stored, mut replaced)) in chains {
            let last = reactor.block_on(client.get(key)).unwrap();
            assert!(replaced.insert(last), "the last value was replaced");
            stored.insert(None);
            assert_eq!(stored, replaced, "key {key}");
        }
        assert!(handed_over > 0 || transport == Transport::Shm);
    }
}

#[test]
fn clients_of_two_compute_servers_of_two_threads_agree_with_a_model() {
    for transport in TRANSPORTS {
        agree_with_a_model(transport, config(checked()), 2, 200);
    }
}

#[test]
fn a_thread_finds_the_nodes_that_another_has_cached() {
    for transport in TRANSPORTS {
        let servers = start_servers(transport);
        let reactor = Reactor::new(WaitMode::Block).unwrap();
        let creator = connect(&reactor, &servers, 9);
        let config = config(checked());
        create(&config, SERVERS, &mut RemoteFill(&creator));
        let is_cached = Barrier::new(2);
        on_threads(&servers, 1, config, 2, |thread, reactor, compute| {
            let client = compute.client();
            match thread {
                0 => {
                    reactor.block_on(async {
                        // Values are not 0.
                        for key in 0..200 {
                            client.insert(key, key + 1).await.unwrap();
                        }
                        for key in 0..200 {
                            client.get(key).await.unwrap();
                        }
                    });
                    is_cached.wait();
                }
                _ => {
                    is_cached.wait();
                    reactor.block_on(async {
                        for key in 0..200 {
                            assert_eq!(client.get(key).await.unwrap(), Some(key + 1));
                            let op = client.take_op();
                            assert!(op.cache_hit && op.round_trips == 1, "key {key}");
                        }
                    });
                }
            }
        });
    }
}

/// A lock that one thread has taken is in the name of all, so it is taken over only when all are fenced.
#[test]
fn a_compute_server_without_a_lease_is_fenced_on_all_its_threads() {
    for transport in TRANSPORTS {
        let servers = start_servers(transport);
        let reactor = Reactor::new(WaitMode::Block).unwrap();
        let alive = connect(&reactor, &servers, COMPUTES + 7);
        reactor.spawn(alive.clone().keep_alive());
        let config = config(checked());
        create(&config, SERVERS, &mut RemoteFill(&alive));
        let first = connect(&reactor, &servers, 1);
        let second = ShmFabric::connect_thread(&reactor, &first.membership()).unwrap();
        let compute = compute_of(&first, config);
        let other = Compute::on_thread(second.clone(), &compute.shared());
        let clients = [compute.client(), other.client()];
        reactor.block_on(async {
            for (key, client) in (0..).zip(&clients) {
                client.insert(key, 1).await.unwrap();
            }
            let (compute, epoch) = (first.compute(), first.epoch());
            let check = ServiceRequest::CheckLease { compute, epoch };
            while alive.call(0, check).await.unwrap() != farbank_fabric::ServiceResponse::Expired {
                alive.sleep(20_000_000).await;
            }
            for (key, client) in (0..).zip(&clients) {
                let refused = client.insert(key, 2).await;
                assert_eq!(refused, Err(TreeError::Fabric(FabricError::Fenced)));
            }
            let again = compute_of(&alive, config).client();
            for key in 0..2 {
                assert_eq!(again.get(key).await, Ok(Some(1)));
                again.insert(key, 3).await.unwrap();
            }
        });
    }
}

/// Increments by compare-and-swap of the threads of a program, which run on three threads of the cluster.
#[test]
fn a_cluster_of_several_threads_loses_no_update_and_leaves_its_epoch() {
    const KEYS: u64 = 5;
    const CALLERS: u64 = 6;
    const ROUNDS: u64 = 60;
    for transport in TRANSPORTS {
        let servers = start_servers(transport);
        let connect = |threads| {
            let settings = ClusterSettings::new(servers.addresses.clone(), key());
            Cluster::connect(ClusterSettings {
                threads,
                ..settings
            })
            .unwrap()
        };
        let cluster = connect(3);
        cluster.create(&TreeSettings::default()).unwrap();
        thread::scope(|scope| {
            for caller in 0..CALLERS {
                let cluster = &cluster;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        increment(cluster, &((caller + round) % KEYS).to_le_bytes());
                    }
                });
            }
        });
        let counted = |cluster: &Cluster| {
            let found = cluster
                .scan(Bound::Unbounded, Bound::Unbounded, 99)
                .unwrap();
            assert_eq!(found.len() as u64, KEYS);
            let count = |(_, value): &(Vec<u8>, Vec<u8>)| count_of(value);
            found.iter().map(count).sum::<u64>()
        };
        assert_eq!(counted(&cluster), CALLERS * ROUNDS);
        let (compute, epoch) = {
            let info = cluster.info().unwrap();
            (info.compute, info.epoch)
        };
        drop(cluster);
        let next = connect(2);
        let info = next.info().unwrap();
        assert_eq!((info.compute, info.epoch), (compute, epoch), "it was left");
        assert_eq!(counted(&next), CALLERS * ROUNDS);
    }
}

fn count_of(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().unwrap())
}

fn increment(cluster: &Cluster, key: &[u8]) {
    let mut seen: Option<Vec<u8>> = None;
    loop {
        let next = seen.as_deref().map_or(0, count_of) + 1;
        let swapped = cluster.compare_and_swap(key, seen.as_deref(), Some(&next.to_le_bytes()));
        match swapped.unwrap() {
            CasOutcome::Swapped => return,
            CasOutcome::Differs(found) => seen = found,
        }
    }
}
