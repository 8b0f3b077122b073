//! `farbank check crash`: crashes a structure at every crash point of a simulation.

use std::time::Duration;

use clap::Args;
use farbank_check::explore::{ExploreConfig, explore};
use farbank_check::{AckRule, CrashReport, ImageChoice, Target};
use farbank_pm::fault::{self, Fault};
use farbank_pm::sim::Persistency;

use super::targets::{CheckedStructure, modes, persistency, structure};
use super::{SeedRange, progress_bar, threads};
use crate::common::Failure;
use crate::common::choice::{AnyOr, one_of};

const EXAMPLES: &str = "\
Examples:
  farbank check crash
      the engine under 16 seeds in each mode, in about two minutes
  farbank check crash --persistency adr --seeds 0..1000000 --minutes 5
      as many seeds as five minutes allow, with power cuts that lose the CPU caches
  farbank check crash --depth 3 --seeds 0..4
      also crash the recovery from a crash during recovery
  farbank check crash --lazy --persistency adr --seeds 0..40
      every memory content that recovery can observe after a power cut, without sampling
  farbank check crash --persistency page --seeds 0x51ab --crash 212 --image 17
      repeat one crash of one seed, as a violation reports it";

/// Crash a structure at every crash point of a simulation, and check what a power cut could leave.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CrashArgs {
    /// Structure to check.
    #[arg(long, default_value = "kv", value_parser = structure())]
    target: CheckedStructure,
    /// What a power cut may lose. adr: CPU caches, of which each line keeps a prefix of its stores. eadr: nothing.
    /// word: as adr, but each word keeps a prefix of its stores. page: sectors written since the last sync. all: each
    /// mode in turn.
    #[arg(long, default_value = "all", value_parser = persistency())]
    persistency: AnyOr<Persistency>,
    /// Seeds to run: one seed, or a range that excludes its end. Numbers may be hexadecimal.
    #[arg(long, value_name = "A..B", default_value = "0..16")]
    seeds: SeedRange,
    /// If a place where a crash could lose data was not reached, run up to N further seeds, until all were.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "crash")]
    more_seeds: u64,
    /// Check only this crash point, of the single seed.
    #[arg(long, value_name = "N")]
    crash: Option<u64>,
    /// Check only this image of the crash point: its number, `kill`, or lazy:N.N.N.
    #[arg(long, value_name = "N", requires = "crash")]
    image: Option<ImageChoice>,
    /// What must survive. strict: acknowledged writes and values that reads returned. acknowledged: only acknowledged
    /// writes.
    #[arg(long, default_value = "strict", value_parser = one_of(&AckRule::ALL, AckRule::name))]
    verdict: AckRule,
    /// Consecutive crashes: 2 also crashes recoveries, 3 also the recoveries from those crashes.
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u8).range(1..=3))]
    depth: u8,
    /// Choose surviving data only where recovery reads it. Covers every crash point without sampling, one crash deep.
    #[arg(long, conflicts_with_all = ["depth", "cap"])]
    lazy: bool,
    /// Steps per run.
    #[arg(long, value_name = "N")]
    steps: Option<usize>,
    /// Maximum images checked per crash point.
    #[arg(long, value_name = "N")]
    cap: Option<usize>,
    /// Run with this fault: a place such as `flush kv/src/session_log.rs:88`, or a fault's name (needs a build with
    /// `--features faults`).
    #[arg(long, value_name = "FAULT")]
    fault: Option<Fault>,
    /// Let a compare-and-swap also drain, as on x86. A structure must be correct without this.
    #[arg(long)]
    locked_drains: bool,
    /// Start no further seeds after this many minutes of CPU time per thread, shared by all modes. Other load on the
    /// machine does not count.
    #[arg(long, value_name = "M")]
    minutes: Option<f64>,
    /// Number of threads; 0 means one per CPU.
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Print one JSON object on the last line instead of the report.
    #[arg(long)]
    json: bool,
}

impl CrashArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        if self.crash.is_some() && self.seeds.0.end - self.seeds.0.start != 1 {
            return Err(Failure::Usage(
                "--crash needs one seed: give --seeds a single number".into(),
            ));
        }
        if !fault::NAMED && matches!(self.fault, Some(Fault::Name(_))) {
            return Err(Failure::Usage(
                "this build has no faults by name; build with --features faults".into(),
            ));
        }
        let Some(target) = self.target.target() else {
            return Err(Failure::Usage(
                "the tree is checked with failing servers instead of power cuts; use check schedules --target tree"
                    .into(),
            ));
        };
        let mut reports = Vec::new();
        let modes = modes(self.persistency, target)?;
        for (done, mode) in modes.iter().enumerate() {
            let left = (modes.len() - done) as f64;
            let minutes = self.minutes.map(|all| {
                let used: Duration = reports.iter().map(|r: &CrashReport| r.cpu).sum();
                (all - used.as_secs_f64() / 60.0 / threads(self.threads) as f64) / left
            });
            let report = self.explore(target, *mode, minutes);
            if !self.json {
                println!("{report}\n");
            }
            reports.push(report);
        }
        let complaints = self.complaints(&reports);
        let figures = CrashFigures {
            reports: &reports,
            holds: complaints.is_empty(),
        };
        println!(
            "{}",
            if self.json {
                figures.json()
            } else {
                figures.line()
            }
        );
        match complaints.into_iter().next() {
            None => Ok(()),
            Some(complaint) => Err(Failure::failed(complaint)),
        }
    }

    fn config(&self, persistency: Persistency) -> ExploreConfig {
        let usual = ExploreConfig::new(persistency);
        ExploreConfig {
            steps: self.steps.unwrap_or(usual.steps),
            cap: self.cap.unwrap_or(usual.cap),
            locked_drains: self.locked_drains,
            fault: self.fault.clone(),
            verdict: self.verdict,
            depth: usize::from(self.depth),
            lazy: self.lazy,
            more_seeds: self.more_seeds,
            only: self.crash.map(|crash| (crash, self.image.clone())),
            ..usual
        }
    }

    fn explore(&self, target: &dyn Target, mode: Persistency, minutes: Option<f64>) -> CrashReport {
        let seeds = self.seeds.0.clone();
        let threads = threads(self.threads);
        let most = minutes.map(|minutes| minutes * 60.0 * threads as f64);
        let bar = progress_bar(seeds.end - seeds.start, mode.name());
        let report = explore(target, &self.config(mode), seeds, threads, &mut |report| {
            bar.set_position(report.counts.seeds);
            let counts = &report.counts;
            bar.set_message(match self.lazy {
                true => format!("{} crash points", counts.crash_points),
                false => format!("{} distinct images", counts.distinct_images),
            });
            most.is_none_or(|most| report.cpu.as_secs_f64() < most)
        });
        bar.finish_and_clear();
        report
    }

    /// Returns the reasons why the check does not hold; empty if it holds.
    fn complaints(&self, reports: &[CrashReport]) -> Vec<String> {
        let mut complaints = Vec::new();
        for report in reports {
            if let Some(first) = report.violations.first() {
                complaints.push(format!("{}: {}", report.persistency, first.what));
            }
            // A lazy exploration does not crash recoveries, so it cannot cover the places that only recovery reaches.
            if self.crash.is_none() && !self.lazy {
                complaints.extend(report.uncovered().map(|place| {
                    format!(
                        "{}: no crash was tried where {} at {} could be lost; try more seeds",
                        report.persistency,
                        place.act.name(),
                        farbank_pm::sim::brief(place.at)
                    )
                }));
            }
        }
        complaints
    }
}

/// The reports of all modes together.
struct CrashFigures<'a> {
    reports: &'a [CrashReport],
    holds: bool,
}

impl CrashFigures<'_> {
    fn line(&self) -> String {
        let sum = |of: fn(&CrashReport) -> u64| self.reports.iter().map(of).sum::<u64>();
        let seconds: f64 = self.reports.iter().map(|r| r.cpu.as_secs_f64()).sum();
        let modes: Vec<_> = self.reports.iter().map(|r| r.persistency.name()).collect();
        let explored = if self.reports.iter().all(|r| r.lazy) {
            format!(
                "{} crash points explored lazily without sampling, {} cut off, {} leaves",
                sum(|r| r.counts.exhaustive_points),
                sum(|r| r.counts.cut_off),
                sum(|r| r.counts.leaves)
            )
        } else {
            format!(
                "{} distinct images, {} checked",
                sum(|r| r.counts.distinct_images),
                sum(|r| r.counts.images)
            )
        };
        format!(
            "check crash {}: {}; {explored}, {} violations, crashes at {} of {} places; {seconds:.1} s of CPU time",
            modes.join(" "),
            if self.holds { "holds" } else { "DOES NOT HOLD" },
            sum(|r| r.violations.len() as u64),
            sum(|r| (r.places.len() - r.uncovered().count()) as u64),
            sum(|r| r.places.len() as u64),
        )
    }

    fn json(&self) -> String {
        let runs: Vec<_> = self.reports.iter().map(CrashReport::json).collect();
        let (holds, runs) = (self.holds, runs.join(","));
        format!("{{\"check\":\"crash\",\"holds\":{holds},\"runs\":[{runs}]}}")
    }
}
