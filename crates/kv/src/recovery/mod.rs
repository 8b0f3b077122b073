//! Opening a pool: from its snapshot after a clean close, else by its checkpoint and a scan of the segments that it does
//! not cover, else by scanning every segment.
//!
//! The scan accepts a record if its checksums hold. Bytes that fail a checksum are *damage* if they were certainly
//! durable: the segment is sealed there, or a later record in it is SETTLED. Otherwise they are a *torn* write, which
//! was never acknowledged. Recovery overwrites torn bytes with a pad. Damaged values stay indexed, so that a read of
//! one returns an error instead of an older value. Bytes that the device cannot read are damage, too.
//!
//! ```text
//!   read every head ─▶ scan opened segments ─▶ newest record of each key ─▶ fill the index
//!                                                          │
//!   A  write pads, flush accepted records, drain ◀─────────┘
//!   B  seal, recycle segments without needed data, drain        then serve
//! ```
//!
//! # Invariants
//! KV-OPEN-1  Accepted records are durable before any data is served, cleaned or recycled (A before B). Otherwise a
//!     kill, this open, and a power cut could lose both the old and the new version of a key. The same holds for
//!     the heads of segments without records (`segment_heads`).
//! KV-OPEN-2  A second scan finds the same records. Torn bytes are padded before their segment is sealed, and a pad is
//!     SETTLED if the header that it replaces was. Without that, bytes before the pad that were damage would be torn
//!     for the next scan, which would pad them. If the first pad were then lost, they would be damage again.
//! KV-OPEN-3  Members count only in a whole group. Other members are torn, or salvaged from a damaged group.
//! KV-OPEN-4  Every segment is free, holds records, or is an extent of an accepted table: no segment leaks.
//! KV-OPEN-5  The superblock counts a segment as initialised when both ends of it are durable. From then on a head is
//!     only ever replaced by another head: zeros there are damage, not the result of a crash.
//! KV-OPEN-6  Of two copies of a record, the one in the segment with the higher generation counts. So if two segments hold
//!     the same records, one of them keeps all: usually the segment that the cleaner filled, and its victim is empty.
//!     If each kept a part, an open could find no segment that the cleaner can empty (KV-CLEAN-4).
//!
//! # Crash argument
//! Until A is drained, nothing that the scan relies on has changed: pads lie in torn bytes only. Between A
//! and B a scan finds the same records, now durable. In B each segment changes by itself. Sealed or not,
//! it holds the same records; recycled or not, it holds no record that counts.

mod checkpoint;
mod segment_heads;
mod segment_scanner;
pub(crate) mod snapshot;
#[cfg(test)]
mod tests;

use farbank_pm::fault;
use farbank_pm::pool::Pool;
use farbank_pm::situation;
use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::sync::{Arc, Mutex, thread, unpoisoned};
use farbank_pm::{Medium, Off, PersistCtx, Poisoned, WORD};

use crate::config::Config;
use crate::engine::Engine;
use crate::engine::extents::flush_extents;
use crate::engine::unreadable;
use crate::format::pool_root::RootWords;
use crate::format::record::{RECORD_MIN, RecordHeader, RecordType, ValueExtent, u64_at};
use crate::format::segment::{FIRST, SegmentMeta, SegmentPurpose, SegmentState};
use crate::index::{BulkBuild, FreshRows, HashIndex};
use crate::recovery::checkpoint::LoadedCheckpoint;
use crate::recovery::segment_scanner::{ScannedRecord, SegmentScan, SegmentScanner, TornRange};
use farbank_store::DATABASES;

/// Minimum depth of the index, in bits of hash. The number of stripes depends on it, too.
fn depth_min(segments: u32) -> u32 {
    (segments.ilog2() + 2).clamp(4, 12)
}

/// Bits of hash that select a part. Accepted records are sorted and indexed part by part.
const PART_BITS: u32 = 8;

/// Scanned records, partitioned by hash.
type PartitionedItems = Vec<Vec<ScannedRecord>>;

/// Counts of records that the index will point at, and of tombstones. A thread's counts may be differences from those
/// of another: the sums are what counts.
struct RecoveryCounts {
    keys: [i64; DATABASES],
    /// For each segment: live records in the high half, their bytes in the low half. Sums of halves wrap together.
    live: Vec<u64>,
    tombs: Vec<u32>,
}

impl RecoveryCounts {
    fn new(segments: u32) -> RecoveryCounts {
        RecoveryCounts {
            keys: [0; DATABASES],
            live: vec![0; segments as usize],
            tombs: vec![0; segments as usize],
        }
    }

    fn add_live(&mut self, segment: u32, bytes: u32) {
        let live = &mut self.live[segment as usize];
        *live = live.wrapping_add(1 << 32 | u64::from(bytes));
    }

    fn remove_live(&mut self, segment: u32, bytes: u32) {
        let live = &mut self.live[segment as usize];
        *live = live.wrapping_sub(1 << 32 | u64::from(bytes));
    }

    fn add(&mut self, other: &RecoveryCounts) {
        let keys = self.keys.iter_mut().zip(other.keys);
        keys.for_each(|(sum, more)| *sum += more);
        for (sum, more) in self.live.iter_mut().zip(&other.live) {
            *sum = sum.wrapping_add(*more);
        }
        for (sum, more) in self.tombs.iter_mut().zip(&other.tombs) {
            *sum += more;
        }
    }

    fn key_count(&self) -> u64 {
        self.keys.iter().sum::<i64>().max(0) as u64
    }
}

/// Opens the store in `pool`.
///
/// # Errors
/// [`Poisoned`] if the medium has failed.
pub(crate) fn open<M: Medium>(pool: Pool<M>, config: Config) -> Result<Arc<Engine<M>>, Poisoned> {
    let started = std::time::Instant::now();
    let mut ctx = PersistCtx::new(0);
    let words = RootWords::from_root(&pool.root());
    let mut engine = Engine::assemble(pool, config);
    let mut metas = crate::recovery::segment_heads::read(&mut engine, &mut ctx, words);
    engine.segments.start_stamps();
    let restored = (words.snapshot != 0)
        .then(|| crate::recovery::snapshot::load(&mut engine, words))
        .flatten();
    match restored {
        Some(keys) => {
            situation!("kv.snapshot_read");
            (engine.counters.opened.clean, engine.counters.opened.keys) = (true, keys);
        }
        None => {
            if words.snapshot != 0 {
                let lost = "the index snapshot is damaged; the log was scanned instead";
                engine.counters.opened.damage.push(lost.to_owned());
                clear_live_map(&engine); // Bits that the damaged snapshot has set.
            }
            let loaded = load_checkpoint(&mut engine, words, &metas);
            scan_and_build(&mut engine, &mut ctx, &metas, loaded)?;
        }
    }
    let initialised = u64::from(engine.segments.count());
    if words.open_epoch == 0 {
        recycle_unused(&mut engine, &mut ctx, &mut metas)?; // KV-OPEN-5
    }
    // The snapshot's segments are about to be recycled, so no later open may look for the snapshot. And no record
    // is written before this open has its open epoch.
    engine.set_root(|words| {
        if !fault!("kv.snapshot_kept") {
            (words.snapshot, words.snapshot_generation) = (0, 0);
        }
        if engine.cleaning.checkpoints.segments() == 0 {
            (words.checkpoint, words.checkpoint_generation) = (0, 0); // As for the snapshot.
        }
        if words.open_epoch == 0 {
            words.segments_initialised = initialised;
        }
        words.open_epoch = words.open_epoch.wrapping_add(1);
    })?;
    if words.open_epoch != 0 {
        recycle_unused(&mut engine, &mut ctx, &mut metas)?;
        engine.set_root(|words| words.segments_initialised = initialised)?; // KV-OPEN-5
    }
    engine.set_clock_back()?;
    engine.segments.count_waste();
    engine.counters.opened.elapsed_ms = started.elapsed().as_secs_f64() * 1e3;
    Ok(Arc::new(engine))
}

fn clear_live_map<M: Medium>(engine: &Engine<M>) {
    let (from, segments) = (engine.geometry().base(0), engine.segments.count() as usize);
    let bytes = segments * engine.geometry().segment_bytes();
    engine.segments.live_map().clear_all(from, bytes);
}

/// Loads the checkpoint that the superblock names, if it counts.
fn load_checkpoint<M: Medium>(
    engine: &mut Engine<M>,
    words: RootWords,
    metas: &[Option<SegmentMeta>],
) -> Option<LoadedCheckpoint> {
    let loaded = checkpoint::load(engine, words, metas);
    if loaded.is_err() {
        let lost = "the checkpoint of the index is damaged; the whole log was scanned instead";
        engine.counters.opened.damage.push(lost.to_owned());
    }
    let loaded = loaded.ok().flatten();
    if loaded.is_none() && words.checkpoint != 0 {
        clear_live_map(engine);
    }
    loaded
}

fn scan_and_build<M: Medium>(
    engine: &mut Engine<M>,
    ctx: &mut PersistCtx,
    metas: &[Option<SegmentMeta>],
    loaded: Option<LoadedCheckpoint>,
) -> Result<(), Poisoned> {
    let depth = depth_min(engine.segments.count());
    // Records of different parts belong to different groups of the index.
    let depth_indexed = loaded.as_ref().map_or(depth, |l| l.index.first_depth());
    let parts = 1_usize << depth.min(depth_indexed).min(PART_BITS);
    let is_log = |segment: u32| {
        metas[segment as usize].is_some_and(|meta| meta.opened == Some(SegmentPurpose::Log))
    };
    let covered = loaded
        .as_ref()
        .map_or(Vec::new(), |loaded| loaded.covered.clone());
    let is_covered = |segment: &u32| covered.binary_search_by_key(segment, |(s, _)| *s).is_ok();
    let logs: Vec<u32> = (0..engine.segments.count())
        .filter(|segment| is_log(*segment) && !is_covered(segment))
        .collect();
    let (scanned, mut items) = scan_all(engine, metas, &logs, parts);
    note_segment_maps(engine, metas, &scanned);
    let floor = engine.superblock.flushed_seq();
    // New sequence numbers are higher than those that a setback of the clock applies to.
    let setbacks = engine.superblock.clock().setbacks();
    let set_back = setbacks.iter().map(|s| s.version_max).max().unwrap_or(0);
    let mut seq_max = floor.max(set_back);
    for (segment, found) in &scanned {
        seq_max = seq_max.max(found.seq_max);
        engine.counters.opened.records_scanned += found.records;
        engine
            .counters
            .opened
            .damage
            .extend(found.damage.iter().cloned());
        engine.info(*segment).used.store(found.end as u32, Relaxed);
    }
    if let Some(loaded) = &loaded {
        items.push(loaded.tombstones(parts));
    }
    let newest = newest_of(engine, items);
    let named = match loaded {
        Some(mut loaded) => {
            situation!("kv.checkpoint_read");
            engine.counters.opened.keys_checkpointed = loaded.keys();
            loaded.merge(engine, &newest);
            if !fault!("kv.checkpoint_sequence_ignored") {
                seq_max = seq_max.max(loaded.seq_max);
            }
            Some(loaded.install(engine, seq_max))
        }
        None => {
            let index = build(engine, &newest, depth);
            engine.install(index, seq_max);
            None
        }
    };
    let since = engine.segments.stamp().saturating_sub(scanned.len() as u64);
    engine.cleaning.checkpoints.start(named, since);
    for (segment, _) in scanned.iter().filter(|(_, found)| !found.damage.is_empty()) {
        let base = engine.geometry().base(*segment);
        let bytes = engine.geometry().segment_bytes();
        engine.segments.live_map().clear_all(base, bytes); // KV-LIVE-1: the cleaner reads the whole segment and keeps it (KV-CLEAN-5).
    }
    // A: accepted records become durable, torn bytes become pads (KV-OPEN-1, KV-OPEN-2).
    for (segment, found) in &scanned {
        engine
            .info(*segment)
            .large_groups
            .store(found.tables.len() as u32, Relaxed);
        make_durable(engine, ctx, metas, *segment, found);
        for table in &found.tables {
            mark_extents_used(engine, table, None);
        }
    }
    engine.settle(engine.medium().drain(ctx))?;
    for (segment, end) in covered {
        engine.info(segment).used.store(end, Relaxed);
        seal(engine, ctx, metas, segment, end as usize);
    }
    for (segment, found) in scanned {
        seal(engine, ctx, metas, segment, found.end);
    }
    Ok(())
}

/// Marks a segment whose records end at `end` as sealed, on the medium too, unless it holds none.
fn seal<M: Medium>(
    engine: &Engine<M>,
    ctx: &mut PersistCtx,
    metas: &[Option<SegmentMeta>],
    segment: u32,
    end: usize,
) {
    let meta = metas[segment as usize].expect("a segment with records has a valid head or tail");
    if end > FIRST {
        engine.info(segment).set_state(SegmentState::Sealed);
        situation!("kv.sealed_by_recovery", meta.sealed.is_none());
        if meta.sealed.is_none() {
            let place = engine.geometry().place(segment);
            place.seal(engine.medium(), ctx, meta.generation, end);
        }
    }
}

/// Scans the segments in `logs` in parallel. Returns the scan of each segment, and each thread's records,
/// partitioned by the low bits of their hashes.
fn scan_all<M: Medium>(
    engine: &Engine<M>,
    metas: &[Option<SegmentMeta>],
    logs: &[u32],
    parts: usize,
) -> (Vec<(u32, SegmentScan)>, Vec<PartitionedItems>) {
    let threads = threads_for(engine, logs.len());
    let next = farbank_pm::sync::atomic::AtomicUsize::new(0);
    let work = || {
        let mut scanned = Vec::new();
        let mut items = vec![Vec::new(); parts];
        while let Some(&segment) = logs.get(next.fetch_add(1, Relaxed)) {
            let meta = metas[segment as usize].expect("an opened segment has a valid head or tail");
            let scan = SegmentScanner::new(engine, metas, segment, meta);
            let mut found = scan.run(std::mem::take(&mut items));
            items = std::mem::take(&mut found.items);
            scanned.push((segment, found));
        }
        (scanned, items)
    };
    let (scanned, items): (Vec<_>, Vec<_>) = in_parallel(threads, &work).into_iter().unzip();
    let mut scanned: Vec<(u32, SegmentScan)> = scanned.into_iter().flatten().collect();
    scanned.sort_by_key(|(segment, _)| *segment);
    (scanned, items)
}

/// Records in the map writer which segments have a map, and which must not get one.
fn note_segment_maps<M: Medium>(
    engine: &mut Engine<M>,
    metas: &[Option<SegmentMeta>],
    scanned: &[(u32, SegmentScan)],
) {
    let mut maps = engine.cleaning.maps();
    for (segment, found) in scanned {
        let meta = metas[*segment as usize].expect("a scanned segment has a valid head or tail");
        engine.counters.opened.segments_mapped += u64::from(found.marked_bytes.is_some());
        if !found.damage.is_empty() {
            maps.note(*segment, meta.generation, None); // KV-MAP-4
        } else if let Some(bytes) = found.marked_bytes {
            maps.note(*segment, meta.generation, Some(bytes));
        }
    }
}

fn threads_for<M: Medium>(engine: &Engine<M>, segments: usize) -> usize {
    // A thread is worth its start for 8 MiB or more.
    let bytes = segments * engine.geometry().segment_bytes();
    engine.config.open_threads.min(1 + bytes / (8 << 20)).max(1)
}

/// Returns the number of threads for work on `items` records.
fn threads_for_items<M: Medium>(engine: &Engine<M>, items: usize) -> usize {
    match items < 10_000 {
        true => 1,
        false => engine.config.open_threads.max(1),
    }
}

/// Returns the number of threads for `pieces` of an index.
fn threads_for_pieces<M: Medium>(engine: &Engine<M>, pieces: usize) -> usize {
    match pieces {
        0 | 1 => 1,
        _ => engine.config.open_threads.max(1),
    }
}

fn in_parallel<R: Send>(threads: usize, work: &(impl Fn() -> R + Sync)) -> Vec<R> {
    if threads == 1 {
        return vec![work()];
    }
    thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        handles
            .into_iter()
            .map(|h| h.join().expect("a scan does not panic"))
            .collect()
    })
}

/// Returns the newest record of each key, in hash order, part by part.
fn newest_of<M: Medium>(
    engine: &Engine<M>,
    items: Vec<PartitionedItems>,
) -> Vec<Vec<ScannedRecord>> {
    let total: usize = items.iter().flatten().map(Vec::len).sum();
    let threads = threads_for_items(engine, total);
    let mut parts: Vec<PartitionedItems> = Vec::new();
    for thread in items {
        parts.resize_with(thread.len(), Vec::new);
        parts
            .iter_mut()
            .zip(thread)
            .for_each(|(all, part)| all.push(part));
    }
    let parts: Vec<Mutex<PartitionedItems>> = parts.into_iter().map(Mutex::new).collect();
    let next = farbank_pm::sync::atomic::AtomicUsize::new(0);
    in_parallel(threads, &|| {
        while let Some(part) = parts.get(next.fetch_add(1, Relaxed)) {
            let mut part = unpoisoned(part.lock());
            let mut all = part.pop().unwrap_or_default();
            part.drain(..).for_each(|more| all.extend(more));
            keep_newest(engine, &mut all);
            part.push(all);
        }
    });
    let only = |part: Mutex<PartitionedItems>| unpoisoned(part.into_inner()).pop();
    parts.into_iter().filter_map(only).collect()
}

fn keep_newest<M: Medium>(engine: &Engine<M>, items: &mut Vec<ScannedRecord>) {
    let generation_of = |item: &ScannedRecord| engine.info_at(item.at).generation.load(Relaxed);
    items.sort_unstable_by(|a, b| {
        let newest_first = (a.rank, b.seq).cmp(&(b.rank, a.seq));
        newest_first.then_with(|| generation_of(b).cmp(&generation_of(a))) // KV-OPEN-6
    });
    let mut kept = 0;
    for next in 0..items.len() {
        let item = items[next];
        let copies = items[..kept]
            .iter()
            .rev()
            .take_while(|k| k.rank == item.rank);
        // Equal hashes nearly always mean equal keys, but only a comparison of the keys is certain.
        situation!(
            "kv.two_copies",
            copies.clone().any(|newer| newer.seq == item.seq)
        );
        let is_older = copies
            .into_iter()
            .any(|newer| same_key(engine, newer.at, item.at));
        if !is_older {
            items[kept] = item;
            kept += 1;
        }
    }
    items.truncate(kept);
}

fn same_key<M: Medium>(engine: &Engine<M>, a: Off, b: Off) -> bool {
    match (engine.segments.header(a), engine.segments.header(b)) {
        (Some(x), Some(y)) => {
            x.db == y.db
                && x.key_len == y.key_len
                && engine
                    .medium()
                    .matches(b.plus(y.len() as u64), &engine.segments.key_of(a, &x))
        }
        _ => false,
    }
}

/// Builds an index of the newest records, and counts them.
fn build<M: Medium>(
    engine: &mut Engine<M>,
    newest: &[Vec<ScannedRecord>],
    depth: u32,
) -> HashIndex {
    let puts = newest
        .iter()
        .flatten()
        .filter(|i| i.what == RecordType::Put)
        .count() as u64;
    let bulk = BulkBuild::new(puts, engine.config.keys_expected, depth);
    let next = farbank_pm::sync::atomic::AtomicUsize::new(0);
    let threads = threads_for_items(engine, puts as usize);
    let mask = !(u64::MAX >> bulk.depth());
    let shared = &*engine;
    let all_counts = in_parallel(threads, &|| {
        let mut counts = RecoveryCounts::new(shared.segments.count());
        let (mut group, mut rows) = (Vec::new(), FreshRows::default());
        while let Some(items) = newest.get(next.fetch_add(1, Relaxed)) {
            for run in items.chunk_by(|a, b| a.rank & mask == b.rank & mask) {
                group.clear();
                for item in run {
                    count(shared, item, &mut counts);
                    if item.what == RecordType::Put {
                        group.push((item.rank.reverse_bits(), item.at));
                    }
                }
                bulk.fill(&mut rows, &group);
            }
        }
        bulk.done(&rows);
        counts
    });
    for counts in all_counts {
        shared.add(&counts);
    }
    engine.counters.opened.keys = puts;
    bulk.finish()
}

fn count<M: Medium>(engine: &Engine<M>, item: &ScannedRecord, counts: &mut RecoveryCounts) {
    let segment = engine.geometry().segment_of(item.at);
    situation!("kv.tombstone_is_newest", item.what != RecordType::Put);
    if item.what != RecordType::Put {
        engine.segments.tombstone_map().set(item.at);
        counts.tombs[segment as usize] += item.len;
        return;
    }
    engine.segments.live_map().set(item.at);
    counts.keys[item.db as usize] += 1;
    counts.add_live(segment, item.len);
    if !item.large && !item.expires {
        return;
    }
    if let Some(header) = engine.segments.header(item.at) {
        engine.info(segment).note_expiry(header.expires_ms);
        if item.large {
            let table = engine.segments.table_of(item.at, &header);
            mark_extents_used(engine, &table, Some(header.value_len));
        }
    }
}

impl<M: Medium> Engine<M> {
    /// Adds the counts of one thread to the engine's.
    fn add(&self, counts: &RecoveryCounts) {
        for (total, more) in self.sessions.lock()[0].keys.iter().zip(counts.keys) {
            total.fetch_add(more, Relaxed);
        }
        for (segment, (&live, &tombs)) in counts.live.iter().zip(&counts.tombs).enumerate() {
            let info = self.info(segment as u32);
            let (records, bytes) = ((live >> 32) as u32, live as u32);
            info.set_live(info.live_records() + records, info.live_bytes() + bytes);
            info.tombstone_bytes.fetch_add(tombs, Relaxed);
            self.space().count_live(i64::from(bytes));
            self.space().count_tombstones(i64::from(tombs));
        }
    }
}

/// Marks the extents in an accepted table as in use. `value_len` is the length of a large value, `None` for a group.
fn mark_extents_used<M: Medium>(engine: &Engine<M>, table: &[u8], value_len: Option<usize>) {
    let payload = engine.geometry().payload();
    let mut left = value_len.unwrap_or(0);
    for extent in ValueExtent::decode_all(table) {
        let len = left.min(payload);
        left -= len;
        if !engine.segments.has_generation(&extent) {
            continue;
        }
        let info = engine.info(extent.segment);
        let state = match value_len {
            Some(_) => SegmentState::Extent,
            None => SegmentState::Members,
        };
        if info.transition(SegmentState::Free, state) {
            if value_len.is_some() {
                info.used.store((FIRST + len) as u32, Relaxed);
            }
            engine.space().count_extent(info);
        }
    }
}

/// Pads the torn ranges of a segment. Flushes its accepted records and their extents if it was not sealed.
fn make_durable<M: Medium>(
    engine: &Engine<M>,
    ctx: &mut PersistCtx,
    metas: &[Option<SegmentMeta>],
    segment: u32,
    found: &SegmentScan,
) {
    let base = engine.geometry().base(segment);
    for TornRange { from, to, settled } in merged(&found.pads) {
        if to - from >= RECORD_MIN && from < found.end && !fault!("kv.torn_not_padded") {
            situation!("kv.torn_padded");
            situation!("kv.torn_settled_padded", settled);
            let pad = RecordHeader {
                what: RecordType::Pad,
                value_len: to - from - crate::format::record::HEADER_MIN,
                settled,
                ..RecordHeader::default()
            };
            let mut bytes = Vec::new();
            let at = base.plus(from as u64);
            pad.encode(engine.segments.seed_at(at), &mut bytes);
            bytes.resize(RECORD_MIN, 0);
            // Accepted records follow the pad. Their flush, of the whole used range, includes the pad.
            for (at, word) in (at.0..).step_by(WORD).zip(bytes.chunks_exact(WORD)) {
                engine.medium().store(ctx, Off(at), u64_at(word, 0));
            }
        }
    }
    situation!(
        "kv.large_value_made_durable",
        !found.large.is_empty()
            && metas[segment as usize].is_some_and(|meta| meta.sealed.is_none())
    );
    situation!(
        "kv.large_group_made_durable",
        !found.tables.is_empty()
            && metas[segment as usize].is_some_and(|meta| meta.sealed.is_none())
    );
    if metas[segment as usize].is_some_and(|meta| meta.sealed.is_none()) {
        engine.medium().flush(ctx, base, found.end);
        for table in &found.tables {
            flush_extents(engine, ctx, table, usize::MAX);
        }
        for &at in &found.large {
            if let Some(header) = engine.segments.header(at) {
                let table = engine.segments.table_of(at, &header);
                flush_extents(engine, ctx, &table, header.value_len);
            }
        }
    }
}

/// Merges adjacent torn ranges.
fn merged(pads: &[TornRange]) -> Vec<TornRange> {
    let mut merged: Vec<TornRange> = Vec::new();
    for pad in pads {
        match merged.last_mut() {
            Some(last) if last.to == pad.from => last.to = pad.to,
            _ => merged.push(*pad),
        }
    }
    merged
}

/// Step B: recycles every segment that holds no needed data, and adds it to the free segments (KV-OPEN-4).
fn recycle_unused<M: Medium>(
    engine: &mut Engine<M>,
    ctx: &mut PersistCtx,
    metas: &mut [Option<SegmentMeta>],
) -> Result<(), Poisoned> {
    let (mut free, mut again) = (Vec::new(), Vec::new());
    for (segment, meta) in metas.iter().enumerate() {
        let segment = segment as u32;
        let info = engine.info(segment);
        if info.state() != SegmentState::Free {
            info.opened
                .store(engine.segments.open_epoch_stamp(), Relaxed);
            continue;
        }
        if meta.is_none_or(|meta| {
            meta.opened.is_some() || meta.sealed.is_some() || meta.is_recycling_interrupted
        }) {
            again.push(segment);
        }
        free.push(segment);
    }
    let kept_out = unreadable::quarantine_unreadable(engine, &mut free);
    engine.counters.opened.damage.extend(kept_out);
    again.retain(|segment| engine.info(*segment).state() == SegmentState::Free);
    situation!("kv.reborn_by_recovery", !again.is_empty());
    engine.segments.initialise(ctx, &again)?;
    free.into_iter()
        .for_each(|segment| engine.segments.give(segment));
    Ok(())
}
