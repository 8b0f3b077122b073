//! Runs of many trials: a gate that must pass, and searches for faults that must be found.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use farbank_check::explore::computed_by_thread;
use farbank_check::guarded;
use farbank_pm::fault::{self, Fault};
use farbank_pm::rng::Rng;

use super::{FaultMoment, InjectedFault, TrialConfig, TrialOutcome, TrialViolation};
use crate::config::{Config, ValueMode};

/// Maximum bytes of values out of line, if the seed selects them: several lines.
const VALUE_BYTES: usize = 300;

/// Variant of the tree under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TreeVariant {
    /// Sherman on the safe layout.
    Safe,
    /// Sherman on the published layout.
    Published,
    /// FG+.
    FgPlus,
    /// FG.
    Fg,
    /// Sherman on the safe layout, with shared operations on one key.
    Farbank,
}

impl TreeVariant {
    /// All variants.
    pub const ALL: [TreeVariant; 5] = [
        TreeVariant::Safe,
        TreeVariant::Published,
        TreeVariant::FgPlus,
        TreeVariant::Fg,
        TreeVariant::Farbank,
    ];

    /// Returns the name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            TreeVariant::Safe => "safe",
            TreeVariant::Published => "published",
            TreeVariant::FgPlus => "fg+",
            TreeVariant::Fg => "fg",
            TreeVariant::Farbank => "farbank",
        }
    }

    fn config(self) -> Config {
        match self {
            TreeVariant::Safe => Config::sherman(),
            TreeVariant::Published => Config::sherman_published(),
            TreeVariant::FgPlus => Config::fg_plus(),
            TreeVariant::Fg => Config::fg(),
            TreeVariant::Farbank => Config::farbank(),
        }
    }
}

/// Parameters of a search. Those that are `None` are drawn from the seed.
#[derive(Clone, Debug)]
pub struct SearchPlan {
    /// Variant of the tree.
    pub system: TreeVariant,
    /// The injected failure.
    pub disaster: Option<InjectedFault>,
    /// Bytes of a key.
    pub key_bytes: Option<usize>,
    /// Maximum bytes of a value out of line; 0: values are words, in leaves.
    pub value_bytes: Option<usize>,
    /// Whether network cards fetch the lines of a read in increasing order.
    pub read_line_order: bool,
    /// Whether a memory server leaves during the calls.
    pub drains: Option<bool>,
}

/// A trial with a violation.
#[derive(Clone, Debug)]
pub struct CaughtTrial {
    /// Its seed.
    pub seed: u64,
    /// Its injected failure.
    pub disaster: InjectedFault,
    /// The violation.
    pub violation: TrialViolation,
}

/// Counts of failures by moment, and their consequences.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FaultReach {
    /// Trials by failure and moment; [`FaultMoment::Any`] counts each trial once.
    pub moments: BTreeMap<(&'static str, FaultMoment), u64>,
    /// Trials in which the crashed or paused compute server owned a lock.
    pub locks_named: u64,
    /// Trials in which a paused compute server was refused after it resumed.
    pub refused: u64,
    /// Those of them in which it owned a lock when it paused.
    pub refused_holding: u64,
}

/// Result of many trials.
#[derive(Clone, Debug, Default)]
pub struct SearchReport {
    /// Number of trials.
    pub schedules: u64,
    /// The sum of all outcomes; for [`TrialOutcome::slowest_error_ns`], the maximum.
    pub sum: TrialOutcome,
    /// Counts of the failures that were reached.
    pub reach: FaultReach,
    /// Digest, a function of plan and seeds.
    pub digest: u64,
    /// Time of one CPU.
    pub cpu: Duration,
    /// The violation that ended the search.
    pub caught: Option<CaughtTrial>,
}

impl SearchPlan {
    /// Creates a plan for a variant, with everything else drawn from the seed. Lines are fetched in any order, except
    /// for the published layout.
    #[must_use]
    pub fn new(system: TreeVariant) -> SearchPlan {
        SearchPlan {
            system,
            disaster: None,
            key_bytes: None,
            value_bytes: None,
            // The published layout is correct only with an order that no network card guarantees.
            read_line_order: system == TreeVariant::Published,
            drains: None,
        }
    }

    /// Returns the trial of `seed`.
    #[must_use]
    pub fn trial(&self, seed: u64) -> TrialConfig {
        let mut rng = Rng::new(seed).fork(3);
        let drawn = match rng.below(12) {
            0 => InjectedFault::None,
            1..5 => InjectedFault::Crash,
            5..8 => InjectedFault::Pause,
            8..10 => InjectedFault::Kill,
            _ => InjectedFault::Empty,
        };
        let drawn_bytes = match rng.below(16) {
            0 => 1024,
            1 => 100,
            2 => 24,
            _ => 8,
        };
        let drawn_values = if rng.below(3) == 0 { VALUE_BYTES } else { 0 };
        let values = match self.value_bytes.unwrap_or(drawn_values) {
            0 => ValueMode::Words,
            bytes_max => ValueMode::Blocks { bytes_max },
        };
        let config = self.system.config();
        let key_bytes = self.key_bytes.unwrap_or(drawn_bytes);
        let layout = config.layout.with_keys(key_bytes, 1);
        TrialConfig {
            config: Config {
                layout,
                values,
                ..config
            }
            .with_small_nodes(),
            disaster: self.disaster.unwrap_or(drawn),
            read_line_order: self.read_line_order,
            // The seeds of trials that once failed (`tests/trial.rs`) drain nothing.
            drains: self.drains.unwrap_or(seed % 5 == 2),
        }
    }

    /// Runs the trials of `seeds`, until one has a violation or `go_on`, called after each, returns false.
    pub fn run(
        &self,
        seeds: Range<u64>,
        go_on: &mut dyn FnMut(&SearchReport) -> bool,
    ) -> SearchReport {
        let began = computed_by_thread();
        let mut run = SearchReport::default();
        for seed in seeds {
            let trial = self.trial(seed);
            run.schedules += 1;
            // A panic of the tree is a violation, too.
            let ran = guarded(|| trial.run(seed)).unwrap_or_else(|said| {
                Err(TrialViolation {
                    what: said.into(),
                    history: Vec::new(),
                })
            });
            match ran {
                Ok(outcome) => run.add(&trial, &outcome),
                Err(violation) => {
                    run.caught = Some(CaughtTrial {
                        seed,
                        disaster: trial.disaster,
                        violation,
                    });
                }
            }
            run.cpu = computed_by_thread() - began;
            if run.caught.is_some() || !go_on(&run) {
                break;
            }
        }
        run
    }
}

impl SearchReport {
    fn add(&mut self, trial: &TrialConfig, outcome: &TrialOutcome) {
        self.digest = Rng::new(self.digest ^ outcome.digest).draw();
        let sum = &mut self.sum;
        sum.answered += outcome.answered;
        sum.failed += outcome.failed;
        sum.fenced += outcome.fenced;
        sum.cut_off += outcome.cut_off;
        sum.slowest_error_ns = sum.slowest_error_ns.max(outcome.slowest_error_ns);
        sum.unaffected_keys += outcome.unaffected_keys;
        sum.lost += outcome.lost;
        sum.torn += outcome.torn;
        sum.splits += outcome.splits;
        sum.reused_leaves += outcome.reused_leaves;
        sum.merges += outcome.merges;
        sum.taken_over += outcome.taken_over;
        sum.mended += outcome.mended;
        sum.drained += outcome.drained;
        let name = trial.disaster.name();
        let mut count = |moment| *self.reach.moments.entry((name, moment)).or_default() += 1;
        count(FaultMoment::Any);
        let Some(struck) = &outcome.failure else {
            return;
        };
        struck.doing.iter().copied().for_each(count);
        self.reach.locks_named += u64::from(struck.locks > 0);
        if trial.disaster == InjectedFault::Pause && outcome.fenced > 0 {
            self.reach.refused += 1;
            self.reach.refused_holding += u64::from(struck.locks > 0);
        }
    }

    /// Returns the number of trials with this failure at this moment.
    #[must_use]
    pub fn reached(&self, disaster: InjectedFault, moment: FaultMoment) -> u64 {
        let key = (disaster.name(), moment);
        self.reach.moments.get(&key).copied().unwrap_or(0)
    }
}

/// Result of the search for a fault.
#[derive(Clone, Debug)]
pub enum FaultVerdict {
    /// A trial of the plan found a violation.
    Found(SearchPlan, CaughtTrial),
    /// A trial found a violation, but with the same seed it also finds one without the fault.
    Void(SearchPlan, CaughtTrial),
    /// The fault changes nothing.
    Idle,
    /// The fault changes the runs, but no trial found a violation.
    Survived,
}

/// The search for one fault.
#[derive(Clone, Debug)]
pub struct SearchedFault {
    /// The result.
    pub verdict: FaultVerdict,
    /// Number of trials until the result, over all variants.
    pub schedules: u64,
    /// Time of one CPU.
    pub cpu: Duration,
}

/// Searches for the fault `name` with `seeds`, some seeds per plan in turn, for at most `cpu` of CPU time.
#[must_use]
pub fn search_fault(
    name: &str,
    plans: &[SearchPlan],
    seeds: &Range<u64>,
    cpu: Duration,
) -> SearchedFault {
    /// Number of seeds per plan before the next plan's turn.
    const TURN: u64 = 32;
    let began = computed_by_thread();
    let spent = || computed_by_thread() - began;
    let fault = Fault::Name(name.into());
    let mut schedules = 0;
    let mut digests = BTreeMap::new();
    let mut from = seeds.start;
    while from < seeds.end && spent() < cpu {
        let turn = from..(from + TURN).min(seeds.end);
        for (index, plan) in plans.iter().enumerate() {
            let run = fault::with(Some(&fault), || {
                plan.run(turn.clone(), &mut |_| spent() < cpu)
            });
            schedules += run.schedules;
            if let Some(caught) = run.caught {
                let again = plan.run(caught.seed..caught.seed + 1, &mut |_| true);
                let verdict = match again.caught {
                    Some(clean) => FaultVerdict::Void(plan.clone(), clean),
                    None => FaultVerdict::Found(plan.clone(), caught),
                };
                return SearchedFault {
                    verdict,
                    schedules,
                    cpu: spent(),
                };
            }
            if from == seeds.start {
                digests.insert(index, run.digest);
            }
        }
        from = turn.end;
    }
    let first = seeds.start..(seeds.start + TURN).min(seeds.end);
    let same = plans.iter().enumerate().all(|(index, plan)| {
        digests.get(&index) == Some(&plan.run(first.clone(), &mut |_| true).digest)
    });
    SearchedFault {
        verdict: if same {
            FaultVerdict::Idle
        } else {
            FaultVerdict::Survived
        },
        schedules,
        cpu: spent(),
    }
}
