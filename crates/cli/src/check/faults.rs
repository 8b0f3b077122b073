//! `farbank check faults`: checks that the crash explorer detects every fault.

use std::time::{Duration, Instant};

use clap::Args;
use farbank_check::Target;
use farbank_check::faults::{FaultBudget, FaultOutcome, FaultSearch, FaultTrial};
use farbank_pm::fault::{Fault, NAMED};
use farbank_pm::sim::Persistency;
use indicatif::{ProgressBar, ProgressStyle};

use super::targets::{CheckedStructure, modes, persistency, structure};
use super::{SeedRange, progress_bar, threads, tree};
use crate::common::Failure;
use crate::common::choice::AnyOr;

const EXAMPLES: &str = "\
Examples:
  cargo run --release --features faults -- check faults
      every fault of the engine, by name and by place, in a few minutes
  farbank check faults --only log.rs
      the places of one file: the flushes and drains of one source line at a time are omitted
  farbank check faults --only kv.torn_not_padded
      one fault, with the full violation it causes (faults by name need --features faults)
  cargo run --release --features faults -- check faults --target tree
      every named fault of the tree, by trials on a simulated cluster
  cargo run --release --features faults -- check faults --target cceh,clht,soft,level,clevel,dash-eh,dash-lh
      the hash indexes, which share their pool heap";

/// Check that the crash explorer detects every omitted flush and drain, and every named fault.
///
/// A fault by place omits what one source line makes durable: all of it, or only its first or last cache line. A
/// fault by name is a bug that the structure can enable. The explorer must detect each fault. The check fails if a
/// fault is idle (it changes nothing that a crash could leave) or survives undetected.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct FaultsArgs {
    /// Structures to check. A fault in code that several of them share is detected if one of them shows it.
    #[arg(long, value_delimiter = ',', default_value = "kv", value_parser = structure())]
    target: Vec<CheckedStructure>,
    /// Only faults whose text contains TEXT: a name, a file or a line.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// What a power cut may lose. Default: adr, word, page and relaxed in turn.
    #[arg(long, value_parser = persistency())]
    persistency: Option<AnyOr<Persistency>>,
    /// Seeds for each fault in each mode.
    #[arg(long, value_name = "A..B", default_value = "0..4096")]
    seeds: SeedRange,
    /// CPU seconds per fault. A fault that is not detected by then has survived.
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    seconds: f64,
    /// Number of threads, each of which tries a different fault; 0 means one per CPU.
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
                    "--target tree cannot be combined with other targets".into(),
                )),
            };
        };
        let search = FaultSearch::new(&targets, self.budget(&targets)?);
        let mut faults = search.names();
        faults.extend(search.places());
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
        let trials = search.search_all(&faults, threads(self.threads), &|trial| {
            if !self.json {
                bar.suspend(|| println!("{trial}"));
            }
            bar.inc(1);
        });
        bar.finish_and_clear();
        self.report(&targets, &trials, start.elapsed())
    }

    /// Runs the faults of the tree, which has faults by name only.
    fn of_the_tree(self) -> Result<(), Failure> {
        if self.persistency.is_some() {
            return Err(Failure::Usage(
                "--persistency has no effect with --target tree, whose servers have no power cuts"
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
        let mut selected = FaultBudget::default().modes;
        if let Some(choice) = self.persistency {
            for target in targets {
                selected = modes(choice, *target)?;
            }
        }
        Ok(FaultBudget {
            modes: selected,
            seeds: self.seeds.0.clone(),
            cpu: Duration::from_secs_f64(self.seconds.max(0.0)),
        })
    }

    fn nothing_to_do(&self, targets: &[&dyn Target]) -> Failure {
        let only = self.only.as_deref().unwrap_or_default();
        let mut listed = targets.iter().flat_map(|target| target.faults());
        if !NAMED && listed.any(|named| named.name.contains(only)) {
            return Failure::Usage(format!(
                "{only} is a fault by name, and this build has none; build with --features faults"
            ));
        }
        Failure::Usage(format!("the text of no fault contains {only:?}"))
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
                println!(
                    "\n{listed} faults by name were not tried; they need a build with --features faults"
                );
            }
            println!("\n{}", figures.line(&name));
        }
        match trials.iter().find(|trial| !trial.is_found()) {
            None => Ok(()),
            Some(trial) => Err(Failure::failed(match &trial.outcome {
                FaultOutcome::Void { violation, .. } => format!(
                    "{}: the same violation occurs without the fault; fix that first: {}",
                    trial.fault, violation.command
                ),
                FaultOutcome::Idle => format!(
                    "{}: the fault changes nothing that a crash can leave; remove the flush, drain or fault from the source",
                    trial.fault
                ),
                _ => format!(
                    "{}: the fault changes what crashes leave, but was not detected within {} s: the check does \
                     not cover it",
                    trial.fault, self.seconds
                ),
            })),
        }
    }
}

/// Returns a progress bar that counts faults.
fn bar(faults: usize) -> ProgressBar {
    let bar = progress_bar(faults as u64, "faults");
    match ProgressStyle::with_template("{wide_bar} {pos}/{len} faults, {elapsed}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Totals of all trials.
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
            "check faults {target}: {} of {all} detected ({} by name, {} by place), {} idle, {} \
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
