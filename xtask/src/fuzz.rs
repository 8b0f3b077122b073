//! Suite `fuzz`: bytes chosen by libFuzzer for what reads bytes of others, and many requests drafted by a grammar.
//!
//! The targets are in `fuzz/`, a workspace of its own. They are built with the coverage flags that
//! libFuzzer needs, so that nothing but a C++ compiler has to be installed, and start from the inputs
//! kept in `fuzz/seeds`. What they find in addition stays in the build folder.
//!
//! libFuzzer makes some ten thousand inputs a second. `parsers`, which watches nothing, makes a million of requests
//! and asks the same of both parsers.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::RunSize;
use crate::run::{install, root, succeed, target, works};
use crate::sanitize::TRIPLE;

const TARGETS: [&str; 4] = ["memcached", "pool_image", "resp", "superblock"];

/// The parsers of requests.
const PARSERS: [&str; 2] = ["memcached", "resp"];

/// What has libFuzzer see where the code goes and what it compares.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares \
                     -Ccodegen-units=1 --cfg fuzzing";

/// Seconds a target runs.
fn seconds(size: RunSize) -> u64 {
    match size {
        RunSize::Suite => 20,
        RunSize::Gate => 600,
    }
}

/// Inputs drafted for each parser.
fn drafts(size: RunSize) -> u64 {
    match size {
        RunSize::Suite => 2_000_000,
        RunSize::Gate => 100_000_000,
    }
}

pub(crate) fn run(size: RunSize) -> Result<(), String> {
    if !works("g++", &["--version"]) {
        install(&["g++"])?;
    }
    let folder = target().join("fuzz");
    let build = || {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--release"]);
        build.current_dir(root().join("fuzz"));
        build.env("CARGO_TARGET_DIR", &folder);
        build
    };
    succeed(build().args(["--bin", "parsers"]))?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let seed = since.map_or(0, |since| since.as_secs()).to_string();
    for name in PARSERS {
        let mut parsers = Command::new(folder.join("release/parsers"));
        succeed(parsers.args([name, &seed, "0", &drafts(size).to_string()]))?;
    }
    let mut targets = build();
    targets.args(["--target", TRIPLE]);
    for name in TARGETS {
        targets.args(["--bin", name]);
    }
    succeed(targets.env("RUSTFLAGS", FLAGS))?;
    TARGETS
        .iter()
        .try_for_each(|name| fuzz(name, &folder, seconds(size)))
}

/// Runs one target; a finding is an error that says how to see it again.
fn fuzz(name: &str, folder: &Path, seconds: u64) -> Result<(), String> {
    let (corpus, log) = (
        folder.join("corpus").join(name),
        folder.join(format!("{name}.log")),
    );
    let found = folder.join(format!("{name}-"));
    let told = fs::create_dir_all(&corpus)
        .and_then(|()| fs::File::create(&log))
        .map_err(|e| format!("{}: {e}", log.display()))?;
    let binary = folder.join(TRIPLE).join("release").join(name);
    let mut command = Command::new(&binary);
    command.arg(format!("-max_total_time={seconds}"));
    command.args(["-timeout=60", "-rss_limit_mb=2048", "-max_len=2048"]);
    command.arg(format!("-artifact_prefix={}", found.display()));
    command
        .arg(corpus)
        .arg(root().join("fuzz/seeds").join(name));
    println!("$ {command:?}");
    let status = command.stdin(Stdio::null()).stderr(told).status();
    let status = status.map_err(|e| format!("{} cannot be run: {e}", binary.display()))?;
    let log = fs::read_to_string(&log).map_err(|e| format!("{}: {e}", log.display()))?;
    if !status.success() {
        let said = log.lines().count();
        let tail: Vec<&str> = log.lines().skip(said.saturating_sub(60)).collect();
        return Err(format!(
            "{name} ended with {status}; the last it said:\n{}",
            tail.join("\n")
        ));
    }
    let runs = runs(&log).ok_or(format!("{name} did not say how many runs it made"))?;
    println!(
        "{name}: {runs} runs in {seconds} s, {} a second",
        runs / seconds
    );
    Ok(())
}

/// From "Done 95908 runs in 16 second(s)".
fn runs(log: &str) -> Option<u64> {
    let line = log.lines().rev().find(|line| line.starts_with("Done "))?;
    line.split(' ').nth(1)?.parse().ok()
}
