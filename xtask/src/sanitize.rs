//! Suites that run tests where wrong use of memory shows: Miri, AddressSanitizer, ThreadSanitizer.
//!
//! ```text
//!   miri   no system calls of our own: pm's epochs and tables, the engine in little on the simulator
//!   asan   everything real: mappings, files, the engine, the server; and what is never freed
//!   tsan   the same with real threads, the standard library rebuilt to be watched too
//! ```
//!
//! Each needs a nightly toolchain, which it installs, and builds into a folder of its own. What they
//! cannot see is in `docs/testing.md`.

use std::path::PathBuf;
use std::process::Command;

use crate::RunSize;
use crate::run::{root, succeed, target, works};

/// Named, or build scripts and macros would be sanitized as well.
pub(crate) const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// pm's tests that an interpreter can run and that may show something: the media map memory and files, and nothing in the
/// simulator and the model is unsafe.
const IN_MIRI: [&str; 4] = ["epoch::", "fault::", "suite::", "table::"];

/// Tests that show nothing new under a sanitizer and take minutes: they judge thousands of damaged pools or of
/// images; a few of each kind remain. And tests of how a signal ends the process: sanitizers handle signals
/// themselves.
const SKIPPED: [&str; 8] = [
    "a_hundred_flipped",
    "a_flipped_record_byte",
    "a_flipped_byte_of_the_index_snapshot",
    "something_else",
    "a_sound_superblock",
    "a_reader_sees_lazily",
    "a_fault_outside_of_every_pool",
    "a_sigbus_sent_by_a_process_still_ends",
];

/// A cargo command of the nightly toolchain, building into `folder`.
pub(crate) fn nightly(folder: &str) -> Command {
    let mut command = Command::new("rustup");
    command
        .args(["run", "nightly", "cargo"])
        .current_dir(root());
    // What this process got from its own cargo and toolchain is not for the other one.
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN", "RUSTFLAGS"] {
        command.env_remove(name);
    }
    command.env("CARGO_TARGET_DIR", target().join(folder));
    command
}

/// Installs the nightly toolchain with what the suites need of it, unless it is there.
pub(crate) fn install_nightly() -> Result<(), String> {
    let miri = works("rustup", &["run", "nightly", "cargo", "miri", "--version"]);
    if miri && has_sources() {
        return Ok(());
    }
    let install = ["toolchain", "install", "nightly", "--profile", "minimal"];
    let components = ["--component", "miri", "--component", "rust-src"];
    succeed(Command::new("rustup").args(install).args(components))
}

/// Whether the standard library's source is there, from which it is built again.
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

/// How the nightly toolchain runs tests in one suite.
struct SanitizedTests {
    folder: &'static str,
    variables: &'static [(&'static str, &'static str)],
    arguments: &'static [&'static str],
    skipped: &'static [&'static str],
}

const MIRI: SanitizedTests = SanitizedTests {
    folder: "miri",
    // A new pool has a random id and a date.
    variables: &[("MIRIFLAGS", "-Zmiri-disable-isolation")],
    arguments: &["miri", "test", "--quiet"],
    skipped: &[],
};

const ASAN: SanitizedTests = SanitizedTests {
    folder: "asan",
    variables: &[
        ("RUSTFLAGS", "-Zsanitizer=address"),
        ("ASAN_OPTIONS", "detect_leaks=1:abort_on_error=1"),
    ],
    arguments: &["test", "--quiet", "--target", TRIPLE],
    skipped: &SKIPPED,
};

const TSAN: SanitizedTests = SanitizedTests {
    folder: "tsan",
    variables: &[
        ("RUSTFLAGS", "-Zsanitizer=thread"),
        ("TSAN_OPTIONS", "halt_on_error=1"),
    ],
    arguments: &["test", "--quiet", "-Zbuild-std", "--target", TRIPLE],
    skipped: &SKIPPED,
};

impl SanitizedTests {
    /// Runs tests of a package: of these targets, those whose names have one of `names` in them, or all.
    fn run(&self, package: &str, targets: &[&str], names: &[&str]) -> Result<(), String> {
        let mut command = nightly(self.folder);
        command.envs(self.variables.iter().copied());
        command.args(self.arguments).args(["--package", package]);
        command.args(targets).arg("--").args(names);
        let skips = self.skipped.iter().flat_map(|name| ["--skip", *name]);
        succeed(command.args(skips))
    }
}

/// pm and the engine in little, interpreted: undefined behaviour, leaks, races, weak memory.
pub(crate) fn miri(_size: RunSize) -> Result<(), String> {
    install_nightly()?;
    MIRI.run("farbank-pm", &["--lib"], &IN_MIRI)?;
    MIRI.run("farbank-pm", &["--test", "arguments"], &[])?;
    MIRI.run("farbank-kv", &["--test", "small"], &[])
}

/// Real media, engine, damage and server with every access checked; and nothing leaks.
pub(crate) fn asan(_size: RunSize) -> Result<(), String> {
    install_nightly()?;
    let media = ["--lib", "--test", "real", "--test", "arguments"];
    ASAN.run("farbank-pm", &media, &[])?;
    let engine = ["--lib", "--test", "engine", "--test", "damage"];
    ASAN.run("farbank-kv", &engine, &[])?;
    ASAN.run("farbank-server", &["--lib", "--tests"], &[])
}

/// Threads of pm, engine and server, every access checked for an order with every other.
pub(crate) fn tsan(_size: RunSize) -> Result<(), String> {
    install_nightly()?;
    TSAN.run("farbank-pm", &["--lib", "--test", "real"], &[])?;
    let engine = ["--lib", "--test", "engine", "--test", "small"];
    TSAN.run("farbank-kv", &engine, &[])?;
    TSAN.run("farbank-server", &["--lib", "--tests"], &[])
}
