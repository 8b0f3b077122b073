//! Phases of the judge, and their figures.

use farbank_bench::counted::Counted;
use farbank_bench::figure::{Error, Figure, ProgressFn, Report, median};
use farbank_pm::media::Mapped;

use super::contender::{Contender, FarMemory};
use super::drive::{self, DriveMode, PhaseFindings};
use super::limits::DramPeak;
use super::plan::{AckedValues, ContestPhase, RoundPlan, ThreadKeys};
use super::published::{FigureBound, PublishedFigures};
use super::{JudgeOptions, WrongAnswer};
use crate::{ContestLimits, Engine, EngineStats};

/// Report name of the phases before and after a kill.
pub(super) const KILL: &str = "kill";
/// The get phase of the correctness phase. One is enough for the counts.
const COUNTED_GET: ContestPhase = ContestPhase::Get(0);

/// State of a test of one engine, with the values that it must hold.
pub(super) struct EngineTrial<'a> {
    contender: &'a dyn Contender,
    plan: RoundPlan,
    ledger: AckedValues,
    owns: Vec<ThreadKeys>,
    dram: DramPeak,
    /// Engine statistics at the end of the previous phase.
    before: EngineStats,
}

impl<'a> EngineTrial<'a> {
    /// Creates the state without the engine. Far memory must exist already, so that later growth of DRAM is the
    /// engine's.
    pub(super) fn new(options: &JudgeOptions<'_>, contender: &'a dyn Contender) -> EngineTrial<'a> {
        let plan = options.plan();
        EngineTrial {
            contender,
            ledger: plan.ledger(),
            owns: vec![ThreadKeys::default(); options.threads],
            dram: DramPeak::new(),
            plan,
            before: EngineStats::default(),
        }
    }

    pub(super) fn phase(
        &mut self,
        engine: &dyn Engine,
        phase: ContestPhase,
        how: DriveMode<'_>,
        watch: ProgressFn<'_>,
    ) -> Result<PhaseFindings, Error> {
        let name = self.contender.name();
        let asked = (&self.plan, &self.ledger);
        let found = drive::run(engine, asked, &mut self.owns, phase, how, watch);
        self.dram.look(engine);
        found.map_err(|error| match error {
            Error::Failed(why) => Error::Failed(format!("{name}: {why}")),
            other => other,
        })
    }

    /// Returns the engine statistics of the last phase.
    fn tally(&mut self, engine: &dyn Engine) -> EngineStats {
        let now = engine.stats();
        let before = std::mem::replace(&mut self.before, now);
        since(now, before)
    }
}

fn since(now: EngineStats, before: EngineStats) -> EngineStats {
    let mut depth = now.depth;
    for (now, before) in depth.iter_mut().zip(before.depth) {
        *now -= before;
    }
    EngineStats {
        inserts: now.inserts - before.inserts,
        updates: now.updates - before.updates,
        swaps: now.swaps - before.swaps,
        cache_hits: now.cache_hits - before.cache_hits,
        cache_misses: now.cache_misses - before.cache_misses,
        depth,
        probes_of_hits: now.probes_of_hits - before.probes_of_hits,
        probes_of_misses: now.probes_of_misses - before.probes_of_misses,
        misses: now.misses - before.misses,
    }
}

/// Returns the mode of a timed and checked phase with `group` operations per call.
pub(super) fn timed_and_checked(group: usize) -> DriveMode<'static> {
    DriveMode {
        group,
        meter: None,
        compare: true,
    }
}

/// Reports the wrong answers and refused sets of phases, as figures and notes (JUDGE-1).
pub(super) fn verdict(
    report: &mut Report,
    contender: &dyn Contender,
    what: &str,
    phases: &[&PhaseFindings],
) {
    let name = contender.name();
    let sum = |count: fn(&PhaseFindings) -> u64| {
        phases.iter().map(|found| count(found)).sum::<u64>() as f64
    };
    // An engine that is known to lose data is expected to show it, so this does not fail the run.
    let expected = what == KILL && contender.target().is_some_and(|(_, known)| known.is_some());
    let counted = |what: String, count| match Figure::counted(name, what, count) {
        figure if expected => figure,
        figure => figure.at_most(0.0),
    };
    report.figures.extend([
        counted(
            format!("{what}: answers wrong"),
            sum(PhaseFindings::wrong_answers),
        ),
        counted(format!("{what}: sets refused"), sum(|found| found.refused)),
        Figure::counted(
            name,
            format!("{what}: answers compared"),
            sum(|found| found.gets),
        ),
    ]);
    for wrong in WrongAnswer::ALL {
        let of = |found: &&PhaseFindings| found.wrong.get(&wrong).copied().unwrap_or_default();
        let count: u64 = phases.iter().map(of).sum();
        if count > 0 {
            report
                .figures
                .push(counted(format!("{what}: {wrong}"), count as f64));
        }
    }
    for told in phases.iter().flat_map(|found| &found.told) {
        report.notes.push(format!("{name}, {what}: {told}"));
    }
}

/// Reports DRAM and far memory (JUDGE-2 and JUDGE-3).
fn limits(report: &mut Report, trial: &EngineTrial<'_>, terms: &ContestLimits, what: &str) {
    let name = trial.contender.name();
    let of_limit = trial.dram.share_of(&trial.plan.terms) * 100.0;
    let figure = Figure::counted(name, format!("{what}: DRAM held"), of_limit);
    report
        .figures
        .push(figure.unit("% of what is allowed").at_most(100.0));
    let (given, allowed) = (terms.far_bytes, trial.plan.terms.far_bytes);
    if given != allowed {
        let share = given as f64 / allowed as f64 * 100.0;
        let figure = Figure::counted(name, format!("{what}: far memory given"), share);
        let figure = figure.unit("% of what is allowed");
        report
            .figures
            .push(match trial.contender.published_far_bytes(1) {
                Some(_) => figure,
                None => figure.at_most(100.0),
            });
    }
    if let Some(resident) = trial.dram.resident {
        let share = resident as f64 / trial.plan.terms.dram_bytes as f64 * 100.0;
        let figure = Figure::measured(name, format!("{what}: memory the process gained"), share);
        report.figures.push(figure.unit("% of what is allowed"));
    }
}

/// Runs the correctness phase: a set and a get phase on a counted medium, with every answer checked.
pub(super) fn correctness(
    options: &JudgeOptions<'_>,
    contender: &dyn Contender,
    report: &mut Report,
    watch: ProgressFn<'_>,
) -> Result<(), Error> {
    let terms = options.terms_for(contender);
    let medium = Mapped::anonymous(terms.far_bytes).map_err(Error::doing("map memory"))?;
    medium.prefault(&mut |_, _| {});
    let medium = Counted::new(medium);
    let meter = medium.meter();
    let mut trial = EngineTrial::new(options, contender);
    let engine = contender.create(FarMemory::Counted(medium), &terms)?;
    let how = DriveMode {
        group: 1,
        meter: Some(&meter),
        compare: true,
    };
    let set = trial.phase(&*engine, ContestPhase::Set, how, watch)?;
    let (of_set, far) = (trial.tally(&*engine), engine.far_bytes());
    if set.refused > 0 {
        verdict(report, contender, "correctness", &[&set]);
        return Ok(());
    }
    let get = trial.phase(&*engine, COUNTED_GET, how, watch)?;
    let of_get = trial.tally(&*engine);
    let every = trial.phase(&*engine, ContestPhase::ReadAll, how, watch)?;
    let of_every = trial.tally(&*engine);
    verdict(report, contender, "correctness", &[&set, &get, &every]);
    limits(report, &trial, &terms, "correctness");
    let live: u64 = trial.owns.iter().map(|own| own.live_bytes_max).sum();
    let name = contender.name();
    let percent = |part: u64, whole: u64| part as f64 / whole.max(1) as f64 * 100.0;
    let counted = |what: &str, value| Figure::counted(name, what, value);
    if terms.live_bytes_max < u64::MAX {
        let figure = counted("values live at most", percent(live, terms.live_bytes_max));
        let figure = figure.unit("% of what is allowed").at_most(100.0);
        report.figures.push(figure);
    }
    report.figures.extend([
        counted("updates in the set phase", percent(set.updates, set.sets)).unit("%"),
        counted("far memory taken", percent(far, terms.far_bytes)).unit("%"),
    ]);
    counts(report, name, &contender.published(&terms), &set, &get);
    let keys: u64 = trial.owns.iter().map(|own| own.keys).sum();
    let index = trial.dram.index_bytes() as f64 / keys.max(1) as f64;
    let figure = counted("DRAM a key, besides caches", index).unit("bytes");
    report.figures.push(with_bound(
        figure,
        contender.published(&terms).index_bytes_a_key,
    ));
    tallies(
        report,
        name,
        &contender.published(&terms),
        [of_set, of_get, of_every],
    );
    Ok(())
}

/// Adds a bound to a figure.
fn with_bound(figure: Figure, want: FigureBound) -> Figure {
    const NEAR: f64 = 0.05;
    /// Tolerance for values of another machine, which do not fail a run.
    const BESIDE: f64 = 0.35;
    match want {
        FigureBound::Nothing => figure,
        FigureBound::Near(value) => figure.published(value, value * NEAR),
        FigureBound::Within(value, within) => figure.published(value, within),
        FigureBound::AtMost(most) => figure.at_most(most),
        FigureBound::AtLeast(least) => figure.at_least(least),
        FigureBound::Beside(value) => figure.compared(value, BESIDE),
    }
}

/// Reports the far-memory accesses.
fn counts(
    report: &mut Report,
    name: &'static str,
    of: &PublishedFigures,
    set: &PhaseFindings,
    get: &PhaseFindings,
) {
    let a_set = |count: u64| count as f64 / set.sets.max(1) as f64;
    let mut add = |what: &str, value: f64, unit, want| {
        let figure = Figure::counted(name, what, value).unit(unit);
        report.figures.push(with_bound(figure, want));
    };
    let spent = set.by_sets;
    add("fences", a_set(spent.fences), "a set", of.fences_a_set);
    add("bytes written", a_set(spent.bytes), "a set", of.bytes_a_set);
    add(
        "64-byte lines written",
        a_set(spent.lines),
        "a set",
        of.lines_a_set,
    );
    add(
        "XPLines written",
        a_set(spent.xplines),
        "a set",
        of.xplines_a_set,
    );
    add(
        "places read, set phase",
        a_set(spent.places),
        "a set",
        of.reads_a_set,
    );
    let a_get = get.by_gets.places as f64 / get.gets.max(1) as f64;
    add("places read, get phase", a_get, "a get", of.reads_a_get);
}

/// Reports the statistics that the engine keeps itself, if it has them.
fn tallies(
    report: &mut Report,
    name: &'static str,
    of: &PublishedFigures,
    [set, get, every]: [EngineStats; 3],
) {
    let mut percent = |what: &str, part: u64, whole: u64, want| {
        if whole > 0 {
            let figure = Figure::counted(name, what, part as f64 / whole as f64 * 100.0).unit("%");
            report.figures.push(with_bound(figure, want));
        }
    };
    let gets = get.cache_hits + get.cache_misses;
    percent(
        "gets answered by the cache",
        get.cache_hits,
        gets,
        of.cache_hits,
    );
    if set.swaps > 0 {
        let [of_set, of_get] = [of.swaps_of_set_phase, of.swaps_of_get_phase];
        percent(
            "updates that swap, set phase",
            set.swaps,
            set.updates,
            of_set,
        );
        percent(
            "updates that swap, get phase",
            get.swaps,
            get.updates,
            of_get,
        );
    }
    // Taken from reads of all keys, because hot keys are not representative.
    let found: u64 = every.depth.iter().sum();
    let places = ["first", "second", "third", "fourth or later"];
    for ((place, count), want) in places.iter().zip(every.depth).zip(of.depth) {
        percent(&format!("found at the {place} place"), count, found, want);
    }
    let mut mean = |what: &str, sum: u64, count: u64, want| {
        if count > 0 {
            let figure = Figure::counted(name, what, sum as f64 / count as f64);
            report.figures.push(with_bound(figure, want));
        }
    };
    mean(
        "places to a key",
        every.probes_of_hits,
        found,
        of.probes_of_hit,
    );
    mean(
        "places to no key",
        every.probes_of_misses,
        every.misses,
        of.probes_of_miss,
    );
}

/// Runs the performance phase: timed, on a medium that does not count.
pub(super) fn performance(
    options: &JudgeOptions<'_>,
    contender: &dyn Contender,
    report: &mut Report,
    watch: ProgressFn<'_>,
) -> Result<(), Error> {
    let terms = options.terms_for(contender);
    let (_file, medium) = options.place.make(terms.far_bytes, watch)?;
    let mut trial = EngineTrial::new(options, contender);
    let started = std::time::Instant::now();
    let engine = contender.create(medium.into(), &terms)?;
    let created = started.elapsed().as_secs_f64();
    let how = timed_and_checked(options.group);
    let name = contender.name();
    let set = trial.phase(&*engine, ContestPhase::Set, how, watch)?;
    let mut gets = Vec::new();
    for round in 0..options.rounds {
        if set.refused
            + gets
                .iter()
                .map(|get: &PhaseFindings| get.refused)
                .sum::<u64>()
            == 0
        {
            gets.push(trial.phase(&*engine, ContestPhase::Get(round), how, watch)?);
        }
    }
    let mut all: Vec<&PhaseFindings> = std::iter::once(&set).chain(&gets).collect();
    let every = match all.iter().any(|found| found.refused > 0) {
        true => PhaseFindings::default(),
        false => trial.phase(&*engine, ContestPhase::ReadAll, how, watch)?,
    };
    all.push(&every);
    verdict(report, contender, "performance", &all);
    limits(report, &trial, &terms, "performance");
    let measured = |what: &str, value| Figure::measured(name, what, value);
    let times: Vec<f64> = gets.iter().map(|get| get.seconds).collect();
    let slowest = times.iter().copied().fold(0.0, f64::max);
    let init = match options.round {
        super::ContestRound::Preliminary => created,
        super::ContestRound::Final => 0.0,
    };
    report.figures.extend([
        measured("score", init + set.seconds + slowest).unit("s"),
        measured("init", created).unit("s"),
        measured("set phase", set.seconds).unit("s"),
        measured("get phase, slowest", slowest)
            .unit("s")
            .spread(&times),
        measured("get phase, median", median(&times)).unit("s"),
        rate(
            name,
            "set phase, a thread",
            set.seconds,
            &set,
            options.threads,
        ),
        rate(
            name,
            "set phase, a thread, processor time",
            set.cpu_seconds,
            &set,
            options.threads,
        ),
    ]);
    if let Some(get) = gets.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds)) {
        let threads = options.threads;
        let least = gets
            .iter()
            .map(|get| get.cpu_seconds)
            .fold(f64::INFINITY, f64::min);
        report.figures.extend([
            rate(name, "get phase, a thread", slowest, get, threads),
            rate(
                name,
                "get phase, a thread, processor time",
                least,
                get,
                threads,
            ),
        ]);
    }
    Ok(())
}

/// Returns a figure with nanoseconds per operation of a thread.
fn rate(
    name: &'static str,
    what: &str,
    seconds: f64,
    of: &PhaseFindings,
    threads: usize,
) -> Figure {
    let operations = (of.sets + of.gets) as f64 / threads as f64;
    Figure::measured(name, what, seconds * 1e9 / operations.max(1.0)).unit("ns an operation")
}
