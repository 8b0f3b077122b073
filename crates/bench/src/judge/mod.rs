//! The judge: the Tair contest's workload and rules, for any engine.
//!
//! In 2020 a contest asked for a key-value engine on persistent memory and judged it in phases: is it
//! correct, does it survive a power cut, how fast is it. This is that judge, at any scale, with what the contest
//! could not show beside it: exact counts of what an engine asks of far memory, and the model's clock.
//!
//! ```text
//!   Plan ── Stream of a thread ──▶ drive: ask the engine, compare every answer
//!     │                                │
//!   Ledger ◀── acknowledged ───────────┘
//!
//!   correctness   a set and a get phase on a counted medium, every answer compared      counted
//!   durability    crashes at every fence on simulated memory; a kill on a real pool     counted
//!   performance   a set phase, ten get phases, the slowest counts                       measured
//!   model         a set and a get phase by sixteen virtual workers on six DIMMs         modelled
//! ```
//!
//! * [`plan`](Plan) is what is asked, [`value`](Names) what is stored, `drive` asks and compares.
//! * [`Contender`] is an engine as it is judged; `kv` is ours, `contest` are the others.
//! * `published` is what was reported of the others, and what is asked of ours; `tuning` turns back the `steps`
//!   they told of.
//!
//! # Verdict
//! J1  No answer is wrong, no set is refused.
//! J2  Far memory is a medium of exactly the round's size; an engine that needs more has no room.
//! J3  DRAM, as the engine itself accounts for it, is never more than the round's. What the process really
//!     took is measured and shown beside it.
//! J4  A durable engine loses nothing that it acknowledged.

mod contender;
mod contest;
mod drive;
mod durability;
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

use farbank_contest::ContestLimits;

pub use contender::{Contender, FarMemory};
pub use contest::{KidEngine, PrelimEngine, V1Engine, V2Engine};
pub use kv::OurEngine;
pub use plan::{
    AckedValues, ContestOp, ContestPhase, ContestRound, OpStream, RoundPlan, ThreadKeys,
};
pub use published::{FigureBound, PublishedFigures};
pub use value::{KeyNames, VALUE_BYTES_MIN, WrongAnswer};

use crate::figure::{Error, Figure, ProgressFn, Report};
use crate::kv::PoolPlace;

/// Which phases an engine is judged in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JudgePhases {
    /// Every answer compared, and what is asked of far memory counted.
    pub correctness: bool,
    /// Crashes.
    pub durability: bool,
    /// The clock.
    pub performance: bool,
    /// The model's clock.
    pub model: bool,
}

/// What is judged, and how.
pub struct JudgeOptions<'a> {
    /// The engines, in the order of the columns.
    pub contenders: Vec<&'a dyn Contender>,
    /// The round of the contest.
    pub round: ContestRound,
    /// The scale: one part of so many, a power of two.
    pub part: u64,
    /// Threads of a phase.
    pub threads: usize,
    /// Where chance starts from.
    pub seed: u64,
    /// What the pools are on.
    pub place: PoolPlace,
    /// The phases.
    pub phases: JudgePhases,
    /// Get phases of which the slowest counts.
    pub rounds: u32,
    /// Operations an engine is asked for at once.
    pub group: usize,
    /// Runs that are crashed everywhere, under each way to lose power.
    pub crash_seeds: u64,
    /// Whether the engines' tuning steps are turned back, one by one, instead of all this.
    pub tuning: bool,
}

impl JudgeOptions<'_> {
    /// The round's terms at this scale.
    #[must_use]
    pub fn terms(&self) -> ContestLimits {
        let terms = match self.round {
            ContestRound::Preliminary => ContestLimits::preliminary(self.part),
            ContestRound::Final => ContestLimits::finals(self.part),
        };
        terms.with_threads(self.threads)
    }

    /// The round's plan at this scale.
    #[must_use]
    pub fn plan(&self) -> RoundPlan {
        RoundPlan::new(self.round, self.terms(), self.seed)
    }

    /// The terms a contender is judged on.
    fn terms_for(&self, contender: &dyn Contender) -> ContestLimits {
        let terms = contender.terms(self.round, self.terms());
        match contender.far_bytes_told(self.part) {
            Some(far_bytes) => ContestLimits { far_bytes, ..terms },
            None => terms,
        }
    }
}

/// Judges the contenders, one after another.
pub fn run(options: &JudgeOptions<'_>, watch: ProgressFn<'_>) -> Result<Report, Error> {
    let mut report = Report::default();
    if options.tuning {
        tuning::run(options, &mut report, watch)?;
        return Ok(report);
    }
    let mut modelled = Vec::new();
    for contender in &options.contenders {
        let name = contender.name();
        if !contender.takes(options.round) {
            let why = format!("{name} was not built for this round, and is left out");
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
            "the judge's own share of the times is {ns:.1} ns an operation, measured with an engine that \
             does nothing; drawing operations and comparing answers is not in them"
        ));
        ahead(&mut report);
    }
    if options.phases.model {
        modelled::compare(&modelled, &mut report);
        modelled::two_writes(options.seed, &mut report);
        report.notes.push(modelled::label(options));
    }
    Ok(report)
}

/// Ours is to be faster than the others in both phases: its times by each of theirs, measured here, by the
/// clock and by processor time. The latter does not know what an engine's own threads do.
fn ahead(report: &mut Report) {
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
