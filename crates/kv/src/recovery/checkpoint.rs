//! Opening a pool by its checkpoint: which part of the log need not be read, and the merge with the part that was.
//!
//! `engine::checkpoint` has the invariants (KV-CKPT-1 to KV-CKPT-7) and the argument that the result is that of a scan of the
//! whole log.

use farbank_pm::fault;
use farbank_pm::situation;
use farbank_pm::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use farbank_pm::{LINE, Medium, Off};

use super::segment_scanner::{ScannedRecord, header_at};
use super::{
    PartitionedItems, RecoveryCounts, count, in_parallel, mark_extents_used, threads_for,
    threads_for_items, threads_for_pieces,
};
use crate::engine::Engine;
use crate::engine::checkpoint::NamedCheckpoint;
use crate::engine::piece_chain::{self, ReadChain};
use crate::format::checkpoint::{CheckpointHead, CoveredSegment, UNCOUNTED};
use crate::format::pool_root::RootWords;
use crate::format::record::{ALIGN, RECORD_MIN, RecordHeader, RecordType, u64_at};
use crate::format::segment::{FIRST, SegmentMeta, SegmentPurpose, SegmentState};
use crate::index::{BucketRef, Candidate, GroupsImport, HashIndex};
use farbank_store::DATABASES;
use smallvec::SmallVec;

/// Prefetch distance among live records, in records.
const AHEAD: usize = 24;
/// Scanned records whose index groups are prefetched together.
const BATCH: usize = 16;

/// Bytes of segments that an open scans rather than give a checkpoint up.
const SCANNED_AT_LEAST: usize = 64 << 20;

/// A checkpoint that counts.
pub(super) struct LoadedCheckpoint {
    /// Entries of covered segments; after the merge, of all.
    pub(super) index: HashIndex,
    /// The covered segments, in order, and the ends of their records: they need not be scanned.
    pub(super) covered: Vec<(u32, u32)>,
    /// Tombstones of covered segments.
    tombstones: Vec<ScannedRecord>,
    /// Counts of the entries.
    counts: RecoveryCounts,
    /// Entries whose values lie in extents.
    large: Vec<Off>,
    pub(super) seq_max: u64,
    named: NamedCheckpoint,
}

/// The checkpoint's bytes are damaged.
#[derive(Debug)]
pub(super) struct Malformed;

/// Loads the checkpoint that the superblock names. `None` if there is none, if it does not count any more, if it covers
/// little, or if a covered segment has lost a record. Changes nothing but bits of the live map.
///
/// # Errors
/// [`Malformed`] if its bytes are damaged.
pub(super) fn load<M: Medium>(
    engine: &Engine<M>,
    words: RootWords,
    metas: &[Option<SegmentMeta>],
) -> Result<Option<LoadedCheckpoint>, Malformed> {
    if words.checkpoint == 0 {
        return Ok(None);
    }
    let chain = piece_chain::read(engine, words.checkpoint, words.checkpoint_generation);
    let ReadChain { bytes, segments } = chain.ok_or(Malformed)?;
    let (head, rest) = bytes.split_first_chunk().ok_or(Malformed)?;
    let head = CheckpointHead::decode(head).ok_or(Malformed)?;
    let is_flushed = head.floor != words.flushed_seq && !fault!("kv.checkpoint_floor_ignored");
    situation!("kv.checkpoint_flushed", is_flushed);
    if is_flushed {
        return Ok(None); // KV-CKPT-6
    }
    let (rows, rest) = split(rest, head.segments, CoveredSegment::BYTES).ok_or(Malformed)?;
    let (tombstones, groups) = split(rest, head.tombstones, 8).ok_or(Malformed)?;
    let rows: Vec<CoveredSegment> = rows
        .chunks_exact(CoveredSegment::BYTES)
        .map(CoveredSegment::decode)
        .collect();
    let ends: Vec<Option<u32>> = (0..engine.segments.count())
        .zip(&rows)
        .map(|(segment, row)| end_of(engine, metas, segment, row))
        .collect();
    if !saves_time(engine, metas, &ends) {
        return Ok(None);
    }
    let count = usize::try_from(head.groups).map_err(|_| Malformed)?;
    let (import, live) = GroupsImport::begin(groups, count).ok_or(Malformed)?;
    let mut counts = RecoveryCounts::new(engine.segments.count());
    let is_counted = count_live(engine, &head, &rows, &ends, live, &mut counts).ok_or(Malformed)?;
    let Some(index) = read_index(engine, import, &ends, &is_counted, counts.key_count())? else {
        return Ok(None);
    };
    let is_covered = |at: Off| is_covered(engine, &ends, at);
    let places = tombstones.chunks_exact(8).map(|at| Off(u64_at(at, 0)));
    let tombstones = places.filter(|at| is_covered(*at));
    let tombstones = tombstones
        .map(|at| tombstone_at(engine, &ends, at))
        .collect();
    let Some(tombstones) = tombstones else {
        return Ok(None); // The scan reports the damage.
    };
    let covered: Vec<(u32, u32)> = (0..)
        .zip(&ends)
        .filter_map(|(segment, end)| Some((segment, (*end)?)))
        .collect();
    let mut uncounted = covered.clone();
    uncounted.retain(|(segment, _)| !is_counted[*segment as usize]);
    let Some((more, large)) = count_all(engine, &uncounted) else {
        return Ok(None);
    };
    counts.add(&more);
    let floor = head.floor;
    Ok(Some(LoadedCheckpoint {
        index,
        covered,
        tombstones,
        counts,
        large,
        seq_max: head.seq_max,
        named: NamedCheckpoint { segments, floor },
    }))
}

/// Whether the checkpoint covers at least half of the segments with records, or few are left to be scanned. Otherwise the
/// merge takes longer than a scan of all.
fn saves_time<M: Medium>(
    engine: &Engine<M>,
    metas: &[Option<SegmentMeta>],
    ends: &[Option<u32>],
) -> bool {
    let is_log = |meta: &SegmentMeta| meta.opened == Some(SegmentPurpose::Log);
    let logs = metas.iter().flatten().filter(|meta| is_log(meta)).count();
    let covered = ends.iter().flatten().count();
    let left = (logs - covered) * engine.geometry().segment_bytes();
    covered * 2 >= logs || left <= SCANNED_AT_LEAST
}

/// Sets the counts and the bits of the live map of covered segments, as far as the checkpoint has them (KV-CKPT-7). Returns
/// for each segment whether it has. `None` if the bytes are malformed.
fn count_live<M: Medium>(
    engine: &Engine<M>,
    head: &CheckpointHead,
    rows: &[CoveredSegment],
    ends: &[Option<u32>],
    mut live: &[u8],
    counts: &mut RecoveryCounts,
) -> Option<Vec<bool>> {
    let mut is_counted = vec![false; ends.len()];
    let Some(db) = head.only_db.checked_sub(1) else {
        return live.is_empty().then_some(is_counted);
    };
    let keys = counts.keys.get_mut(usize::try_from(db).ok()?)?;
    let bytes = engine.geometry().segment_bytes();
    for (segment, row) in (0..).zip(rows).filter(|(_, row)| row.generation != 0) {
        let (own, rest) = live.split_first_chunk::<8>()?;
        let own = u64::from_le_bytes(*own);
        live = rest;
        if own == UNCOUNTED {
            continue;
        }
        let (words, rest) = live.split_at_checked(bytes / RECORD_MIN / 8)?;
        live = rest;
        if ends[segment as usize].is_some() {
            let base = engine.geometry().base(segment);
            engine.segments.live_map().set_all(base, bytes, words);
            engine.info(segment).note_expiry(row.expires_ms);
            counts.live[segment as usize] = own;
            *keys += (own >> 32) as i64;
            is_counted[segment as usize] = true;
        }
    }
    situation!("kv.checkpoint_counted", is_counted.contains(&true));
    live.is_empty().then_some(is_counted)
}

/// Reads the groups of the index, by several threads. `None` if the counted segments have another number of entries than
/// `counted`.
///
/// # Errors
/// [`Malformed`] if the bytes are malformed.
fn read_index<M: Medium>(
    engine: &Engine<M>,
    import: GroupsImport<'_>,
    ends: &[Option<u32>],
    is_counted: &[bool],
    counted: u64,
) -> Result<Option<HashIndex>, Malformed> {
    let next = AtomicUsize::new(0);
    let live_map = engine.segments.live_map();
    let read = || {
        let mut kept = 0;
        let mut keeps = |at: Off| {
            if !is_covered(engine, ends, at) {
                situation!("kv.checkpoint_entry_is_stale");
                return false;
            }
            if !is_counted[engine.geometry().segment_of(at) as usize] {
                live_map.set(at);
                return true;
            }
            let is_live = live_map.has(at);
            kept += u64::from(is_live);
            is_live
        };
        while let Some(piece) = import.pieces().get(next.fetch_add(1, Relaxed)) {
            import.read(*piece, |at| live_map.fetch(at), &mut keeps)?;
        }
        Some(kept)
    };
    let threads = threads_for_pieces(engine, import.pieces().len());
    let kept: Option<u64> = in_parallel(threads, &read).into_iter().sum();
    let kept = kept.ok_or(Malformed)?;
    Ok((kept == counted).then(|| import.finish()))
}

fn split(bytes: &[u8], count: u64, each: usize) -> Option<(&[u8], &[u8])> {
    let len = usize::try_from(count).ok()?.checked_mul(each)?;
    bytes.split_at_checked(len)
}

/// Returns the end of the records of a segment, if the checkpoint covers its present use.
fn end_of<M: Medium>(
    engine: &Engine<M>,
    metas: &[Option<SegmentMeta>],
    segment: u32,
    row: &CoveredSegment,
) -> Option<u32> {
    let meta = metas[segment as usize]?;
    let info = engine.info(segment);
    let is_current = meta.generation == row.generation && info.seed.load(Relaxed) == row.seed;
    let is_kept = meta.opened == Some(SegmentPurpose::Log)
        && (is_current || fault!("kv.checkpoint_generation_ignored"))
        && info.state() != SegmentState::Quarantined;
    let range = FIRST..=engine.geometry().records_end();
    (is_kept && range.contains(&(row.end as usize))).then_some(row.end)
}

fn is_covered<M: Medium>(engine: &Engine<M>, ends: &[Option<u32>], at: Off) -> bool {
    let geometry = engine.geometry();
    if at.0 < geometry.first() {
        return false;
    }
    let end = ends
        .get(geometry.segment_of(at) as usize)
        .copied()
        .flatten();
    end.is_some_and(|end| (FIRST..end as usize).contains(&geometry.within(at)))
}

/// Returns the record that begins at `first`, or [`ALIGN`] bytes after it, in a segment whose records end at `end`.
fn record_at<M: Medium>(engine: &Engine<M>, end: u32, first: Off) -> Option<(Off, RecordHeader)> {
    let places = [first, first.plus(ALIGN as u64)];
    let header = |at: Off| Some((at, header_at(engine, at, end as usize)?));
    places.into_iter().find_map(header)
}

fn tombstone_at<M: Medium>(
    engine: &Engine<M>,
    ends: &[Option<u32>],
    place: Off,
) -> Option<ScannedRecord> {
    let end = ends[engine.geometry().segment_of(place) as usize]?;
    let (at, header) = record_at(engine, end, place)?;
    (header.what == RecordType::Tombstone).then_some(())?;
    situation!("kv.checkpoint_tombstone_read");
    let hash = engine.rehash(at)?;
    Some(ScannedRecord::new(engine, hash, at, &header))
}

/// Counts the entries of `uncounted` covered segments, which the live map marks. Reads the header of each record. Returns
/// the records with extents, too. `None` if a record is damaged.
fn count_all<M: Medium>(
    engine: &Engine<M>,
    uncounted: &[(u32, u32)],
) -> Option<(RecoveryCounts, Vec<Off>)> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut counts = RecoveryCounts::new(engine.segments.count());
        let mut large = Vec::new();
        while let Some((segment, end)) = uncounted.get(next.fetch_add(1, Relaxed)) {
            count_segment(engine, *segment, *end, &mut counts, &mut large)?;
        }
        Some((counts, large))
    };
    let mut counts = RecoveryCounts::new(engine.segments.count());
    let mut large = Vec::new();
    for counted in in_parallel(threads_for(engine, uncounted.len()), &work) {
        let (more, found) = counted?;
        counts.add(&more);
        large.extend(found);
    }
    Some((counts, large))
}

fn count_segment<M: Medium>(
    engine: &Engine<M>,
    segment: u32,
    end: u32,
    counts: &mut RecoveryCounts,
    large: &mut Vec<Off>,
) -> Option<()> {
    let (base, bytes) = (
        engine.geometry().base(segment),
        engine.geometry().segment_bytes(),
    );
    let places: Vec<Off> = engine.segments.live_map().places(base, bytes).collect();
    for (n, place) in places.iter().enumerate() {
        if let Some(ahead) = places.get(n + AHEAD) {
            engine.medium().prefetch(*ahead, 2 * LINE);
        }
        let (at, header) = record_at(engine, end, *place)?;
        (header.what == RecordType::Put).then_some(())?;
        counts.keys[usize::from(header.db).min(DATABASES - 1)] += 1;
        counts.add_live(segment, engine.segments.record_len(&header) as u32);
        engine.info(segment).note_expiry(header.expires_ms);
        if header.large {
            large.push(at);
        }
    }
    Some(())
}

impl LoadedCheckpoint {
    /// Returns the number of entries.
    pub(super) fn keys(&self) -> u64 {
        self.counts.key_count()
    }

    /// Returns the tombstones of the covered segments, partitioned as scanned records are.
    pub(super) fn tombstones(&self, parts: usize) -> PartitionedItems {
        let mut items = vec![Vec::new(); parts];
        for tombstone in &self.tombstones {
            let part = tombstone.rank.reverse_bits() as usize & (parts - 1);
            items[part].push(*tombstone);
        }
        items
    }

    /// Merges the newest scanned record of each key into the index. `newest` is partitioned by the low bits of the
    /// hashes, so threads change different groups.
    pub(super) fn merge<M: Medium>(&mut self, engine: &Engine<M>, newest: &[Vec<ScannedRecord>]) {
        let next = AtomicUsize::new(0);
        let threads = threads_for_items(engine, newest.iter().map(Vec::len).sum());
        let index = &self.index;
        let all_counts = in_parallel(threads, &|| {
            let mut counts = RecoveryCounts::new(engine.segments.count());
            while let Some(items) = newest.get(next.fetch_add(1, Relaxed)) {
                for batch in items.chunks(BATCH) {
                    prefetch(engine, index, batch);
                    for item in batch {
                        merge_record(engine, index, item, &mut counts);
                    }
                }
            }
            counts
        });
        for counts in all_counts {
            self.counts.add(&counts);
        }
    }

    /// Hands the index and the counts over to the engine. Returns the checkpoint, which stays.
    pub(super) fn install<M: Medium>(
        self,
        engine: &mut Engine<M>,
        seq_max: u64,
    ) -> NamedCheckpoint {
        engine.add(&self.counts);
        engine.counters.opened.keys = self.counts.key_count();
        engine.install(self.index, seq_max);
        for &at in &self.large {
            if engine.segments.live_map().has(at)
                && let Some(header) = engine.segments.header(at)
            {
                let table = engine.segments.table_of(at, &header);
                mark_extents_used(engine, &table, Some(header.value_len));
            }
        }
        for &segment in &self.named.segments {
            engine.info(segment).set_state(SegmentState::Piece);
        }
        self.named
    }
}

/// Prefetches what [`merge_record`] reads for the records of a batch.
fn prefetch<M: Medium>(engine: &Engine<M>, index: &HashIndex, batch: &[ScannedRecord]) {
    let hash = |item: &ScannedRecord| item.rank.reverse_bits();
    for item in batch {
        index.touch_group(hash(item));
        engine.medium().prefetch(item.at, 2 * LINE);
        engine.segments.fetch_for_count(item.at);
    }
    let spots: SmallVec<[BucketRef; BATCH]> =
        batch.iter().map(|item| index.spot(hash(item))).collect();
    spots.iter().for_each(|spot| index.touch(spot));
    for spot in &spots {
        if let Some(hit) = index.first(spot) {
            engine.medium().prefetch(hit.at(), 2 * LINE);
            engine.segments.fetch_for_count(hit.at());
        }
    }
}

/// Returns the entry of the key of `item`, and the header of its record.
fn entry_of<M: Medium>(
    engine: &Engine<M>,
    index: &HashIndex,
    spot: &BucketRef,
    item: &ScannedRecord,
) -> Option<(Candidate, RecordHeader)> {
    let mut key = None;
    index.search_at(spot, |hit| {
        let header = engine.segments.header(hit.at())?;
        let key = key.get_or_insert_with(|| {
            let own = engine.segments.header(item.at);
            own.map(|own| engine.segments.key_of(item.at, &own))
        });
        let key = key.as_ref()?;
        let from = hit.at().plus(header.len() as u64);
        let is_same = header.db.min(DATABASES as u8 - 1) == item.db
            && header.key_len == key.len()
            && engine.medium().matches(from, key);
        is_same.then_some((hit, header))
    })
}

/// Merges the newest scanned record of a key into the index.
fn merge_record<M: Medium>(
    engine: &Engine<M>,
    index: &HashIndex,
    item: &ScannedRecord,
    counts: &mut RecoveryCounts,
) {
    let hash = item.rank.reverse_bits();
    let spot = index.spot(hash);
    let older = entry_of(engine, index, &spot, item);
    let generation_of = |at: Off| engine.info_at(at).generation.load(Relaxed);
    if let Some((hit, header)) = &older {
        let indexed = (header.seq, generation_of(hit.at()));
        let is_newer = indexed > (item.seq, generation_of(item.at)); // KV-OPEN-6
        situation!("kv.checkpoint_entry_is_newest", is_newer);
        situation!(
            "kv.checkpoint_entry_is_copied",
            header.seq == item.seq && !is_newer
        );
        if is_newer || fault!("kv.checkpoint_entry_wins") {
            return;
        }
        let segment = engine.geometry().segment_of(hit.at());
        counts.keys[usize::from(header.db).min(DATABASES - 1)] -= 1;
        counts.remove_live(segment, engine.segments.record_len(header) as u32);
        engine.segments.live_map().clear(hit.at());
    }
    situation!(
        "kv.checkpoint_entry_is_deleted",
        older.is_some() && item.what != RecordType::Put
    );
    match (item.what, older) {
        (RecordType::Put, Some((hit, _))) => index.update_entry(&spot, &hit, item.at),
        (RecordType::Put, None) => {
            let rehash = |at| engine.rehash(at);
            index.insert(hash, item.at, &engine.epochs, &rehash);
        }
        (_, Some((hit, _))) => drop(index.remove(hash, hit.at())),
        (_, None) => {}
    }
    count(engine, item, counts);
}
