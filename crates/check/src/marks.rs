//! Finds the marks `fault!("x.y")` and `situation!("x.y")` in sources, so that tests can check that a crate's lists
//! of them are complete, and that the pages in `docs/testing` have a row for each.

use std::fs;
use std::path::{Path, PathBuf};

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

/// Returns the text of all pages in `docs/testing`, sorted by the names of their files.
///
/// # Panics
/// If the folder or a page cannot be read.
#[must_use]
pub fn testing_pages() -> String {
    let pages = page_paths().into_iter().map(fs::read_to_string);
    let pages: Result<Vec<String>, _> = pages.collect();
    pages.expect("a readable page").concat()
}

/// Returns the paths of the pages in `docs/testing`, sorted.
fn page_paths() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/testing");
    let entries = fs::read_dir(folder).expect("a folder of pages");
    let paths = entries.map(|entry| entry.expect("a readable folder").path());
    let mut pages: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|suffix| suffix == "md"))
        .collect();
    pages.sort_unstable();
    pages
}

/// Asserts that a page in `docs/testing` has a table row for each listed situation.
///
/// # Panics
/// If a row is missing.
pub fn assert_documented(listed: &[Situation]) {
    let pages = testing_pages();
    for situation in listed {
        let row = format!("| `{}` | {} |", situation.name, situation.description);
        assert!(pages.contains(&row), "docs/testing lacks {row}");
    }
}

#[cfg(test)]
mod tests {
    use super::page_paths;

    #[test]
    fn the_code_of_every_page_on_testing_is_compiled() {
        let crate_root = include_str!("lib.rs");
        for path in page_paths() {
            let name = path.file_name().expect("a file").to_string_lossy();
            let included = format!("include_str!(\"../../../docs/testing/{name}\")");
            assert!(crate_root.contains(&included), "lib.rs lacks {included}");
        }
    }
}
