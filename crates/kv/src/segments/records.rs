//! Reading records from the medium: headers, keys, bodies and extents, each with its checksum.
//!
//! An offset determines its segment, and the segment's facts in DRAM ([`Segments`]) have the seed of the checksum. So a
//! record of an earlier use of the segment is invalid.

use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::{Medium, Off};
use farbank_store::Key;

use crate::format::record::{HEADER_MAX, RawHeader, RecordHeader, ValueExtent, body_crc};
use crate::format::segment::{FIRST, SegmentState};
use crate::segments::Segments;

/// Bytes of a record that are prefetched before its header is known: the header and a short key; for a read also a
/// small value.
pub(crate) const FETCHED_HEAD: usize = 48;
pub(crate) const FETCHED_VALUE: usize = 176;

/// A record found by its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundRecord {
    pub at: Off,
    /// `None`: the header is damaged, and only the offset is valid.
    pub header: Option<RawHeader>,
    pub len: u32,
}

/// The index entries of a key.
#[derive(Clone, Debug, Default)]
pub(crate) struct EntryLocation {
    pub found: Option<FoundRecord>,
    /// Offsets of entries whose tag matches the key, but whose records belong to other keys.
    pub tag_collisions: Vec<Off>,
}

/// Returns whether key and value (or table) match the body checksum in `header`.
pub(crate) fn body_matches(header: &RecordHeader, key: &[u8], rest: &[u8]) -> bool {
    body_crc(key, rest) == header.body_crc
}

impl<M: Medium> Segments<M> {
    /// Returns the checksum seed of the header of a record at `at`.
    #[inline]
    pub(crate) fn seed_at(&self, at: Off) -> u32 {
        self.info_at(at).seed.load(Relaxed) ^ self.geometry().within(at) as u32
    }

    /// Returns the header of the record at `at`, if its checksum is valid.
    pub(crate) fn header(&self, at: Off) -> Option<RecordHeader> {
        self.raw(at)?.header()
    }

    /// As [`Segments::header`], but not decoded.
    #[inline(always)]
    pub(crate) fn raw(&self, at: Off) -> Option<RawHeader> {
        let within = self.geometry().within(at);
        if within + HEADER_MAX > self.geometry().segment_bytes() {
            return None;
        }
        let seed = self.info_at(at).seed.load(Relaxed) ^ within as u32;
        let vouched = |bytes: &[u8]| {
            let raw = RawHeader::new(bytes.try_into().expect("HEADER_MAX bytes"));
            match raw.has_valid_checksum(seed) {
                true => raw.len(),
                false => 0,
            }
        };
        let mut bytes = [0; HEADER_MAX];
        if !self.medium().copy_out_if(at, &mut bytes, &vouched) {
            return None;
        }
        let raw = RawHeader::new(&bytes);
        let end = within + raw.record_len(self.geometry().payload());
        (raw.has_valid_fields() && end <= self.geometry().segment_bytes()).then_some(raw)
    }

    #[inline]
    pub(crate) fn record_len(&self, header: &RecordHeader) -> usize {
        header.record_len(self.geometry().payload())
    }

    #[inline]
    pub(crate) fn body_len(&self, header: &RecordHeader) -> usize {
        header.body_len(self.geometry().payload())
    }

    /// Returns whether the body of the record at `at` has its checksum (for a large value: key and extent table).
    pub(crate) fn body_holds(&self, at: Off, header: &RecordHeader) -> bool {
        let body = at.plus(header.len() as u64);
        let len = self.body_len(header);
        self.medium().crc_is(body, len, 0, header.body_crc)
    }

    /// Returns the key of a record with this header.
    pub(crate) fn key_of(&self, at: Off, header: &RecordHeader) -> Vec<u8> {
        let mut key = Vec::with_capacity(header.key_len);
        self.medium()
            .append_out(at.plus(header.len() as u64), header.key_len, &mut key);
        key
    }

    /// Returns the hash of the key of the record at `at`, if the key can be read.
    pub(crate) fn rehash(&self, at: Off) -> Option<u64> {
        let header = self.header(at)?;
        Some(self.geometry().hash(header.db, &self.key_of(at, &header)))
    }

    /// Returns the record at `at` if it belongs to `key`, or `None` if it belongs to another key. A damaged record
    /// counts as a match without a header: its key cannot be trusted.
    #[inline]
    pub(crate) fn classify(&self, at: Off, key: Key<'_>) -> Option<FoundRecord> {
        let Some(raw) = self.raw(at) else {
            let (header, len) = (None, 0);
            return Some(FoundRecord { at, header, len });
        };
        let found = self.found(at, raw);
        if self.is_of(at, &raw, key) {
            return Some(found);
        }
        // The record may have been this key's before it was damaged.
        let header = None;
        self.is_damaged(at, &raw)
            .then_some(FoundRecord { header, ..found })
    }

    /// Describes the record at `at`, which has this header.
    #[inline(always)]
    pub(crate) fn found(&self, at: Off, raw: RawHeader) -> FoundRecord {
        let len = raw.record_len(self.geometry().payload()) as u32;
        let header = Some(raw);
        FoundRecord { at, header, len }
    }

    /// Returns whether the record at `at`, whose tag matched but whose key did not, is damaged.
    #[cold]
    fn is_damaged(&self, at: Off, raw: &RawHeader) -> bool {
        !raw.header()
            .is_some_and(|header| self.body_holds(at, &header))
    }

    /// Returns whether the record at `at` has a valid header and belongs to `key`.
    pub(crate) fn holds(&self, at: Off, key: Key<'_>) -> bool {
        self.raw(at).is_some_and(|raw| self.is_of(at, &raw, key))
    }

    /// Returns whether the record at `at` belongs to `key`.
    #[inline(always)]
    pub(crate) fn is_of(&self, at: Off, raw: &RawHeader, key: Key<'_>) -> bool {
        raw.db() == key.db
            && raw.key_len() == key.bytes.len()
            && self.medium().matches(at.plus(raw.len() as u64), key.bytes)
    }

    /// Appends a large value's bytes to `out`. Returns false if an extent fails its checksum.
    pub(crate) fn read_extents(&self, value_len: usize, table: &[u8], out: &mut Vec<u8>) -> bool {
        let mut left = value_len;
        for extent in ValueExtent::decode_all(table) {
            let len = left.min(self.geometry().payload());
            if !self.extent_holds(&extent, len) {
                return false;
            }
            let at = self.geometry().base(extent.segment).plus(FIRST as u64);
            self.medium().append_out(at, len, out);
            left -= len;
        }
        left == 0
    }

    /// Returns whether an extent has the right generation and the right bytes.
    pub(crate) fn extent_holds(&self, extent: &ValueExtent, len: usize) -> bool {
        let at = self.geometry().base(extent.segment).plus(FIRST as u64);
        self.has_generation(extent) && self.medium().crc_is(at, len, 0, extent.crc)
    }

    /// Returns whether an entry of a table, which may be damaged, names a segment that still has the entry's
    /// generation.
    pub(crate) fn has_generation(&self, extent: &ValueExtent) -> bool {
        extent.segment < self.count()
            && self.info(extent.segment).generation.load(Relaxed) == extent.generation
    }

    /// Returns whether the extents of a table still belong to the session that wrote them. FLUSHALL frees extents of
    /// writes that are not listed yet. The caller holds a stripe's lock.
    pub(crate) fn keeps(&self, table: &[u8]) -> bool {
        ValueExtent::decode_all(table).all(|extent| {
            self.has_generation(&extent)
                && self.info(extent.segment).state() == SegmentState::Extent
        })
    }

    /// Returns the extent table of the large record at `at`.
    pub(crate) fn table_of(&self, at: Off, header: &RecordHeader) -> Vec<u8> {
        let mut table = Vec::new();
        let from = at.plus((header.len() + header.key_len) as u64);
        self.medium()
            .append_out(from, self.body_len(header) - header.key_len, &mut table);
        table
    }
}
