//! `v1` and `v2` under the contest's mix: nothing is lost while they run, and the published figures that do not
//! depend on hardware come out.

mod cost;
mod support;

use farbank_contest::{
    BlockPools, ContestLimits, Engine, EngineStats, Error, ReusePolicy, StripeLock, v1, v1::V1, v2,
    v2::V2,
};
use farbank_pm::media::Mapped;
use support::Stored;

fn medium(terms: &ContestLimits) -> Mapped {
    Mapped::anonymous(terms.far_bytes).unwrap()
}

fn new_v1(terms: &ContestLimits, tuning: v1::V1Tuning) -> V1<Mapped> {
    V1::create(medium(terms), terms, tuning).unwrap()
}

fn new_v2(terms: &ContestLimits, tuning: v2::V2Tuning) -> V2<Mapped> {
    V2::create(medium(terms), terms, tuning).unwrap()
}

/// Has every thread of the terms run `f`; what each has stored.
fn in_threads(
    terms: &ContestLimits,
    mut stored: Vec<Stored>,
    f: impl Fn(u64, &mut Stored) -> Result<(), Error> + Sync,
) -> Vec<Stored> {
    stored.resize_with(terms.threads, Stored::default);
    std::thread::scope(|scope| {
        for (thread, mine) in stored.iter_mut().enumerate() {
            let f = &f;
            scope.spawn(move || f(thread as u64, mine).unwrap());
        }
    });
    stored
}

/// A set phase, then a get phase of an eighth of its length; all is checked. The tallies of both.
fn contest(engine: &dyn Engine, terms: &ContestLimits) -> (EngineStats, EngineStats, Vec<Stored>) {
    let stored = in_threads(terms, Vec::new(), |thread, mine| {
        support::set_phase(engine, terms, thread, mine)
    });
    let sets = engine.stats();
    let operations = terms.operations / terms.threads as u64 / 8;
    let stored = in_threads(terms, stored, |thread, mine| {
        support::get_phase(engine, operations, 200, thread, mine)
    });
    let both = engine.stats();
    for (thread, mine) in stored.iter().enumerate() {
        support::check(engine, thread as u64, mine);
    }
    (sets, both, stored)
}

fn small() -> ContestLimits {
    ContestLimits::finals(1 << 14).with_threads(4)
}

#[test]
fn v1_has_what_four_threads_stored_whatever_its_tuning() {
    let usual = v1::V1Tuning::PUBLISHED;
    let tunings = [
        usual,
        v1::V1Tuning {
            pools: BlockPools::PerThread,
            lock: StripeLock::Spin,
            value_reuse: true,
            mirror: false,
            preheat: true,
            ..usual
        },
        v1::V1Tuning {
            swaps: false,
            cache_slots: Some(0),
            ..usual
        },
    ];
    // Without swaps, space is lost to blocks of sizes that are not wanted.
    for tuning in tunings {
        let terms = ContestLimits {
            operations: 12_000,
            ..small()
        };
        contest(&new_v1(&terms, tuning), &terms);
    }
}

#[test]
fn v2_has_what_four_threads_stored_whatever_its_tuning() {
    let usual = v2::V2Tuning::PUBLISHED;
    let tunings = [
        usual,
        v2::V2Tuning::FIXED,
        v2::V2Tuning {
            pools: BlockPools::Global,
            lock: StripeLock::Mutex,
            value_reuse: false,
            preheat: false,
            ..usual
        },
        v2::V2Tuning {
            locality: false,
            cache_slots: Some(0),
            writes: v2::WritesPerRecord::Two,
            ..usual
        },
        v2::V2Tuning {
            swaps: false,
            cache_slots: Some(16),
            ..usual
        },
    ];
    for tuning in tunings {
        let terms = ContestLimits {
            operations: 12_000,
            ..small()
        };
        contest(&new_v2(&terms, tuning), &terms);
    }
}

#[test]
fn readers_of_a_key_that_is_being_written_see_whole_values() {
    const TURNS: u64 = 4_000;
    let terms = with_74_gib(small());
    let v1 = new_v1(&terms, v1::V1Tuning::PUBLISHED);
    let v2 = new_v2(&terms, v2::V2Tuning::PUBLISHED);
    for engine in [&v1 as &dyn Engine, &v2] {
        let key = support::key_of(0, 1);
        let value = |turn: u64| {
            let mut bytes = support::value(&key, turn, 80 + (turn % 40) as usize);
            bytes[..8].copy_from_slice(&turn.to_le_bytes());
            bytes
        };
        engine.worker().set(&key, &value(0)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut worker = engine.worker();
                (1..=TURNS).for_each(|turn| worker.set(&key, &value(turn)).unwrap());
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    let (mut worker, mut out, mut last) = (engine.worker(), Vec::new(), 0);
                    while last < TURNS {
                        assert!(worker.get(&key, &mut out));
                        let turn = u64::from_le_bytes(*out.first_chunk().unwrap());
                        assert_eq!(out, value(turn));
                        assert!(turn >= last, "{turn} after {last}");
                        last = turn;
                    }
                });
            }
        });
    }
}

/// Sets of the mix that were taken, of all, and what the engine counted; every thread goes on until it is refused.
fn taken(engine: &dyn Engine, terms: &ContestLimits) -> (f64, EngineStats) {
    in_threads(terms, Vec::new(), |thread, mine| {
        let done = support::set_phase(engine, terms, thread, mine);
        let refused = matches!(done, Err(Error::Full));
        done.or(if refused { Ok(()) } else { Err(Error::Full) })
    });
    let tally = engine.stats();
    let sets = tally.inserts + tally.updates;
    (sets as f64 / terms.operations as f64, tally)
}

/// The text of the third place gives the final round 74 GiB of far memory, in one of two places.
fn with_74_gib(terms: ContestLimits) -> ContestLimits {
    ContestLimits {
        far_bytes: terms.far_bytes / 64 * 74,
        ..terms
    }
}

#[test]
fn the_whole_mix_fits_into_74_gib_as_published() {
    let terms = with_74_gib(ContestLimits::finals(4096).with_threads(4));
    let v1 = new_v1(&terms, v1::V1Tuning::PUBLISHED);
    let v2 = new_v2(&terms, v2::V2Tuning::PUBLISHED);
    for (name, engine) in [("v1", &v1 as &dyn Engine), ("v2", &v2)] {
        let (sets, both, stored) = contest(engine, &terms);
        assert_eq!(sets.inserts + sets.updates, terms.operations, "{name}");
        let live: u64 = stored.iter().map(|s| s.live_bytes).sum();
        assert!(live <= terms.live_bytes_max, "{name}: {live} bytes live");
        // Published: close to two thirds of the set phase's updates, nearly all of the get phase's.
        let share = sets.swaps as f64 / sets.updates as f64;
        assert!((0.60..0.70).contains(&share), "{name}: {share} swapped");
        let updates = both.updates - sets.updates;
        let share = (both.swaps - sets.swaps) as f64 / updates as f64;
        assert!(share > 0.97, "{name}: {share} swapped in the get phase");
        // The number of hits depends on the order of the threads: a set of another thread empties slots.
        assert!(both.cache_hits > 0, "{name}: {both:?}");
    }
}

#[test]
fn into_64_gib_the_mix_fits_only_if_blocks_are_used_again_from_the_start() {
    let terms = ContestLimits::finals(4096).with_threads(4);
    let as_published = |reuse| {
        let v1 = v1::V1Tuning {
            reuse,
            ..v1::V1Tuning::PUBLISHED
        };
        let v2 = v2::V2Tuning {
            reuse,
            ..v2::V2Tuning::PUBLISHED
        };
        let (v1, v2) = (new_v1(&terms, v1), new_v2(&terms, v2));
        (taken(&v1, &terms).0, taken(&v2, &terms).0)
    };
    let (v1, v2) = as_published(ReusePolicy::NearTheEnd);
    assert!((0.84..0.92).contains(&v1), "v1 took {v1} of the sets");
    assert!((0.89..0.96).contains(&v2), "v2 took {v2} of the sets");
    let (v1, v2) = as_published(ReusePolicy::Always);
    assert!((0.90..0.96).contains(&v1), "v1 took {v1} of the sets");
    assert_eq!(v2, 1.0, "v2 took {v2} of the sets");
}

#[test]
#[ignore = "the suite `long-tests` runs it"]
fn chains_are_as_deep_as_published() {
    let terms = with_74_gib(ContestLimits::finals(1024).with_threads(2));
    let v1 = new_v1(
        &terms,
        v1::V1Tuning {
            cache_slots: Some(0),
            ..v1::V1Tuning::PUBLISHED
        },
    );
    let v2 = new_v2(
        &terms,
        v2::V2Tuning {
            cache_slots: Some(0),
            ..v2::V2Tuning::PUBLISHED
        },
    );
    for (name, engine) in [("v1", &v1 as &dyn Engine), ("v2", &v2)] {
        let stored = in_threads(&terms, Vec::new(), |thread, mine| {
            support::set_phase(engine, &terms, thread, mine)
        });
        let before = engine.stats().depth;
        for (thread, mine) in stored.iter().enumerate() {
            support::check(engine, thread as u64, mine);
        }
        let after = engine.stats().depth;
        let depth: [f64; 4] = std::array::from_fn(|n| (after[n] - before[n]) as f64);
        let all: f64 = depth.iter().sum();
        for (found, published) in depth.iter().zip([67.2, 24.6, 6.6, 1.6]) {
            let found = found / all * 100.0;
            assert!((found - published).abs() < 0.5, "{name}: {depth:?}");
        }
    }
}

#[test]
#[ignore = "the suite `long-tests` runs it"]
fn at_full_size_the_tables_are_as_large_as_published() {
    // 1/64 of everything; the tables are a power of two of it.
    let terms = ContestLimits::finals(64);
    let mib = |engine: &dyn Engine, what: &str| {
        let all = engine.dram();
        let (_, bytes) = all.iter().find(|(name, _)| *name == what).unwrap();
        *bytes as f64 * 64.0 / (1 << 20) as f64
    };
    let v1 = new_v1(&terms, v1::V1Tuning::PUBLISHED);
    assert_eq!(mib(&v1, "index"), 2048.0);
    assert_eq!(mib(&v1, "read cache"), 262.0);
    let v2 = new_v2(&terms, v2::V2Tuning::PUBLISHED);
    assert_eq!(mib(&v2, "index"), 1024.0);
    assert_eq!(mib(&v2, "keys").round(), 225.0 * 28.0);
    let dram: u64 = v2.dram().iter().map(|(_, bytes)| bytes).sum();
    assert!(dram <= terms.dram_bytes, "{:?}", v2.dram());
}
