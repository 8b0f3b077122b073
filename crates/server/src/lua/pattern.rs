//! Lua patterns: matching with a bound on the time between two checks.
//!
//! Lua's own matcher may need time exponential in the pattern's length, in C, where no instruction is counted. This one
//! counts steps, and checks the running script's time after every [`STEPS_PER_CHECK`] of them. Its results are the same.
//! Recursion is limited to [`DEPTH_MAX`] pattern items.

use std::ops::Range;

use super::host::checked;

/// Most captures of a pattern.
const CAPTURES_MAX: usize = 32;
/// Most nested calls of the matcher.
const DEPTH_MAX: usize = 200;
/// Steps after which the time is checked.
const STEPS_PER_CHECK: usize = 10_000;

/// Why a match has ended without a result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum PatternError {
    /// The pattern is wrong.
    Malformed(&'static str),
    /// The script must end.
    Aborted,
}

/// A captured part of the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Capture {
    /// `(...)`: this range.
    Range(usize, usize),
    /// `()`: the position before this byte.
    Position(usize),
    /// A capture that has not ended.
    Open(usize),
}

/// A pattern and the text that it is matched with.
pub(super) struct Matcher<'a> {
    text: &'a [u8],
    pattern: &'a [u8],
    captures: Vec<Capture>,
    steps: usize,
    depth: usize,
}

pub(super) type MatchResult = Result<Option<usize>, PatternError>;

/// One item of a pattern that matches one byte: the range of its bytes in the pattern.
type Single = Range<usize>;

impl<'a> Matcher<'a> {
    pub(super) fn new(text: &'a [u8], pattern: &'a [u8]) -> Matcher<'a> {
        Matcher {
            text,
            pattern,
            captures: Vec::new(),
            steps: 0,
            depth: 0,
        }
    }

    /// Captures of the last match.
    pub(super) fn captures(&self) -> &[Capture] {
        &self.captures
    }

    /// Finds the first match that starts at `from` or later. Returns its range.
    pub(super) fn find(&mut self, from: usize) -> Result<Option<Range<usize>>, PatternError> {
        let is_anchored = self.pattern.first() == Some(&b'^');
        for start in from..=self.text.len() {
            if let Some(end) = self.match_at(start)? {
                return Ok(Some(start..end));
            }
            if is_anchored {
                break;
            }
        }
        Ok(None)
    }

    /// As [`Matcher::match_at`], but `^` at the start of the pattern is no anchor.
    pub(super) fn match_unanchored(&mut self, start: usize) -> MatchResult {
        self.captures.clear();
        self.depth = 0;
        self.match_rest(start, 0)
    }

    /// Matches at `start` only. Returns the end of the match.
    pub(super) fn match_at(&mut self, start: usize) -> MatchResult {
        self.captures.clear();
        self.depth = 0;
        let is_anchored = self.pattern.first() == Some(&b'^');
        self.match_rest(start, usize::from(is_anchored))
    }

    fn step(&mut self) -> Result<(), PatternError> {
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_PER_CHECK) && checked() {
            return Err(PatternError::Aborted);
        }
        Ok(())
    }

    /// Matches the pattern from `item` on with the text from `at` on.
    fn match_rest(&mut self, at: usize, item: usize) -> MatchResult {
        if self.depth >= DEPTH_MAX {
            return Err(PatternError::Malformed("pattern too complex"));
        }
        self.depth += 1;
        let matched = self.match_items(at, item);
        self.depth -= 1;
        matched
    }

    fn match_items(&mut self, mut at: usize, mut item: usize) -> MatchResult {
        loop {
            self.step()?;
            let Some(&first) = self.pattern.get(item) else {
                return Ok(Some(at));
            };
            match (first, self.pattern.get(item + 1)) {
                (b'(', Some(b')')) => return self.open(at, item + 2, Capture::Position(at)),
                (b'(', _) => return self.open(at, item + 1, Capture::Open(at)),
                (b')', _) => return self.close(at, item + 1),
                (b'$', None) => return Ok((at == self.text.len()).then_some(at)),
                (b'%', Some(b'b')) => match self.balanced(at, item + 2)? {
                    Some(end) => (at, item) = (end, item + 4),
                    None => return Ok(None),
                },
                (b'%', Some(b'f')) => match self.frontier(at, item + 2)? {
                    Some(next) => item = next,
                    None => return Ok(None),
                },
                (b'%', Some(digit)) if digit.is_ascii_digit() => {
                    match self.same_as_capture(at, *digit)? {
                        Some(end) => (at, item) = (end, item + 2),
                        None => return Ok(None),
                    }
                }
                _ => {
                    let end = self.single_end(item)?;
                    match self.pattern.get(end) {
                        Some(b'?') => {
                            if self.is_single(at, item..end)
                                && let Some(matched) = self.match_rest(at + 1, end + 1)?
                            {
                                return Ok(Some(matched));
                            }
                            item = end + 1;
                        }
                        Some(b'*') => return self.longest(at, item..end, 0),
                        Some(b'+') => return self.longest(at, item..end, 1),
                        Some(b'-') => return self.shortest(at, item..end),
                        _ if self.is_single(at, item..end) => (at, item) = (at + 1, end),
                        _ => return Ok(None),
                    }
                }
            }
        }
    }

    /// The end of the single-byte item at `item`.
    fn single_end(&self, item: usize) -> Result<usize, PatternError> {
        match self.pattern[item] {
            b'%' if item + 1 >= self.pattern.len() => {
                Err(PatternError::Malformed("malformed pattern (ends with '%')"))
            }
            b'%' => Ok(item + 2),
            b'[' => self.set_end(item),
            _ => Ok(item + 1),
        }
    }

    /// The end of the set `[...]` at `item`.
    fn set_end(&self, item: usize) -> Result<usize, PatternError> {
        let missing = PatternError::Malformed("malformed pattern (missing ']')");
        let mut at = item + 1;
        if self.pattern.get(at) == Some(&b'^') {
            at += 1;
        }
        // A `]` at the start is a member.
        let start = at;
        loop {
            match self.pattern.get(at) {
                None => return Err(missing),
                Some(b']') if at > start => return Ok(at + 1),
                Some(b'%') if at + 1 >= self.pattern.len() => return Err(missing),
                Some(b'%') => at += 2,
                Some(_) => at += 1,
            }
        }
    }

    /// Whether the byte at `at` matches a single-byte item.
    fn is_single(&self, at: usize, item: Single) -> bool {
        let Some(&byte) = self.text.get(at) else {
            return false;
        };
        match self.pattern[item.start] {
            b'.' => true,
            b'%' => is_in_class(byte, self.pattern[item.start + 1]),
            b'[' => self.is_in_set(byte, item),
            own => own == byte,
        }
    }

    fn is_in_set(&self, byte: u8, set: Single) -> bool {
        let members = &self.pattern[set.start + 1..set.end - 1];
        let (is_negated, members) = match members {
            [b'^', rest @ ..] => (true, rest),
            _ => (false, members),
        };
        let mut at = 0;
        while at < members.len() {
            let (is_member, len) = match &members[at..] {
                [b'%', class, ..] => (is_in_class(byte, *class), 2),
                [low, b'-', high, ..] => ((*low..=*high).contains(&byte), 3),
                [own, ..] => (*own == byte, 1),
                [] => (false, 1),
            };
            if is_member {
                return !is_negated;
            }
            at += len;
        }
        is_negated
    }

    /// Matches as many bytes with `item` as the further items allow, `least` or more.
    fn longest(&mut self, at: usize, item: Single, least: usize) -> MatchResult {
        let mut count = 0;
        while self.is_single(at + count, item.clone()) {
            self.step()?;
            count += 1;
        }
        loop {
            if count < least {
                return Ok(None);
            }
            if let Some(end) = self.match_rest(at + count, item.end + 1)? {
                return Ok(Some(end));
            }
            if count == 0 {
                return Ok(None);
            }
            count -= 1;
        }
    }

    /// Matches as few bytes with `item` as the further items allow.
    fn shortest(&mut self, mut at: usize, item: Single) -> MatchResult {
        loop {
            if let Some(end) = self.match_rest(at, item.end + 1)? {
                return Ok(Some(end));
            }
            if !self.is_single(at, item.clone()) {
                return Ok(None);
            }
            at += 1;
        }
    }

    fn open(&mut self, at: usize, item: usize, capture: Capture) -> MatchResult {
        if self.captures.len() >= CAPTURES_MAX {
            return Err(PatternError::Malformed("too many captures"));
        }
        let level = self.captures.len();
        self.captures.push(capture);
        let matched = self.match_rest(at, item)?;
        if matched.is_none() {
            self.captures.truncate(level);
        }
        Ok(matched)
    }

    fn close(&mut self, at: usize, item: usize) -> MatchResult {
        let open = |capture: &Capture| matches!(capture, Capture::Open(_));
        let level = self.captures.iter().rposition(open);
        let level = level.ok_or(PatternError::Malformed("invalid pattern capture"))?;
        let Capture::Open(start) = self.captures[level] else {
            return Ok(None);
        };
        self.captures[level] = Capture::Range(start, at);
        let matched = self.match_rest(at, item)?;
        if matched.is_none() {
            self.captures[level] = Capture::Open(start);
        }
        Ok(matched)
    }

    /// `%bxy`: from `x` to the matching `y`.
    fn balanced(&mut self, at: usize, item: usize) -> MatchResult {
        let (Some(&opening), Some(&closing)) = (self.pattern.get(item), self.pattern.get(item + 1))
        else {
            return Err(PatternError::Malformed("unbalanced pattern"));
        };
        if self.text.get(at) != Some(&opening) {
            return Ok(None);
        }
        let mut nested = 1;
        for end in at + 1..self.text.len() {
            self.step()?;
            let byte = self.text[end];
            if byte == closing {
                nested -= 1;
                if nested == 0 {
                    return Ok(Some(end + 1));
                }
            } else if byte == opening {
                nested += 1;
            }
        }
        Ok(None)
    }

    /// `%f[set]`: between a byte outside the set and one inside. Returns the next item.
    fn frontier(&mut self, at: usize, item: usize) -> MatchResult {
        if self.pattern.get(item) != Some(&b'[') {
            let text = "missing '[' after '%f' in pattern";
            return Err(PatternError::Malformed(text));
        }
        let end = self.set_end(item)?;
        let before = at.checked_sub(1).map_or(0, |before| self.text[before]);
        let here = self.text.get(at).copied().unwrap_or(0);
        let is_frontier = !self.is_in_set(before, item..end) && self.is_in_set(here, item..end);
        Ok(is_frontier.then_some(end))
    }

    /// `%1`: the same bytes as a capture. Returns the end of the match.
    fn same_as_capture(&mut self, at: usize, digit: u8) -> MatchResult {
        let index = usize::from(digit).checked_sub(usize::from(b'1'));
        let capture = index.and_then(|index| self.captures.get(index));
        let Some(&Capture::Range(start, end)) = capture else {
            return Err(PatternError::Malformed("invalid capture index"));
        };
        let len = end - start;
        self.steps += len / 64;
        let is_same = self.text.get(at..at + len) == Some(&self.text[start..end]);
        Ok(is_same.then_some(at + len))
    }
}

/// Whether `byte` is in the class of the letter `class`; a capital letter negates it. Another byte means itself.
fn is_in_class(byte: u8, class: u8) -> bool {
    let is_member = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => matches!(byte, b' ' | b'\t'..=b'\r'),
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return class == byte,
    };
    is_member != class.is_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(text: &str, pattern: &str) -> Option<(usize, usize)> {
        let mut matcher = Matcher::new(text.as_bytes(), pattern.as_bytes());
        let found = matcher.find(0).unwrap();
        found.map(|range| (range.start, range.end))
    }

    #[test]
    fn items_match_as_in_lua() {
        assert_eq!(find("hello world", "o w"), Some((4, 7)));
        assert_eq!(find("key=value", "(%w+)=(%w+)"), Some((0, 9)));
        assert_eq!(find("aXb", "%u"), Some((1, 2)));
        assert_eq!(find("f(a(b)c)d", "%b()"), Some((1, 8)));
        assert_eq!(find("THE (quick) fox", "%f[%a]%a+%f[%A]"), Some((0, 3)));
        assert_eq!(find("abab", "^(ab)%1$"), Some((0, 4)));
        assert_eq!(find("<<a>>", "<(.-)>"), Some((0, 4)));
        assert_eq!(find("x]y", "[]]"), Some((1, 2)));
        assert_eq!(find("a-b", "[a%-]+"), Some((0, 2)));
        assert_eq!(find("abc", "[^a-b]"), Some((2, 3)));
        assert_eq!(find("abc", "d?$"), Some((3, 3)));
        assert_eq!(find("abc", "^b"), None);
    }

    #[test]
    fn malformed_patterns_are_errors() {
        for pattern in ["[a", "%", "(a", "a)", "%bx", "%fa", "%1"] {
            let mut matcher = Matcher::new(b"aaa", pattern.as_bytes());
            let found = matcher.find(0);
            let is_open = matcher
                .captures()
                .iter()
                .any(|c| matches!(c, Capture::Open(_)));
            assert!(found.is_err() || is_open, "{pattern}");
        }
    }

    #[test]
    fn a_long_pattern_is_refused_instead_of_overflowing_the_stack() {
        let pattern = "a?".repeat(100_000);
        let text = "a".repeat(100_000);
        let mut matcher = Matcher::new(text.as_bytes(), pattern.as_bytes());
        assert_eq!(
            matcher.find(0),
            Err(PatternError::Malformed("pattern too complex"))
        );
    }
}
