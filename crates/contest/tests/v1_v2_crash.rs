//! Power cuts of `v1` and `v2`: the data that they keep, and the data that they are known to lose.
//!
//! The seeds are those of the explorer: see `farbank check crash --target v2`. A test identifies an expected violation by its
//! text, so that a different violation fails the test.

use std::sync::{Arc, Mutex};

use farbank_check::explore::{ExploreConfig, explore};
use farbank_check::{CrashReport, Value, Violation};
use farbank_contest::target::{EngineConfig, EngineTarget, explorer_limits, key_of};
use farbank_contest::v1::V1Config;
use farbank_contest::v2::{V2, V2Checksum, V2Config};
use farbank_contest::{Engine, Error, Worker, v1, v2};
use farbank_pm::sim::{CrashState, Persistency, Sim};

/// Power cuts only: no reader sees the writes of a killed process.
fn power_cuts(persistency: Persistency) -> ExploreConfig {
    ExploreConfig {
        kill_one_in: u64::MAX,
        io_errors: false,
        ..ExploreConfig::new(persistency)
    }
}

fn explored(
    recipe: impl EngineConfig,
    config: &ExploreConfig,
    seeds: std::ops::Range<u64>,
) -> CrashReport {
    explore(&EngineTarget(recipe), config, seeds, 2, &mut |_| true)
}

/// What the violation of this one seed says, and how it was come to.
fn violation(recipe: impl EngineConfig, config: &ExploreConfig, seed: u64) -> (String, String) {
    let report = explored(recipe, config, seed..seed + 1);
    let violation = report.violations.first();
    let violation = violation.unwrap_or_else(|| panic!("seed {seed} finds nothing: {report}"));
    (violation.what.clone(), violation.trail.join("; "))
}

#[test]
fn v1_keeps_every_word_it_gave_when_only_the_power_goes() {
    for persistency in [Persistency::Adr, Persistency::Word, Persistency::Eadr] {
        let recipe = V1Config(v1::V1Tuning::PUBLISHED);
        let report = explored(recipe, &power_cuts(persistency), 0..2);
        assert!(report.holds(), "{report}");
        assert!(report.counts.images > 1_000, "{report}");
    }
}

#[test]
fn v1_shows_what_a_killed_process_wrote_and_then_loses_it() {
    let config = ExploreConfig::new(Persistency::Adr);
    let (what, trail) = violation(V1Config(v1::V1Tuning::PUBLISHED), &config, 2);
    assert!(
        what.contains("acknowledged as v2(85 bytes), found v1("),
        "{what}"
    );
    assert!(trail.contains("kill; after the open"), "{trail}");
    let mended = v1::V1Tuning {
        persist_recovered: true,
        ..v1::V1Tuning::PUBLISHED
    };
    for persistency in [Persistency::Adr, Persistency::Word] {
        let report = explored(V1Config(mended), &ExploreConfig::new(persistency), 1..4);
        assert!(report.holds(), "{report}");
    }
}

#[test]
fn v2_shows_values_that_nobody_wrote() {
    for (persistency, seed) in [(Persistency::Adr, 0), (Persistency::Word, 2)] {
        let config = power_cuts(persistency);
        let (what, trail) = violation(V2Config(v2::V2Tuning::PUBLISHED), &config, seed);
        assert!(what.contains("are wrong from byte"), "{what}");
        assert!(
            trail.contains("before drain"),
            "in the middle of a set: {trail}"
        );
    }
}

#[test]
fn v2_goes_back_to_older_values_if_only_its_appends_do_not_count() {
    let tuning = v2::V2Tuning {
        appends_count: false,
        ..v2::V2Tuning::FIXED
    };
    let config = power_cuts(Persistency::Word);
    let (what, trail) = violation(V2Config(tuning), &config, 2);
    assert!(
        what.contains("acknowledged as v13(149 bytes), found v12("),
        "{what}"
    );
    assert!(trail.contains("between operations"), "{trail}");
}

#[test]
fn v2_loses_what_a_killed_process_wrote_if_only_its_recovery_is_not_durable() {
    let tuning = v2::V2Tuning {
        persist_recovered: false,
        ..v2::V2Tuning::FIXED
    };
    let (what, trail) = violation(V2Config(tuning), &ExploreConfig::new(Persistency::Adr), 4);
    assert!(
        what.contains("acknowledged as v3(231 bytes), not found"),
        "{what}"
    );
    assert!(trail.contains("kill; after the open"), "{trail}");
}

#[test]
fn v2_mended_holds_but_sixteen_bits_of_checksum_are_too_few() {
    mended_holds_until_a_checksum_collides(Persistency::Adr);
}

#[test]
fn v2_mended_holds_but_sixteen_bits_are_too_few_if_words_overtake_each_other() {
    mended_holds_until_a_checksum_collides(Persistency::Word);
}

fn mended_holds_until_a_checksum_collides(persistency: Persistency) {
    let mended = V2Config(v2::V2Tuning::FIXED);
    let config = ExploreConfig::new(persistency);
    let report = explored(mended, &config, 2..3);
    assert!(report.holds(), "{report}");
    // Some 10,000 torn records on, one of them has the checksum of a whole one.
    let (what, _) = violation(mended, &config, 1);
    assert!(what.contains("are wrong from byte"), "{what}");
}

/// Explores `v2` with the published checksum and a record of two writes.
fn two_writes_hold(persistency: Persistency) {
    let tuning = v2::V2Tuning {
        writes: v2::WritesPerRecord::Two,
        checksum: V2Checksum::Published,
        ..v2::V2Tuning::FIXED
    };
    let report = explored(V2Config(tuning), &ExploreConfig::new(persistency), 0..1);
    assert!(report.holds(), "{report}");
}

#[test]
#[ignore = "the suite `long-tests` runs it"]
fn v2_needs_no_checksum_if_a_record_is_two_writes() {
    two_writes_hold(Persistency::Adr);
}

#[test]
#[ignore = "the suite `long-tests` runs it"]
fn v2_needs_no_checksum_if_a_record_is_two_writes_and_words_overtake_each_other() {
    two_writes_hold(Persistency::Word);
}

/// `v2` on memory that is not lost, in one thread.
struct SingleThread {
    sim: Sim,
    tuning: v2::V2Tuning,
    engine: V2<Sim>,
    worker: Box<dyn Worker>,
}

impl SingleThread {
    fn new(tuning: v2::V2Tuning) -> SingleThread {
        SingleThread::on(
            Sim::new(explorer_limits().far_bytes, Persistency::Word),
            tuning,
        )
    }

    fn on(sim: Sim, tuning: v2::V2Tuning) -> SingleThread {
        let engine = V2::open(sim.clone(), &explorer_limits(), tuning).unwrap();
        SingleThread {
            worker: engine.worker(),
            sim,
            tuning,
            engine,
        }
    }

    /// Closes it and opens it again, no crash involved.
    fn reopened(self) -> SingleThread {
        SingleThread::on(self.sim, self.tuning)
    }

    fn set(&mut self, key: u64, id: u64, bytes: u32) -> Result<(), Error> {
        self.worker.set(&key_of(key), &Value { id, bytes }.encode())
    }

    /// The value of a key, or what is wrong with it.
    fn get(&mut self, key: u64) -> Result<Option<u64>, Violation> {
        let mut out = Vec::new();
        let found = self.worker.get(&key_of(key), &mut out);
        let value = found.then(|| Value::decode(&out)).transpose()?;
        Ok(value.map(|value| value.id))
    }
}

#[test]
fn v2_loses_a_key_after_127_updates() {
    for tuning in [v2::V2Tuning::PUBLISHED, v2::V2Tuning::FIXED] {
        let found_after = |updates: u64| {
            let mut engine = SingleThread::new(tuning);
            (0..=updates).for_each(|id| engine.set(1, id, 100).unwrap());
            assert_eq!(engine.get(1), Ok(Some(updates)), "until it is closed");
            engine.reopened().get(1).unwrap()
        };
        assert_eq!(found_after(126), Some(126));
        assert_eq!(
            found_after(127),
            Some(126),
            "the newest record looks like a spare"
        );
        assert_eq!(found_after(128), None, "so do both");
        assert_eq!(found_after(255), None);
        assert_eq!(found_after(256), Some(256), "after a turn of the byte");
    }
}

#[test]
fn v2_shows_the_larger_of_two_values_of_the_same_version() {
    for (appends_count, found) in [(false, 2), (true, 3)] {
        let mut engine = SingleThread::new(v2::V2Tuning {
            appends_count,
            ..v2::V2Tuning::PUBLISHED
        });
        // The spare of 256 bytes is made before the append's block, and so is found first.
        engine.set(2, 1, 80).unwrap();
        engine.set(2, 2, 80).unwrap();
        engine.set(1, 1, 80).unwrap();
        engine.set(1, 2, 230).unwrap();
        engine.set(1, 3, 90).unwrap();
        assert_eq!(engine.get(1), Ok(Some(3)));
        assert_eq!(engine.reopened().get(1), Ok(Some(found)), "{appends_count}");
    }
}

#[test]
fn v2_forgets_its_free_blocks_when_it_is_opened() {
    let free = |tuning| {
        let mut engine = SingleThread::new(tuning);
        for key in 1..=12 {
            engine.set(key, 1, 140).unwrap();
            engine.set(key, 2, 300).unwrap();
        }
        let before = engine.engine.recycled_bytes();
        (before, engine.reopened().engine.recycled_bytes())
    };
    assert_eq!(free(v2::V2Tuning::PUBLISHED), (12 * 176, 0));
    let (before, after) = free(v2::V2Tuning::FIXED);
    assert!(after >= before, "{after} of {before} bytes are free again");
}

#[test]
fn a_pool_of_fifteen_segments_is_full_after_sixteen_openings_with_one_key_in_it() {
    let mut engine = SingleThread::new(v2::V2Tuning::PUBLISHED);
    for opening in 1..=15 {
        engine.set(1, opening, 100 + opening as u32 * 16).unwrap();
        engine = engine.reopened();
    }
    assert_eq!(engine.set(1, 16, 380), Err(Error::Full));
}

/// Twelve inserts, the power cut in each of them: how many acknowledged values were lost, and how many values of
/// the insert that was cut are neither there nor not there.
fn inserts_cut_short(tuning: v2::V2Tuning, persistency: Persistency) -> (u64, u64) {
    let sim = Sim::new(explorer_limits().far_bytes, persistency);
    let mut engine = SingleThread::on(sim.clone(), tuning);
    let states: Arc<Mutex<Vec<CrashState>>> = Arc::default();
    let seen = Arc::clone(&states);
    sim.observe(Some(Arc::new(move |state| {
        seen.lock().unwrap().push(state)
    })));
    let (mut lost, mut torn) = (0, 0);
    for key in 1..=12 {
        engine.set(key, key, 80 + 26 * key as u32).unwrap();
        for state in std::mem::take(&mut *states.lock().unwrap()) {
            for cut in state.images(256, key) {
                let image = Sim::from_image(state.image(&cut), persistency);
                let mut found = SingleThread::on(image, tuning);
                lost += (1..key).filter(|&k| found.get(k) != Ok(Some(k))).count() as u64;
                torn += u64::from(found.get(key).is_err());
            }
        }
    }
    (lost, torn)
}

#[test]
fn v2_keeps_acknowledged_inserts_though_one_cut_short_may_be_shown_torn() {
    for persistency in [Persistency::Adr, Persistency::Word] {
        let (lost, torn) = inserts_cut_short(v2::V2Tuning::PUBLISHED, persistency);
        assert_eq!(lost, 0, "{persistency}");
        assert!(torn > 0, "{persistency}");
        let (lost, torn) = inserts_cut_short(v2::V2Tuning::FIXED, persistency);
        assert_eq!((lost, torn), (0, 0), "{persistency}");
    }
}
