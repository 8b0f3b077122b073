//! Checks that the crash explorer detects deliberately introduced bugs (faults).
//!
//! ```text
//!   clean runs ──▶ places ──┐
//!                           ├──▶ each fault: rounds of seeds, in its modes in turn ──▶ found
//!   Target::faults ── names ┘                              │ the budget is used up
//!                                                          ▼
//!                                    the same crash states without it?  ── yes ──▶ idle
//!                                                                       ── no ───▶ survived
//! ```
//!
//! A fault by place omits what one source line makes durable. A fault by name is a bug that the structure lists. The
//! explorer must detect each of them. *Found*: the explorer reported a violation. *Idle*: no crash could have left
//! anything different, so the place or the fault has no effect and should be removed. *Survived*: the fault changes
//! what a crash leaves, but was not detected: the checks do not cover it. *Void*: the same seed also fails without
//! the fault, so the violation shows nothing. Only *found* is a success; there is no list of exceptions.
//!
//! A named fault that only one mode shows is tried in that mode, and a rare one with a seed that has shown it first
//! ([`NamedFault::shows_in`](farbank_pm::fault::NamedFault::shows_in)). A fault in code that several targets share is
//! found if one of them shows it: each target that reaches the place is tried in turn.
//!
//! # Invariants
//! CHECK-FAULT-1  A trial is a function of target, fault and budget, except that the clock may end it.
//! CHECK-FAULT-2  A thread tries one fault at a time, so a fault's seconds are those of one core.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use farbank_pm::fault::{Fault, FaultPart, PlaceFault, ShowingRuns};
use farbank_pm::sim::{Persistency, SourceAction, SourceLine, brief};
use farbank_pm::sync::unpoisoned;

use rustix::time::ClockId;

use crate::explore::{ExploreConfig, computed, explore_seed};
use crate::report::{CrashViolation, quote};
use crate::target::Target;

/// Limits of the search for a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultBudget {
    /// Persistency modes to try, one after the other, until one detects the fault.
    pub modes: Vec<Persistency>,
    /// Seeds in each mode.
    pub seeds: Range<u64>,
    /// CPU time of one core after which no further seed starts.
    pub cpu: Duration,
}

impl Default for FaultBudget {
    fn default() -> FaultBudget {
        FaultBudget {
            modes: vec![
                Persistency::Adr,
                Persistency::Word,
                Persistency::Page,
                Persistency::Relaxed,
            ],
            seeds: 0..256,
            cpu: Duration::from_secs(60),
        }
    }
}

/// Outcome of a trial.
#[derive(Clone, Debug)]
pub enum FaultOutcome {
    /// The explorer reported a violation.
    Found {
        /// Persistency mode in which it did.
        persistency: Persistency,
        /// The violation, and how to reproduce it.
        violation: Box<CrashViolation>,
    },
    /// The explorer reported a violation, but the same seed also fails without the fault.
    Void {
        /// Persistency mode in which it did.
        persistency: Persistency,
        /// The violation without the fault, and how to reproduce it.
        violation: Box<CrashViolation>,
    },
    /// The fault changed nothing that a crash could leave.
    Idle,
    /// The fault changed what crashes leave, but the explorer reported no violation.
    Survived,
}

impl FaultOutcome {
    /// Returns the name as printed in reports.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            FaultOutcome::Found { .. } => "found",
            FaultOutcome::Void { .. } => "VOID",
            FaultOutcome::Idle => "idle",
            FaultOutcome::Survived => "SURVIVED",
        }
    }
}

/// Result of trying one fault.
#[derive(Clone, Debug)]
pub struct FaultTrial {
    /// The fault.
    pub fault: Fault,
    /// Outcome of the trial.
    pub outcome: FaultOutcome,
    /// Seeds tried, in all modes together.
    pub seeds: u64,
    /// Distinct images checked.
    pub images: u64,
    /// CPU time of one core.
    pub cpu: Duration,
}

impl FaultTrial {
    /// Header line of a table of printed trials.
    pub const HEADING: &str =
        "fault                                what     mode   seed    images   cpu s  violation";

    /// Returns whether the explorer detected the fault.
    #[must_use]
    pub fn is_found(&self) -> bool {
        matches!(self.outcome, FaultOutcome::Found { .. })
    }

    /// Returns one JSON object.
    #[must_use]
    pub fn json(&self) -> String {
        let mut out = format!(
            "{{\"fault\":{},\"outcome\":\"{}\",\"seeds\":{},\"images\":{},\"seconds\":{:.3}",
            quote(&self.fault.to_string()),
            self.outcome.name().to_lowercase(),
            self.seeds,
            self.images,
            self.cpu.as_secs_f64()
        );
        if let FaultOutcome::Found {
            persistency,
            violation,
        }
        | FaultOutcome::Void {
            persistency,
            violation,
        } = &self.outcome
        {
            out += &format!(
                ",\"persistency\":\"{persistency}\",\"seed\":{},\"what\":{},\"command\":{}",
                violation.seed,
                quote(&violation.what),
                quote(&violation.command)
            );
        }
        out + "}"
    }
}

impl fmt::Display for FaultTrial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fault = self.fault.to_string();
        let outcome = self.outcome.name();
        let (images, seconds) = (self.images, self.cpu.as_secs_f64());
        write!(f, "{fault:36} {outcome:8} ")?;
        match &self.outcome {
            FaultOutcome::Found {
                persistency,
                violation,
            }
            | FaultOutcome::Void {
                persistency,
                violation,
            } => write!(
                f,
                "{:4} {:>6} {images:>9} {seconds:>7.1}  {}",
                persistency.name(),
                format!("{:#x}", violation.seed),
                violation.what
            ),
            FaultOutcome::Idle | FaultOutcome::Survived => {
                write!(f, "{:4} {:>6} {images:>9} {seconds:>7.1}", "-", "-")
            }
        }
    }
}

/// Result of a seed without a fault.
#[derive(Clone)]
struct CleanRun {
    /// Digest of all crash states and their contents.
    digest: u64,
    /// Violation that occurs without a fault, if any.
    violation: Option<CrashViolation>,
}

/// Search for faults on several targets.
pub struct FaultSearch<'a> {
    targets: Vec<SearchTarget<'a>>,
    budget: FaultBudget,
}

/// A target, with its faults and its fault-free results.
struct SearchTarget<'a> {
    target: &'a dyn Target,
    modes: Vec<Persistency>,
    /// Faults by name, and faults at the places that fault-free runs reach.
    faults: OnceLock<[Vec<Fault>; 2]>,
    /// Cached fault-free results, by mode and seed.
    clean: Mutex<HashMap<(Persistency, u64), CleanRun>>,
}

impl<'a> FaultSearch<'a> {
    /// Creates a search on `targets`, each in those modes of the budget that it supports.
    #[must_use]
    pub fn new(targets: &[&'a dyn Target], budget: FaultBudget) -> FaultSearch<'a> {
        let searched = |target: &&'a dyn Target| SearchTarget {
            target: *target,
            modes: (budget.modes.iter().copied())
                .filter(|mode| target.modes().contains(mode))
                .collect(),
            faults: OnceLock::new(),
            clean: Mutex::default(),
        };
        FaultSearch {
            targets: targets.iter().map(searched).collect(),
            budget,
        }
    }

    /// Returns the faults by name of all targets; empty if they are not compiled in.
    #[must_use]
    pub fn names(&self) -> Vec<Fault> {
        self.all(0)
    }

    /// Returns the faults by place. For every source line that makes data durable in a fault-free run: omit all of
    /// it, and if it can affect several cache lines, only the first or only the last.
    #[must_use]
    pub fn places(&self) -> Vec<Fault> {
        self.all(1)
    }

    /// Returns the faults of one kind without duplicates.
    fn all(&self, kind: usize) -> Vec<Fault> {
        let mut all: Vec<Fault> = Vec::new();
        for searched in &self.targets {
            for fault in &searched.faults(&self.budget)[kind] {
                if !all.contains(fault) {
                    all.push(fault.clone());
                }
            }
        }
        all
    }

    /// Tries `fault` until the explorer detects it or the budget is used up.
    #[must_use]
    pub fn search(&self, fault: &Fault) -> FaultTrial {
        let start = computed(ClockId::ThreadCPUTime);
        let mut trial = FaultTrial {
            fault: fault.clone(),
            outcome: FaultOutcome::Idle,
            seeds: 0,
            images: 0,
            cpu: Duration::ZERO,
        };
        for (searched, config, seed) in self.rounds(fault) {
            if computed(ClockId::ThreadCPUTime) - start > self.budget.cpu {
                break;
            }
            let faulty = ExploreConfig {
                fault: Some(fault.clone()),
                ..config.clone()
            };
            let mut report = explore_seed(searched.target, &faulty, seed);
            trial.seeds += 1;
            trial.images += report.counts.distinct_images;
            if let Some(violation) = report.violations.pop() {
                trial.outcome = searched.outcome_of(&config, seed, violation);
                break;
            }
            if matches!(trial.outcome, FaultOutcome::Idle)
                && report.digest != searched.clean(&config, seed).digest
            {
                trial.outcome = FaultOutcome::Survived;
            }
        }
        trial.cpu = computed(ClockId::ThreadCPUTime) - start;
        trial
    }

    /// Tries all `faults`, one per thread. Calls `progress` after each trial. Returns the trials in the order of the
    /// faults.
    pub fn search_all(
        &self,
        faults: &[Fault],
        threads: usize,
        progress: &(dyn Fn(&FaultTrial) + Sync),
    ) -> Vec<FaultTrial> {
        let queue = Mutex::new(faults.iter().enumerate());
        let trials = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..threads.clamp(1, faults.len().max(1)) {
                scope.spawn(|| {
                    loop {
                        let next = unpoisoned(queue.lock()).next();
                        let Some((number, fault)) = next else { return };
                        let trial = self.search(fault);
                        progress(&trial);
                        unpoisoned(trials.lock()).push((number, trial));
                    }
                });
            }
        });
        let mut trials = unpoisoned(trials.into_inner());
        trials.sort_by_key(|(number, _)| *number);
        trials.into_iter().map(|(_, trial)| trial).collect()
    }

    /// Returns all combinations of a target with the fault, a mode and a seed. Those that are listed as showing it come
    /// first. Then a few seeds of each target and mode take turns, with twice as many in each round. Most seeds check few
    /// images per crash point, and some the usual number: some faults need rare runs, others rare images.
    fn rounds(
        &self,
        fault: &Fault,
    ) -> impl Iterator<Item = (&SearchTarget<'a>, ExploreConfig, u64)> {
        let Range { start, end } = self.budget.seeds;
        let starts = (0..).map(move |round| start + (2 << round) - 2);
        let rounds = starts.take_while(move |from| *from < end).enumerate();
        let has = |searched: &&SearchTarget<'a>| {
            searched
                .faults(&self.budget)
                .iter()
                .flatten()
                .any(|f| f == fault)
        };
        let searched_targets: Vec<&SearchTarget<'a>> = self.targets.iter().filter(has).collect();
        let turns: Vec<_> = (searched_targets.into_iter())
            .flat_map(|searched| searched.modes_of(fault).map(move |mode| (searched, mode)))
            .collect();
        let known: Vec<_> = (turns.iter())
            .filter_map(|&(searched, mode)| {
                let seed = searched.showing_runs(fault)?.seed?;
                let is_wanted = self.budget.seeds.contains(&seed);
                is_wanted.then(|| (searched, config(mode, seed), seed))
            })
            .collect();
        let rounds = rounds.flat_map(move |(round, from)| {
            let seeds = from..end.min(from + (2 << round));
            let turns = turns.clone().into_iter();
            turns.flat_map(move |(searched, mode)| {
                let seeds = seeds.clone();
                seeds.map(move |seed| (searched, config(mode, seed), seed))
            })
        });
        known.into_iter().chain(rounds)
    }
}

impl SearchTarget<'_> {
    /// Returns the faults by name, if they are compiled in, and the faults by place.
    fn faults(&self, budget: &FaultBudget) -> &[Vec<Fault>; 2] {
        const SEEDS: u64 = 8;
        self.faults.get_or_init(|| {
            let listed = self.target.faults().iter();
            let compiled = listed.filter(|_| farbank_pm::fault::NAMED);
            let names = compiled.map(|n| Fault::Name(n.name.into())).collect();
            let Some(mode) = self.modes.first() else {
                return [names, Vec::new()];
            };
            let config = ExploreConfig {
                cap: 8,
                ..ExploreConfig::new(*mode)
            };
            let mut all = config.new_report(self.target);
            for seed in budget.seeds.clone().take(SEEDS as usize) {
                all.add_places(&explore_seed(self.target, &config, seed).places);
            }
            [names, all.places.iter().flat_map(faults_at).collect()]
        })
    }

    /// Returns what the target's list says about the runs that show `fault`.
    fn showing_runs(&self, fault: &Fault) -> Option<ShowingRuns> {
        self.target.faults().iter().find_map(|named| match fault {
            Fault::Name(name) if named.name == name => named.shows_in,
            _ => None,
        })
    }

    /// Modes in which `fault` is searched for: the one that its list names, if the budget has it.
    fn modes_of(&self, fault: &Fault) -> impl Iterator<Item = Persistency> {
        let named = self.showing_runs(fault).and_then(|runs| runs.persistency);
        let only = named.filter(|mode| self.modes.contains(mode));
        let modes = self.modes.iter().copied();
        modes.filter(move |mode| only.is_none_or(|only| only == *mode))
    }

    /// Returns the outcome of a violation: void if it also occurs without the fault.
    fn outcome_of(
        &self,
        config: &ExploreConfig,
        seed: u64,
        violation: CrashViolation,
    ) -> FaultOutcome {
        let persistency = config.persistency;
        match self.clean(config, seed).violation {
            None => FaultOutcome::Found {
                persistency,
                violation: Box::new(violation),
            },
            Some(violation) => FaultOutcome::Void {
                persistency,
                violation: Box::new(violation),
            },
        }
    }

    /// Result of a seed without a fault.
    fn clean(&self, config: &ExploreConfig, seed: u64) -> CleanRun {
        let key = (config.persistency, seed);
        let known = unpoisoned(self.clean.lock()).get(&key).cloned();
        known.unwrap_or_else(|| {
            let mut report = explore_seed(self.target, config, seed);
            let clean = CleanRun {
                digest: report.digest,
                violation: report.violations.pop(),
            };
            let mut all = unpoisoned(self.clean.lock());
            all.insert(key, clean.clone());
            clean
        })
    }
}

fn config(persistency: Persistency, seed: u64) -> ExploreConfig {
    const FEW: usize = 12;
    const USUAL_ONE_IN: u64 = 8;
    let mut config = ExploreConfig::new(persistency);
    if seed % USUAL_ONE_IN != USUAL_ONE_IN - 1 {
        config.cap = FEW;
    }
    config
}

/// Returns the faults of a place. A place that affects only one cache line has a single fault.
fn faults_at(place: &SourceLine) -> Vec<Fault> {
    let parts: &[FaultPart] = match place.act {
        SourceAction::Store => &[],
        SourceAction::Drain => &[FaultPart::Whole],
        SourceAction::CopyIn | SourceAction::Flush if place.units_max < 2 => &[FaultPart::Whole],
        SourceAction::CopyIn | SourceAction::Flush => &FaultPart::ALL,
    };
    let fault = |part: &FaultPart| {
        Fault::Place(PlaceFault {
            act: place.act,
            at: brief(place.at),
            part: *part,
            hit: None,
        })
    };
    parts.iter().map(fault).collect()
}
