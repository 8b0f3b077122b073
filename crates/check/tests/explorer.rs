//! The explorer accepts a sound structure in every persistency mode, and detects each of its mutants.

mod toy;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use farbank_check::explore::lazily;
use farbank_check::faults::{FaultBudget, FaultOutcome, FaultSearch};
use farbank_check::{
    AckRule, ExploreConfig, ImageChoice, KeyWrite, OpAnswer, Target, TargetOp, TargetSubject,
    Value, Violation, explore, explore_seed,
};
use farbank_pm::fault;
use farbank_pm::sim::{CrashState, Persistency, Sim};
use toy::{Mutant, Toy};

fn config(persistency: Persistency) -> ExploreConfig {
    ExploreConfig {
        steps: 60,
        ..ExploreConfig::new(persistency)
    }
}

#[test]
fn a_sound_log_holds_under_every_persistency() {
    for persistency in Persistency::ALL {
        let config = config(persistency);
        let report = explore(&Toy(Mutant::None), &config, 0..8, 2, &mut |_| true);
        println!("{report}\n{}\n", report.json());
        assert!(report.holds(), "{report}");
        assert!(report.counts.distinct_images > 500);
        let uncovered: Vec<_> = report.uncovered().map(ToString::to_string).collect();
        let lost = |p: &&String| p.contains("store") || p.contains("copy_in");
        assert!(
            persistency == Persistency::Eadr || uncovered.is_empty(),
            "never crashed at: {uncovered:?}"
        );
        assert_eq!(
            uncovered.iter().filter(lost).count(),
            0,
            "never crashed at: {uncovered:?}"
        );
    }
}

#[test]
fn the_same_seeds_give_the_same_digest_whatever_the_threads() {
    for persistency in Persistency::ALL {
        let config = config(persistency);
        let explored = |threads| explore(&Toy(Mutant::None), &config, 3..9, threads, &mut |_| true);
        let (one, two) = (explored(1), explored(2));
        assert_eq!(one.digest, two.digest);
        assert_eq!((one.counts, one.places), (two.counts, two.places));
        let other = explore(&Toy(Mutant::None), &config, 4..10, 2, &mut |_| true);
        assert_ne!(one.digest, other.digest, "other seeds give another digest");
    }
}

/// Returns whether a mutant is correct in a mode: with durable caches, flushes and drains are unnecessary, and no
/// valid data is left beyond the tail.
fn is_sound(mutant: Mutant, persistency: Persistency) -> bool {
    let about_caches = matches!(
        mutant,
        Mutant::MissingFlush
            | Mutant::MissingDrain
            | Mutant::RecoveryNotDurable
            | Mutant::NoEpoch
            | Mutant::EarlyRead
    );
    persistency == Persistency::Eadr && about_caches
}

#[test]
fn a_reply_that_does_not_wait_for_the_writes_it_depends_on_is_caught() {
    let toy = Toy(Mutant::EarlyAnswer);
    let config = config(Persistency::Page);
    let report = explore(&toy, &config, 0..1000, 2, &mut |report| report.holds());
    assert!(!report.holds(), "{report}");
}

#[test]
fn every_mutant_is_caught_and_its_command_reproduces_it() {
    for persistency in Persistency::ALL {
        for mutant in Mutant::ALL {
            let config = config(persistency);
            let toy = Toy(mutant);
            let seeds = if is_sound(mutant, persistency) {
                0..8
            } else {
                0..200
            };
            let report = explore(&toy, &config, seeds, 2, &mut |report| report.holds());
            let images = report.counts.distinct_images;
            if is_sound(mutant, persistency) {
                assert!(report.holds(), "{mutant:?} is sound here\n{report}");
                continue;
            }
            let Some(found) = report.violations.first() else {
                panic!("{mutant:?} survived {images} images under {persistency}");
            };
            println!(
                "{persistency} {mutant:?}: seed {:#x}, {} distinct images of it: {} [{}]",
                found.seed,
                found.distinct,
                found.what,
                found.trail.join(", then ")
            );
            let again = explore_seed(
                &toy,
                &ExploreConfig {
                    only: found.crash.clone().map(|(crash, pick)| (crash, Some(pick))),
                    ..config
                },
                found.seed,
            );
            let again = again
                .violations
                .first()
                .expect("the command shows it again");
            assert_eq!((&again.what, &again.trail), (&found.what, &found.trail));
        }
    }
}

#[test]
fn a_recovery_that_makes_nothing_durable_is_caught_by_a_kill_and_a_power_cut() {
    let config = ExploreConfig {
        nest_one_in: u64::MAX,
        ..config(Persistency::Adr)
    };
    let report = explore(
        &Toy(Mutant::RecoveryNotDurable),
        &config,
        0..64,
        2,
        &mut |_| true,
    );
    let picks: Vec<_> = report
        .violations
        .iter()
        .filter_map(|v| v.crash.clone())
        .collect();
    assert!(
        picks.iter().any(|(_, pick)| *pick == ImageChoice::Kill),
        "{report}"
    );
}

/// This is rare: the next record must complete exactly the words that the rejected one lacks. More nested runs find
/// it sooner than more seeds do.
#[test]
#[ignore = "the suite `long-tests` runs it"]
fn a_rejected_record_that_the_next_one_completes_is_found() {
    let config = ExploreConfig {
        nest_one_in: 1,
        kill_one_in: u64::MAX,
        ..config(Persistency::Adr)
    };
    let toy = Toy(Mutant::NoWipe);
    let report = explore(&toy, &config, 0..64, 2, &mut |report| report.holds());
    println!("NoWipe: {:?}", report.counts);
    assert!(!report.holds());
}

/// A target whose creation fails with the name of the active fault.
struct FailingCreation;

impl Target for FailingCreation {
    fn name(&self) -> &str {
        "tells"
    }

    fn has_command(&self) -> bool {
        true
    }

    fn open(&self, _: Sim, _: u64) -> Result<Box<dyn TargetSubject>, Violation> {
        let active = fault::active().map_or("no fault".into(), |fault| fault.to_string());
        Err(Violation::new(active))
    }
}

#[test]
fn a_fault_is_active_in_every_exploring_thread_and_in_the_command() {
    let fault = "drain kv/src/log.rs:88";
    let config = ExploreConfig {
        fault: Some(fault.parse().unwrap()),
        ..config(Persistency::Adr)
    };
    let report = explore(&FailingCreation, &config, 0..4, 2, &mut |_| true);
    assert_eq!(report.violations.len(), 4);
    for violation in &report.violations {
        assert!(violation.what.ends_with(fault), "{violation}");
        assert!(
            violation.command.ends_with(&format!("--fault '{fault}'")),
            "{violation}"
        );
    }
}

/// A target whose first operation panics, and whose drop then panics, too, because of a poisoned lock.
struct PanicsTwice;

impl Target for PanicsTwice {
    fn name(&self) -> &str {
        "panics twice"
    }

    fn open(&self, _: Sim, _: u64) -> Result<Box<dyn TargetSubject>, Violation> {
        Ok(Box::new(PoisonedSubject(Mutex::new(()))))
    }
}

struct PoisonedSubject(Mutex<()>);

impl TargetSubject for PoisonedSubject {
    fn apply(&mut self, _: usize, _: &TargetOp) -> Result<OpAnswer, Violation> {
        let _held = self.0.lock();
        panic!("the operation is wrong");
    }

    fn contents(&mut self) -> Result<Vec<(u64, Value)>, Violation> {
        Ok(Vec::new())
    }
}

impl Drop for PoisonedSubject {
    fn drop(&mut self) {
        drop(self.0.lock().expect("an earlier holder has panicked"));
    }
}

#[test]
fn a_structure_that_panics_again_when_it_is_dropped_is_one_violation() {
    let config = config(Persistency::Adr);
    let report = explore(&PanicsTwice, &config, 0..2, 2, &mut |_| true);
    assert_eq!(report.violations.len(), 2);
    for violation in &report.violations {
        assert!(
            violation.what.contains("the operation is wrong"),
            "{violation}"
        );
    }
}

#[test]
fn an_early_reader_loses_only_values_that_a_read_returned() {
    let strict = config(Persistency::Adr);
    let toy = Toy(Mutant::EarlyRead);
    let report = explore(&toy, &strict, 0..64, 2, &mut |report| report.holds());
    let found = report
        .violations
        .first()
        .expect("the strict rule is violated");
    assert_eq!(found.acknowledged, Some(Ok(())), "{found}");
    let acknowledged = ExploreConfig {
        verdict: AckRule::Acknowledged,
        ..strict.clone()
    };
    let report = explore(&toy, &acknowledged, 0..16, 2, &mut |_| true);
    assert!(report.holds(), "{report}");
    let toy = Toy(Mutant::MissingFlush);
    let report = explore(&toy, &strict, 0..64, 2, &mut |report| report.holds());
    let found = report.violations.first().expect("it is a mutant");
    assert!(matches!(found.acknowledged, Some(Err(_))), "{found}");
}

#[test]
fn three_consecutive_crashes_are_explored_within_bounds() {
    let explored = |depth| {
        let config = ExploreConfig {
            depth,
            ..config(Persistency::Adr)
        };
        let report = explore(&Toy(Mutant::None), &config, 0..4, 2, &mut |_| true);
        assert!(report.holds(), "{report}");
        report.counts
    };
    let (one, two, three) = (explored(1), explored(2), explored(3));
    assert_eq!(
        (one.nested_points, one.deep_points, two.deep_points),
        (0, 0, 0)
    );
    assert_eq!(three.nested_points, two.nested_points);
    assert!(three.deep_points > two.nested_points / 4, "{three:?}");
    assert!(three.deep_points < two.nested_points * 4, "{three:?}");
}

#[test]
fn an_omitted_drain_is_found_and_a_fault_without_effect_is_idle() {
    let budget = FaultBudget {
        modes: vec![Persistency::Adr],
        seeds: 0..4,
        ..FaultBudget::default()
    };
    let search = FaultSearch::new(&[&Toy(Mutant::None)], budget);
    let places = search.places();
    let mut drains = places
        .iter()
        .filter(|fault| fault.to_string().starts_with("drain"));
    assert!(drains.any(|fault| search.search(fault).is_found()));
    let nowhere = search.search(&"drain nowhere.rs:1".parse().unwrap());
    assert!(matches!(nowhere.outcome, FaultOutcome::Idle), "{nowhere}");
}

/// Returns the contents that an open shows, or the error of the open.
fn shown(toy: &Toy, sim: &Sim) -> Result<Vec<(u64, Value)>, Violation> {
    let mut subject = toy.open(sim.clone(), 1_000)?;
    let mut contents = subject.contents()?;
    contents.sort_unstable();
    subject.check().map(|()| contents)
}

/// Returns the crash points of a short run with two sessions and batches of up to three.
fn crash_points(toy: &Toy, persistency: Persistency) -> Vec<CrashState> {
    let sim = Sim::new(8 << 10, persistency);
    let states = Arc::new(Mutex::new(Vec::new()));
    let captured = Arc::clone(&states);
    sim.observe(Some(Arc::new(move |state| {
        captured.lock().unwrap().push(state);
    })));
    let mut subject = toy.create(sim.clone(), 1_000).unwrap();
    for id in 0..14 {
        let value = Value { id, bytes: 8 };
        let write = match id % 5 {
            4 => KeyWrite::Delete { key: id % 3 },
            _ => KeyWrite::Put {
                key: id % 3,
                value,
                expires_ms: 0,
            },
        };
        subject
            .apply(id as usize % 2, &TargetOp::Write(write))
            .unwrap();
        sim.notify_observer();
        if id % 3 == 2 {
            subject.commit(id as usize % 2).unwrap();
        }
        if id % 6 == 5 {
            sim.sync().unwrap();
        }
    }
    sim.observe(None);
    std::mem::take(&mut states.lock().unwrap())
}

#[test]
fn lazy_exploration_shows_the_same_contents_as_all_images() {
    for mutant in [Mutant::None, Mutant::HeaderFirst, Mutant::MissingFlush] {
        for persistency in Persistency::ALL {
            let toy = Toy(mutant);
            let (mut compared, mut images, mut leaves) = (0, 0, 0);
            for state in crash_points(&toy, persistency) {
                if !state.images(1 << 13, 0).exhaustive() {
                    continue;
                }
                let eager: BTreeSet<_> = state
                    .images(usize::MAX, 0)
                    .inspect(|_| images += 1)
                    .map(|cut| shown(&toy, &Sim::from_image(state.image(&cut), persistency)))
                    .collect();
                let mut lazy = BTreeSet::new();
                let found = lazily(&state, usize::MAX, |sim| {
                    lazy.insert(shown(&toy, sim));
                    Ok::<(), ()>(())
                });
                leaves += found.unwrap().leaves;
                assert_eq!(lazy, eager, "{persistency} {mutant:?}");
                compared += 1;
            }
            println!(
                "{persistency} {mutant:?}: {compared} points, {images} images, {leaves} leaves"
            );
            assert!(compared >= 8 && (images > leaves || persistency == Persistency::Eadr));
        }
    }
}

/// Mutants that a single crash finds within a few seeds. The others need a second crash or more seeds.
const ONE_CRASH: [Mutant; 6] = [
    Mutant::MissingFlush,
    Mutant::MissingDrain,
    Mutant::HeaderFirst,
    Mutant::TornGroup,
    Mutant::EarlyRead,
    Mutant::ExpiryUncovers,
];

#[test]
#[ignore = "the suite `long-tests` runs it"]
fn lazy_exploration_catches_the_same_mutants_and_reproduces_them() {
    for persistency in [Persistency::Adr, Persistency::Word, Persistency::Page] {
        let config = ExploreConfig {
            lazy: true,
            ..config(persistency)
        };
        let sound = explore(&Toy(Mutant::None), &config, 0..2, 2, &mut |_| true);
        assert!(sound.holds() && sound.counts.cut_off == 0, "{sound}");
        assert_eq!(sound.counts.exhaustive_points, sound.counts.crash_points);
        for mutant in ONE_CRASH {
            let toy = Toy(mutant);
            let report = explore(&toy, &config, 0..64, 2, &mut |report| report.holds());
            let Some(found) = report.violations.first() else {
                panic!("{mutant:?} survived under {persistency}: {report}");
            };
            let only = found.crash.clone().map(|(crash, pick)| (crash, Some(pick)));
            let again = explore_seed(
                &toy,
                &ExploreConfig {
                    only,
                    ..config.clone()
                },
                found.seed,
            );
            let again = again.violations.first().expect("it is shown again");
            assert_eq!((&again.what, &again.trail), (&found.what, &found.trail));
        }
    }
}

#[test]
fn image_choices_are_parsed_as_they_are_printed() {
    for text in ["17", "kill", "lazy:", "lazy:0.2.1"] {
        assert_eq!(text.parse::<ImageChoice>().unwrap().to_string(), text);
    }
    for text in ["", "x", "lazy", "lazy:1.", "lazy:x", "-1"] {
        assert!(text.parse::<ImageChoice>().is_err(), "{text:?}");
    }
}
