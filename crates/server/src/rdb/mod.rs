//! Redis's RDB format: the encoding of a string, and the payload of DUMP and RESTORE around it. [`writer`] and [`reader`]:
//! whole files; `skip`: the values in them that are no strings.
//!
//! ```text
//!   ┌─────────┬───────────────────────┬───────────────┬───────────────────────────────┐
//!   │ type: 0 │ encoded string        │ version: u16  │ CRC-64 of all bytes before it │
//!   └─────────┴───────────────────────┴───────────────┴───────────────────────────────┘
//!    1 byte                            little-endian    8 bytes, little-endian
//!
//!   encoded string:  length, bytes                                  raw
//!                    C0 i8 │ C1 i16 │ C2 i32                        a decimal number, little-endian
//!                    C3 length of the compressed form, length, compressed form      LZF
//!   length:          00LLLLLL │ 01LLLLLL LLLLLLLL │ 80 u32 │ 81 u64   big-endian
//! ```
//!
//! [`dump_string`] writes what Redis 7.0 writes with `rdbcompression yes`, byte for byte. [`restore_string`] accepts what
//! Redis 7.0 accepts.
//!
//! # Invariants
//! RDB-1  No input makes [`restore_string`] panic, or reserve more than the caller's limit of bytes. A compressed form that
//!     is too short for its declared length is refused before memory is reserved.

#![expect(clippy::big_endian_bytes, reason = "the format has big-endian lengths")]

mod lzf;
pub mod reader;
mod skip;
mod source;
pub mod writer;

use std::borrow::Cow;

use crc::{CRC_64_REDIS, Crc, Table};

use crate::protocol::resp::number::{DecimalText, parse_i64};

/// Newest version of the format that is read, and the one that is written.
const VERSION: u16 = 10;
/// Bytes of the version and the checksum.
const FOOTER_BYTES: usize = 10;
/// Bytes of the checksum.
const CHECKSUM_BYTES: usize = 8;
/// The type of a string.
const TYPE_STRING: u8 = 0;
/// What precedes the code of a library.
const OPCODE_LIBRARY: u8 = 0xf5;
const OPCODE_LIBRARY_PRE_RELEASE: u8 = 0xf6;
/// What else a file has beside values.
const OPCODE_MODULE_AUX: u8 = 0xf7;
const OPCODE_IDLE: u8 = 0xf8;
const OPCODE_FREQUENCY: u8 = 0xf9;
const OPCODE_AUX: u8 = 0xfa;
const OPCODE_RESIZE: u8 = 0xfb;
const OPCODE_EXPIRES_MS: u8 = 0xfc;
const OPCODE_EXPIRES_SECS: u8 = 0xfd;
const OPCODE_SELECT: u8 = 0xfe;
const OPCODE_EOF: u8 = 0xff;
/// Types of values in Redis 7.0: these, and nothing between and behind them.
const TYPES: [std::ops::RangeInclusive<u8>; 2] = [0..=7, 9..=19];
/// Longest text that may be a 32-bit number.
const NUMBER_BYTES_MAX: usize = 11;
/// Longest string that is never compressed.
const PLAIN_BYTES_MAX: usize = 20;
/// Bytes that a compressed form must save.
const SAVED_BYTES_MIN: usize = 4;

/// First bytes of a string that is not raw.
const INT8: u8 = 0xc0;
const INT16: u8 = 0xc1;
const INT32: u8 = 0xc2;
const COMPRESSED: u8 = 0xc3;

/// The checksum: CRC-64 with Jones's polynomial.
static CHECKSUM: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_REDIS);

/// Why a payload was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PayloadError {
    /// The version is too new, the checksum is wrong, or the payload is shorter than both.
    Footer,
    /// The bytes before the footer are no value.
    Format,
    /// The value has another type than a string: its number in the format.
    OtherType(u8),
    /// The string is longer than the caller accepts: its length.
    TooLong(u64),
}

/// Appends a length.
fn put_length(out: &mut Vec<u8>, len: usize) {
    match len {
        0..0x40 => out.push(len as u8),
        0x40..0x4000 => out.extend_from_slice(&(0x4000 | len as u16).to_be_bytes()),
        _ => match u32::try_from(len) {
            Ok(len) => {
                out.push(0x80);
                out.extend_from_slice(&len.to_be_bytes());
            }
            Err(_) => {
                out.push(0x81);
                out.extend_from_slice(&(len as u64).to_be_bytes());
            }
        },
    }
}

/// Appends `value` as a number, if it is the decimal text of a 32-bit number.
fn put_number(out: &mut Vec<u8>, value: &[u8]) -> bool {
    let number = (value.len() <= NUMBER_BYTES_MAX).then(|| parse_i64(value));
    let Some(number) = number.flatten().and_then(|n| i32::try_from(n).ok()) else {
        return false;
    };
    if let Ok(number) = i8::try_from(number) {
        out.push(INT8);
        out.extend_from_slice(&number.to_le_bytes());
    } else if let Ok(number) = i16::try_from(number) {
        out.push(INT16);
        out.extend_from_slice(&number.to_le_bytes());
    } else {
        out.push(INT32);
        out.extend_from_slice(&number.to_le_bytes());
    }
    true
}

/// Appends the encoded string.
fn put_string(out: &mut Vec<u8>, value: &[u8]) {
    if put_number(out, value) {
        return;
    }
    if value.len() > PLAIN_BYTES_MAX
        && let Some(compressed) = lzf::compress(value, value.len() - SAVED_BYTES_MIN)
    {
        out.push(COMPRESSED);
        put_length(out, compressed.len());
        put_length(out, value.len());
        out.extend_from_slice(&compressed);
        return;
    }
    put_length(out, value.len());
    out.extend_from_slice(value);
}

/// Appends the version and the checksum of `out`, which begins with the type of a value.
pub fn put_footer(out: &mut Vec<u8>) {
    out.extend_from_slice(&VERSION.to_le_bytes());
    let checksum = CHECKSUM.checksum(out);
    out.extend_from_slice(&checksum.to_le_bytes());
}

/// Returns the payload of the string `value`.
#[must_use]
pub fn dump_string(value: &[u8]) -> Vec<u8> {
    let mut out = vec![TYPE_STRING];
    put_string(&mut out, value);
    put_footer(&mut out);
    out
}

/// Returns the payload of FUNCTION DUMP of libraries with these codes.
pub fn library_payload<'a>(codes: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    dump_libraries(codes)
}

/// Returns the codes of the libraries in a payload of FUNCTION DUMP; `None` if it is damaged.
#[must_use]
pub fn library_codes(payload: &[u8]) -> Option<Vec<Vec<u8>>> {
    let reader = LibraryReader::new(payload, usize::MAX).ok()?;
    let codes = reader.map(|code| code.map(Cow::into_owned));
    codes.collect::<Result<_, _>>().ok()
}

/// Returns the payload of FUNCTION DUMP: one string of code for each library.
pub(crate) fn dump_libraries<'a>(codes: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for code in codes {
        out.push(OPCODE_LIBRARY);
        put_string(&mut out, code);
    }
    put_footer(&mut out);
    out
}

/// Why a library of a payload was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LibraryPayloadError {
    /// The payload has a library in the format of a release candidate of Redis 7.0.
    PreRelease,
    /// The payload has something else than a library.
    OtherType,
    /// The code is no string, or too long.
    Code,
}

/// Reads the libraries of a payload of FUNCTION DUMP.
pub(crate) struct LibraryReader<'a> {
    reader: Reader<'a>,
    bytes_max: usize,
}

impl<'a> LibraryReader<'a> {
    /// Checks the footer of `payload`. The code of a library may have `bytes_max` bytes.
    ///
    /// # Errors
    /// [`PayloadError::Footer`]
    pub(crate) fn new(
        payload: &'a [u8],
        bytes_max: usize,
    ) -> Result<LibraryReader<'a>, PayloadError> {
        check_footer(payload)?;
        Ok(LibraryReader {
            reader: Reader(payload),
            bytes_max,
        })
    }
}

impl<'a> Iterator for LibraryReader<'a> {
    type Item = Result<Cow<'a, [u8]>, LibraryPayloadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.0.len() <= FOOTER_BYTES {
            return None;
        }
        Some(match self.reader.array() {
            Ok([OPCODE_LIBRARY]) => {
                let code = self.reader.string(self.bytes_max);
                code.map_err(|_| LibraryPayloadError::Code)
            }
            Ok([OPCODE_LIBRARY_PRE_RELEASE]) => Err(LibraryPayloadError::PreRelease),
            _ => Err(LibraryPayloadError::OtherType),
        })
    }
}

/// Reads a payload from its front.
struct Reader<'a>(&'a [u8]);

/// A length, or the number of a special encoding.
enum Length {
    Bytes(u64),
    Special(u8),
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], PayloadError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(PayloadError::Format)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PayloadError> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    fn length(&mut self) -> Result<Length, PayloadError> {
        let [first] = self.array()?;
        Ok(Length::Bytes(match first {
            0..0x40 => u64::from(first),
            0x40..0x80 => {
                let [second] = self.array()?;
                u64::from(first & 0x3f) << 8 | u64::from(second)
            }
            0x80 => u64::from(u32::from_be_bytes(self.array()?)),
            0x81 => u64::from_be_bytes(self.array()?),
            0x82..0xc0 => return Err(PayloadError::Format),
            _ => return Ok(Length::Special(first & 0x3f)),
        }))
    }

    /// Reads a length. As in Redis, the number of a special encoding counts as one, too.
    fn any_length(&mut self) -> Result<u64, PayloadError> {
        match self.length()? {
            Length::Bytes(bytes) => Ok(bytes),
            Length::Special(number) => Ok(u64::from(number)),
        }
    }

    fn string(&mut self, bytes_max: usize) -> Result<Cow<'a, [u8]>, PayloadError> {
        let number = match self.length()? {
            Length::Bytes(bytes) => {
                // A string that is not there is refused as such, whatever its length is.
                let len = usize::try_from(bytes).map_err(|_| PayloadError::Format)?;
                let taken = self.take(len)?;
                return match len <= bytes_max {
                    true => Ok(Cow::Borrowed(taken)),
                    false => Err(PayloadError::TooLong(bytes)),
                };
            }
            Length::Special(special) => match special | 0xc0 {
                INT8 => i64::from(i8::from_le_bytes(self.array()?)),
                INT16 => i64::from(i16::from_le_bytes(self.array()?)),
                INT32 => i64::from(i32::from_le_bytes(self.array()?)),
                COMPRESSED => return self.compressed(bytes_max).map(Cow::Owned),
                _ => return Err(PayloadError::Format),
            },
        };
        Ok(Cow::Owned(DecimalText::new(number).as_bytes().to_vec()))
    }

    fn compressed(&mut self, bytes_max: usize) -> Result<Vec<u8>, PayloadError> {
        let compressed_bytes = self.any_length()?;
        let declared = self.any_length()?;
        let compressed_bytes =
            usize::try_from(compressed_bytes).map_err(|_| PayloadError::Format)?;
        let compressed = self.take(compressed_bytes)?;
        let bytes = usize::try_from(declared).map_err(|_| PayloadError::Format)?;
        if !lzf::may_expand_to(compressed.len(), bytes) {
            return Err(PayloadError::Format);
        }
        if bytes > bytes_max {
            return Err(PayloadError::TooLong(declared));
        }
        lzf::decompress(compressed, bytes).ok_or(PayloadError::Format)
    }
}

/// Checks the footer of `payload`.
fn check_footer(payload: &[u8]) -> Result<(), PayloadError> {
    let body = payload.len().checked_sub(FOOTER_BYTES);
    let body = body.ok_or(PayloadError::Footer)?;
    let (checked, checksum) = payload.split_at(body + FOOTER_BYTES - CHECKSUM_BYTES);
    let version = u16::from_le_bytes([checked[body], checked[body + 1]]);
    match version <= VERSION && CHECKSUM.checksum(checked).to_le_bytes() == checksum {
        true => Ok(()),
        false => Err(PayloadError::Footer),
    }
}

/// Returns the string of `payload`, which has at most `bytes_max` bytes. Bytes between the string and the footer are
/// ignored, as Redis does.
///
/// # Errors
/// [`PayloadError`]. [`PayloadError::TooLong`] does not mean that the payload is correct.
pub fn restore_string(payload: &[u8], bytes_max: usize) -> Result<Cow<'_, [u8]>, PayloadError> {
    check_footer(payload)?;
    let mut reader = Reader(payload);
    match reader.array()? {
        [TYPE_STRING] => reader.string(bytes_max),
        [other] if TYPES.iter().any(|types| types.contains(&other)) => {
            Err(PayloadError::OtherType(other))
        }
        _ => Err(PayloadError::Format),
    }
}

#[cfg(test)]
mod file_tests;

#[cfg(test)]
mod tests {
    use super::*;

    fn with_footer(body: &[u8]) -> Vec<u8> {
        let mut payload = body.to_vec();
        put_footer(&mut payload);
        payload
    }

    #[test]
    fn payloads_are_those_of_redis() {
        // From redis-server 7.0.15: SET k <value>, DUMP k.
        for (value, payload) in GOLDEN {
            assert_eq!(&dump_string(value), payload, "{value:?}");
            assert_eq!(restore_string(payload, 1 << 20).as_deref(), Ok(*value));
        }
    }

    #[test]
    fn versions_and_checksums_are_checked() {
        let mut payload = dump_string(b"value");
        for at in 0..payload.len() {
            payload[at] ^= 1;
            assert_eq!(restore_string(&payload, 100), Err(PayloadError::Footer));
            payload[at] ^= 1;
        }
        let mut newer = b"\0\x01x".to_vec();
        newer.extend_from_slice(&(VERSION + 1).to_le_bytes());
        let checksum = CHECKSUM.checksum(&newer);
        newer.extend_from_slice(&checksum.to_le_bytes());
        assert_eq!(restore_string(&newer, 100), Err(PayloadError::Footer));
        assert_eq!(restore_string(b"short", 100), Err(PayloadError::Footer));
    }

    #[test]
    fn bodies_that_are_no_string_are_refused() {
        use PayloadError::{Format, OtherType, TooLong};
        for (body, error) in [
            (&b""[..], OtherType(10)),
            (b"\x08", Format),
            (b"\x20", Format),
            (b"\xff", Format),
            (b"\x01\x01\x01a", OtherType(1)),
            (b"\x00\x3f", Format),
            (b"\x00\x82", Format),
            (b"\x00\xc4", Format),
            (b"\x00\x81\xff\xff\xff\xff\xff\xff\xff\xff", Format),
            (
                b"\x00\xc3\x02\x81\xff\xff\xff\xff\xff\xff\xff\xff\0a",
                Format,
            ),
            (b"\x00\xc3\x02\x05\0a", Format),
            (b"\x00\xc3\x02\x40\x65\0a", TooLong(101)),
        ] {
            assert_eq!(
                restore_string(&with_footer(body), 100),
                Err(error),
                "{body:?}"
            );
        }
    }

    #[test]
    fn mutated_payloads_neither_panic_nor_exceed_the_limit() {
        const LIMIT: usize = 4096;
        let mut word = 7_u64;
        let mut random = move |end: usize| {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (word >> 33) as usize % end
        };
        let value: Vec<u8> = (0..2_000).map(|at| (at % 37) as u8).collect();
        let bodies = [&b"12"[..], b"-70000", b"short", &value].map(|value| {
            let payload = dump_string(value);
            payload[..payload.len() - FOOTER_BYTES].to_vec()
        });
        let (mut accepted, mut refused) = (0, 0);
        for _ in 0..50_000 {
            let mut body = bodies[random(bodies.len())].clone();
            for _ in 0..1 + random(4) {
                let at = random(body.len());
                match random(3) {
                    0 => body[at] ^= 1 << random(8),
                    1 => body[at] = [0, 0x3f, 0x80, 0x81, 0xc3, 0xff][random(6)],
                    _ => body.truncate(at.max(1)),
                }
            }
            match restore_string(&with_footer(&body), LIMIT) {
                Ok(value) => {
                    assert!(value.len() <= LIMIT);
                    accepted += 1;
                }
                Err(_) => refused += 1,
            }
        }
        assert!(accepted > 1_000 && refused > 1_000, "{accepted}, {refused}");
    }

    const GOLDEN: &[(&[u8], &[u8])] = &[
        (b"", b"\x00\x00\x0a\x00]\x9b\x5c@\x0f\x7f\xa2\xda"),
        (b"0", b"\x00\xc0\x00\x0a\x00\x98@\xa7x\xf8P\x03\x08"),
        (b"-1", b"\x00\xc0\xff\x0a\x00\x0c\x93~$\x85\x08\x9d\xc5"),
        (b"127", b"\x00\xc0\x7f\x0a\x00\x0d\xb5\xeb1RT\xc5\x14"),
        (b"-128", b"\x00\xc0\x80\x0a\x00\x99f2m/\x0c[\xd9"),
        (b"128", b"\x00\xc1\x80\x00\x0a\x00\xebz\xb3\xb5\x10\xcfKe"),
        (b"32767", b"\x00\xc1\xff\x7f\x0a\x00IZ7\xda\x17\xf4\xd5+"),
        (b"-32769", b"\x00\xc2\xff\x7f\xff\xff\x0a\x00\xae\xe3LM\x06\xc6\x856"),
        (b"2147483647", b"\x00\xc2\xff\xff\xff\x7f\x0a\x00,t\xe5\x9e\xe0.\xad\xa1"),
        (b"-2147483648", b"\x00\xc2\x00\x00\x00\x80\x0a\x00\xc7O\x87>3U\x81\x87"),
        (b"2147483648", b"\x00\x0a2147483648\x0a\x00\xe7\xb1)\xa3L\x1dv\xee"),
        (b"9223372036854775807", b"\x00\x139223372036854775807\x0a\x00:e~\x94\x81\xe8_\x22"),
        (b"01", b"\x00\x0201\x0a\x00l\xdd\xc4A\x14L}\xa4"),
        (b"hello", b"\x00\x05hello\x0a\x00cr\xdfve4 \x0a"),
        (b"aaaaaaaaaaaaaaaaaaaa", b"\x00\x14aaaaaaaaaaaaaaaaaaaa\x0a\x00\x83\xb4k^\x1b\x11\xac\xf1"),
        (b"aaaaaaaaaaaaaaaaaaaaa", b"\x00\xc3\x06\x15\x01aa\xe0\x0a\x00\x0a\x00\xfd\x0c\xb3h\x07A?h"),
        (b"abcabcabcabcabcabcabcabc", b"\x00\xc3\x0a\x18\x03abca\xe0\x0a\x02\x00c\x0a\x00\x7f\xc3\xe2 \x12\x81\x16n"),
        (b"the quick brown fox jumps over the lazy dog, the quick brown fox", b"\x00\xc35@@\x1fthe quick brown fox jumps over t \x1e\x08lazy dog,`\x0d\xe0\x04,\x01ox\x0a\x00\x18\x0d~\x05\x95\x9a\x1a\xe8"),
        (b"abababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababababab", b"\x00\xc3\x0dA\x90\x02aba\xe0\xff\x01\xe0z\x01\x01ab\x0a\x00?\x03a\x943\xdd\x8d\x9a"),
    ];
}
