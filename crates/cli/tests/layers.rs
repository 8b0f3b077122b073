//! Repository rules that the compiler does not check: the order of crates, the length of files, and forbidden
//! leftovers.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Crates in dependency order: a crate may use only crates before it.
const ORDER: [&str; 17] = [
    "pm", "check", "index", "store", "kv", "farbank", "cache", "fabric", "tree", "server",
    "pibench", "bench", "contest", "cli", "judge-c", "tables", "tree-c",
];

/// Crates with unsafe code: the far-memory crate, the fabric by its feature `libfabric`, and the bindings for other languages.
const UNSAFE: [&str; 6] = ["pm", "fabric", "pibench", "judge-c", "tables", "tree-c"];

const LINES_MAX: usize = 800;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Returns the metadata of every package in the workspace.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--no-deps",
            "--format-version",
            "1",
            "--offline",
        ])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    match metadata["packages"].take() {
        Value::Array(packages) => packages,
        other => panic!("no list of packages: {other}"),
    }
}

/// Returns the name of a workspace crate without its prefix.
fn short(package: &str) -> &str {
    package.strip_prefix("farbank-").unwrap_or(package)
}

fn rank(package: &str) -> Option<usize> {
    ORDER.iter().position(|name| *name == short(package))
}

/// Returns every Rust file of the repository.
fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = ["crates", "bindings", "fuzz", "xtask"]
        .map(|name| root().join(name))
        .to_vec();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    assert!(found.len() > 50, "the sources were not found");
    found
}

/// Returns every document of the repository, except the dated results: those cite the files of their day.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let is_searched = !name.starts_with('.') && name != "target" && name != "results";
            if path.is_dir() && is_searched {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                found.push(path);
            }
        }
    }
    assert!(found.len() > 20, "the documents were not found");
    found
}

#[test]
fn every_source_file_that_a_document_names_exists() {
    let sources = sources();
    let mut count = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        // Every second part is between backquotes.
        let quoted = text.split('`').skip(1).step_by(2);
        let is_path = |name: &&str| name.ends_with(".rs") && !name.contains([' ', '*', '<', '{']);
        for name in quoted.filter(is_path) {
            let exists = sources.iter().any(|source| source.ends_with(name));
            assert!(exists, "{} names {name}", document.display());
            count += 1;
        }
    }
    assert!(count > 100, "only {count} names of files were found");
}

#[test]
fn cargo_run_starts_farbank_and_not_xtask() {
    let all = packages();
    let named: Vec<&str> = all
        .iter()
        .filter_map(|p| p["default_run"].as_str())
        .collect();
    assert_eq!(named, ["farbank"]);
    let owner = all.iter().find(|p| p["default_run"].is_string());
    assert_eq!(owner.unwrap()["name"], "farbank-cli");
}

#[test]
fn a_crate_uses_only_crates_before_it() {
    let mut seen = BTreeSet::new();
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        let uses: Vec<&str> = package["dependencies"]
            .as_array()
            .unwrap()
            .iter()
            .map(|d| d["name"].as_str().unwrap())
            // A crate's tests may depend on a feature of the crate itself.
            .filter(|d| rank(d).is_some() && *d != name)
            .collect();
        if name == "xtask" {
            assert!(uses.is_empty(), "xtask uses {uses:?}");
            continue;
        }
        let own = rank(name).unwrap_or_else(|| panic!("{name} is missing in ORDER"));
        seen.insert(short(name).to_owned());
        for used in uses {
            assert!(
                rank(used).unwrap() < own,
                "{name} uses {used}, which comes after it"
            );
            let apart = ["fabric", "tree"].contains(&short(name));
            let barred = ["index", "kv", "cache"].contains(&short(used));
            assert!(!(apart && barred), "{name} uses {used}");
        }
    }
    for name in ["pm", "check", "kv", "server", "farbank", "cli"] {
        assert!(seen.contains(name), "{name} is missing");
    }
}

#[test]
fn packages_have_complete_metadata() {
    for package in packages() {
        let name = &package["name"];
        for field in ["description", "license", "repository", "rust_version"] {
            assert!(package[field].is_string(), "{name} has no {field}");
        }
        assert_eq!(package["license"], "MIT OR Apache-2.0", "{name}");
    }
}

#[test]
fn every_other_crate_forbids_unsafe_code() {
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        for target in package["targets"].as_array().unwrap() {
            let kind = target["kind"][0].as_str().unwrap();
            if UNSAFE.contains(&short(name)) || !["lib", "bin"].contains(&kind) {
                continue;
            }
            let file = target["src_path"].as_str().unwrap();
            let text = fs::read_to_string(file).unwrap();
            assert!(
                text.contains("#![forbid(unsafe_code)]"),
                "{file} does not forbid unsafe code"
            );
        }
    }
}

/// Returns whether a file has unsafe code: the keyword outside comments, before a block or an item.
fn has_unsafe_code(text: &str) -> bool {
    let word = concat!("uns", "afe");
    let code = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(|line| line.split(word).skip(1)).any(|after| {
        [" {", " fn", " impl", " extern", " trait", "("]
            .iter()
            .any(|next| after.starts_with(next))
    })
}

/// Returns the name of the package that contains `file`.
fn package_of(file: &Path) -> String {
    let manifest = file
        .ancestors()
        .find_map(|folder| fs::read_to_string(folder.join("Cargo.toml")).ok());
    let manifest = manifest.unwrap();
    let name = manifest
        .lines()
        .find_map(|line| line.strip_prefix("name = "));
    name.unwrap().trim_matches('"').to_owned()
}

#[test]
fn the_packages_with_unsafe_code_are_those_that_security_md_lists() {
    let found: BTreeSet<String> = sources()
        .iter()
        .filter(|path| has_unsafe_code(&fs::read_to_string(path).unwrap()))
        .map(|path| package_of(path))
        .collect();
    let document = fs::read_to_string(root().join("SECURITY.md")).unwrap();
    let rows = document
        .lines()
        .filter_map(|line| line.strip_prefix("| `farbank-"));
    let listed: BTreeSet<String> = rows
        .filter_map(|row| row.split_once('`'))
        .map(|(name, _)| format!("farbank-{name}"))
        .collect();
    assert_eq!(found, listed);
}

#[test]
fn files_are_short_and_have_no_unfinished_code() {
    // The words are assembled here, so that this file does not match itself.
    let left_behind = ["todo", "unimplemented", "dbg"].map(|name| format!("{name}!("));
    let ignored = ["#[", "ignore"].concat();
    // The only reason to leave a test out of `cargo test`.
    let long = format!("{ignored} = \"the suite `long-tests` runs it\"]");
    let mut wrong = Vec::new();
    for path in sources() {
        let text = fs::read_to_string(&path).unwrap();
        let shown = path.strip_prefix(root()).unwrap();
        let shown = shown.display();
        let lines = text.lines().count();
        if lines > LINES_MAX {
            wrong.push(format!("{shown}: {lines} lines, at most {LINES_MAX}"));
        }
        for (number, line) in text.lines().enumerate() {
            let code = line.trim_start();
            if code == long {
                continue;
            }
            let bad = left_behind
                .iter()
                .chain([&ignored])
                .find(|bad| code.contains(bad.as_str()));
            if let Some(bad) = bad.filter(|_| !code.starts_with("//")) {
                wrong.push(format!("{shown}:{}: {bad}", number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
