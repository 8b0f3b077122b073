//! Suite `pibench`: runs a C++ table as a plug-in of our benchmark, and our tables as a plug-in of a C++ program.

use std::path::Path;
use std::process::Command;

use crate::RunSize;
use crate::check::TABLES;
use crate::run::{
    beside_farbank, cargo_command, farbank, install, output, root, succeed, target, works,
};

pub(crate) fn run(size: RunSize) -> Result<(), String> {
    if !works("g++", &["--version"]) {
        install(&["g++"])?;
    }
    let keys = match size {
        RunSize::Suite => "100000",
        RunSize::Gate => "5000000",
    };
    let folder = target().join("pibench");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    bench_cpp_map(&folder, keys)?;
    bench_study_table(&folder, keys)?;
    run_our_tables(&folder, keys)
}

/// Compiles an example with our header.
fn compile(example: &str, flags: &[&str], to: &Path) -> Result<(), String> {
    let bindings = root().join("bindings/pibench");
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror"]);
    compiler.arg("-I").arg(bindings.join("include"));
    compiler.arg(bindings.join("example").join(example));
    succeed(compiler.arg("-o").arg(to).args(flags))
}

/// Runs the benchmark on a C++ map as a plug-in. The benchmark also checks its results.
fn bench_cpp_map(folder: &Path, keys: &str) -> Result<(), String> {
    let library = folder.join("map.so");
    compile("map.cpp", &["-shared", "-fPIC"], &library)?;
    let bench = |arguments: &[&str]| {
        let mut command = farbank();
        command.args(["bench", "index", "-n", keys, "-t", "2", "--plugin"]);
        output(command.arg(&library).args(arguments))
    };
    bench(&[])?;
    let mix = |ratios: &[&str], more: &[&str]| {
        let mix = ["--experiment", "mix", "--output", "pibench"];
        bench(&[&mix[..], ratios, more].concat())
    };
    let writes = ["-r", "0.4", "-i", "0.2", "-u", "0.2", "-d", "0.2"];
    let text = mix(&writes, &["-p", keys])?;
    says(&text, &format!("Operations: {keys}"))?;
    // This mix removes no keys, so every scan begins at an existing key.
    let scans = ["-r", "0.5", "-s", "0.5", "--scan-size", "10"];
    let text = mix(&scans, &["-p", keys, "-f", "user", "-k", "12", "-v", "100"])?;
    for line in ["Key prefix: user", "Key size: 12", "Scan size: 10"] {
        says(&text, line)?;
    }
    let rate = |of: &str| rate(&text, of).ok_or(format!("PiBench's output has no rate of {of}"));
    match (rate("Scan completed")?, rate("Scan succeeded")?) {
        (completed, succeeded) if completed == succeeded && completed > 0.0 => {}
        (completed, succeeded) => {
            return Err(format!(
                "{succeeded} of {completed} scans per second succeeded, expected all"
            ));
        }
    }
    let by_time = ["--mode", "time", "--seconds", "1", "--sampling-ms", "250"];
    let text = mix(&writes, &by_time)?;
    says(&text, "Duration (s): 1")?;
    let windows = text.lines().skip_while(|line| *line != "Samples:").skip(1);
    match windows.take_while(|line| line.starts_with('\t')).count() {
        4 => Ok(()),
        other => Err(format!(
            "{other} samples of 250 ms in one second, expected 4"
        )),
    }
}

/// Runs the benchmark on a C++ table that implements the hash study's interface. The benchmark also checks its results.
fn bench_study_table(folder: &Path, keys: &str) -> Result<(), String> {
    let library = folder.join("table.so");
    compile("table.cpp", &["-shared", "-fPIC"], &library)?;
    let writes = ["-r", "0.4", "-i", "0.2", "-u", "0.2", "-d", "0.2"];
    for more in [
        &[][..],
        &[&["--experiment", "mix", "-p", keys], &writes[..]].concat(),
    ] {
        let mut command = farbank();
        command.args(["bench", "index", "-n", keys, "-t", "2", "--plugin"]);
        output(command.arg(&library).args(more))?;
    }
    Ok(())
}

/// Checks that PiBench's output contains `line`, after leading tabs.
fn says(text: &str, line: &str) -> Result<(), String> {
    match text
        .lines()
        .any(|said| said.trim_start_matches('\t') == line)
    {
        true => Ok(()),
        false => Err(format!("PiBench's output has no line {line:?}")),
    }
}

/// Returns a rate of the breakdown in PiBench's output.
fn rate(text: &str, of: &str) -> Option<f64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("\t- {of}: ")))?;
    line.strip_suffix(" ops/s")?.parse().ok()
}

/// Runs a C++ program that loads our tables and checks their results.
fn run_our_tables(folder: &Path, keys: &str) -> Result<(), String> {
    let host = folder.join("host");
    compile("host.cpp", &["-ldl", "-pthread"], &host)?;
    let mut build = cargo_command();
    build.args(["build", "--release"]);
    succeed(build.args(beside_farbank("farbank-tables")))?;
    let library = target().join("release/libfarbank_tables.so");
    for (table, _) in TABLES {
        let mut command = Command::new(&host);
        command.env("FARBANK_TABLE", table);
        output(command.arg(&library).args([keys, "2"]))?;
    }
    // With a pool on disk: the program opens it again and checks that all keys are found.
    let pool = folder.join("pool");
    let _ = std::fs::remove_file(&pool);
    let mut command = Command::new(&host);
    command.arg(&library).args(["200", "2"]).arg(&pool);
    let found = output(command.arg("67108864"));
    let _ = std::fs::remove_file(&pool);
    found.map(|_| ())
}
