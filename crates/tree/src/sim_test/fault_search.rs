//! Many trials: a gate that must hold, and hunts for faults that must be found.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use farbank_check::explore::computed_by_thread;
use farbank_pm::fault::{self, Fault};
use farbank_pm::sim::Rng;

use super::{FaultMoment, InjectedFault, TrialConfig, TrialOutcome, TrialViolation};
use crate::config::{Config, ValueMode};

/// Bytes of values out of line, where the seed decides: several lines.
const VALUE_BYTES: usize = 300;

/// Which tree is tried.
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
}

impl TreeVariant {
    /// As it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            TreeVariant::Safe => "safe",
            TreeVariant::Published => "published",
            TreeVariant::FgPlus => "fg+",
            TreeVariant::Fg => "fg",
        }
    }

    fn config(self) -> Config {
        match self {
            TreeVariant::Safe => Config::sherman(),
            TreeVariant::Published => Config::sherman_published(),
            TreeVariant::FgPlus => Config::fg_plus(),
            TreeVariant::Fg => Config::fg(),
        }
    }
}

/// What is tried under each seed. What is not said here is drawn from the seed.
#[derive(Clone, Debug)]
pub struct SearchPlan {
    /// The tree.
    pub system: TreeVariant,
    /// What goes wrong.
    pub disaster: Option<InjectedFault>,
    /// Bytes of a key.
    pub key_bytes: Option<usize>,
    /// Most bytes of a value, out of line; 0: values are words, in leaves.
    pub value_bytes: Option<usize>,
    /// Whether cards fetch the lines of a read in increasing order.
    pub read_line_order: bool,
}

/// A trial that came to something that cannot be explained.
#[derive(Clone, Debug)]
pub struct CaughtTrial {
    /// Its seed.
    pub seed: u64,
    /// Its disaster.
    pub disaster: InjectedFault,
    /// What it came to.
    pub violation: TrialViolation,
}

/// How often disasters came at which moments, and what became of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FaultReach {
    /// Trials, by disaster and by what somebody was in the middle of; [`Moment::Any`] counts each once.
    pub moments: BTreeMap<(&'static str, FaultMoment), u64>,
    /// Trials in which far memory named the dead or paused compute server as a lock's owner.
    pub locks_named: u64,
    /// Trials in which a compute server that had paused was refused when it woke.
    pub refused: u64,
    /// Of those, the ones in which it had a lock when it paused.
    pub refused_holding: u64,
}

/// What many trials came to.
#[derive(Clone, Debug, Default)]
pub struct SearchReport {
    /// Trials.
    pub schedules: u64,
    /// The sum of all outcomes; of [`Outcome::slowest_error_ns`], the largest.
    pub sum: TrialOutcome,
    /// What was reached.
    pub reach: FaultReach,
    /// A function of plan and seeds.
    pub digest: u64,
    /// Time of one CPU.
    pub cpu: Duration,
    /// What ended it.
    pub caught: Option<CaughtTrial>,
}

impl SearchPlan {
    /// Sherman on the safe layout, lines in any order, everything else drawn.
    #[must_use]
    pub fn new(system: TreeVariant) -> SearchPlan {
        SearchPlan {
            system,
            disaster: None,
            key_bytes: None,
            value_bytes: None,
            // The published layout holds only where cards promise what none does.
            read_line_order: system == TreeVariant::Published,
        }
    }

    /// The trial of `seed`.
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
        }
    }

    /// Runs the trials of `seeds`, one after another, until one comes to something that cannot be explained or
    /// `go_on` says no, asked after each.
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
            match trial.run(seed) {
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
        sum.beside += outcome.beside;
        sum.lost += outcome.lost;
        sum.torn += outcome.torn;
        sum.splits += outcome.splits;
        sum.merges += outcome.merges;
        sum.taken_over += outcome.taken_over;
        sum.mended += outcome.mended;
        let name = trial.disaster.name();
        let mut count = |moment| *self.reach.moments.entry((name, moment)).or_default() += 1;
        count(FaultMoment::Any);
        let Some(struck) = &outcome.struck else {
            return;
        };
        struck.doing.iter().copied().for_each(count);
        self.reach.locks_named += u64::from(struck.locks > 0);
        if trial.disaster == InjectedFault::Pause && outcome.fenced > 0 {
            self.reach.refused += 1;
            self.reach.refused_holding += u64::from(struck.locks > 0);
        }
    }

    /// Trials with this disaster at this moment.
    #[must_use]
    pub fn reached(&self, disaster: InjectedFault, moment: FaultMoment) -> u64 {
        let key = (disaster.name(), moment);
        self.reach.moments.get(&key).copied().unwrap_or(0)
    }
}

/// What became of a fault.
#[derive(Clone, Debug)]
pub enum FaultVerdict {
    /// A trial objected.
    Found(TreeVariant, CaughtTrial),
    /// A trial objected, but under that seed it objects without the fault, too.
    Void(TreeVariant, CaughtTrial),
    /// Everything is the same with it.
    Idle,
    /// It changed what happens, and nothing objected.
    Survived,
}

/// A fault that was hunted.
#[derive(Clone, Debug)]
pub struct SearchedFault {
    /// What became of it.
    pub verdict: FaultVerdict,
    /// Trials until then, of all systems.
    pub schedules: u64,
    /// Time of one CPU.
    pub cpu: Duration,
}

/// Looks for `fault` under `seeds`, a few of each plan in turn, for so much time of one CPU at most.
#[must_use]
pub fn hunt(name: &str, plans: &[SearchPlan], seeds: &Range<u64>, cpu: Duration) -> SearchedFault {
    /// Seeds of a plan before it is the next one's turn.
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
                    Some(clean) => FaultVerdict::Void(plan.system, clean),
                    None => FaultVerdict::Found(plan.system, caught),
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
