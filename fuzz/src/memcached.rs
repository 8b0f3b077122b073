//! memcached requests: reads them with Farbank's parser, and generates random ones.

use farbank_server::memcached::parse::{
    ParseStep, TextLimits, TextRequest, ValuePayload, Words, read,
};

use crate::request_builder::RequestBuilder;
use crate::transcript::{Cut, Transcript};

/// A low limit, so that inputs reach it.
const LIMITS: TextLimits = TextLimits {
    item_bytes_max: 1000,
};

/// Reads requests from `bytes`, which arrive in the reads of `cut`, and adds them to `heard`.
pub fn hear(bytes: &[u8], cut: Cut<'_>, heard: &mut Transcript) {
    let (mut at, mut hint, mut skip) = (0, 0, 0);
    for arrived in cut.arrivals(bytes.len()) {
        loop {
            let skipped = skip.min(arrived - at);
            (at, skip) = (at + skipped, skip - skipped);
            let unread = &bytes[at..arrived];
            if unread.is_empty() {
                break;
            }
            match read(unread, std::mem::take(&mut hint), LIMITS) {
                ParseStep::Whole {
                    request,
                    used,
                    skip: more,
                } => {
                    assert!(used > 0 && used <= unread.len());
                    check(&request, more);
                    spell(&request, heard);
                    (at, skip) = (at + used, more);
                }
                ParseStep::Part { scanned, needed } => {
                    assert!(scanned <= unread.len());
                    // A2: the parser never waits for more bytes than a request may have.
                    assert!(needed <= 2048 + 2 + LIMITS.item_bytes_max + 2);
                    hint = scanned;
                    break;
                }
                ParseStep::Hangup => return heard.refuse(b"hangup"),
            }
        }
    }
}

fn payload_of<'a>(request: &TextRequest<'a>) -> Option<ValuePayload<'a>> {
    match request {
        TextRequest::Store(store) => Some(store.payload),
        TextRequest::MetaSet { payload, .. } => Some(*payload),
        _ => None,
    }
}

/// Asserts that a value is within the limit, and that only values above it are skipped.
fn check(request: &TextRequest<'_>, skip: usize) {
    match payload_of(request) {
        Some(ValuePayload::Whole(value)) => {
            assert!(value.len() <= LIMITS.item_bytes_max && skip == 0);
        }
        Some(ValuePayload::TooLarge) => assert!(skip >= 2),
        Some(ValuePayload::Misplaced) | None => assert_eq!(skip, 0),
    }
}

fn spell(request: &TextRequest<'_>, heard: &mut Transcript) {
    let words = |heard: &mut Transcript, words: Words<'_>| words.for_each(|word| heard.word(word));
    match *request {
        TextRequest::Get { keys, cas } => {
            heard.begin(b'g');
            heard.number(cas.into());
            words(heard, keys);
        }
        TextRequest::Store(store) => {
            heard.begin(b's');
            heard.word(store.key);
            let numbers = [store.how as u64, store.flags.into(), store.exptime as u64];
            numbers.into_iter().for_each(|number| heard.number(number));
            heard.number(store.cas);
            heard.number(store.quiet.into());
        }
        TextRequest::MetaSet { key, flags, .. } => {
            heard.begin(b'm');
            heard.word(key);
            words(heard, flags);
        }
        TextRequest::Line(line) => {
            heard.begin(b'l');
            words(heard, line);
        }
        TextRequest::Fault { text, quiet } => {
            heard.begin(b'f');
            heard.word(text.as_bytes());
            heard.number(quiet.into());
        }
    }
    match payload_of(request) {
        Some(ValuePayload::Whole(value)) => heard.word(value),
        Some(ValuePayload::Misplaced) => heard.number(1),
        Some(ValuePayload::TooLarge) => heard.number(2),
        None => {}
    }
}

const NUMBERS: &[&[u8]] = &[
    b"0",
    b"1",
    b"7",
    b"-1",
    b"60",
    b"2592001",
    b"+5",
    b"\t9",
    b"1x",
    b"x",
    b"2147483645",
    b"2147483646",
    b"2147483648",
    b"-2147483648",
    b"4294967295",
    b"4294967296",
    b"9223372036854775808",
    b"18446744073709551615",
    b"18446744073709551616",
];
const STORES: &[&[u8]] = &[
    b"set", b"set", b"set", b"add", b"replace", b"append", b"prepend", b"cas",
];
const RETRIEVALS: &[&[u8]] = &[b"get", b"get", b"gets", b"gat 10", b"gats 0"];
const LINES: &[&[u8]] = &[
    b"incr k 1",
    b"decr k 18446744073709551615",
    b"touch k 10",
    b"delete k",
    b"delete k 0 noreply",
    b"flush_all",
    b"flush_all 10 noreply",
    b"verbosity 1",
    b"version",
    b"stats",
    b"stats items",
    b"slabs automove 1",
    b"mn",
    b"me k",
    b"md k q",
    b"ma k N0 J13 D30 v",
    b"shutdown",
    b"GET / HTTP/1.1",
    b"",
    b"quit",
];
const META_FLAGS: &[&[u8]] = &[
    b"v", b"t", b"c", b"f", b"k", b"q", b"T30", b"N0", b"R20", b"Oopaque", b"b", b"C5", b"F17",
    b"MS", b"I", b"M", b"\xff",
];
const ODD_ENDS: &[&[u8]] = &[b"\n", b"\r", b"\0\r\n", b" \r\n", b""];

/// Generates a few requests, most of them complete.
pub fn draft(draft: &mut RequestBuilder<'_>) {
    for _ in 0..=draft.below(3) {
        match draft.below(16) {
            0..=3 => retrieval(draft),
            4..=9 => store(draft),
            10..=11 => meta_set(draft),
            12..=13 => meta_get(draft),
            _ => draft.one_of(LINES),
        }
        draft.line_end(ODD_ENDS);
    }
    if draft.one_in(512) {
        // About the largest length of a line, or of the blanks before one.
        let (byte, about) = match draft.below(3) {
            0 => (b' ', 100),
            1 => (b'g', 2048),
            _ => (b'k', 2044),
        };
        let len = about - 3 + draft.below(6);
        draft.splice(byte, len);
    }
}

fn key(draft: &mut RequestBuilder<'_>) {
    match draft.below(32) {
        0 => {
            let len = 248 + draft.below(5);
            draft.repeat(b'k', len);
        }
        1 => draft.text(b"\0"),
        n => {
            let word = &b"key:0123456789abcdefghijklmnopqrstuvwxyz"[n as usize..];
            let len = 1 + draft.below(8);
            draft.text(&word[..len.min(word.len())]);
        }
    }
}

fn blank(draft: &mut RequestBuilder<'_>) {
    match draft.one_in(32) {
        true => draft.text(b"   "),
        false => draft.text(b" "),
    }
}

fn number(draft: &mut RequestBuilder<'_>) {
    blank(draft);
    match draft.one_in(4) {
        true => draft.one_of(NUMBERS),
        false => draft.text(b"0"),
    }
}

fn retrieval(draft: &mut RequestBuilder<'_>) {
    if draft.one_in(16) {
        blank(draft);
    }
    draft.one_of(RETRIEVALS);
    for _ in 0..=draft.below(3) {
        blank(draft);
        key(draft);
    }
}

/// Returns the announced length of a value, which is usually small.
fn size(draft: &mut RequestBuilder<'_>) -> usize {
    match draft.below(64) {
        0 => 925 + draft.below(20),
        1 => 2_147_483_640 + draft.below(10),
        2 => 1000 + draft.below(1000),
        _ => draft.below(20),
    }
}

/// Ends the line that announces `bytes`, and appends a value that usually has that length.
fn value(draft: &mut RequestBuilder<'_>, bytes: usize) {
    draft.line_end(ODD_ENDS);
    let bytes = match draft.below(16) {
        0 => bytes.saturating_sub(1),
        1 => bytes + 1,
        _ => bytes,
    };
    let from = draft.below(8);
    let text = &b"value\r\nset k 0 0 1\r\n\0\xff0123456789"[from..];
    match text.get(..bytes) {
        Some(text) => draft.text(text),
        None => draft.repeat(b'v', bytes.min(1100)),
    }
}

fn store(draft: &mut RequestBuilder<'_>) {
    draft.one_of(STORES);
    blank(draft);
    key(draft);
    number(draft);
    number(draft);
    blank(draft);
    let bytes = size(draft);
    match draft.one_in(32) {
        true => draft.one_of(NUMBERS),
        false => draft.decimal(bytes),
    }
    if draft.one_in(8) {
        number(draft);
    }
    if draft.one_in(8) {
        draft.text(b" noreply");
    }
    value(draft, bytes);
}

fn meta_set(draft: &mut RequestBuilder<'_>) {
    draft.text(b"ms ");
    key(draft);
    blank(draft);
    let bytes = size(draft);
    draft.decimal(bytes);
    flags(draft);
    value(draft, bytes);
}

fn meta_get(draft: &mut RequestBuilder<'_>) {
    draft.text(b"mg ");
    key(draft);
    flags(draft);
}

fn flags(draft: &mut RequestBuilder<'_>) {
    for _ in 0..draft.below(4) {
        blank(draft);
        draft.one_of(META_FLAGS);
    }
}
