//! Lookup: from a key's hash to its record.
//!
//! ```text
//!   hash ──▶ spot: group, line of the index ──▶ hit: an entry whose tag matches ──▶ found: the record, by its header
//! ```
//!
//! An entry whose tag matches is most likely the key's. The record itself decides: the checksum of its header, its
//! database, the length of its key, its key. A record that fails its checksum may have been the key's before it was
//! damaged.
//!
//! The usual path, one matching entry and a valid record, is inlined into its callers: passing headers through memory
//! between functions would cost more than all the checks.

use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::{Medium, Off};

use crate::engine::Engine;
use crate::index::{BucketRef, Candidate};
use crate::read::FETCHED_HEAD;
use crate::record::{HEADER_MAX, RawHeader, RecordHeader, body_crc};
use farbank_store::Key;

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

impl<M: Medium> Engine<M> {
    /// Returns the header of the record at `at`, if its checksum is valid.
    pub(crate) fn header(&self, at: Off) -> Option<RecordHeader> {
        self.raw(at)?.header()
    }

    /// As [`Engine::header`], but not decoded.
    #[inline(always)]
    fn raw(&self, at: Off) -> Option<RawHeader> {
        let within = self.geometry.within(at);
        if within + HEADER_MAX > self.geometry.segment_bytes {
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
        let end = within + raw.record_len(self.geometry.payload());
        (raw.has_valid_fields() && end <= self.geometry.segment_bytes).then_some(raw)
    }

    #[inline]
    pub(crate) fn record_len(&self, header: &RecordHeader) -> usize {
        header.record_len(self.geometry.payload())
    }

    #[inline]
    pub(crate) fn body_len(&self, header: &RecordHeader) -> usize {
        header.body_len(self.geometry.payload())
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
        Some(self.geometry.hash(header.db, &self.key_of(at, &header)))
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
        let len = raw.record_len(self.geometry.payload()) as u32;
        let header = Some(raw);
        FoundRecord { at, header, len }
    }

    /// Returns whether the record at `at`, whose tag matched but whose key did not, is damaged.
    #[cold]
    fn is_damaged(&self, at: Off, raw: &RawHeader) -> bool {
        !raw.header()
            .is_some_and(|header| self.body_holds(at, &header))
    }

    /// Looks `key` up in the index. A valid record of the key wins over damaged ones.
    #[inline]
    pub(crate) fn locate(&self, hash: u64, key: Key<'_>) -> EntryLocation {
        let mut strangers = Vec::new();
        let found = self.seek(hash, key, 0, |at| strangers.push(at));
        EntryLocation {
            found,
            tag_collisions: strangers,
        }
    }

    /// As [`Engine::locate`], for callers that need only the record. Prefetches its first `fetched` bytes, so that
    /// all their cache lines arrive together. Calls `pass` with every other entry whose tag matches.
    #[inline(always)]
    pub(crate) fn seek(
        &self,
        hash: u64,
        key: Key<'_>,
        fetched: usize,
        pass: impl FnMut(Off),
    ) -> Option<FoundRecord> {
        let sought = self.seek_at(&self.index.spot(hash), key, fetched, pass);
        sought.map(|(_, found)| found)
    }

    /// As [`Engine::seek`], at a known location in the index. Also returns the entry.
    #[inline(always)]
    pub(crate) fn seek_at(
        &self,
        spot: &BucketRef,
        key: Key<'_>,
        fetched: usize,
        pass: impl FnMut(Off),
    ) -> Option<(Candidate, FoundRecord)> {
        let first = self.index.first(spot)?;
        self.medium().prefetch(first.at(), fetched);
        match self.follow(first, key) {
            Some(sought) => Some(sought),
            None => self.seek_among(spot, key, pass),
        }
    }

    /// The slow path of [`Engine::seek_at`]: several matching entries, or damaged records.
    #[cold]
    fn seek_among(
        &self,
        spot: &BucketRef,
        key: Key<'_>,
        mut pass: impl FnMut(Off),
    ) -> Option<(Candidate, FoundRecord)> {
        let mut damaged: Option<(Candidate, FoundRecord)> = None;
        let sound = self.index.search_at(spot, |hit| {
            let at = hit.at();
            match self.classify(at, key) {
                Some(found) if found.header.is_some() => Some((hit, found)),
                Some(found) => {
                    if let Some((before, _)) = damaged.replace((hit, found)) {
                        pass(before.at());
                    }
                    None
                }
                None => {
                    pass(at);
                    None
                }
            }
        });
        match (sound, damaged) {
            (None, damaged) => damaged,
            (sound, Some((other, _))) => {
                pass(other.at());
                sound
            }
            (sound, None) => sound,
        }
    }

    /// Returns the first entry whose tag matches the key, and prefetches its record and the counters of its segment.
    /// The caller holds the stripe's lock.
    #[inline(always)]
    pub(crate) fn likely(&self, spot: &BucketRef) -> Option<Candidate> {
        let hit = self.index.first(spot)?;
        self.medium().prefetch(hit.at(), FETCHED_HEAD);
        self.fetch_for_count(hit.at());
        Some(hit)
    }

    /// Returns the record to which an entry refers, if that is a record of `key` with a valid header.
    #[inline(always)]
    pub(crate) fn follow(&self, hit: Candidate, key: Key<'_>) -> Option<(Candidate, FoundRecord)> {
        let at = hit.at();
        let raw = self.raw(at)?;
        self.is_of(at, &raw, key)
            .then(|| (hit, self.found(at, raw)))
    }

    /// Returns whether the record at `at` has a valid header and belongs to `key`.
    pub(crate) fn holds(&self, at: Off, key: Key<'_>) -> bool {
        self.raw(at).is_some_and(|raw| self.is_of(at, &raw, key))
    }

    /// Returns whether the record at `at` belongs to `key`.
    #[inline(always)]
    fn is_of(&self, at: Off, raw: &RawHeader, key: Key<'_>) -> bool {
        raw.db() == key.db
            && raw.key_len() == key.bytes.len()
            && self.medium().matches(at.plus(raw.len() as u64), key.bytes)
    }

    /// Returns whether `located` is still current: the entry that was found still exists (a key has only one), or, if
    /// none was found, no new matching entry has been added. The caller holds the stripe's lock.
    pub(crate) fn confirm(&self, hash: u64, located: &EntryLocation) -> bool {
        if let Some(found) = located.found {
            return self.index.names(hash, found.at);
        }
        let is_new = |at: Off| (!located.tag_collisions.contains(&at)).then_some(());
        self.index.search(hash, is_new).is_none()
    }

    /// Returns whether key and value (or table) match the body checksum in `header`.
    pub(crate) fn body_matches(header: &RecordHeader, key: &[u8], rest: &[u8]) -> bool {
        body_crc(key, rest) == header.body_crc
    }
}
