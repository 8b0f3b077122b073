//! Suites that run tests with detectors of memory errors: Miri, AddressSanitizer, ThreadSanitizer.
//!
//! ```text
//!   miri   no system calls of ours: pm's epochs and tables, and small tests of the engine on the simulator
//!   asan   real media: mappings, files, the engine, the server; also detects leaks
//!   tsan   the same with real threads; the standard library is rebuilt with instrumentation
//! ```
//!
//! Each suite needs a nightly toolchain, which it installs, and builds into a folder of its own.
//! `docs/testing/sanitizers.md` says what they cannot detect.

use std::path::PathBuf;
use std::process::Command;

use crate::RunSize;
use crate::run::{root, succeed, target, works};

/// The build target. It must be given explicitly, because otherwise build scripts and macros are instrumented as well.
pub(crate) const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Tests of pm that Miri can run and in which it may find errors. Tests of the media need mappings and files, and the
/// simulator and the model contain no unsafe code.
const IN_MIRI: [&str; 3] = ["epoch::", "fault::", "grow_table::"];

/// Tests that are skipped under a sanitizer. Some take minutes and find nothing new: they check thousands of damaged
/// pools or images, and a few tests of each kind remain. Others test how a signal ends the process, but sanitizers
/// handle signals themselves.
const SKIPPED: [&str; 9] = [
    "a_hundred_flipped",
    "a_flipped_record_byte",
    "a_flipped_byte_of_the_index_snapshot",
    "replaced_lines",
    "replaced_sectors",
    "replaced_segments",
    "a_reader_gets_the_same_results_from_lazy",
    "a_fault_outside_of_every_pool",
    "a_sigbus_sent_by_a_process_still_ends",
];

/// Returns a cargo command of the nightly toolchain that builds into `folder`.
pub(crate) fn nightly(folder: &str) -> Command {
    let mut command = Command::new("rustup");
    command
        .args(["run", "nightly", "cargo"])
        .current_dir(root());
    // The other toolchain must not inherit the variables that this process got from its own cargo.
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN", "RUSTFLAGS"] {
        command.env_remove(name);
    }
    command.env("CARGO_TARGET_DIR", target().join(folder));
    command
}

/// Installs the nightly toolchain with the components that the suites need, unless it is installed.
pub(crate) fn install_nightly() -> Result<(), String> {
    let miri = works("rustup", &["run", "nightly", "cargo", "miri", "--version"]);
    if miri && has_sources() {
        return Ok(());
    }
    let install = ["toolchain", "install", "nightly", "--profile", "minimal"];
    let components = ["--component", "miri", "--component", "rust-src"];
    succeed(Command::new("rustup").args(install).args(components))
}

/// Returns whether the standard library's sources are installed, from which it is rebuilt.
fn has_sources() -> bool {
    let sysroot = Command::new("rustup")
        .args(["run", "nightly", "rustc", "--print", "sysroot"])
        .output();
    sysroot.is_ok_and(|found| {
        let sysroot = String::from_utf8_lossy(&found.stdout);
        let sources = "lib/rustlib/src/rust/library/Cargo.lock";
        PathBuf::from(sysroot.trim()).join(sources).is_file()
    })
}

/// Parameters for running tests with the nightly toolchain in one suite.
struct SanitizedTests {
    folder: &'static str,
    variables: &'static [(&'static str, &'static str)],
    arguments: &'static [&'static str],
    skipped: &'static [&'static [&'static str]],
}

/// Tests that are also skipped under ThreadSanitizer, under which each takes half a minute: one session fills or overwrites a pool, or one
/// client sends random input. Tests of several sessions, and others of a session beside the background cleaner, remain.
const SKIPPED_OF_ONE_SESSION: [&str; 5] = [
    "a_pool_that_was_overwritten_closes_with_a_snapshot",
    "a_worker_that_calls_prepare_is_refused_only_writes_that_do_not_fit",
    "uniform_updates_and_a_change_of_sizes_are_never_refused_while_the_data_fits",
    "after_one_delete_in_a_full_pool_a_value_of_the_same_size_is_taken",
    "random_input_gets_the_same_replies_for_every_split",
];

const MIRI: SanitizedTests = SanitizedTests {
    folder: "miri",
    // A new pool has a random id and a date.
    variables: &[("MIRIFLAGS", "-Zmiri-disable-isolation")],
    arguments: &["miri", "test", "--quiet"],
    skipped: &[],
};

/// Stack of a thread in bytes. Frames are several times larger under a sanitizer, and a script's JSON may be nested 1,000
/// levels deep.
const STACK: (&str, &str) = ("RUST_MIN_STACK", "16777216");

/// A report names source lines.
const LINE_TABLES: (&str, &str) = ("CARGO_PROFILE_DEV_DEBUG", "line-tables-only");

const ASAN: SanitizedTests = SanitizedTests {
    folder: "asan",
    variables: &[
        LINE_TABLES,
        ("RUSTFLAGS", "-Zsanitizer=address"),
        ("ASAN_OPTIONS", "detect_leaks=1:abort_on_error=1"),
        STACK,
    ],
    arguments: &["test", "--quiet", "--target", TRIPLE],
    skipped: &[&SKIPPED],
};

const TSAN: SanitizedTests = SanitizedTests {
    folder: "tsan",
    variables: &[
        LINE_TABLES,
        ("RUSTFLAGS", "-Zsanitizer=thread"),
        ("TSAN_OPTIONS", "halt_on_error=1"),
        STACK,
    ],
    arguments: &["test", "--quiet", "-Zbuild-std", "--target", TRIPLE],
    skipped: &[&SKIPPED, &SKIPPED_OF_ONE_SESSION],
};

/// Packages whose tests run under AddressSanitizer and ThreadSanitizer.
const REAL_PACKAGES: [&str; 3] = ["farbank-pm", "farbank-kv", "farbank-server"];

impl SanitizedTests {
    /// Runs tests of packages: of the given targets, those whose names contain one of `names`, or all. A gate runs
    /// the long tests too. Cargo chooses the features of a crate for all packages of a command, so with one command for several
    /// packages each crate is built once.
    fn run(
        &self,
        size: RunSize,
        packages: &[&str],
        targets: &[&str],
        names: &[&str],
    ) -> Result<(), String> {
        let mut command = nightly(self.folder);
        command.envs(self.variables.iter().copied());
        command.args(self.arguments);
        command.args(packages.iter().flat_map(|package| ["--package", *package]));
        command.args(targets).arg("--");
        if size == RunSize::Gate {
            command.arg("--include-ignored");
        }
        command.args(names);
        let skipped = self.skipped.iter().copied().flatten();
        let skips = skipped.flat_map(|name| ["--skip", *name]);
        succeed(command.args(skips))
    }
}

/// Runs tests of pm and small tests of the engine in Miri: undefined behaviour, leaks, races, weak memory.
pub(crate) fn miri(size: RunSize) -> Result<(), String> {
    install_nightly()?;
    MIRI.run(size, &["farbank-pm"], &["--lib"], &IN_MIRI)?;
    MIRI.run(size, &["farbank-pm"], &["--test", "arguments"], &[])?;
    MIRI.run(size, &["farbank-kv"], &["--test", "small"], &[])
}

/// Returns the options that choose the unit tests, and test programs by name.
fn unit_tests_and(programs: &[&'static str]) -> Vec<&'static str> {
    let programs = programs.iter().flat_map(|name| ["--test", *name]);
    ["--lib"].into_iter().chain(programs).collect()
}

/// Runs tests of real media, engine, damage and server under AddressSanitizer, with leak detection.
pub(crate) fn asan(size: RunSize) -> Result<(), String> {
    install_nightly()?;
    let tests = ["real", "arguments", "engine", "damage", "server"];
    ASAN.run(size, &REAL_PACKAGES, &unit_tests_and(&tests), &[])
}

/// Runs tests of pm, engine and server under ThreadSanitizer.
pub(crate) fn tsan(size: RunSize) -> Result<(), String> {
    install_nightly()?;
    let tests = ["real", "engine", "small", "server"];
    TSAN.run(size, &REAL_PACKAGES, &unit_tests_and(&tests), &[])
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{IN_MIRI, SKIPPED, SKIPPED_OF_ONE_SESSION};
    use crate::run::{files_below, is_rust, root};

    #[test]
    fn every_test_that_is_skipped_or_chosen_by_name_exists() {
        let files = files_below(&root().join("crates")).unwrap();
        let sources = files.iter().filter(|path| is_rust(path));
        let text: String = sources
            .map(|path| fs::read_to_string(path).unwrap())
            .collect();
        let functions = text
            .lines()
            .filter(|line| line.trim_start().starts_with("fn "));
        let lines: String = functions.collect();
        for name in SKIPPED.into_iter().chain(SKIPPED_OF_ONE_SESSION) {
            assert!(lines.contains(name), "no test is called {name}");
        }
        for module in IN_MIRI {
            let file = module.replace("::", ".rs");
            let text = fs::read_to_string(root().join("crates/pm/src").join(&file)).unwrap();
            assert!(
                text.contains("#[test]") || text.contains("mod tests"),
                "{file} has no test"
            );
        }
    }
}
