//! Redis's glob patterns: `*`, `?`, `[a-z]`, `[^x]` and `\`, which escapes a character.
//!
//! Matching is iterative. A mismatch backtracks to the last `*` only, so for every pattern the time is at most
//! proportional to the product of the two lengths.

/// Whether letters of either case match each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LetterCase {
    /// Bytes must be equal.
    Exact,
    /// ASCII letters match in either case.
    Fold,
}

/// Whether all of `text` matches `pattern`. As in Redis, an empty text matches only the empty pattern; KEYS and SCAN
/// handle the pattern `*` separately.
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8], case: LetterCase) -> bool {
    if text.is_empty() {
        return pattern.is_empty();
    }
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        let step = match pattern.get(p) {
            Some(b'*') => {
                p += 1;
                star = Some((p, t));
                continue;
            }
            Some(_) => one(&pattern[p..], text[t], case),
            None => None,
        };
        match (step, star) {
            (Some(taken), _) => {
                p += taken;
                t += 1;
            }
            (None, Some((after, from))) => {
                star = Some((after, from + 1));
                (p, t) = (after, from + 1);
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|&b| b == b'*')
}

/// Matches one byte against the pattern's first item. Returns the item's length if it matches.
fn one(pattern: &[u8], byte: u8, case: LetterCase) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => {
            let (found, len) = in_class(class, byte, case);
            found.then_some(len + 1)
        }
        [b'\\', escaped, ..] => (fold(*escaped, case) == fold(byte, case)).then_some(2),
        [plain, ..] => (fold(*plain, case) == fold(byte, case)).then_some(1),
        [] => None,
    }
}

/// Returns whether `byte` is in the class that starts after `[`, and the class's length including its `]`. The `]` may
/// be missing at the pattern's end.
fn in_class(class: &[u8], byte: u8, case: LetterCase) -> (bool, usize) {
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut found = false;
    loop {
        match &class[at..] {
            [] => return (found != negated, at),
            [b'\\', escaped, ..] => {
                found |= *escaped == byte;
                at += 2;
            }
            [b']', ..] => return (found != negated, at + 1),
            [from, b'-', to, ..] => {
                // The bounds are ordered before their case is folded, as in Redis.
                let (low, high) = (fold(*from.min(to), case), fold(*from.max(to), case));
                found |= (low..=high).contains(&fold(byte, case));
                at += 3;
            }
            [plain, ..] => {
                found |= fold(*plain, case) == fold(byte, case);
                at += 1;
            }
        }
    }
}

fn fold(byte: u8, case: LetterCase) -> u8 {
    match case {
        LetterCase::Exact => byte,
        LetterCase::Fold => byte.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", false),
            ("**", "", false),
            ("***", "abc", true),
            ("a*c", "abbc", true),
            ("a*c", "abbd", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("h[ae]llo", "hello", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h[a-c", "hb", true),
            ("[]", "a", false),
            ("[\\]]", "]", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("a\\", "a\\", true),
            ("*a*b*c", "xxaxxbxxc", true),
            ("*a*b*c", "xxaxxbxx", false),
            ("ab*", "ab", true),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes(), LetterCase::Exact),
                expected,
                "{pattern} {text}"
            );
        }
        assert!(matches(b"MAX*", b"maxclients", LetterCase::Fold));
        assert!(!matches(b"MAX*", b"maxclients", LetterCase::Exact));
    }

    #[test]
    fn a_hostile_pattern_does_not_take_exponential_time() {
        let pattern = b"a*".repeat(2000);
        let text = b"a".repeat(20_000);
        assert!(matches(&pattern, &text, LetterCase::Exact));
        let mut pattern = b"*a".repeat(2000);
        pattern.push(b'b');
        assert!(!matches(&pattern, &text, LetterCase::Exact));
    }
}
