//! Appends replies to a buffer in RESP2 or RESP3.

use super::number::DecimalText;
use crate::buffers::reply::ReplySink;

/// Protocol version of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RespVersion {
    /// RESP2, the version of a new connection.
    #[default]
    V2,
    /// RESP3, after `HELLO 3`.
    V3,
}

impl RespVersion {
    /// The version's number.
    #[must_use]
    pub fn number(self) -> i64 {
        match self {
            RespVersion::V2 => 2,
            RespVersion::V3 => 3,
        }
    }
}

/// Appends the marker byte, a number and `\r\n`.
#[inline]
fn header(out: &mut impl ReplySink, marker: u8, value: i64) {
    let mut line = [0u8; 24];
    line[0] = marker;
    let mut end = 1;
    if (0..10).contains(&value) {
        line[end] = b'0' + value as u8;
        end += 1;
    } else {
        let digits = DecimalText::new(value);
        let digits = digits.as_bytes();
        line[end..end + digits.len()].copy_from_slice(digits);
        end += digits.len();
    }
    line[end] = b'\r';
    line[end + 1] = b'\n';
    out.extend_from_slice(&line[..end + 2]);
}

/// Converts a length to the protocol's type. Rust objects never exceed `i64::MAX` bytes.
fn signed(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

/// Appends `+OK`.
#[inline]
pub fn ok(out: &mut impl ReplySink) {
    out.extend_from_slice(b"+OK\r\n");
}

/// Appends a simple string: one line of text.
pub fn simple(out: &mut impl ReplySink, text: &str) {
    out.push(b'+');
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends an error; the first word of `text` is its code. Line breaks inside the text become blanks; those at its end
/// are removed.
pub fn error(out: &mut impl ReplySink, text: &[u8]) {
    let end = text.iter().rposition(|b| !matches!(b, b'\r' | b'\n'));
    let text = &text[..end.map_or(0, |last| last + 1)];
    out.push(b'-');
    out.extend_from_slice(&on_one_line(text));
    out.extend_from_slice(b"\r\n");
}

/// Returns `text` with blanks for its line ends.
#[must_use]
pub fn on_one_line(text: &[u8]) -> Vec<u8> {
    let blank = |&byte: &u8| match byte {
        b'\r' | b'\n' => b' ',
        other => other,
    };
    text.iter().map(blank).collect()
}

/// Appends an integer.
#[inline]
pub fn integer(out: &mut impl ReplySink, value: i64) {
    header(out, b':', value);
}

/// Appends the header of a bulk string. The caller appends its `len` bytes and `\r\n`.
#[inline]
pub fn bulk_header(out: &mut impl ReplySink, len: usize) {
    header(out, b'$', signed(len));
}

/// Appends a bulk string.
#[inline]
pub fn bulk(out: &mut impl ReplySink, bytes: &[u8]) {
    bulk_header(out, bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Appends a number as a bulk string.
pub fn bulk_number(out: &mut impl ReplySink, value: u64) {
    bulk(out, DecimalText::unsigned(value).as_bytes());
}

/// Appends human-readable text: a verbatim string in RESP3, a bulk string in RESP2.
pub fn verbatim(out: &mut impl ReplySink, resp: RespVersion, text: &str) {
    match resp {
        RespVersion::V2 => bulk(out, text.as_bytes()),
        RespVersion::V3 => {
            header(out, b'=', signed(text.len() + 4));
            out.extend_from_slice(b"txt:");
            out.extend_from_slice(text.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// Appends the null reply in place of a string.
#[inline]
pub fn null(out: &mut impl ReplySink, resp: RespVersion) {
    out.extend_from_slice(match resp {
        RespVersion::V2 => b"$-1\r\n".as_slice(),
        RespVersion::V3 => b"_\r\n",
    });
}

/// Appends the null reply in place of an array.
pub fn null_array(out: &mut impl ReplySink, resp: RespVersion) {
    out.extend_from_slice(match resp {
        RespVersion::V2 => b"*-1\r\n".as_slice(),
        RespVersion::V3 => b"_\r\n",
    });
}

/// Appends a double of RESP3 with this text.
pub fn double(out: &mut impl ReplySink, text: &str) {
    out.push(b',');
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends a Boolean. In RESP2 it is an integer.
pub fn boolean(out: &mut impl ReplySink, resp: RespVersion, value: bool) {
    out.extend_from_slice(match (resp, value) {
        (RespVersion::V2, false) => b":0\r\n",
        (RespVersion::V2, true) => b":1\r\n",
        (RespVersion::V3, false) => b"#f\r\n",
        (RespVersion::V3, true) => b"#t\r\n",
    });
}

/// Appends the header of an array of `len` replies.
pub fn array(out: &mut impl ReplySink, len: usize) {
    header(out, b'*', signed(len));
}

/// Appends the header of a map of `len` pairs. In RESP2 it is an array of `2 * len` replies.
pub fn map(out: &mut impl ReplySink, resp: RespVersion, len: usize) {
    match resp {
        RespVersion::V2 => header(out, b'*', signed(len * 2)),
        RespVersion::V3 => header(out, b'%', signed(len)),
    }
}

/// Appends the header of a set of `len` replies. In RESP2 it is an array.
pub fn set(out: &mut impl ReplySink, resp: RespVersion, len: usize) {
    match resp {
        RespVersion::V2 => header(out, b'*', signed(len)),
        RespVersion::V3 => header(out, b'~', signed(len)),
    }
}

/// Appends the header of a push of `len` replies: a message that is no reply to a request. In RESP2 it is an array.
pub fn push(out: &mut impl ReplySink, resp: RespVersion, len: usize) {
    match resp {
        RespVersion::V2 => header(out, b'*', signed(len)),
        RespVersion::V3 => header(out, b'>', signed(len)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl Fn(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn nulls_maps_sets_and_texts_have_the_format_of_their_protocol_version() {
        for (resp, null_text, null_array_text, map_text, set_text, text) in [
            (
                RespVersion::V2,
                "$-1\r\n",
                "*-1\r\n",
                "*4\r\n",
                "*2\r\n",
                "$2\r\nhi\r\n",
            ),
            (
                RespVersion::V3,
                "_\r\n",
                "_\r\n",
                "%2\r\n",
                "~2\r\n",
                "=6\r\ntxt:hi\r\n",
            ),
        ] {
            assert_eq!(written(|o| null(o, resp)), null_text);
            assert_eq!(written(|o| null_array(o, resp)), null_array_text);
            assert_eq!(written(|o| map(o, resp, 2)), map_text);
            assert_eq!(written(|o| set(o, resp, 2)), set_text);
            assert_eq!(written(|o| verbatim(o, resp, "hi")), text);
        }
    }

    #[test]
    fn integers_and_bulk_lengths_are_written_in_decimal() {
        for value in [0, 7, 9, 10, -1, i64::MAX, i64::MIN] {
            assert_eq!(written(|o| integer(o, value)), format!(":{value}\r\n"));
        }
        assert_eq!(written(|o| bulk(o, b"0123456789")), "$10\r\n0123456789\r\n");
    }

    #[test]
    fn an_error_is_written_on_one_line() {
        assert_eq!(written(|o| error(o, b"ERR a\r\nb")), "-ERR a  b\r\n");
        assert_eq!(written(|o| error(o, b"ERR a\r\n")), "-ERR a\r\n");
    }
}
