//! FLUSHALL: a durable lower bound on sequence numbers instead of a walk over the keys.
//!
//! Every record whose sequence number is at or below the bound, the *floor*, is dead as soon as the floor is durable
//! in the superblock. Under all locks, FLUSHALL makes the floor durable, clears the index, and counts the records in
//! all segments as dead. The cleaner then finds these segments empty.

use farbank_pm::fault;
use farbank_pm::situation;
use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::{Medium, Poisoned};

use crate::engine::Engine;

/// Removes every key. Durable on `Ok`; on `Err` nothing was removed.
pub(crate) fn flush_all<M: Medium>(engine: &Engine<M>) -> Result<(), Poisoned> {
    // Excludes a pass of the cleaner (KV-PASS-3) and half-published groups: both lock stripes after these locks.
    let _cleaner = engine.lock_cleaner_without_pass()?;
    let groups = engine.pending.lock_groups();
    let mut stripes = engine.pending.lock_all();
    let floor = stripes.iter().map(|stripe| stripe.seq()).max().unwrap_or(0);
    if !fault!("kv.floor_volatile") {
        engine.set_root(|words| words.flushed_seq = floor)?;
    }
    engine.superblock.set_flushed_seq(floor);
    // As when a group is published, overlapping readers retry: they see all keys or none.
    let publication = engine.pending.begin_publication(&groups);
    engine.backup.note_flush();
    for stripe in &mut stripes {
        stripe.raise_seq(floor);
        stripe.unlist_all();
    }
    engine.read_cache.clear();
    engine.index.clear(&engine.epochs);
    drop(publication);
    for session in engine.sessions.lock().iter() {
        for keys in &session.keys {
            keys.store(0, Relaxed);
        }
    }
    let epoch = engine.epochs.retire();
    for segment in 0..engine.segments.count() {
        let info = engine.info(segment);
        engine.space().count_live(-i64::from(info.clear_live()));
        let (from, bytes) = (
            engine.geometry().base(segment),
            engine.geometry().segment_bytes(),
        );
        engine.segments.live_map().clear_all(from, bytes);
        engine.segments.drop_tombstones(info);
        info.large_groups.store(0, Relaxed);
        info.expires_ms.store(0, Relaxed);
        if engine.segments.empty_extent(info) {
            situation!("kv.flush_empties_extents");
            engine.segments.retired().push_back((epoch, segment));
        }
    }
    Ok(())
}
