//! Tests of pools that are cut off, or of which parts are replaced by other bytes.

use farbank_check::Violation;
use farbank_check::guarded;
use farbank_kv::Kv;
use farbank_pm::media::{AnyMedium, OpenOptions, open_path};
use farbank_pm::rng::Rng;
use farbank_pm::sim::{Persistency, PoolImage, Sim};

use crate::world::{Claim, FIRST, POOL, Pool, SEGMENT, SEGMENTS, config};

/// Checks that opening `bytes` as a pool returns an error, and does not panic.
fn is_refused(bytes: &[u8]) -> Result<(), Violation> {
    let sim = Sim::from_image(PoolImage::from_bytes(bytes), Persistency::Eadr);
    match guarded(|| Kv::open(sim, config()).map(|_| ()))? {
        Err(error) if !error.to_string().is_empty() => Ok(()),
        other => Err(Violation::new(format!("opened: {other:?}"))),
    }
}

#[test]
fn a_pool_cut_at_any_length_is_refused() {
    for pool in [Pool::closed(3), Pool::killed(3)] {
        let bytes = pool.image.to_bytes();
        let ends = (0..FIRST).chain((FIRST..POOL - 8).step_by(61));
        for len in ends {
            if let Err(wrong) = is_refused(&bytes[..len as usize]) {
                panic!("{}, cut to {len} bytes: {wrong}", pool.name);
            }
        }
    }
}

#[test]
fn a_pool_file_cut_at_any_length_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("pool");
    let bytes = Pool::killed(3).image.to_bytes();
    for len in [
        0,
        1,
        511,
        512,
        4095,
        4096,
        8191,
        8192,
        12_288,
        bytes.len() - 4096,
        bytes.len() - 1,
    ] {
        std::fs::write(&path, &bytes[..len]).expect("a file");
        let error = match open_path(&path, &OpenOptions::default()) {
            Err(error) => error.to_string(),
            Ok(AnyMedium::File(medium)) => Kv::open(medium, config())
                .map(|_| ())
                .unwrap_err()
                .to_string(),
            Ok(AnyMedium::Mapped(medium)) => Kv::open(medium, config())
                .map(|_| ())
                .unwrap_err()
                .to_string(),
        };
        assert!(!error.is_empty());
        let left = std::fs::read(&path).expect("a file");
        assert!(
            left == bytes[..len],
            "the file of {len} bytes was changed: {error}"
        );
    }
}

#[test]
fn zeros_and_random_bytes_are_refused_as_no_pool() {
    is_refused(&vec![0; POOL as usize]).unwrap();
    for seed in 0..2_000 {
        let mut rng = Rng::new(seed);
        let len = 1 + rng.below(6 * SEGMENT);
        let bytes: Vec<u8> = (0..len).map(|_| rng.draw() as u8).collect();
        if let Err(wrong) = is_refused(&bytes) {
            panic!("{len} random bytes of seed {seed}: {wrong}");
        }
    }
}

/// Replacement for a range of bytes in a pool.
#[derive(Clone, Copy, Debug)]
enum Replacement {
    Random,
    Zeros,
    Ones,
    /// The bytes at the same offset of another pool.
    Another,
    /// The bytes at another offset of this pool.
    Elsewhere,
}

const WAYS: [Replacement; 5] = [
    Replacement::Random,
    Replacement::Zeros,
    Replacement::Ones,
    Replacement::Another,
    Replacement::Elsewhere,
];

/// Replaces `words` words at `at` in `image`.
fn replace(
    image: &mut PoolImage,
    at: u64,
    words: u64,
    with: Replacement,
    another: &PoolImage,
    rng: &mut Rng,
) {
    let away = FIRST + rng.below((POOL - FIRST) / 64 - words / 8) * 64;
    let source = image.clone();
    for word in 0..words {
        let here = farbank_pm::Off(at + word * 8);
        image.set_word(
            here,
            match with {
                Replacement::Random => rng.draw(),
                Replacement::Zeros => 0,
                Replacement::Ones => u64::MAX,
                Replacement::Another => another.word(here),
                Replacement::Elsewhere => source.word(farbank_pm::Off(away + word * 8)),
            },
        );
    }
}

/// Replaces random units of `unit_bytes` in copies of pools, and checks the copies ([`Pool::stands`]).
fn stretches_replaced(units: u64, unit_bytes: u64, seeds: u64) {
    let another = Pool::closed(100).image;
    for pool in [Pool::closed(4), Pool::killed(4)] {
        for seed in 0..seeds {
            let mut rng = Rng::new(seed);
            let mut image = pool.image.clone();
            let with = WAYS[(seed % WAYS.len() as u64) as usize];
            for _ in 0..=rng.below(units) {
                let at = FIRST + rng.below((POOL - FIRST) / unit_bytes) * unit_bytes;
                replace(&mut image, at, unit_bytes / 8, with, &another, &mut rng);
            }
            if let Err(wrong) = pool.stands(image, seed, Claim::EverOrError) {
                panic!(
                    "{}, {unit_bytes}-byte units, {with:?}, seed {seed}: {wrong}",
                    pool.name
                );
            }
        }
    }
}

#[test]
fn replaced_lines_give_errors_and_no_wrong_value() {
    stretches_replaced(3, 64, 500);
}

#[test]
fn replaced_sectors_give_errors_and_no_wrong_value() {
    stretches_replaced(3, 512, 500);
}

#[test]
fn replaced_segments_give_errors_and_no_wrong_value() {
    stretches_replaced(2, SEGMENT, 500);
}

#[test]
fn a_valid_superblock_before_replaced_segments_gives_errors_and_no_wrong_value() {
    let another = Pool::closed(100).image;
    for pool in [Pool::closed(5), Pool::killed(5)] {
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let mut image = pool.image.clone();
            let with = WAYS[(seed % 4) as usize];
            // Replaces the segments whole, or without their heads and tails.
            let keep = if rng.one_in(2) { 64 } else { 0 };
            for segment in 0..SEGMENTS {
                let at = FIRST + segment * SEGMENT + keep;
                replace(
                    &mut image,
                    at,
                    (SEGMENT - 2 * keep) / 8,
                    with,
                    &another,
                    &mut rng,
                );
            }
            if let Err(wrong) = pool.stands(image, seed, Claim::EverOrError) {
                panic!(
                    "{}, all segments replaced, {with:?}, keep {keep}, seed {seed}: {wrong}",
                    pool.name
                );
            }
        }
    }
}
