//! Command line and report.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, ValueEnum, value_parser};
use farbank_bench::figure::{Figure, Report};
use farbank_bench::kv::PoolPlace;
use farbank_contest::judge::{self, ContestRound, JudgeOptions, JudgePhases};
use serde_json::json;

use crate::Table;
use crate::engine::OutsideContender;
use crate::kill::{self, Job};

const EXAMPLES: &str = "\
Examples:
  ./judge
      correctness, performance and five kills, at 1/1024 of the contest's size
  ./judge --scale 1/64 --phases performance --threads 16
      performance only, at a meaningful size
  ./judge --phases durability --kills 50 --json
      durability only, with 50 kills and one JSON object on the last line";

/// Number of notes printed below the figures.
const NOTES_SHOWN: usize = 12;

/// Tests the engine of the Tair contest that is linked into this program.
///
/// The exit code is 1 if an answer was wrong, a set was refused, or an acknowledged write was lost.
#[derive(Parser)]
#[command(name = "judge", after_help = EXAMPLES)]
struct Arguments {
    /// Round of the contest: it determines value lengths and the mix of operations.
    #[arg(long, default_value = "final", value_parser = contest_round())]
    round: ContestRound,
    /// Fraction of the contest's size; N is a power of two.
    #[arg(long, value_name = "1/N", default_value = "1/1024", value_parser = scale)]
    scale: u64,
    /// Number of threads in each phase.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Seed of the random number generator.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Phases to run.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "correctness,performance,durability"
    )]
    phases: Vec<PhaseChoice>,
    /// Number of get phases; the slowest counts.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Number of kills in the durability phase.
    #[arg(long, value_name = "N", default_value_t = 5)]
    kills: u32,
    /// Parent of a temporary folder for the engine's files; by default /dev/shm if it exists.
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Print one JSON object on the last line.
    #[arg(long)]
    json: bool,
    /// Role of a child process of this program.
    #[arg(long, hide = true)]
    role: Option<Role>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PhaseChoice {
    /// Compares every answer.
    Correctness,
    /// Measures a set phase and several get phases.
    Performance,
    /// Kills the engine and opens it again.
    Durability,
}

#[derive(Clone, Copy, ValueEnum)]
enum Role {
    Write,
    Look,
}

fn contest_round() -> impl TypedValueParser<Value = ContestRound> {
    let names = ContestRound::ALL.map(ContestRound::name);
    PossibleValuesParser::new(names).map(|name| {
        let mut rounds = ContestRound::ALL.into_iter();
        let named = rounds.find(|round| round.name() == name);
        named.expect("the parser accepts only these names")
    })
}

fn scale(text: &str) -> Result<u64, String> {
    let part = text.strip_prefix("1/").and_then(|part| part.parse().ok());
    part.filter(|part: &u64| part.is_power_of_two() && *part <= 1 << 16)
        .ok_or_else(|| "expected 1/N, N a power of two up to 65536, such as 1/64".into())
}

/// Runs the judge with the given arguments. Returns the exit code.
pub(crate) fn main(arguments: Vec<OsString>, table: Table) -> i32 {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            // An error of printing cannot be reported.
            let _ = error.print();
            return error.exit_code();
        }
    };
    match run(&arguments, table) {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(why) => {
            eprintln!("error: {why}");
            1
        }
    }
}

fn run(arguments: &Arguments, table: Table) -> Result<bool, String> {
    let job = Job {
        round: arguments.round,
        seed: arguments.seed,
    };
    let parent = arguments.folder.clone().unwrap_or_else(|| {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() {
            memory.to_owned()
        } else {
            std::env::temp_dir()
        }
    });
    match arguments.role {
        Some(Role::Write) => return kill::write(&job, table, &parent).map(|()| true),
        Some(Role::Look) => return kill::read_all(&job, table, &parent).map(|()| true),
        None => {}
    }
    let folder = tempfile::tempdir_in(&parent).map_err(|e| format!("{}: {e}", parent.display()))?;
    let mut report = phases(arguments, table, job.round, folder.path())?;
    if arguments.phases.contains(&PhaseChoice::Durability) {
        kill::judge(&job, folder.path(), arguments.kills, &mut report)?;
    }
    let holds = report.broken().is_none();
    println!("{}", table_of(&report));
    println!("{}", if holds { "passed" } else { "FAILED" });
    if arguments.json {
        println!("{}", json_of(&report, holds));
    }
    Ok(holds)
}

/// Runs the phases correctness and performance.
fn phases(
    arguments: &Arguments,
    table: Table,
    round: ContestRound,
    folder: &Path,
) -> Result<Report, String> {
    let contender = OutsideContender {
        table,
        folder: folder.to_owned(),
        made: AtomicU64::new(0),
    };
    let options = JudgeOptions {
        contenders: vec![&contender],
        round,
        part: arguments.scale,
        threads: usize::from(arguments.threads),
        seed: arguments.seed,
        place: PoolPlace::Dram,
        phases: JudgePhases {
            correctness: arguments.phases.contains(&PhaseChoice::Correctness),
            durability: false,
            performance: arguments.phases.contains(&PhaseChoice::Performance),
            model: false,
        },
        rounds: arguments.rounds,
        group: 1,
        crash_seeds: 0,
        tuning: false,
    };
    let mut report = judge::run(&options, &mut |_| true).map_err(|e| e.to_string())?;
    report.figures.retain(is_known);
    Ok(report)
}

/// Returns whether a figure is meaningful for an engine that maps its own file and does not report its DRAM: figures
/// about answers, and measured times.
fn is_known(figure: &Figure) -> bool {
    use farbank_bench::figure::Kind;
    let answers = ["answers", "sets refused", "keys", "values", "lengths"];
    let of_answers = figure
        .name
        .split_once(": ")
        .is_some_and(|(_, what)| answers.iter().any(|a| what.starts_with(a)));
    figure.kind == Kind::Measured || of_answers || figure.name == "updates in the set phase"
}

fn table_of(report: &Report) -> String {
    let width = report
        .figures
        .iter()
        .map(|figure| figure.name.len())
        .max()
        .unwrap_or_default();
    let row = |figure: &Figure| {
        let (name, kind, value, unit) =
            (&figure.name, figure.kind.name(), figure.value, figure.unit);
        let not = if figure.holds() {
            ""
        } else {
            "  VIOLATES ITS BOUND"
        };
        let value = match figure.kind {
            farbank_bench::figure::Kind::Counted => format!("{value}"),
            _ => format!("{value:.3}"),
        };
        format!("{name:width$}  {kind:8}  {value:>12} {unit}{not}")
    };
    let mut lines: Vec<String> = report.figures.iter().map(row).collect();
    let notes = report.notes.iter().take(NOTES_SHOWN);
    lines.extend(notes.map(|note| format!("note: {note}")));
    let more = report.notes.len().saturating_sub(NOTES_SHOWN);
    if more > 0 {
        lines.push(format!("note: {more} more notes; --json shows all"));
    }
    lines.join("\n")
}

fn json_of(report: &Report, holds: bool) -> serde_json::Value {
    let figure = |figure: &Figure| {
        json!({
            "name": figure.name, "kind": figure.kind.name(), "value": figure.value,
            "unit": figure.unit, "holds": figure.holds(),
        })
    };
    json!({
        "judge": "engine", "holds": holds,
        "figures": report.figures.iter().map(figure).collect::<Vec<_>>(), "notes": report.notes,
    })
}
