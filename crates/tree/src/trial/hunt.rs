//! Many trials: a gate that must hold, and hunts for faults that must be found.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use farbank_check::explore::computed_by_thread;
use farbank_pm::fault::{self, Fault};
use farbank_pm::sim::Rng;

use super::{Disaster, Moment, Outcome, Trial, Violation};
use crate::config::{Config, Values};

/// Bytes of values out of line, where the seed decides: several lines.
const VALUE_BYTES: usize = 300;

/// Which tree is tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum System {
    /// Sherman on the safe layout.
    Safe,
    /// Sherman on the published layout.
    Published,
    /// FG+.
    FgPlus,
    /// FG.
    Fg,
}

impl System {
    /// As it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            System::Safe => "safe",
            System::Published => "published",
            System::FgPlus => "fg+",
            System::Fg => "fg",
        }
    }

    fn config(self) -> Config {
        match self {
            System::Safe => Config::sherman(),
            System::Published => Config::sherman_published(),
            System::FgPlus => Config::fg_plus(),
            System::Fg => Config::fg(),
        }
    }
}

/// What is tried under each seed. What is not said here is drawn from the seed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The tree.
    pub system: System,
    /// What goes wrong.
    pub disaster: Option<Disaster>,
    /// Bytes of a key.
    pub key_bytes: Option<usize>,
    /// Most bytes of a value, out of line; 0: values are words, in leaves.
    pub value_bytes: Option<usize>,
    /// Whether cards fetch the lines of a read in increasing order.
    pub read_line_order: bool,
}

/// A trial that came to something that cannot be explained.
#[derive(Clone, Debug)]
pub struct Caught {
    /// Its seed.
    pub seed: u64,
    /// Its disaster.
    pub disaster: Disaster,
    /// What it came to.
    pub violation: Violation,
}

/// How often disasters came at which moments, and what became of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reach {
    /// Trials, by disaster and by what somebody was in the middle of; [`Moment::Any`] counts each once.
    pub moments: BTreeMap<(&'static str, Moment), u64>,
    /// Trials in which far memory named the dead or paused compute server as a lock's owner.
    pub locks_named: u64,
    /// Trials in which a compute server that had paused was refused when it woke.
    pub refused: u64,
    /// Of those, the ones in which it had a lock when it paused.
    pub refused_holding: u64,
}

/// What many trials came to.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Trials.
    pub schedules: u64,
    /// The sum of all outcomes; of [`Outcome::slowest_error_ns`], the largest.
    pub sum: Outcome,
    /// What was reached.
    pub reach: Reach,
    /// A function of plan and seeds.
    pub digest: u64,
    /// Time of one CPU.
    pub cpu: Duration,
    /// What ended it.
    pub caught: Option<Caught>,
}

impl Plan {
    /// Sherman on the safe layout, lines in any order, everything else drawn.
    #[must_use]
    pub fn new(system: System) -> Plan {
        Plan {
            system,
            disaster: None,
            key_bytes: None,
            value_bytes: None,
            // The published layout holds only where cards promise what none does.
            read_line_order: system == System::Published,
        }
    }

    /// The trial of `seed`.
    #[must_use]
    pub fn trial(&self, seed: u64) -> Trial {
        let mut rng = Rng::new(seed).fork(3);
        let drawn = match rng.below(12) {
            0 => Disaster::None,
            1..5 => Disaster::Crash,
            5..8 => Disaster::Pause,
            8..10 => Disaster::Kill,
            _ => Disaster::Empty,
        };
        let drawn_bytes = match rng.below(16) {
            0 => 1024,
            1 => 100,
            2 => 24,
            _ => 8,
        };
        let drawn_values = if rng.below(3) == 0 { VALUE_BYTES } else { 0 };
        let values = match self.value_bytes.unwrap_or(drawn_values) {
            0 => Values::Words,
            bytes_max => Values::Blocks { bytes_max },
        };
        let config = self.system.config();
        let key_bytes = self.key_bytes.unwrap_or(drawn_bytes);
        let layout = config.layout.with_keys(key_bytes, 1);
        Trial {
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
    pub fn run(&self, seeds: Range<u64>, go_on: &mut dyn FnMut(&Run) -> bool) -> Run {
        let began = computed_by_thread();
        let mut run = Run::default();
        for seed in seeds {
            let trial = self.trial(seed);
            run.schedules += 1;
            match trial.run(seed) {
                Ok(outcome) => run.add(&trial, &outcome),
                Err(violation) => {
                    run.caught = Some(Caught {
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

impl Run {
    fn add(&mut self, trial: &Trial, outcome: &Outcome) {
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
        count(Moment::Any);
        let Some(struck) = &outcome.struck else {
            return;
        };
        struck.doing.iter().copied().for_each(count);
        self.reach.locks_named += u64::from(struck.locks > 0);
        if trial.disaster == Disaster::Pause && outcome.fenced > 0 {
            self.reach.refused += 1;
            self.reach.refused_holding += u64::from(struck.locks > 0);
        }
    }

    /// Trials with this disaster at this moment.
    #[must_use]
    pub fn reached(&self, disaster: Disaster, moment: Moment) -> u64 {
        let key = (disaster.name(), moment);
        self.reach.moments.get(&key).copied().unwrap_or(0)
    }
}

/// What became of a fault.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// A trial objected.
    Found(System, Caught),
    /// A trial objected, but under that seed it objects without the fault, too.
    Void(System, Caught),
    /// Everything is the same with it.
    Idle,
    /// It changed what happens, and nothing objected.
    Survived,
}

/// A fault that was hunted.
#[derive(Clone, Debug)]
pub struct Hunted {
    /// What became of it.
    pub verdict: Verdict,
    /// Trials until then, of all systems.
    pub schedules: u64,
    /// Time of one CPU.
    pub cpu: Duration,
}

/// Looks for `fault` under `seeds`, a few of each plan in turn, for so much time of one CPU at most.
#[must_use]
pub fn hunt(name: &str, plans: &[Plan], seeds: &Range<u64>, cpu: Duration) -> Hunted {
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
                    Some(clean) => Verdict::Void(plan.system, clean),
                    None => Verdict::Found(plan.system, caught),
                };
                return Hunted {
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
    Hunted {
        verdict: if same {
            Verdict::Idle
        } else {
            Verdict::Survived
        },
        schedules,
        cpu: spent(),
    }
}
