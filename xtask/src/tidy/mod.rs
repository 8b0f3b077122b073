//! `cargo xtask tidy`: checks rules of style that no compiler checks.
//!
//! ```text
//!   text      splits a source file into code, comments and string literals
//!   words     words and phrases that comments and messages must not contain; the width of a line
//!   errors    functions of libraries whose error is a text
//!   fields    structs with many fields that are no plain data
//!   names     type names and invariant numbers that occur twice in a crate
//!   imports   imports inside a crate that form a circle
//! ```
//!
//! Each finding is printed as a line `file:line: rule: what`. `xtask/tidy.toml` lists the circles of imports that are
//! not resolved yet. An entry that no longer applies is also a finding, so the list can only get shorter.

mod errors;
mod fields;
mod imports;
mod names;
mod text;
mod words;

use std::fmt;
use std::fs;

use crate::run::{files_below, is_rust, root};

/// Folders with our sources, relative to the root of the workspace.
const FOLDERS: [&str; 4] = ["crates", "bindings", "fuzz", "xtask"];

/// A violation of a rule.
struct Finding {
    file: String,
    line: usize,
    rule: &'static str,
    what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding {
            file,
            line,
            rule,
            what,
        } = self;
        write!(f, "{file}:{line}: {rule}: {what}")
    }
}

/// A source file.
struct Source {
    /// Path relative to the root of the workspace.
    file: String,
    text: String,
}

impl Source {
    /// Returns the folder of the crate that the file belongs to, such as `crates/kv`.
    fn krate(&self) -> &str {
        let end = self
            .file
            .find("/src/")
            .or_else(|| self.file.find("/tests/"));
        &self.file[..end.unwrap_or(0)]
    }

    /// Returns the file's path below the crate's `src` folder; `None` for tests and examples.
    fn in_src(&self) -> Option<&str> {
        self.file.split_once("/src/").map(|(_, path)| path)
    }
}

/// Checks all sources and prints every finding.
///
/// # Errors
/// There is a finding, or a file cannot be read or parsed.
pub(crate) fn run() -> Result<(), String> {
    let mut sources = Vec::new();
    for folder in FOLDERS {
        for path in files_below(&root().join(folder))? {
            if is_rust(&path) {
                let file = path.strip_prefix(root()).unwrap_or(&path);
                let file = file.to_string_lossy().into_owned();
                let text = fs::read_to_string(&path).map_err(|e| format!("{file}: {e}"))?;
                sources.push(Source { file, text });
            }
        }
    }
    let mut findings = words::check(&sources);
    findings.extend(errors::check(&sources)?);
    findings.extend(fields::check(&sources)?);
    findings.extend(names::check(&sources)?);
    findings.extend(imports::check(&sources)?);
    findings.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
    for finding in &findings {
        println!("{finding}");
    }
    println!("{} files, {} findings", sources.len(), findings.len());
    match findings.is_empty() {
        true => Ok(()),
        false => Err(format!("tidy: {} findings", findings.len())),
    }
}
