//! Suite `redis-tests`: runs Redis 7.0.15's own TCL tests, from Debian's source package, on our binary.
//!
//! In *spawned* mode a test file starts `src/redis-server` with its own options. Here that is a script that runs our
//! binary under the name `redis-server`, with a small pool in the folder that the test has chosen. The gate also runs
//! the files in *external* mode, in which they use one server of `farbank serve`. The suite does not run redis-server
//! itself: `redis-compare` compares the replies of the two servers.
//!
//! `xtask/redis-tests/skipped.txt` lists the tests that are not run, each with its reason. The suite fails if a test
//! fails that is not listed, if an entry names no test, and if an entry's reason is that commands are missing which the
//! server has by now. The gate runs each listed test alone and prints those that pass.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use crate::RunSize;
use crate::debian_source;
use crate::run::{farbank, in_parallel, install, root, succeed, target, works};
use crate::serving::Serving;

/// SHA-256 of redis_7.0.15.orig.tar.gz.
const SHA256: &str = "4b1dc4ee6d622a09fff9c6777191209750fb5e5a725ef78ea012d6eef4c22982";

/// The test files, those that take longest first.
const FILES: &[&str] = &[
    "unit/hyperloglog",
    "unit/dump",
    "unit/expire",
    "unit/scripting",
    "unit/introspection",
    "unit/type/string",
    "unit/introspection-2",
    "unit/latency-monitor",
    "unit/other",
    "unit/scan",
    "unit/functions",
    "unit/multi",
    "unit/slowlog",
    "unit/type/incr",
    "unit/keyspace",
    "unit/protocol",
    "unit/info",
    "unit/info-command",
    "unit/quit",
    "unit/bitops",
    "unit/bitfield",
    "unit/pubsub",
    "unit/pubsubshard",
    "unit/auth",
    "unit/acl",
    "unit/pause",
    "unit/tracking",
    "unit/maxmemory",
];

/// A part of `unit/scripting` outside any test that ends the whole file: it needs Redis's Lua debugger.
const DEBUGGER: &str =
    "    r script debug sync\n    r eval {return 'hello'} 0\n    r eval {return 'hello'} 0\n";

/// Runs of test files at a time.
const WORKERS: usize = 2;
/// Most seconds of a test file.
const SECONDS_MAX: &str = "300";
/// Tests with these tags are not run: they need replicas.
const TAGS: &str = "-needs:repl";

/// A test that is not run.
struct SkippedTest {
    file: String,
    name: String,
    reason: String,
}

impl SkippedTest {
    /// The commands whose absence is the reason.
    fn lacks(&self) -> Option<Vec<&str>> {
        let commands = self.reason.strip_prefix("lacks ")?;
        Some(commands.split(' ').collect())
    }
}

/// Parses the list: lines `[FILE]`, and after each of them lines `TEST | REASON`. A line that begins with `#` is a
/// comment.
fn parse_skipped(text: &str) -> Result<Vec<SkippedTest>, String> {
    let (mut file, mut skipped) = (None, Vec::new());
    for (at, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            file = Some(name);
            continue;
        }
        let wrong = || format!("skipped.txt: line {}: expected TEST | REASON", at + 1);
        let (name, reason) = line.rsplit_once(" | ").ok_or_else(wrong)?;
        skipped.push(SkippedTest {
            file: file.ok_or_else(wrong)?.to_owned(),
            name: name.to_owned(),
            reason: reason.to_owned(),
        });
    }
    Ok(skipped)
}

/// Results of a test file.
#[derive(Default)]
struct FileResults {
    passed: usize,
    /// Names of the tests that were skipped because they are listed.
    skipped: BTreeSet<String>,
    /// How many tests were skipped: a file can run tests of the same name.
    skips: usize,
    /// Descriptions of failed tests.
    failed: Vec<String>,
}

impl FileResults {
    /// Parses what the tests print.
    fn parse(text: &str) -> FileResults {
        let mut results = FileResults::default();
        let (mut ended, mut last) = (false, "");
        for line in text.lines() {
            let line = line.trim_end();
            if line.contains("The End") {
                break;
            }
            if line.starts_with("[ok]: ") {
                results.passed += 1;
            } else if let Some(name) = line.strip_prefix("[skip]: ") {
                results.skipped.insert(name.to_owned());
                results.skips += 1;
            } else if line.starts_with("[err]: ") || line.starts_with("[exception]: ") {
                results.failed.push(line.to_owned());
            } else if last.starts_with("[err]: ") || last.starts_with("[exception]: ") {
                // The second line of a failure is what was expected and found.
                results.failed.push(format!("    {line}"));
            } else if line.contains(" done]: ") {
                ended = true;
            }
            last = line;
        }
        if !ended {
            results
                .failed
                .push("the file did not run to its end".into());
        }
        results
    }
}

/// What a run of test files uses.
enum TestedServer {
    /// Servers that the tests start.
    Spawned,
    /// The server at this port.
    External(String),
}

pub(crate) fn run(size: RunSize) -> Result<(), String> {
    packages()?;
    let source = target().join("redis-tests/source");
    debian_source::unpack("redis", &source, "tests/unit", Some(SHA256))?;
    let list = root().join("xtask/redis-tests/skipped.txt");
    let list = fs::read_to_string(&list).map_err(|e| format!("{}: {e}", list.display()))?;
    let skipped = parse_skipped(&list)?;
    let mut wrong = stale(&skipped)?;
    let program = target().join("release/farbank");
    let folders = (0..WORKERS).map(|worker| folder(&source, worker, &program));
    let folders = folders.collect::<Result<Vec<_>, _>>()?;
    wrong.extend(run_files(&folders, &skipped)?);
    if size == RunSize::Gate {
        wrong.extend(run_external(&folders[0], &skipped)?);
        print_passing(&folders[0], &skipped)?;
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!("{} problems:\n{}", wrong.len(), wrong.join("\n"))),
    }
}

fn packages() -> Result<(), String> {
    let mut missing = Vec::new();
    if !works("sh", &["-c", "echo 'exit 0' | tclsh"]) {
        missing.push("tcl");
    }
    if !works("redis-cli", &["--version"]) {
        missing.push("redis-tools");
    }
    match missing.is_empty() {
        true => Ok(()),
        false => install(&missing),
    }
}

/// Creates the folder from which a worker runs tests. `program` is run under the name `redis-server`.
fn folder(source: &Path, worker: usize, program: &Path) -> Result<PathBuf, String> {
    let folder = target().join(format!("redis-tests/{worker}"));
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    match fs::remove_dir_all(&folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    let programs = folder.join("src");
    fs::create_dir_all(&programs).map_err(failed)?;
    let parts = ["tests", "utils", "redis.conf"].map(|part| source.join(part));
    succeed(Command::new("cp").arg("-r").args(parts).arg(&folder))?;
    let scripting = folder.join("tests/unit/scripting.tcl");
    let text = fs::read_to_string(&scripting).map_err(failed)?;
    if !text.contains(DEBUGGER) {
        return Err(format!(
            "{}: the part about the debugger is not found",
            scripting.display()
        ));
    }
    fs::write(&scripting, text.replace(DEBUGGER, "")).map_err(failed)?;
    for tool in ["redis-cli", "redis-benchmark"] {
        symlink(Path::new("/usr/bin").join(tool), programs.join(tool)).map_err(failed)?;
    }
    let named = folder.join("redis-server");
    symlink(program, &named).map_err(failed)?;
    // The pools of many servers are small and never synced: the tests end no server in a way that needs it.
    let text = format!(
        "#!/bin/sh\nexec {} \"$@\" --size 64mb --max-size 1gb --sync never\n",
        named.display()
    );
    let script = programs.join("redis-server");
    fs::write(&script, text).map_err(failed)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    Ok(folder)
}

/// Runs a test file from `folder`. `choice`: which of its tests, as arguments of the test program.
fn run_file(
    folder: &Path,
    worker: usize,
    server: &TestedServer,
    file: &str,
    choice: &[String],
) -> Result<FileResults, String> {
    let mut command = Command::new("timeout");
    command.args([SECONDS_MAX, "tclsh", "tests/test_helper.tcl"]);
    command.args(["--single", file, "--durable", "--tags", TAGS]);
    let base_port = (23_000 + 1000 * worker).to_string();
    command.args(["--clients", "1", "--baseport", &base_port]);
    command.args(["--portcount", "400"]);
    if let TestedServer::External(port) = server {
        command.args(["--host", "127.0.0.1", "--port", port]);
    }
    command
        .args(choice)
        .current_dir(folder)
        .stdin(Stdio::null());
    let output = command
        .output()
        .map_err(|e| format!("tclsh cannot be run: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let plain = without_colours(&text);
    let log = folder.join(format!("{}.log", file.replace('/', "-")));
    fs::write(&log, &plain).map_err(|e| format!("{}: {e}", log.display()))?;
    Ok(FileResults::parse(&plain))
}

/// Removes escape sequences that colour a terminal's text.
fn without_colours(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(part.split_once('m').map_or(part, |(_, rest)| rest));
    }
    plain
}

/// Writes the names of the skipped tests of `file`, and returns the arguments that skip them.
fn skip_choice(folder: &Path, skipped: &[SkippedTest], file: &str) -> Result<Vec<String>, String> {
    let names: Vec<&str> = skipped
        .iter()
        .filter(|test| test.file == file)
        .map(|test| test.name.as_str())
        .collect();
    let path = folder.join("skipped");
    fs::write(&path, names.join("\n")).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(vec!["--skipfile".into(), path.display().to_string()])
}

/// Runs all files in spawned mode. Returns descriptions of what is wrong.
fn run_files(folders: &[PathBuf], skipped: &[SkippedTest]) -> Result<Vec<String>, String> {
    let all = Mutex::new(BTreeMap::new());
    in_parallel(FILES, folders.len(), |worker, file| {
        let folder = &folders[worker];
        let choice = skip_choice(folder, skipped, file)?;
        let results = run_file(folder, worker, &TestedServer::Spawned, file, &choice)?;
        all.lock().expect("no holder panics").insert(file, results);
        Ok(())
    })?;
    let all = all.into_inner().expect("no holder panics");
    let (mut wrong, mut passed, mut known) = (Vec::new(), 0, 0);
    for (file, results) in &all {
        let listed = skipped.iter().filter(|test| test.file == **file);
        for test in listed {
            if !results.skipped.contains(&test.name) {
                wrong.push(format!(
                    "{file}: skipped.txt: there is no test {:?}",
                    test.name
                ));
            }
        }
        let (own, left_out) = (results.passed, results.skips);
        println!("{file}: {own} pass, {left_out} are skipped");
        wrong.extend(results.failed.iter().map(|text| format!("{file}: {text}")));
        passed += own;
        known += left_out;
    }
    println!("{passed} tests pass, {known} are skipped");
    Ok(wrong)
}

/// Runs all files against one server.
fn run_external(folder: &Path, skipped: &[SkippedTest]) -> Result<Vec<String>, String> {
    let (mut wrong, mut passed) = (Vec::new(), 0);
    for file in FILES {
        let server = serve()?;
        let choice = skip_choice(folder, skipped, file)?;
        let tested = TestedServer::External(server.port.clone());
        let results = run_file(folder, 0, &tested, file, &choice)?;
        passed += results.passed;
        let failed = results.failed.iter();
        wrong.extend(failed.map(|text| format!("{file}, external: {text}")));
    }
    println!("{passed} tests pass against one server");
    Ok(wrong)
}

/// Starts a server as the tests expect one that they have not started.
fn serve() -> Result<Serving, String> {
    let mut command = farbank();
    command.args(["serve", "--port", "0", "--memcached-port", "off"]);
    command.args(["--pool", "none", "--enable-debug-command", "yes"]);
    Serving::start(command.current_dir(root()), "redis://")
}

/// Returns the entries whose reason is the absence of commands that the server has.
fn stale(skipped: &[SkippedTest]) -> Result<Vec<String>, String> {
    let server = serve()?;
    let mut client = Command::new("redis-cli");
    client.args(["-p", &server.port, "COMMAND", "LIST"]);
    let list = client
        .output()
        .map_err(|e| format!("redis-cli cannot be run: {e}"))?;
    let list = String::from_utf8_lossy(&list.stdout);
    let present: BTreeSet<&str> = list.lines().collect();
    if !present.contains("get") {
        return Err("COMMAND LIST does not list GET".into());
    }
    let is_stale = |test: &&SkippedTest| {
        test.lacks()
            .is_some_and(|commands| commands.iter().all(|c| present.contains(c)))
    };
    let stale = skipped.iter().filter(is_stale).map(|test| {
        let (file, name, reason) = (&test.file, &test.name, &test.reason);
        format!("{file}: skipped.txt: {name:?} {reason}, which the server has")
    });
    Ok(stale.collect())
}

/// Runs each skipped test alone, and prints the names of those that pass: their entries may be superfluous.
fn print_passing(folder: &Path, skipped: &[SkippedTest]) -> Result<(), String> {
    for test in skipped.iter().filter(|test| test.lacks().is_none()) {
        let choice = ["--only".into(), test.name.clone()];
        let results = run_file(folder, 0, &TestedServer::Spawned, &test.file, &choice)?;
        if results.failed.is_empty() && results.passed > 0 {
            println!("{}: {:?} passes alone", test.file, test.name);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_names_tests_of_known_files_once_with_their_reasons() {
        let skipped = parse_skipped(include_str!("../redis-tests/skipped.txt")).unwrap();
        let mut seen = BTreeSet::new();
        for test in &skipped {
            assert!(FILES.contains(&test.file.as_str()), "{}", test.file);
            assert!(seen.insert((&test.file, &test.name)), "{}", test.name);
            assert!(!test.reason.is_empty(), "{}", test.name);
        }
    }

    #[test]
    fn results_are_counted_up_to_the_end() {
        let text = "\u{1b}[0;32m[ok]: a (1 ms)\n\u{1b}[0m[skip]: b\n[err]: c in tests/x.tcl\nExpected 1\n\
                    [1/1 done]: unit/x (0 seconds)\n\n   The End\n[ok]: d";
        let results = FileResults::parse(&without_colours(text));
        assert_eq!(results.passed, 1);
        assert_eq!(results.skipped, BTreeSet::from(["b".to_owned()]));
        assert_eq!(
            results.failed,
            ["[err]: c in tests/x.tcl", "    Expected 1"]
        );
    }
}
