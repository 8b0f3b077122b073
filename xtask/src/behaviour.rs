//! `cargo xtask behaviour FILE`: writes down what the store does, so that two versions can be compared.
//!
//! ```text
//!   digests        of the crash images of fixed seeds: every target, in every persistency mode
//!   figures        every counted row of `bench kv`, `index`, `judge` (one thread) and `tree`
//!   instructions   of a set and of a get of the engine, counted by valgrind
//! ```
//!
//! A change that renames or moves code leaves every line as it is, but for instructions, which may differ by a hundredth.
//! Run it before the change and after it, and compare the files with `diff`.

use std::fmt::Write as _;
use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::run::{cargo, farbank};
use crate::zero_cost;

/// The targets of `farbank check crash`, and how many operations a seed has: few where a seed takes long.
const TARGETS: [(&str, &str); 13] = [
    ("kv", "6"),
    ("kv-alone", "6"),
    ("kv-large", "3"),
    ("kv-classes", "6"),
    ("kv-slices", "6"),
    ("mdb", "12"),
    ("cceh", "60"),
    ("clht", "60"),
    ("level", "60"),
    ("clevel", "60"),
    ("dash-eh", "60"),
    ("dash-lh", "12"),
    ("soft", "60"),
];
const SEEDS: &str = "0..20";

/// The benchmarks that count, with arguments that keep each below half a minute.
const BENCHMARKS: [&[&str]; 5] = [
    &["kv", "--experiment", "load", "--keys", "200000"],
    &[
        "kv",
        "--experiment",
        "amplification",
        "--size",
        "16mb",
        "--updates",
        "uniform",
    ],
    &["index", "--experiment", "counts", "--records", "100000"],
    &[
        "judge",
        "--target",
        "v1,v2,kid",
        "--threads",
        "1",
        "--phases",
        "correctness",
        "--scale",
        "1/256",
    ],
    &["tree", "--experiment", "counts"],
];

/// Writes the file.
///
/// # Errors
/// A command cannot be run or prints no JSON, or the file cannot be written.
pub(crate) fn run(file: &str) -> Result<(), String> {
    cargo(&["build", "--release", "--package", "farbank-cli"])?;
    let mut text = String::new();
    for (target, steps) in TARGETS {
        text += &digests(target, steps)?;
    }
    for arguments in BENCHMARKS {
        text += &figures(arguments)?;
    }
    for (what, instructions) in zero_cost::instructions_per_operation()? {
        let _ = writeln!(text, "instructions {what} {instructions:.0}");
    }
    fs::write(file, text).map_err(|e| format!("{file}: {e}"))
}

/// A line for each persistency mode in which the explorer crashes `target`.
fn digests(target: &str, steps: &str) -> Result<String, String> {
    let mut command = farbank();
    command.args(["check", "crash", "--target", target, "--seeds", SEEDS]);
    let report = report(command.args(["--steps", steps, "--json"]))?;
    let mut text = String::new();
    for run in list(&report, "runs")? {
        let _ = writeln!(
            text,
            "crash {target} {} {} {} images",
            run["persistency"], run["digest"], run["distinct_images"]
        );
    }
    Ok(text)
}

/// A line for each counted figure of `farbank bench`.
fn figures(arguments: &[&str]) -> Result<String, String> {
    let mut command = farbank();
    command.arg("bench").args(arguments).arg("--json");
    let report = report(&mut command)?;
    let mut text = String::new();
    for figure in list(&report, "figures")? {
        if figure["kind"] == "counted" && !varies(figure) {
            let (experiment, name) = (&figure["experiment"], &figure["name"]);
            let value = &figure["value"];
            let _ = writeln!(text, "bench {} {experiment} {name} {value}", arguments[0]);
        }
    }
    Ok(text)
}

/// Whether a counted figure differs from run to run: how large the index is depends on the random hash key of a pool.
fn varies(figure: &Value) -> bool {
    let name = figure["name"].as_str().unwrap_or_default();
    name.contains("index at its largest")
}

/// The JSON that a command prints last. The command may end with 1: so few seeds do not reach every place.
fn report(command: &mut Command) -> Result<Value, String> {
    let name = format!("{command:?}");
    println!("$ {name}");
    let output = command.stderr(Stdio::null()).output();
    let output = output.map_err(|e| format!("{name} cannot be run: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line).map_err(|e| {
        format!(
            "{name} ended with {}, and not with JSON: {e}",
            output.status
        )
    })
}

fn list<'a>(report: &'a Value, name: &str) -> Result<&'a [Value], String> {
    let list = report[name].as_array();
    list.map(Vec::as_slice)
        .ok_or_else(|| format!("the report has no list {name:?}"))
}
