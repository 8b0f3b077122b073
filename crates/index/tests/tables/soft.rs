//! Guarantees that only SOFT gives.

use std::sync::Barrier;

use farbank_index::registry::{TableKind, TablePreset, TableSize};
use farbank_index::{Index, PoolPlan};
use farbank_pm::media::Mapped;

/// Returns a table in a full pool, and its keys.
fn full() -> (Box<dyn Index>, Vec<u64>) {
    let plan = PoolPlan {
        chunk_bytes: 4 << 10,
        ..PoolPlan::published()
    };
    let medium = Mapped::anonymous(256 << 10).unwrap();
    let made = TableKind::Soft.create(medium, &plan, TableSize::Small, TablePreset::Farbank);
    let table = made.unwrap();
    let mut worker = table.worker().unwrap();
    let taken = |key: &u64| table.insert(&mut worker, *key, !*key).is_ok();
    let keys: Vec<u64> = (0..20_000).take_while(taken).collect();
    assert!(keys.len() > 100 && keys.len() < 20_000);
    drop(worker);
    (table, keys)
}

#[test]
fn a_remove_from_a_full_pool_makes_space_for_another_workers_insert() {
    let (table, keys) = full();
    let (mut one, mut other) = (table.worker().unwrap(), table.worker().unwrap());
    for key in keys {
        assert_eq!(table.remove(&mut one, key), Ok(Some(!key)));
        assert_eq!(table.insert(&mut other, !key, key), Ok(None));
        assert_eq!(table.insert(&mut other, !key, 7), Ok(Some(key)));
    }
    table.check().unwrap();
}

#[test]
fn nodes_that_one_worker_removes_are_reused_by_another_without_growth() {
    const KEYS: u64 = 100_000;
    let medium = Mapped::anonymous(64 << 20).unwrap();
    let size = TableSize::Slots(1 << 10);
    let made = TableKind::Soft.create(medium, &PoolPlan::published(), size, TablePreset::Farbank);
    let table = made.unwrap();
    let (mut one, mut other) = (table.worker().unwrap(), table.worker().unwrap());
    let slots = |worker: &mut _| table.space(worker).unwrap().slots;
    table.insert(&mut one, 0, 0).unwrap();
    let at_first = slots(&mut one);
    for key in 1..KEYS {
        assert_eq!(table.insert(&mut one, key, key), Ok(None));
        assert_eq!(table.remove(&mut other, key - 1), Ok(Some(key - 1)));
    }
    assert_eq!(slots(&mut one), at_first);
    table.check().unwrap();
}

#[test]
fn workers_that_exchange_keys_in_a_full_pool_are_never_refused() {
    let (table, keys) = full();
    let start = Barrier::new(4);
    std::thread::scope(|scope| {
        for (thread, share) in keys.chunks(keys.len().div_ceil(4)).enumerate() {
            let (table, start) = (&table, &start);
            scope.spawn(move || {
                let mut worker = table.worker().unwrap();
                start.wait();
                for key in share.iter().cycle().take(20_000) {
                    assert_eq!(table.remove(&mut worker, *key), Ok(Some(!key)), "{thread}");
                    assert_eq!(table.insert(&mut worker, *key, !key), Ok(None), "{thread}");
                }
            });
        }
    });
    table.check().unwrap();
    let mut worker = table.worker().unwrap();
    assert_eq!(table.len(&mut worker).unwrap(), keys.len() as u64);
}
