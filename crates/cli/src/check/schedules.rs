//! `farbank check schedules`: threads under every schedule that chance finds, crashed in between.

#[cfg(shuttle)]
use std::ops::Range;

use clap::{Args, ValueEnum};
use farbank_check::Target;
#[cfg(shuttle)]
use farbank_check::schedules::{
    SCHEDULES_PER_SEED, ScheduleConfig, ScheduleReport, Scheduler, schedules,
};
use farbank_pm::fault::{Fault, NAMED};

use super::tree::{self, TreeArgs};
use super::{TargetChoice, number};
use crate::Failure;

const EXAMPLES: &str = "\
Schedules need a build of their own, in which shuttle takes the place of locks, atomics and threads:

  RUSTFLAGS='--cfg shuttle' cargo run --release --target-dir target/shuttle --package farbank-cli \\
      -- check schedules --schedules 4000

`cargo xtask lanes schedules` does that, and more. Those of the tree need none:

  farbank check schedules --target tree --schedules 20000
      Sherman on the safe layout: compute servers crash and pause, memory servers die and come back empty
  farbank check schedules --target tree --seed 0x51 --schedules 1
      one of them again, as a violation names it
  farbank check schedules --target tree --controls
      the published layout must fail where cards fetch lines in any order";

/// Schedules after which the other scheduler has its turn, where a deviation is looked for.
#[cfg(shuttle)]
const TURN: u64 = 10 * SCHEDULES_PER_SEED;

/// Run threads under many schedules, and judge what every crash in between could leave.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SchedulesArgs {
    /// What is checked.
    #[arg(long, value_enum, default_value = "kv")]
    target: TargetChoice,
    /// Who decides which thread goes on: chance, priorities that change at few points (PCT), or one
    /// after the other.
    #[arg(long, value_enum, default_value = "both")]
    scheduler: SchedulerChoice,
    /// Schedules of each scheduler.
    #[arg(long, value_name = "N", default_value_t = 4_000,
          value_parser = clap::value_parser!(u64).range(1..))]
    schedules: u64,
    /// The first seed; each is good for 100 schedules, of the tree for one. May be hexadecimal.
    #[arg(long, value_name = "S", default_value = "0", value_parser = number)]
    seed: u64,
    /// A deviation to be found, by name or by place. Names need the `faults` feature.
    #[arg(long, value_name = "FAULT")]
    fault: Option<Fault>,
    /// See instead that every deviation is found that only threads can find, in so many schedules at
    /// most (needs the `faults` feature); of the tree, that the published layout fails where lines come in
    /// any order.
    #[arg(long, conflicts_with = "fault")]
    controls: bool,
    /// Print one JSON object on the last line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    tree: TreeArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SchedulerChoice {
    Random,
    Pct,
    Both,
}

impl SchedulesArgs {
    /// Runs the check; an error if something cannot be explained.
    pub(super) fn run(self) -> Result<(), Failure> {
        let target = self.target.target();
        let threads = target.is_some();
        if (self.controls && threads || matches!(self.fault, Some(Fault::Name(_)))) && !NAMED {
            return Err(Failure::Usage(
                "deviations by name are not in this build: add --features faults".into(),
            ));
        }
        let Some(target) = target else {
            let asked = tree::TreeScheduleArgs {
                seed: self.seed,
                schedules: self.schedules,
                fault: self.fault.as_ref(),
                controls: self.controls,
                json: self.json,
            };
            return tree::schedules(&self.tree, &asked);
        };
        let named = target.faults_in_threads();
        if let Some(Fault::Name(name)) = &self.fault
            && !named.iter().any(|known| known.name == name)
            && !target.faults().iter().any(|known| known.name == name)
        {
            let known: Vec<_> = named.iter().map(|known| known.name).collect();
            let known = known.join(", ");
            return Err(Failure::Usage(format!(
                "there is no deviation {name:?}; those that only threads find are {known}"
            )));
        }
        self.run_them(target)
    }

    /// Without shuttle nothing can be said.
    #[cfg(not(shuttle))]
    fn run_them(self, _target: &'static dyn Target) -> Result<(), Failure> {
        let mut again = vec!["check schedules".to_owned()];
        again.extend(std::env::args().skip(3).map(|arg| match arg.contains(' ') {
            true => format!("'{arg}'"),
            false => arg,
        }));
        let features = if NAMED { " --features faults" } else { "" };
        Err(Failure::Failed {
            error: "schedules need a build in which shuttle runs the threads, and this is none"
                .into(),
            hint: Some(format!(
                "RUSTFLAGS='--cfg shuttle' cargo run --release --target-dir target/shuttle --package \
                 farbank{features} -- {}",
                again.join(" ")
            )),
        })
    }

    #[cfg(shuttle)]
    fn run_them(self, target: &'static dyn Target) -> Result<(), Failure> {
        let choices: &[Scheduler] = match self.scheduler {
            SchedulerChoice::Random => &[Scheduler::Random],
            SchedulerChoice::Pct => &[Scheduler::Pct],
            SchedulerChoice::Both => &Scheduler::ALL,
        };
        if self.controls {
            return self.control(target, choices);
        }
        let mut reports = Vec::new();
        for scheduler in choices {
            let report = self.explore(target, *scheduler, self.fault.clone(), 0..self.schedules);
            if !self.json {
                println!("{report}");
            }
            reports.push(report);
        }
        self.conclude(&reports)
    }

    /// Runs these of the schedules that begin with the first seed.
    #[cfg(shuttle)]
    fn explore(
        &self,
        target: &'static dyn Target,
        scheduler: Scheduler,
        fault: Option<Fault>,
        numbers: Range<u64>,
    ) -> ScheduleReport {
        let seed = self.seed + numbers.start / SCHEDULES_PER_SEED;
        let config = ScheduleConfig {
            fault,
            ..ScheduleConfig::new(scheduler, seed, numbers.end - numbers.start)
        };
        schedules(target, &config, &mut |_| true)
    }

    /// Looks for a deviation, the schedulers in turns. With what found it: after how many of its schedules.
    #[cfg(shuttle)]
    fn find(
        &self,
        target: &'static dyn Target,
        choices: &[Scheduler],
        fault: &Fault,
    ) -> Option<(ScheduleReport, u64)> {
        let starts = (0..self.schedules).step_by(TURN as usize);
        let turns = starts.map(|start| start..self.schedules.min(start + TURN));
        for (turn, scheduler) in turns.flat_map(|t| choices.iter().map(move |s| (t.clone(), *s))) {
            let report = self.explore(target, scheduler, Some(fault.clone()), turn.clone());
            if report.violation.is_some() {
                let after = turn.start + report.counts.schedules;
                return Some((report, after));
            }
        }
        None
    }

    /// Each deviation that only threads can find, until one of the schedulers finds it.
    #[cfg(shuttle)]
    fn control(&self, target: &'static dyn Target, choices: &[Scheduler]) -> Result<(), Failure> {
        let (mut found, mut missed) = (Vec::new(), Vec::new());
        for named in target.faults_in_threads() {
            let fault = Fault::Name(named.name.into());
            let Some((report, after)) = self.find(target, choices, &fault) else {
                missed.push(named.name);
                continue;
            };
            if !self.json {
                println!(
                    "{:28} found by {} after {after}",
                    named.name, report.scheduler
                );
            }
            found.push(format!(
                "{{\"fault\":\"{}\",\"after\":{after},\"run\":{}}}",
                named.name,
                report.json()
            ));
        }
        let (holds, runs) = (missed.is_empty(), found.join(","));
        if self.json {
            println!("{{\"check\":\"schedules\",\"holds\":{holds},\"found\":[{runs}]}}");
        } else {
            println!(
                "check schedules: {} of {} deviations found",
                found.len(),
                found.len() + missed.len()
            );
        }
        match missed.first() {
            None => Ok(()),
            Some(name) => Err(Failure::failed(format!(
                "{name}: not found in {} schedules: the checks are blind there",
                self.schedules
            ))),
        }
    }

    /// The last line, and how it ends.
    #[cfg(shuttle)]
    fn conclude(&self, reports: &[ScheduleReport]) -> Result<(), Failure> {
        let count: u64 = reports.iter().map(|r| r.counts.schedules).sum();
        let judged: u64 = reports.iter().map(|r| r.counts.judged).sum();
        let seconds: f64 = reports.iter().map(|r| r.elapsed.as_secs_f64()).sum();
        let violation = reports.iter().find_map(|r| r.violation.as_ref());
        if self.json {
            let runs: Vec<_> = reports.iter().map(|r| r.json()).collect();
            let (holds, runs) = (violation.is_none(), runs.join(","));
            println!("{{\"check\":\"schedules\",\"holds\":{holds},\"runs\":[{runs}]}}");
        } else {
            let holds = violation.map_or("holds", |_| "DOES NOT HOLD");
            println!(
                "check schedules: {holds}; {count} schedules, {judged} images judged; {seconds:.1} s"
            );
        }
        match violation {
            None => Ok(()),
            Some(violation) => Err(Failure::failed(&violation.what)),
        }
    }
}
