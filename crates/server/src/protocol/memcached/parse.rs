//! Parses requests of memcached's text protocol in place.
//!
//! ```text
//!   get k1 k2\r\n           set k 0 0 5\r\nhello\r\n           ms k 5 T60\r\nhello\r\n
//!       └───┘ words         └ Store ──┘  └ payload            └ line ──┘  └ payload
//! ```
//!
//! [`read`] parses the request at the start of the input. The result is a complete request, with its length and the
//! number of bytes to discard after it; an incomplete request; or input after which the connection is closed. The
//! parser has no state of its own. Words are slices of the input.
//!
//! # Invariants
//! SRV-TEXT-1  The result depends on the bytes only, not on how they were split into reads.
//! SRV-TEXT-2  Memory is bounded by the bytes that have arrived, never by an announced length. A value that is too large is
//!     refused after its first line and discarded as it arrives.

use memchr::{memchr, memchr2};

/// Most bytes of a key.
pub const KEY_BYTES_MAX: usize = 250;
/// Most bytes of a line without its end, except for lines of keys.
pub(super) const LINE_BYTES_MAX: usize = 2048;
/// Most bytes of a line of keys (`get`, `gets`, `gat`, `gats`).
const KEYS_LINE_BYTES_MAX: usize = 4 << 20;
/// Most blanks at the start of a long line, as in memcached.
const BLANKS_MAX: usize = 100;
/// Bytes of an item besides its key and value, for the limit of its size.
const ITEM_HEAD_BYTES: usize = 57;

pub(crate) const ERROR: &str = "ERROR";
pub(crate) const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";

/// Limits of requests.
#[derive(Clone, Copy, Debug)]
pub struct TextLimits {
    /// Most bytes of an item: key, value and header.
    pub item_bytes_max: usize,
}

impl TextLimits {
    /// Whether an item of these lengths is too large.
    pub(crate) fn exceeded(self, key_bytes: usize, flags: u32, value_bytes: usize) -> bool {
        let flags_bytes = if flags == 0 { 0 } else { 4 };
        ITEM_HEAD_BYTES + key_bytes + flags_bytes + value_bytes + 2 > self.item_bytes_max
    }
}

/// Result of [`read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseStep<'a> {
    /// A complete request.
    Whole {
        /// The request.
        request: TextRequest<'a>,
        /// Its bytes.
        used: usize,
        /// Bytes of a refused value after it, to be discarded as they arrive.
        skip: usize,
    },
    /// An incomplete request.
    Part {
        /// Bytes from its start that contain no line end.
        scanned: usize,
        /// Bytes that the request needs; 0 if unknown.
        needed: usize,
    },
    /// Not memcached's protocol: the connection is closed.
    Hangup,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextRequest<'a> {
    /// `get` or `gets`.
    Get {
        /// The keys.
        keys: Words<'a>,
        /// Whether the reply contains versions (`gets`).
        cas: bool,
    },
    /// `set`, `add`, `replace`, `append`, `prepend` or `cas`.
    Store(StoreRequest<'a>),
    /// `ms`.
    MetaSet {
        /// The key, as it was sent.
        key: &'a [u8],
        /// The flags.
        flags: Words<'a>,
        /// The value.
        payload: ValuePayload<'a>,
    },
    /// A request that consists of one line.
    Line(Words<'a>),
    /// A malformed line.
    Fault {
        /// The reply.
        text: &'static str,
        /// The client wants no reply.
        quiet: bool,
    },
}

/// A classic request that stores a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreRequest<'a> {
    /// The command.
    pub how: StoreCondition,
    /// The key.
    pub key: &'a [u8],
    /// The client's 32 bits.
    pub flags: u32,
    /// When it expires, in memcached's format.
    pub exptime: i32,
    /// The `cas` number that the item must have, for [`StoreCondition::Cas`].
    pub cas: u64,
    /// The client wants no reply.
    pub quiet: bool,
    /// The value.
    pub payload: ValuePayload<'a>,
}

/// Condition of a store, and how it combines with the old value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreCondition {
    /// Always.
    Set,
    /// If the key is absent.
    Add,
    /// If the key exists.
    Replace,
    /// Appends to the old value, if the key exists.
    Append,
    /// Prepends to the old value, if the key exists.
    Prepend,
    /// If the item has a given `cas` number.
    Cas,
}

/// The value of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValuePayload<'a> {
    /// The value.
    Whole(&'a [u8]),
    /// No line end follows the announced number of bytes.
    Misplaced,
    /// Refused: the item would exceed [`TextLimits::item_bytes_max`].
    TooLarge,
}

/// Words of a line, separated by blanks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    /// The words of `line`.
    #[must_use]
    pub fn of(line: &'a [u8]) -> Words<'a> {
        Words(line)
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        while let [b' ', rest @ ..] = self.0 {
            self.0 = rest;
        }
        if self.0.is_empty() {
            return None;
        }
        let end = self.0.iter().position(|&b| b == b' ');
        let (word, rest) = self.0.split_at(end.unwrap_or(self.0.len()));
        self.0 = rest;
        Some(word)
    }
}

/// Parses the request at the start of `input`. The first `scanned` bytes are known to contain no line end.
#[inline]
#[must_use]
pub fn read(input: &[u8], scanned: usize, limits: TextLimits) -> ParseStep<'_> {
    let from = scanned.min(input.len());
    let Some(at) = memchr2(b'\n', 0, &input[from..]) else {
        return unfinished(input);
    };
    let mut end = from + at;
    let mut line = &input[..end];
    if input[end] == 0 {
        // As in memcached, the line is consumed to its end, but only the part before the NUL counts.
        match memchr(b'\n', &input[end..]) {
            Some(more) => end += more,
            None => return unfinished(input),
        }
    } else if let [rest @ .., b'\r'] = line {
        line = rest;
    }
    if end > LINE_BYTES_MAX && !may_be_long(&input[..end]) {
        return ParseStep::Hangup;
    }
    let request = match line {
        [b'g', b'e', b't', b' ', keys @ ..] => TextRequest::Get {
            keys: Words(keys),
            cas: false,
        },
        [b's', b'e', b't', b' ', words @ ..] => {
            return store(input, end + 1, StoreCondition::Set, Words(words), limits);
        }
        _ => return other(input, end + 1, line, limits),
    };
    whole(request, end + 1)
}

#[inline]
fn whole(request: TextRequest<'_>, used: usize) -> ParseStep<'_> {
    ParseStep::Whole {
        request,
        used,
        skip: 0,
    }
}

/// Whether the line is a line of keys, which may be longer than others.
fn may_be_long(line: &[u8]) -> bool {
    let blanks = line.iter().take_while(|&&b| b == b' ').count();
    let names = [&b"get "[..], b"gets ", b"gat ", b"gats "];
    let retrieves = names.iter().any(|name| line[blanks..].starts_with(name));
    let fits = blanks <= BLANKS_MAX && line.len() <= KEYS_LINE_BYTES_MAX;
    retrieves && fits && memchr(0, line).is_none()
}

#[cold]
fn unfinished(input: &[u8]) -> ParseStep<'_> {
    if input.len() > LINE_BYTES_MAX && !may_be_long(input) {
        return ParseStep::Hangup;
    }
    ParseStep::Part {
        scanned: memchr(0, input).unwrap_or(input.len()),
        needed: 0,
    }
}

/// Parses a line that does not start with `get ` or `set `.
fn other<'a>(input: &'a [u8], next: usize, line: &'a [u8], limits: TextLimits) -> ParseStep<'a> {
    let mut words = Words(line);
    let how = match words.next().unwrap_or_default() {
        b"get" => return get(words, false, next),
        b"gets" => return get(words, true, next),
        b"set" => StoreCondition::Set,
        b"add" => StoreCondition::Add,
        b"replace" => StoreCondition::Replace,
        b"append" => StoreCondition::Append,
        b"prepend" => StoreCondition::Prepend,
        b"cas" => StoreCondition::Cas,
        b"ms" => return meta_set(input, next, words, limits),
        _ => return whole(TextRequest::Line(Words(line)), next),
    };
    store(input, next, how, words, limits)
}

fn get(keys: Words<'_>, cas: bool, next: usize) -> ParseStep<'_> {
    whole(TextRequest::Get { keys, cas }, next)
}

/// Parses `key flags exptime bytes [cas] [noreply]` and the value after it.
#[inline]
fn store<'a>(
    input: &'a [u8],
    next: usize,
    how: StoreCondition,
    mut words: Words<'a>,
    limits: TextLimits,
) -> ParseStep<'a> {
    let wrong = |text, quiet| whole(TextRequest::Fault { text, quiet }, next);
    let four = [words.next(), words.next(), words.next(), words.next()];
    let [Some(key), Some(flags), Some(exptime), Some(bytes)] = four else {
        return wrong(ERROR, false);
    };
    let version = match how {
        StoreCondition::Cas => match words.next() {
            Some(version) => Some(version),
            None => return wrong(ERROR, false),
        },
        _ => None,
    };
    let last = words.next();
    if words.next().is_some() {
        return wrong(ERROR, false);
    }
    let quiet = last.or(version).unwrap_or(bytes) == b"noreply";
    let numbers = (u32_of(flags), i32_of(exptime), i32_of(bytes));
    let cas = version.map_or(Some(0), u64_of);
    let (Some(flags), Some(exptime), Some(bytes), Some(cas)) =
        (numbers.0, numbers.1, numbers.2, cas)
    else {
        return wrong(BAD_FORMAT, quiet);
    };
    let bytes = match usize::try_from(bytes) {
        Ok(bytes) if key.len() <= KEY_BYTES_MAX && bytes <= i32::MAX as usize - 2 => bytes,
        _ => return wrong(BAD_FORMAT, quiet),
    };
    let refused = limits.exceeded(key.len(), flags, bytes);
    with_payload(input, next, bytes, refused, |payload| {
        TextRequest::Store(StoreRequest {
            how,
            key,
            flags,
            exptime,
            cas,
            quiet,
            payload,
        })
    })
}

/// Parses `key bytes flag...` and the value after it.
fn meta_set<'a>(
    input: &'a [u8],
    next: usize,
    mut words: Words<'a>,
    limits: TextLimits,
) -> ParseStep<'a> {
    let wrong = |text| whole(TextRequest::Fault { text, quiet: false }, next);
    let Some(key) = words.next() else {
        return wrong(ERROR);
    };
    let Some(bytes) = words.next() else {
        return wrong(BAD_FORMAT);
    };
    let flags = words;
    let most = i32::MAX as usize - 2;
    let bytes = i32_of(bytes).and_then(|n| usize::try_from(n).ok());
    let bytes = match bytes.filter(|&n| n <= most) {
        Some(bytes) if key.len() <= KEY_BYTES_MAX => bytes,
        _ => return wrong(BAD_FORMAT),
    };
    let refused = limits.exceeded(key.len(), 0, bytes);
    with_payload(input, next, bytes, refused, |payload| {
        TextRequest::MetaSet {
            key,
            flags,
            payload,
        }
    })
}

/// Returns the request with the value that starts at `next`.
#[inline]
fn with_payload<'a>(
    input: &'a [u8],
    next: usize,
    bytes: usize,
    refused: bool,
    request: impl FnOnce(ValuePayload<'a>) -> TextRequest<'a>,
) -> ParseStep<'a> {
    if refused {
        return ParseStep::Whole {
            request: request(ValuePayload::TooLarge),
            used: next,
            skip: bytes + 2,
        };
    }
    let end = next + bytes;
    let Some(value) = input.get(next..end + 2) else {
        return ParseStep::Part {
            scanned: 0,
            needed: end + 2,
        };
    };
    let payload = match value {
        [value @ .., b'\r', b'\n'] => ValuePayload::Whole(value),
        _ => ValuePayload::Misplaced,
    };
    whole(request(payload), end + 2)
}

/// Parses a number as C's library does: optional blanks, an optional sign, digits, then the end or a blank. Returns its
/// magnitude, and whether it is negative.
fn number(text: &[u8]) -> Option<(u64, bool)> {
    let start = text.iter().position(|&b| !is_space(b))?;
    let (negative, digits) = match &text[start..] {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let (mut value, mut end) = (0u64, 0);
    while let Some(digit) = digits.get(end).map(|b| b.wrapping_sub(b'0')) {
        if digit > 9 {
            break;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
        end += 1;
    }
    let ends = digits.get(end).is_none_or(|&b| is_space(b));
    (end > 0 && ends).then_some((value, negative))
}

fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

/// Parses an unsigned number. Accepts a negative number only if it wraps around to at most `i64::MAX`, as memcached
/// does.
pub(crate) fn u64_of(text: &[u8]) -> Option<u64> {
    let (value, negative) = number(text)?;
    let value = if negative {
        value.wrapping_neg()
    } else {
        value
    };
    let wrapped = value > i64::MAX as u64 && text.contains(&b'-');
    (!wrapped).then_some(value)
}

/// Parses an unsigned number and returns its low 32 bits.
#[inline]
pub(crate) fn u32_of(text: &[u8]) -> Option<u32> {
    match text {
        [digit @ b'0'..=b'9'] => Some(u32::from(digit - b'0')),
        _ => u64_of(text).map(|value| value as u32),
    }
}

/// Parses a signed number and returns its low 32 bits.
#[inline]
pub(crate) fn i32_of(text: &[u8]) -> Option<i32> {
    if let [digit @ b'0'..=b'9'] = text {
        return Some(i32::from(digit - b'0'));
    }
    let (value, negative) = number(text)?;
    let value = match negative {
        true => 0i64.checked_sub_unsigned(value)?,
        false => i64::try_from(value).ok()?,
    };
    Some(value as i32)
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
