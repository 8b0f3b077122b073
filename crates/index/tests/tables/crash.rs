//! Every table under the crash explorer, with parts so small that the table grows in every run.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use farbank_check::explore::{ExploreConfig, explore};
use farbank_index::hash::Hashing;
use farbank_index::registry::{TableKind, TablePreset, TableSize};
use farbank_index::target::TableTarget;
use farbank_index::{Index, PoolPlan};
use farbank_pm::rng::Rng;
use farbank_pm::sim::{Persistency, Sim};

fn holds(persistency: Persistency, seeds: std::ops::Range<u64>) {
    for table in TableKind::ALL {
        let target = TableTarget(table, Hashing::Published);
        let config = ExploreConfig::new(persistency);
        let report = explore(&target, &config, seeds.clone(), 2, &mut |_| true);
        assert!(report.holds(), "{report}");
    }
}

#[test]
fn nothing_acknowledged_is_lost_by_tables_with_a_seed() {
    let seed = NonZeroU64::new(0x5eed).expect("the seed is not 0");
    for table in TableKind::ALL {
        let target = TableTarget(table, Hashing::Seeded(seed));
        let config = ExploreConfig::new(Persistency::Adr);
        let report = explore(&target, &config, 0..2, 2, &mut |_| true);
        assert!(report.holds(), "{report}");
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_caches_are_not_durable() {
    holds(Persistency::Adr, 0..3);
}

/// A client that ignores the error of a failed drain and continues gets errors. Afterwards far memory holds only what a
/// crash may leave, whatever the client did.
#[test]
fn operations_after_a_failed_drain_corrupt_nothing() {
    for (n, table) in TableKind::ALL.into_iter().enumerate() {
        for fails in (1..200).step_by(3) {
            let (sim, kept) = used_until_a_drain_fails(table, fails, 200 * n as u64 + fails);
            let crash = sim.crash_state();
            for cut in crash.images(8, fails) {
                let image = Sim::from_image(crash.image(&cut), Persistency::Adr);
                let found = table.open(image).and_then(|found| {
                    found.check()?;
                    let mut worker = found.worker()?;
                    let values = kept.keys().map(|key| found.get(&mut worker, *key));
                    Ok(values.collect::<Result<Vec<_>, _>>()?)
                });
                let found = found.unwrap_or_else(|e| panic!("{table:?}, drain {fails}: {e}"));
                for ((key, may), found) in kept.iter().zip(found) {
                    assert!(
                        may.contains(&found),
                        "{table:?}, drain {fails}: {key} is {found:?}, not one of {may:?}"
                    );
                }
            }
        }
    }
}

fn small(table: TableKind) -> (Sim, Box<dyn Index>) {
    let sim = Sim::new(256 << 10, Persistency::Adr);
    let plan = PoolPlan {
        chunk_bytes: 4 << 10,
        ..PoolPlan::published()
    };
    let made = table.create(sim.clone(), &plan, TableSize::Small, TablePreset::Farbank);
    (sim, made.unwrap())
}

/// Returns a small table that two workers have changed, also after a drain had failed, with the possible values of each
/// key.
fn used_until_a_drain_fails(
    table: TableKind,
    fails: u64,
    seed: u64,
) -> (Sim, BTreeMap<u64, Vec<Option<u64>>>) {
    let (sim, made) = small(table);
    let mut workers = [(); 2].map(|()| made.worker().unwrap());
    let (mut rng, mut kept) = (Rng::new(seed), BTreeMap::new());
    sim.fail_drain(fails);
    for n in 0..400 {
        let (key, worker) = (rng.below(40), &mut workers[rng.below(2) as usize]);
        let may: &mut Vec<Option<u64>> = kept.entry(key).or_insert(vec![None]);
        let (was, poisoned) = (*may.last().unwrap(), sim.is_poisoned());
        let (answer, then) = match rng.below(3) {
            0 => (made.insert(worker, key, n), was.or(Some(n))),
            1 => (made.update(worker, key, n), was.and(Some(n))),
            _ => (made.remove(worker, key), None),
        };
        match answer {
            Ok(answer) if !poisoned => {
                assert_eq!(answer, was, "{table:?}, drain {fails}: {key}");
                *may = vec![then];
            }
            // The operation had nothing to change.
            Ok(answer) => assert!(may.contains(&answer), "{table:?}, drain {fails}: {key}"),
            // The operation whose drain failed may be kept or lost.
            Err(_) => {
                assert!(sim.is_poisoned(), "{table:?}: {answer:?}");
                may.insert(0, then);
            }
        }
    }
    (sim, kept)
}

/// The locks of an operation whose drain failed stay locked. Other threads get the error instead of waiting.
#[test]
fn no_thread_waits_for_a_lock_after_a_failed_drain() {
    for table in TableKind::ALL {
        for fails in (1..200).step_by(8) {
            let (sim, made) = small(table);
            sim.fail_drain(fails);
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    let made = &made;
                    scope.spawn(move || {
                        let mut worker = made.worker().unwrap();
                        let mut rng = Rng::new(fails * 4 + thread);
                        for n in 0..400 {
                            let key = rng.below(40);
                            let _ = match rng.below(4) {
                                0 => made.insert(&mut worker, key, n),
                                1 => made.update(&mut worker, key, n),
                                2 => made.remove(&mut worker, key),
                                _ => made.get(&mut worker, key),
                            };
                        }
                    });
                }
            });
            assert!(sim.is_poisoned(), "{table:?}: fewer than {fails} drains");
        }
    }
}

/// Runs with a failing medium, then a kill, then a power cut. With a bug that frees the new segment of a failed split,
/// they find a published segment freed.
#[test]
fn a_split_on_a_failing_medium_does_not_free_its_segment() {
    for (table, seed) in [(TableKind::Cceh, 0xf7), (TableKind::DashEh, 0x9e8)] {
        let config = ExploreConfig::new(Persistency::Adr);
        let seeds = seed..seed + 1;
        let report = explore(
            &TableTarget(table, Hashing::Published),
            &config,
            seeds,
            1,
            &mut |_| true,
        );
        assert!(report.violations.is_empty(), "{report}");
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_caches_are_durable() {
    holds(Persistency::Eadr, 0..1);
}

#[test]
fn nothing_acknowledged_is_lost_when_sectors_are_lost_between_syncs() {
    holds(Persistency::Page, 0..2);
}
