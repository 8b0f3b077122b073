//! Suite `zero-cost`: checks that the simulator adds no cost to real media.
//!
//! ```text
//!   the sources ────────────────────────────────────────▶ examples/instructions ──▶ valgrind ─┐
//!   a copy without simulator, faults and situations ────▶ the same              ──▶ valgrind ─┴▶ ratio
//! ```
//!
//! The suite counts instructions and measures no time. The difference between runs of N and of 2 N operations contains
//! the operations only, and is the same in every run. Both copies are built as one codegen unit, so that inlining does
//! not depend on the number of modules.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::RunSize;
use crate::run::{cargo_command, install, output, root, succeed, target, works};

/// Largest allowed increase of instructions per set or get with the simulator compiled in.
const SLACK: f64 = 0.01;
/// Number of operations in the shorter run.
const OPERATIONS: u64 = 20_000;

/// Files and folders removed from the copy: the simulator, faults and situations, and the code that runs on it.
const REMOVED_FILES: [&str; 10] = [
    "pm/src/sim",
    "pm/src/model",
    "pm/src/fault.rs",
    "pm/src/persistency.rs",
    "pm/src/source_action.rs",
    "pm/src/situation.rs",
    "kv/src/situations.rs",
    "kv/src/target.rs",
    "store/src/explored",
    "kv/src/faults.rs",
];
/// The modules of the removed files.
const GONE_MODULES: [&str; 10] = [
    "sim",
    "model",
    "fault",
    "faults",
    "persistency",
    "source_action",
    "situation",
    "situations",
    "target",
    "explored",
];
/// The `use` items that import macros of the removed files.
const GONE_MACROS: [&str; 2] = ["use farbank_pm::fault", "use farbank_pm::situation"];

pub(crate) fn run(_size: RunSize) -> Result<(), String> {
    let with = instructions_per_operation()?;
    let without = count(&stripped()?, "without")?;
    let mut worst: f64 = 0.0;
    for ((what, with), (_, without)) in with.into_iter().zip(without) {
        let more = with / without - 1.0;
        worst = worst.max(more);
        println!(
            "{what}: {with:.1} instructions with the simulator, {without:.1} without: {:+.2} %",
            100.0 * more
        );
    }
    match worst <= SLACK {
        true => Ok(()),
        false => Err(format!(
            "the simulator costs {:.2} % more instructions, {:.0} % is allowed",
            100.0 * worst,
            100.0 * SLACK
        )),
    }
}

/// Returns the instructions per set and per get of this workspace's engine.
///
/// # Errors
/// valgrind cannot be installed, or the engine cannot be built or run.
pub(crate) fn instructions_per_operation() -> Result<[(&'static str, f64); 2], String> {
    if !works("valgrind", &["--version"]) {
        install(&["valgrind"])?;
    }
    count(&root(), "with")
}

/// Returns the instructions per set and per get of the engine in `tree`. Each tree is built into a folder of its own,
/// because cargo distinguishes packages by their path in the workspace.
fn count(tree: &Path, folder: &str) -> Result<[(&'static str, f64); 2], String> {
    let built = target().join("zero-cost").join(folder);
    let mut build = cargo_command();
    build.args(["build", "--release", "--package", "farbank-kv"]);
    build.args(["--example", "instructions"]).current_dir(tree);
    build.env("CARGO_TARGET_DIR", &built);
    build.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1");
    succeed(&mut build)?;
    let example = built.join("release/examples/instructions");
    let per_operation = |what: &'static str| {
        let few = instructions(&example, what, OPERATIONS)?;
        let many = instructions(&example, what, 2 * OPERATIONS)?;
        let extra = many.checked_sub(few).filter(|extra| *extra > 0);
        let extra = extra.ok_or(format!(
            "{what}: {few} instructions for N operations, {many} for 2 N; expected more"
        ))?;
        Ok::<_, String>((what, extra as f64 / OPERATIONS as f64))
    };
    Ok([per_operation("set")?, per_operation("get")?])
}

/// Returns the instructions of a whole run, counted by valgrind.
fn instructions(example: &Path, what: &str, operations: u64) -> Result<u64, String> {
    let log = target().join("zero-cost/valgrind.log");
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(format!("--log-file={}", log.display()));
    output(command.arg(example).args([what, &operations.to_string()]))?;
    let text = fs::read_to_string(&log).map_err(|e| format!("{}: {e}", log.display()))?;
    let line = text
        .lines()
        .find_map(|line| line.split_once("Collected : "));
    let number = line.and_then(|(_, number)| number.trim().parse().ok());
    number.ok_or_else(|| format!("valgrind's log has no line \"Collected : N\": {text}"))
}

/// Creates a copy of pm and kv without the simulator. If other code depends on the simulator, the copy does not compile
/// and the suite fails.
fn stripped() -> Result<PathBuf, String> {
    let tree = target().join("zero-cost/tree");
    if tree.exists() {
        fs::remove_dir_all(&tree).map_err(|e| format!("{}: {e}", tree.display()))?;
    }
    stripped_into(&tree)?;
    Ok(tree)
}

/// Creates the copy in a folder that does not exist yet.
fn stripped_into(tree: &Path) -> Result<(), String> {
    for name in ["pm", "store", "kv"] {
        let (from, to) = (
            root().join("crates").join(name),
            tree.join("crates").join(name),
        );
        copy(&from.join("src"), &to.join("src"))?;
        let manifest = read(&from.join("Cargo.toml"))?;
        // The dependency on the checker is removed, and the feature that needs it.
        let of_checker = ["farbank-check", "farbank-kv", "check = "];
        let ours = manifest
            .lines()
            .filter(|line| !of_checker.iter().any(|start| line.starts_with(start)));
        write(&to.join("Cargo.toml"), &lines(ours))?;
    }
    let example = "crates/kv/examples/instructions.rs";
    write(&tree.join(example), &read(&root().join(example))?)?;
    write(&tree.join("Cargo.lock"), &read(&root().join("Cargo.lock"))?)?;
    write(
        &tree.join("Cargo.toml"),
        &workspace(&read(&root().join("Cargo.toml"))?),
    )
}

/// Returns the workspace's manifest with the members pm, store and kv only.
fn workspace(manifest: &str) -> String {
    let mut skipping = false;
    let kept = manifest.lines().filter_map(|line| {
        if line.starts_with("members") {
            return Some("members = [\"crates/pm\", \"crates/store\", \"crates/kv\"]");
        }
        skipping |= line.starts_with("default-members");
        let keep = !skipping;
        skipping &= line != "]";
        keep.then_some(line)
    });
    lines(kept)
}

/// Copies a folder of sources without the files and folders of [`REMOVED_FILES`].
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let entries = fs::read_dir(from).map_err(|e| format!("{}: {e}", from.display()))?;
    for entry in entries {
        let path = entry.map_err(|e| e.to_string())?.path();
        let name = path.file_name().unwrap_or_default();
        if REMOVED_FILES.iter().any(|gone| path.ends_with(gone)) {
            continue;
        }
        if path.is_dir() {
            copy(&path, &to.join(name))?;
        } else {
            write(&to.join(name), &without_simulator(&read(&path)?))?;
        }
    }
    Ok(())
}

/// Removes the code that exists only for the simulator from a source file.
fn without_simulator(source: &str) -> String {
    let is_gone = |line: &str| {
        let line = line.trim();
        let module = line.trim_start_matches("pub ").trim_end_matches(';');
        line == "#[track_caller]"
            || line == "#[cfg(feature = \"check\")]"
            || line.starts_with("let _spending = ")
            || GONE_MODULES.iter().any(|gone| {
                module == format!("mod {gone}")
                    || module.starts_with(&format!("use farbank_pm::{gone}::"))
                    || module == format!("use crate::{gone}")
            })
            || GONE_MACROS.contains(&module)
    };
    let kept = source.lines().filter(|line| !is_gone(line));
    let never_faulty = replace_calls(
        &lines(kept),
        ("fault!(", ")"),
        &["farbank_pm::", "crate::"],
        "false",
    );
    replace_calls(&never_faulty, ("situation!(", ");\n"), &[" "], "")
}

/// Replaces each call of the macro `name` by `by`, up to `end`, together with any text of `before` in front of it.
fn replace_calls<'a>(
    source: &'a str,
    (name, end): (&str, &str),
    before: &[&str],
    by: &str,
) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((kept, after)) = rest.split_once(name) {
        let Some((_, after)) = after.split_once(end) else {
            break;
        };
        let trim = |kept: &'a str, part: &&str| kept.trim_end_matches(*part);
        out.push_str(before.iter().fold(kept, trim));
        out.push_str(by);
        rest = after;
    }
    out + rest
}

fn lines<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    lines.flat_map(|line| [line, "\n"]).collect()
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(path, text))
        .map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{GONE_MODULES, REMOVED_FILES, read, root, stripped_into, without_simulator};
    use crate::run::files_below;

    /// Finds code that the suite does not strip yet, earlier than the suite itself, which runs late and compiles the
    /// copy.
    #[test]
    fn the_copy_does_not_refer_to_removed_modules_or_macros() {
        let folder = std::env::temp_dir().join(format!("farbank-stripped-{}", std::process::id()));
        stripped_into(&folder).unwrap();
        let gone = REMOVED_FILES
            .iter()
            .map(|gone| root().join("crates").join(gone));
        let gone = gone.filter(|path| path.is_file());
        let sources: String = gone.map(|path| read(&path).unwrap()).collect();
        let macros = sources.split("macro_rules! ").skip(1);
        let macros = macros.map(|rest| format!("{}!(", rest.split_once(' ').unwrap().0));
        let modules = GONE_MODULES
            .iter()
            .map(|module| format!("crate::{module}::"));
        let names: Vec<String> = macros.chain(modules).collect();
        assert!(names.contains(&"situation!(".to_string()), "{names:?}");
        let files = files_below(&folder.join("crates")).unwrap();
        for path in files.iter().filter(|path| !path.ends_with("tests.rs")) {
            let text = read(path).unwrap();
            let (code, _) = text.split_once("#[cfg(test)]").unwrap_or((&text, ""));
            let is_comment = |line: &&str| line.trim_start().starts_with("//");
            for line in code.lines().filter(|line| !is_comment(line)) {
                let left = names.iter().find(|name| line.contains(name.as_str()));
                assert_eq!(left, None, "{}: {line}", path.display());
            }
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn code_for_the_simulator_is_removed_and_other_code_stays() {
        let source = "pub mod sim;\npub mod simple;\nuse farbank_pm::fault;\n    #[track_caller]\n\
                      fn f() {\n    let _spending = Category::Other.spend();\n    situation!(\"kv.y\", a.is_empty());\n    \
                      situation!(\n        \"kv.z\",\n        a\n    );\n    if fault!(\"kv.x\") && a {\n    }\n}\n";
        let expected = "pub mod simple;\nfn f() {\n    if false && a {\n    }\n}\n";
        assert_eq!(without_simulator(source), expected);
    }
}
