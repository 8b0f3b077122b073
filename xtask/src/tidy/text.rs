//! Finds the comments and string literals of a Rust source file.

/// A comment in a line, starting with its `//`, or the text of a string literal in a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Prose<'a> {
    pub line: usize,
    pub text: &'a str,
}

/// Returns the comments and the string literals of a source file, line by line.
pub(super) fn prose(source: &str) -> Vec<Prose<'_>> {
    let mut found = Vec::new();
    // The end of a literal that continues in the next line.
    let mut literal: Option<LiteralEnd> = None;
    for (number, line) in source.lines().enumerate() {
        let mut rest = line;
        loop {
            let after = if let Some(end) = literal.take() {
                let (text, after) = cut_literal(rest, end);
                if after.is_none() {
                    literal = Some(end);
                }
                found.push(Prose {
                    line: number + 1,
                    text,
                });
                after
            } else {
                match next_start(rest) {
                    Some((at, Start::Comment)) => {
                        let text = &rest[at..];
                        found.push(Prose {
                            line: number + 1,
                            text,
                        });
                        None
                    }
                    Some((at, Start::Literal(end))) => {
                        literal = Some(end);
                        Some(&rest[at..])
                    }
                    None => None,
                }
            };
            match after {
                Some(after) => rest = after,
                None => break,
            }
        }
    }
    found
}

enum Start {
    Comment,
    Literal(LiteralEnd),
}

/// How a string literal ends.
#[derive(Clone, Copy)]
enum LiteralEnd {
    /// At a quote that no backslash escapes.
    Quote,
    /// A raw literal: at a quote that this many `#` follow. A backslash is no escape.
    Raw { hashes: usize },
}

/// Returns the position of the next comment or literal: of its `//`, or after its opening quote.
fn next_start(code: &str) -> Option<(usize, Start)> {
    let bytes = code.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => return Some((at, Start::Comment)),
            // A character literal may contain a quote: '"' or '\''.
            b'\'' if bytes.get(at + 1) == Some(&b'\\') => at += 3,
            b'\'' if bytes.get(at + 2) == Some(&b'\'') => at += 2,
            b'"' => {
                let hashes = code[..at]
                    .bytes()
                    .rev()
                    .take_while(|byte| *byte == b'#')
                    .count();
                let end = match code[..at - hashes].ends_with('r') {
                    true => LiteralEnd::Raw { hashes },
                    false => LiteralEnd::Quote,
                };
                return Some((at + 1, Start::Literal(end)));
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Returns the text of a literal up to its end, and the rest of the line; `None` if the literal continues in the next
/// line.
fn cut_literal(rest: &str, end: LiteralEnd) -> (&str, Option<&str>) {
    if let LiteralEnd::Raw { hashes } = end {
        let end = format!("\"{}", "#".repeat(hashes));
        return match rest.split_once(&end) {
            Some((text, after)) => (text, Some(after)),
            None => (rest, None),
        };
    }
    let bytes = rest.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 1,
            b'"' => return (&rest[..at], Some(&rest[at + 1..])),
            _ => {}
        }
        at += 1;
    }
    (rest, None)
}

#[cfg(test)]
mod tests {
    use super::prose;

    #[test]
    fn comments_and_literals_are_found_and_code_is_not() {
        let source = "let a = \"one // \\\" two\"; // three\nlet b = '\"'; let c = r#\"four \" five\"#;\nlet d = \"six\n  seven\"; d";
        let found: Vec<_> = prose(source)
            .into_iter()
            .map(|p| (p.line, p.text))
            .collect();
        let expected = [
            (1, "one // \\\" two"),
            (1, "// three"),
            (2, "four \" five"),
            (3, "six"),
            (4, "  seven"),
        ];
        assert_eq!(found, expected);
    }
}
