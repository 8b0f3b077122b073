//! Counted costs of P-CLHT.

use farbank_index::PoolPlan;
use farbank_index::registry::{TableKind, TablePreset, TableSize};
use farbank_pm::media::Mapped;

#[test]
fn an_insert_and_a_remove_cost_a_line_and_a_drain() {
    let medium = Mapped::anonymous(64 << 20).unwrap();
    let size = TableSize::Slots(3 << 16);
    let table = TableKind::Clht.create(medium, &PoolPlan::published(), size, TablePreset::Farbank);
    let table = table.unwrap();
    let mut worker = table.worker().unwrap();
    let keys = 1..=1_000_u64;
    for key in keys.clone() {
        table.insert(&mut worker, key, !key).unwrap();
    }
    let inserted = worker.counters();
    assert_eq!((inserted.lines, inserted.fences), (1_000, 1_000));
    for key in keys.clone() {
        table.update(&mut worker, key, key).unwrap();
    }
    for key in keys {
        table.get(&mut worker, key).unwrap().unwrap();
        table.remove(&mut worker, key).unwrap();
    }
    let all = worker.counters();
    assert_eq!((all.lines, all.fences), (3_000, 3_000));
}

/// Measured like the published code: from 65,536 slots, growth included. The published code took 1.90 lines and 2.43
/// fences, and ended at a load factor of 56.24 %.
#[test]
#[ignore = "the suite `long-tests` runs it"]
fn growth_adds_a_line_and_a_quarter_of_a_drain_per_insert() {
    const KEYS: u64 = 2_000_000;
    let medium = Mapped::anonymous(512 << 20).unwrap();
    let size = TableSize::Slots(65_536);
    let table = TableKind::Clht.create(medium, &PoolPlan::published(), size, TablePreset::Farbank);
    let table = table.unwrap();
    let mut worker = table.worker().unwrap();
    for n in 1..=KEYS {
        let key = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        assert_eq!(table.insert(&mut worker, key, n), Ok(None));
    }
    let counted = worker.counters();
    let each = |count: u64| count as f64 / KEYS as f64;
    let (lines, fences) = (each(counted.lines), each(counted.fences));
    let space = table.space(&mut worker).unwrap();
    let load = space.load_factor();
    println!(
        "{lines:.3} lines, {fences:.3} fences an insert; load factor {load:.4}, utilisation {:.4}",
        space.utilisation()
    );
    assert!((2.1..2.25).contains(&lines) && (1.2..1.25).contains(&fences));
    assert!((0.561..0.564).contains(&load), "{load}");
}

/// The array is replaced when there are as many chained buckets as array buckets, at five keys per array bucket: 5 of 6
/// slots. The published benchmark measured 83 %, and 62.2 % of the bytes.
#[test]
#[ignore = "the suite `long-tests` runs it"]
fn the_load_factor_before_a_resize_is_the_papers() {
    let medium = Mapped::anonymous(256 << 20).unwrap();
    let size = TableSize::Slots(3 << 15);
    let table = TableKind::Clht.create(medium, &PoolPlan::published(), size, TablePreset::Farbank);
    let table = table.unwrap();
    let mut worker = table.worker().unwrap();
    let (mut highest, mut utilisation) = (0.0_f64, 0.0_f64);
    for n in 1..=400_000_u64 {
        let key = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        table.insert(&mut worker, key, n).unwrap();
        if n % 1_000 == 0 && n > 150_000 {
            let space = table.space(&mut worker).unwrap();
            highest = highest.max(space.load_factor());
            utilisation = utilisation.max(space.utilisation());
        }
    }
    println!("highest load factor {highest:.4}, utilisation {utilisation:.4}");
    assert!((0.82..0.84).contains(&highest), "{highest}");
    assert!((0.615..0.635).contains(&utilisation), "{utilisation}");
}
