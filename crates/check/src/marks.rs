//! Finds the marks `fault!("x.y")` and `situation!("x.y")` in sources, so that tests can check that a crate's lists
//! of them are complete.

use std::fs;
use std::path::Path;

use farbank_pm::situation::Situation;

/// Returns the names in every `mark`, such as `fault!(`, in sources below `dir`, except in the file `list`.
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

/// Asserts that the sources of the crate in `crate_dir` mark exactly the situations in `listed`, each in one place.
/// The crate's `situations.rs` holds the list.
///
/// # Panics
/// If the marks differ from the list.
pub fn assert_marked(crate_dir: &str, listed: &[Situation]) {
    let sources = Path::new(crate_dir).join("src");
    let mut found = names_in(&sources, "situation!(", "situations.rs");
    let mut listed: Vec<&str> = listed.iter().map(|situation| situation.name).collect();
    found.sort_unstable();
    listed.sort_unstable();
    assert_eq!(found, listed);
}

/// Asserts that `document` has a table row for each listed situation.
///
/// # Panics
/// If a row is missing.
pub fn assert_documented(document: &str, listed: &[Situation]) {
    for situation in listed {
        let row = format!("| `{}` | {} |", situation.name, situation.description);
        assert!(document.contains(&row), "the document lacks {row}");
    }
}
