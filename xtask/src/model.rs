//! Suite `loom`: runs every interleaving of small models, `crates/pm/tests/loom.rs`.

use crate::RunSize;
use crate::run::{cargo_command, succeed, target};

/// Returns the largest number of preemptions per execution.
fn preemptions(size: RunSize) -> &'static str {
    match size {
        RunSize::Suite => "3",
        RunSize::Gate => "5",
    }
}

/// Checks epochs and tables exhaustively, up to a number of preemptions. The tests also check that loom rejects the
/// controls, which are incorrect models.
pub(crate) fn loom(size: RunSize) -> Result<(), String> {
    let mut command = cargo_command();
    command
        .env("RUSTFLAGS", "--cfg loom")
        .env("LOOM_MAX_PREEMPTIONS", preemptions(size))
        .env("CARGO_TARGET_DIR", target().join("loom"))
        .args(["test", "--release", "--package", "farbank-pm"])
        .args(["--test", "loom", "--", "--show-output"]);
    succeed(&mut command)
}
