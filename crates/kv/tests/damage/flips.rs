//! Tests of flipped bits in superblocks, segment heads and tails, the index snapshot, and records.

use farbank_check::Violation;
use farbank_kv::Kv;
use farbank_pm::Off;
use farbank_pm::rng::Rng;
use farbank_pm::sim::{PoolImage, Sim};

use crate::world::{Claim, FIRST, Pool, SEGMENT, SEGMENTS, flip, judge};

/// Offsets of records in a segment.
const RECORDS: std::ops::Range<u64> = 64..SEGMENT - 64;

/// The pools that the tests of single bytes damage.
fn pools() -> [Pool; 2] {
    [Pool::closed(1), Pool::killed(1)]
}

/// Damages each byte of `places` by itself, in turn one bit and all bits, and checks that no value is lost.
fn nothing_is_lost(pool: &Pool, places: impl Iterator<Item = u64>) {
    for (turn, at) in places.enumerate() {
        let mask = match turn % 2 {
            0 => 1 << (at / 2 % 8),
            _ => 0xff,
        };
        let mut image = pool.image.clone();
        flip(&mut image, at, mask);
        let outcome = pool.examine(image, |_, kv| {
            let mut session = kv.session();
            judge(&mut *session, &pool.past, Claim::Latest)?;
            Ok(kv.verify()?)
        });
        if let Err(wrong) = outcome {
            panic!("{}, byte {at:#x} xor {mask:#x}: {wrong}", pool.name);
        }
    }
}

#[test]
fn a_flipped_byte_of_a_superblock_copy_loses_nothing() {
    for pool in pools() {
        nothing_is_lost(&pool, (0..512).chain(4096..4608));
    }
}

#[test]
fn a_flipped_byte_of_a_segments_head_or_tail_loses_nothing() {
    for pool in pools() {
        let lines = (0..SEGMENTS).flat_map(|s| {
            let base = FIRST + s * SEGMENT;
            (base..base + 64).chain(base + SEGMENT - 64..base + SEGMENT)
        });
        nothing_is_lost(&pool, lines);
    }
}

/// Returns the segments of the index snapshot.
fn snapshot_segments(image: &PoolImage) -> Vec<u64> {
    const NAMED_AT: u64 = 128;
    let mut segments = Vec::new();
    let mut next = image.word(Off(NAMED_AT));
    while next != 0 {
        segments.push(next - 1);
        next = image.word(Off(FIRST + (next - 1) * SEGMENT + RECORDS.start));
    }
    segments
}

#[test]
#[ignore = "the suite `long-tests` runs it"]
fn a_flipped_byte_of_the_index_snapshot_loses_nothing() {
    let pool = Pool::closed(1);
    let segments = snapshot_segments(&pool.image);
    assert!(!segments.is_empty(), "a clean close leaves a snapshot");
    for segment in segments {
        let base = FIRST + segment * SEGMENT;
        nothing_is_lost(&pool, base..base + SEGMENT);
    }
}

/// Returns the offsets of bytes of `image` that may belong to records, without those of the snapshot.
fn record_bytes(image: &PoolImage) -> Vec<u64> {
    let snapshot = snapshot_segments(image);
    let segments = (0..SEGMENTS).filter(|s| !snapshot.contains(s));
    let words = segments.flat_map(|s| RECORDS.step_by(8).map(move |at| FIRST + s * SEGMENT + at));
    let written = words.filter(|at| image.word(Off(*at)) != 0);
    written.flat_map(|word| word..word + 8).collect()
}

/// Flips a bit in each of `count` bytes of records, on each of `copies` copies of a pool.
fn records_flipped(pool: &Pool, copies: u64, count: u64) {
    let places = record_bytes(&pool.image);
    for seed in 0..copies {
        let mut rng = Rng::new(seed);
        let mut image = pool.image.clone();
        for _ in 0..count {
            let at = places[rng.below(places.len() as u64) as usize];
            flip(&mut image, at, 1 << rng.below(8));
        }
        if let Err(wrong) = pool.stands(image, seed, Claim::LatestOrError) {
            panic!(
                "{}, {count} record bytes flipped by seed {seed}: {wrong}",
                pool.name
            );
        }
    }
}

#[test]
fn a_hundred_flipped_record_bytes_give_errors_and_no_wrong_value() {
    for seed in 0..8 {
        for pool in [Pool::closed(seed), Pool::killed(seed)] {
            records_flipped(&pool, 63, 100);
        }
    }
}

#[test]
#[ignore = "the suite `long-tests` runs it"]
fn a_flipped_record_byte_gives_an_error_and_no_wrong_value() {
    for seed in 0..4 {
        for pool in [Pool::closed(seed), Pool::killed(seed)] {
            records_flipped(&pool, 400, 1);
        }
    }
}

#[test]
#[ignore = "the suite `long-tests` runs it"]
fn a_record_damaged_while_the_pool_is_closed_is_never_an_older_value() {
    let pool = Pool::closed(2);
    for at in record_bytes(&pool.image).into_iter().step_by(3) {
        let mut image = pool.image.clone();
        flip(&mut image, at, 0xff);
        let outcome = pool.examine(image, |_, kv| {
            assert!(kv.opened().clean);
            judge(&mut *kv.session(), &pool.past, Claim::LatestOrError)
        });
        if let Err(wrong) = outcome {
            panic!("{}, byte {at:#x} xor 0xff: {wrong}", pool.name);
        }
    }
}

fn only_known_keys_are_listed(pool: &Pool, kv: &Kv<Sim>) -> Result<(), Violation> {
    let mut strangers = Vec::new();
    let mut session = kv.session();
    let mut each = |k: &[u8], _: &_| {
        // `Pool::killed` writes the key `last` without adding it to the history.
        if k != b"last" && !pool.past.0.contains_key(k) {
            strangers.push(String::from_utf8_lossy(k).into_owned());
        }
    };
    let scanned = session.scan(0, 0, usize::MAX, &mut each);
    match scanned == Ok(0) && strangers.is_empty() {
        true => Ok(()),
        false => Err(Violation::new(format!(
            "a scan returned {scanned:?}, and listed keys that were never written: {strangers:?}"
        ))),
    }
}

#[test]
fn a_damaged_key_is_not_listed() {
    for pool in pools() {
        for at in record_bytes(&pool.image).into_iter().step_by(29) {
            let mut image = pool.image.clone();
            flip(&mut image, at, 0xff);
            let outcome = pool.examine(image, |_, kv| only_known_keys_are_listed(&pool, &kv));
            if let Err(wrong) = outcome {
                panic!("{}, byte {at:#x} xor 0xff: {wrong}", pool.name);
            }
        }
    }
}

#[test]
fn a_segment_whose_head_was_zeroed_keeps_its_records_or_is_reported() {
    for pool in pools() {
        let mut reported = 0;
        for segment in 0..SEGMENTS {
            let mut image = pool.image.clone();
            let head = FIRST + segment * SEGMENT;
            (head..head + 64)
                .step_by(8)
                .for_each(|at| image.set_word(Off(at), 0));
            let outcome = pool.examine(image, |_, kv| {
                let damage = &kv.opened().damage;
                reported += usize::from(!damage.is_empty());
                let claim = match damage.is_empty() {
                    true => Claim::Latest,
                    false => Claim::LatestOrError,
                };
                judge(&mut *kv.session(), &pool.past, claim)?;
                Ok(kv.verify()?)
            });
            if let Err(wrong) = outcome {
                panic!("{}, head of segment {segment}: {wrong}", pool.name);
            }
        }
        assert!(
            (1..SEGMENTS as usize).contains(&reported),
            "{}: {reported} of {SEGMENTS} reported",
            pool.name
        );
    }
}

#[test]
fn a_segment_that_was_zeroed_from_end_to_end_is_reported() {
    for pool in pools() {
        for segment in (0..SEGMENTS).step_by(5) {
            let mut image = pool.image.clone();
            let from = FIRST + segment * SEGMENT;
            (from..from + SEGMENT)
                .step_by(8)
                .for_each(|at| image.set_word(Off(at), 0));
            let outcome = pool.examine(image, |_, kv| {
                let told = format!("segment {segment} at");
                let is_told = kv.opened().damage.iter().any(|line| line.contains(&told));
                judge(&mut *kv.session(), &pool.past, Claim::EverOrError)?;
                is_told
                    .then_some(())
                    .ok_or(Violation::new(format!("{:?}", kv.opened().damage)))
            });
            if let Err(wrong) = outcome {
                panic!("{}, segment {segment}: {wrong}", pool.name);
            }
        }
    }
}
