//! What the published tuning steps are worth, each turned back alone.
//!
//! Those who built the engines told what a step gained them, in seconds of a score, on their machine. Here an
//! engine with the step and one without take turns, a set and a get phase each, on memory of this process. A
//! turn gives a ratio of times; the median of the turns is the figure. What is compared is the order and rough
//! size of a step, not its seconds: far memory here is DRAM, and costs a fraction of what theirs did. So what a
//! step changes of what far memory is asked for is counted, too, and modelled in the final round.

use std::time::Instant;

use farbank_contest::ContestLimits;
use farbank_pm::media::Mapped;

use super::contender::{Contender, FarMemory};
use super::drive::{DriveMode, PhaseFindings};
use super::phases::{EngineTrial, plainly};
use super::plan::ContestPhase;
use super::steps::{self, TechniqueStep, TimedPart};
use super::{JudgeOptions, modelled};
use crate::counted::{Counted, Spent};
use crate::figure::{Error, Figure, Kind, ProgressFn, Report, median};

/// Times each of both takes its turn.
const TURNS: usize = 5;
/// What differs by less is not told.
const TOLD_FROM: f64 = 0.01;

/// The times of one run.
#[derive(Clone, Copy, Default)]
struct TuningTimes {
    wall: f64,
    cpu: f64,
}

/// What an operation of one run asked of far memory.
struct TuningCounts {
    fences: f64,
    lines: f64,
    places: f64,
}

/// Turns back every step of the engines that are judged.
pub(super) fn run(
    options: &JudgeOptions<'_>,
    report: &mut Report,
    watch: ProgressFn<'_>,
) -> Result<(), Error> {
    let judged = |step: &TechniqueStep| {
        let mut names = options.contenders.iter().map(|contender| contender.name());
        names.any(|name| name == step.with.name()) && step.with.takes(options.round)
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

/// How far from the reported gain of a step ours may be to be near it, as a part of that. Machines differ, so it decides nothing.
const NEAR: f64 = 0.35;

/// A figure of a step: how many times as long without it.
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
        // Who is first changes: what the machine does meanwhile is for both.
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
    // What creates an engine with many threads is not one thread's time.
    if step.timed == TimedPart::Phases {
        let processor = times_as_long(step, "processor time", &cpu).spread(&cpu);
        report.figures.push(processor);
    }
    Ok(())
}

/// Far memory for a run.
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

/// A set and a get phase.
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
        let found = trial.phase(&*engine, phase, plainly(options.group), watch)?;
        right(contender, step, &found)?;
        times.wall += found.seconds;
        times.cpu += found.cpu_seconds;
    }
    Ok(times)
}

/// A run whose answers are wrong, or which has no room, shows nothing.
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
        "{name}, with or without {what}, cannot be compared: {} sets refused, {} answers wrong; {told}",
        found.refused,
        found.wrong_answers()
    )))
}

/// What far memory is asked for with and without the step, where that differs.
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
        if (without - with).abs() <= TOLD_FROM * with.max(without) {
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
        ..plainly(1)
    };
    let (mut spent, mut operations) = (Spent::default(), 0);
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

/// The same on the model, where it can be: an operation of each phase, with and without.
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
