//! The judge: runs the Tair contest's workload under its rules, for any engine.
//!
//! In 2020 a contest called for a key-value engine on persistent memory. Its judge tested correctness, survival of a
//! power cut, and speed, in phases. This module rebuilds that judge at any scale. It adds exact counts of far-memory
//! accesses, and a model of far memory.
//!
//! ```text
//!   RoundPlan ── OpStream of a thread ──▶ drive: run operations on the engine, check every answer
//!     │                                      │
//!   AckedValues ◀── acknowledged ────────────┘
//!
//!   correctness   a set and a get phase on a counted medium, every answer checked       counted
//!   durability    crashes at every fence on simulated memory; a kill on a real pool     counted
//!   performance   a set phase and ten get phases, of which the slowest counts           measured
//!   model         a set and a get phase by sixteen virtual workers on six DIMMs         modelled
//! ```
//!
//! * [`plan`](RoundPlan) generates the operations, [`value`](KeyNames) the keys and values; `drive` runs and checks
//!   them.
//! * [`Contender`] is the interface of an engine under test; `kv` is our engine, `engines` has the published ones.
//! * `published` has the published values of these engines, and the bounds for ours. `tuning` measures each published
//!   tuning step (`steps`) by leaving it out.
//!
//! # Verdict
//! JUDGE-1  No answer is wrong, and no set is refused.
//! JUDGE-2  Far memory is a medium of exactly the round's size. An engine that needs more runs out of space.
//! JUDGE-3  The DRAM that an engine reports never exceeds the round's limit. The memory that the process really gains is
//!     measured and shown next to it.
//! JUDGE-4  A durable engine loses nothing that it acknowledged.

mod contender;
mod drive;
mod durability;
mod engines;
mod experiments;
mod kv;
mod limits;
mod modelled;
mod phases;
mod plan;
mod published;
mod steps;
#[cfg(test)]
mod tests;
mod tuning;
mod value;

use farbank_bench::figure::{Error, Figure, ProgressFn, Report};
use farbank_bench::kv::PoolPlace;

use crate::ContestLimits;

pub use contender::{Contender, FarMemory};
pub use engines::{KidEngine, PrelimEngine, V1Engine, V2Engine};
pub use experiments::all_benches;
pub use kv::OurEngine;
pub use plan::{
    AckedValues, ContestOp, ContestPhase, ContestRound, OpStream, RoundPlan, ThreadKeys,
};
pub use published::{FigureBound, PublishedFigures};
pub use value::{KeyNames, VALUE_BYTES_MIN, WrongAnswer};

/// Phases to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JudgePhases {
    /// Checks every answer and counts far-memory accesses.
    pub correctness: bool,
    /// Crashes and kills the engine.
    pub durability: bool,
    /// Measures time.
    pub performance: bool,
    /// Runs on the model of far memory.
    pub model: bool,
}

/// A phase that a run can include.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JudgePhase {
    /// [`JudgePhases::correctness`].
    Correctness,
    /// [`JudgePhases::durability`].
    Durability,
    /// [`JudgePhases::performance`].
    Performance,
    /// [`JudgePhases::model`].
    Model,
}

impl JudgePhases {
    /// Returns the phases of a list.
    #[must_use]
    pub fn of(phases: &[JudgePhase]) -> JudgePhases {
        JudgePhases {
            correctness: phases.contains(&JudgePhase::Correctness),
            durability: phases.contains(&JudgePhase::Durability),
            performance: phases.contains(&JudgePhase::Performance),
            model: phases.contains(&JudgePhase::Model),
        }
    }
}

/// Experiment that replaces the phases of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JudgeExperiment {
    /// [`JudgeOptions::tuning`].
    Tuning,
}

/// Options of a run of the judge.
pub struct JudgeOptions<'a> {
    /// Engines to test, in the order of the columns.
    pub contenders: Vec<&'a dyn Contender>,
    /// Round of the contest.
    pub round: ContestRound,
    /// Scale: everything is divided by this power of two.
    pub part: u64,
    /// Number of threads in a phase.
    pub threads: usize,
    /// Seed of the random choices.
    pub seed: u64,
    /// Medium of the pools.
    pub place: PoolPlace,
    /// Phases to run.
    pub phases: JudgePhases,
    /// Number of get phases, of which the slowest counts.
    pub rounds: u32,
    /// Number of operations passed to an engine in one call.
    pub group: usize,
    /// Number of runs that are crashed at every fence, for each persistency mode.
    pub crash_seeds: u64,
    /// Whether to measure the engines' tuning steps instead.
    pub tuning: bool,
}

impl JudgeOptions<'_> {
    /// Returns the round's limits at this scale.
    #[must_use]
    pub fn terms(&self) -> ContestLimits {
        let terms = match self.round {
            ContestRound::Preliminary => ContestLimits::preliminary(self.part),
            ContestRound::Final => ContestLimits::finals(self.part),
        };
        terms.with_threads(self.threads)
    }

    /// Returns the round's plan at this scale.
    #[must_use]
    pub fn plan(&self) -> RoundPlan {
        RoundPlan::new(self.round, self.terms(), self.seed)
    }

    /// Returns the limits that apply to a contender.
    fn terms_for(&self, contender: &dyn Contender) -> ContestLimits {
        let terms = contender.terms(self.round, self.terms());
        match contender.published_far_bytes(self.part) {
            Some(far_bytes) => ContestLimits { far_bytes, ..terms },
            None => terms,
        }
    }
}

/// Tests the contenders, one after another.
///
/// # Errors
/// A medium cannot be created, an engine fails or panics, or `watch` stopped the run.
pub fn run(options: &JudgeOptions<'_>, watch: ProgressFn<'_>) -> Result<Report, Error> {
    let mut report = Report::default();
    if options.tuning {
        tuning::run(options, &mut report, watch)?;
        return Ok(report);
    }
    let mut modelled = Vec::new();
    for contender in &options.contenders {
        let name = contender.name();
        if !contender.supports_round(options.round) {
            let why = format!("{name} was not built for this round and is skipped");
            report.notes.push(why);
            continue;
        }
        if options.phases.correctness {
            phases::correctness(options, *contender, &mut report, watch)?;
        }
        if options.phases.durability {
            durability::durability(options, *contender, &mut report, watch)?;
        }
        if options.phases.performance {
            phases::performance(options, *contender, &mut report, watch)?;
        }
        if options.phases.model {
            let rates = modelled::run(options, *contender, &mut report, watch)?;
            modelled.extend(rates.map(|rates| (name, rates)));
        }
    }
    if options.phases.performance {
        let ns = drive::own_cost_ns(&options.plan())?;
        report.notes.push(format!(
            "the judge itself takes {ns:.1} ns per operation of these times, measured with an engine that \
             does nothing; drawing operations and checking answers is not timed"
        ));
        compare_times(&mut report);
    }
    if options.phases.model {
        modelled::compare(&modelled, &mut report);
        modelled::two_writes(options.seed, &mut report);
        report.notes.push(modelled::label(options));
    }
    Ok(report)
}

/// Adds the ratios of our engine's times to those of every other engine, with the bound that ours is faster. Processor
/// time leaves out an engine's own threads.
fn compare_times(report: &mut Report) {
    const OURS: &str = "kv";
    let mut found = Vec::new();
    for phase in [
        "set phase",
        "get phase, slowest",
        "set phase, a thread, processor time",
        "get phase, a thread, processor time",
    ] {
        let times: Vec<_> = (report.figures.iter())
            .filter(|figure| figure.name == phase)
            .map(|figure| (figure.experiment, figure.value))
            .collect();
        let Some((_, ours)) = times.iter().find(|(name, _)| *name == OURS) else {
            continue;
        };
        for (name, theirs) in times.iter().filter(|(name, _)| *name != OURS) {
            let what = format!("{phase}: by the time of {name}");
            found.push(Figure::measured(OURS, what, ours / theirs).at_most(1.0));
        }
    }
    report.figures.extend(found);
}
