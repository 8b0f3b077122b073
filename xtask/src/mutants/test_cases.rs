//! Runs every test of the mutated workspace alone, to find the mutants that it reaches and its duration.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::RunState;
use crate::run::{in_parallel, target};

/// Number of tests that run at the same time.
pub(super) const JOBS: usize = 2;
/// Longest duration of a test without a mutant. Slower tests are left out.
const LONGEST: Duration = Duration::from_secs(180);

/// A test.
pub(super) struct TestCase {
    program: PathBuf,
    folder: PathBuf,
    test: String,
    /// Its crate, its program's name and its own name.
    pub(super) name: String,
    /// Duration in seconds, without a mutant.
    seconds: f64,
    /// The numbers of the mutants that it reaches.
    pub(super) reaches: BTreeSet<usize>,
}

/// Outcome of a test run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TestVerdict {
    Passed,
    Failed,
    /// The test was killed after several times its usual duration.
    Hung,
}

impl TestCase {
    /// Runs the test, with a mutant if one is given.
    pub(super) fn run(&self, mutant: Option<usize>) -> TestVerdict {
        let mut command = self.command();
        if let Some(number) = mutant {
            command.env("FARBANK_MUTANT", number.to_string());
        }
        let patience = Duration::from_secs_f64(20.0 + 5.0 * self.seconds);
        ended(command, patience)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(["--include-ignored", "--exact", &self.test])
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        command
    }
}

/// Runs a command for at most `patience`, then kills it and all processes it has started.
fn ended(mut command: Command, patience: Duration) -> TestVerdict {
    let Ok(mut child) = command.spawn() else {
        return TestVerdict::Failed;
    };
    let end = Instant::now() + patience;
    let verdict = loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => break TestVerdict::Passed,
            Ok(Some(_)) | Err(_) => break TestVerdict::Failed,
            Ok(None) if Instant::now() > end => break TestVerdict::Hung,
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    kill_group(&mut child);
    verdict
}

/// Kills all processes that a test has started.
fn kill_group(child: &mut Child) {
    let group = format!("-{}", child.id());
    let mut kill = Command::new("kill");
    kill.args(["-KILL", "--", &group]).stderr(Stdio::null());
    let _ = kill.status();
    let _ = child.wait();
}

/// Returns all tests of the programs, the fastest first.
///
/// # Errors
/// A program does not list its tests, or the state cannot be written.
pub(super) fn all(
    programs: &[(PathBuf, PathBuf)],
    state: &RunState,
) -> Result<Vec<TestCase>, String> {
    let mut suites = Vec::new();
    for (program, folder) in programs {
        suites.extend(listed(program, folder)?);
    }
    let known = state.lines("reached.tsv");
    let done = AtomicUsize::new(0);
    println!(
        "running {} tests to find the mutants they reach",
        suites.len()
    );
    in_parallel(&mut suites, JOBS, |job, suite: &mut TestCase| {
        if !remembered(suite, &known) {
            reach(suite, job, state)?;
        }
        let count = done.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_multiple_of(100) {
            println!("{count} tests done");
        }
        Ok(())
    })?;
    suites.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    Ok(suites)
}

/// Returns the tests of a program.
fn listed(program: &Path, folder: &Path) -> Result<Vec<TestCase>, String> {
    let mut list = Command::new(program);
    list.args(["--list", "--format", "terse"])
        .current_dir(folder);
    let listed = list
        .output()
        .map_err(|e| format!("{}: {e}", program.display()))?;
    let file = program.file_stem().unwrap_or_default().to_string_lossy();
    let file = file
        .rsplit_once('-')
        .map_or(&*file, |(file, _)| file)
        .to_owned();
    let krate = folder.file_name().unwrap_or_default().to_string_lossy();
    Ok(String::from_utf8_lossy(&listed.stdout)
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .map(|test| TestCase {
            program: program.into(),
            folder: folder.into(),
            test: test.into(),
            name: format!("{krate}/{file}::{test}"),
            seconds: 0.0,
            reaches: BTreeSet::new(),
        })
        .collect())
}

/// Takes a test's duration and reached mutants from an earlier run. Returns false if there are none.
fn remembered(suite: &mut TestCase, known: &[String]) -> bool {
    let mut fields = known.iter().filter_map(|line| {
        let (name, rest) = line.split_once('\t')?;
        (name == suite.name).then_some(rest)
    });
    let Some((seconds, reached)) = fields.next().and_then(|rest| rest.split_once('\t')) else {
        return false;
    };
    suite.seconds = seconds.parse().unwrap_or(0.0);
    suite.reaches = reached.split(' ').filter_map(|n| n.parse().ok()).collect();
    true
}

/// Runs a test to find the mutants that it reaches. A test that fails or takes too long reaches none.
fn reach(suite: &mut TestCase, job: usize, state: &RunState) -> Result<(), String> {
    let path = target().join(format!("mutants/reached-{job}.txt"));
    let _ = fs::remove_file(&path);
    let mut command = suite.command();
    command.env("FARBANK_MUTANTS_REACHED", &path);
    let began = Instant::now();
    let verdict = ended(command, LONGEST);
    suite.seconds = began.elapsed().as_secs_f64();
    match verdict {
        TestVerdict::Passed => {
            let text = fs::read_to_string(&path).unwrap_or_default();
            suite.reaches = text.lines().filter_map(|n| n.parse().ok()).collect();
        }
        verdict => println!("{} is left out: {verdict:?} without a mutant", suite.name),
    }
    let reached: Vec<String> = suite.reaches.iter().map(ToString::to_string).collect();
    let line = format!(
        "{}\t{:.2}\t{}",
        suite.name,
        suite.seconds,
        reached.join(" ")
    );
    state.note("reached.tsv", &line)
}
