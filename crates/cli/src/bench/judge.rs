//! `farbank bench judge`: compares engines under the workload and rules of the Tair contest.
//!
//! The measurements are in `farbank_contest::judge`. This module has the arguments and the table, which has a row for
//! each figure and a column for each engine.

use std::path::PathBuf;

use clap::{Args, ValueEnum, value_parser};
use farbank_bench::figure::{Figure, Kind, Report, Verdict};
use farbank_bench::kv::PoolPlace;
use farbank_contest::judge::{
    self, Contender, ContestRound, JudgeExperiment, JudgePhase, JudgePhases, KidEngine, OurEngine,
    PrelimEngine, V1Engine, V2Engine,
};
use serde_json::json;

use super::report::{OutputForm, bound, in_columns, measure, number};
use crate::common::Failure;
use crate::common::choice::{described, experiment};

const EXAMPLES: &str = "\
Examples:
  farbank bench judge
      Farbank's engine in the final round at 1/256 of the contest's size, in about half a minute
  farbank bench judge --scale 1/64 --phases performance
      only the timed phases, with 6.3 million sets, then ten times as many gets and sets, in 1 GiB
  farbank bench judge --round preliminary --scale 1/1024
      the preliminary round: values of 80 bytes, almost no updates
  farbank bench judge --medium /mnt/pmem0/judge.pool --threads 16
      on persistent memory, with as many threads as the contest; the file is removed afterwards
  farbank bench judge --workload workloads/contest-final.toml
      the options of a workload file: every engine in the final round
  farbank bench judge --phases performance --batch 16
      sets and gets in batches of sixteen
  farbank bench judge --target all --scale 1/1024
      Farbank's and the published engines in one table, with the published values
  farbank bench judge --target kid --experiment tuning
      the effect of each tuning step of the kid engine on this machine";

/// Benchmark engines under the workload and rules of the Tair contest.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub(crate) struct BenchJudge {
    /// TOML file of options: keys are option names without dashes, plus `bench` and `question`. Options on the
    /// command line override it. See workloads/.
    #[arg(long, value_name = "FILE")]
    workload: Option<PathBuf>,
    /// Engines to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "kv")]
    target: Vec<JudgeTargetChoice>,
    /// Round of the contest.
    #[arg(long, default_value = "final", value_parser = described(&ContestRound::ALL, ContestRound::name, ContestRound::summary))]
    round: ContestRound,
    /// Fraction of the contest's size; N is a power of two. 1/1 means 402,653,184 sets in 64 GiB.
    #[arg(long, value_name = "1/N", default_value = "1/256", value_parser = scale)]
    scale: u64,
    /// Threads of a phase; the contest used 16.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Seed of the workload.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Medium of the timed phases. dram: memory of this process. PATH: a file that must not exist yet and is removed
    /// afterwards. Counts are always taken in memory.
    #[arg(long, value_name = "dram|PATH", default_value = "dram", value_parser = medium)]
    medium: PoolPlace,
    /// Phases to run.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "correctness,durability,performance,model",
        value_parser = experiment::<JudgePhase>()
    )]
    phases: Vec<JudgePhase>,
    /// Experiment to run instead of the phases.
    #[arg(long, value_parser = experiment::<JudgeExperiment>())]
    experiment: Option<JudgeExperiment>,
    /// Runs that are crashed at every fence, under each persistency mode.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = value_parser!(u64).range(1..=1_000_000))]
    crash_seeds: u64,
    /// Number of get phases; the slowest one counts.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Operations per batch in the timed phases.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u16).range(1..=64))]
    batch: u16,
    /// Print one JSON object on the last line.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum JudgeTargetChoice {
    /// Farbank's engine.
    Kv,
    /// The winner of the preliminary round; runs only in that round.
    Prelim,
    /// The first engine of the team in third place: an index in far memory, two writes per set.
    V1,
    /// The last engine of the team in third place: all keys in DRAM, one write per set.
    V2,
    /// The engine described in the contest slides: hash lines of five keys, one write per set.
    Kid,
    /// All engines, in one table.
    All,
}

fn scale(text: &str) -> Result<u64, String> {
    const PART_MAX: u64 = 1 << 16;
    let part = text.strip_prefix("1/").and_then(|part| part.parse().ok());
    match part {
        Some(part @ 1..=PART_MAX) if u64::is_power_of_two(part) => Ok(part),
        Some(part) => Err(format!(
            "1/{part} is not supported: tables have a power of two of chains, so N must be a power of two \
             from 1 to {PART_MAX}, as in 1/64"
        )),
        None => Err("a scale must be 1/N with N a power of two, as in 1/64".into()),
    }
}

fn medium(text: &str) -> Result<PoolPlace, String> {
    match text {
        "" => Err("the path must not be empty".into()),
        "dram" => Ok(PoolPlace::Dram),
        path => Ok(PoolPlace::File(PathBuf::from(path))),
    }
}

impl BenchJudge {
    /// Runs the subcommand.
    pub(super) fn run(self) -> Result<(), Failure> {
        let (prelim, kid) = (PrelimEngine::default(), KidEngine::default());
        let (v1, v2) = (V1Engine::default(), V2Engine::default());
        let every: [(JudgeTargetChoice, &dyn Contender); 5] = [
            (JudgeTargetChoice::Prelim, &prelim),
            (JudgeTargetChoice::V1, &v1),
            (JudgeTargetChoice::V2, &v2),
            (JudgeTargetChoice::Kid, &kid),
            (JudgeTargetChoice::Kv, &OurEngine),
        ];
        let all = self.target.contains(&JudgeTargetChoice::All);
        let contenders = every
            .iter()
            .filter(|(choice, _)| all || self.target.contains(choice));
        let options = judge::JudgeOptions {
            contenders: contenders.map(|(_, contender)| *contender).collect(),
            round: self.round,
            part: self.scale,
            threads: usize::from(self.threads),
            seed: self.seed,
            place: self.medium,
            phases: JudgePhases::of(&self.phases),
            rounds: self.rounds,
            group: usize::from(self.batch),
            crash_seeds: self.crash_seeds,
            tuning: self.experiment == Some(JudgeExperiment::Tuning),
        };
        let settings = json!({
            "workload": self.workload, "scale": format!("1/{}", options.part), "threads": options.threads,
            "seed": options.seed, "rounds": options.rounds, "batch": options.group,
        });
        measure(
            "judge",
            settings,
            &OutputForm::json(self.json),
            table,
            |watch| judge::run(&options, watch),
        )
    }
}

/// Formats a table with a row for each figure and a column for each engine, with published values and broken bounds.
fn table(report: &Report) -> String {
    let mut engines: Vec<&str> = Vec::new();
    let mut names: Vec<(&str, &str, Kind)> = Vec::new();
    for figure in &report.figures {
        if !engines.contains(&figure.experiment) {
            engines.push(figure.experiment);
        }
        let name = (figure.name.as_str(), figure.unit, figure.kind);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let head = ["figure", "", ""].into_iter().chain(engines.clone());
    let mut rows: Vec<Vec<String>> = vec![head.map(str::to_owned).collect()];
    for (name, unit, kind) in names {
        let mut row = vec![name.to_owned(), kind.name().to_owned(), unit.to_owned()];
        for engine in &engines {
            let is_it = |figure: &&Figure| {
                (figure.experiment, figure.name.as_str(), figure.unit) == (*engine, name, unit)
            };
            row.push(report.figures.iter().find(is_it).map_or("-".into(), cell));
        }
        rows.push(row);
    }
    in_columns(&rows)
}

/// Formats a figure: the value, the published value, and the bound if it does not hold.
fn cell(figure: &Figure) -> String {
    let mut text = number(figure.value);
    if let Some((least, most)) = figure.spread {
        text += &format!(" [{} to {}]", number(least), number(most));
    }
    if let (Some(published), Some(score)) = (figure.published, figure.score()) {
        let score = match published.binding {
            true => String::new(), // the bound already shows it
            false => format!(", {}", score.name()),
        };
        text += &format!(" (published {}{score})", number(published.value));
    }
    match (bound(figure), figure.verdict()) {
        (Some(bound), Some(Verdict::Broken)) => text + &format!(" NOT {bound}"),
        (Some(bound), Some(Verdict::NotMeasured)) => text + &format!(" {bound} NOT MEASURED"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_one_part_of_a_power_of_two() {
        assert_eq!(scale("1/64"), Ok(64));
        assert_eq!(scale("1/1"), Ok(1));
        for text in ["1/3", "1/0", "2/64", "64", "", "1/", "1/131072", "0.5"] {
            assert!(scale(text).is_err(), "{text}");
        }
        assert!(scale("1/3").unwrap_err().contains("1/3"));
    }

    #[test]
    fn engines_are_columns_and_a_broken_bound_is_marked() {
        let report = Report {
            figures: vec![
                Figure::counted("kv", "fences", 1.0)
                    .unit("a set")
                    .at_most(1.0),
                Figure::counted("v1", "fences", 2.5)
                    .unit("a set")
                    .published(2.0, 0.1),
                Figure::measured("v1", "score", 3.0).unit("s"),
                Figure::measured("v1", "time", 3.0).compared(1.5, 0.35),
            ],
            notes: Vec::new(),
            ..Report::default()
        };
        let text = table(&report);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[1].contains("1.00"), "{text}");
        assert!(
            lines[1].ends_with("2.50 (published 2.00) NOT 2.00 +- 0.1000"),
            "{text}"
        );
        assert!(lines[2].contains("-  "), "{text}");
        assert!(
            lines[3].ends_with("3.00 (published 1.50, NOT NEAR)"),
            "{text}"
        );
    }
}
