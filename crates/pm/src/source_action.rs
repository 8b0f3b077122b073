//! [`SourceAction`], an action of a source line on far memory, and [`brief`], the text that names a source line.

use std::panic::Location;

/// The action of a source line on far memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SourceAction {
    /// A store or a compare-and-swap of one word.
    Store,
    /// A copy of unpublished bytes.
    CopyIn,
    /// A flush.
    Flush,
    /// A drain.
    Drain,
}

impl SourceAction {
    /// Returns the name as it is printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            SourceAction::Store => "store",
            SourceAction::CopyIn => "copy_in",
            SourceAction::Flush => "flush",
            SourceAction::Drain => "drain",
        }
    }
}

/// Formats a location, starting with its crate's directory: `kv/log.rs:88`, `kv/tests/crash.rs:9`.
#[must_use]
pub fn brief(at: &Location<'_>) -> String {
    format!("{}:{}", brief_file(at.file()), at.line())
}

fn brief_file(file: &str) -> String {
    let parts: Vec<&str> = file.split(['/', '\\']).collect();
    let Some(src) = parts.iter().rposition(|&part| part == "src") else {
        let others = ["tests", "benches", "examples"];
        let at = parts.iter().position(|part| others.contains(part));
        return parts[at.unwrap_or(0).saturating_sub(1)..].join("/");
    };
    let path = [&parts[src.saturating_sub(1)..src], &parts[src + 1..]];
    path.concat().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_printed_as_its_crate_and_its_path_in_the_crate() {
        for (file, called) in [
            ("crates/kv/src/log.rs", "kv/log.rs"),
            ("crates/pm/src/pool/log.rs", "pm/pool/log.rs"),
            ("crates/check/tests/toy/mod.rs", "check/tests/toy/mod.rs"),
            ("src/log.rs", "log.rs"),
            ("tests/log.rs", "tests/log.rs"),
            (
                "/home/me/registry/src/index/table-1.0.2/src/lib.rs",
                "table-1.0.2/lib.rs",
            ),
            ("log.rs", "log.rs"),
        ] {
            assert_eq!(brief_file(file), called);
        }
    }
}
