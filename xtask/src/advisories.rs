//! Suite `advisories`: the complete checks of cargo-deny, which include known vulnerabilities.
//!
//! The suite downloads the RustSec database from github.com. If cargo-deny is missing, it builds it, which takes
//! minutes. `cargo xtask dependencies` runs the checks that need neither.

use std::process::Command;

use crate::RunSize;
use crate::run::{cargo, root, succeed, works};

pub(crate) fn run(_size: RunSize) -> Result<(), String> {
    if !works("cargo", &["deny", "--version"]) {
        cargo(&["install", "--locked", "cargo-deny"])?;
    }
    succeed(
        Command::new("cargo")
            .args(["deny", "check"])
            .current_dir(root()),
    )
}
