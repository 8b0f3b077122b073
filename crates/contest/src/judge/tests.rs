//! Tests of the judge: a correct engine passes, and every kind of defect is reported by name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use farbank_bench::figure::{Error, Report};
use farbank_bench::kv::PoolPlace;
use farbank_check::target::Target;
use farbank_pm::sync::ignore_poison;

use super::{
    Contender, ContestRound, FarMemory, JudgeOptions, JudgePhases, KidEngine, OurEngine,
    PrelimEngine, V1Engine, V2Engine, run,
};
use crate::{ContestLimits, Engine, EngineStats, Error as Refusal, Key, Worker};

/// Defect of an engine in DRAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Nothing,
    /// Sometimes returns the replaced value.
    Stale,
    /// Sometimes forgets a new key.
    Drops,
    /// Returns a byte less than was stored.
    Short,
    /// Sometimes returns the value of the key requested before.
    Mixes,
    /// Sometimes returns the beginning of the new value and the end of the old one.
    Tears,
    /// Refuses sets too early.
    Full,
    /// Reports more DRAM than is allowed.
    Glutton,
    /// Panics.
    Panics,
}

/// One of this many operations goes wrong.
const ONE_IN: u64 = 50;

struct ToyEngine(Fault);

#[derive(Default)]
struct ToyContents {
    /// The value of each key, and the previous one.
    values: HashMap<Key, [Vec<u8>; 2]>,
    last: Vec<u8>,
    operations: u64,
}

struct Table {
    fault: Fault,
    held: Arc<Mutex<ToyContents>>,
    terms: ContestLimits,
}

impl Contender for ToyEngine {
    fn name(&self) -> &'static str {
        "toy"
    }

    fn supports_round(&self, round: ContestRound) -> bool {
        round == ContestRound::Final
    }

    fn is_durable(&self) -> bool {
        false
    }

    fn create(&self, _: FarMemory, terms: &ContestLimits) -> Result<Box<dyn Engine>, Error> {
        Ok(Box::new(Table {
            fault: self.0,
            held: Arc::default(),
            terms: terms.clone(),
        }))
    }

    fn open(&self, _: FarMemory, _: &ContestLimits) -> Result<Box<dyn Engine>, Error> {
        Err(Error::Failed(
            "the table was in DRAM and cannot be reopened".into(),
        ))
    }

    fn target(&self) -> Option<(&dyn Target, Option<&'static str>)> {
        None
    }
}

impl Engine for Table {
    fn worker(&self) -> Box<dyn Worker> {
        Box::new(ToyWorker(self.fault, Arc::clone(&self.held)))
    }

    fn dram(&self) -> Vec<(&'static str, u64)> {
        let too_much = u64::from(self.fault == Fault::Glutton);
        vec![
            ("index", self.terms.dram_bytes / 2),
            ("keys", self.terms.dram_bytes / 2 + too_much),
        ]
    }

    fn far_bytes(&self) -> u64 {
        0
    }

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }
}

struct ToyWorker(Fault, Arc<Mutex<ToyContents>>);

impl Worker for ToyWorker {
    fn set(&mut self, key: &Key, value: &[u8]) -> Result<(), Refusal> {
        let mut held = ignore_poison(self.1.lock());
        held.operations += 1;
        let wrong = held.operations.is_multiple_of(ONE_IN);
        match self.0 {
            Fault::Full if held.operations > 5000 => return Err(Refusal::Full),
            Fault::Panics if held.operations > 5000 => panic!("as it should"),
            Fault::Drops if wrong && !held.values.contains_key(key) => return Ok(()),
            _ => {}
        }
        let both = held.values.entry(*key).or_default();
        both.swap(0, 1);
        both[0] = value.to_vec();
        Ok(())
    }

    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> bool {
        let mut held = ignore_poison(self.1.lock());
        held.operations += 1;
        let wrong = held.operations.is_multiple_of(ONE_IN);
        let Some([new, old]) = held.values.get(key).cloned() else {
            return false;
        };
        *out = new;
        match self.0 {
            Fault::Stale if wrong && !old.is_empty() => *out = old,
            Fault::Short => out.truncate(out.len() - 1),
            Fault::Mixes if wrong && !held.last.is_empty() => out.clone_from(&held.last),
            Fault::Tears if wrong && old.len() >= out.len() => {
                let half = out.len() / 16 * 8;
                let end = out.len();
                out[half..].copy_from_slice(&old[half..end]);
            }
            _ => {}
        }
        held.last.clone_from(out);
        true
    }
}

fn options<'a>(contender: &'a dyn Contender, round: ContestRound, part: u64) -> JudgeOptions<'a> {
    JudgeOptions {
        contenders: vec![contender],
        round,
        part,
        threads: 2,
        seed: 3,
        place: PoolPlace::Dram,
        phases: JudgePhases {
            correctness: true,
            durability: false,
            performance: false,
            model: false,
        },
        rounds: 2,
        group: 1,
        crash_seeds: 1,
        tuning: false,
    }
}

fn judged(fault: Fault) -> Result<Report, Error> {
    let toy = ToyEngine(fault);
    run(&options(&toy, ContestRound::Final, 1 << 14), &mut |_| true)
}

/// Returns the names of the figures with broken bounds.
fn broken(report: &Report) -> Vec<&str> {
    let broken = report.figures.iter().filter(|figure| !figure.holds());
    broken.map(|figure| figure.name.as_str()).collect()
}

#[test]
fn a_correct_engine_passes() {
    let report = judged(Fault::Nothing).unwrap();
    assert_eq!(broken(&report), [""; 0]);
    let compared = report
        .figures
        .iter()
        .find(|f| f.name.ends_with("answers compared"));
    assert!(compared.unwrap().value > 18_432.0, "{report:?}");
}

#[test]
fn each_defect_is_reported_by_name() {
    for (fault, name) in [
        (Fault::Stale, "values out of date"),
        (Fault::Drops, "keys not found"),
        (Fault::Short, "lengths wrong"),
        (Fault::Mixes, "values of another key"),
        (Fault::Tears, "values torn"),
        (Fault::Full, "sets refused"),
        (Fault::Glutton, "DRAM held"),
    ] {
        let report = judged(fault).unwrap();
        let name = format!("correctness: {name}");
        let names = broken(&report);
        assert!(names.contains(&name.as_str()), "{fault:?}: {names:?}");
        let told = report
            .notes
            .iter()
            .any(|note| note.starts_with("toy, correctness: "));
        assert_eq!(told, !matches!(fault, Fault::Glutton), "{fault:?}");
    }
}

#[test]
fn a_panic_of_the_engine_ends_the_run_with_its_message() {
    match judged(Fault::Panics) {
        Err(Error::Failed(why)) => assert!(
            why.starts_with("toy: the engine panicked in the set phase: as it should"),
            "{why}"
        ),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_engine_is_skipped_in_a_round_it_was_not_built_for() {
    let toy = ToyEngine(Fault::Nothing);
    let report = run(
        &options(&toy, ContestRound::Preliminary, 1 << 14),
        &mut |_| true,
    )
    .unwrap();
    assert!(report.figures.is_empty());
    assert_eq!(report.notes.len(), 1);
}

#[test]
fn a_stopped_run_is_an_error() {
    let toy = ToyEngine(Fault::Nothing);
    let stopped = run(&options(&toy, ContestRound::Final, 1 << 12), &mut |_| false);
    assert!(matches!(stopped, Err(Error::Stopped)));
}

#[test]
fn our_engine_is_correct_in_both_rounds_with_one_and_several_operations_per_call() {
    for (round, part, group) in [
        (ContestRound::Final, 4096, 1),
        (ContestRound::Final, 4096, 16),
        (ContestRound::Preliminary, 16_384, 1),
    ] {
        let options = JudgeOptions {
            phases: JudgePhases {
                correctness: group == 1,
                durability: false,
                performance: true,
                model: false,
            },
            group,
            ..options(&OurEngine, round, part)
        };
        let report = run(&options, &mut |_| true).unwrap();
        // In a pool this small, most tables have their minimum size.
        let small = |name: &&str| !name.ends_with("DRAM held") && !name.starts_with("DRAM a key");
        let mut wrong: Vec<&str> = broken(&report).into_iter().filter(small).collect();
        // The preliminary round's far memory is too small for records with checksums.
        wrong.retain(|name| round == ContestRound::Final || !name.ends_with("far memory given"));
        // Each slice of the cleaner has a fence. A segment of this size takes one slice and one recycling.
        let fences = report.figures.iter().find(|f| f.name == "fences");
        assert!(fences.is_none_or(|f| f.value < 1.05), "{fences:?}");
        wrong.retain(|name| !name.ends_with("fences"));
        assert!(wrong.is_empty(), "{round:?}: {wrong:?}, {:?}", report.notes);
        assert!(report.figures.iter().any(|figure| figure.name == "score"));
    }
}

#[test]
fn the_published_engines_pass_in_their_rounds_and_reopen_after_a_kill() {
    let (prelim, kid) = (PrelimEngine::default(), KidEngine::default());
    let (v1, v2) = (V1Engine::default(), V2Engine::default());
    let judged: [(&dyn Contender, ContestRound, u64); 4] = [
        (&prelim, ContestRound::Preliminary, 16_384),
        (&v1, ContestRound::Final, 4096),
        (&v2, ContestRound::Final, 4096),
        (&kid, ContestRound::Final, 4096),
    ];
    for (contender, round, part) in judged {
        let mut options = options(contender, round, part);
        options.phases.durability = true;
        let report = run(&options, &mut |_| true).unwrap();
        let wrong = |name: &&str| name.ends_with("answers wrong") || name.ends_with("refused");
        let wrong: Vec<&str> = broken(&report).into_iter().filter(wrong).collect();
        assert!(wrong.is_empty(), "{wrong:?}, {:?}", report.notes);
        let crashed = |name: &str| report.figures.iter().any(|figure| figure.name == name);
        assert_eq!(crashed("kill: answers wrong"), contender.is_durable());
        assert_eq!(crashed("word: crash images judged"), contender.is_durable());
    }
}

#[test]
fn the_model_is_deterministic() {
    let kid = KidEngine::default();
    let mut options = options(&kid, ContestRound::Final, 1 << 14);
    options.phases = JudgePhases {
        correctness: false,
        durability: false,
        performance: false,
        model: true,
    };
    let run = || run(&options, &mut |_| true).unwrap();
    let report = run();
    assert_eq!(report.figures, run().figures);
    let figure = |name: &str| {
        let found = report.figures.iter().find(|figure| figure.name == name);
        found.unwrap_or_else(|| panic!("{name}: {report:?}")).value
    };
    assert!(figure("get phase, 16 workers") > figure("set phase, 16 workers"));
    assert!(figure("152 + 8 bytes, by 160 in one write, any bucket") > 1.0);
}

#[test]
#[ignore = "the suite `long-tests` runs it"]
fn a_tuning_step_is_timed_with_and_without_it_and_scored() {
    let kid = KidEngine::default();
    let mut options = options(&kid, ContestRound::Final, 1 << 14);
    options.tuning = true;
    let report = run(&options, &mut |_| true).unwrap();
    assert_eq!(report.figures.len(), 18, "{report:?}");
    assert!(report.figures.iter().all(|figure| figure.value > 0.0));
    let reported = report.figures.iter().filter_map(|figure| figure.published);
    assert_eq!(reported.count(), 10);
}

#[test]
fn a_tuning_step_that_changes_far_memory_accesses_is_counted_and_modelled() {
    let step = |name, what| {
        let mut steps = super::steps::all().into_iter();
        steps.find(|step| (step.with.name(), step.what) == (name, what))
    };
    let (prelim, v1) = (PrelimEngine::default(), V1Engine::default());
    let mut report = Report::default();
    let absorbs = step("prelim", "updates the cache takes only there").unwrap();
    let preliminary = options(&prelim, ContestRound::Preliminary, 1 << 12);
    super::tuning::count(&preliminary, &absorbs, &mut report, &mut |_| true).unwrap();
    let mirror = step("v1", "heads in DRAM, too").unwrap();
    let finals = options(&v1, ContestRound::Final, 1 << 12);
    super::tuning::model(&finals, &mirror, &mut report, &mut |_| true).unwrap();
    let value = |name: &str| {
        let found = report.figures.iter().find(|figure| figure.name == name);
        found.unwrap_or_else(|| panic!("{name}: {report:?}")).value
    };
    let lines = "updates the cache takes only there: lines written an operation";
    let [with, without] = ["with", "without"].map(|which| value(&format!("{which} {lines}")));
    assert!(without > with * 1.02, "{with} and {without} lines");
    assert!(value("without heads in DRAM, too: virtual time") > 1.0);
}

#[test]
fn a_slower_result_of_our_engine_breaks_its_bound() {
    let mut report = Report::default();
    for (name, set) in [("v1", 2.0), ("kv", 3.0)] {
        let figure = farbank_bench::figure::Figure::measured(name, "set phase", set);
        report.figures.push(figure.unit("s"));
    }
    super::compare_times(&mut report);
    assert_eq!(broken(&report), ["set phase: by the time of v1"]);
}
