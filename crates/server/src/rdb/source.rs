//! The bytes of an RDB file: lengths and strings, with a checksum of what was read.

use std::fmt;
use std::io::{self, BufRead};

use crc::{Digest, Table};

use super::{CHECKSUM, COMPRESSED, INT8, INT16, INT32, VERSION, lzf};
use crate::protocol::resp::number::DecimalText;

/// Bytes that are read at a time into a string.
const PIECE_BYTES: usize = 64 << 10;
/// Why a file cannot be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum RdbError {
    /// The stream failed, or it ended too early.
    Io(io::Error),
    /// The file does not begin as an RDB file.
    NotRdb,
    /// The file has a newer version than the reader knows.
    Version(u16),
    /// The bytes at this offset have no meaning.
    Format {
        /// Offset in the file.
        at: u64,
        /// What was expected there.
        expected: &'static str,
    },
    /// A string is longer than the caller accepts.
    TooLong {
        /// Offset in the file.
        at: u64,
        /// Length of the string.
        bytes: u64,
    },
    /// The checksum at the end of the file does not match.
    Checksum {
        /// Checksum of the bytes that were read.
        found: u64,
        /// Checksum that the file has.
        expected: u64,
    },
}

impl fmt::Display for RdbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RdbError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                f.write_str("the RDB file ends too early: it is incomplete")
            }
            RdbError::Io(error) => write!(f, "cannot read the RDB file: {error}"),
            RdbError::NotRdb => f.write_str("not an RDB file: it does not begin with \"REDIS\""),
            RdbError::Version(version) => write!(
                f,
                "the RDB file has version {version}; versions 1 to {VERSION} can be read"
            ),
            RdbError::Format { at, expected } => {
                write!(
                    f,
                    "the RDB file is damaged at byte {at}: expected {expected}"
                )
            }
            RdbError::TooLong { at, bytes } => write!(
                f,
                "the string at byte {at} of the RDB file has {bytes} bytes, which is too long"
            ),
            RdbError::Checksum { found, expected } => write!(
                f,
                "the RDB file is damaged: its checksum is {found:#018x}, expected {expected:#018x}"
            ),
        }
    }
}

impl std::error::Error for RdbError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RdbError::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for RdbError {
    fn from(error: io::Error) -> RdbError {
        RdbError::Io(error)
    }
}

/// The bytes of the file, with their count and their checksum.
pub(super) struct Source<R> {
    pub(super) input: R,
    digest: Digest<'static, u64, Table<16>>,
    at: u64,
}

/// A length, or the number of a special encoding.
pub(super) enum RdbLength {
    Bytes(u64),
    Special(u8),
}

impl<R: BufRead> Source<R> {
    pub(super) fn new(input: R) -> Source<R> {
        Source {
            input,
            digest: CHECKSUM.digest(),
            at: 0,
        }
    }

    /// Bytes that were read so far.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Checksum of the bytes that were read so far.
    pub(super) fn checksum(&self) -> u64 {
        self.digest.clone().finalize()
    }

    pub(super) fn exact(&mut self, bytes: &mut [u8]) -> Result<(), RdbError> {
        self.input.read_exact(bytes)?;
        self.digest.update(bytes);
        self.at += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], RdbError> {
        let mut bytes = [0; N];
        self.exact(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn byte(&mut self) -> Result<u8, RdbError> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    pub(super) fn malformed(&self, expected: &'static str) -> RdbError {
        let at = self.at;
        RdbError::Format { at, expected }
    }

    pub(super) fn any_length(&mut self) -> Result<RdbLength, RdbError> {
        let first = self.byte()?;
        Ok(RdbLength::Bytes(match first {
            0..0x40 => u64::from(first),
            0x40..0x80 => u64::from(first & 0x3f) << 8 | u64::from(self.byte()?),
            0x80 => u64::from(u32::from_be_bytes(self.array()?)),
            0x81 => u64::from_be_bytes(self.array()?),
            0x82..0xc0 => return Err(self.malformed("a length")),
            _ => return Ok(RdbLength::Special(first)),
        }))
    }

    pub(super) fn length(&mut self) -> Result<u64, RdbError> {
        match self.any_length()? {
            RdbLength::Bytes(bytes) => Ok(bytes),
            RdbLength::Special(_) => Err(self.malformed("a length, found a string's encoding")),
        }
    }

    /// Reads `len` bytes and drops them.
    pub(super) fn skip(&mut self, mut len: u64) -> Result<(), RdbError> {
        while len > 0 {
            let found = self.input.fill_buf()?;
            if found.is_empty() {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            let count = found.len().min(usize::try_from(len).unwrap_or(usize::MAX));
            self.digest.update(&found[..count]);
            self.input.consume(count);
            self.at += count as u64;
            len -= count as u64;
        }
        Ok(())
    }

    /// Appends `len` bytes to `out` (RDB-READ-1).
    fn append(&mut self, len: usize, out: &mut Vec<u8>) -> Result<(), RdbError> {
        let mut left = len;
        while left > 0 {
            let from = out.len();
            out.resize(from + left.min(PIECE_BYTES), 0);
            let piece = &mut out[from..];
            left -= piece.len();
            self.input.read_exact(piece)?;
            self.digest.update(piece);
            self.at += piece.len() as u64;
        }
        Ok(())
    }

    /// Reads a string of at most `bytes_max` bytes into `out`.
    pub(super) fn string(&mut self, bytes_max: u64, out: &mut Vec<u8>) -> Result<(), RdbError> {
        out.clear();
        let at = self.at;
        let fit = |bytes: u64| match usize::try_from(bytes) {
            Ok(len) if bytes <= bytes_max => Ok(len),
            _ => Err(RdbError::TooLong { at, bytes }),
        };
        let number = match self.any_length()? {
            RdbLength::Bytes(bytes) => return self.append(fit(bytes)?, out),
            RdbLength::Special(INT8) => i64::from(i8::from_le_bytes(self.array()?)),
            RdbLength::Special(INT16) => i64::from(i16::from_le_bytes(self.array()?)),
            RdbLength::Special(INT32) => i64::from(i32::from_le_bytes(self.array()?)),
            RdbLength::Special(COMPRESSED) => {
                let compressed_bytes = fit(self.length()?)?;
                let bytes = fit(self.length()?)?;
                if !lzf::may_expand_to(compressed_bytes, bytes) {
                    return Err(self.malformed("a length that a compressed string can have"));
                }
                let mut compressed = Vec::new();
                self.append(compressed_bytes, &mut compressed)?;
                let restored = lzf::decompress(&compressed, bytes);
                *out = restored.ok_or_else(|| self.malformed("a compressed string before it"))?;
                return Ok(());
            }
            RdbLength::Special(_) => return Err(self.malformed("an encoding of a string")),
        };
        out.extend_from_slice(DecimalText::new(number).as_bytes());
        Ok(())
    }

    /// Skips a string.
    pub(super) fn skip_string(&mut self) -> Result<(), RdbError> {
        let len = match self.any_length()? {
            RdbLength::Bytes(bytes) => bytes,
            RdbLength::Special(INT8) => 1,
            RdbLength::Special(INT16) => 2,
            RdbLength::Special(INT32) => 4,
            RdbLength::Special(COMPRESSED) => {
                let compressed_bytes = self.length()?;
                self.length()?;
                compressed_bytes
            }
            RdbLength::Special(_) => return Err(self.malformed("an encoding of a string")),
        };
        self.skip(len)
    }
}
