//! Suite `advisories`: all of cargo-deny, known vulnerabilities included.
//!
//! It downloads the RustSec database from github.com, and builds cargo-deny if it is missing, which takes minutes.
//! What needs neither is `cargo xtask dependencies`.

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
