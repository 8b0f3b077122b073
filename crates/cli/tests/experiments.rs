//! The registry of experiments, compared with the documents, the workload files and the examples of the command line.

use std::fs;
use std::path::{Path, PathBuf};

use farbank_bench::registry::{RegisteredBench, markdown};
use farbank_contest::judge::all_benches;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the files below `folder` whose names end in `extension`.
fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![root().join(folder)]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == extension) {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "{folder} has no .{extension} file");
    found
}

fn has(bench: &RegisteredBench, option: &str, value: &str) -> bool {
    let mut rows = bench.experiments.iter();
    bench.option == option && rows.any(|row| row.name == value)
}

/// Returns `word` without the punctuation of Markdown and of a sentence around it.
fn bare(word: &str) -> &str {
    word.trim_matches(|c: char| !c.is_ascii_alphanumeric() && c != '-')
}

/// Returns the values of `--experiment` in a line, each with the benchmark that the line names before it.
fn experiments_in(line: &str) -> Vec<(Option<&str>, &str)> {
    let words: Vec<&str> = line.split_whitespace().map(bare).collect();
    let (mut bench, mut found) = (None, Vec::new());
    for pair in words.windows(2) {
        match *pair {
            ["bench", name] => bench = Some(name),
            // In a table the value is in the next cell.
            ["--experiment", name] if !name.is_empty() => found.push((bench, name)),
            _ => {}
        }
    }
    found
}

#[test]
fn the_page_on_performance_has_a_row_for_each_experiment() {
    let page = fs::read_to_string(root().join("docs/performance.md")).unwrap();
    let table = markdown(&all_benches());
    assert!(
        page.contains(&table),
        "docs/performance.md must have this table:\n\n{table}"
    );
}

#[test]
fn every_experiment_that_a_text_names_exists() {
    let benches = all_benches();
    let mut texts = files("docs", "md");
    texts.extend(files("workloads", "toml"));
    texts.extend(files("crates/cli/src/bench", "rs"));
    texts.extend(["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"].map(|name| root().join(name)));
    let mut count = 0;
    for path in texts {
        let text = fs::read_to_string(&path).unwrap();
        // The tests of a source file have experiments that do not exist.
        let text = text.split("#[cfg(test)]").next().unwrap();
        for (line, number) in text.lines().zip(1..) {
            for (bench, name) in experiments_in(line) {
                let mut possible = benches
                    .iter()
                    .filter(|one| bench.is_none_or(|bench| bench == one.name));
                let exists = possible.any(|one| has(one, "experiment", name));
                assert!(exists, "{}:{number}: {line}", path.display());
                count += 1;
            }
        }
    }
    assert!(
        count > 20,
        "only {count} experiments were found in the texts"
    );
}

#[test]
fn every_workload_names_a_registered_benchmark_and_experiment() {
    let benches = all_benches();
    for path in files("workloads", "toml") {
        let name = path.display();
        let text = fs::read_to_string(&path).unwrap();
        let table: toml::Table = text.parse().unwrap();
        let of = |key: &str| table.get(key).map(|value| value.as_str().unwrap());
        let bench = of("bench").unwrap();
        assert!(benches.iter().any(|one| one.name == bench), "{name}");
        assert!(of("question").unwrap().ends_with('?'), "{name}");
        if let Some(experiment) = of("experiment") {
            let mut parts = benches.iter().filter(|one| one.name == bench);
            assert!(
                parts.any(|one| has(one, "experiment", experiment)),
                "{name}: {experiment}"
            );
        }
    }
}

#[test]
fn a_line_names_its_experiments() {
    let line = "run `farbank bench tree --experiment causes`, then `--experiment locks`.";
    let found = experiments_in(line);
    assert_eq!(found, [(Some("tree"), "causes"), (Some("tree"), "locks")]);
    assert_eq!(
        experiments_in("`--experiment numa` and `dimms`"),
        [(None, "numa")]
    );
}
