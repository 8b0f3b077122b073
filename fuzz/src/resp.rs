//! Redis requests: reads them with Farbank's parser, and generates random ones.

use farbank_server::resp::{RequestLimits, RequestParser};

use crate::request_builder::RequestBuilder;
use crate::transcript::{Cut, Transcript};

/// A low limit, so that inputs reach it.
const LIMITS: RequestLimits = RequestLimits {
    bulk_bytes_max: 1000,
    is_authenticated: true,
};

/// Reads requests from `bytes`, which arrive in the reads of `cut`, and adds them to `heard`.
pub fn hear(bytes: &[u8], cut: Cut<'_>, heard: &mut Transcript) {
    let mut parser = RequestParser::default();
    let mut at = 0;
    for arrived in cut.arrivals(bytes.len()) {
        loop {
            let unread = &bytes[at..arrived];
            let read = parser.read(unread, LIMITS, cut.ahead);
            for index in 0..parser.len() {
                assert!(parser.end(index) <= parser.consumed());
                let args = parser.args(unread, index);
                heard.begin(b'*');
                heard.number(args.len() as u64);
                args.from(0).for_each(|arg| heard.word(arg));
            }
            assert!(parser.consumed() <= unread.len());
            // A2: memory use depends on the bytes received, never on announced lengths.
            assert!(parser.held_bytes() <= 64 * arrived + 64 * 1024);
            assert!(parser.needed() <= unread.len() + LIMITS.bulk_bytes_max + 2);
            at += parser.consumed();
            parser.next();
            match read {
                Err(error) => return heard.refuse(&error.reply()),
                Ok(count) if count < cut.ahead => break,
                Ok(_) => {}
            }
        }
    }
}

const COUNTS: &[&[u8]] = &[
    b"0",
    b"-1",
    b"1",
    b"3",
    b"01",
    b"+1",
    b"",
    b"x",
    b"1048576",
    b"1048577",
    b"9223372036854775807",
    b"99999999999999999999",
];
const ODD_ENDS: &[&[u8]] = &[b"\n", b"\r", b"xx", b"\r\r\n", b""];
const NAMES: &[&[u8]] = &[
    b"GET", b"SET", b"PING", b"MSET", b"DEL", b"set", b"config", b"",
];
const INLINE: &[&[u8]] = &[
    b"PING",
    b"set a b",
    b"\"a\\x41\\n\"",
    b"'it\\'s'",
    b"\"\\\"",
    b"\"a\"b",
    b"'a",
    b"\\x4",
    b"\"\\xzz\"",
    b"\0",
    b"\xff",
    b"\"\"",
    b"\t",
    b"",
];

/// Generates a few requests, most of them complete.
pub fn draft(draft: &mut RequestBuilder<'_>) {
    for _ in 0..=draft.below(3) {
        match draft.below(8) {
            0..=5 => array(draft),
            6 => inline(draft),
            _ => {
                draft.text(b"*");
                draft.one_of(COUNTS);
                draft.line_end(ODD_ENDS);
            }
        }
    }
    if draft.one_in(4096) {
        // About the largest length of a line.
        let byte = [b'1', b'a', b' '][draft.below(3)];
        let len = (64 << 10) - 3 + draft.below(6);
        draft.splice(byte, len);
    }
}

fn array(draft: &mut RequestBuilder<'_>) {
    let args = 1 + draft.below(4);
    draft.text(b"*");
    draft.decimal(args);
    draft.line_end(ODD_ENDS);
    for index in 0..args {
        draft.text(b"$");
        let name = NAMES[draft.below(NAMES.len())];
        let bytes = match draft.below(64) {
            0 => 998 + draft.below(5),
            1..=31 => name.len(),
            _ => draft.below(20),
        };
        match draft.one_in(64) {
            true => draft.one_of(COUNTS),
            false => draft.decimal(bytes),
        }
        draft.line_end(ODD_ENDS);
        let text = &b"val\r\nue *1\r\n$1\r\nx\r\n\0\xff0123456789"[index..];
        match text.get(..bytes) {
            _ if bytes == name.len() => draft.text(name),
            Some(text) => draft.text(text),
            None => draft.repeat(b'v', bytes),
        }
        draft.line_end(ODD_ENDS);
    }
}

fn inline(draft: &mut RequestBuilder<'_>) {
    for _ in 0..=draft.below(3) {
        draft.one_of(INLINE);
        draft.text(b" ");
    }
    draft.line_end(ODD_ENDS);
}
