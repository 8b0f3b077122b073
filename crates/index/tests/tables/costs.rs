//! Counted costs of operations: lines flushed and drains.

use farbank_index::registry::{TableKind, TablePreset, TableSize};
use farbank_index::{Index, PoolPlan, TableWorker};
use farbank_pm::media::Mapped;

/// Returns the lines and drains of `run`.
fn cost(worker: &mut TableWorker, run: impl FnOnce(&mut TableWorker)) -> (u64, u64) {
    let before = worker.counters();
    run(worker);
    let after = worker.counters();
    (after.lines - before.lines, after.fences - before.fences)
}

fn table(kind: TableKind) -> (Box<dyn Index>, TableWorker) {
    let medium = Mapped::anonymous(256 << 20).unwrap();
    let size = TableSize::Slots(1 << 20);
    let table = kind.create(medium, &PoolPlan::published(), size, TablePreset::Farbank);
    let table = table.unwrap();
    let worker = table.worker().unwrap();
    (table, worker)
}

/// One line and one drain, as in the paper. Every 32,766 inserts need another area of 1 MiB. It has 16,384 lines, and
/// takes 3 more and 3 drains. The first area is named by the drain of the insert that needs it.
#[test]
fn soft_flushes_a_line_and_drains_once() {
    const KEYS: u64 = 100_000;
    let (table, mut worker) = table(TableKind::Soft);
    let insert = |worker: &mut TableWorker| {
        for key in 0..KEYS {
            assert_eq!(table.insert(worker, key, !key), Ok(None));
        }
    };
    let areas = KEYS.div_ceil(32_766);
    let expected = (KEYS + areas * (16_384 + 3), KEYS + areas * 3 - 1);
    assert_eq!(cost(&mut worker, insert), expected);
    let get = |worker: &mut TableWorker| {
        for key in 0..2 * KEYS {
            assert_eq!(table.get(worker, key), Ok((key < KEYS).then_some(!key)));
        }
    };
    assert_eq!(cost(&mut worker, get), (0, 0));
    let update = |worker: &mut TableWorker| {
        for key in 0..KEYS {
            assert_eq!(table.update(worker, key, key), Ok(Some(!key)));
        }
    };
    assert_eq!(cost(&mut worker, update), (KEYS, KEYS));
    let remove = |worker: &mut TableWorker| {
        for key in 0..KEYS {
            assert_eq!(table.remove(worker, key), Ok(Some(key)));
        }
    };
    assert_eq!(cost(&mut worker, remove), (KEYS, KEYS));
    let again = |worker: &mut TableWorker| {
        for key in 0..KEYS {
            assert_eq!(table.insert(worker, !key, key), Ok(None));
        }
    };
    assert_eq!(cost(&mut worker, again), (KEYS, KEYS), "nodes are reused");
}

/// The pair's bit, the pair and the slot; two drains. Allocating and freeing add the allocator's lines. The other costs
/// of inserts are those of groups of pairs and of levels.
#[test]
fn clevel_flushes_three_lines_and_drains_twice() {
    const KEYS: u64 = 10_000;
    let (table, mut worker) = table(TableKind::Clevel);
    let first = |worker: &mut TableWorker| {
        for key in 0..KEYS {
            assert_eq!(table.insert(worker, key, !key), Ok(None));
        }
    };
    let slabs = cost(&mut worker, first);
    // A slab has one line per 448 pairs, zeroed once. Each group is named in the context's line of the worker that
    // takes it.
    let groups = KEYS.div_ceil(448);
    let (more_lines, more_drains) = (slabs.0 - 3 * KEYS, slabs.1 - 2 * KEYS);
    assert_eq!(more_drains, groups + 2, "{slabs:?}");
    assert!(more_lines < groups + 200, "{slabs:?}");
    let get = |worker: &mut TableWorker| {
        for key in 0..2 * KEYS {
            assert_eq!(table.get(worker, key), Ok((key < KEYS).then_some(!key)));
        }
    };
    assert_eq!(cost(&mut worker, get), (0, 0));
    let remove = |worker: &mut TableWorker| {
        for key in 0..KEYS {
            assert_eq!(table.remove(worker, key), Ok(Some(!key)));
        }
    };
    assert_eq!(cost(&mut worker, remove), (3 * KEYS, 2 * KEYS));
}

/// The published code takes 13.0 lines and 9.0 fences per insert, with growth and its allocator.
#[test]
fn clevel_inserts_with_growth_cost_less_than_published() {
    const KEYS: u64 = 200_000;
    let medium = Mapped::anonymous(256 << 20).unwrap();
    let size = TableSize::Slots(65_536);
    let made = TableKind::Clevel.create(medium, &PoolPlan::published(), size, TablePreset::Farbank);
    let table = made.unwrap();
    let mut worker = table.worker().unwrap();
    let insert = |worker: &mut TableWorker| {
        for key in 0..KEYS {
            assert_eq!(table.insert(worker, key, !key), Ok(None));
        }
    };
    let (lines, drains) = cost(&mut worker, insert);
    let load = table.space(&mut worker).unwrap().load_factor();
    let (lines, drains) = (lines as f64 / KEYS as f64, drains as f64 / KEYS as f64);
    println!("{lines:.3} lines, {drains:.3} drains an insert; load factor {load:.3}");
    assert!(lines < 6.0 && drains < 5.0, "{lines} {drains}");
    table.check().unwrap();
}

/// A bucket is a line, so that a pair and its token need one flush. An insert costs one line and one drain, or three if
/// it moves a resident pair.
#[test]
fn level_flushes_a_line_and_drains_once() {
    const KEYS: u64 = 10_000;
    let (table, mut worker) = table(TableKind::Level);
    let insert = |worker: &mut TableWorker| {
        for key in 0..KEYS {
            assert_eq!(table.insert(worker, key, !key), Ok(None));
        }
    };
    assert_eq!(cost(&mut worker, insert), (KEYS, KEYS));
    let update = |worker: &mut TableWorker| {
        for key in 0..KEYS {
            assert_eq!(table.update(worker, key, key), Ok(Some(!key)));
        }
    };
    assert_eq!(cost(&mut worker, update), (KEYS, KEYS));
    let get = |worker: &mut TableWorker| {
        for key in 0..2 * KEYS {
            assert_eq!(table.get(worker, key), Ok((key < KEYS).then_some(key)));
        }
    };
    assert_eq!(cost(&mut worker, get), (0, 0));
    let remove = |worker: &mut TableWorker| {
        for key in 0..KEYS {
            assert_eq!(table.remove(worker, key), Ok(Some(key)));
        }
    };
    assert_eq!(cost(&mut worker, remove), (KEYS, KEYS));
}

/// The published code takes 5.5 lines and 6.4 fences per insert (two fences where one would do), with growth and its
/// allocator. After 2,000,000 keys from 65,536 slots, which become 36,864, its load factor is 42.39 %.
#[test]
#[ignore = "the suite `long-tests` runs it"]
fn level_has_the_published_load_factor_at_lower_cost() {
    const KEYS: u64 = 2_000_000;
    for (preset, some_lines, some_drains) in [
        (TablePreset::Farbank, 2.0..2.2, 1.0..1.1),
        (TablePreset::Published, 4.3..4.6, 3.0..3.2),
    ] {
        let medium = Mapped::anonymous(1 << 30).unwrap();
        let size = TableSize::Slots(65_536);
        let made = TableKind::Level.create(medium, &PoolPlan::published(), size, preset);
        let table = made.unwrap();
        let mut worker = table.worker().unwrap();
        let insert = |worker: &mut TableWorker| {
            for n in 1..=KEYS {
                let key = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                assert_eq!(table.insert(worker, key, n), Ok(None));
            }
        };
        let (lines, drains) = cost(&mut worker, insert);
        let space = table.space(&mut worker).unwrap();
        let (lines, drains) = (lines as f64 / KEYS as f64, drains as f64 / KEYS as f64);
        println!(
            "{preset:?}: {lines:.3} lines, {drains:.3} drains an insert; load factor {:.4}",
            space.load_factor()
        );
        assert!(some_lines.contains(&lines) && some_drains.contains(&drains));
        assert!((0.4238..0.4240).contains(&space.load_factor()));
    }
}

/// A table grows when one key finds no free slot, which depends on chance: other seeds give 84 to 88 % at this size,
/// and less for larger tables and tables that have grown more often. The published benchmark's figures are 79 % and
/// 52.6 % of the bytes, sampled once per million operations while a table grew from 9.4 million slots to 302 million.
#[test]
fn level_is_as_full_as_published_before_it_grows() {
    let medium = Mapped::anonymous(512 << 20).unwrap();
    let size = TableSize::Slots(1 << 20);
    let made =
        TableKind::Level.create(medium, &PoolPlan::published(), size, TablePreset::Published);
    let table = made.unwrap();
    let mut worker = table.worker().unwrap();
    let mut full = table.space(&mut worker).unwrap();
    let slots = full.slots;
    for n in 1_u64.. {
        let key = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        table.insert(&mut worker, key, n).unwrap();
        if n > slots * 3 / 4 && n.is_multiple_of(2_000) {
            let space = table.space(&mut worker).unwrap();
            if space.slots > slots {
                break;
            }
            full = space;
        }
    }
    let (load, utilisation) = (full.load_factor(), full.utilisation());
    println!("{slots} slots: load factor {load:.4}, utilisation {utilisation:.4}");
    assert!((0.79..0.89).contains(&load), "{load}");
    assert!((utilisation - load * 48.0 / 72.0).abs() < 1e-9);
}
