//! Measures what each published tuning step gains, by leaving it out alone.
//!
//! The authors of the engines reported the gain of a step in seconds of their score, on their machine. Here the engine
//! with the step and the engine without it take turns. Each turn is a set and a get phase, on memory of this process,
//! and gives a ratio of times. The figure is the median of these ratios. Only the order and rough size of the steps
//! can be compared, not seconds: far memory is DRAM here and costs much less. So the change in far-memory accesses is
//! counted too, and modelled in the final round.

use std::time::Instant;

use farbank_bench::counted::{Counted, MediumCounts};
use farbank_bench::figure::{Error, Figure, Kind, ProgressFn, Report, median};
use farbank_pm::media::Mapped;

use super::contender::{Contender, FarMemory};
use super::drive::{DriveMode, PhaseFindings};
use super::phases::{EngineTrial, timed_and_checked};
use super::plan::ContestPhase;
use super::steps::{self, TechniqueStep, TimedPart};
use super::{JudgeOptions, modelled};
use crate::ContestLimits;

/// Number of turns, each with one run of both engines.
const TURNS: usize = 5;
/// Smallest relative difference that is reported.
const REPORTED_FROM: f64 = 0.01;

/// Times of one run, in seconds.
#[derive(Clone, Copy, Default)]
struct TuningTimes {
    wall: f64,
    cpu: f64,
}

/// Far-memory accesses per operation of one run.
struct TuningCounts {
    fences: f64,
    lines: f64,
    places: f64,
}

/// Measures every step of the selected engines.
pub(super) fn run(
    options: &JudgeOptions<'_>,
    report: &mut Report,
    watch: ProgressFn<'_>,
) -> Result<(), Error> {
    let judged = |step: &TechniqueStep| {
        let mut names = options.contenders.iter().map(|contender| contender.name());
        names.any(|name| name == step.with.name()) && step.with.supports_round(options.round)
    };
    for step in steps::all().into_iter().filter(judged) {
        measure(options, &step, report, watch)?;
        if step.far {
            count(options, &step, report, watch)?;
            model(options, &step, report, watch)?;
        }
    }
    Ok(())
}

/// Relative distance from the reported gain within which ours counts as near. It does not fail a run, as machines
/// differ.
const NEAR: f64 = 0.35;

/// Creates a figure: the ratio of the time without the step to the time with it.
fn times_as_long(step: &TechniqueStep, what: &str, ratios: &[f64]) -> Figure {
    let name = format!("without {}: {what}", step.what);
    let figure = Figure::measured(step.with.name(), name, median(ratios)).unit("times as long");
    match step.reported {
        Some((before, after)) => figure.compared(before / after, NEAR),
        None => figure,
    }
}

fn measure(
    options: &JudgeOptions<'_>,
    step: &TechniqueStep,
    report: &mut Report,
    watch: ProgressFn<'_>,
) -> Result<(), Error> {
    let (mut wall, mut cpu) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        let mut found = [TuningTimes::default(); 2];
        // The order alternates, so that other load on the machine affects both.
        for which in [turn % 2, 1 - turn % 2] {
            let contender = [&step.with, &step.without][which];
            found[which] = time(options, step, &**contender, watch)?;
        }
        let [with, without] = found;
        wall.push(without.wall / with.wall);
        cpu.push(without.cpu / with.cpu);
    }
    let clock = times_as_long(step, "time", &wall).spread(&wall);
    report.figures.push(clock);
    // Creation uses many threads, so the processor time of one thread says nothing about it.
    if step.timed == TimedPart::Phases {
        let processor = times_as_long(step, "processor time", &cpu).spread(&cpu);
        report.figures.push(processor);
    }
    Ok(())
}

/// Creates the far memory of a run.
fn memory(
    options: &JudgeOptions<'_>,
    step: &TechniqueStep,
    contender: &dyn Contender,
) -> Result<(Mapped, ContestLimits), Error> {
    let terms = step.with_room(options.terms_for(contender));
    let medium = Mapped::anonymous(terms.far_bytes).map_err(Error::doing("map memory"))?;
    if step.faulted {
        medium.prefault(&mut |_, _| {});
    }
    Ok((medium, terms))
}

/// Times a set and a get phase, or the creation of the engine.
fn time(
    options: &JudgeOptions<'_>,
    step: &TechniqueStep,
    contender: &dyn Contender,
    watch: ProgressFn<'_>,
) -> Result<TuningTimes, Error> {
    let (medium, terms) = memory(options, step, contender)?;
    let mut trial = EngineTrial::new(options, contender);
    let started = Instant::now();
    let engine = contender.create(FarMemory::Mapped(medium), &terms)?;
    if step.timed == TimedPart::Create {
        let wall = started.elapsed().as_secs_f64();
        return Ok(TuningTimes { wall, cpu: wall });
    }
    let mut times = TuningTimes::default();
    for phase in [ContestPhase::Set, ContestPhase::Get(0)] {
        let found = trial.phase(&*engine, phase, timed_and_checked(options.group), watch)?;
        right(contender, step, &found)?;
        times.wall += found.seconds;
        times.cpu += found.cpu_seconds;
    }
    Ok(times)
}

/// Fails if a run has wrong answers or refused sets, because its times cannot be compared.
fn right(
    contender: &dyn Contender,
    step: &TechniqueStep,
    found: &PhaseFindings,
) -> Result<(), Error> {
    if found.refused + found.wrong_answers() == 0 {
        return Ok(());
    }
    let (name, what, told) = (contender.name(), step.what, found.told.join("; "));
    Err(Error::Failed(format!(
        "{name}: the times with and without {what} cannot be compared: {} sets refused, {} answers wrong; {told}",
        found.refused,
        found.wrong_answers()
    )))
}

/// Counts far-memory accesses with and without the step, and reports those that differ.
pub(super) fn count(
    options: &JudgeOptions<'_>,
    step: &TechniqueStep,
    report: &mut Report,
    watch: ProgressFn<'_>,
) -> Result<(), Error> {
    let with = asked(options, step, &*step.with, watch)?;
    let without = asked(options, step, &*step.without, watch)?;
    for (unit, with, without) in [
        ("fences an operation", with.fences, without.fences),
        ("lines written an operation", with.lines, without.lines),
        ("places read an operation", with.places, without.places),
    ] {
        if (without - with).abs() <= REPORTED_FROM * with.max(without) {
            continue;
        }
        for (which, value) in [("with", with), ("without", without)] {
            let name = format!("{which} {}: {unit}", step.what);
            report
                .figures
                .push(Figure::counted(step.with.name(), name, value));
        }
    }
    Ok(())
}

fn asked(
    options: &JudgeOptions<'_>,
    step: &TechniqueStep,
    contender: &dyn Contender,
    watch: ProgressFn<'_>,
) -> Result<TuningCounts, Error> {
    let (medium, terms) = memory(options, step, contender)?;
    let medium = Counted::new(medium);
    let meter = medium.meter();
    let mut trial = EngineTrial::new(options, contender);
    let engine = contender.create(FarMemory::Counted(medium), &terms)?;
    let how = DriveMode {
        meter: Some(&meter),
        ..timed_and_checked(1)
    };
    let (mut spent, mut operations) = (MediumCounts::default(), 0);
    for phase in [ContestPhase::Set, ContestPhase::Get(0)] {
        let found = trial.phase(&*engine, phase, how, watch)?;
        right(contender, step, &found)?;
        spent += found.by_sets;
        spent += found.by_gets;
        operations += found.sets + found.gets;
    }
    let each = |count: u64| count as f64 / operations as f64;
    Ok(TuningCounts {
        fences: each(spent.fences),
        lines: each(spent.lines),
        places: each(spent.places),
    })
}

/// Runs each phase on the model, with and without the step, if the engine can be modelled.
pub(super) fn model(
    options: &JudgeOptions<'_>,
    step: &TechniqueStep,
    report: &mut Report,
    watch: ProgressFn<'_>,
) -> Result<(), Error> {
    let mut ns = |contender: &dyn Contender| {
        let rates = modelled::rates(options, contender, &|terms| step.with_room(terms), watch)?;
        Ok::<_, Error>(rates.map(|rates| 1.0 / rates.sets + 1.0 / rates.gets))
    };
    let (with, without) = (ns(&*step.with)?, ns(&*step.without)?);
    if let (Some(with), Some(without)) = (with, without) {
        let figure = times_as_long(step, "virtual time", &[without / with]);
        report.figures.push(Figure {
            kind: Kind::Modelled,
            ..figure
        });
    }
    Ok(())
}
