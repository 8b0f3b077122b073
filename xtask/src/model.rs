//! The suite that tries every interleaving of small models: `crates/pm/tests/loom.rs`.

use std::process::Command;

use crate::RunSize;
use crate::run::{root, succeed, target};

/// Preemptions an execution may have.
fn preemptions(size: RunSize) -> &'static str {
    match size {
        RunSize::Suite => "3",
        RunSize::Gate => "5",
    }
}

/// Epochs and tables, exhaustively up to that many preemptions; and the controls are refuted.
pub(crate) fn loom(size: RunSize) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(root())
        .env("RUSTFLAGS", "--cfg loom")
        .env("LOOM_MAX_PREEMPTIONS", preemptions(size))
        .env("CARGO_TARGET_DIR", target().join("loom"))
        .args(["test", "--release", "--package", "farbank-pm"])
        .args(["--test", "loom", "--", "--show-output"]);
    succeed(&mut command)
}
