//! Suite `packages`: packages of four languages that use Redis run against a real server: locks, sessions, rate limits, caches,
//! message buses.
//!
//! ```text
//!   xtask/packages/LANGUAGE ──copy──▶ target/packages/LANGUAGE ──▶ installs the locked versions, runs the scenarios
//! ```
//!
//! The scenarios of a language are one program. It prints a line for each package. Languages are installed if they are missing.
//! Go and Java are large: only the gate runs them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::RunSize;
use crate::run::{farbank, files_below, install, root, succeed, target, works};
use crate::serving::Serving;

/// A language: its name, which is the name of its folder, and the function that runs its scenarios in a copy of the folder
/// against the server at a port.
struct Language {
    name: &'static str,
    /// Commands that must work, with their arguments, and the Debian packages that have them.
    needs: &'static [(&'static str, &'static [&'static str], &'static str)],
    /// Whether only the gate runs it.
    is_large: bool,
    run: fn(&Path, &str) -> Result<(), String>,
}

/// Debian's Python, for which its package of virtual environments is installed.
const PYTHON: &str = "/usr/bin/python3";

const LANGUAGES: [Language; 4] = [
    Language {
        name: "python",
        needs: &[(PYTHON, &["-c", "import ensurepip"], "python3-venv")],
        is_large: false,
        run: run_python,
    },
    Language {
        name: "node",
        needs: &[
            ("node", &["--version"], "nodejs"),
            ("npm", &["--version"], "npm"),
        ],
        is_large: false,
        run: run_node,
    },
    Language {
        name: "go",
        needs: &[("go", &["version"], "golang-go")],
        is_large: true,
        run: run_go,
    },
    Language {
        name: "java",
        needs: &[("mvn", &["--version"], "maven")],
        is_large: true,
        run: run_java,
    },
];

pub(crate) fn run(size: RunSize) -> Result<(), String> {
    let folder = target().join("packages");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let pool = folder.join("pool");
    // Of an earlier run; usually there is none.
    let _ = fs::remove_file(&pool);
    let server = serve(&pool)?;
    let mut failed = Vec::new();
    let chosen = |language: &&Language| size == RunSize::Gate || !language.is_large;
    for language in LANGUAGES.iter().filter(chosen) {
        language.prepare()?;
        let copy = copy(language.name, &folder)?;
        if let Err(error) = (language.run)(&copy, &server.port) {
            println!("{error}");
            failed.push(language.name);
        }
    }
    server.end()?;
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("packages of {} failed", failed.join(", "))),
    }
}

impl Language {
    /// Installs what is missing.
    fn prepare(&self) -> Result<(), String> {
        let missing: Vec<&str> = self
            .needs
            .iter()
            .filter(|(command, args, _)| !works(command, args))
            .map(|(_, _, package)| *package)
            .collect();
        match missing.is_empty() {
            true => Ok(()),
            false => install(&missing),
        }
    }
}

fn serve(pool: &Path) -> Result<Serving, String> {
    let mut command = farbank();
    command
        .args(["serve", "--port", "0", "--memcached-port", "off"])
        .args(["--size", "64mb", "--pool"])
        .arg(pool);
    Serving::start(&mut command, "redis://")
}

/// Copies the folder of `language` into `folder`, over an earlier copy. Returns the copy.
fn copy(language: &str, folder: &Path) -> Result<PathBuf, String> {
    let source = root().join("xtask/packages").join(language);
    let copy = folder.join(language);
    for file in files_below(&source)? {
        let inner = file.strip_prefix(&source).map_err(|e| e.to_string())?;
        let to = copy.join(inner);
        let failed = |e: std::io::Error| format!("{}: {e}", to.display());
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        fs::copy(&file, &to).map_err(failed)?;
    }
    Ok(copy)
}

fn run_python(folder: &Path, port: &str) -> Result<(), String> {
    let environment = folder.join("environment");
    succeed(Command::new(PYTHON).args(["-m", "venv"]).arg(&environment))?;
    let mut pip = Command::new(environment.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check", "-r"]);
    succeed(pip.arg(folder.join("requirements.txt")))?;
    let mut scenarios = Command::new(environment.join("bin/python"));
    succeed(scenarios.arg(folder.join("scenarios.py")).arg(port))
}

fn run_node(folder: &Path, port: &str) -> Result<(), String> {
    let mut npm = Command::new("npm");
    npm.args(["ci", "--no-audit", "--no-fund"]);
    succeed(npm.current_dir(folder))?;
    let mut scenarios = Command::new("node");
    succeed(scenarios.args(["scenarios.mjs", port]).current_dir(folder))
}

fn run_go(folder: &Path, port: &str) -> Result<(), String> {
    let mut go = Command::new("go");
    succeed(go.args(["run", ".", port]).current_dir(folder))
}

fn run_java(folder: &Path, port: &str) -> Result<(), String> {
    let port = format!("-Dexec.args={port}");
    let mut maven = Command::new("mvn");
    maven.args(["-q", "-B", "compile", "exec:java", &port]);
    succeed(maven.current_dir(folder))
}
