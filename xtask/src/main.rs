//! Maintainers' commands: `cargo xtask suites` and `cargo xtask gate`.
//!
//! A *suite* is a check that `cargo test` cannot make: it needs system packages, which it installs,
//! or a real server and more time. A *gate* is a suite at the size a release asks for.
//!
//! ```text
//!   cargo xtask suites [NAME...]     all of them, or those named; for CI
//!   cargo xtask gate [NAME...]      the same at release size; takes about an hour
//!   cargo xtask suites soak [--seconds N]   what must not grow in a long run; only if it is named
//!   cargo xtask mutants [OPTIONS]   small wrong edits, and which test objects to each
//!   cargo xtask behaviour FILE      what the store does, to compare two versions
//!   cargo xtask tidy                rules of style that no compiler knows
//!   cargo xtask dependencies        every dependency is as deny.toml asks
//!   cargo xtask sbom                prints what the program is made of, as CycloneDX
//!   cargo xtask release             builds the program to give away, into target/dist
//!   cargo xtask release-check       builds it in two folders: the bytes must be the same
//! ```
//!
//! A suite that cannot run has failed. The last line says how many passed and failed, and the exit
//! code is 1 if one failed, 2 if the command line is wrong.
#![forbid(unsafe_code)]

mod advisories;
mod behaviour;
mod check;
mod clients;
mod compare;
mod contest;
mod dependencies;
mod disks;
mod filesystems;
mod fuzz;
mod guest;
mod hostile;
mod media_errors;
mod memcached;
mod model;
mod mutants;
mod pibench;
mod release;
mod run;
mod sanitize;
mod serving;
mod soak;
mod tidy;
mod wire;
mod zero_cost;

use std::process::ExitCode;
use std::time::Instant;

/// How large a run is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunSize {
    Suite,
    Gate,
}

/// What a suite does.
type SuiteFn = fn(RunSize) -> Result<(), String>;

/// A suite: its name, what it shows, and how.
struct Suite(&'static str, &'static str, SuiteFn);

const SUITES: &[Suite] = &[
    Suite(
        "redis-clients",
        "Redis's own clients work unmodified",
        clients::run,
    ),
    Suite(
        "redis-compare",
        "random requests get the replies that redis-server gives",
        compare::run,
    ),
    Suite(
        "memcached",
        "memcached's own tests pass, and nothing acknowledged is lost when it is killed",
        memcached::run,
    ),
    Suite(
        "hostile",
        "the worst requests of one client do not keep another waiting",
        hostile::run,
    ),
    Suite(
        "kill",
        "nothing acknowledged is lost when the server is killed",
        check::kill,
    ),
    Suite(
        "histories",
        "what clients see of servers that are killed has an order that explains it",
        check::histories,
    ),
    Suite(
        "disks",
        "nothing is lost when a disk fails, the server is killed and the page cache dropped",
        disks::run,
    ),
    Suite(
        "media-errors",
        "what a device cannot read is an error with its place, and the rest is served",
        media_errors::run,
    ),
    Suite(
        "crash",
        "nothing acknowledged is lost when the power goes",
        check::crash,
    ),
    Suite(
        "lazy",
        "nothing is lost however a power cut looks to recovery",
        check::lazy,
    ),
    Suite(
        "faults",
        "the explorer objects to every known bug and every flush left out",
        check::faults,
    ),
    Suite(
        "judge",
        "every engine of the contest answers right and costs what was published",
        check::judge,
    ),
    Suite(
        "schedules",
        "threads are linearizable, with crashes between",
        check::schedules,
    ),
    Suite(
        "tree",
        "the tree loses nothing whoever dies, and what must fail does",
        check::tree,
    ),
    Suite(
        "guest",
        "nothing acknowledged is lost when a machine loses its power",
        guest::run,
    ),
    Suite(
        "file-systems",
        "each file system is accepted, warned about or refused, as documented",
        filesystems::run,
    ),
    Suite(
        "miri",
        "no undefined behaviour where it can be interpreted",
        sanitize::miri,
    ),
    Suite(
        "asan",
        "no byte is touched that is not ours, none is leaked",
        sanitize::asan,
    ),
    Suite("tsan", "threads order what they share", sanitize::tsan),
    Suite(
        "loom",
        "epochs and tables hold in every interleaving and under weak memory",
        model::loom,
    ),
    Suite(
        "advisories",
        "no dependency is known to be vulnerable",
        advisories::run,
    ),
    Suite("fuzz", "no bytes of others do harm", fuzz::run),
    Suite(
        "zero-cost",
        "the simulator costs real media nothing",
        zero_cost::run,
    ),
    Suite(
        "contest-cpp",
        "an engine in C++ for the contest is judged, and a wrong one found out",
        contest::run,
    ),
    Suite(
        "pibench",
        "plug-ins for PiBench are measured, and our tables are one",
        pibench::run,
    ),
];

/// Suites that build what they run themselves; the others run the release binary.
const WITHOUT_BINARY: [&str; 11] = [
    "advisories",
    "faults",
    "schedules",
    "tree",
    "miri",
    "asan",
    "tsan",
    "loom",
    "fuzz",
    "zero-cost",
    "contest-cpp",
];

const USAGE: &str = "usage: cargo xtask suites [NAME...] | suites soak [--seconds N] | gate [NAME...] | mutants [OPTIONS] | behaviour FILE | tidy | dependencies | sbom | release | \
                     release-check";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let size = match args.first().map(String::as_str) {
        Some("dependencies") => return ended(dependencies::check()),
        Some("sbom") => return ended(dependencies::sbom().map(|list| println!("{list}"))),
        Some("release") => return ended(release::run()),
        Some("release-check") => return ended(release::check()),
        Some("behaviour") => {
            return match &args[1..] {
                [file] => ended(behaviour::run(file)),
                _ => wrong("usage: cargo xtask behaviour FILE"),
            };
        }
        Some("tidy") => return ended(tidy::run()),
        Some("mutants") => return ended(mutants::run(&args[1..])),
        Some("suites") => RunSize::Suite,
        Some("gate") => RunSize::Gate,
        _ => return wrong(USAGE),
    };
    let names = &args[1..];
    if size == RunSize::Suite && names.first().is_some_and(|name| name == "soak") {
        return match soak_seconds(&names[1..]) {
            Ok(seconds) => {
                let built = run::cargo(&["build", "--release", "--package", "farbank-cli"]);
                ended(built.and_then(|()| soak::run(seconds)))
            }
            Err(why) => wrong(&why),
        };
    }
    if let Some(name) = names
        .iter()
        .find(|name| SUITES.iter().all(|suite| suite.0 != **name))
    {
        let known: Vec<&str> = SUITES.iter().map(|suite| suite.0).collect();
        let known = known.join(", ");
        return wrong(&format!("there is no suite {name:?}; there are {known}"));
    }
    let failed = run_suites(size, names);
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// How long a soak runs.
fn soak_seconds(args: &[String]) -> Result<u64, String> {
    let seconds = match args {
        [] => Some(soak::SECONDS),
        [option, seconds] if option == "--seconds" => seconds.parse().ok(),
        _ => None,
    };
    let least = soak::SECONDS_MIN;
    let seconds = seconds.filter(|seconds| *seconds >= least);
    seconds.ok_or(format!(
        "usage: cargo xtask suites soak [--seconds N], of {least} at least"
    ))
}

fn ended(done: Result<(), String>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the suites named, or all, and says again at the end which failed, and of what. Returns how many.
fn run_suites(size: RunSize, names: &[String]) -> usize {
    let chosen = SUITES
        .iter()
        .filter(|suite| names.is_empty() || names.iter().any(|n| n == suite.0));
    let mut passed = 0;
    let mut failed = Vec::new();
    let ours = |name: &String| WITHOUT_BINARY.contains(&name.as_str());
    let built = match !names.is_empty() && names.iter().all(ours) {
        true => Ok(()),
        false => run::cargo(&["build", "--release", "--package", "farbank-cli"]),
    };
    for Suite(name, shows, run) in chosen {
        println!("\n-- {name}: {shows}");
        let start = Instant::now();
        let result = built.clone().and_then(|()| run(size));
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(()) => {
                passed += 1;
                println!("-- {name}: passed in {seconds:.1} s");
            }
            Err(why) => {
                println!("-- {name}: FAILED after {seconds:.1} s: {why}");
                failed.push((name, why));
            }
        }
    }
    println!();
    for (name, why) in &failed {
        println!("-- FAILED: {name}: {why}");
    }
    println!("{passed} passed, {} failed", failed.len());
    failed.len()
}

fn wrong(why: &str) -> ExitCode {
    eprintln!("error: {why}");
    ExitCode::from(2)
}
