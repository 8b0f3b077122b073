//! `cargo xtask mutants`: makes small wrong edits (mutants) of code that can lose data, and finds tests that detect
//! them.
//!
//! ```text
//!   sites        places where an edit can be made, and the text of the edit
//!   workspace    a copy of the sources with all chosen mutants behind switches, built once
//!   test_cases   every test alone: the mutants it reaches, and its duration
//!   here         each mutant against the tests that reach it, the fastest first; the report
//! ```
//!
//! The seed determines the mutants: each area gets its share, with the operators in turn. The mutants are tried in
//! rounds. In the first round each mutant gets half a minute of tests, in the second four minutes, and in the last
//! every test that reaches it. So a run that ends early has tried all mutants. An interrupted run can be continued. A
//! mutant that no test detects has *survived*. Either it changes nothing that matters, and `xtask/mutants.toml` lists
//! it with that reason, or a test is missing.

mod sites;
mod test_cases;
mod workspace;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use sites::{MutationSite, Operator};
use test_cases::{TestCase, TestVerdict};

use crate::run::{files_below, in_parallel, is_rust, root, target};

/// A part of the code that can lose data.
struct MutatedArea {
    krate: &'static str,
    /// Folders and files, relative to the crate's `src`.
    paths: &'static [&'static str],
    /// Share of the mutants, out of [`SHARES`].
    share: usize,
    /// Least share of the mutants that tests must detect, in percent.
    bound: usize,
}

const AREAS: [MutatedArea; 6] = [
    MutatedArea {
        krate: "kv",
        paths: &[""],
        share: 30,
        bound: 95,
    },
    MutatedArea {
        krate: "cache",
        paths: &[""],
        share: 14,
        bound: 95,
    },
    MutatedArea {
        krate: "index",
        paths: &[""],
        share: 18,
        bound: 95,
    },
    MutatedArea {
        krate: "tree",
        paths: &[""],
        share: 14,
        bound: 90,
    },
    MutatedArea {
        krate: "pm",
        paths: &["media", "pool"],
        share: 12,
        bound: 90,
    },
    MutatedArea {
        krate: "server",
        paths: &[
            "net/worker.rs",
            "net/worker",
            "net/executor.rs",
            "net/connection.rs",
            "net/delivery.rs",
            "net/long_requests.rs",
            "exec_context.rs",
            "commands/pipeline.rs",
            "commands/transactions.rs",
        ],
        share: 12,
        bound: 90,
    },
];
const SHARES: usize = 100;
/// Time for each mutant in each round.
const ROUNDS: [Duration; 3] = [
    Duration::from_secs(30),
    Duration::from_secs(240),
    Duration::MAX,
];

/// Files used only by checks, which get no mutants.
const CHECKING: [&str; 4] = ["target.rs", "target_names.rs", "faults.rs", "tests.rs"];
/// Packages whose tests run.
const PACKAGES: [&str; 7] = [
    "farbank-pm",
    "farbank-kv",
    "farbank-cache",
    "farbank-index",
    "farbank-tree",
    "farbank-server",
    "farbank-cli",
];

const USAGE: &str =
    "usage: cargo xtask mutants [--count N] [--seed N] [--since REVISION] [--area CRATE]";

/// Options of the command line.
#[derive(Debug)]
struct MutantOptions {
    count: usize,
    seed: u64,
    /// Make mutants only in lines changed since this revision.
    since: Option<String>,
    area: Option<String>,
}

/// A mutant.
#[derive(Clone, Debug)]
pub(crate) struct Mutant {
    krate: String,
    file: String,
    site: MutationSite,
}

/// Runs `cargo xtask mutants`.
///
/// # Errors
/// The arguments are wrong, the mutants cannot be built, or tests detect fewer mutants than an area's bound requires.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let options = parse(args)?;
    let folder = target().join("mutants");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut mutants = choose(&options)?;
    let plan = format!("{options:?} {}", fingerprint(&mutants));
    let state = RunState::of(folder, &plan)?;
    for refused in state.lines("refused.txt") {
        mutants.remove(&refused.parse().unwrap_or(usize::MAX));
    }
    workspace::copy()?;
    let chosen: BTreeSet<usize> = mutants.keys().copied().collect();
    let programs = workspace::build(&mut mutants, &PACKAGES)?;
    for refused in chosen.iter().filter(|number| !mutants.contains_key(number)) {
        state.note("refused.txt", &refused.to_string())?;
    }
    let suites = test_cases::all(&programs, &state)?;
    let results = judge_all(&mutants, &suites, &state)?;
    report(&mutants, &results, &state)
}

fn parse(args: &[String]) -> Result<MutantOptions, String> {
    let mut options = MutantOptions {
        count: 500,
        seed: 1,
        since: None,
        area: None,
    };
    let mut args = args.iter();
    while let Some(option) = args.next() {
        let value = args.next().ok_or(USAGE)?;
        match option.as_str() {
            "--count" => options.count = value.parse().map_err(|_| USAGE)?,
            "--seed" => options.seed = value.parse().map_err(|_| USAGE)?,
            "--since" => options.since = Some(value.clone()),
            "--area" => options.area = Some(value.clone()),
            _ => return Err(USAGE.into()),
        }
    }
    match &options.area {
        Some(area) if AREAS.iter().all(|known| known.krate != area) => {
            Err(format!("there is no area {area:?}; {USAGE}"))
        }
        _ => Ok(options),
    }
}

/// Chooses the mutants. Each area gets its share.
fn choose(options: &MutantOptions) -> Result<BTreeMap<usize, Mutant>, String> {
    let changed = options.since.as_deref().map(changed_lines).transpose()?;
    let mut chosen: Vec<Mutant> = Vec::new();
    let mut rng = Rng(options.seed);
    for area in &AREAS {
        if options.area.as_ref().is_some_and(|only| only != area.krate) {
            continue;
        }
        let mut all = Vec::new();
        for path in area.paths {
            let path = root().join(format!("crates/{}/src", area.krate)).join(path);
            find(&path, area.krate, &mut all)?;
        }
        if let Some(changed) = &changed {
            all.retain(|mutant| {
                let lines = changed.get(&mutant.file);
                lines.is_some_and(|lines| {
                    lines
                        .range(mutant.site.line..=mutant.site.last_line)
                        .next()
                        .is_some()
                })
            });
        }
        let share = match options.area {
            Some(_) => options.count,
            None => options.count * area.share / SHARES,
        };
        chosen.extend(pick(all, share, &mut rng));
    }
    println!("{} mutants are chosen", chosen.len());
    Ok(chosen.into_iter().enumerate().collect())
}

/// Adds all mutants of a file, or of all files in a folder.
fn find(path: &Path, krate: &str, all: &mut Vec<Mutant>) -> Result<(), String> {
    for path in files_below(path)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let file = path.strip_prefix(root()).unwrap_or(&path).to_string_lossy();
        let checks = CHECKING.contains(&&*name)
            || name.ends_with("_tests.rs")
            || ["/tests/", "/sim_test/"]
                .iter()
                .any(|part| file.contains(part));
        if checks || !is_rust(&path) {
            continue;
        }
        let source = fs::read_to_string(&path).map_err(|e| format!("{file}: {e}"))?;
        let sites = sites::sites(&source).map_err(|e| format!("{file}: {e}"))?;
        all.extend(sites.into_iter().map(|site| Mutant {
            krate: krate.into(),
            file: file.clone().into_owned(),
            site,
        }));
    }
    Ok(())
}

/// Picks `count` of `all`, taking one mutant of each operator in turn.
fn pick(all: Vec<Mutant>, count: usize, rng: &mut Rng) -> Vec<Mutant> {
    let mut by_operator: BTreeMap<Operator, Vec<Mutant>> = BTreeMap::new();
    for mutant in all {
        by_operator
            .entry(mutant.site.operator)
            .or_default()
            .push(mutant);
    }
    by_operator.values_mut().for_each(|list| rng.shuffle(list));
    let mut picked: Vec<Mutant> = Vec::new();
    while picked.len() < count && by_operator.values().any(|list| !list.is_empty()) {
        for operator in Operator::ALL {
            let next = by_operator.get_mut(&operator).and_then(Vec::pop);
            let Some(next) = next.filter(|_| picked.len() < count) else {
                continue;
            };
            let crosses =
                |other: &Mutant| other.file == next.file && next.site.crosses(&other.site);
            if !picked.iter().any(crosses) {
                picked.push(next);
            }
        }
    }
    picked
}

/// Returns the lines changed since a revision, by file.
fn changed_lines(since: &str) -> Result<HashMap<String, BTreeSet<usize>>, String> {
    let mut git = Command::new("git");
    git.args(["diff", "-U0", since, "--", "crates"])
        .current_dir(root());
    let mut changed: HashMap<String, BTreeSet<usize>> = HashMap::new();
    let mut file = String::new();
    for line in quietly(&mut git)?.lines() {
        if let Some(name) = line.strip_prefix("+++ b/") {
            file = name.into();
        } else if let Some(hunk) = line.strip_prefix("@@ ") {
            let added = hunk.split(' ').find_map(|part| part.strip_prefix('+'));
            let (from, count) = added
                .unwrap_or("0,0")
                .split_once(',')
                .unwrap_or((added.unwrap_or("0"), "1"));
            let (from, count) = (from.parse().unwrap_or(0), count.parse().unwrap_or(0));
            changed
                .entry(file.clone())
                .or_default()
                .extend(from..from + count);
        }
    }
    Ok(changed)
}

/// Runs a command without showing its output, and returns its standard output.
fn quietly(command: &mut Command) -> Result<String, String> {
    let told = format!("{command:?}");
    let done = command
        .output()
        .map_err(|e| format!("{told} cannot be run: {e}"))?;
    match done.status.success() {
        true => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
        false => Err(format!("{told} ended with {}", done.status)),
    }
}

/// Returns a hash of all mutants' places and texts. It changes when a mutated source changes.
fn fingerprint(mutants: &BTreeMap<usize, Mutant>) -> String {
    let all: String = mutants
        .values()
        .map(|m| format!("{}:{}:{}\n", m.file, m.site.line, m.site.text))
        .collect();
    format!(
        "{:016x}",
        all.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    )
}

/// State that lets an interrupted run continue.
pub(crate) struct RunState {
    folder: PathBuf,
}

impl RunState {
    /// Opens the state of this plan. Deletes the state of any other plan.
    fn of(folder: PathBuf, plan: &str) -> Result<RunState, String> {
        let state = RunState { folder };
        if state.lines("plan.txt").first().map(String::as_str) != Some(plan) {
            for file in [
                "plan.txt",
                "refused.txt",
                "reached.tsv",
                "passed.tsv",
                "results.tsv",
            ] {
                let _ = fs::remove_file(state.folder.join(file));
            }
            state.note("plan.txt", plan)?;
        }
        Ok(state)
    }

    pub(crate) fn lines(&self, file: &str) -> Vec<String> {
        let text = fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        text.lines().map(String::from).collect()
    }

    pub(crate) fn note(&self, file: &str, line: &str) -> Result<(), String> {
        let mut options = fs::OpenOptions::new();
        let opened = options
            .append(true)
            .create(true)
            .open(self.folder.join(file));
        opened
            .and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()))
            .map_err(|e| format!("{file}: {e}"))
    }
}

/// Result for a mutant: the test that detected it, if any, the time in seconds, and the number of tests that reach it.
struct MutantOutcome {
    by: Option<String>,
    seconds: f64,
    reached_by: usize,
}

/// Runs each mutant against the tests that reach it.
fn judge_all(
    mutants: &BTreeMap<usize, Mutant>,
    suites: &[TestCase],
    state: &RunState,
) -> Result<BTreeMap<usize, MutantOutcome>, String> {
    let mut results = BTreeMap::new();
    for line in state.lines("results.tsv") {
        let mut fields = line.split('\t');
        let number = fields.next().and_then(|n| n.parse().ok());
        let by = fields.next().filter(|by| *by != "-").map(String::from);
        let seconds = fields.next().and_then(|s| s.parse().ok()).unwrap_or(0.0);
        let reached_by = fields.next().and_then(|n| n.parse().ok()).unwrap_or(0);
        // A mutant that has survived is tried again when more tests reach it.
        let is_known =
            |number: &usize| by.is_some() || reached_by >= reaching(*number, suites).count();
        if let Some(number) = number.filter(is_known) {
            results.insert(
                number,
                MutantOutcome {
                    by,
                    seconds,
                    reached_by,
                },
            );
        }
    }
    let mut passed: HashMap<usize, usize> = HashMap::new();
    for line in state.lines("passed.tsv") {
        let fields: Vec<usize> = line.split('\t').flat_map(str::parse).collect();
        // A count of passed tests is valid only as long as the same number of tests reach the mutant.
        if let [number, count, reached_by] = fields[..]
            && reached_by == reaching(number, suites).count()
        {
            passed.insert(number, count);
        }
    }
    let progress = Mutex::new(Progress { results, passed });
    for patience in ROUNDS {
        judge_round(mutants, suites, state, &progress, patience)?;
    }
    Ok(progress.into_inner().expect("no holder panics").results)
}

/// What is known of the mutants so far.
struct Progress {
    results: BTreeMap<usize, MutantOutcome>,
    /// Number of tests that each mutant has passed.
    passed: HashMap<usize, usize>,
}

/// Runs each undecided mutant against the tests that it has not passed yet, until `patience` is used up.
fn judge_round(
    mutants: &BTreeMap<usize, Mutant>,
    suites: &[TestCase],
    state: &RunState,
    progress: &Mutex<Progress>,
    patience: Duration,
) -> Result<(), String> {
    let lock = || progress.lock().expect("no holder panics");
    let known = lock();
    let is_left = |number: &usize| !known.results.contains_key(number);
    let left: Vec<usize> = mutants.keys().copied().filter(is_left).collect();
    drop(known);
    println!(
        "{} mutants are undecided; each gets {} s of tests",
        left.len(),
        patience.as_secs()
    );
    in_parallel(left, test_cases::JOBS, |_, number| {
        let skip = lock().passed.get(&number).copied().unwrap_or(0);
        let (count, outcome) = judge(number, suites, skip, patience);
        let reached_by = reaching(number, suites).count();
        state.note("passed.tsv", &format!("{number}\t{count}\t{reached_by}"))?;
        lock().passed.insert(number, count);
        let Some(outcome) = outcome else {
            return Ok(());
        };
        let by = outcome.by.as_deref().unwrap_or("-");
        let seconds = outcome.seconds;
        state.note(
            "results.tsv",
            &format!("{number}\t{by}\t{seconds:.1}\t{reached_by}"),
        )?;
        let (file, site) = (&mutants[&number].file, &mutants[&number].site);
        println!(
            "{number}: {} at {file}:{}: {by}",
            site.operator.name(),
            site.line
        );
        lock().results.insert(number, outcome);
        Ok(())
    })
}

/// Runs a mutant against the tests that reach it, except for the first `skip` of them. Returns the number of tests it
/// has passed in total, and the outcome. There is no outcome if `patience` is used up first.
fn judge(
    number: usize,
    suites: &[TestCase],
    skip: usize,
    patience: Duration,
) -> (usize, Option<MutantOutcome>) {
    let began = Instant::now();
    let reached_by = reaching(number, suites).count();
    let mut passed = skip;
    let outcome = |by: Option<String>| {
        Some(MutantOutcome {
            by,
            seconds: began.elapsed().as_secs_f64(),
            reached_by,
        })
    };
    for suite in reaching(number, suites).skip(skip) {
        if began.elapsed() > patience {
            return (passed, None);
        }
        match suite.run(Some(number)) {
            TestVerdict::Passed => {}
            // A test that also fails without the mutant, or does not fail every time, proves nothing.
            TestVerdict::Failed if suite.run(None) != TestVerdict::Passed => {}
            TestVerdict::Failed if suite.run(Some(number)) == TestVerdict::Passed => {
                println!("{number}: {} fails with it, but not every time", suite.name);
            }
            TestVerdict::Failed => return (passed, outcome(Some(suite.name.clone()))),
            TestVerdict::Hung => return (passed, outcome(Some(format!("{} (hangs)", suite.name)))),
        }
        passed += 1;
    }
    (passed, outcome(None))
}

/// Returns the tests that reach a mutant, the fastest first.
fn reaching(number: usize, suites: &[TestCase]) -> impl Iterator<Item = &TestCase> {
    suites
        .iter()
        .filter(move |suite| suite.reaches.contains(&number))
}

/// Returns the reason why a mutant may survive, if `xtask/mutants.toml` lists it.
fn excused(known: &[toml::Table], mutant: &Mutant) -> Option<String> {
    let is = |entry: &toml::Table, name: &str, value: &str| {
        entry.get(name).and_then(toml::Value::as_str) == Some(value)
    };
    let entry = known.iter().find(|entry| {
        is(entry, "file", &mutant.file)
            && is(entry, "function", &mutant.site.function)
            && is(entry, "operator", mutant.site.operator.name())
            && is(entry, "text", &mutant.site.text)
    })?;
    entry
        .get("reason")
        .and_then(toml::Value::as_str)
        .map(String::from)
}

fn excuses() -> Result<Vec<toml::Table>, String> {
    let path = root().join("xtask/mutants.toml");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let table: toml::Table = text
        .parse()
        .map_err(|e| format!("{}: {e}", path.display()))?;
    let list = table.get("survivor").and_then(toml::Value::as_array);
    Ok(list
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.as_table().cloned())
        .collect())
}

/// Prints the report and writes it to a file. Returns an error if an area is below its bound.
fn report(
    mutants: &BTreeMap<usize, Mutant>,
    results: &BTreeMap<usize, MutantOutcome>,
    state: &RunState,
) -> Result<(), String> {
    let known = excuses()?;
    let mut text = String::from(
        "| area | mutants | caught | survived, known | survived | score | bound |\n|---|---|---|---|---|---|---|\n",
    );
    let (mut below, mut survivors, mut caught_by) = (Vec::new(), String::new(), BTreeMap::new());
    for area in &AREAS {
        let of_area = mutants
            .iter()
            .filter(|(_, mutant)| mutant.krate == area.krate);
        let (mut made, mut caught, mut equivalent) = (0, 0, 0);
        for (number, mutant) in of_area {
            made += 1;
            let Some(outcome) = results.get(number) else {
                continue;
            };
            if let Some(by) = &outcome.by {
                caught += 1;
                *caught_by
                    .entry(by.split("::").next().unwrap_or(by).to_owned())
                    .or_insert(0) += 1;
                continue;
            }
            let reason = excused(&known, mutant);
            equivalent += usize::from(reason.is_some());
            let reached = outcome.reached_by;
            let site = &mutant.site;
            let _ = writeln!(
                survivors,
                "* {} at {}:{} in `{}`: `{}`; {reached} tests reach it, {:.0} s. {}",
                site.operator.name(),
                mutant.file,
                site.line,
                site.function,
                site.text,
                outcome.seconds,
                reason.unwrap_or_else(|| "**A test is missing.**".into())
            );
        }
        if made == 0 {
            continue;
        }
        let score = 100.0 * caught as f64 / (made - equivalent).max(1) as f64;
        let survived = made - caught - equivalent;
        let _ = writeln!(
            text,
            "| {} | {made} | {caught} | {equivalent} | {survived} | {score:.1} % | {} % |",
            area.krate, area.bound
        );
        if score < area.bound as f64 {
            below.push(area.krate);
        }
    }
    let by: Vec<String> = caught_by
        .iter()
        .map(|(by, count)| format!("{by} {count}"))
        .collect();
    let _ = writeln!(
        text,
        "\nCaught by tests of: {}.\n\nSurvivors:\n\n{survivors}",
        by.join(", ")
    );
    println!("{text}");
    let path = state.folder.join("report.md");
    fs::write(&path, &text).map_err(|e| format!("{}: {e}", path.display()))?;
    println!("{}", path.display());
    match below.is_empty() {
        true => Ok(()),
        false => Err(format!("below the bound: {}", below.join(", "))),
    }
}

/// A random number generator with a seed.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % end as u64).unwrap_or(0)
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_area_has_mutants_in_each_of_its_paths() {
        for area in &AREAS {
            for path in area.paths {
                let folder = root().join(format!("crates/{}/src", area.krate));
                let mut all = Vec::new();
                find(&folder.join(path), area.krate, &mut all).unwrap();
                assert!(!all.is_empty(), "{}: {path}", area.krate);
            }
        }
    }
}
