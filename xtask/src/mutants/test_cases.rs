//! Every test of the mutated workspace by itself: which mutants it reaches, and how long it takes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::RunState;
use crate::run::target;

/// Tests that run at the same time.
pub(super) const JOBS: usize = 2;
/// A test that takes longer without a mutant is left out: mutants have others.
const LONGEST: Duration = Duration::from_secs(180);

/// A test.
pub(super) struct TestCase {
    program: PathBuf,
    folder: PathBuf,
    test: String,
    /// Its crate or file, and its name.
    pub(super) name: String,
    /// How long it takes.
    seconds: f64,
    /// The numbers of the mutants that it reaches.
    pub(super) reaches: BTreeSet<usize>,
}

/// How a run of a test ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TestVerdict {
    Passed,
    Failed,
    /// It was ended after several times what it takes.
    Hung,
}

impl TestCase {
    /// Runs the test with a mutant, or with none.
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
            .args(["--exact", &self.test])
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        command
    }
}

/// Runs a command and all that it starts, for so long at most.
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

/// Ends what a test has started and left behind.
fn kill_group(child: &mut Child) {
    let group = format!("-{}", child.id());
    let mut kill = Command::new("kill");
    kill.args(["-KILL", "--", &group]).stderr(Stdio::null());
    let _ = kill.status();
    let _ = child.wait();
}

/// All tests of these programs, the quickest first.
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
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let places: Vec<Mutex<TestCase>> = suites.into_iter().map(Mutex::new).collect();
    println!("{} tests are asked which mutants they reach", places.len());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..JOBS)
            .map(|job| {
                let (places, known, next, done) = (&places, &known, &next, &done);
                scope.spawn(move || {
                    while let Some(place) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let mut suite = place.lock().expect("no holder panics");
                        if !remembered(&mut suite, known) {
                            reach(&mut suite, job, state)?;
                        }
                        let count = done.fetch_add(1, Ordering::Relaxed) + 1;
                        if count.is_multiple_of(100) {
                            println!("{count} tests have been asked");
                        }
                    }
                    Ok::<_, String>(())
                })
            })
            .collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().expect("no worker panics"))
    })?;
    let mut suites: Vec<TestCase> = places
        .into_iter()
        .map(|place| place.into_inner().expect("no holder panics"))
        .collect();
    suites.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    Ok(suites)
}

/// The tests of a program.
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

/// Takes what an earlier run has found out about a test.
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

/// Runs a test to find out which mutants it reaches. One that fails, or takes long, reaches none.
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
