//! Damaged pools of every table: the result may be an error or lost keys, but never a panic or an endless loop.
//!
//! A trial overwrites a few words of the pool of a table with some thousand keys: words of its head, words that look
//! like offsets, or any words. Then the table is opened and used, twice. If this test does not end, it has found an
//! endless loop.

use farbank_check::guarded;
use farbank_index::registry::{TableKind, TablePreset, TableSize};
use farbank_index::{IndexError, OpenError, PoolPlan};
use farbank_pm::Off;
use farbank_pm::rng::Rng;
use farbank_pm::sim::{Persistency, PoolImage, Sim};

const BYTES: u64 = 2 << 20;
/// Sizes of tables with their chunk sizes: parts so small that a dozen keys make them grow, and those of the papers.
const CHUNKS: [(TableSize, u64); 2] =
    [(TableSize::Small, 4 << 10), (TableSize::Slots(1), 32 << 10)];
/// Start of the table's own words. The superblock before them has checksums.
const HEAD: u64 = 8 << 10;
/// Bytes of the head before the words of the chunks: the root, the reserved key, four contexts.
const HEAD_BYTES: u64 = 128 + 64 + 4 * 64;
const KEYS: u64 = 3_000;
const TRIALS: u64 = 100;

fn key(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Returns a pool whose table has grown, lost keys and grown again, up to `KEYS` keys or until it was full.
fn made(kind: TableKind, (size, chunk_bytes): (TableSize, u64)) -> PoolImage {
    let plan = PoolPlan {
        chunk_bytes,
        contexts: 4,
        ..PoolPlan::published()
    };
    let sim = Sim::new(BYTES, Persistency::Eadr);
    let table = kind
        .create(sim.clone(), &plan, size, TablePreset::Farbank)
        .unwrap();
    let mut worker = table.worker().unwrap();
    for n in 0..KEYS {
        if table.insert(&mut worker, key(n), n).is_err() {
            break;
        }
        if n % 5 == 0 {
            table.remove(&mut worker, key(n / 2)).unwrap();
        }
    }
    sim.visible()
}

/// Overwrites some words with plausible wrong values.
fn damage(image: &mut PoolImage, chunk_bytes: u64, links: &[u64], rng: &mut Rng) {
    for _ in 0..1 + rng.below(4) {
        let at = match rng.below(3) {
            0 => HEAD + 8 * rng.below(HEAD_BYTES / 8 + BYTES / chunk_bytes),
            1 => links[rng.below(links.len() as u64) as usize],
            _ => HEAD + 8 * rng.below((BYTES - HEAD) / 8),
        };
        let word = image.word(Off(at));
        let other = links[rng.below(links.len() as u64) as usize];
        let word = match rng.below(10) {
            0 => word ^ 1 << rng.below(64),
            1 => 0,
            2 => u64::MAX,
            3 => rng.draw(),
            4 => word & !0xff | 200,
            5 => word.wrapping_add(8 * rng.below(64)),
            6 => at & !0x3f,
            7 => BYTES - 8 * rng.below(16),
            8 => image.word(Off(other)),
            _ => word & !0x3f | image.word(Off(other)) & 0x3f,
        };
        image.set_word(Off(at), word);
    }
}

/// Returns the offsets of words that may be offsets.
fn links(image: &PoolImage) -> Vec<u64> {
    let words = (HEAD..BYTES).step_by(8);
    let is_link = |at: &u64| (HEAD..BYTES).contains(&(image.word(Off(*at)) & ((1 << 48) - 1)));
    words.filter(is_link).collect()
}

fn done<T>(result: Result<T, IndexError>) {
    match result {
        Ok(_)
        | Err(IndexError::Full { .. } | IndexError::Crowded { .. } | IndexError::Damaged { .. }) => {
        }
        Err(other) => panic!("{other}"),
    }
}

/// Opens the table of a pool and performs all operations. Returns the pool afterwards; `None` if the open refuses it.
fn used(kind: TableKind, image: PoolImage) -> Option<PoolImage> {
    let sim = Sim::from_image(image, Persistency::Eadr);
    let table = match kind.open(sim.clone()) {
        Ok(table) => table,
        Err(OpenError::Damaged { .. } | OpenError::Refused(IndexError::Full { .. })) => {
            return None;
        }
        Err(other) => panic!("{other}"),
    };
    let mut worker = table.worker().unwrap();
    for n in (0..KEYS).step_by(7) {
        done(table.get(&mut worker, key(n)));
        done(table.get(&mut worker, !key(n)));
        done(table.update(&mut worker, key(n), n + 1));
        done(table.remove(&mut worker, key(n + 1)));
        done(table.insert(&mut worker, key(n + KEYS), n));
    }
    let keys: Vec<u64> = (0..64).map(key).collect();
    done(table.get_batch(&mut worker, &keys, &mut [None; 64]));
    done(table.space(&mut worker));
    drop(worker);
    done(table.check());
    Some(sim.visible())
}

#[test]
fn a_damaged_pool_gives_an_error_or_loses_keys_without_a_panic() {
    for kind in TableKind::ALL {
        for size in CHUNKS {
            let image = made(kind, size);
            let links = links(&image);
            let mut opened = 0;
            for seed in 0..TRIALS {
                let mut damaged = image.clone();
                damage(&mut damaged, size.1, &links, &mut Rng::new(seed));
                let twice = || used(kind, damaged).map(|left| used(kind, left));
                let ended = guarded(twice)
                    .unwrap_or_else(|said| panic!("{kind}, {size:?}, seed {seed}: {said}"));
                opened += u64::from(ended.is_some());
            }
            println!("{kind}, {size:?}: {opened} of {TRIALS} damaged pools opened");
        }
    }
}

#[test]
fn an_open_refuses_a_reserved_key_that_is_neither_present_nor_absent() {
    /// Offset of the word that is 1 if the reserved key is present: after the root.
    const PRESENT: Off = Off(HEAD + 128);
    for kind in [TableKind::Cceh, TableKind::Clht] {
        let mut image = made(kind, CHUNKS[0]);
        assert_eq!(image.word(PRESENT), 0, "{kind}");
        image.set_word(PRESENT, 2);
        let opened = kind.open(Sim::from_image(image, Persistency::Eadr));
        let Err(OpenError::Damaged { what }) = opened.map(drop) else {
            panic!("{kind}: the open accepts a damaged reserved key");
        };
        assert!(what.contains("reserved key"), "{kind}: {what}");
    }
}

#[test]
fn a_pool_that_is_not_damaged_has_every_key() {
    for kind in TableKind::ALL {
        let sim = Sim::from_image(made(kind, CHUNKS[0]), Persistency::Eadr);
        let table = kind.open(sim).unwrap();
        table.check().unwrap();
        let mut worker = table.worker().unwrap();
        assert!(table.len(&mut worker).unwrap() > KEYS / 3, "{kind}");
    }
}
