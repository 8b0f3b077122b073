//! `farbank check faults`: see that the explorer objects to every deviation it should object to.

use std::time::{Duration, Instant};

use clap::Args;
use farbank_check::Target;
use farbank_check::faults::{FaultBudget, FaultOutcome, FaultSearch, FaultTrial};
use farbank_pm::fault::{Fault, NAMED};
use indicatif::{ProgressBar, ProgressStyle};

use super::{PersistencyChoice, SeedRange, TargetChoice, progress_bar, threads, tree};
use crate::Failure;

const EXAMPLES: &str = "\
Examples:
  cargo run --release --features faults -- check faults
      every fault of the engine, by name and by place, in some minutes
  farbank check faults --only log.rs
      the places of one file: what they flush and drain is left out, a line of source at a time
  farbank check faults --only kv.torn_not_padded
      one fault, with the whole violation it leads to (faults by name need --features faults)
  cargo run --release --features faults -- check faults --target tree
      every deviation of the tree, by trials on a simulated rack
  cargo run --release --features faults -- check faults --target cceh,clht,soft,level,clevel,dash-eh,dash-lh
      the hash indexes, which share their ground";

/// See that the explorer objects to every flush and drain left out, and to every named deviation.
///
/// A fault by place drops what one line of source makes durable: all of it, its first, or its last
/// line of far memory. A fault by name is a deviation the structure lists. Each must be found out; one
/// that is idle (it changes nothing a crash could leave) or survives makes the check fail.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct FaultsArgs {
    /// What is checked. Of several, what they share is found if one of them objects.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "kv")]
    target: Vec<TargetChoice>,
    /// Only faults whose text contains this: a name, a file, a line.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// What a power cut may take; by default adr, word and page in turn.
    #[arg(long, value_enum)]
    persistency: Option<PersistencyChoice>,
    /// Seeds to try each fault under, in each mode.
    #[arg(long, value_name = "A..B", default_value = "0..4096")]
    seeds: SeedRange,
    /// Seconds of one CPU a fault may take; then it has survived.
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    seconds: f64,
    /// Threads, each with a fault of its own; 0 is one a CPU.
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Print one JSON object on the last line instead of the table.
    #[arg(long)]
    json: bool,
}

impl FaultsArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let start = Instant::now();
        let chosen = self.target.iter().map(|choice| choice.target());
        let Some(targets) = chosen.collect::<Option<Vec<_>>>() else {
            return match self.target.len() {
                1 => self.of_the_tree(),
                _ => Err(Failure::Usage(
                    "the tree shares nothing: ask for it alone".into(),
                )),
            };
        };
        let hunt = FaultSearch::new(&targets, self.budget(&targets)?);
        let mut faults = hunt.names();
        faults.extend(hunt.places());
        if let Some(only) = &self.only {
            faults.retain(|fault| fault.to_string().contains(only));
        }
        if faults.is_empty() {
            return Err(self.nothing_to_do(&targets));
        }
        let bar = bar(faults.len());
        if !self.json {
            println!("{}", FaultTrial::HEADING);
        }
        let trials = hunt.hunt_all(&faults, threads(self.threads), &|trial| {
            if !self.json {
                bar.suspend(|| println!("{trial}"));
            }
            bar.inc(1);
        });
        bar.finish_and_clear();
        self.report(&targets, &trials, start.elapsed())
    }

    /// The tree has no flushes to leave out, only names.
    fn of_the_tree(self) -> Result<(), Failure> {
        if self.persistency.is_some() {
            return Err(Failure::Usage(
                "--persistency is of what a power cut takes, and the tree's servers lose none"
                    .into(),
            ));
        }
        let threads = threads(self.threads);
        tree::faults(
            self.only.as_deref(),
            &self.seeds.0,
            self.seconds,
            threads,
            self.json,
        )
    }

    fn budget(&self, targets: &[&dyn Target]) -> Result<FaultBudget, Failure> {
        let mut modes = FaultBudget::default().modes;
        if let Some(choice) = self.persistency {
            for target in targets {
                modes = choice.modes(*target)?.to_vec();
            }
        }
        Ok(FaultBudget {
            modes,
            seeds: self.seeds.0.clone(),
            cpu: Duration::from_secs_f64(self.seconds.max(0.0)),
        })
    }

    fn nothing_to_do(&self, targets: &[&dyn Target]) -> Failure {
        let only = self.only.as_deref().unwrap_or_default();
        let mut listed = targets.iter().flat_map(|target| target.faults());
        if !NAMED && listed.any(|named| named.name.contains(only)) {
            return Failure::Usage(format!(
                "{only} is a fault by name, and none is compiled in: build with --features faults"
            ));
        }
        Failure::Usage(format!("no fault is called anything like {only:?}"))
    }

    fn report(
        &self,
        targets: &[&dyn Target],
        trials: &[FaultTrial],
        elapsed: Duration,
    ) -> Result<(), Failure> {
        let names: Vec<&str> = targets.iter().map(|target| target.name()).collect();
        let name = names.join(",");
        let listed: usize = targets.iter().map(|target| target.faults().len()).sum();
        let figures = FaultFigures::of(trials, elapsed);
        match trials {
            [only] if !self.json => {
                if let FaultOutcome::Found { violation, .. }
                | FaultOutcome::Void { violation, .. } = &only.outcome
                {
                    println!("\n{violation}");
                }
            }
            _ => {}
        }
        if self.json {
            println!("{}", figures.json(&name, trials));
        } else {
            if !NAMED && listed > 0 {
                println!("\n{listed} faults by name were not tried: they need --features faults");
            }
            println!("\n{}", figures.line(&name));
        }
        match trials.iter().find(|trial| !trial.is_found()) {
            None => Ok(()),
            Some(trial) => Err(Failure::failed(match &trial.outcome {
                FaultOutcome::Void { violation, .. } => format!(
                    "{}: what was objected to is wrong without it, too: mend that first: {}",
                    trial.fault, violation.command
                ),
                FaultOutcome::Idle => format!(
                    "{}: no crash could have left anything else: remove it from the code",
                    trial.fault
                ),
                _ => format!(
                    "{}: it changes what crashes leave, and nothing objected within {} s: the checks \
                     are blind there",
                    trial.fault, self.seconds
                ),
            })),
        }
    }
}

/// A bar for people.
fn bar(faults: usize) -> ProgressBar {
    let bar = progress_bar(faults as u64, "faults");
    match ProgressStyle::with_template("{wide_bar} {pos}/{len} faults, {elapsed}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// What all trials come to.
struct FaultFigures {
    found: usize,
    idle: usize,
    survived: usize,
    void: usize,
    by_name: usize,
    images: u64,
    slowest: Option<(String, f64)>,
    elapsed_s: f64,
}

impl FaultFigures {
    fn of(trials: &[FaultTrial], elapsed: Duration) -> FaultFigures {
        let count = |is: fn(&FaultTrial) -> bool| trials.iter().filter(|t| is(t)).count();
        let found = trials.iter().filter(|trial| trial.is_found());
        FaultFigures {
            found: count(FaultTrial::is_found),
            idle: count(|t| matches!(t.outcome, FaultOutcome::Idle)),
            survived: count(|t| matches!(t.outcome, FaultOutcome::Survived)),
            void: count(|t| matches!(t.outcome, FaultOutcome::Void { .. })),
            by_name: count(|t| matches!(t.fault, Fault::Name(_))),
            images: trials.iter().map(|trial| trial.images).sum(),
            slowest: found
                .max_by_key(|trial| trial.cpu)
                .map(|trial| (trial.fault.to_string(), trial.cpu.as_secs_f64())),
            elapsed_s: elapsed.as_secs_f64(),
        }
    }

    fn line(&self, target: &str) -> String {
        let all = self.found + self.idle + self.survived + self.void;
        let slowest = self.slowest.as_ref().map_or(String::new(), |(fault, s)| {
            format!("; the slowest in {s:.1} s ({fault})")
        });
        format!(
            "check faults {target}: {} of {all} found out ({} by name, {} by place), {} idle, {} \
             survived, {} void; {} images{slowest}; {:.1} s",
            self.found,
            self.by_name,
            all - self.by_name,
            self.idle,
            self.survived,
            self.void,
            self.images,
            self.elapsed_s
        )
    }

    fn json(&self, target: &str, trials: &[FaultTrial]) -> String {
        let slowest_s = self.slowest.as_ref().map_or(0.0, |(_, seconds)| *seconds);
        let trials: Vec<_> = trials.iter().map(FaultTrial::json).collect();
        format!(
            "{{\"check\":\"faults\",\"target\":\"{target}\",\"holds\":{},\"found\":{},\"idle\":{},\
             \"survived\":{},\"void\":{},\"by_name\":{},\"named\":{NAMED},\"images\":{},\"slowest_s\":{slowest_s:.3},\
             \"elapsed_s\":{:.3},\"trials\":[{}]}}",
            self.idle + self.survived + self.void == 0,
            self.found,
            self.idle,
            self.survived,
            self.void,
            self.by_name,
            self.images,
            self.elapsed_s,
            trials.join(",")
        )
    }
}
