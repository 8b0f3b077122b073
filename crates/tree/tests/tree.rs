//! The tree on a simulated cluster, without failures.

mod tree_cluster;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use farbank_pm::rng::Rng;
use farbank_tree::{
    Config, Key, LocalLockMode, LockPlacement, NodeFormat, NodeLayout, TreeError, ValueMode,
};
use tree_cluster::{TreeCluster, numbers};

/// Returns the tested configurations, with nodes of 256 bytes, so that splits and merges are frequent.
fn configs() -> Vec<(&'static str, Config)> {
    let named = [
        ("sherman", Config::sherman()),
        ("sherman, published layout", Config::sherman_published()),
        ("fg+", Config::fg_plus()),
        ("fg", Config::fg()),
        (
            "fg+ combined",
            Config {
                combine: true,
                ..Config::fg_plus()
            },
        ),
        (
            "on chip",
            Config {
                locks: LockPlacement::OnChip,
                ..Config::fg_plus()
            },
        ),
        (
            "local table",
            Config {
                local: LocalLockMode::Table,
                ..Config::sherman()
            },
        ),
        (
            "queue",
            Config {
                local: LocalLockMode::Queue,
                ..Config::sherman()
            },
        ),
        (
            "small cache",
            Config {
                cache_bytes: 1024,
                ..Config::sherman()
            },
        ),
    ];
    let mut configs: Vec<_> = named
        .into_iter()
        .map(|(name, config)| {
            let layout = NodeLayout {
                node_bytes: 256,
                ..config.layout
            };
            (name, Config { layout, ..config })
        })
        .collect();
    configs.push(("farbank", Config::farbank().with_small_nodes()));
    configs
}

#[test]
fn the_last_write_of_each_client_is_read_back() {
    const CLIENTS: u64 = 12;
    for (name, config) in configs() {
        let in_order = config.layout.format == NodeFormat::Paper;
        let cluster = TreeCluster::new(3, config, in_order, 7);
        let all = Rc::new(RefCell::new(BTreeMap::new()));
        for number in 0..CLIENTS {
            let client = cluster.client(number as u16 % 3);
            let all = Rc::clone(&all);
            cluster.sim.spawn(number as u16 % 3, async move {
                let mut rng = Rng::new(number);
                let mut mine = BTreeMap::new();
                for n in 1..400 {
                    let key = rng.below(60) * CLIENTS + number;
                    match rng.below(4) {
                        0 => {
                            let old = client.remove(key).await.unwrap();
                            assert_eq!(old, mine.remove(&key), "{name}: key {key} removed");
                        }
                        1 => {
                            let found = client.get(key).await.unwrap();
                            assert_eq!(found, mine.get(&key).copied(), "{name}: key {key} read");
                        }
                        _ => {
                            let old = client.insert(key, n).await.unwrap();
                            assert_eq!(old, mine.insert(key, n), "{name}: key {key} replaced");
                        }
                    }
                }
                all.borrow_mut().append(&mut mine);
            });
        }
        cluster.run();
        let expected: Vec<(u64, u64)> = all.take().into_iter().collect();
        assert!(expected.len() > 300, "{name}: {}", expected.len());
        assert_eq!(cluster.contents(), expected, "{name}");
        let range = cluster.alone(|client| async move { client.range(0, usize::MAX >> 1).await });
        assert_eq!(
            numbers(range.unwrap()),
            expected,
            "{name}: the range of everything"
        );
    }
}

#[test]
fn an_emptied_tree_reuses_its_nodes_when_it_is_filled_again() {
    let config = Config {
        layout: NodeLayout {
            node_bytes: 256,
            ..NodeLayout::new(NodeFormat::Safe)
        },
        ..Config::sherman()
    };
    let cluster = TreeCluster::new(1, config, false, 7);
    let chunks = cluster.alone(|client| async move {
        let mut merges = 0;
        for _ in 0..6 {
            for key in 0..2000 {
                client.insert(key, key + 1).await.unwrap();
            }
            client.take_op();
            for key in 0..2000 {
                assert_eq!(client.remove(key).await.unwrap(), Some(key + 1));
            }
            merges += client.take_op().merges;
        }
        merges
    });
    assert!(chunks > 600, "{chunks} merges");
    assert_eq!(cluster.contents(), []);
    // 2,000 entries take some 240 leaves of 256 bytes; six times that would be 360 KiB.
    let calls = cluster.sim.traffic().calls;
    assert!(calls <= 4, "{calls} chunks of 64 KiB were requested");
}

#[test]
fn a_filled_tree_has_all_its_entries_and_takes_more() {
    for (name, config) in configs() {
        let cluster = TreeCluster::filled(2, config, 5000);
        assert_eq!(cluster.contents().len(), 5000, "{name}");
        let range = cluster.alone(|client| async move {
            for key in 0..500 {
                assert_eq!(client.get(key * 20).await.unwrap(), Some(key * 20 + 1));
                client.insert(key * 20 + 1, 9).await.unwrap();
            }
            client.range(4000, 100).await.unwrap()
        });
        let keys: Vec<u64> = range.iter().map(|(key, _)| key.first()).collect();
        let expected: Vec<u64> = (4000..)
            .filter(|key| key % 20 <= 1 || key % 2 == 0)
            .take(100)
            .collect();
        assert_eq!(keys, expected, "{name}");
    }
}

#[test]
fn a_descending_range_is_the_ascending_one_reversed() {
    for (name, config) in configs() {
        let cluster = TreeCluster::filled(2, config, 5000);
        let highest = 2 * 4999;
        cluster.alone(|client| async move {
            // Even keys are present, odd ones are not; the last bound is above all keys.
            for from in [0, 1, 999, 1000, highest, highest + 99] {
                for count in [0, 1, 7, 100, 10_000] {
                    let down = client.range_down(from, count).await.unwrap();
                    let down: Vec<u64> = down.iter().map(|(key, _)| key.first()).collect();
                    let expected = (0..=from.min(highest)).rev().filter(|key| key % 2 == 0);
                    let expected: Vec<u64> = expected.take(count).collect();
                    assert_eq!(down, expected, "{name}: {count} keys down from {from}");
                }
            }
            client.remove(500).await.unwrap();
            let down = client.range_down(502, 3).await.unwrap();
            let expected = [502, 498, 496].map(|key| (Key::from(key), key + 1));
            assert_eq!(down, expected, "{name}");
        });
    }
}

#[test]
fn a_write_takes_three_round_trips_and_17_bytes_and_a_lookup_one() {
    let cluster = TreeCluster::filled(1, Config::sherman_published(), 5000);
    let (warm, write, lookup) = cluster.alone(|client| async move {
        client.get(77 * 2).await.unwrap();
        let warm = client.take_op();
        client.insert(77 * 2, 5).await.unwrap();
        let write = client.take_op();
        client.get(77 * 2).await.unwrap();
        (warm, write, client.take_op())
    });
    assert!(warm.round_trips > 1 && !warm.cache_hit);
    assert_eq!((write.round_trips, write.bytes_written), (3, 17));
    assert_eq!((lookup.round_trips, lookup.cache_hit), (1, true));
    let cluster = TreeCluster::filled(1, Config::fg_plus(), 5000);
    let write = cluster.alone(|client| async move {
        client.get(77 * 2).await.unwrap();
        client.take_op();
        client.insert(77 * 2, 5).await.unwrap();
        client.take_op()
    });
    assert_eq!((write.round_trips, write.bytes_written), (4, 1024));
}

#[test]
fn with_reads_under_the_lock_a_write_takes_two_round_trips_and_a_lookup_reads_256_bytes() {
    let cluster = TreeCluster::filled(1, Config::farbank(), 5000);
    cluster.warm((0..10_000).step_by(40));
    let lookups = 100;
    let before = cluster.sim.traffic().bytes_read;
    cluster.alone(|client| async move {
        // The first access to a server reads its mark.
        for key in 0..lookups {
            let found = client.get(key * 77).await.unwrap();
            assert_eq!(found, (key % 2 == 0).then_some(key * 77 + 1));
            assert_eq!(client.take_op().round_trips, 1, "key {}", key * 77);
        }
    });
    let read = cluster.sim.traffic().bytes_read - before;
    let marks = read - lookups * 256;
    assert!(marks < 100, "{read} bytes were read");
    let writes = cluster.alone(|client| async move {
        let mut writes = Vec::new();
        for key in (0..10_000).step_by(154) {
            assert_eq!(client.insert(key, 5).await.unwrap(), Some(key + 1));
            writes.push(client.take_op());
        }
        writes
    });
    let cheap =
        |op: &farbank_tree::op_stats::OpStats| (op.round_trips, op.bytes_written) == (2, 64);
    assert!(writes.iter().all(cheap), "{writes:?}");
}

#[test]
fn a_compact_cache_holds_more_nodes_in_the_same_bytes() {
    let hits = [false, true].map(|compact_cache| {
        let config = Config {
            compact_cache,
            cache_bytes: 20 * 1024,
            ..Config::sherman()
        };
        let cluster = TreeCluster::filled(1, config, 50_000);
        cluster.warm((0..100_000).step_by(100).cycle().take(10_000));
        cluster.alone(|client| async move {
            let mut hits = 0;
            for key in (0..1000).map(|turn| turn * 37 % 1000 * 100) {
                client.get(key).await.unwrap();
                hits += u32::from(client.take_op().cache_hit);
            }
            hits
        })
    });
    assert!(hits[1] * 10 > hits[0] * 13, "{hits:?} of 1,000 each");
}

#[test]
fn a_warm_cache_leads_every_lookup_to_its_leaf() {
    let cluster = TreeCluster::filled(1, Config::sherman(), 5000);
    cluster.warm((0..10_000).step_by(40));
    let trips = cluster.alone(|client| async move {
        let mut trips = Vec::new();
        for key in (0..10_000).step_by(77) {
            assert_eq!(
                client.get(key).await.unwrap(),
                (key % 2 == 0).then_some(key + 1)
            );
            trips.push(client.take_op().round_trips);
        }
        trips
    });
    assert!(trips.iter().all(|trips| *trips == 1), "{trips:?}");
}

#[test]
fn a_small_warm_cache_keeps_the_nodes_used_most() {
    let few = Config {
        cache_bytes: 20 * 1024,
        ..Config::sherman_published()
    };
    let cluster = TreeCluster::filled(1, few, 100_000);
    let often = (0..10_000).step_by(40);
    let everywhere = (0..200_000).step_by(1000);
    cluster.warm(everywhere.clone().chain(often.cycle().take(100_000)));
    cluster.warm(everywhere);
    let hits = cluster.alone(|client| async move {
        let mut hits = [0, 0];
        for (n, last) in [(0, 10_000), (1, 200_000)] {
            for key in (0..100).map(|turn| turn * 37 % 100 * last / 100) {
                client.get(key).await.unwrap();
                hits[n] += u32::from(client.take_op().cache_hit);
            }
        }
        hits
    });
    assert!(
        hits[0] == 100 && (5..=60).contains(&hits[1]),
        "{hits:?} of 100 each"
    );
}

#[test]
fn failed_lock_attempts_are_not_counted_as_round_trips() {
    let alone = Config {
        local: LocalLockMode::None,
        ..Config::sherman_published()
    };
    let cluster = TreeCluster::filled(2, alone, 1000);
    cluster.warm(0..2000);
    let ops = Rc::new(RefCell::new(Vec::new()));
    for compute in 0..2 {
        for _ in 0..4 {
            let (client, ops) = (cluster.client(compute), Rc::clone(&ops));
            cluster.sim.spawn(compute, async move {
                client.insert(10, 1).await.unwrap();
                ops.borrow_mut().push(client.take_op());
            });
        }
    }
    cluster.run();
    let ops = ops.take();
    assert!(ops.iter().all(|op| op.round_trips == 3), "{ops:?}");
    assert!(ops.iter().any(|op| op.lock_retries > 0), "{ops:?}");
}

#[test]
fn a_client_with_late_reads_reads_fewer_leaves_at_once() {
    const RANGES: u64 = 40;
    let cluster = TreeCluster::filled(2, Config::sherman_published(), 20_000);
    cluster.warm((0..40_000).step_by(40));
    let retries = Rc::new(RefCell::new((0, 0)));
    for n in 0..60_u64 {
        let (client, retries) = (cluster.client(n as u16 % 2), Rc::clone(&retries));
        cluster.sim.spawn(n as u16 % 2, async move {
            for m in 0..RANGES {
                let from = (n * RANGES + m) * 8;
                let found = client.range(from, 1000).await.unwrap();
                let due: Vec<_> = (from / 2..from / 2 + 1000)
                    .map(|k| (Key::from(2 * k), 2 * k + 1))
                    .collect();
                assert_eq!(found, due);
            }
            let op = client.take_op();
            let mut all = retries.borrow_mut();
            *all = (all.0 + op.read_retries, all.1 + op.round_trips);
        });
    }
    cluster.run();
    let (late, trips) = *retries.borrow();
    assert!(
        late > 0 && late * 4 < trips,
        "{late} late, {trips} round trips"
    );
}

#[test]
fn the_published_layout_refuses_its_reserved_value() {
    let cluster = TreeCluster::new(1, Config::sherman_published(), true, 1);
    let refused = cluster.alone(|client| async move { client.insert(1, 0).await });
    assert_eq!(refused, Err(TreeError::Reserved));
    let cluster = TreeCluster::new(1, Config::sherman(), true, 1);
    let taken = cluster.alone(|client| async move {
        client.insert(0, 0).await.unwrap();
        client.insert(u64::MAX, u64::MAX).await.unwrap();
        numbers(client.range(0, 9).await.unwrap())
    });
    assert_eq!(taken, [(0, 0), (u64::MAX, u64::MAX)]);
}

#[test]
fn keys_of_a_kibibyte_that_differ_in_the_last_byte_are_different_keys() {
    for format in [NodeFormat::Safe, NodeFormat::Paper] {
        for key_bytes in [9, 64, 1024] {
            let config = Config {
                layout: NodeLayout::new(format).with_keys(key_bytes, 6),
                ..Config::sherman()
            };
            let cluster = TreeCluster::new(1, config, true, 5);
            let found = cluster.alone(move |client| async move {
                let key = |number: u64| {
                    let mut bytes = vec![b'k'; key_bytes];
                    bytes[key_bytes - 2..].copy_from_slice(&[(number / 256) as u8, number as u8]);
                    Key::new(&bytes)
                };
                for number in (0..300).rev() {
                    let old = client.insert(key(number), number + 1).await;
                    assert_eq!(old, Ok(None), "{config:?}");
                }
                for number in (0..300).step_by(3) {
                    let old = client.remove(&key(number)).await;
                    assert_eq!(old, Ok(Some(number + 1)), "{config:?}");
                }
                assert_eq!(client.get(&key(0)).await, Ok(None));
                assert_eq!(client.get(&key(1)).await, Ok(Some(2)));
                let long = Key::new(&vec![1; key_bytes + 1]);
                let refused = TreeError::KeyTooLong {
                    bytes: key_bytes + 1,
                    most: key_bytes,
                };
                assert_eq!(client.get(long).await, Err(refused));
                client.range(&key(100), 1000).await.unwrap()
            });
            let values: Vec<u64> = found.iter().map(|(_, value)| *value).collect();
            let expected: Vec<u64> = (101..=300).filter(|n| (n - 1) % 3 != 0).collect();
            assert_eq!(values, expected, "{config:?}");
        }
    }
}

#[test]
fn values_out_of_line_have_any_size_and_a_write_takes_three_round_trips() {
    const MOST: usize = 2000;
    for config in [
        Config::sherman(),
        Config::sherman_published(),
        Config::fg_plus(),
    ] {
        let config = Config {
            values: ValueMode::Blocks { bytes_max: MOST },
            ..config
        };
        let in_order = config.layout.format == NodeFormat::Paper;
        let cluster = TreeCluster::new(1, config, in_order, 5);
        let trips = cluster.alone(|client| async move {
            let value = |key: u64, turn: u64| vec![(key + turn) as u8; (key * 37 % 2001) as usize];
            for turn in 0..8 {
                for key in 0..500 {
                    let replaced = client.insert_bytes(key, &value(key, turn)).await;
                    assert_eq!(replaced, Ok(turn > 0), "{config:?}");
                }
            }
            for key in (0..500).step_by(2) {
                assert_eq!(client.remove_bytes(key).await, Ok(true));
                assert_eq!(client.get_bytes(key).await, Ok(None));
            }
            let all = client.range_bytes(0, 1000).await.unwrap();
            let expected: Vec<_> = (1..500)
                .step_by(2)
                .map(|key| (Key::from(key), value(key, 7)))
                .collect();
            assert_eq!(all, expected, "{config:?}");
            let down = client.range_bytes_down(250, 20).await.unwrap();
            let expected = expected.into_iter().rev();
            let expected: Vec<_> = expected
                .filter(|(key, _)| key.first() <= 250)
                .take(20)
                .collect();
            assert_eq!(down, expected, "{config:?}");
            let long = vec![1; MOST + 1];
            let refused = TreeError::ValueTooLong {
                bytes: MOST + 1,
                most: MOST,
            };
            assert_eq!(client.insert_bytes(1, &long).await, Err(refused));
            assert_eq!(client.insert(1, 1).await, Err(TreeError::OtherValues));
            assert_eq!(client.get(1).await, Err(TreeError::OtherValues));
            client.take_op();
            client.insert_bytes(7, &value(7, 9)).await.unwrap();
            client.take_op().round_trips
        });
        assert_eq!(trips, if config.combine { 3 } else { 5 });
        // The leaves and 500 blocks of 1.5 KiB on average, in size classes of powers of two. Without reuse of blocks,
        // eight rounds would take 100 chunks of 64 KiB.
        let calls = cluster.sim.traffic().calls;
        assert!(calls < 40, "{calls} chunks of 64 KiB were requested");
        let words = Config {
            values: ValueMode::Words,
            ..config
        };
        let cluster = TreeCluster::new(1, words, in_order, 5);
        let refused = cluster.alone(|client| async move { client.get_bytes(1).await });
        assert_eq!(refused, Err(TreeError::OtherValues));
    }
}

#[test]
fn a_server_without_memory_refuses_no_write_while_another_has_some() {
    const HOST_BYTES: u64 = 16 << 20;
    let value = |key: u64| vec![key as u8; 100 + key as usize % 100];
    for spread_splits in [false, true] {
        let config = Config {
            values: ValueMode::Blocks { bytes_max: 200 },
            spread_splits,
            ..Config::sherman()
        };
        let cluster = TreeCluster::new(1, config, true, 5);
        cluster.sim.reserve_host_memory(0, HOST_BYTES);
        cluster.alone(|client| async move {
            for key in 0..5_000 {
                assert_eq!(client.insert_bytes(key, &value(key)).await, Ok(false));
            }
            assert!(client.take_op().splits > 100);
        });
        for server in 1..3 {
            cluster.sim.reserve_host_memory(server, HOST_BYTES);
        }
        cluster.alone(|client| async move {
            let mut key = 5_000;
            let refused = loop {
                match client.insert_bytes(key, &value(key)).await {
                    Ok(_) => key += 1,
                    Err(error) => break error,
                }
            };
            assert!(matches!(refused, TreeError::Full { .. }), "{refused:?}");
            let all = client.range_bytes(0, usize::MAX >> 1).await.unwrap();
            let expected = (0..key).map(|key| (Key::from(key), value(key)));
            assert_eq!(all, expected.collect::<Vec<_>>());
            assert_eq!(client.remove_bytes(17).await, Ok(true));
            assert_eq!(client.insert_bytes(17, &value(17)).await, Ok(false));
        });
    }
}

#[test]
fn a_tree_of_another_layout_is_refused() {
    let cluster = TreeCluster::new(1, Config::sherman(), true, 1);
    let other = Config {
        layout: NodeLayout::new(NodeFormat::Safe).with_keys(16, 20),
        ..Config::sherman()
    };
    let refused = cluster.alone_with(other, |client| async move { client.get(1).await });
    assert_eq!(refused, Err(TreeError::OtherLayout { server: 0 }));
}
