//! Is every fault found out? The checks, checked.
//!
//! ```text
//!   clean runs ──▶ places ──┐
//!                           ├──▶ each fault: rounds of seeds, in each mode in turn ──▶ found
//!   Target::faults ── names ┘                              │ the budget is used up
//!                                                          ▼
//!                                    the same crash states without it?  ── yes ──▶ idle
//!                                                                       ── no ───▶ survived
//! ```
//!
//! A fault by place drops what one line of source makes durable, a fault by name is a deviation the
//! structure lists. The explorer has to object to every one of them. *Found*: it did. *Idle*: no
//! crash could have left anything else, so that the place, or the deviation, does nothing and should
//! go. *Survived*: it changes what a crash leaves, and nobody objects: the checks are blind there.
//! *Void*: the same seed is objected to without the fault, so that the objection shows nothing.
//! Only *found* is well; there is no list of exceptions. What several targets share is found if one of them objects: each of
//! those that reach a place has its turn.
//!
//! # Invariants
//! F1  A trial is a function of target, fault and budget, but for where the clock ends it.
//! F2  One fault at a time, each on one thread: its seconds are those of one core.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use farbank_pm::fault::{Fault, FaultPart, PlaceFault};
use farbank_pm::sim::{Persistency, SourceAction, SourceLine, brief};

use rustix::time::ClockId;

use crate::explore::{ExploreConfig, computed, explore_seed};
use crate::report::{CrashReport, CrashViolation, quote};
use crate::target::Target;

/// How much a fault may cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultBudget {
    /// What a power cut may take: one mode after the other, until one objects.
    pub modes: Vec<Persistency>,
    /// Seeds, in each mode.
    pub seeds: Range<u64>,
    /// No further seed is begun after so much time of one core.
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

/// What became of a fault.
#[derive(Clone, Debug)]
pub enum FaultOutcome {
    /// The explorer objected.
    Found {
        /// What a power cut could take when it did.
        persistency: Persistency,
        /// What it said, and how to see it again.
        violation: Box<CrashViolation>,
    },
    /// The explorer objected, but under that seed it objects without the fault, too.
    Void {
        /// What a power cut could take when it did.
        persistency: Persistency,
        /// What it said without the fault, and how to see it again.
        violation: Box<CrashViolation>,
    },
    /// It changed nothing that a crash could leave.
    Idle,
    /// It changed what crashes leave, and nobody objected.
    Survived,
}

impl FaultOutcome {
    /// As it is printed.
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

/// One fault, tried.
#[derive(Clone, Debug)]
pub struct FaultTrial {
    /// The fault.
    pub fault: Fault,
    /// What became of it.
    pub outcome: FaultOutcome,
    /// Seeds it was tried under, in all modes.
    pub seeds: u64,
    /// Distinct images judged until then.
    pub images: u64,
    /// How long it took, in time of one core.
    pub cpu: Duration,
}

impl FaultTrial {
    /// What [`Trial`]s in a column are headed by.
    pub const HEADING: &str = "fault                                what     mode   seed    images   cpu s  what it led to";

    /// Whether the explorer objected.
    #[must_use]
    pub fn is_found(&self) -> bool {
        matches!(self.outcome, FaultOutcome::Found { .. })
    }

    /// One JSON object.
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

/// What a seed comes to without a fault.
#[derive(Clone)]
struct CleanRun {
    /// Of all its crash states, and what they show.
    digest: u64,
    /// What the explorer objects to all the same.
    violation: Option<CrashViolation>,
}

/// Tries faults on targets.
pub struct FaultSearch<'a> {
    quarries: Vec<SearchTarget<'a>>,
    budget: FaultBudget,
}

/// A target, and what is known of it.
struct SearchTarget<'a> {
    target: &'a dyn Target,
    modes: Vec<Persistency>,
    /// The faults it lists, and those at the places that its clean runs reach.
    faults: OnceLock<[Vec<Fault>; 2]>,
    /// What each mode and seed leaves without a fault, once somebody asked.
    clean: Mutex<HashMap<(Persistency, u64), CleanRun>>,
}

impl<'a> FaultSearch<'a> {
    /// A hunt on `targets`, in those of the budget's modes that each is made for.
    #[must_use]
    pub fn new(targets: &[&'a dyn Target], budget: FaultBudget) -> FaultSearch<'a> {
        let quarry = |target: &&'a dyn Target| SearchTarget {
            target: *target,
            modes: (budget.modes.iter().copied())
                .filter(|mode| target.modes().contains(mode))
                .collect(),
            faults: OnceLock::new(),
            clean: Mutex::default(),
        };
        FaultSearch {
            quarries: targets.iter().map(quarry).collect(),
            budget,
        }
    }

    /// The faults the targets list, none if they are not compiled in.
    #[must_use]
    pub fn names(&self) -> Vec<Fault> {
        self.all(0)
    }

    /// The faults by place: of every line that clean runs make something durable at, all it does,
    /// and, where that can be several lines, the first and the last of them.
    #[must_use]
    pub fn places(&self) -> Vec<Fault> {
        self.all(1)
    }

    /// The faults of a kind, each once.
    fn all(&self, kind: usize) -> Vec<Fault> {
        let mut all: Vec<Fault> = Vec::new();
        for quarry in &self.quarries {
            for fault in &quarry.faults(&self.budget)[kind] {
                if !all.contains(fault) {
                    all.push(fault.clone());
                }
            }
        }
        all
    }

    /// Tries `fault` until the explorer objects or the budget is used up.
    #[must_use]
    pub fn hunt(&self, fault: &Fault) -> FaultTrial {
        let start = computed(ClockId::ThreadCPUTime);
        let mut trial = FaultTrial {
            fault: fault.clone(),
            outcome: FaultOutcome::Idle,
            seeds: 0,
            images: 0,
            cpu: Duration::ZERO,
        };
        for (quarry, config, seed) in self.rounds(fault) {
            if computed(ClockId::ThreadCPUTime) - start > self.budget.cpu {
                break;
            }
            let faulty = ExploreConfig {
                fault: Some(fault.clone()),
                ..config.clone()
            };
            let mut report = explore_seed(quarry.target, &faulty, seed);
            trial.seeds += 1;
            trial.images += report.counts.distinct_images;
            if let Some(violation) = report.violations.pop() {
                trial.outcome = quarry.objected(&config, seed, violation);
                break;
            }
            if matches!(trial.outcome, FaultOutcome::Idle)
                && report.digest != quarry.clean(&config, seed).digest
            {
                trial.outcome = FaultOutcome::Survived;
            }
        }
        trial.cpu = computed(ClockId::ThreadCPUTime) - start;
        trial
    }

    /// Tries all `faults`, one a thread; `progress` is told each trial as it ends. The trials come
    /// back in the order of the faults.
    pub fn hunt_all(
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
                        let next = queue.lock().expect("no holder panics").next();
                        let Some((number, fault)) = next else { return };
                        let trial = self.hunt(fault);
                        progress(&trial);
                        trials
                            .lock()
                            .expect("no holder panics")
                            .push((number, trial));
                    }
                });
            }
        });
        let mut trials = trials.into_inner().expect("no holder panics");
        trials.sort_by_key(|(number, _)| *number);
        trials.into_iter().map(|(_, trial)| trial).collect()
    }

    /// Every target that has the fault, every mode and seed: a few seeds of each target and mode in turn, more each time. Most
    /// seeds get few images of each crash point, some get as many as usual: some faults need rare runs, some rare images.
    fn rounds(
        &self,
        fault: &Fault,
    ) -> impl Iterator<Item = (&SearchTarget<'a>, ExploreConfig, u64)> {
        let Range { start, end } = self.budget.seeds;
        let starts = (0..).map(move |round| start + (2 << round) - 2);
        let rounds = starts.take_while(move |from| *from < end).enumerate();
        let has = |quarry: &&SearchTarget<'a>| {
            quarry
                .faults(&self.budget)
                .iter()
                .flatten()
                .any(|f| f == fault)
        };
        let quarries: Vec<&SearchTarget<'a>> = self.quarries.iter().filter(has).collect();
        let turns: Vec<_> = (quarries.into_iter())
            .flat_map(|quarry| quarry.modes_of(fault).map(move |mode| (quarry, mode)))
            .collect();
        rounds.flat_map(move |(round, from)| {
            let seeds = from..end.min(from + (2 << round));
            let turns = turns.clone().into_iter();
            turns.flat_map(move |(quarry, mode)| {
                let seeds = seeds.clone();
                seeds.map(move |seed| (quarry, config(mode, seed), seed))
            })
        })
    }
}

impl SearchTarget<'_> {
    /// Those it lists, if they are compiled in, and those by place.
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
            let mut all = CrashReport::new(self.target.name().into(), &config);
            for seed in budget.seeds.clone().take(SEEDS as usize) {
                all.add_places(&explore_seed(self.target, &config, seed).places);
            }
            [names, all.places.iter().flat_map(faults_at).collect()]
        })
    }

    /// Modes in which `fault` is searched for: the one that it shows in, if its list names one and the budget has it.
    fn modes_of(&self, fault: &Fault) -> impl Iterator<Item = Persistency> {
        let shows_in = self.target.faults().iter().find_map(|named| match fault {
            Fault::Name(name) if named.name == name => named.shows_in,
            _ => None,
        });
        let only = shows_in.filter(|mode| self.modes.contains(mode));
        let modes = self.modes.iter().copied();
        modes.filter(move |mode| only.is_none_or(|only| only == *mode))
    }

    /// What an objection shows: nothing, if it is raised without the fault, too.
    fn objected(
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

    /// What a seed comes to without a fault.
    fn clean(&self, config: &ExploreConfig, seed: u64) -> CleanRun {
        let key = (config.persistency, seed);
        let known = self
            .clean
            .lock()
            .expect("no holder panics")
            .get(&key)
            .cloned();
        known.unwrap_or_else(|| {
            let mut report = explore_seed(self.target, config, seed);
            let clean = CleanRun {
                digest: report.digest,
                violation: report.violations.pop(),
            };
            let mut all = self.clean.lock().expect("no holder panics");
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

/// The ways in which a place can fail to make something durable. The first and the last of one line are
/// all there is.
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
