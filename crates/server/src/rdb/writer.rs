//! Writes an RDB file of version 10, which Redis 7.0 loads.
//!
//! ```text
//!   "REDIS0010" │ FA name value ... │ F5 code ... │ FE db, FB keys, expiring keys │ entry ... │ FF │ CRC-64
//!
//!   entry:  [FA "farbank-flags" number] [FA "farbank-kind" number] [FC time: u64, milliseconds] 00 key value
//! ```
//!
//! Entries may come in any order: a change of the database writes another `FE`. Redis ignores the two auxiliary
//! fields that precede an entry. They keep what only memcached's clients store: flags, and marks of the meta
//! commands. Most entries have neither.

use std::io::{self, Write};

use crc::{Digest, Table};
use farbank_store::{Key, StoredItem};

use super::{
    CHECKSUM, OPCODE_AUX, OPCODE_EOF, OPCODE_EXPIRES_MS, OPCODE_LIBRARY, OPCODE_RESIZE,
    OPCODE_SELECT, TYPE_STRING, VERSION, put_length, put_string,
};

/// Bytes that are collected before they are written.
const BUFFER_BYTES: usize = 64 << 10;
/// Auxiliary fields of an entry.
pub(super) const AUX_FLAGS: &[u8] = b"farbank-flags";
pub(super) const AUX_KIND: &[u8] = b"farbank-kind";

/// A string with its key, as an entry of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RdbString<'a> {
    /// Number of the database.
    pub db: u32,
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// Expiry time in milliseconds since 1970; 0: never.
    pub expires_ms: u64,
    /// The flags that a memcached client has stored with the value.
    pub flags: u32,
    /// The value's kind in the store: 0, or marks of memcached's meta commands.
    pub kind: u8,
}

impl<'a> RdbString<'a> {
    /// Returns the entry of a key and its value.
    #[must_use]
    pub fn of(key: Key<'a>, item: StoredItem<'a>) -> RdbString<'a> {
        RdbString {
            db: u32::from(key.db),
            key: key.bytes,
            value: item.bytes,
            expires_ms: item.meta.expires_ms,
            flags: item.meta.flags,
            kind: item.meta.kind,
        }
    }
}

/// Writes an RDB file to `W`.
pub struct RdbWriter<W> {
    out: W,
    buffer: Vec<u8>,
    digest: Digest<'static, u64, Table<16>>,
    bytes: u64,
    db: Option<u32>,
    compresses: bool,
}

impl<W: Write> RdbWriter<W> {
    /// Begins a file with `aux`, its auxiliary fields. With `compresses`, strings are compressed where that saves
    /// space.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: W, compresses: bool, aux: &[(&str, &str)]) -> io::Result<RdbWriter<W>> {
        let mut writer = RdbWriter {
            out,
            buffer: format!("REDIS{VERSION:04}").into_bytes(),
            digest: CHECKSUM.digest(),
            bytes: 0,
            db: None,
            compresses,
        };
        for (name, value) in aux {
            writer.aux(name.as_bytes(), value.as_bytes());
        }
        writer.flush_full()?;
        Ok(writer)
    }

    fn aux(&mut self, name: &[u8], value: &[u8]) {
        self.buffer.push(OPCODE_AUX);
        put_string(&mut self.buffer, name);
        put_string(&mut self.buffer, value);
    }

    /// Appends the code of a library of functions. Libraries precede the entries.
    ///
    /// # Errors
    /// Those of the output.
    pub fn library(&mut self, code: &[u8]) -> io::Result<()> {
        self.buffer.push(OPCODE_LIBRARY);
        put_string(&mut self.buffer, code);
        self.flush_full()
    }

    /// Declares how many keys database `db` has, so that the loader can reserve memory.
    ///
    /// # Errors
    /// Those of the output.
    pub fn database(&mut self, db: u32, keys: u64, expiring: u64) -> io::Result<()> {
        self.select(db);
        self.buffer.push(OPCODE_RESIZE);
        put_length(&mut self.buffer, usize::try_from(keys).unwrap_or(0));
        put_length(&mut self.buffer, usize::try_from(expiring).unwrap_or(0));
        self.flush_full()
    }

    fn select(&mut self, db: u32) {
        if self.db != Some(db) {
            self.buffer.push(OPCODE_SELECT);
            put_length(&mut self.buffer, db as usize);
            self.db = Some(db);
        }
    }

    /// Appends an entry.
    ///
    /// # Errors
    /// Those of the output.
    pub fn string(&mut self, entry: &RdbString<'_>) -> io::Result<()> {
        self.select(entry.db);
        if entry.flags != 0 {
            self.aux(AUX_FLAGS, entry.flags.to_string().as_bytes());
        }
        if entry.kind != 0 {
            self.aux(AUX_KIND, entry.kind.to_string().as_bytes());
        }
        let buffer = &mut self.buffer;
        if entry.expires_ms != 0 {
            buffer.push(OPCODE_EXPIRES_MS);
            buffer.extend_from_slice(&entry.expires_ms.to_le_bytes());
        }
        buffer.push(TYPE_STRING);
        put_string(buffer, entry.key);
        match self.compresses {
            true => put_string(buffer, entry.value),
            false => {
                put_length(buffer, entry.value.len());
                if entry.value.len() >= BUFFER_BYTES {
                    self.flush_buffer()?;
                    return self.write_through(entry.value);
                }
                buffer.extend_from_slice(entry.value);
            }
        }
        self.flush_full()
    }

    fn flush_full(&mut self) -> io::Result<()> {
        match self.buffer.len() >= BUFFER_BYTES {
            true => self.flush_buffer(),
            false => Ok(()),
        }
    }

    /// Writes the collected bytes to the output.
    ///
    /// # Errors
    /// Those of the output.
    pub fn flush_buffer(&mut self) -> io::Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let written = self.write_through(&buffer);
        buffer.clear();
        if buffer.capacity() <= 4 * BUFFER_BYTES {
            self.buffer = buffer;
        }
        written
    }

    fn write_through(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.digest.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Bytes of the file so far.
    pub fn bytes(&self) -> u64 {
        self.bytes + self.buffer.len() as u64
    }

    /// Ends the file. Returns the output and the file's length. The output is not synced.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self) -> io::Result<(W, u64)> {
        self.buffer.push(OPCODE_EOF);
        self.flush_buffer()?;
        let checksum = self.digest.clone().finalize();
        self.out.write_all(&checksum.to_le_bytes())?;
        self.out.flush()?;
        Ok((self.out, self.bytes + 8))
    }
}
