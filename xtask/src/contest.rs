//! Lane `contest-cpp`: an engine in C++, written against the contest's header, under our judge.

use std::path::Path;
use std::process::Command;

use crate::Size;
use crate::run::{install, root, succeed, target, works};

/// The example engine as it is, and with what is wrong with it, and what the judge must say then.
const ENGINES: [(&str, Option<&str>); 4] = [
    ("0", None),
    ("1", Some("answers wrong")),
    ("2", Some("kills: values nobody stored")),
    ("3", Some("kills: values nobody stored")),
];

pub(crate) fn run(size: Size) -> Result<(), String> {
    let tools = ["g++", "make"];
    let missing: Vec<&str> = tools
        .into_iter()
        .filter(|tool| !works(tool, &["--version"]))
        .collect();
    if !missing.is_empty() {
        install(&missing)?;
    }
    let arguments: &[&str] = match size {
        Size::Lane => &["--scale", "1/16384", "--rounds", "3", "--kills", "60"],
        Size::Gate => &["--scale", "1/1024", "--kills", "200"],
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
        judge(&folder.join("judge"), arguments, told)?;
    }
    Ok(())
}

/// Runs the judge: it passes, or fails over what is `told`.
fn judge(program: &Path, arguments: &[&str], told: Option<&str>) -> Result<(), String> {
    println!("$ {} {}", program.display(), arguments.join(" "));
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|e| format!("{} cannot be run: {e}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}{}", String::from_utf8_lossy(&output.stderr));
    let failed_over = |what| {
        let says = |line: &str| line.contains(what) && line.ends_with("NOT what it must be");
        text.lines().any(says)
    };
    match (told, output.status.code()) {
        (None, Some(0)) => Ok(()),
        (Some(what), Some(1)) if failed_over(what) => Ok(()),
        (None, _) => Err(format!("a sound engine ended with {}", output.status)),
        (Some(what), _) => Err(format!(
            "an engine that must fail over {what:?} ended with {}",
            output.status
        )),
    }
}
