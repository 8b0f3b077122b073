//! Keys that are chosen so that their hashes are similar.

use std::num::NonZeroU64;

use farbank_index::hash::{Hasher, Hashing};
use farbank_index::registry::{TableKind, TablePreset, TableSize};
use farbank_index::{Index, IndexError, OpenError, PoolPlan};
use farbank_pm::media::Mapped;
use farbank_pm::sim::{Persistency, Sim};

const SLOTS: u64 = 65_536;
const SEED: NonZeroU64 = NonZeroU64::new(0x5eed).unwrap();
/// The published hash, and one whose seed is known.
const KNOWN: [Hashing; 2] = [Hashing::Published, Hashing::Seeded(SEED)];

fn make(kind: TableKind, hashing: Hashing) -> Box<dyn Index> {
    let medium = Mapped::anonymous(512 << 20).unwrap();
    let plan = PoolPlan {
        hashing,
        ..PoolPlan::default()
    };
    let made = kind.create(medium, &plan, TableSize::Slots(SLOTS), TablePreset::Farbank);
    made.unwrap()
}

/// Returns keys whose hashes agree in their first 24 bits and their last 20. No table of reasonable size distinguishes
/// them. For a table with two hashes, the last 16 bits of the second hash agree, too.
fn alike(kind: TableKind, hashing: Hashing, count: usize) -> Vec<u64> {
    let [first, second] = match hashing {
        Hashing::Published => [Hasher::PUBLISHED, Hasher::published(0x9e37_79b9_7f4a_7c15)],
        Hashing::Seeded(seed) => Hasher::pair(seed),
        Hashing::Random => unreachable!("a random hash is unknown"),
    };
    let bits = if kind == TableKind::Level { 16 } else { 0 };
    let keys = (0..1 << 24).map(|n| first.key_of(n << 20));
    let keys = keys.filter(|key| second.hash(*key) & ((1 << bits) - 1) == 0);
    keys.take(count).collect()
}

fn ordinary(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Returns the maximum bytes that a table of `keys` keys may take, whatever the keys are: 6 MiB, and 512 bytes per key.
fn bytes_for(keys: usize) -> u64 {
    (6 << 20) + 512 * keys as u64
}

/// By default a table has a seeded hash, so keys that collide under the published hash are ordinary keys.
#[test]
fn keys_chosen_against_the_published_hash_are_ordinary_keys() {
    for kind in TableKind::ALL {
        let table = make(kind, Hashing::default());
        let mut worker = table.worker().unwrap();
        let count = if kind == TableKind::Level {
            100
        } else {
            20_000
        };
        let keys = alike(kind, Hashing::Published, count);
        for key in &keys {
            assert_eq!(table.insert(&mut worker, *key, !key), Ok(None), "{kind}");
        }
        for key in &keys {
            let old = table.update(&mut worker, *key, *key);
            assert_eq!(old, Ok(Some(!key)), "{kind}");
        }
        let bytes = table.space(&mut worker).unwrap().far_bytes;
        assert!(bytes < bytes_for(keys.len()), "{kind} has {bytes}");
        for key in &keys {
            assert_eq!(table.remove(&mut worker, *key), Ok(Some(*key)), "{kind}");
        }
        table.check().unwrap();
    }
}

/// A client that knows the seed can still choose keys. A table refuses them with the right error, long before it has
/// used up the pool. It keeps, updates and removes its other keys, and accepts more.
#[test]
fn too_many_keys_with_similar_hashes_are_refused_as_crowded() {
    for (kind, hashing) in TableKind::ALL
        .into_iter()
        .flat_map(|kind| KNOWN.map(|h| (kind, h)))
    {
        let table = make(kind, hashing);
        let mut worker = table.worker().unwrap();
        let (mut kept, mut refused) = (Vec::new(), Vec::new());
        for key in alike(kind, hashing, 200) {
            match table.insert(&mut worker, key, !key) {
                Ok(found) => {
                    assert_eq!(found, None, "{kind}");
                    kept.push(key);
                }
                Err(why) => refused.push(why),
            }
        }
        let bytes = table.space(&mut worker).unwrap().far_bytes;
        println!("{kind} {hashing:?}: {} kept in {bytes} bytes", kept.len());
        let is_refusal = |why: &IndexError| matches!(why, IndexError::Crowded { .. });
        assert!(refused.iter().all(is_refusal), "{kind}: {refused:?}");
        assert!(kept.len() >= 12, "{kind} kept {}", kept.len());
        let chains = matches!(kind, TableKind::Clht | TableKind::DashLh | TableKind::Soft);
        assert_eq!(refused.is_empty(), chains, "{kind} kept {}", kept.len());
        assert!(bytes < bytes_for(kept.len()), "{kind} has {bytes}");
        for key in &kept {
            assert_eq!(table.update(&mut worker, *key, 7), Ok(Some(!key)), "{kind}");
        }
        for key in (0..20_000).map(ordinary) {
            assert_eq!(table.insert(&mut worker, key, key), Ok(None), "{kind}");
        }
        for key in &kept {
            assert_eq!(table.remove(&mut worker, *key), Ok(Some(7)), "{kind}");
        }
        let bytes = table.space(&mut worker).unwrap().far_bytes;
        assert!(bytes < bytes_for(20_000), "{kind} has {bytes}");
        table.check().unwrap();
    }
}

/// A chain of buckets takes any number of keys. The table grows with the number of keys, not with the similarity of
/// their hashes.
#[test]
fn keys_with_similar_hashes_do_not_make_a_chained_table_grow_without_bound() {
    const KEYS: usize = 4_000;
    for kind in [TableKind::Clht, TableKind::DashLh, TableKind::Soft] {
        let table = make(kind, Hashing::Published);
        let mut worker = table.worker().unwrap();
        for key in alike(kind, Hashing::Published, KEYS) {
            assert_eq!(table.insert(&mut worker, key, key), Ok(None), "{kind}");
        }
        let bytes = table.space(&mut worker).unwrap().far_bytes;
        println!("{kind}: {bytes} bytes");
        assert!(bytes < bytes_for(KEYS), "{kind} has {bytes}");
    }
}

fn on_sim(kind: TableKind, hashing: Hashing) -> Sim {
    let sim = Sim::new(256 << 10, Persistency::Eadr);
    let plan = PoolPlan {
        chunk_bytes: 4 << 10,
        contexts: 4,
        hashing,
        ..PoolPlan::default()
    };
    let made = kind.create(sim.clone(), &plan, TableSize::Small, TablePreset::Farbank);
    let table = made.unwrap();
    let mut worker = table.worker().unwrap();
    for key in 0..200 {
        assert_eq!(table.insert(&mut worker, key, !key), Ok(None), "{kind}");
    }
    sim
}

#[test]
fn a_reopened_table_has_the_hash_it_was_created_with() {
    for (kind, hashing) in TableKind::ALL
        .into_iter()
        .flat_map(|kind| [Hashing::Random, KNOWN[0], KNOWN[1]].map(|h| (kind, h)))
    {
        let table = kind.open(on_sim(kind, hashing)).unwrap();
        let mut worker = table.worker().unwrap();
        for key in 0..200 {
            let found = table.get(&mut worker, key);
            assert_eq!(found, Ok(Some(!key)), "{kind} {hashing:?}");
        }
        table.check().unwrap();
    }
}

/// Checks the words that docs/format.md describes. The kind says whether there is a seed, so that programs without
/// support for seeds refuse the pool.
#[test]
fn the_superblock_has_the_hash_seed_and_the_kind_says_so() {
    const ROOT: u64 = 128;
    for kind in TableKind::ALL {
        for hashing in [Hashing::Random, KNOWN[0], KNOWN[1]] {
            let sim = on_sim(kind, hashing);
            let word = |n: u64| sim.visible().word(farbank_pm::Off(ROOT + 8 * n));
            let (seeded, seed) = (word(0) >> 56, word(38));
            match hashing {
                Hashing::Published => assert_eq!((seeded, seed), (0, 0), "{kind}"),
                Hashing::Seeded(told) => assert_eq!((seeded, seed), (1, told.get()), "{kind}"),
                Hashing::Random => assert!(seeded == 1 && seed != 0, "{kind}"),
            }
            assert_eq!(word(39), 0, "{kind}: this word belongs to the cache engine");
        }
    }
    let other = TableKind::Clht.open(on_sim(TableKind::Cceh, Hashing::Random));
    let Err(OpenError::Kind { found, .. }) = other.map(|_| ()) else {
        panic!("a table of another kind must be refused");
    };
    assert_eq!(&found.to_le_bytes()[..4], b"cceh");
}
