//! The suite `tree-libfabric`: the fabric and the tree over libfabric, with the library of the distribution.
//!
//! The programs here are built with the feature `libfabric`, in a folder of their own.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::RunSize;
use crate::run::{cargo_command, install, install_ip, output, succeed, target};

/// A header of the package libfabric-dev.
const HEADER: &str = "/usr/include/rdma/fabric.h";

/// Folder of the programs that are built with libfabric.
fn folder() -> PathBuf {
    target().join("libfabric")
}

fn cargo(args: &[&str]) -> Command {
    let mut command = cargo_command();
    command.env("CARGO_TARGET_DIR", folder()).args(args);
    command
}

/// Builds the release binary with libfabric. Returns its path.
pub(crate) fn build() -> Result<PathBuf, String> {
    let build = ["build", "--release", "-p", "farbank-cli"];
    succeed(cargo(&build).args(["--features", "libfabric"]))?;
    Ok(folder().join("release/farbank"))
}

/// Compares the declared interface with the headers, tests the guarantees of the fabric over `tcp;ofi_rxm`, runs all mixes between
/// network namespaces, and kills, pauses and cuts off the processes of a tree.
pub(crate) fn run(size: RunSize) -> Result<(), String> {
    install_ip()?;
    if !Path::new(HEADER).exists() {
        install(&["libfabric1", "libfabric-dev"])?;
    }
    let mut tests = cargo(&["test", "-p", "farbank-fabric", "--features", "libfabric"]);
    succeed(tests.args(["--test", "libfabric"]))?;
    let farbank = build()?;
    let mut measured = Command::new(&farbank);
    measured.args([
        "bench",
        "tree",
        "--fabric",
        "libfabric",
        "--system",
        "sherman",
    ]);
    output(measured.args(["--entries", "20000", "--window-us", "300000"]))?;
    let cycles = if size == RunSize::Gate { "300" } else { "30" };
    let killed = || {
        let mut command = Command::new(&farbank);
        command.args(["check", "cluster", "--fabric", "libfabric"]);
        command.args(["--cycles", cycles]);
        command
    };
    output(&mut killed())?;
    output(killed().args(["--hosts", "--threads", "2"]))?;
    let mut mixes = cargo(&["test", "-p", "farbank-cli", "--features", "libfabric"]);
    mixes.env("FARBANK_TEST_HOSTS", "1");
    mixes.args(["--test", "hosts", "--", "every_result_of_every_mix"]);
    succeed(&mut mixes)
}
