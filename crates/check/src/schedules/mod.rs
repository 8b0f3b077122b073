//! Threads: a structure under thousands of schedules, with crashes.
//!
//! ```text
//!   seed ─▶ a pool with something in it ─▶ 3 threads, about 4 operations each, over 3 keys
//!                                             │  shuttle decides at each lock, atomic and access to
//!                                             │  far memory who goes on: at random, or by PCT
//!                                             ▼
//!                  at drains and returns: (crash state, record), 8 of them kept by reservoir
//!                                             │  after the join, one thread
//!                                             ▼
//!                      images of each, adversarial first ─▶ open ─▶ Record::explain
//! ```
//!
//! A crash kills nobody here: the moment is kept, the schedule goes on, and the images of the moment
//! are judged against what had been asked and acknowledged by then. What is left without a crash is
//! judged too, and so is that the structure is sound. A schedule in which nobody can go on, and a
//! panic, are violations like any other.
//!
//! # Invariants
//! H1  A crash state and its record are of the same moment: the observer runs under the simulator's
//!     lock and uses nothing that could let another thread in between.
//! H2  Schedule `n` of a seed is a function of target, seed, scheduler and `n`. A run of many schedules is
//!     [`SCHEDULES_PER_SEED`] of each seed, so that any of them is seen again soon.
//!
//! # What it does not see
//! shuttle takes all atomics for sequentially consistent; loom looks at the primitives for the rest.
//!
//! The programs are always compiled. What runs them needs a build with `--cfg shuttle`.

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

/// How many schedules one seed is good for: the first of them are seen again in a second.
pub const SCHEDULES_PER_SEED: u64 = 100;

/// Who decides which thread goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheduler {
    /// Any of those that can, each time.
    Random,
    /// Priorities that change at few points (Burckhardt et al., ASPLOS 2010), here at two.
    Pct,
}

impl Scheduler {
    /// Both.
    pub const ALL: [Scheduler; 2] = [Scheduler::Random, Scheduler::Pct];

    /// Its name on the command line.
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
    type Err = String;

    fn from_str(name: &str) -> Result<Scheduler, String> {
        let found = Scheduler::ALL.into_iter().find(|s| s.name() == name);
        found.ok_or_else(|| format!("no scheduler is called {name:?}: random or pct"))
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct ScheduleConfig {
    /// Who decides.
    pub scheduler: Scheduler,
    /// The first seed.
    pub seed: u64,
    /// How many schedules, [`SCHEDULES_PER_SEED`] of each seed.
    pub schedules: u64,
    /// Most crashes of a schedule that are looked at.
    pub crashes: usize,
    /// Most images of each.
    pub images: usize,
    /// A deviation to find.
    pub fault: Option<Fault>,
}

impl ScheduleConfig {
    /// The usual.
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

    /// The command that runs schedule `number` (from 0) of `seed` again, after those before it.
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

/// What many schedules came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScheduleCounts {
    /// Schedules run.
    pub schedules: u64,
    /// Operations answered in them.
    pub operations: u64,
    /// Decisions between threads that could go on.
    pub decisions: u64,
    /// Moments at which a crash could have come.
    pub moments: u64,
    /// Those that were looked at.
    pub crashes: u64,
    /// Images judged against a record.
    pub judged: u64,
    /// Images opened: each once a schedule.
    pub opened: u64,
}

/// What a run found.
#[derive(Clone, Debug)]
pub struct ScheduleReport {
    /// What was checked.
    pub target: String,
    /// Who decided.
    pub scheduler: Scheduler,
    /// Exact figures.
    pub counts: ScheduleCounts,
    /// The first violation; the run ended with it.
    pub violation: Option<ScheduleViolation>,
    /// How long it took.
    pub elapsed: Duration,
}

impl ScheduleReport {
    /// One JSON object.
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
             images judged, {} opened; {seconds:.1} s, {:.0} schedules/s",
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

/// A schedule after which something cannot be explained.
#[derive(Clone, Debug)]
pub struct ScheduleViolation {
    /// The seed.
    pub seed: u64,
    /// Which of the seed's schedules, from 0.
    pub number: u64,
    /// What a power cut could take.
    pub persistency: Persistency,
    /// Where the crash came, if it took one.
    pub crash: Option<String>,
    /// What was found, what should have been.
    pub what: String,
    /// What the threads asked and were answered, up to the crash.
    pub history: Vec<String>,
    /// What was volatile at the crash, and what of it survived.
    pub survivors: Vec<String>,
    /// The command that shows it again.
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
