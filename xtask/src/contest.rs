//! Suite `contest-cpp`: runs the contest's judge on a C++ engine that implements the contest's header.

use std::path::Path;
use std::process::{Command, Output};

use crate::RunSize;
use crate::run::{beside_farbank, install, root, succeed, target, without_cargo_variables, works};

/// Largest number of judge runs in which a wrong engine must fail once. Which writes survive a kill is random: one of
/// the wrong engines survives 60 kills once in 5,000 runs.
const TRIES: u64 = 3;

/// Variants of the example engine: the value of `WRONG`, and the check that must fail. 0 is the correct engine.
const ENGINES: [(&str, Option<&str>); 4] = [
    ("0", None),
    ("1", Some("answers wrong")),
    ("2", Some("kills: values that were never stored")),
    ("3", Some("kills: values that were never stored")),
];

pub(crate) fn run(size: RunSize) -> Result<(), String> {
    let tools = ["g++", "make"];
    let missing: Vec<&str> = tools
        .into_iter()
        .filter(|tool| !works(tool, &["--version"]))
        .collect();
    if !missing.is_empty() {
        install(&missing)?;
    }
    let arguments: &[&str] = match size {
        RunSize::Suite => &["--scale", "1/16384", "--rounds", "3", "--kills", "60"],
        RunSize::Gate => &["--scale", "1/1024", "--kills", "200"],
    };
    for (wrong, told) in ENGINES {
        let folder = target().join("contest-cpp").join(wrong);
        let mut make = Command::new("make");
        without_cargo_variables(&mut make);
        make.arg("-C").arg(root().join("bindings/c"));
        make.args(["example".into(), format!("WRONG={wrong}")]);
        let packages = beside_farbank("farbank-judge-c").join(" ");
        make.arg(format!("PACKAGES={packages}"));
        succeed(
            make.arg(format!("OUT={}", folder.display()))
                .env("CARGO_TARGET_DIR", target()),
        )?;
        let program = folder.join("judge");
        match told {
            None => expect_pass(&program, arguments)?,
            Some(what) => expect_failure(&program, arguments, what)?,
        }
    }
    Ok(())
}

/// Checks that the engine passes.
fn expect_pass(program: &Path, arguments: &[&str]) -> Result<(), String> {
    let output = judge(program, arguments, 1)?;
    match output.status.code() {
        Some(0) => Ok(()),
        _ => Err(format!(
            "the judge must pass the correct engine, but ended with {}",
            output.status
        )),
    }
}

/// Checks that the engine fails the check `what` in one of the runs.
fn expect_failure(program: &Path, arguments: &[&str], what: &str) -> Result<(), String> {
    for seed in 1..=TRIES {
        let output = judge(program, arguments, seed)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut lines = text.lines();
        let said = lines.any(|line| line.contains(what) && line.ends_with("VIOLATES ITS BOUND"));
        match (output.status.code(), said) {
            (Some(1), true) => return Ok(()),
            (Some(0), _) => {}
            _ => {
                let ended = output.status;
                return Err(format!(
                    "the engine must fail the check {what:?}, but the judge ended with {ended}"
                ));
            }
        }
    }
    Err(format!(
        "the engine must fail the check {what:?}, but passed {TRIES} times"
    ))
}

/// Runs the judge and shows its output.
fn judge(program: &Path, arguments: &[&str], seed: u64) -> Result<Output, String> {
    let seed = seed.to_string();
    println!(
        "$ {} {} --seed {seed}",
        program.display(),
        arguments.join(" ")
    );
    let mut command = Command::new(program);
    let output = command.args(arguments).args(["--seed", &seed]).output();
    let output = output.map_err(|e| format!("{} cannot be run: {e}", program.display()))?;
    print!("{}", String::from_utf8_lossy(&output.stdout));
    print!("{}", String::from_utf8_lossy(&output.stderr));
    Ok(output)
}
