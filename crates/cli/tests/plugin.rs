//! `farbank bench index --plugin` with libraries that return unusual values or end the process.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// The interfaces with which `bindings/pibench/example/faulty.rs` can be compiled.
const INTERFACES: [&str; 3] = ["pibench", "study", "first"];

/// Compiles the library with an interface.
fn library(folder: &TempDir, interface: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/pibench/example");
    let to = folder.path().join(format!("{interface}.so"));
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command.args(["--edition", "2024", "--crate-type", "cdylib"]);
    command.args(["--cap-lints", "allow", "--cfg", interface, "-o"]);
    let compiled = command.arg(&to).arg(source.join("faulty.rs")).output();
    let compiled = compiled.unwrap();
    assert!(compiled.status.success(), "{}", stderr(&compiled));
    to
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn bench(library: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farbank"));
    command.args(["bench", "index", "-n", "1000", "-t", "2"]);
    command.args(["-S", "4096", "--plugin"]).arg(library);
    command
}

#[test]
fn a_plugin_may_return_any_nonzero_byte_for_true_in_each_interface() {
    let folder = tempfile::tempdir().unwrap();
    for interface in INTERFACES {
        let library = library(&folder, interface);
        let output = bench(&library).arg("--json").output().unwrap();
        assert!(output.status.success(), "{interface}: {}", stderr(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        let last = text.lines().last().unwrap();
        let object: serde_json::Value = serde_json::from_str(last).unwrap();
        let figures = object["figures"].as_array().unwrap();
        let wrong = figures.iter().filter(|figure| {
            let name = figure["name"].as_str().unwrap();
            name.ends_with("answers wrong") && figure["value"] == 0.0
        });
        assert_eq!(wrong.count(), 4, "{interface}: {last}");
        let mix = ["--experiment", "mix", "-r", "0.4", "-i", "0.2", "-u", "0.2"];
        let output = bench(&library).args(mix).args(["-d", "0.2"]).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{interface}: {}", stderr(&output));
    }
}

#[test]
fn a_plugin_that_ends_its_process_is_reported_with_the_signal_or_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let library = library(&folder, "pibench");
    for (fault, how) in [
        ("segv", "signal 11, SIGSEGV"),
        ("abort", "signal 6, SIGABRT"),
        ("exit", "exit with code 0"),
    ] {
        let output = bench(&library).env("FARBANK_FAULT", fault).output();
        let output = output.unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{fault}: {said}");
        let expected = format!(
            "error: the plug-in {} ended the process that it ran in: {how}",
            library.display()
        );
        assert!(said.contains(&expected), "{fault}: {said}");
    }
}

#[test]
fn a_file_that_is_not_a_plugin_is_refused_with_one_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.so");
    std::fs::write(&path, "no library").unwrap();
    let output = bench(&path).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.matches("error: ").count(), 1, "{said}");
    assert!(said.contains("it cannot be loaded"), "{said}");
}
