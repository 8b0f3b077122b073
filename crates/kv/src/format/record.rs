//! Records: the entries of the log.
//!
//! ```text
//!  0           4           8                      16                     24
//!  ┌───────────┬───────────┬──────────────────────┬──────────────────────┬─────────┬───────┬─────┬───────┬─────┐
//!  │ head crc  │ body crc  │ sequence             │ shape                │ expires │ attrs │ key │ value │ pad │
//!  └───────────┴───────────┴──────────────────────┴──────────────────────┴─────────┴───────┴─────┴───────┴─────┘
//!                                                                          if EXPIRES, if ATTRS     to a multiple of
//!                                                                          16
//!
//!  shape  value length:30  key length:17  value kind:8  type:3  EXPIRES:1  ATTRS:1  LARGE:1  SETTLED:1  MEMBER:1
//!  MOVED:1 attrs  client flags:32  database:8  unused:24
//! ```
//!
//! # Invariants
//! KV-RECORD-1  The head crc covers bytes 4 to the end of the header. It starts from a seed made of the pool's secret id, the
//!     segment's generation and open epoch, and the record's offset. A header is valid at one offset in one generation
//!     of one segment of one pool, so no value can pose as a record.
//! KV-RECORD-2  The body crc covers key and value (for a LARGE record, key and extent table), and does not depend on the
//!     offset. A move copies the body with its body crc, so damaged bytes never get a valid checksum.
//! KV-RECORD-3  A length is used only after the head crc has been verified.
//! KV-RECORD-4  MEMBER marks a record that lies in a group's body. It counts only as part of a whole group.
//! KV-RECORD-5  SETTLED means: everything before this record in its segment was durable before the record was written.
//!     Bytes before such a record that fail their checksum are damage, not a torn write.
//! KV-RECORD-6  MOVED means: the cleaner copied this record, so its extents were durable before it was written.

use farbank_pm::crc::{crc32c_append, crc32c_words};

use farbank_store::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Alignment of records, in bytes.
pub(crate) const ALIGN: usize = 16;
/// Bytes of the shortest header.
pub(crate) const HEADER_MIN: usize = 24;
/// Bytes of the longest header.
pub(crate) const HEADER_MAX: usize = 40;
/// Bytes of the shortest record, and so of the shortest gap that can be padded.
pub(crate) const RECORD_MIN: usize = 32;
/// Highest valid sequence number. It is so low that numbers counted up from any in a pool cannot overflow.
pub(crate) const SEQ_MAX: u64 = 1 << 62;
/// Bytes of one entry of an extent table: segment u32, crc u32, generation u64.
pub(crate) const EXTENT_ENTRY: usize = 16;

const VALUE_BITS: u32 = 30;
const KEY_BITS: u32 = 17;
const KEY_AT: u32 = VALUE_BITS;
const KIND_AT: u32 = KEY_AT + KEY_BITS;
const TYPE_AT: u32 = KIND_AT + 8;
const EXPIRES: u64 = 1 << (TYPE_AT + 3);
const ATTRS: u64 = 1 << (TYPE_AT + 4);
const LARGE: u64 = 1 << (TYPE_AT + 5);
const SETTLED: u64 = 1 << (TYPE_AT + 6);
const MEMBER: u64 = 1 << (TYPE_AT + 7);
const MOVED: u64 = 1 << (TYPE_AT + 8);

const _: () = assert!(VALUE_BYTES_MAX < 1 << VALUE_BITS && KEY_BYTES_MAX < 1 << KEY_BITS);

/// Type of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub(crate) enum RecordType {
    /// A key and its value.
    #[default]
    Put = 1,
    /// A tombstone: a deleted key. The value is the reclaim stamp, see the cleaner.
    Tombstone = 2,
    /// A group: records that count all together or not at all. The value is the members.
    Group = 3,
    /// Padding over the bytes of a torn write. The value length covers them.
    Pad = 4,
}

/// A record's header, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RecordHeader {
    pub body_crc: u32,
    pub seq: u64,
    pub expires_ms: u64,
    pub flags: u32,
    pub db: u8,
    pub kind: u8,
    pub what: RecordType,
    pub large: bool,
    pub settled: bool,
    pub member: bool,
    pub moved: bool,
    pub key_len: usize,
    pub value_len: usize,
}

impl RecordHeader {
    /// Bytes of this header on the medium.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        HEADER_MIN + if self.expires_ms != 0 { 8 } else { 0 } + if self.has_attrs() { 8 } else { 0 }
    }

    #[inline]
    fn has_attrs(&self) -> bool {
        self.flags != 0 || self.db != 0
    }

    /// Bytes of the body: key and value, or key and extent table. `extent_payload` is the capacity of one extent,
    /// in bytes.
    #[inline]
    pub(crate) fn body_len(&self, extent_payload: usize) -> usize {
        body_len(self.key_len, self.value_len, self.large, extent_payload)
    }

    /// Bytes of the whole record, padding included.
    #[inline]
    pub(crate) fn record_len(&self, extent_payload: usize) -> usize {
        (self.len() + self.body_len(extent_payload)).next_multiple_of(ALIGN)
    }

    /// Encodes the header without its checksum, which is 0.
    #[inline]
    pub(crate) fn raw(&self) -> RawHeader {
        let mut shape = self.value_len as u64
            | (self.key_len as u64) << KEY_AT
            | u64::from(self.kind) << KIND_AT
            | (self.what as u64) << TYPE_AT;
        let mut words = [0; HEADER_MAX / 8];
        let mut rest = HEADER_MIN / 8;
        if self.expires_ms != 0 {
            shape |= EXPIRES;
            words[rest] = self.expires_ms;
            rest += 1;
        }
        if self.has_attrs() {
            shape |= ATTRS;
            words[rest] = u64::from(self.flags) | u64::from(self.db) << 32;
        }
        for (set, bit) in [
            (self.large, LARGE),
            (self.settled, SETTLED),
            (self.member, MEMBER),
            (self.moved, MOVED),
        ] {
            shape |= if set { bit } else { 0 };
        }
        words[0] = u64::from(self.body_crc) << 32;
        words[1] = self.seq;
        words[2] = shape;
        RawHeader(words)
    }

    /// Appends the header to `out`, with a checksum that starts from `seed` (KV-RECORD-1).
    #[inline]
    pub(crate) fn encode(&self, seed: u32, out: &mut Vec<u8>) {
        let RawHeader(mut words) = self.raw();
        let len = self.len();
        words[0] |= u64::from(crc32c_words(seed, self.body_crc, &words[1..len / 8]));
        let bytes = words.map(u64::to_le_bytes);
        out.extend_from_slice(&bytes.as_flattened()[..len]);
    }

    /// Decodes the header in `bytes`. `None` if its checksum, started from `seed`, does not hold.
    #[inline]
    pub(crate) fn decode(bytes: &[u8; HEADER_MAX], seed: u32) -> Option<RecordHeader> {
        let raw = RawHeader::new(bytes);
        raw.has_valid_checksum(seed).then(|| raw.header())?
    }
}

/// A header as encoded on the medium. If it is shorter than [`HEADER_MAX`], bytes of the body follow in the array. Each
/// field is decoded on access only, because a lookup needs few of them. The array has words so that they stay in
/// registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawHeader([u64; HEADER_MAX / 8]);

impl RawHeader {
    #[inline]
    pub(crate) fn new(bytes: &[u8; HEADER_MAX]) -> RawHeader {
        RawHeader(std::array::from_fn(|n| u64_at(bytes, 8 * n)))
    }

    #[inline]
    pub(crate) fn from_words(words: [u64; HEADER_MAX / 8]) -> RawHeader {
        RawHeader(words)
    }

    #[inline]
    pub(crate) fn words(&self) -> [u64; HEADER_MAX / 8] {
        self.0
    }

    #[inline]
    fn shape(&self) -> u64 {
        self.0[2]
    }

    /// Bytes of the header.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        let shape = self.shape();
        HEADER_MIN
            + if shape & EXPIRES != 0 { 8 } else { 0 }
            + if shape & ATTRS != 0 { 8 } else { 0 }
    }

    /// Whether the checksum, started from `seed`, holds (KV-RECORD-1).
    #[inline(always)]
    pub(crate) fn has_valid_checksum(&self, seed: u32) -> bool {
        let covered = &self.0[1..self.len() / 8];
        crc32c_words(seed, self.body_crc(), covered) == self.0[0] as u32
    }

    /// Whether type and sequence number are valid. A header with a valid checksum and invalid fields was forged.
    #[inline]
    pub(crate) fn has_valid_fields(&self) -> bool {
        self.what().is_some() && self.seq() <= SEQ_MAX
    }

    #[inline]
    fn what(&self) -> Option<RecordType> {
        RecordType::from_bits((self.shape() >> TYPE_AT) & 7)
    }

    #[inline]
    pub(crate) fn is_put(&self) -> bool {
        self.what() == Some(RecordType::Put)
    }

    #[inline]
    pub(crate) fn is_large(&self) -> bool {
        self.shape() & LARGE != 0
    }

    #[inline]
    pub(crate) fn body_crc(&self) -> u32 {
        (self.0[0] >> 32) as u32
    }

    #[inline]
    pub(crate) fn seq(&self) -> u64 {
        self.0[1]
    }

    #[inline]
    pub(crate) fn kind(&self) -> u8 {
        (self.shape() >> KIND_AT) as u8
    }

    #[inline]
    pub(crate) fn key_len(&self) -> usize {
        (self.shape() >> KEY_AT) as usize & ((1 << KEY_BITS) - 1)
    }

    #[inline]
    pub(crate) fn value_len(&self) -> usize {
        self.shape() as usize & ((1 << VALUE_BITS) - 1)
    }

    #[inline]
    pub(crate) fn expires_ms(&self) -> u64 {
        match self.shape() & EXPIRES {
            0 => 0,
            _ => self.0[3],
        }
    }

    /// Client flags and database.
    #[inline]
    fn attrs(&self) -> u64 {
        match self.shape() & ATTRS {
            0 => 0,
            _ => self.0[self.len() / 8 - 1],
        }
    }

    #[inline]
    pub(crate) fn flags(&self) -> u32 {
        self.attrs() as u32
    }

    #[inline]
    pub(crate) fn db(&self) -> u8 {
        (self.attrs() >> 32) as u8
    }

    /// As [`RecordHeader::body_len`].
    #[inline]
    pub(crate) fn body_len(&self, extent_payload: usize) -> usize {
        body_len(
            self.key_len(),
            self.value_len(),
            self.is_large(),
            extent_payload,
        )
    }

    /// As [`RecordHeader::record_len`].
    #[inline]
    pub(crate) fn record_len(&self, extent_payload: usize) -> usize {
        (self.len() + self.body_len(extent_payload)).next_multiple_of(ALIGN)
    }

    /// Decodes all fields. `None` if the type, the sequence number or the length of the header is invalid.
    #[inline]
    pub(crate) fn header(&self) -> Option<RecordHeader> {
        let shape = self.shape();
        let header = RecordHeader {
            body_crc: self.body_crc(),
            seq: self.seq(),
            expires_ms: self.expires_ms(),
            flags: self.flags(),
            db: self.db(),
            kind: self.kind(),
            what: self.what()?,
            large: self.is_large(),
            settled: shape & SETTLED != 0,
            member: shape & MEMBER != 0,
            moved: shape & MOVED != 0,
            key_len: self.key_len(),
            value_len: self.value_len(),
        };
        (header.len() == self.len() && self.has_valid_fields()).then_some(header)
    }
}

#[inline]
fn body_len(key_len: usize, value_len: usize, large: bool, extent_payload: usize) -> usize {
    match large {
        false => key_len + value_len,
        true => key_len + value_len.div_ceil(extent_payload) * EXTENT_ENTRY,
    }
}

impl RecordType {
    #[inline]
    fn from_bits(bits: u64) -> Option<RecordType> {
        Some(match bits {
            1 => RecordType::Put,
            2 => RecordType::Tombstone,
            3 => RecordType::Group,
            4 => RecordType::Pad,
            _ => return None,
        })
    }
}

/// Returns the body crc of a key and the value or extent table (`rest`) after it (KV-RECORD-2).
#[inline]
pub(crate) fn body_crc(key: &[u8], rest: &[u8]) -> u32 {
    crc32c_append(crc32c_append(0, key), rest)
}

/// One entry of an extent table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ValueExtent {
    /// The segment that holds the bytes.
    pub segment: u32,
    /// CRC-32C of the bytes.
    pub crc: u32,
    /// The generation the segment must have.
    pub generation: u64,
}

impl ValueExtent {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.segment.to_le_bytes());
        out.extend_from_slice(&self.crc.to_le_bytes());
        out.extend_from_slice(&self.generation.to_le_bytes());
    }

    /// The entries of a table.
    pub(crate) fn decode_all(table: &[u8]) -> impl Iterator<Item = ValueExtent> + '_ {
        table.chunks_exact(EXTENT_ENTRY).map(|entry| ValueExtent {
            segment: u32_at(entry, 0),
            crc: u32_at(entry, 4),
            generation: u64_at(entry, 8),
        })
    }
}

#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[inline]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(header: &RecordHeader, seed: u32) -> [u8; HEADER_MAX] {
        let mut out = Vec::new();
        header.encode(seed, &mut out);
        assert_eq!(out.len(), header.len());
        out.resize(HEADER_MAX, 0xee);
        out.try_into().unwrap()
    }

    #[test]
    fn a_header_is_decoded_as_encoded() {
        for (key_len, value_len) in [(0, 0), (KEY_BYTES_MAX, VALUE_BYTES_MAX), (16, 201)] {
            for (expires_ms, flags, db) in
                [(0, 0, 0), (u64::MAX, 0, 0), (0, u32::MAX, 15), (1, 1, 1)]
            {
                for what in [
                    RecordType::Put,
                    RecordType::Tombstone,
                    RecordType::Group,
                    RecordType::Pad,
                ] {
                    let header = RecordHeader {
                        body_crc: 7,
                        seq: SEQ_MAX,
                        kind: 255,
                        large: key_len == 0,
                        settled: key_len == 16,
                        member: key_len != 0,
                        moved: value_len != 0,
                        key_len,
                        value_len,
                        expires_ms,
                        flags,
                        db,
                        what,
                    };
                    assert_eq!(
                        RecordHeader::decode(&encoded(&header, 99), 99),
                        Some(header)
                    );
                }
            }
        }
    }

    #[test]
    fn a_flipped_bit_or_a_wrong_seed_makes_a_header_invalid() {
        let header = RecordHeader {
            seq: 5,
            key_len: 3,
            value_len: 100,
            ..RecordHeader::default()
        };
        let bytes = encoded(&header, 1);
        assert_eq!(RecordHeader::decode(&bytes, 2), None);
        for bit in 0..header.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RecordHeader::decode(&damaged, 1), None, "bit {bit}");
        }
    }

    #[test]
    fn a_small_plain_record_has_24_bytes_of_header() {
        let plain = RecordHeader {
            seq: 1,
            key_len: 16,
            value_len: 201,
            ..RecordHeader::default()
        };
        assert_eq!(plain.len(), HEADER_MIN);
        assert_eq!(plain.record_len(1 << 20), 256);
    }
}
