//! Every table against a model, with one thread and with several, at sizes at which it has grown many times.

use std::collections::BTreeMap;

use farbank_index::hash::Hashing;
use farbank_index::registry::{TableKind, TablePreset, TableSize};
use farbank_index::{Index, PoolPlan};
use farbank_pm::media::Mapped;
use farbank_pm::rng::Rng;
use farbank_pm::sim::{Persistency, Sim};

fn medium() -> Mapped {
    Mapped::anonymous(256 << 20).unwrap()
}

fn table(table: TableKind, size: TableSize) -> Box<dyn Index> {
    table_with(table, size, Hashing::Published)
}

fn table_with(table: TableKind, size: TableSize, hashing: Hashing) -> Box<dyn Index> {
    let plan = PoolPlan {
        chunk_bytes: 64 << 10,
        hashing,
        ..PoolPlan::default()
    };
    table
        .create(medium(), &plan, size, TablePreset::Farbank)
        .unwrap()
}

/// Returns one of few keys, so that operations meet, the smallest and the largest word among them.
fn key(rng: &mut Rng) -> u64 {
    match rng.below(3_000) {
        0 => u64::MAX,
        1 => u64::MAX - 1,
        n => n - 2,
    }
}

#[test]
fn a_table_answers_as_a_map_does() {
    for kind in TableKind::ALL {
        let sizes = [
            (TableSize::Small, Hashing::Published),
            (TableSize::Slots(2_048), Hashing::Random),
        ];
        for (size, hashing) in sizes {
            let table = table_with(kind, size, hashing);
            let mut worker = table.worker().unwrap();
            let mut model = BTreeMap::new();
            let mut rng = Rng::new(7);
            for step in 0..60_000 {
                let (key, value) = (key(&mut rng), rng.draw());
                let held = model.get(&key).copied();
                match rng.below(5) {
                    0 | 1 => {
                        let found = table.insert(&mut worker, key, value).unwrap();
                        assert_eq!(found, held, "{kind} {size:?}, step {step}, insert {key:#x}");
                        model.entry(key).or_insert(value);
                    }
                    2 => {
                        let found = table.update(&mut worker, key, value).unwrap();
                        assert_eq!(found, held, "{kind} {size:?}, step {step}, update {key:#x}");
                        model.entry(key).and_modify(|held| *held = value);
                    }
                    3 => {
                        let found = table.remove(&mut worker, key).unwrap();
                        assert_eq!(found, held, "{kind} {size:?}, step {step}, remove {key:#x}");
                        model.remove(&key);
                    }
                    _ => {
                        let found = table.get(&mut worker, key).unwrap();
                        assert_eq!(found, held, "{kind} {size:?}, step {step}, get {key:#x}");
                    }
                }
            }
            same(&*table, &model);
            table.check().unwrap();
        }
    }
}

fn same(table: &dyn Index, model: &BTreeMap<u64, u64>) {
    let mut found = BTreeMap::new();
    let mut worker = table.worker().unwrap();
    let each = table.each(&mut worker, &mut |key, value| {
        assert_eq!(
            found.insert(key, value),
            None,
            "{} has {key:#x} twice",
            table.name()
        );
    });
    each.unwrap();
    assert!(
        found == *model,
        "{} has other entries than the model",
        table.name()
    );
    let (keys, values): (Vec<_>, Vec<_>) = model.iter().map(|(k, v)| (*k, Some(*v))).unzip();
    let mut got = vec![None; keys.len()];
    table.get_batch(&mut worker, &keys, &mut got).unwrap();
    assert!(
        got == values,
        "get_batch of {} differs from the model",
        table.name()
    );
    let space = table.space(&mut worker).unwrap();
    assert_eq!(space.keys, model.len() as u64);
    assert!(
        space.slots >= space.keys && space.far_bytes >= space.table_bytes,
        "{space:?}"
    );
}

/// Threads insert keys of their own, and compete for common keys, each of which only one thread may insert.
#[test]
fn no_key_is_lost_or_doubled_by_threads() {
    const KEYS: u64 = 20_000;
    for kind in TableKind::ALL {
        for threads in [2, 4] {
            let table = table(kind, TableSize::Small);
            let won = std::thread::scope(|scope| {
                let run = |thread: u64| {
                    let table = &table;
                    move || {
                        let mut worker = table.worker().unwrap();
                        let mut won = 0;
                        for n in 0..KEYS {
                            let key = n * threads + thread;
                            assert_eq!(table.insert(&mut worker, key, !key), Ok(None));
                            assert_eq!(table.get(&mut worker, key), Ok(Some(!key)));
                            let common = u64::MAX - n % 100;
                            won += u64::from(table.insert(&mut worker, common, thread) == Ok(None));
                            if n % 3 == 0 {
                                assert_eq!(table.remove(&mut worker, key), Ok(Some(!key)));
                            }
                        }
                        won
                    }
                };
                let running: Vec<_> = (0..threads).map(|t| scope.spawn(run(t))).collect();
                running.into_iter().map(|r| r.join().unwrap()).sum::<u64>()
            });
            assert_eq!(won, 100, "{kind}: each common key is inserted once");
            let left = (KEYS - KEYS.div_ceil(3)) * threads + 100;
            let counted = table.len(&mut table.worker().unwrap()).unwrap();
            assert_eq!(counted, left, "{kind} with {threads} threads");
            table.check().unwrap();
        }
    }
}

/// Values that a worker of `contend` wrote, and the old values that its operations returned.
#[derive(Default)]
struct WorkerValues {
    written: Vec<u64>,
    taken: Vec<u64>,
}

/// Performs inserts, updates and removes of a dozen keys, each write with a unique value.
fn contend(table: &dyn Index, thread: u64) -> WorkerValues {
    let mut worker = table.worker().unwrap();
    let mut rng = Rng::new(thread);
    let mut values = WorkerValues::default();
    for n in 0..30_000 {
        let (key, value) = (rng.below(12), thread << 32 | n);
        match rng.below(4) {
            0 if table.insert(&mut worker, key, value) == Ok(None) => values.written.push(value),
            1 => {
                if let Some(old) = table.update(&mut worker, key, value).unwrap() {
                    values.written.push(value);
                    values.taken.push(old);
                }
            }
            2 => values.taken.extend(table.remove(&mut worker, key).unwrap()),
            _ => _ = table.get(&mut worker, key).unwrap(),
        }
    }
    values
}

#[test]
fn each_value_is_replaced_or_removed_once_however_many_threads_try() {
    for kind in TableKind::ALL {
        let table = table(kind, TableSize::Small);
        let values: Vec<WorkerValues> = std::thread::scope(|scope| {
            let table = &table;
            let running: Vec<_> = (1..=4)
                .map(|thread| scope.spawn(move || contend(&**table, thread)))
                .collect();
            running.into_iter().map(|r| r.join().unwrap()).collect()
        });
        table.check().unwrap();
        let mut taken: Vec<u64> = values
            .iter()
            .flat_map(|values| values.taken.clone())
            .collect();
        let mut worker = table.worker().unwrap();
        table
            .each(&mut worker, &mut |_, value| taken.push(value))
            .unwrap();
        let mut written: Vec<u64> = values
            .iter()
            .flat_map(|values| values.written.clone())
            .collect();
        taken.sort_unstable();
        written.sort_unstable();
        assert!(written.len() > 1_000, "{kind} wrote {}", written.len());
        assert!(
            taken == written,
            "{kind}: a value was lost, or returned twice"
        );
    }
}

#[test]
fn an_insert_into_a_full_pool_fails_and_loses_nothing() {
    for kind in TableKind::ALL {
        let medium = Sim::new(256 << 10, Persistency::Adr);
        let plan = PoolPlan {
            chunk_bytes: 4 << 10,
            contexts: 2,
            ..PoolPlan::published()
        };
        let table = kind
            .create(medium, &plan, TableSize::Small, TablePreset::Farbank)
            .unwrap();
        let mut worker = table.worker().unwrap();
        let taken = |key: &u64| table.insert(&mut worker, *key, *key + 1).is_ok();
        let kept: Vec<u64> = (0..20_000).take_while(taken).collect();
        assert!(
            kept.len() > 100 && kept.len() < 20_000,
            "{kind} took {}",
            kept.len()
        );
        let mut worker = table.worker().unwrap();
        for key in &kept {
            assert_eq!(table.get(&mut worker, *key), Ok(Some(key + 1)), "{kind}");
            assert_eq!(table.remove(&mut worker, *key), Ok(Some(key + 1)), "{kind}");
        }
        table.check().unwrap();
    }
}

#[test]
fn opening_a_medium_without_a_table_fails() {
    for kind in TableKind::ALL {
        assert!(kind.open(medium()).is_err());
        let empty = Sim::new(4 << 10, Persistency::Adr);
        assert!(kind.open(empty).is_err());
    }
}
