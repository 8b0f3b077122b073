//! Requests: RESP arrays and inline commands, read where they lie.
//!
//! ```text
//!   input   *3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nhel        (the rest has not arrived)
//!                        ▲▲▲          ▲        ▲
//!   spans               [8..11,     17..18]    at: where to go on when more has arrived
//! ```
//!
//! A [`Parser`] reads requests from a slice that starts at the first request's first byte and grows.
//! It reads ahead a window of whole requests, so that the store can be told which keys are coming,
//! and remembers how far it came in the one after them, so that a request in many pieces costs one
//! pass. Arguments are spans of that slice. Only inline requests are copied, because quoting changes
//! their bytes.
//!
//! # Invariants
//! A1  What is decided depends on the bytes only, not on how they were cut into reads.
//! A2  Memory is bounded by the bytes that have arrived, never by a length that was announced.

use std::fmt;

use super::number::parse_i64;

/// Longest line without its end: an inline request, or a length.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Most arguments of a request.
const ARGS_MAX: i64 = 1 << 20;
/// Argument slots kept for the next request.
const SPANS_KEPT: usize = 1024;

/// What a request may announce.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Longest argument (`proto-max-bulk-len`).
    pub bulk_bytes_max: usize,
}

/// A request no server can read: it is answered and the connection closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The number of arguments is no number, or too large.
    MultibulkLength,
    /// The line with the number of arguments does not end.
    MultibulkLine,
    /// An argument's length is no number, negative or too large.
    BulkLength,
    /// The line with an argument's length does not end.
    BulkLine,
    /// An argument does not start with `$` but with this.
    ExpectedDollar(u8),
    /// An inline request does not end.
    InlineTooBig,
    /// An inline request has a quote that does not close.
    Quotes,
}

impl ProtocolError {
    /// The reply, without its marker and line end.
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

/// Where an argument lies.
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
    /// How many there are.
    #[inline]
    #[must_use]
    #[expect(
        clippy::len_without_is_empty,
        reason = "a request has at least its name"
    )]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// The argument at `index`, or nothing.
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        let span = self.spans.get(index)?;
        self.bytes.get(span.start..span.end)
    }

    /// The argument at `index`; empty if there is none. Commands ask after their arity was checked.
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

    /// The arguments from `index` on.
    pub fn from(&self, index: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        self.spans
            .iter()
            .skip(index)
            .map(move |s| bytes.get(s.start..s.end).unwrap_or_default())
    }
}

/// Bytes of kept requests after which a chunk is full; a larger request has one of its own.
const CHUNK_BYTES: usize = 64 << 10;

/// Requests kept for later: what MULTI queues.
///
/// They lie in chunks, so that many take no more memory than their bytes and spans, and none is copied when more come.
#[derive(Debug, Default)]
pub struct QueuedRequests {
    chunks: Vec<QueuedChunk>,
    requests: usize,
    args: usize,
    /// Bytes of memory that all chunks but the last take.
    full_bytes: usize,
}

/// Requests that were kept one after another.
#[derive(Debug)]
struct QueuedChunk {
    /// How many requests are in chunks before this one.
    first: usize,
    bytes: Vec<u8>,
    spans: Vec<ArgSpan>,
    /// Where each request's spans end.
    ends: Vec<usize>,
}

impl QueuedChunk {
    /// Gives back memory that no request will use.
    fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.spans.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// Bytes of memory it takes.
    fn memory_bytes(&self) -> usize {
        size_of::<QueuedChunk>()
            + self.bytes.capacity()
            + self.spans.capacity() * size_of::<ArgSpan>()
            + self.ends.capacity() * size_of::<usize>()
    }
}

impl QueuedRequests {
    /// Copies a request.
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

    /// The chunk that takes a request of `bytes`.
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

    /// How many requests are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests
    }

    /// Whether none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests == 0
    }

    /// How many arguments the kept requests have together, their names included.
    #[must_use]
    pub fn arg_count(&self) -> usize {
        self.args
    }

    /// Bytes of memory the kept requests take.
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

/// A whole request: where its spans and its bytes end.
#[derive(Clone, Copy, Debug)]
struct WholeRequest {
    spans: usize,
    end: usize,
    is_inline: bool,
}

/// Reads one request after another.
#[derive(Debug, Default)]
pub struct RequestParser {
    /// Arguments of the whole requests, then those of the one in progress.
    spans: Vec<ArgSpan>,
    whole: Vec<WholeRequest>,
    /// Where the bytes of whole and skipped requests end.
    consumed: usize,
    /// How far the request in progress has been read.
    at: usize,
    /// Arguments it still misses; 0 before its first line.
    missing: usize,
    /// The length of the argument at `at`, once known.
    bulk: Option<usize>,
    /// Arguments of inline requests, unquoted.
    inline: Vec<u8>,
}

impl RequestParser {
    /// Reads on until `most` requests are whole, or `input` ends. `input` starts where it started
    /// before and holds at least what it held before. Returns how many requests are whole.
    ///
    /// # Errors
    /// What follows the whole requests cannot be read, nor anything after it.
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

    /// Reads one request; false if it is not whole yet.
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

    /// Reads one argument; false if it is not whole yet.
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
        let Some((len, next)) = length(input, self.at, ProtocolError::BulkLine)? else {
            return Ok(None);
        };
        if input[self.at] != b'$' {
            return Err(ProtocolError::ExpectedDollar(input[self.at]));
        }
        let len = len.and_then(|n| usize::try_from(n).ok());
        let len = len
            .filter(|&n| n <= limits.bulk_bytes_max)
            .ok_or(ProtocolError::BulkLength)?;
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

    /// How many requests are whole.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a parser is no collection")]
    pub fn len(&self) -> usize {
        self.whole.len()
    }

    /// The arguments of the whole request at `index`, read from `input`.
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

    /// Bytes up to the end of the last whole request.
    #[inline]
    #[must_use]
    pub fn consumed(&self) -> usize {
        self.consumed
    }

    /// Bytes up to the end of the whole request at `index`.
    #[must_use]
    pub fn end(&self, index: usize) -> usize {
        self.whole[index].end
    }

    /// Bytes, after the whole requests, that are known to be needed before it can go on.
    #[must_use]
    pub fn needed(&self) -> usize {
        self.bulk.map_or(0, |len| self.at - self.consumed + len + 2)
    }

    /// Bytes this parser holds on to.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.spans.capacity() * size_of::<ArgSpan>()
            + self.whole.capacity() * size_of::<WholeRequest>()
            + self.inline.capacity()
    }

    /// Forgets the whole requests: the next `input` starts after [`Parser::consumed`].
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

    /// Forgets everything: the next `input` starts at a request's first byte.
    pub fn reset(&mut self) {
        *self = RequestParser::default();
    }
}

/// Where `end` is in the line that `bytes` starts with. As in Redis, a line does not go on behind a
/// NUL: such a line never ends.
fn line_end(bytes: &[u8], end: u8) -> Option<usize> {
    let mut line = bytes.iter().take(LINE_BYTES_MAX + 1);
    let at = line.position(|&b| b == end || b == 0)?;
    (bytes[at] == end).then_some(at)
}

/// A line's number, if it is one, and where the next line starts.
type ParsedLine = Option<(Option<i64>, usize)>;

/// Reads the line at `at`: one marker byte, a number, `\r\n`. Nothing if it has not arrived whole.
#[inline]
fn length(input: &[u8], at: usize, too_long: ProtocolError) -> Result<ParsedLine, ProtocolError> {
    // Up to nine digits, as nearly all are; everything else is left to the exact reading below.
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

/// Splits a line into words. `"..."` knows `\n \r \t \b \a \xHH` and `\` before anything else; `'...'`
/// knows `\'`. Nothing if a quote does not close, or something other than a blank follows it.
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

/// Appends the first word of `text`, unquoted; returns what follows it.
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

/// What follows a closing quote, which must be a blank or nothing.
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
