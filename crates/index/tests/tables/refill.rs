//! A table whose pool is full, from which half of the keys are removed.

use farbank_index::registry::{TableKind, TablePreset, TableSize};
use farbank_index::{Index, IndexError, PoolPlan, TableWorker};
use farbank_pm::media::Mapped;

fn key(n: u64) -> u64 {
    (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Returns a table in a pool of 4 MiB, filled until the first key is refused, with the number of its keys.
fn full(kind: TableKind) -> (Box<dyn Index>, TableWorker, u64) {
    let medium = Mapped::anonymous(4 << 20).unwrap();
    let plan = PoolPlan {
        chunk_bytes: 64 << 10,
        contexts: 4,
        ..PoolPlan::published()
    };
    let made = kind.create(medium, &plan, TableSize::Slots(1_024), TablePreset::Farbank);
    let table = made.unwrap();
    let mut worker = table.worker().unwrap();
    let keys = (0..).take_while(|n| accepts(&*table, &mut worker, *n));
    let keys = keys.count() as u64;
    (table, worker, keys)
}

fn accepts(table: &dyn Index, worker: &mut TableWorker, n: u64) -> bool {
    match table.insert(worker, key(n), n) {
        Ok(found) => {
            assert_eq!(found, None, "{}", table.name());
            true
        }
        Err(why) => {
            assert!(
                matches!(why, IndexError::Full { .. }),
                "{}: {why}",
                table.name()
            );
            false
        }
    }
}

/// Removed keys leave free slots. The placement of a key depends on the keys inserted before, so a segment may be full
/// sooner than the first time, and cannot be split in a full pool. docs/papers/dash-eh.md has the figures. No other
/// slot is lost.
#[test]
fn nearly_all_keys_fit_again_when_half_were_removed() {
    for kind in TableKind::ALL {
        let (table, mut worker, keys) = full(kind);
        for n in (0..keys).step_by(2) {
            assert_eq!(table.remove(&mut worker, key(n)), Ok(Some(n)), "{kind}");
        }
        let removed = keys.div_ceil(2);
        let mut refused = Vec::new();
        for n in (0..keys).step_by(2) {
            if !accepts(&*table, &mut worker, n) {
                refused.push(n);
            }
        }
        let first = refused.first().map_or(keys, |n| keys - removed + n / 2);
        println!(
            "{kind}: {keys} keys; after the removals {first} keys until the first refusal, {} refused",
            refused.len()
        );
        assert!(
            refused.len() as u64 <= removed / 1_000,
            "{kind}: {}",
            refused.len()
        );
        table.check().unwrap();
    }
}

/// Inserts other keys than those for which the table grew. A slot of P-CLHT's chained buckets belongs to one chain
/// permanently, and other keys need slots in other chains.
#[test]
fn most_of_the_same_number_of_other_keys_fit_when_half_were_removed() {
    for kind in TableKind::ALL {
        let (table, mut worker, keys) = full(kind);
        for n in (0..keys).step_by(2) {
            assert_eq!(table.remove(&mut worker, key(n)), Ok(Some(n)), "{kind}");
        }
        let others = (keys + 1..).take(keys.div_ceil(2) as usize);
        let taken: Vec<_> = others.map(|n| accepts(&*table, &mut worker, n)).collect();
        let first = taken.iter().position(|taken| !taken).unwrap_or(taken.len());
        let refused = taken.iter().filter(|taken| !**taken).count();
        println!(
            "{kind}: {keys} keys; {} with other keys until the first refusal, {refused} refused",
            keys / 2 + first as u64
        );
        let most = if kind == TableKind::Clht { 10 } else { 50 };
        assert!(refused as u64 <= keys / most, "{kind}: {refused}");
        table.check().unwrap();
    }
}
