//! The scan of one segment at an open: by its map, or from end to end.
//!
//! `recovery` has the invariants (KV-OPEN-1 to KV-OPEN-6): how records, torn writes and damage are distinguished and treated.

use farbank_pm::fault;
use farbank_pm::situation;
use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::{LINE, Medium, Off};

use crate::engine::Engine;
use crate::engine::unreadable;
use crate::format::record::{ALIGN, RecordHeader, RecordType, ValueExtent};
use crate::format::segment::{FIRST, SegmentMeta};
use crate::format::segment_map::{self, SegmentMap};
use farbank_store::DATABASES;

/// Prefetch distance of a scan, in bytes.
const AHEAD: usize = 1024;
/// Prefetch distance among marked records, in records.
const MARKED_AHEAD: usize = 12;

/// A record that the scan accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScannedRecord {
    /// The hash with its bits reversed. Sorting by it sorts by index group, for any number of groups.
    pub rank: u64,
    pub seq: u64,
    pub at: Off,
    pub len: u32,
    pub db: u8,
    pub what: RecordType,
    pub large: bool,
    pub expires: bool,
}

impl ScannedRecord {
    /// Returns the record at `at`, with `header`, whose key has `hash`.
    pub(crate) fn new<M: Medium>(
        engine: &Engine<M>,
        hash: u64,
        at: Off,
        header: &RecordHeader,
    ) -> ScannedRecord {
        ScannedRecord {
            rank: hash.reverse_bits(),
            seq: header.seq,
            at,
            len: engine.segments.record_len(header) as u32,
            db: header.db.min(DATABASES as u8 - 1),
            what: header.what,
            large: header.large,
            expires: header.expires_ms != 0,
        }
    }
}

/// Returns the header of the record at `at`, if its checksum holds and the record ends at `limit` bytes from the start of
/// its segment, or before.
pub(crate) fn header_at<M: Medium>(
    engine: &Engine<M>,
    at: Off,
    limit: usize,
) -> Option<RecordHeader> {
    let within = engine.geometry().within(at);
    let fits = |header: &RecordHeader| within + engine.segments.record_len(header) <= limit;
    let begins = (FIRST..limit).contains(&within);
    begins.then(|| engine.segments.header(at))?.filter(fits)
}

/// Result of the scan of one segment.
#[derive(Debug, Default)]
pub(crate) struct SegmentScan {
    /// Accepted records, partitioned by the low bits of their hashes.
    pub items: Vec<Vec<ScannedRecord>>,
    /// Torn ranges, to be padded.
    pub pads: Vec<TornRange>,
    /// End of the accepted records, in bytes from the segment's start.
    pub end: usize,
    /// Extent tables of accepted large groups.
    pub tables: Vec<Vec<u8>>,
    /// Offsets of accepted records with large values.
    pub large: Vec<Off>,
    pub damage: Vec<String>,
    pub records: u64,
    pub seq_max: u64,
    /// Bytes of the records of values that the segment's map marks; `None` if the map was not used.
    pub marked_bytes: Option<u32>,
    /// Buffer for the key that was read last.
    key: Vec<u8>,
}

/// Range of bytes of an unacknowledged write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TornRange {
    pub from: usize,
    pub to: usize,
    /// Whether the range starts with a header that is SETTLED. Later headers in the range are not SETTLED: then the
    /// bytes before them would be durable, not torn.
    pub settled: bool,
}

/// One piece of a scanned segment.
struct SegmentPiece {
    from: usize,
    to: usize,
    /// Header of the record; `None`: the bytes are no record.
    header: Option<RecordHeader>,
    /// Whether the body's checksum holds.
    whole: bool,
}

impl SegmentPiece {
    fn torn(&self) -> TornRange {
        TornRange {
            from: self.from,
            to: self.to,
            settled: self.header.is_some_and(|header| header.settled),
        }
    }
}

/// The scan of one segment.
pub(crate) struct SegmentScanner<'a, M: Medium> {
    engine: &'a Engine<M>,
    metas: &'a [Option<SegmentMeta>],
    segment: u32,
    /// End of the segment's records, if all bytes before it were certainly durable.
    durable_end: Option<usize>,
    map: Option<SegmentMap>,
}

impl<'a, M: Medium> SegmentScanner<'a, M> {
    /// Returns a scan of `segment`, whose head and tail say `meta`; `metas` has the same for all segments.
    pub(crate) fn new(
        engine: &'a Engine<M>,
        metas: &'a [Option<SegmentMeta>],
        segment: u32,
        meta: SegmentMeta,
    ) -> SegmentScanner<'a, M> {
        let map = segment_map::read(&engine.segments, segment);
        SegmentScanner {
            engine,
            metas,
            segment,
            // All records before a map's end were durable when the map was written (KV-MAP-2).
            durable_end: meta.sealed.or(map.as_ref().map(|map| map.end)),
            map,
        }
    }

    /// Scans the segment. Adds accepted records to `items`, partitioned by the low bits of their hashes.
    pub(crate) fn run(&self, items: Vec<Vec<ScannedRecord>>) -> SegmentScan {
        let mut found = SegmentScan {
            items,
            end: FIRST,
            ..SegmentScan::default()
        };
        if let Some(marked) = self.marked() {
            situation!("kv.map_used");
            let values = marked
                .iter()
                .filter(|(_, header)| header.what == RecordType::Put);
            let bytes: usize = values
                .map(|(_, header)| self.engine.segments.record_len(header))
                .sum();
            found.marked_bytes = Some(bytes as u32);
            for (n, (from, header)) in marked.iter().enumerate() {
                if let Some((ahead, header)) = marked.get(n + MARKED_AHEAD) {
                    let len = self.engine.segments.record_len(header).min(AHEAD);
                    self.engine.medium().prefetch(self.at(*ahead), len);
                }
                self.classify_piece(&self.piece(*from, *header), true, &mut found);
            }
            found.end = self.durable_end.unwrap_or(FIRST);
            return found;
        }
        situation!("kv.sealed_without_map", self.durable_end.is_some());
        if self.durable_end.is_some() {
            self.split_into_pieces(&mut |piece| self.classify_piece(&piece, true, &mut found));
            return found;
        }
        let mut pieces = Vec::new();
        self.split_into_pieces(&mut |piece| pieces.push(piece));
        // From the right: every piece before a SETTLED record was durable.
        let mut vouched = false;
        let mut durable = vec![false; pieces.len()];
        for (piece, durable) in pieces.iter().zip(&mut durable).rev() {
            *durable = vouched;
            vouched |= piece.header.is_some_and(|h| h.settled);
        }
        // Bytes that the device cannot read may have been durable. So may members that follow them, because
        // the unreadable bytes may be their group's header.
        let mut lost = false;
        for (piece, durable) in pieces.iter().zip(&mut durable) {
            let is_member = piece.header.is_some_and(|h| h.member);
            lost = self.is_unreadable(piece) || (lost && is_member);
            *durable |= lost;
        }
        for (piece, durable) in pieces.iter().zip(durable) {
            self.classify_piece(piece, durable, &mut found);
        }
        found
    }

    /// Returns the records that the segment's map marks. `None` if there is no map, or if a marked place holds no
    /// record: then the whole segment must be read.
    fn marked(&self) -> Option<Vec<(usize, RecordHeader)>> {
        let map = self.map.as_ref()?;
        let end = self.durable_end.filter(|end| *end == map.end)?;
        let places: Vec<[usize; 2]> = map.places().collect();
        let mut marked = Vec::with_capacity(places.len());
        for (n, place) in places.iter().enumerate() {
            if let Some([ahead, _]) = places.get(n + MARKED_AHEAD) {
                self.engine.medium().prefetch(self.at(*ahead), 2 * LINE);
            }
            let mut begins = place
                .iter()
                .map(|from| (*from, header_at(self.engine, self.at(*from), end)));
            let (from, header) = begins.find_map(|(from, header)| Some((from, header?)))?;
            matches!(header.what, RecordType::Put | RecordType::Tombstone).then_some(())?;
            marked.push((from, header));
        }
        Some(marked)
    }

    fn piece(&self, from: usize, header: RecordHeader) -> SegmentPiece {
        SegmentPiece {
            from,
            to: from + self.engine.segments.record_len(&header),
            header: Some(header),
            whole: self.is_whole(from, &header),
        }
    }

    /// Cuts the segment into records and gaps, from left to right, and calls `each` for every piece.
    fn split_into_pieces(&self, each: &mut dyn FnMut(SegmentPiece)) {
        let end = self.engine.geometry().records_end();
        let limit = self.durable_end.unwrap_or(end);
        let (mut from, mut gap) = (FIRST, FIRST);
        while from < limit {
            self.engine
                .medium()
                .prefetch(self.at(from + AHEAD), AHEAD / 4);
            let Some(header) = header_at(self.engine, self.at(from), limit) else {
                from += ALIGN;
                continue;
            };
            self.cut_gap(gap, from, each);
            let piece = self.piece(from, header);
            let to = piece.to;
            each(piece);
            (from, gap) = (to, to);
        }
        self.cut_gap(gap, from, each);
    }

    fn cut_gap(&self, from: usize, to: usize, each: &mut dyn FnMut(SegmentPiece)) {
        if from < to {
            each(SegmentPiece {
                from,
                to,
                header: None,
                whole: false,
            });
        }
    }

    fn at(&self, within: usize) -> Off {
        self.engine
            .geometry()
            .base(self.segment)
            .plus(within as u64)
    }

    fn is_whole(&self, from: usize, header: &RecordHeader) -> bool {
        let unchecked = header.what == RecordType::Pad
            || (header.what == RecordType::Group && fault!("kv.group_unchecked"));
        unchecked || self.engine.segments.body_holds(self.at(from), header)
    }

    /// Whether all extents of a record that may be torn are opened, and their checksums hold.
    fn extents_hold(&self, at: Off, header: &RecordHeader) -> bool {
        let payload = self.engine.geometry().payload();
        let mut left = header.value_len;
        let count = if fault!("kv.first_extent_checked") {
            1
        } else {
            usize::MAX
        };
        let table = self.engine.segments.table_of(at, header);
        ValueExtent::decode_all(&table).take(count).all(|extent| {
            let len = left.min(payload);
            left -= len;
            let meta = self.metas.get(extent.segment as usize).copied().flatten();
            meta.is_some_and(|meta| meta.opened.is_some())
                && self.engine.segments.extent_holds(&extent, len)
        })
    }

    fn classify_piece(&self, piece: &SegmentPiece, durable: bool, found: &mut SegmentScan) {
        let at = self.at(piece.from);
        let Some(header) = &piece.header else {
            return self.classify_gap(piece, durable, found);
        };
        let whole = piece.whole
            && (!header.large || durable || header.moved || self.extents_hold(at, header))
            && (!header.member || durable);
        situation!("kv.body_torn", !durable && !piece.whole);
        situation!(
            "kv.extents_torn",
            !whole && !durable && piece.whole && header.large && !header.member
        );
        if !whole && !durable {
            return found.pads.push(piece.torn());
        }
        found.end = piece.to;
        if !whole {
            found.damage.push(format!(
                "record at {:#x} (segment {}): its contents {}",
                at.0,
                self.segment,
                self.why(piece, "fail their checksum")
            ));
        }
        match header.what {
            RecordType::Pad => {}
            RecordType::Group => self.take_group(at, header, whole, found),
            RecordType::Put | RecordType::Tombstone => self.accept(at, header, found),
        }
    }

    fn is_unreadable(&self, piece: &SegmentPiece) -> bool {
        let header = piece.header.as_ref().filter(|_| piece.whole);
        unreadable::is_any(self.engine, self.range(piece), header)
    }

    /// Describes what is wrong with a piece: that the device cannot read it, or `otherwise`.
    fn why(&self, piece: &SegmentPiece, otherwise: &str) -> String {
        unreadable::describe(self.engine, self.range(piece), otherwise)
    }

    fn range(&self, piece: &SegmentPiece) -> (Off, usize) {
        (self.at(piece.from), piece.to - piece.from)
    }

    fn classify_gap(&self, piece: &SegmentPiece, durable: bool, found: &mut SegmentScan) {
        if durable {
            found.end = piece.to;
            found.damage.push(format!(
                "{} bytes at {:#x} (segment {}) {}: values there are lost, and their keys may show an \
                 older value",
                piece.to - piece.from,
                self.at(piece.from).0,
                self.segment,
                self.why(piece, "are no record")
            ));
        } else {
            found.pads.push(piece.torn());
        }
    }

    fn accept(&self, at: Off, header: &RecordHeader, found: &mut SegmentScan) {
        found.records += 1;
        if header.what == RecordType::Put || !fault!("kv.sequence_of_values_only") {
            found.seq_max = found.seq_max.max(header.seq);
        }
        situation!(
            "kv.below_floor",
            header.seq <= self.engine.superblock.flushed_seq()
        );
        if header.seq <= self.engine.superblock.flushed_seq() {
            return;
        }
        if header.large {
            found.large.push(at);
        }
        found.key.clear();
        let from = at.plus(header.len() as u64);
        let medium = self.engine.medium();
        medium.append_out(from, header.key_len, &mut found.key);
        let hash = self.engine.geometry().hash(header.db, &found.key);
        let part = hash as usize & (found.items.len() - 1);
        found.items[part].push(ScannedRecord::new(self.engine, hash, at, header));
    }

    /// Accepts all members of a whole group. Of a damaged group, accepts the members whose own checksums hold (KV-OPEN-3).
    fn take_group(&self, at: Off, header: &RecordHeader, whole: bool, found: &mut SegmentScan) {
        situation!("kv.large_group_recovered", whole && header.large);
        situation!("kv.small_group_recovered", whole && !header.large);
        if header.large {
            let table = self.engine.segments.table_of(at, header);
            for extent in ValueExtent::decode_all(&table) {
                if self.engine.segments.has_generation(&extent) {
                    let base = self.engine.geometry().base(extent.segment);
                    let whole = whole && self.is_extent_whole(&extent, found);
                    let end = self.engine.geometry().records_end();
                    self.take_members(base, FIRST, end, whole, found);
                    self.engine
                        .info(extent.segment)
                        .used
                        .store(end as u32, Relaxed);
                }
            }
            found.tables.push(table);
        } else {
            let from = self.engine.geometry().within(at) + header.len() + header.key_len;
            let base = self.engine.geometry().base(self.segment);
            self.take_members(base, from, from + header.value_len, whole, found);
        }
    }

    /// Whether the checksum of a group's extent holds. If not, adds the extent to the damage.
    fn is_extent_whole(&self, extent: &ValueExtent, found: &mut SegmentScan) -> bool {
        let whole = self
            .engine
            .segments
            .extent_holds(extent, self.engine.geometry().payload());
        if !whole {
            found.damage.push(format!(
                "segment {}: this extent of a group of keys and values fails its checksum: some values \
                 are lost, and their keys may show an older value",
                extent.segment
            ));
        }
        whole
    }

    fn take_members(
        &self,
        base: Off,
        from: usize,
        to: usize,
        whole: bool,
        found: &mut SegmentScan,
    ) {
        let mut within = from;
        while within < to {
            let at = base.plus(within as u64);
            let Some(header) = self.engine.segments.header(at).filter(|h| h.member) else {
                within += ALIGN;
                continue;
            };
            if whole || self.engine.segments.body_holds(at, &header) {
                self.accept(at, &header, found);
            }
            within += self.engine.segments.record_len(&header);
        }
    }
}
