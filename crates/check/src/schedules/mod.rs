//! Schedules: runs concurrent threads on a structure under thousands of schedules, with crashes.
//!
//! ```text
//!   seed ─▶ a pool with some contents ───▶ 3 threads, about 4 operations each, over 3 keys
//!                                             │  shuttle decides at each lock, atomic and access to
//!                                             │  far memory which thread runs: random, or PCT
//!                                             ▼
//!                  at drains and returns: (crash state, record), 8 of them kept by reservoir
//!                                             │  after the join, one thread
//!                                             ▼
//!                      images of each, adversarial first ─▶ open ─▶ CallRecord::explain
//! ```
//!
//! A crash stops no thread here. The run keeps the crash state and continues, and later checks its images against the
//! operations that were invoked and acknowledged at that moment. The contents without a crash are checked too, and so
//! is the structure itself. A deadlock and a panic are violations.
//!
//! # Invariants
//! CHECK-SCHED-1  A crash state and its record belong to the same moment: the observer runs under the simulator's lock and uses
//!     no operation at which another thread could be scheduled.
//! CHECK-SCHED-2  Schedule `n` of a seed is a function of target, seed, scheduler and `n`. A long run takes
//!     [`SCHEDULES_PER_SEED`] of each seed, so that each can be reproduced quickly.
//!
//! # Limits
//! shuttle treats all atomics as sequentially consistent. loom checks the primitives under weaker orderings.
//!
//! The programs are always compiled. Running them needs a build with `--cfg shuttle`.

pub mod program;
#[cfg(shuttle)]
mod run;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use farbank_pm::fault::Fault;
use farbank_pm::sim::Persistency;

#[cfg(shuttle)]
pub use run::schedules;

/// Schedules per seed. The number is small, so that a schedule can be reproduced in a second.
pub const SCHEDULES_PER_SEED: u64 = 100;

/// Algorithm that selects which thread runs next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheduler {
    /// A random runnable thread at each step.
    Random,
    /// PCT: priorities that change at a few points (Burckhardt et al., ASPLOS 2010), here at two.
    Pct,
}

impl Scheduler {
    /// All schedulers.
    pub const ALL: [Scheduler; 2] = [Scheduler::Random, Scheduler::Pct];

    /// Returns its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Scheduler::Random => "random",
            Scheduler::Pct => "pct",
        }
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scheduler {
    type Err = SchedulerNameError;

    fn from_str(name: &str) -> Result<Scheduler, SchedulerNameError> {
        let found = Scheduler::ALL.into_iter().find(|s| s.name() == name);
        found.ok_or_else(|| SchedulerNameError(name.to_owned()))
    }
}

/// No scheduler has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerNameError(String);

impl fmt::Display for SchedulerNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SchedulerNameError(name) = self;
        write!(f, "unknown scheduler {name:?}; expected random or pct")
    }
}

impl std::error::Error for SchedulerNameError {}

/// Configuration of a run of schedules.
#[derive(Clone, Debug)]
pub struct ScheduleConfig {
    /// Scheduler to use.
    pub scheduler: Scheduler,
    /// The first seed.
    pub seed: u64,
    /// Number of schedules, [`SCHEDULES_PER_SEED`] per seed.
    pub schedules: u64,
    /// Maximum number of crash states checked per schedule.
    pub crashes: usize,
    /// Maximum number of images per crash state.
    pub images: usize,
    /// Fault to enable.
    pub fault: Option<Fault>,
}

impl ScheduleConfig {
    /// Returns the default configuration.
    #[must_use]
    pub fn new(scheduler: Scheduler, seed: u64, schedules: u64) -> ScheduleConfig {
        ScheduleConfig {
            scheduler,
            seed,
            schedules,
            crashes: 8,
            images: 4,
            fault: None,
        }
    }

    /// Returns the command that reproduces schedule `number` (from 0) of `seed`, by running all schedules up to it.
    #[must_use]
    pub fn command(&self, target: &str, seed: u64, number: u64) -> String {
        let mut command = format!(
            "farbank check schedules --target {target} --scheduler {} --seed {seed:#x} --schedules {}",
            self.scheduler,
            number + 1
        );
        if let Some(fault) = &self.fault {
            command += &format!(" --fault '{fault}'");
        }
        command
    }
}

/// Counts of a run of schedules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScheduleCounts {
    /// Schedules run.
    pub schedules: u64,
    /// Operations answered.
    pub operations: u64,
    /// Scheduling decisions between several runnable threads.
    pub decisions: u64,
    /// Moments at which a crash was possible.
    pub moments: u64,
    /// Crash states that were checked.
    pub crashes: u64,
    /// Images checked against a record.
    pub judged: u64,
    /// Images opened; each distinct image is opened once per schedule.
    pub opened: u64,
}

/// Result of a run of schedules.
#[derive(Clone, Debug)]
pub struct ScheduleReport {
    /// Name of the target.
    pub target: String,
    /// Scheduler used.
    pub scheduler: Scheduler,
    /// Exact counts.
    pub counts: ScheduleCounts,
    /// First violation, at which the run ended.
    pub violation: Option<ScheduleViolation>,
    /// Elapsed time.
    pub elapsed: Duration,
}

impl ScheduleReport {
    /// Returns one JSON object.
    #[must_use]
    pub fn json(&self) -> String {
        let c = &self.counts;
        let holds = self.violation.is_none();
        let found = self.violation.as_ref().map_or("null".to_owned(), |v| {
            format!(
                "{{\"seed\":{},\"schedule\":{},\"found_after\":{},\"persistency\":\"{}\"}}",
                v.seed, v.number, c.schedules, v.persistency
            )
        });
        format!(
            "{{\"target\":\"{}\",\"scheduler\":\"{}\",\"holds\":{holds},\"schedules\":{},\
             \"operations\":{},\"decisions\":{},\"moments\":{},\"crashes\":{},\"images_judged\":{},\
             \"images_opened\":{},\"elapsed_s\":{:.3},\"violation\":{found}}}",
            self.target,
            self.scheduler,
            c.schedules,
            c.operations,
            c.decisions,
            c.moments,
            c.crashes,
            c.judged,
            c.opened,
            self.elapsed.as_secs_f64()
        )
    }
}

impl fmt::Display for ScheduleReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.counts;
        let seconds = self.elapsed.as_secs_f64();
        write!(
            f,
            "{} under {} schedules ({}): {} operations, {} decisions; {} of {} moments crashed, {} \
             images checked, {} opened; {seconds:.1} s, {:.0} schedules/s",
            self.target,
            c.schedules,
            self.scheduler,
            c.operations,
            c.decisions,
            c.crashes,
            c.moments,
            c.judged,
            c.opened,
            c.schedules as f64 / seconds.max(1e-9)
        )?;
        match &self.violation {
            None => Ok(()),
            Some(violation) => write!(f, "\n{violation}"),
        }
    }
}

/// A schedule whose history is not linearizable, or that failed.
#[derive(Clone, Debug)]
pub struct ScheduleViolation {
    /// Seed of the schedule.
    pub seed: u64,
    /// Number of the schedule within its seed, from 0.
    pub number: u64,
    /// Persistency mode: what a power cut could lose.
    pub persistency: Persistency,
    /// Place of the crash, if there was one.
    pub crash: Option<String>,
    /// Description of the violation.
    pub what: String,
    /// Calls and answers of the threads, up to the crash.
    pub history: Vec<String>,
    /// The data that was volatile at the crash, and how much of it survived.
    pub survivors: Vec<String>,
    /// Command that reproduces the violation.
    pub command: String,
}

impl fmt::Display for ScheduleViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let crash = self.crash.as_deref().unwrap_or("no crash");
        let (seed, number, mode) = (self.seed, self.number, self.persistency);
        writeln!(
            f,
            "violation: seed {seed:#x}, schedule {number}, {mode}, {crash}: {}",
            self.what
        )?;
        for line in &self.history {
            writeln!(f, "    {line}")?;
        }
        for line in &self.survivors {
            writeln!(f, "    {line}")?;
        }
        write!(f, "  again: {}", self.command)
    }
}
