//! Commands for maintainers: `cargo xtask suites`, `cargo xtask gate` and others.
//!
//! A *suite* is a check that `cargo test` cannot make. It needs system packages, which it installs, or a real server
//! and more time. A *gate* is a suite at the size that a release requires.
//!
//! ```text
//!   cargo xtask suites [NAME...]    runs all suites, or those named; for CI
//!   cargo xtask gate [NAME...]      the same at release size; takes about an hour
//!   cargo xtask suites soak [--seconds N]   checks that memory does not grow in a long run; only if it is named
//!   cargo xtask mutants [OPTIONS]   makes small wrong edits and reports which test detects each
//!   cargo xtask behaviour FILE      records the store's behaviour, to compare two versions
//!   cargo xtask tidy                checks rules of style that no compiler checks
//!   cargo xtask dependencies        checks every dependency against deny.toml
//!   cargo xtask sbom                prints the program's components, as CycloneDX
//!   cargo xtask release             builds the release files into target/dist
//!   cargo xtask release-check       builds a release in two folders: the bytes must be equal
//! ```
//!
//! A suite that cannot run counts as failed. The last line shows how many suites passed and failed. The exit code is 1
//! if one failed and 2 if the command line is wrong.
#![forbid(unsafe_code)]

mod advisories;
mod behaviour;
mod check;
mod clients;
mod compare;
mod contest;
mod debian_source;
mod dependencies;
mod disks;
mod filesystems;
mod fuzz;
mod guest;
mod hostile;
mod libfabric;
mod media_errors;
mod memcached;
mod model;
mod mutants;
mod packages;
mod pibench;
mod redis_tests;
mod release;
mod roce;
mod run;
mod sanitize;
mod serving;
mod soak;
mod tidy;
mod wire;
mod zero_cost;

use std::process::ExitCode;
use std::time::Instant;

/// Size of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunSize {
    Suite,
    Gate,
}

/// Function that runs a suite.
type SuiteFn = fn(RunSize) -> Result<(), String>;

/// A suite: its name, the property that it checks, and its function.
struct Suite(&'static str, &'static str, SuiteFn);

const SUITES: &[Suite] = &[
    Suite(
        "long-tests",
        "the tests pass that take too long for every `cargo test`",
        check::long_tests,
    ),
    Suite(
        "redis-clients",
        "Redis's own clients work unmodified",
        clients::run,
    ),
    Suite(
        "packages",
        "packages of four languages that use Redis work unmodified",
        packages::run,
    ),
    Suite(
        "redis-compare",
        "random requests get the replies that redis-server gives",
        compare::run,
    ),
    Suite(
        "redis-tests",
        "Redis's own tests pass, except for those of a list with reasons",
        redis_tests::run,
    ),
    Suite(
        "memcached",
        "memcached's own tests pass, and no acknowledged write is lost by a kill",
        memcached::run,
    ),
    Suite(
        "hostile",
        "the most expensive requests of one client do not delay another client",
        hostile::run,
    ),
    Suite(
        "kill",
        "no acknowledged write is lost when the server is killed",
        check::kill,
    ),
    Suite(
        "histories",
        "all replies of servers that are killed, or whose power is cut, are explained by one order of the requests",
        check::histories,
    ),
    Suite(
        "soak",
        "memory, tombstones and write amplification of a loaded server level off",
        soak::run_size,
    ),
    Suite(
        "disks",
        "no write is lost when a disk fails, the server is killed and the page cache is dropped",
        disks::run,
    ),
    Suite(
        "media-errors",
        "a read error of the device is reported with its offset, and all other keys are served",
        media_errors::run,
    ),
    Suite(
        "crash",
        "no acknowledged write is lost by a power cut",
        check::crash,
    ),
    Suite(
        "lazy",
        "no acknowledged write is lost in any image that a power cut can leave",
        check::lazy,
    ),
    Suite(
        "faults",
        "the explorer finds every known bug and every omitted flush",
        check::faults,
    ),
    Suite(
        "judge",
        "every engine of the contest answers correctly and has the published costs",
        check::judge,
    ),
    Suite(
        "schedules",
        "threads are linearizable, also across crashes",
        check::schedules,
    ),
    Suite(
        "tree",
        "the tree loses no write when any node dies, and known faults are found",
        check::tree,
    ),
    Suite(
        "cluster",
        "calls on a tree are linearizable when its processes are killed and paused",
        check::cluster,
    ),
    Suite(
        "tree-hosts",
        "a tree between hosts: the page's commands, all mixes, and hosts that are cut off",
        check::tree_hosts,
    ),
    Suite(
        "tree-libfabric",
        "a tree over libfabric has the guarantees of the fabric when its processes are killed and paused",
        libfabric::run,
    ),
    Suite(
        "tree-roce",
        "a tree over RDMA, by the kernel's soft-RoCE in a virtual machine, when its processes are killed",
        roce::run,
    ),
    Suite(
        "tree-c",
        "a program in C uses the tree through its header",
        |_| run::cargo(&["test", "-p", "farbank-tree-c"]),
    ),
    Suite(
        "guest",
        "no acknowledged write is lost when a virtual machine loses power",
        guest::run,
    ),
    Suite(
        "file-systems",
        "each file system is accepted, warned about or refused, as documented",
        filesystems::run,
    ),
    Suite(
        "miri",
        "Miri finds no undefined behaviour in the code that it can interpret",
        sanitize::miri,
    ),
    Suite(
        "asan",
        "no access is out of bounds or after a free, and no memory leaks",
        sanitize::asan,
    ),
    Suite("tsan", "there are no data races", sanitize::tsan),
    Suite(
        "loom",
        "epochs and tables are correct in every interleaving and under weak memory",
        model::loom,
    ),
    Suite(
        "advisories",
        "no dependency has a known vulnerability",
        advisories::run,
    ),
    Suite("fuzz", "no input from outside causes a crash", fuzz::run),
    Suite(
        "zero-cost",
        "the simulator adds no cost to real media",
        zero_cost::run,
    ),
    Suite(
        "contest-cpp",
        "an engine in C++ passes the contest's judge, and wrong engines fail",
        contest::run,
    ),
    Suite(
        "pibench",
        "the benchmark measures PiBench plug-ins, and our tables work as a plug-in",
        pibench::run,
    ),
];

/// Suites that do not use the release binary. The release binary is built for all others.
const WITHOUT_BINARY: [&str; 15] = [
    "advisories",
    "long-tests",
    "faults",
    "schedules",
    "tree",
    "tree-c",
    "tree-libfabric",
    "tree-roce",
    "miri",
    "asan",
    "tsan",
    "loom",
    "fuzz",
    "zero-cost",
    "contest-cpp",
];

const USAGE: &str = "usage: cargo xtask suites [NAME...] | suites soak [--seconds N] | gate [NAME...] | mutants [OPTIONS] | behaviour FILE | tidy | dependencies | sbom | release | \
                     release-check | deb";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let size = match args.first().map(String::as_str) {
        Some("dependencies") => return ended(dependencies::check()),
        Some("sbom") => return ended(dependencies::sbom().map(|list| println!("{list}"))),
        Some("release") => return ended(release::run()),
        Some("deb") => return ended(release::deb()),
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
    if size == RunSize::Suite && names.first().is_some_and(|name| name == "soak") && names.len() > 1
    {
        return match soak_seconds(&names[1..]) {
            Ok(seconds) => {
                let built = run::build_farbank();
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
        return wrong(&format!(
            "there is no suite {name:?}; the suites are {known}"
        ));
    }
    let failed = run_suites(size, names);
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Parses the arguments of `suites soak`. Returns the duration in seconds.
fn soak_seconds(args: &[String]) -> Result<u64, String> {
    let seconds = match args {
        [option, seconds] if option == "--seconds" => seconds.parse().ok(),
        _ => None,
    };
    let least = soak::SECONDS_MIN;
    let seconds = seconds.filter(|seconds| *seconds >= least);
    seconds.ok_or(format!(
        "usage: cargo xtask suites soak [--seconds N], N >= {least}"
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

/// Runs the named suites, or all. Lists the failures again at the end, with their reasons. Returns the number of
/// failures.
fn run_suites(size: RunSize, names: &[String]) -> usize {
    let chosen = SUITES
        .iter()
        .filter(|suite| names.is_empty() || names.iter().any(|n| n == suite.0));
    let mut passed = 0;
    let mut failed = Vec::new();
    let ours = |name: &String| WITHOUT_BINARY.contains(&name.as_str());
    let built = match !names.is_empty() && names.iter().all(ours) {
        true => Ok(()),
        false => run::build_farbank(),
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
