//! Verification of the engine's counts and maps in DRAM against the log.

use std::collections::{BTreeSet, HashMap};

use farbank_pm::Medium;
use farbank_pm::sync::atomic::Ordering::Relaxed;

use crate::engine::Engine;
use crate::engine::inconsistency::Inconsistency;
use crate::format::record::RecordType;
use crate::format::segment::SegmentState;
use crate::index::WalkStep;
use farbank_store::Key;

/// Checks that every segment is accounted for, and that no two have the same generation (KV-SEG-1). Checks that the counts of
/// live records match the index, that segment maps mark all records that an open needs (KV-MAP-1), and that no needed
/// tombstone can be lost (KV-CLEAN-3). No session may write meanwhile.
///
/// # Errors
/// The first contradiction.
pub(crate) fn verify<M: Medium>(engine: &Engine<M>) -> Result<(), Inconsistency> {
    let mut free = 0;
    let mut extents = 0;
    let mut extent_bytes = 0;
    let mut keys = 0;
    let mut generations = BTreeSet::new();
    for segment in 0..engine.segments.count() {
        let info = engine.info(segment);
        let generation = info.generation.load(Relaxed);
        if info.state() != SegmentState::Quarantined && !generations.insert(generation) {
            return Err(Inconsistency::SharedGeneration {
                segment,
                generation,
            });
        }
        match info.state() {
            SegmentState::Free => free += 1,
            SegmentState::Extent => {
                extents += 1;
                extent_bytes += info.extent_bytes();
            }
            SegmentState::Retired | SegmentState::Quarantined | SegmentState::Piece => {}
            SegmentState::Members => {
                extents += 1;
                keys += count(engine, segment)?;
            }
            SegmentState::Open | SegmentState::Sealed | SegmentState::Cleaning => {
                keys += count(engine, segment)?;
                crate::engine::map_writer::verify(engine, segment)?;
            }
        }
    }
    let expect = |what: &'static str, found: i64, expected: i64| match found == expected {
        true => Ok(()),
        false => Err(Inconsistency::Total {
            what,
            found,
            expected,
        }),
    };
    expect(
        "free segments",
        i64::from(engine.segments.free_count()),
        free,
    )?;
    expect("extents", i64::from(engine.space().extents()), extents)?;
    expect(
        "bytes of large values",
        engine.space().extent_bytes(),
        extent_bytes,
    )?;
    let known = engine.sessions.keys_of_all();
    expect(
        "keys in the log that the index points at",
        keys as i64,
        known as i64,
    )?;
    tombs_are_counted(engine)
}

/// Checks that the newest tombstone of each key without a value lies in a segment that counts tombstones. A segment
/// that counts none would be recycled without copying the tombstone (KV-CLEAN-3).
fn tombs_are_counted<M: Medium>(engine: &Engine<M>) -> Result<(), Inconsistency> {
    let mut forgotten: HashMap<(u8, Vec<u8>), u64> = HashMap::new();
    each_tomb(engine, TombstoneRule::Uncounted, &mut |db, bytes, seq| {
        let hash = engine.geometry().hash(db, &bytes);
        let key = Key { db, bytes: &bytes };
        // A member of a large group lies in its extent before it is published, and is counted then.
        let listed = engine.stripe(hash).lock().listed(seq).is_some();
        if !listed && engine.locate(hash, key).found.is_none() {
            let newest = forgotten.entry((db, bytes)).or_default();
            *newest = seq.max(*newest);
        }
    });
    if forgotten.is_empty() {
        return Ok(());
    }
    each_tomb(engine, TombstoneRule::Counted, &mut |db, bytes, seq| {
        let key = (db, bytes);
        // A newer tombstone of the key, or a copy.
        if forgotten.get(&key).is_some_and(|newest| *newest <= seq) {
            forgotten.remove(&key);
        }
    });
    match forgotten.into_iter().next() {
        Some(((stored, key), seq)) => {
            let db = engine.databases.map.view().map.shown(stored);
            Err(Inconsistency::UncountedTombstone { db, key, seq })
        }
        None => Ok(()),
    }
}

/// Selection of tombstones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TombstoneRule {
    /// Tombstones in segments that count some, or that may still do so.
    Counted,
    /// Tombstones in segments that count none.
    Uncounted,
}

/// Calls `each` with the database, the key and the sequence number of every selected tombstone.
fn each_tomb<M: Medium>(
    engine: &Engine<M>,
    which: TombstoneRule,
    each: &mut dyn FnMut(u8, Vec<u8>, u64),
) {
    let floor = engine.superblock.flushed_seq();
    for segment in 0..engine.segments.count() {
        let info = engine.info(segment);
        let settled = match info.state() {
            SegmentState::Open | SegmentState::Cleaning => false,
            SegmentState::Sealed | SegmentState::Members => {
                info.is_end_unwritten.load(Relaxed) == 0
            }
            SegmentState::Free
            | SegmentState::Retired
            | SegmentState::Extent
            | SegmentState::Quarantined
            | SegmentState::Piece => continue,
        };
        let found = match settled && info.tombstone_bytes.load(Relaxed) == 0 {
            true => TombstoneRule::Uncounted,
            false => TombstoneRule::Counted,
        };
        if found != which {
            continue;
        }
        let used = info.used.load(Relaxed) as usize;
        engine.segments.walk_own(segment, used, &mut |at, header| {
            if header.what == RecordType::Tombstone && header.seq > floor {
                each(header.db, engine.segments.key_of(at, header), header.seq);
            }
        });
    }
}

/// Calls `each` for every record that the index points at and that fails a checksum, with its offset, database and key.
/// If the header is damaged, the database is 0 and the key empty.
pub(crate) fn damaged<M: Medium>(engine: &Engine<M>, each: &mut dyn FnMut(u64, u8, &[u8])) {
    let (slot, map) = (engine.epochs.slot(), engine.databases.map.view().map);
    let mut cursor = 0;
    loop {
        engine.epochs.pin(&slot);
        cursor = engine.index.walk(cursor, |offsets| {
            for at in offsets {
                match engine.segments.header(*at) {
                    None => each(at.0, 0, &[]),
                    Some(header) if engine.segments.body_holds(*at, &header) => {}
                    Some(header) => {
                        let db = map.shown(header.db);
                        each(at.0, db, &engine.segments.key_of(*at, &header));
                    }
                }
            }
            WalkStep::Stop
        });
        slot.unpin();
        if cursor == 0 {
            return;
        }
    }
}

/// Counts the live records of one segment.
///
/// # Errors
/// If the number of records or bytes differs from the segment's counts, or if a sequence number is too high.
fn count<M: Medium>(engine: &Engine<M>, segment: u32) -> Result<u64, Inconsistency> {
    let info = engine.info(segment);
    let (mut live, mut records, mut unnumbered) = (0, 0, None);
    engine.segments.walk_own(
        segment,
        info.used.load(Relaxed) as usize,
        &mut |at, header| {
            if header.what == RecordType::Put
                && let Some(hash) = engine
                    .rehash(at)
                    .filter(|hash| engine.index.names(*hash, at))
            {
                live += engine.segments.record_len(header) as u64;
                records += 1;
                if header.seq > engine.stripe(hash).lock().seq() {
                    unnumbered = Some(at);
                }
            }
        },
    );
    if let Some(at) = unnumbered {
        return Err(Inconsistency::SequenceNumber { at: at.0 });
    }
    let live = (records, live);
    let counted = (info.live_records().into(), info.live_bytes().into());
    if live != counted {
        return Err(Inconsistency::Live {
            segment,
            live,
            counted,
        });
    }
    Ok(records)
}
