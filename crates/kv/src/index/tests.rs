//! Tests of the index alone: lookup, removal, walk, growth, export.

use super::*;
use xxhash_rust::xxh3::xxh3_64;

fn hash(key: u64) -> u64 {
    xxh3_64(&key.to_le_bytes())
}

fn at(key: u64) -> Off {
    Off((key + 1) << 4)
}

fn no_rehash(_: Off) -> Option<u64> {
    panic!("growth must not read keys")
}

fn grow(index: &HashIndex, epochs: &EpochTable) {
    while index.wants_split() {
        index.split(epochs, &no_rehash);
    }
}

#[test]
fn every_key_is_found_at_every_size_and_removed_ones_are_not() {
    let (index, epochs) = (HashIndex::new(2), EpochTable::default());
    for key in 0..20_000 {
        index.insert(hash(key), at(key), &epochs, &no_rehash);
        grow(&index, &epochs);
        if key % 3 == 0 {
            assert!(index.remove(hash(key), at(key)));
        }
        if key % 1000 == 999 {
            for known in 0..=key {
                assert_eq!(
                    index.names(hash(known), at(known)),
                    known % 3 != 0,
                    "{known}"
                );
            }
        }
    }
}

#[test]
fn a_key_takes_at_most_twelve_bytes_whatever_stage_growth_is_at() {
    for depth in [4, 6, 9, 12] {
        a_key_takes_at_most_twelve_bytes_from(depth);
    }
}

fn a_key_takes_at_most_twelve_bytes_from(depth: u32) {
    let (index, epochs) = (HashIndex::new(depth), EpochTable::default());
    let mut worst: f64 = 0.0;
    for key in 0..600_000_u64 {
        index.insert(hash(key), at(key), &epochs, &no_rehash);
        grow(&index, &epochs);
        if key >= 100_000 && key % 1000 == 0 {
            worst = worst.max(index.bytes() as f64 / key as f64);
        }
    }
    assert!(worst <= 12.0, "{worst:.2} bytes a key");
}

#[test]
fn a_lookup_of_an_absent_key_rarely_meets_a_matching_tag() {
    let (index, epochs) = (HashIndex::new(6), EpochTable::default());
    let keys = 200_000;
    for key in 0..keys {
        index.insert(hash(key), at(key), &epochs, &no_rehash);
        grow(&index, &epochs);
    }
    let mut strangers = 0;
    for absent in keys..2 * keys {
        index.search(hash(absent), |_| -> Option<()> {
            strangers += 1;
            None
        });
    }
    assert!(
        strangers < keys / 100,
        "{strangers} of {keys} absent keys met an entry whose tag matches"
    );
}

#[test]
fn a_walk_visits_every_key_even_if_the_index_grows_meanwhile() {
    let (index, epochs) = (HashIndex::new(2), EpochTable::default());
    let keys = 5_000;
    for key in 0..keys {
        index.insert(hash(key), at(key), &epochs, &no_rehash);
        grow(&index, &epochs);
    }
    let mut seen = std::collections::HashSet::new();
    let mut cursor = 0;
    let mut more = keys;
    loop {
        cursor = index.walk(cursor, |found| {
            seen.extend(found.iter().copied());
            WalkStep::Stop
        });
        for _ in 0..50 {
            index.insert(hash(more), at(more), &epochs, &no_rehash);
            more += 1;
        }
        grow(&index, &epochs);
        if cursor == 0 {
            break;
        }
    }
    assert!((0..keys).all(|key| seen.contains(&at(key))));
}

#[test]
fn a_walk_shows_the_entries_of_a_group_in_the_order_of_the_pool() {
    let (index, epochs) = (HashIndex::new(2), EpochTable::default());
    for key in (0..1_000).rev() {
        index.insert(hash(key), at(key), &epochs, &no_rehash);
        grow(&index, &epochs);
    }
    let mut longest = 0;
    index.walk(0, |found| {
        assert!(found.is_sorted(), "{found:?}");
        longest = longest.max(found.len());
        WalkStep::Next
    });
    assert!(longest > 8, "a group has several lines: {longest} entries");
}

#[test]
fn a_bulk_built_index_finds_every_key_and_grows_further() {
    let epochs = EpochTable::default();
    let bulk = BulkBuild::new(10_000, 0, 4);
    let mask = (1 << bulk.depth()) - 1;
    let mut all: Vec<(u64, Off)> = (0..10_000).map(|k| (hash(k), at(k))).collect();
    all.sort_by_key(|(h, _)| h & mask);
    let mut rows = FreshRows::default();
    for group in all.chunk_by(|a, b| a.0 & mask == b.0 & mask) {
        bulk.fill(&mut rows, group);
    }
    bulk.done(&rows);
    let index = bulk.finish();
    for key in 10_000..40_000 {
        index.insert(hash(key), at(key), &epochs, &no_rehash);
        grow(&index, &epochs);
    }
    assert!((0..40_000).all(|key| index.names(hash(key), at(key))));
}

fn import(bytes: &[u8]) -> Option<HashIndex> {
    let import = RowsImport::begin(bytes)?;
    (0..import.pieces()).try_for_each(|piece| import.read(piece, |_| (), |_| true))?;
    Some(import.finish())
}

#[test]
fn an_exported_index_can_be_imported_at_any_stage_of_growth() {
    let (index, epochs) = (HashIndex::new(2), EpochTable::default());
    for key in 0..3_000 {
        index.insert(hash(key), at(key), &epochs, &no_rehash);
        grow(&index, &epochs);
        if key % 199 == 0 {
            let mut bytes = Vec::new();
            index.export(&mut bytes);
            let copy = import(&bytes).unwrap();
            assert!((0..=key).all(|known| copy.names(hash(known), at(known))));
            assert!(
                (0..bytes.len())
                    .step_by(97)
                    .all(|n| import(&bytes[..n]).is_none())
            );
        }
    }
}

#[test]
fn an_index_sized_for_its_expected_keys_holds_them_and_grows_beyond() {
    const EXPECTED: u64 = 10_000;
    let (index, epochs) = (
        BulkBuild::new(0, EXPECTED, 1).finish(),
        EpochTable::default(),
    );
    let bytes = index.bytes();
    for key in 0..4 * EXPECTED {
        index.insert(hash(key), at(key), &epochs, &no_rehash);
        if key == EXPECTED {
            let more = index.bytes() as f64 / bytes as f64;
            assert!(more < 1.2, "{more} times its initial size");
        }
        grow(&index, &epochs);
    }
    assert!((0..4 * EXPECTED).all(|key| index.names(hash(key), at(key))));
}

#[test]
fn groups_that_do_not_fit_their_home_runs_get_other_runs() {
    let bulk = BulkBuild::new(10, 1_000, 1);
    let groups = 1 << bulk.depth();
    let of_group_0 = (0..200_u64).map(|n| n * groups);
    let keys: Vec<(u64, Off)> = of_group_0.map(|hash| (hash, at(hash))).collect();
    let mut rows = FreshRows::default();
    bulk.fill(&mut rows, &keys);
    bulk.fill(&mut rows, &[(1, at(1))]);
    bulk.done(&rows);
    let index = bulk.finish();
    assert!(keys.iter().all(|(hash, at)| index.names(*hash, *at)));
    assert!(index.names(1, at(1)) && !index.names(2, at(2)));
}

#[test]
fn a_retired_run_is_not_reused_while_a_reader_of_its_epoch_may_be_pinned() {
    let mut space = RowSpace::default();
    space.retired.push_back((5, 0, 2));
    space.reclaim(5); // The oldest reader is pinned at the epoch in which the run was retired.
    assert_eq!(space.reuse(2), None);
    space.reclaim(6);
    assert_eq!(space.reuse(2), Some((0, 2)));
}
