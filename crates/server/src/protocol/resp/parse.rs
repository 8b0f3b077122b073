//! Parses requests, which are RESP arrays or inline commands, in place.
//!
//! ```text
//!   input   *3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nhel        (the rest has not arrived)
//!                        ▲▲▲          ▲        ▲
//!   spans               [8..11,     17..18]    at: where parsing resumes when more has arrived
//! ```
//!
//! A [`RequestParser`] reads requests from a slice that starts at the first request's first byte and grows. It parses a
//! window of complete requests ahead, so that the store can prefetch their keys. It also remembers its position in the
//! incomplete request after them, so that a request in many pieces is parsed in one pass. Arguments are spans of the
//! slice. Only inline requests are copied, because quoting changes their bytes.
//!
//! # Invariants
//! SRV-RESP-1  The result depends on the bytes only, not on how they were split into reads.
//! SRV-RESP-2  Memory is bounded by the bytes that have arrived, never by an announced length.

use std::fmt;

use super::number::parse_i64;

/// Most bytes of a line without its end: an inline request, or a length.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Most arguments of a request.
const ARGS_MAX: i64 = 1 << 20;
/// Most arguments of a request of a client that is not authenticated, and most bytes of each.
const UNAUTHENTICATED_ARGS_MAX: i64 = 10;
const UNAUTHENTICATED_BULK_BYTES_MAX: usize = 16 << 10;
/// Argument slots kept for the next request.
const SPANS_KEPT: usize = 1024;

/// Limits of requests.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Most bytes of an argument (`proto-max-bulk-len`).
    pub bulk_bytes_max: usize,
    /// Whether the client has given the server's password, or needs none. Requests of other clients have at most 10
    /// arguments of 16 KiB, as in Redis.
    pub is_authenticated: bool,
}

/// A malformed request. The server replies with the error and closes the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The number of arguments is not a number, or too large.
    MultibulkLength,
    /// The line with the number of arguments is too long.
    MultibulkLine,
    /// An argument's length is not a number, negative or too large.
    BulkLength,
    /// The line with an argument's length is too long.
    BulkLine,
    /// An argument starts with this byte instead of `$`.
    ExpectedDollar(u8),
    /// An inline request is too long.
    InlineTooBig,
    /// An inline request has unbalanced quotes.
    Quotes,
    /// The client is not authenticated, and the request has too many arguments.
    UnauthenticatedMultibulkLength,
    /// The client is not authenticated, and an argument is too large.
    UnauthenticatedBulkLength,
}

impl ProtocolError {
    /// The text of the error reply, without `-` and the line's end.
    #[must_use]
    pub fn reply(self) -> Vec<u8> {
        let mut text = b"ERR Protocol error: ".to_vec();
        text.extend_from_slice(match self {
            ProtocolError::MultibulkLength => b"invalid multibulk length",
            ProtocolError::MultibulkLine => b"too big mbulk count string",
            ProtocolError::BulkLength => b"invalid bulk length",
            ProtocolError::BulkLine => b"too big bulk count string",
            ProtocolError::ExpectedDollar(_) => b"expected '$', got '",
            ProtocolError::InlineTooBig => b"too big inline request",
            ProtocolError::Quotes => b"unbalanced quotes in request",
            ProtocolError::UnauthenticatedMultibulkLength => b"unauthenticated multibulk length",
            ProtocolError::UnauthenticatedBulkLength => b"unauthenticated bulk length",
        });
        if let ProtocolError::ExpectedDollar(byte) = self {
            text.extend_from_slice(&[byte, b'\'']);
        }
        text
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.reply()))
    }
}

impl std::error::Error for ProtocolError {}

/// Byte range of an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArgSpan {
    start: usize,
    end: usize,
}

/// The arguments of a request, its name first.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    bytes: &'a [u8],
    spans: &'a [ArgSpan],
}

impl<'a> Args<'a> {
    /// Number of arguments, including the name.
    #[inline]
    #[must_use]
    #[expect(
        clippy::len_without_is_empty,
        reason = "a request has at least its name"
    )]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// The argument at `index`, if it exists.
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        let span = self.spans.get(index)?;
        self.bytes.get(span.start..span.end)
    }

    /// The argument at `index`; empty if it does not exist. Commands use this after their arity was checked.
    #[inline]
    #[must_use]
    pub fn at(&self, index: usize) -> &'a [u8] {
        self.get(index).unwrap_or_default()
    }

    /// The request that starts at argument `index`.
    #[must_use]
    pub fn rest(&self, index: usize) -> Args<'a> {
        Args {
            bytes: self.bytes,
            spans: self.spans.get(index..).unwrap_or_default(),
        }
    }

    /// The request's arguments before argument `end`.
    #[must_use]
    pub fn until(&self, end: usize) -> Args<'a> {
        Args {
            bytes: self.bytes,
            spans: &self.spans[..end.min(self.spans.len())],
        }
    }

    /// The arguments from `index` on.
    pub fn from(&self, index: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        self.spans
            .iter()
            .skip(index)
            .map(move |s| bytes.get(s.start..s.end).unwrap_or_default())
    }
}

/// Arguments of one request, collected one by one.
#[derive(Debug, Default)]
pub struct ArgsBuffer {
    bytes: Vec<u8>,
    spans: Vec<ArgSpan>,
}

impl ArgsBuffer {
    /// Appends an argument.
    pub fn push(&mut self, arg: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(arg);
        let end = self.bytes.len();
        self.spans.push(ArgSpan { start, end });
    }

    /// Removes all arguments, and frees memory that only a large request needed.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(CHUNK_BYTES);
        self.spans.clear();
        self.spans.shrink_to(SPANS_KEPT);
    }

    /// Whether there are no arguments.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The request.
    #[must_use]
    pub fn args(&self) -> Args<'_> {
        Args {
            bytes: &self.bytes,
            spans: &self.spans,
        }
    }
}

/// Most bytes of the requests in a chunk; a larger request has its own chunk.
const CHUNK_BYTES: usize = 64 << 10;

/// Copies of requests for later execution: those queued by MULTI.
///
/// Requests are stored in chunks. So memory is little more than their bytes and spans, and adding one copies no other.
#[derive(Debug, Default)]
pub struct QueuedRequests {
    chunks: Vec<QueuedChunk>,
    requests: usize,
    args: usize,
    /// Bytes of memory that all chunks but the last use.
    full_bytes: usize,
}

/// Consecutive requests of [`QueuedRequests`].
#[derive(Debug)]
struct QueuedChunk {
    /// Number of requests in the chunks before this one.
    first: usize,
    bytes: Vec<u8>,
    spans: Vec<ArgSpan>,
    /// End of each request's spans.
    ends: Vec<usize>,
}

impl QueuedChunk {
    /// Frees unused capacity.
    fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.spans.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// Bytes of memory that the chunk uses.
    fn memory_bytes(&self) -> usize {
        size_of::<QueuedChunk>()
            + self.bytes.capacity()
            + self.spans.capacity() * size_of::<ArgSpan>()
            + self.ends.capacity() * size_of::<usize>()
    }
}

impl QueuedRequests {
    /// Appends a copy of a request.
    pub fn push(&mut self, args: Args<'_>) {
        let bytes = args.from(0).map(<[u8]>::len).sum();
        let chunk = self.chunk_for(bytes);
        for arg in args.from(0) {
            let start = chunk.bytes.len();
            chunk.bytes.extend_from_slice(arg);
            chunk.spans.push(ArgSpan {
                start,
                end: chunk.bytes.len(),
            });
        }
        chunk.ends.push(chunk.spans.len());
        self.requests += 1;
        self.args += args.len();
    }

    /// Returns a chunk with space for a request of `bytes`.
    fn chunk_for(&mut self, bytes: usize) -> &mut QueuedChunk {
        let has_room = |chunk: &QueuedChunk| chunk.bytes.len() + bytes <= CHUNK_BYTES;
        if !self.chunks.last().is_some_and(has_room) {
            if let Some(full) = self.chunks.last_mut() {
                full.shrink();
                self.full_bytes += full.memory_bytes();
            }
            self.chunks.push(QueuedChunk {
                first: self.requests,
                bytes: Vec::with_capacity(bytes),
                spans: Vec::new(),
                ends: Vec::new(),
            });
        }
        let last = self.chunks.len() - 1;
        &mut self.chunks[last]
    }

    /// Number of requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests
    }

    /// Whether there are no requests.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests == 0
    }

    /// Number of arguments of all requests, including command names.
    #[must_use]
    pub fn arg_count(&self) -> usize {
        self.args
    }

    /// Bytes of memory that the requests use.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.full_bytes + self.chunks.last().map_or(0, QueuedChunk::memory_bytes)
    }

    /// The arguments of the request at `index`.
    #[must_use]
    pub fn args(&self, index: usize) -> Args<'_> {
        let after = self.chunks.partition_point(|chunk| chunk.first <= index);
        let chunk = &self.chunks[after - 1];
        let index = index - chunk.first;
        let from = index.checked_sub(1).map_or(0, |before| chunk.ends[before]);
        Args {
            bytes: &chunk.bytes,
            spans: &chunk.spans[from..chunk.ends[index]],
        }
    }
}

/// Ends of a complete request's spans and bytes.
#[derive(Clone, Copy, Debug)]
struct WholeRequest {
    spans: usize,
    end: usize,
    is_inline: bool,
}

/// Incremental parser of requests; see the module.
#[derive(Debug, Default)]
pub struct RequestParser {
    /// Arguments of the complete requests, then those of the request in progress.
    spans: Vec<ArgSpan>,
    whole: Vec<WholeRequest>,
    /// End of the bytes of complete and empty requests.
    consumed: usize,
    /// Position up to which the request in progress is parsed.
    at: usize,
    /// Arguments that the request in progress still misses; 0 before its first line.
    missing: usize,
    /// Length of the argument at `at`, once it is known.
    bulk: Option<usize>,
    /// Arguments of inline requests, unquoted.
    inline: Vec<u8>,
}

impl RequestParser {
    /// Continues parsing until `most` requests are complete, or `input` ends. `input` must start at the same byte as in
    /// the previous call and contain at least the same bytes. Returns the number of complete requests.
    ///
    /// # Errors
    /// The request after the complete ones is malformed. Nothing after it can be parsed.
    #[inline]
    pub fn read(
        &mut self,
        input: &[u8],
        limits: RequestLimits,
        most: usize,
    ) -> Result<usize, ProtocolError> {
        while self.whole.len() < most && self.step(input, limits)? {}
        Ok(self.whole.len())
    }

    /// Parses one request. Returns `false` if it is not complete yet.
    #[inline]
    fn step(&mut self, input: &[u8], limits: RequestLimits) -> Result<bool, ProtocolError> {
        if self.missing == 0 {
            match input.get(self.at) {
                None => return Ok(false),
                Some(b'*') => {}
                Some(_) => return self.read_inline(input),
            }
            let Some((count, next)) = length(input, self.at, ProtocolError::MultibulkLine)? else {
                return Ok(false);
            };
            let count = count
                .filter(|&n| n <= ARGS_MAX)
                .ok_or(ProtocolError::MultibulkLength)?;
            if !limits.is_authenticated && count > UNAUTHENTICATED_ARGS_MAX {
                return Err(ProtocolError::UnauthenticatedMultibulkLength);
            }
            self.at = next;
            self.missing = usize::try_from(count).unwrap_or(0);
            if self.missing == 0 {
                self.consumed = next;
                return Ok(true);
            }
        }
        while self.missing > 0 {
            if !self.read_bulk(input, limits)? {
                return Ok(false);
            }
        }
        self.consumed = self.at;
        self.whole.push(WholeRequest {
            spans: self.spans.len(),
            end: self.at,
            is_inline: false,
        });
        Ok(true)
    }

    /// Parses one argument. Returns `false` if it is not complete yet.
    #[inline]
    fn read_bulk(&mut self, input: &[u8], limits: RequestLimits) -> Result<bool, ProtocolError> {
        let len = match self.bulk {
            Some(len) => len,
            None => match self.bulk_length(input, limits)? {
                Some(len) => len,
                None => return Ok(false),
            },
        };
        if input.len() - self.at < len + 2 {
            self.bulk = Some(len);
            return Ok(false);
        }
        self.spans.push(ArgSpan {
            start: self.at,
            end: self.at + len,
        });
        self.at += len + 2;
        self.bulk = None;
        self.missing -= 1;
        Ok(true)
    }

    #[inline]
    fn bulk_length(
        &mut self,
        input: &[u8],
        limits: RequestLimits,
    ) -> Result<Option<usize>, ProtocolError> {
        if self.at == input.len() {
            return Ok(None);
        }
        // Another byte than `$` may be a NUL, which hides the line's end, and only `length_exact` sees it.
        let parsed = match input[self.at] {
            b'$' => length(input, self.at, ProtocolError::BulkLine)?,
            _ => length_exact(input, self.at, ProtocolError::BulkLine)?,
        };
        let Some((len, next)) = parsed else {
            return Ok(None);
        };
        if input[self.at] != b'$' {
            return Err(ProtocolError::ExpectedDollar(input[self.at]));
        }
        let len = len.and_then(|n| usize::try_from(n).ok());
        let len = len
            .filter(|&n| n <= limits.bulk_bytes_max)
            .ok_or(ProtocolError::BulkLength)?;
        if !limits.is_authenticated && len > UNAUTHENTICATED_BULK_BYTES_MAX {
            return Err(ProtocolError::UnauthenticatedBulkLength);
        }
        self.at = next;
        Ok(Some(len))
    }

    fn read_inline(&mut self, input: &[u8]) -> Result<bool, ProtocolError> {
        let rest = &input[self.at..];
        let Some(end) = line_end(rest, b'\n') else {
            return if rest.len() > LINE_BYTES_MAX {
                Err(ProtocolError::InlineTooBig)
            } else {
                Ok(false)
            };
        };
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        let before = self.spans.len();
        if split_line(line, &mut self.inline, &mut self.spans).is_none() {
            self.spans.truncate(before);
            return Err(ProtocolError::Quotes);
        }
        self.at += end + 1;
        self.consumed = self.at;
        if self.spans.len() > before {
            self.whole.push(WholeRequest {
                spans: self.spans.len(),
                end: self.at,
                is_inline: true,
            });
        }
        Ok(true)
    }

    /// Number of complete requests.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a parser is no collection")]
    pub fn len(&self) -> usize {
        self.whole.len()
    }

    /// The arguments of the complete request at `index`, which was parsed from `input`.
    #[inline]
    #[must_use]
    pub fn args<'a>(&'a self, input: &'a [u8], index: usize) -> Args<'a> {
        let from = if index == 0 {
            0
        } else {
            self.whole[index - 1].spans
        };
        let WholeRequest {
            spans, is_inline, ..
        } = self.whole[index];
        let bytes = if is_inline { &self.inline } else { input };
        Args {
            bytes,
            spans: &self.spans[from..spans],
        }
    }

    /// Bytes up to the end of the last complete request.
    #[inline]
    #[must_use]
    pub fn consumed(&self) -> usize {
        self.consumed
    }

    /// Bytes up to the end of the complete request at `index`.
    #[must_use]
    pub fn end(&self, index: usize) -> usize {
        self.whole[index].end
    }

    /// Bytes that must have arrived after the complete requests before parsing can continue; 0 if unknown.
    #[must_use]
    pub fn needed(&self) -> usize {
        self.bulk.map_or(0, |len| self.at - self.consumed + len + 2)
    }

    /// Bytes of memory that this parser uses.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.spans.capacity() * size_of::<ArgSpan>()
            + self.whole.capacity() * size_of::<WholeRequest>()
            + self.inline.capacity()
    }

    /// Drops the complete requests: the next `input` starts after [`RequestParser::consumed`].
    #[inline]
    pub fn next(&mut self) {
        let gone = std::mem::take(&mut self.consumed);
        let done = self.whole.last().map_or(0, |last| last.spans);
        self.whole.clear();
        self.at -= gone;
        if done == self.spans.len() {
            self.spans.clear();
            if self.spans.capacity() > SPANS_KEPT {
                self.spans = Vec::new();
            }
        } else if gone > 0 {
            self.spans.drain(..done);
            for span in &mut self.spans {
                span.start -= gone;
                span.end -= gone;
            }
        }
        if !self.inline.is_empty() {
            self.inline = Vec::new();
        }
    }

    /// Drops all state: the next `input` starts at a request's first byte.
    pub fn reset(&mut self) {
        *self = RequestParser::default();
    }
}

/// Returns the position of `end` in the line at the start of `bytes`. As in Redis, a NUL before `end` hides it: such a
/// line never ends.
fn line_end(bytes: &[u8], end: u8) -> Option<usize> {
    let mut line = bytes.iter().take(LINE_BYTES_MAX + 1);
    let at = line.position(|&b| b == end || b == 0)?;
    (bytes[at] == end).then_some(at)
}

/// A line's number, if it is valid, and the start of the next line; `None` if the line has not arrived completely.
type ParsedLine = Option<(Option<i64>, usize)>;

/// Parses the line at `at`: one marker byte, a number, `\r\n`.
#[inline]
fn length(input: &[u8], at: usize, too_long: ProtocolError) -> Result<ParsedLine, ProtocolError> {
    // Fast path for up to nine digits. `length_exact` handles everything else.
    let mut value = 0u32;
    let mut end = at + 1;
    while let Some(digit) = input
        .get(end)
        .map(|b| b.wrapping_sub(b'0'))
        .filter(|&d| d <= 9)
    {
        if end > at + 9 {
            break;
        }
        value = value * 10 + u32::from(digit);
        end += 1;
    }
    let plain = end > at + 1 && (end == at + 2 || input[at + 1] != b'0');
    if plain && end + 1 < input.len() && input[end] == b'\r' {
        return Ok(Some((Some(i64::from(value)), end + 2)));
    }
    length_exact(input, at, too_long)
}

#[cold]
fn length_exact(
    input: &[u8],
    at: usize,
    too_long: ProtocolError,
) -> Result<ParsedLine, ProtocolError> {
    let line = &input[at..];
    match line_end(line, b'\r') {
        None if line.len() > LINE_BYTES_MAX => Err(too_long),
        Some(end) if end + 1 < line.len() => {
            Ok(Some((line.get(1..end).and_then(parse_i64), at + end + 2)))
        }
        _ => Ok(None),
    }
}

/// Splits a line into words. `"..."` supports `\n \r \t \b \a \xHH`, and `\` before any other character; `'...'`
/// supports `\'`. Returns `None` if a quote is not closed, or not followed by a blank.
fn split_line(line: &[u8], words: &mut Vec<u8>, spans: &mut Vec<ArgSpan>) -> Option<()> {
    let mut rest = line;
    loop {
        let Some(first) = rest.iter().position(|&b| !is_blank(b)) else {
            return Some(());
        };
        rest = &rest[first..];
        let start = words.len();
        rest = word(rest, words)?;
        spans.push(ArgSpan {
            start,
            end: words.len(),
        });
    }
}

/// Splits a line into words as an inline request or a line of redis.conf. Returns `None` if its quotes are not balanced.
#[must_use]
pub fn words_of(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (mut words, mut spans) = (Vec::new(), Vec::new());
    split_line(line, &mut words, &mut spans)?;
    let word = |span: &ArgSpan| words[span.start..span.end].to_vec();
    Some(spans.iter().map(word).collect())
}

/// A word in double quotes, with Redis's escapes: [`words_of`] reads it as `word`.
#[must_use]
pub fn quoted(word: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'"'];
    for &byte in word {
        match byte {
            b'\\' | b'"' => quoted.extend_from_slice(&[b'\\', byte]),
            b'\n' => quoted.extend_from_slice(b"\\n"),
            b'\r' => quoted.extend_from_slice(b"\\r"),
            b'\t' => quoted.extend_from_slice(b"\\t"),
            0x07 => quoted.extend_from_slice(b"\\a"),
            0x08 => quoted.extend_from_slice(b"\\b"),
            b' '..=b'~' => quoted.push(byte),
            _ => quoted.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
        }
    }
    quoted.push(b'"');
    quoted
}

/// Appends the first word of `text`, unquoted. Returns the text after it.
fn word<'a>(mut text: &'a [u8], out: &mut Vec<u8>) -> Option<&'a [u8]> {
    while let [first, rest @ ..] = text {
        text = match first {
            b'"' => return closed(double_quoted(rest, out)?),
            b'\'' => return closed(single_quoted(rest, out)?),
            b' ' | b'\n' | b'\r' | b'\t' => return Some(text),
            _ => {
                out.push(*first);
                rest
            }
        };
    }
    Some(text)
}

/// Checks that the text after a closing quote is empty or starts with a blank.
fn closed(rest: &[u8]) -> Option<&[u8]> {
    rest.first().is_none_or(|&b| is_blank(b)).then_some(rest)
}

fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

fn double_quoted<'a>(mut text: &'a [u8], out: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        text = match text {
            [b'\\', b'x', high, low, rest @ ..]
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                out.push(hex(*high) << 4 | hex(*low));
                rest
            }
            [b'\\', escaped, rest @ ..] => {
                out.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => *other,
                });
                rest
            }
            [b'"', rest @ ..] => return Some(rest),
            [plain, rest @ ..] => {
                out.push(*plain);
                rest
            }
            [] => return None,
        };
    }
}

fn single_quoted<'a>(mut text: &'a [u8], out: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        text = match text {
            [b'\\', b'\'', rest @ ..] => {
                out.push(b'\'');
                rest
            }
            [b'\'', rest @ ..] => return Some(rest),
            [plain, rest @ ..] => {
                out.push(*plain);
                rest
            }
            [] => return None,
        };
    }
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
