//! `cargo xtask behaviour FILE`: records the store's behaviour in a file, so that two versions can be compared.
//!
//! ```text
//!   digests        crash images of fixed seeds: every target, in every persistency mode
//!   figures        every counted row of `bench kv`, `index`, `judge` (one thread) and `tree`
//!   instructions   one set and one get of the engine, counted by valgrind
//! ```
//!
//! A change that only renames or moves code leaves every line unchanged. Instruction counts may differ by one percent.
//! Run the command before and after the change, and compare the files with `diff`.

use std::fmt::Write as _;
use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::run::{build_farbank, farbank};
use crate::zero_cost;

/// Targets of `farbank check crash`, with the operations per seed. Targets whose seeds run long have fewer operations.
const TARGETS: [(&str, &str); 14] = [
    ("kv", "6"),
    ("kv-alone", "6"),
    ("kv-large", "3"),
    ("kv-classes", "6"),
    ("kv-slices", "6"),
    ("kv-checkpoint", "6"),
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

/// Benchmarks that report counted figures. The arguments keep each run below half a minute.
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

/// Writes the report to `file`.
///
/// # Errors
/// A command cannot be run or does not print JSON, or the file cannot be written.
pub(crate) fn run(file: &str) -> Result<(), String> {
    build_farbank()?;
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

/// Returns one line for each persistency mode in which the explorer crashes `target`.
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

/// Returns one line for each counted figure of `farbank bench`.
fn figures(arguments: &[&str]) -> Result<String, String> {
    let mut command = farbank();
    command.arg("bench").args(arguments).arg("--json");
    let report = report(&mut command)?;
    let mut text = String::new();
    for figure in list(&report, "figures")? {
        if figure["kind"] == "counted" && !varies(figure) {
            let (experiment, name) = (&figure["experiment"], &figure["name"]);
            let value = figure["value"].as_f64().unwrap_or(f64::NAN);
            let _ = writeln!(
                text,
                "bench {} {experiment} {name} {value:.6}",
                arguments[0]
            );
        }
    }
    Ok(text)
}

/// Returns whether a counted figure varies between runs. The size of the index does, because each pool has a random
/// hash key.
fn varies(figure: &Value) -> bool {
    let name = figure["name"].as_str().unwrap_or_default();
    name.contains("index at its largest")
}

/// Returns the JSON in the last line that a command prints. Exit code 1 is accepted: with so few seeds the explorer
/// does not reach every situation.
fn report(command: &mut Command) -> Result<Value, String> {
    let name = format!("{command:?}");
    println!("$ {name}");
    let output = command.stderr(Stdio::null()).output();
    let output = output.map_err(|e| format!("{name} cannot be run: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line).map_err(|e| {
        format!(
            "{name} ended with {}; its last line is not JSON: {e}",
            output.status
        )
    })
}

fn list<'a>(report: &'a Value, name: &str) -> Result<&'a [Value], String> {
    let list = report[name].as_array();
    list.map(Vec::as_slice)
        .ok_or_else(|| format!("the report has no array {name:?}"))
}
