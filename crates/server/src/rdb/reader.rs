//! Reads RDB files of versions 1 to 10 from a stream, entry by entry.
//!
//! # Invariants
//! RDB-READ-1  Memory grows with the bytes that have arrived, not with the lengths that the file declares. So a hostile
//!     length costs nothing. A string longer than the caller's limit is an error before it is read.
//! RDB-READ-2  A value of another type than a string is skipped without being kept. Its parts are only counted.
//! RDB-READ-3  Each loop over parts reads at least one byte a part, so that it ends with the file.

use std::io::{self, BufRead};

use super::skip::skip_value;
pub use super::source::RdbError;
use super::source::Source;
use super::writer::{AUX_FLAGS, AUX_KIND, RdbString};
use super::{
    OPCODE_AUX, OPCODE_EOF, OPCODE_EXPIRES_MS, OPCODE_EXPIRES_SECS, OPCODE_FREQUENCY, OPCODE_IDLE,
    OPCODE_LIBRARY, OPCODE_LIBRARY_PRE_RELEASE, OPCODE_MODULE_AUX, OPCODE_RESIZE, OPCODE_SELECT,
    TYPE_STRING, VERSION,
};
use crate::protocol::resp::number::parse_i64;

/// First version whose files end with a checksum.
const CHECKSUM_SINCE: u16 = 5;
/// Length of "REDIS" and four digits.
const MAGIC_BYTES: usize = 9;

/// An entry of a file.
#[derive(Debug, PartialEq, Eq)]
pub enum RdbEntry<'a> {
    /// An auxiliary field: name and value.
    Aux(&'a [u8], &'a [u8]),
    /// The code of a library of functions.
    Library(&'a [u8]),
    /// A string.
    String(RdbString<'a>),
    /// A value of another type, which was skipped.
    Other {
        /// Number of the database.
        db: u32,
        /// The key.
        key: &'a [u8],
        /// Name of the type, as the command TYPE of Redis returns it.
        type_name: &'static str,
    },
}

/// Reads an RDB file from `R`.
pub struct RdbReader<R> {
    source: Source<R>,
    version: u16,
    string_bytes_max: u64,
    db: u32,
    name: Vec<u8>,
    value: Vec<u8>,
    is_over: bool,
}

impl<R: BufRead> RdbReader<R> {
    /// Begins to read `input`. Strings may have `string_bytes_max` bytes.
    ///
    /// # Errors
    /// [`RdbError::NotRdb`], [`RdbError::Version`], [`RdbError::Io`].
    pub fn new(input: R, string_bytes_max: usize) -> Result<RdbReader<R>, RdbError> {
        let mut source = Source::new(input);
        let mut magic = [0; MAGIC_BYTES];
        match source.exact(&mut magic) {
            Err(RdbError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(RdbError::NotRdb);
            }
            read => read?,
        }
        let digits = magic.strip_prefix(b"REDIS").ok_or(RdbError::NotRdb)?;
        let text = std::str::from_utf8(digits).map_err(|_| RdbError::NotRdb)?;
        let version: u16 = text.parse().map_err(|_| RdbError::NotRdb)?;
        if !(1..=VERSION).contains(&version) {
            return Err(RdbError::Version(version));
        }
        Ok(RdbReader {
            source,
            version,
            string_bytes_max: string_bytes_max as u64,
            db: 0,
            name: Vec::new(),
            value: Vec::new(),
            is_over: false,
        })
    }

    /// Bytes of the file that were read so far.
    pub fn position(&self) -> u64 {
        self.source.at()
    }

    /// Returns the input, which is behind the file once [`RdbReader::next_entry`] has returned `None`.
    pub fn into_input(self) -> R {
        self.source.input
    }

    /// Returns the next entry; `None` after the last one, when the checksum has been verified.
    ///
    /// # Errors
    /// [`RdbError`]. The reader cannot be used afterwards.
    pub fn next_entry(&mut self) -> Result<Option<RdbEntry<'_>>, RdbError> {
        let mut expires_ms = 0;
        let (mut flags, mut kind) = (0, 0);
        while !self.is_over {
            match self.source.byte()? {
                OPCODE_EXPIRES_SECS => {
                    let secs = i32::from_le_bytes(self.source.array()?);
                    expires_ms = moment(i64::from(secs) * 1000);
                }
                OPCODE_EXPIRES_MS => {
                    expires_ms = moment(i64::from_le_bytes(self.source.array()?));
                }
                OPCODE_FREQUENCY => {
                    self.source.byte()?;
                }
                OPCODE_IDLE => {
                    self.source.length()?;
                }
                OPCODE_SELECT => {
                    let db = self.source.length()?;
                    self.db = u32::try_from(db)
                        .map_err(|_| self.source.malformed("the number of a database"))?;
                }
                OPCODE_RESIZE => {
                    self.source.length()?;
                    self.source.length()?;
                }
                OPCODE_MODULE_AUX => skip_value(&mut self.source, OPCODE_MODULE_AUX).map(drop)?,
                OPCODE_AUX => {
                    self.source.string(self.string_bytes_max, &mut self.name)?;
                    self.source.string(self.string_bytes_max, &mut self.value)?;
                    let number = parse_i64(&self.value);
                    match &self.name[..] {
                        AUX_FLAGS => flags = number.map_or(0, |n| n as u32),
                        AUX_KIND => kind = number.map_or(0, |n| n as u8),
                        _ => return Ok(Some(RdbEntry::Aux(&self.name, &self.value))),
                    }
                }
                OPCODE_LIBRARY => {
                    self.source.string(self.string_bytes_max, &mut self.value)?;
                    return Ok(Some(RdbEntry::Library(&self.value)));
                }
                OPCODE_LIBRARY_PRE_RELEASE => {
                    return Err(self.source.malformed(
                        "an entry, found a library of a release candidate of Redis 7.0",
                    ));
                }
                OPCODE_EOF => self.end()?,
                number => {
                    self.source.string(self.string_bytes_max, &mut self.name)?;
                    if number != TYPE_STRING {
                        let type_name = skip_value(&mut self.source, number)?;
                        return Ok(Some(RdbEntry::Other {
                            db: self.db,
                            key: &self.name,
                            type_name,
                        }));
                    }
                    self.source.string(self.string_bytes_max, &mut self.value)?;
                    return Ok(Some(RdbEntry::String(RdbString {
                        db: self.db,
                        key: &self.name,
                        value: &self.value,
                        expires_ms,
                        flags,
                        kind,
                    })));
                }
            }
        }
        Ok(None)
    }

    /// Verifies the checksum behind the last entry. 0 means that the file has none.
    fn end(&mut self) -> Result<(), RdbError> {
        self.is_over = true;
        if self.version < CHECKSUM_SINCE {
            return Ok(());
        }
        let found = self.source.checksum();
        let expected = u64::from_le_bytes(self.source.array()?);
        match expected == 0 || expected == found {
            true => Ok(()),
            false => Err(RdbError::Checksum { found, expected }),
        }
    }
}

/// Returns a time of the file as an expiry. A time before 1970 has passed, and 0 would mean that it never comes.
fn moment(ms: i64) -> u64 {
    u64::try_from(ms).unwrap_or(0).max(1)
}
