//! Words and phrases that comments and messages do not use, and the width of a line.

use super::text::prose;
use super::{Finding, Source};

/// Columns that a line of a comment may have.
const WIDTH: usize = 160;

/// Words for people. In a comment or a message the subject is a component.
const PEOPLE: [&str; 9] = [
    "who",
    "whoever",
    "whom",
    "nobody",
    "somebody",
    "someone",
    "everybody",
    "everyone",
    "anybody",
];

/// Phrases that a stranger has to guess, and what to write.
const PHRASES: [(&str, &str); 8] = [
    ("lets go", "releases"),
    ("let go of", "released"),
    ("is told", "receives, or is passed"),
    ("are told", "receive, or are passed"),
    ("comes along", "the event, by its name"),
    ("such a one", "the thing, by its name"),
    ("as many as there are", "all, or a number"),
    ("what there is", "the thing, by its name"),
];

/// Files that contain the words because they are about them.
const EXCEPTIONS: [&str; 1] = ["xtask/src/tidy/words.rs"];

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources
        .iter()
        .filter(|source| !EXCEPTIONS.contains(&&*source.file))
    {
        for part in prose(&source.text) {
            let finding = |rule, what| Finding {
                file: source.file.clone(),
                line: part.line,
                rule,
                what,
            };
            let text = part.text.to_lowercase();
            for word in text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-') {
                if PEOPLE.contains(&word) {
                    findings.push(finding(
                        "person",
                        format!("{word:?} stands for a component; name it"),
                    ));
                }
            }
            for (phrase, instead) in PHRASES {
                if text.contains(phrase) {
                    findings.push(finding("phrase", format!("{phrase:?}; write: {instead}")));
                }
            }
        }
        for (number, line) in source.text.lines().enumerate() {
            let width = line.chars().count();
            if line.trim_start().starts_with("//") && width > WIDTH {
                findings.push(Finding {
                    file: source.file.clone(),
                    line: number + 1,
                    rule: "width",
                    what: format!("a comment of {width} columns; at most {WIDTH}"),
                });
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::Source;

    fn rules(text: &str) -> Vec<String> {
        let source = Source {
            file: "crates/kv/src/lib.rs".into(),
            text: text.into(),
        };
        check(&[source]).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_word_is_found_in_a_comment_and_in_a_message_and_not_in_code() {
        let found =
            rules("// Whoever reads\nlet who = 1;\nfail(\"nobody reads\");\n// a whole house");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("crates/kv/src/lib.rs:1: person: \"whoever\""));
        assert!(found[1].starts_with("crates/kv/src/lib.rs:3: person: \"nobody\""));
    }

    #[test]
    fn a_phrase_and_a_wide_comment_are_found() {
        let wide = format!("// {}", "a".repeat(158));
        let found = rules(&format!("// The thread lets go of it.\n{wide}\n"));
        assert!(found[0].contains("phrase: \"lets go\""), "{found:?}");
        assert!(
            found
                .iter()
                .any(|line| line.contains(":2: width: a comment of 161 columns")),
            "{found:?}"
        );
    }
}
