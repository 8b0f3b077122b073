//! The index snapshot, which a clean close writes so that the next open need not scan the segments.
//!
//! It is a chain of segments (`engine::piece_chain`). The text of the chain has the highest sequence number, the
//! number of keys of each database, a row for each segment, and the index.
//!
//! The snapshot is optional: a scan finds the same records. The last step of a close writes the snapshot's first
//! segment into the superblock. The first write after an open has read the snapshot clears that word again. Each step
//! is one update of the superblock. So if the superblock names a snapshot, the snapshot matches the log.

use std::time::{Duration, Instant};

use farbank_pm::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use farbank_pm::{Medium, Off, PersistCtx, Poisoned, Ticket};

use crate::engine::Engine;
use crate::engine::piece_chain::{self, ChainWriter, piece_bytes};
use crate::format::pool_root::RootWords;
use crate::format::record::{RECORD_MIN, SEQ_MAX, u32_at, u64_at};
use crate::format::segment::{FIRST, SegmentState};
use crate::index::{HashIndex, RowsImport};
use crate::recovery::{in_parallel, threads_for_pieces};
use farbank_store::{DATABASES, Error};

/// Bytes of one segment's row in the snapshot.
const SEGMENT_BYTES: usize = 48;
/// Offset in a row of the end of the segment's records.
const ENDS_AT: usize = 32;
/// Maximum time that a close cleans to make space for the snapshot.
const CLEANING_MAX: Duration = Duration::from_secs(30);

/// Writes the snapshot into free segments and names it in the superblock. Both are durable on `Ok`. No session may be
/// alive. The snapshot may use the segments reserved for the cleaner and for deletes, because the next open frees them
/// before it serves. If there are too few free segments, cleans for [`CLEANING_MAX`] at most, and grows the pool if it
/// may grow.
///
/// # Errors
/// [`Error::NoSnapshot`] if there are still too few free segments. No snapshot is written then.
pub(crate) fn save<M: Medium>(engine: &Engine<M>, ctx: &mut PersistCtx) -> Result<(), Error> {
    engine.free_checkpoints()?;
    make_room(engine)?;
    // No segment may stay open: the snapshot would count it as free.
    engine.close_cleaner()?;
    engine.settle(Ticket::DURABLE)?;
    engine.recycle_retired(ctx)?;
    let (needed, free) = (segments_needed(engine), engine.segments.free_count());
    if needed > free {
        engine.write_all_maps()?; // The next open scans by the maps.
        return Err(Error::NoSnapshot { needed, free });
    }
    write(engine, ctx)?;
    Ok(())
}

/// Number of segments that the snapshot takes.
fn segments_needed<M: Medium>(engine: &Engine<M>) -> u32 {
    let before_index = 8 + 8 * DATABASES + 8 + engine.segments.count() as usize * SEGMENT_BYTES;
    let bytes = before_index + engine.index.export_bytes();
    bytes.div_ceil(piece_bytes(engine)) as u32
}

/// Cleans and grows the pool until the snapshot fits, or until that gains nothing more.
fn make_room<M: Medium>(engine: &Engine<M>) -> Result<(), Poisoned> {
    let began = Instant::now();
    let lacks = || engine.segments.free_count() < segments_needed(engine);
    let is_late = || began.elapsed() >= CLEANING_MAX;
    while lacks() && !is_late() {
        let before = engine.segments.free_count();
        engine.clean_until(before + 1)?;
        if engine.segments.free_count() <= before {
            break;
        }
    }
    if lacks() && engine.space().tombstone_bytes() > engine.geometry().payload() as u64 {
        engine.empty_oldest(&|| !lacks() || is_late())?;
    }
    while lacks() && engine.may_grow() && engine.grow_pool() {}
    Ok(())
}

fn write<M: Medium>(engine: &Engine<M>, ctx: &mut PersistCtx) -> Result<(), Poisoned> {
    let mut chain = ChainWriter::default();
    *chain.buffer() = contents(engine);
    let written = chain.finish(engine, ctx, 0);
    let (first, generation) = written.expect("enough segments are free");
    engine.settle(engine.medium().drain(ctx))?;
    engine.set_root(|words| {
        (words.snapshot, words.snapshot_generation) = (u64::from(first) + 1, generation);
    })
}

fn contents<M: Medium>(engine: &Engine<M>) -> Vec<u8> {
    let mut out = Vec::new();
    let seq_max = engine.pending.seq_max();
    out.extend_from_slice(&seq_max.to_le_bytes());
    for db in 0..DATABASES {
        out.extend_from_slice(&engine.sessions.keys(db).to_le_bytes());
    }
    out.extend_from_slice(&u64::from(engine.segments.count()).to_le_bytes());
    for segment in 0..engine.segments.count() {
        let info = engine.info(segment);
        for word in [&info.generation, &info.written_at_average, &info.expires_ms] {
            out.extend_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        let (tombs, used) = (info.tombstone_bytes.load(Relaxed), info.used.load(Relaxed));
        for word in [info.live_bytes(), tombs, used, info.live_records()] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&(info.state() as u32).to_le_bytes());
        out.extend_from_slice(&info.large_groups.load(Relaxed).to_le_bytes());
    }
    engine.index.export(&mut out);
    out
}

/// Loads the snapshot that the superblock names. Returns the number of keys. `None` if anything about it is wrong; then
/// nothing was changed, except that bits in the live map may be set.
pub(crate) fn load<M: Medium>(engine: &mut Engine<M>, words: RootWords) -> Option<u64> {
    let bytes = piece_chain::read(engine, words.snapshot, words.snapshot_generation)?.bytes;
    let seq_max = u64_at(bytes.get(..8)?, 0);
    let (keys, rest) = bytes[8..].split_at_checked(8 * DATABASES)?;
    let (count, rest) = rest.split_at_checked(8)?;
    let segments = engine.segments.count();
    if u64_at(count, 0) != u64::from(segments) {
        return None;
    }
    let (infos, index) = rest.split_at_checked(segments as usize * SEGMENT_BYTES)?;
    let mut rows = infos.chunks_exact(SEGMENT_BYTES).enumerate();
    if !rows.all(|(segment, bytes)| is_likely(engine, segment as u32, bytes)) {
        return None;
    }
    let ends: Vec<usize> = infos
        .chunks_exact(SEGMENT_BYTES)
        .map(|bytes| u32_at(bytes, ENDS_AT) as usize)
        .collect();
    let geometry = engine.geometry();
    let is_place = |at: Off| {
        at.0 >= geometry.first()
            && ends
                .get(geometry.segment_of(at) as usize)
                .is_some_and(|end| (FIRST..*end).contains(&geometry.within(at)))
    };
    let index = read_index(engine, RowsImport::begin(index)?, is_place)?;
    let counted = keys.chunks_exact(8).map(|bytes| u64_at(bytes, 0));
    let total = counted.fold(0, u64::saturating_add);
    if total > SEQ_MAX || seq_max > SEQ_MAX {
        return None;
    }
    for (segment, bytes) in infos.chunks_exact(SEGMENT_BYTES).enumerate() {
        restore(engine, segment as u32, bytes);
    }
    let own = engine.sessions.lock()[0].clone();
    for (place, bytes) in own.keys.iter().zip(keys.chunks_exact(8)) {
        place.store(u64_at(bytes, 0) as i64, Relaxed);
    }
    engine.install(index, seq_max);
    Some(total)
}

/// Reads the rows of the index, by several threads, and sets the bits of the live map. `None` if an entry is malformed, or if
/// `is_place` rejects its place.
fn read_index<M: Medium>(
    engine: &Engine<M>,
    import: RowsImport<'_>,
    is_place: impl Fn(Off) -> bool + Sync,
) -> Option<HashIndex> {
    let live_map = engine.segments.live_map();
    let is_live = |at: Off| {
        let is_place = is_place(at);
        if is_place {
            live_map.set(at);
        }
        is_place
    };
    let next = AtomicUsize::new(0);
    let read = || {
        let mut pieces = std::iter::from_fn(|| Some(next.fetch_add(1, Relaxed)))
            .take_while(|number| *number < import.pieces());
        pieces.try_for_each(|number| import.read(number, |at| live_map.fetch(at), is_live))
    };
    let all = in_parallel(threads_for_pieces(engine, import.pieces()), &read);
    all.into_iter().collect::<Option<()>>()?;
    Some(import.finish())
}

/// Whether the row of a segment is for its current generation, with counts that its size allows.
fn is_likely<M: Medium>(engine: &Engine<M>, segment: u32, bytes: &[u8]) -> bool {
    let info = engine.info(segment);
    let (live, tombs) = (u32_at(bytes, 24) as usize, u32_at(bytes, 28) as usize);
    let (end, records) = (u32_at(bytes, ENDS_AT) as usize, u32_at(bytes, 36) as usize);
    let payload = engine.geometry().payload();
    let fits = end <= FIRST + payload
        && live <= payload
        && tombs <= payload
        && records <= live / RECORD_MIN
        && u64_at(bytes, 8) <= SEQ_MAX;
    let is_current = info.generation.load(Relaxed) == u64_at(bytes, 0);
    fits && (is_current || info.state() == SegmentState::Quarantined)
}

fn restore<M: Medium>(engine: &Engine<M>, segment: u32, bytes: &[u8]) {
    let info = engine.info(segment);
    if info.state() == SegmentState::Quarantined {
        return;
    }
    info.written_at_average.store(u64_at(bytes, 8), Relaxed);
    info.expires_ms.store(u64_at(bytes, 16), Relaxed);
    let (live, tombs) = (u32_at(bytes, 24), u32_at(bytes, 28));
    info.set_live(u32_at(bytes, 36), live);
    info.tombstone_bytes.store(tombs, Relaxed);
    info.used.store(u32_at(bytes, ENDS_AT), Relaxed);
    info.large_groups.store(u32_at(bytes, 44), Relaxed);
    if tombs != 0 {
        let mut maps = engine.cleaning.maps();
        maps.note_tombs_unknown(segment);
    }
    engine.space().count_live(i64::from(live));
    engine.space().count_tombstones(i64::from(tombs));
    engine.segments.raise_appended(u64_at(bytes, 8));
    for state in [
        SegmentState::Sealed,
        SegmentState::Extent,
        SegmentState::Members,
        SegmentState::Quarantined,
    ] {
        if state as u32 == u32_at(bytes, 40) {
            info.set_state(state);
            if matches!(state, SegmentState::Extent | SegmentState::Members) {
                engine.space().count_extent(info);
            }
        }
    }
}
