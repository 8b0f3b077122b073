//! Suite `contest-cpp`: an engine in C++, written against the contest's header, under our judge.

use std::path::Path;
use std::process::{Command, Output};

use crate::RunSize;
use crate::run::{install, root, succeed, target, works};

/// How often the judge may try to find out a wrong engine. What a kill keeps is drawn by lot: one of the engines gets
/// through 60 kills once in 5,000 times.
const TRIES: u64 = 3;

/// The example engine as it is, and with what is wrong with it, and what the judge must say then.
const ENGINES: [(&str, Option<&str>); 4] = [
    ("0", None),
    ("1", Some("answers wrong")),
    ("2", Some("kills: values nobody stored")),
    ("3", Some("kills: values nobody stored")),
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
        make.arg("-C").arg(root().join("bindings/c"));
        make.args(["example".into(), format!("WRONG={wrong}")]);
        succeed(
            make.arg(format!("OUT={}", folder.display()))
                .env("CARGO_TARGET_DIR", target()),
        )?;
        let program = folder.join("judge");
        match told {
            None => sound(&program, arguments)?,
            Some(what) => found_out(&program, arguments, what)?,
        }
    }
    Ok(())
}

/// The judge passes the engine.
fn sound(program: &Path, arguments: &[&str]) -> Result<(), String> {
    let output = judge(program, arguments, 1)?;
    match output.status.code() {
        Some(0) => Ok(()),
        _ => Err(format!("a sound engine ended with {}", output.status)),
    }
}

/// The judge fails the engine over `what`, in one of the tries.
fn found_out(program: &Path, arguments: &[&str], what: &str) -> Result<(), String> {
    for seed in 1..=TRIES {
        let output = judge(program, arguments, seed)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut lines = text.lines();
        let said = lines.any(|line| line.contains(what) && line.ends_with("NOT what it must be"));
        match (output.status.code(), said) {
            (Some(1), true) => return Ok(()),
            (Some(0), _) => {}
            _ => {
                let ended = output.status;
                return Err(format!(
                    "an engine that must fail over {what:?} ended with {ended}"
                ));
            }
        }
    }
    Err(format!(
        "an engine that must fail over {what:?} passed {TRIES} times"
    ))
}

/// Runs the judge, and shows what it says.
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
