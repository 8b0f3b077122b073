//! `farbank check schedules`: runs threads under many random schedules, with crashes in between.

use clap::Args;
use clap::builder::TypedValueParser;
use farbank_check::Target;
use farbank_check::schedules::Scheduler;
#[cfg(shuttle)]
use farbank_check::schedules::{SCHEDULES_PER_SEED, ScheduleConfig, ScheduleReport, schedules};
#[cfg(shuttle)]
use farbank_pm::fault::NamedFault;
use farbank_pm::fault::{Fault, NAMED};

use super::number;
use super::targets::{CheckedStructure, structure};
use super::tree::{self, TreeArgs};
use crate::common::Failure;
use crate::common::choice::{AnyOr, named};

const EXAMPLES: &str = "\
Schedules need a special build, in which shuttle replaces locks, atomics and threads:

  RUSTFLAGS='--cfg shuttle' cargo run --release --target-dir target/shuttle --package farbank-cli \\
      -- check schedules --schedules 4000

`cargo xtask suites schedules` does this and more. Schedules of the tree need no special build:

  farbank check schedules --target tree --schedules 20000
      Sherman with the safe layout: compute servers crash and pause, memory servers stop and restart empty
  farbank check schedules --target tree --seed 0x51 --schedules 1
      repeat one schedule, as a violation reports it
  farbank check schedules --target tree --controls
      checks that the published layout fails if NICs fetch lines in any order";

/// In a search for a fault: schedules before the other scheduler takes its turn.
#[cfg(shuttle)]
const TURN: u64 = 10 * SCHEDULES_PER_SEED;

/// Run threads under many schedules, and check what a crash at any point could leave.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SchedulesArgs {
    /// Structure to check.
    #[arg(long, default_value = "kv", value_parser = structure())]
    target: CheckedStructure,
    /// Scheduler that selects the next thread. random: at random. pct: priorities that change at a few points (PCT).
    /// both: one after the other.
    #[arg(long, default_value = "both", value_parser = scheduler())]
    scheduler: AnyOr<Scheduler>,
    /// Number of schedules per scheduler.
    #[arg(long, value_name = "N", default_value_t = 4_000,
          value_parser = clap::value_parser!(u64).range(1..))]
    schedules: u64,
    /// First seed. Each seed gives 100 schedules, or one schedule of the tree. May be hexadecimal.
    #[arg(long, value_name = "S", default_value = "0", value_parser = number)]
    seed: u64,
    /// Fault to enable, by name or by place. Names need a build with --features faults.
    #[arg(long, value_name = "FAULT")]
    fault: Option<Fault>,
    /// Check instead that the check detects known errors, within --schedules schedules: every fault that only threads
    /// can show (needs --features faults), or for the tree the published layout with lines fetched in any order.
    #[arg(long, conflicts_with = "fault")]
    controls: bool,
    /// Print one JSON object on the last line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    tree: TreeArgs,
}

/// Returns the parser of `--scheduler`: a scheduler, or `both`.
fn scheduler() -> impl TypedValueParser<Value = AnyOr<Scheduler>> {
    let row = |scheduler: Scheduler| (scheduler.name(), "", AnyOr::One(scheduler));
    let both = ("both", "", AnyOr::Any);
    named(Scheduler::ALL.map(row).into_iter().chain([both]))
}

impl SchedulesArgs {
    /// Runs the check. Returns an error if a history is not linearizable.
    pub(super) fn run(self) -> Result<(), Failure> {
        let target = self.target.target();
        let threads = target.is_some();
        if (self.controls && threads || matches!(self.fault, Some(Fault::Name(_)))) && !NAMED {
            return Err(Failure::Usage(
                "this build has no faults by name; build with --features faults".into(),
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
                "there is no fault {name:?}; the faults that only threads can show are {known}"
            )));
        }
        self.run_them(target)
    }

    /// Reports that this build has no shuttle, with the command that has.
    #[cfg(not(shuttle))]
    fn run_them(self, _target: &'static dyn Target) -> Result<(), Failure> {
        let mut again = vec!["check schedules".to_owned()];
        again.extend(std::env::args().skip(3).map(|arg| match arg.contains(' ') {
            true => format!("'{arg}'"),
            false => arg,
        }));
        let features = if NAMED { " --features faults" } else { "" };
        Err(Failure::Failed {
            error: "schedules need a build with --cfg shuttle, and this build has none".into(),
            hint: Some(format!(
                "RUSTFLAGS='--cfg shuttle' cargo run --release --target-dir target/shuttle --package \
                 farbank-cli{features} -- {}",
                again.join(" ")
            )),
        })
    }

    #[cfg(shuttle)]
    fn run_them(self, target: &'static dyn Target) -> Result<(), Failure> {
        let choices: &[Scheduler] = match &self.scheduler {
            AnyOr::Any => &Scheduler::ALL,
            AnyOr::One(scheduler) => std::slice::from_ref(scheduler),
        };
        if self.controls {
            return self.control(target, choices);
        }
        let mut reports = Vec::new();
        for scheduler in choices {
            let config = ScheduleConfig {
                fault: self.fault.clone(),
                ..ScheduleConfig::new(*scheduler, self.seed, self.schedules)
            };
            let report = schedules(target, &config, &mut |_| true);
            if !self.json {
                println!("{report}");
            }
            reports.push(report);
        }
        self.conclude(&reports)
    }

    /// Searches for a fault with the schedulers in turns: first the seed that its list names, then those from the first
    /// seed on. Returns the report that detected it, and after how many schedules.
    #[cfg(shuttle)]
    fn find(
        &self,
        target: &'static dyn Target,
        choices: &[Scheduler],
        fault: &NamedFault,
    ) -> Option<(ScheduleReport, u64)> {
        let listed = fault.shows_in.and_then(|runs| runs.seed);
        let listed = listed.map(|seed| (seed, SCHEDULES_PER_SEED));
        let starts = (0..self.schedules).step_by(TURN as usize);
        let turns = starts.map(|start| {
            let seed = self.seed + start / SCHEDULES_PER_SEED;
            (seed, TURN.min(self.schedules - start))
        });
        let turns = listed.into_iter().chain(turns);
        let mut before = 0;
        for (scheduler, (seed, count)) in
            turns.flat_map(|turn| choices.iter().map(move |s| (*s, turn)))
        {
            let config = ScheduleConfig {
                fault: Some(Fault::Name(fault.name.into())),
                ..ScheduleConfig::new(scheduler, seed, count)
            };
            let report = schedules(target, &config, &mut |_| true);
            before += report.counts.schedules;
            if report.violation.is_some() {
                return Some((report, before));
            }
        }
        None
    }

    /// Searches for each fault that only threads can show, until one of the schedulers detects it.
    #[cfg(shuttle)]
    fn control(&self, target: &'static dyn Target, choices: &[Scheduler]) -> Result<(), Failure> {
        let (mut found, mut missed) = (Vec::new(), Vec::new());
        for named in target.faults_in_threads() {
            let Some((report, after)) = self.find(target, choices, named) else {
                missed.push(named.name);
                continue;
            };
            if !self.json {
                println!(
                    "{:28} detected by {} after {after} schedules",
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
                "check schedules: {} of {} faults detected",
                found.len(),
                found.len() + missed.len()
            );
        }
        match missed.first() {
            None => Ok(()),
            Some(name) => Err(Failure::failed(format!(
                "{name}: not detected in {} schedules: the check does not cover it",
                self.schedules
            ))),
        }
    }

    /// Prints the summary. Returns an error if there was a violation.
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
                "check schedules: {holds}; {count} schedules, {judged} images checked; {seconds:.1} s"
            );
        }
        match violation {
            None => Ok(()),
            Some(violation) => Err(Failure::failed(&violation.what)),
        }
    }
}
