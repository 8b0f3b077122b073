//! Runs other programs, and several things at a time; returns the paths of the workspace.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use serde_json::Value;

/// Returns the workspace's folder.
pub(crate) fn root() -> PathBuf {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    own.parent().map(PathBuf::from).unwrap_or(own)
}

/// Returns cargo's target folder.
pub(crate) fn target() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR");
    target.map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Returns all files below `path`, sorted, except for those in build folders; `path` itself if it is a file.
///
/// # Errors
/// A folder cannot be read.
pub(crate) fn files_below(path: &Path) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    let mut paths = vec![path.to_owned()];
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            let failed = |e: io::Error| format!("{}: {e}", path.display());
            for entry in fs::read_dir(&path).map_err(failed)? {
                let path = entry.map_err(failed)?.path();
                if !path.ends_with("target") {
                    paths.push(path);
                }
            }
        } else {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Returns whether a file is Rust source code.
pub(crate) fn is_rust(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
}

/// Calls `each` for every item, on `workers` threads, with the number of the thread. A thread ends at its first error.
///
/// # Errors
/// The first error of one of the threads.
pub(crate) fn in_parallel<T: Send>(
    items: impl IntoIterator<Item = T, IntoIter: Send>,
    workers: usize,
    each: impl Fn(usize, T) -> Result<(), String> + Sync,
) -> Result<(), String> {
    let queue = Mutex::new(items.into_iter());
    let next = || queue.lock().expect("no holder panics").next();
    let work = |worker| {
        while let Some(item) = next() {
            each(worker, item)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..workers)
            .map(|worker| scope.spawn(move || work(worker)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no worker panics"))
    })
}

/// Returns a command that runs the release binary.
pub(crate) fn farbank() -> Command {
    Command::new(target().join("release/farbank"))
}

/// Builds the release binary.
pub(crate) fn build_farbank() -> Result<(), String> {
    cargo(&["build", "--release", "--package=farbank-cli"])
}

/// Returns the options of a release build of `package` that uses the crates that [`build_farbank`] has built.
///
/// Cargo chooses the features of a crate for all packages of a command. So a build of `package` alone would build most crates again,
/// with fewer features.
pub(crate) fn beside_farbank(package: &str) -> [String; 2] {
    ["farbank-cli", package].map(|package| format!("--package={package}"))
}

/// Returns a command that runs cargo in the workspace.
pub(crate) fn cargo_command() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    without_cargo_variables(command.current_dir(root()));
    command
}

/// Removes the variables that `cargo run` sets for this program. A build script that reads one would run again, and all crates
/// above it would be built again.
pub(crate) fn without_cargo_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
}

/// Runs cargo in the workspace.
pub(crate) fn cargo(args: &[&str]) -> Result<(), String> {
    succeed(cargo_command().args(args))
}

/// Runs `command` and shows its output. Returns an error if the command cannot be run or fails.
pub(crate) fn succeed(command: &mut Command) -> Result<(), String> {
    let name = format!("{command:?}");
    println!("$ {name}");
    let status = command.stdin(Stdio::null()).status();
    let status = status.map_err(|e| format!("{name} cannot be run: {e}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{name} ended with {status}"))
    }
}

/// Runs `command`, shows its output, and returns its standard output. An error contains the last lines of standard
/// output and of standard error.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let name = format!("{command:?}");
    println!("$ {name}");
    let cannot = |e| format!("{name} cannot be run: {e}");
    let (complaints, theirs) = io::pipe().map_err(cannot)?;
    let complaints = thread::spawn(move || pass_on(complaints));
    let output = command.stderr(theirs).output();
    command.stderr(Stdio::inherit()); // closes our write end of the pipe; otherwise the reader never reaches its end
    let output = output.map_err(cannot)?;
    let complaints = complaints.join().expect("the reader thread does not panic");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{text}");
    match output.status.success() {
        true => Ok(text),
        false => Err(format!(
            "{name} ended with {}; its last output:\n{}{}",
            output.status,
            end_of(&text),
            end_of(&complaints)
        )),
    }
}

/// Copies a program's standard error to this process's, and returns it.
fn pass_on(complaints: impl Read) -> String {
    let mut all = String::new();
    for line in BufReader::new(complaints)
        .split(b'\n')
        .map_while(Result::ok)
    {
        let line = String::from_utf8_lossy(&line);
        eprintln!("{line}");
        all.push_str(&line);
        all.push('\n');
    }
    all
}

/// Returns the last 20 lines of a text.
fn end_of(text: &str) -> &str {
    const LINES: usize = 20;
    let before = text.trim_end().rmatch_indices('\n').nth(LINES - 1);
    before.map_or(text, |(at, _)| &text[at + 1..])
}

/// Returns whether `program` runs successfully with `args`. Shows no output.
pub(crate) fn works(program: impl AsRef<OsStr>, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Installs Debian packages with apt-get. Suites of several processes may do so at a time.
pub(crate) fn install(packages: &[&str]) -> Result<(), String> {
    let apt = || {
        let mut command = Command::new("flock");
        command.arg(std::env::temp_dir().join("farbank-apt.lock"));
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command.args(["apt-get", "-qq"]);
        command
    };
    succeed(apt().arg("update"))?;
    succeed(
        apt()
            .args(["install", "-y", "--no-install-recommends"])
            .args(packages),
    )
}

/// Installs the program `ip`, unless it is installed.
pub(crate) fn install_ip() -> Result<(), String> {
    match works("ip", &["-V"]) {
        true => Ok(()),
        false => install(&["iproute2"]),
    }
}

/// Runs a command and returns the JSON that it prints.
pub(crate) fn json(command: &mut Command) -> Result<Value, String> {
    serde_json::from_str(output(command)?.trim()).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_contains_the_last_lines_of_stdout_and_stderr() {
        let mut command = Command::new("sh");
        let failed = output(command.args(["-c", "echo one; echo two >&2; exit 3"])).unwrap_err();
        assert!(
            failed.ends_with("exit status: 3; its last output:\none\ntwo\n"),
            "{failed}"
        );
    }
}
