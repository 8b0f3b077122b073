//! Marks in sources, `fault!("x.y")` and `situation!("x.y")`: for the tests that a crate's lists of them are complete.

use std::fs;
use std::path::Path;

use farbank_pm::situation::Situation;

/// The names that sources below `dir` give to a `mark` such as `fault!(`, except in the file `list`, which lists them.
///
/// # Panics
/// If a source cannot be read.
#[must_use]
pub fn names_in(dir: &Path, mark: &str, list: &str) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).expect("a folder of sources") {
        let path = entry.expect("a readable folder").path();
        if path.is_dir() {
            names.extend(names_in(&path, mark, list));
        } else if !path.ends_with(list) {
            let text = fs::read_to_string(&path).expect("a source");
            let marked = text.split(mark).skip(1);
            let quoted = marked.filter_map(|rest| rest.trim_start().strip_prefix('"'));
            names.extend(quoted.filter_map(|name| Some(name.split('"').next()?.to_owned())));
        }
    }
    names
}

/// Sees that the sources of the crate in `crate_dir` mark what its `situations.rs` lists, each in one place, and nothing else.
///
/// # Panics
/// If they do not.
pub fn assert_marked(crate_dir: &str, listed: &[Situation]) {
    let sources = Path::new(crate_dir).join("src");
    let mut found = names_in(&sources, "situation!(", "situations.rs");
    let mut listed: Vec<&str> = listed.iter().map(|situation| situation.name).collect();
    found.sort_unstable();
    listed.sort_unstable();
    assert_eq!(found, listed);
}

/// Sees that `document` has a row for each situation that is listed.
///
/// # Panics
/// If it lacks one.
pub fn assert_documented(document: &str, listed: &[Situation]) {
    for situation in listed {
        let row = format!("| `{}` | {} |", situation.name, situation.what);
        assert!(document.contains(&row), "the document lacks {row}");
    }
}
