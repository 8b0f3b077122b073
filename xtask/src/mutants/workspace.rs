//! Builds a copy of the workspace that contains all chosen mutants.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::sites::{self, MutationSite};
use super::{Mutant, quietly};
use crate::run::{cargo_command, root, target};

/// Largest number of attempts to compile. Each leaves out the mutants that could not be compiled before.
const ROUNDS: usize = 30;

/// Source of the switch module that each crate of the copy gets. A run selects a mutant by `FARBANK_MUTANT`. With
/// `FARBANK_MUTANTS_REACHED` it appends the numbers of the mutants that it reaches to a file.
const SWITCH: &str = r#"//! Selects the mutant that runs.
use std::io::Write;
use std::ops::Add;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU8, Ordering};

static CHOSEN: AtomicU32 = AtomicU32::new(u32::MAX);
static REACHED: OnceLock<Option<std::fs::File>> = OnceLock::new();
static SEEN: [AtomicU8; 8192] = [const { AtomicU8::new(0) }; 8192];
/// No mutant is selected, and reached mutants are not recorded.
const NONE: u32 = u32::MAX - 1;
/// Reached mutants are recorded.
const NOTE: u32 = u32::MAX - 2;

#[inline]
pub(crate) fn on(number: u32) -> bool {
    match CHOSEN.load(Ordering::Relaxed) {
        NONE => false,
        chosen if chosen < NOTE => chosen == number,
        _ => ask(number),
    }
}

#[cold]
fn ask(number: u32) -> bool {
    let file = REACHED.get_or_init(|| {
        let path = std::env::var_os("FARBANK_MUTANTS_REACHED")?;
        std::fs::OpenOptions::new().append(true).create(true).open(path).ok()
    });
    if let Some(mut file) = file.as_ref() {
        CHOSEN.store(NOTE, Ordering::Relaxed);
        if SEEN[number as usize].swap(1, Ordering::Relaxed) == 0 {
            let _ = file.write_all(format!("{number}\n").as_bytes());
        }
        return false;
    }
    let chosen = std::env::var("FARBANK_MUTANT").ok().and_then(|n| n.parse().ok()).unwrap_or(NONE);
    CHOSEN.store(chosen, Ordering::Relaxed);
    chosen == number
}

pub(crate) fn lt<T: PartialOrd + ?Sized>(number: u32, a: &T, b: &T) -> bool {
    if on(number) { a <= b } else { a < b }
}
pub(crate) fn le<T: PartialOrd + ?Sized>(number: u32, a: &T, b: &T) -> bool {
    if on(number) { a < b } else { a <= b }
}
pub(crate) fn gt<T: PartialOrd + ?Sized>(number: u32, a: &T, b: &T) -> bool {
    if on(number) { a >= b } else { a > b }
}
pub(crate) fn ge<T: PartialOrd + ?Sized>(number: u32, a: &T, b: &T) -> bool {
    if on(number) { a > b } else { a >= b }
}
pub(crate) fn plus<T: From<u8> + Add<Output = T>>(number: u32, value: T) -> T {
    if on(number) { value + T::from(1) } else { value }
}
"#;

/// Returns the source of a function whose ticket replaces that of an omitted drain. The path depends on the crate.
fn durable(krate: &str) -> String {
    let path = match krate {
        "pm" => "crate::medium",
        _ => "farbank_pm",
    };
    format!("pub(crate) fn durable() -> {path}::Ticket {{ {path}::Ticket::DURABLE }}\n")
}

/// Returns the copy's folder.
pub(super) fn folder() -> PathBuf {
    target().join("mutants/workspace")
}

fn cargo() -> Command {
    let mut command = cargo_command();
    command
        .current_dir(folder())
        .env("CARGO_TARGET_DIR", target().join("mutants/build"))
        .env("RUSTFLAGS", "-Awarnings");
    command
}

/// Copies the workspace's files that git tracks, with uncommitted edits. Leaves files with mutants to [`build`]. Writes
/// only files that have changed, because otherwise cargo would rebuild them.
pub(super) fn copy() -> Result<(), String> {
    let mutated = mutated_before();
    let files = quietly(Command::new("git").args(["ls-files"]).current_dir(root()))?;
    for file in files.lines().filter(|file| !mutated.contains(*file)) {
        let (from, to) = (root().join(file), folder().join(file));
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).map_err(|e| format!("{}: {e}", parent.display()))?;
        }
        let source = fs::read(&from).ok();
        if source != fs::read(&to).ok() {
            match source {
                Some(bytes) => fs::write(&to, bytes),
                None => fs::remove_file(&to),
            }
            .map_err(|e| format!("{file}: {e}"))?;
        }
    }
    Ok(())
}

/// Returns the files in which this run or an earlier one made mutants.
fn mutated_before() -> BTreeSet<String> {
    let list = fs::read_to_string(folder().join("mutated.txt")).unwrap_or_default();
    list.lines().map(String::from).collect()
}

/// Writes the mutants into the copy and builds its tests. Removes mutants that cannot be compiled from `mutants`.
/// Returns the test programs, with the folders that they run in.
pub(super) fn build(
    mutants: &mut BTreeMap<usize, Mutant>,
    packages: &[&str],
) -> Result<Vec<(PathBuf, PathBuf)>, String> {
    let crates: BTreeSet<String> = mutants
        .values()
        .map(|mutant| mutant.krate.clone())
        .collect();
    for krate in crates {
        let source = folder().join(format!("crates/{krate}/src"));
        let switch = format!("{SWITCH}{}", durable(&krate));
        write(&source.join("mutant_switch.rs"), &switch)?;
    }
    for round in 1..=ROUNDS {
        write_mutants(mutants)?;
        println!("round {round}: compiling {} mutants", mutants.len());
        let (succeeded, messages) = on_packages(&["check", "--tests", "--keep-going"], packages)?;
        if succeeded {
            return programs(packages);
        }
        let refused = refused(mutants, &messages)?;
        println!("round {round}: {} cannot be compiled", refused.len());
        for number in refused {
            mutants.remove(&number);
        }
    }
    Err(format!(
        "some mutants still cannot be compiled after {ROUNDS} rounds"
    ))
}

/// Runs cargo on packages of the copy. Returns whether it succeeded, and its messages.
fn on_packages(command: &[&str], packages: &[&str]) -> Result<(bool, Vec<Value>), String> {
    let mut cargo = cargo();
    cargo.args(command).arg("--message-format=json");
    for package in packages {
        cargo.args(["--package", package]);
    }
    let done = cargo.stderr(Stdio::null()).output();
    let done = done.map_err(|e| format!("cargo cannot be run: {e}"))?;
    let lines = String::from_utf8_lossy(&done.stdout);
    let messages = lines
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    Ok((done.status.success(), messages.collect()))
}

/// Builds the tests and returns the test programs.
fn programs(packages: &[&str]) -> Result<Vec<(PathBuf, PathBuf)>, String> {
    println!("building the tests");
    let (succeeded, messages) = on_packages(&["test", "--no-run"], packages)?;
    match succeeded {
        true => Ok(messages.iter().filter_map(program).collect()),
        false => {
            Err("cargo check of the mutants succeeds, but the build of the tests fails".into())
        }
    }
}

/// Returns the test program, and the folder it runs in, from one of cargo's messages.
fn program(message: &Value) -> Option<(PathBuf, PathBuf)> {
    let is_test = message["profile"]["test"] == true;
    let file = message["executable"].as_str().filter(|_| is_test)?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    Some((file.into(), folder.into()))
}

fn write_mutants(mutants: &BTreeMap<usize, Mutant>) -> Result<(), String> {
    let mut files: BTreeMap<String, Vec<(usize, &MutationSite)>> = BTreeMap::new();
    for (number, mutant) in mutants {
        let lib = format!("crates/{}/src/lib.rs", mutant.krate);
        files.entry(lib).or_default();
        let of_file = files.entry(mutant.file.clone()).or_default();
        of_file.push((*number, &mutant.site));
    }
    // Files that had mutants and have none now get their original text.
    for file in mutated_before() {
        files.entry(file).or_default();
    }
    let all: Vec<&str> = files.keys().map(String::as_str).collect();
    write(&folder().join("mutated.txt"), &all.join("\n"))?;
    for (file, chosen) in files {
        let source = read(&root().join(&file))?;
        let mut text = sites::apply(&source, chosen.into_iter());
        if file.ends_with("/src/lib.rs") {
            text.push_str("\nmod mutant_switch;\n");
        }
        write(&folder().join(&file), &text)?;
    }
    Ok(())
}

/// Returns the mutants on the lines of the compiler's errors.
fn refused(mutants: &BTreeMap<usize, Mutant>, messages: &[Value]) -> Result<Vec<usize>, String> {
    let mut refused = Vec::new();
    let mut first = None;
    for message in messages {
        let error = &message["message"];
        if error["level"] != "error" {
            continue;
        }
        first = first.or_else(|| error["rendered"].as_str());
        let spans = error["spans"].as_array().into_iter().flatten();
        let mut found = Vec::new();
        for span in spans {
            let (Some(file), Some(from), Some(to)) = (
                span["file_name"].as_str(),
                span["line_start"].as_u64(),
                span["line_end"].as_u64(),
            ) else {
                continue;
            };
            let lines = usize::try_from(from).unwrap_or(0)..=usize::try_from(to).unwrap_or(0);
            let here = mutants.iter().filter(|(_, mutant)| {
                mutant.file == file
                    && *lines.start() <= mutant.site.last_line
                    && mutant.site.line <= *lines.end()
            });
            found.extend(here.map(|(number, _)| *number));
        }
        refused.extend(found);
    }
    refused.sort_unstable();
    refused.dedup();
    match (refused.is_empty(), first) {
        (true, why) => Err(format!(
            "the mutated workspace cannot be built, and no mutant is on a line with an error:\n{}",
            why.unwrap_or("(cargo printed no error)")
        )),
        (false, _) => Ok(refused),
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Writes a file if its text has changed.
fn write(path: &Path, text: &str) -> Result<(), String> {
    match read(path) {
        Ok(there) if there == text => Ok(()),
        _ => fs::write(path, text).map_err(|e| format!("{}: {e}", path.display())),
    }
}
