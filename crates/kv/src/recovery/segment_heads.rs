//! Reading the heads and tails of a pool's segments at an open, and repairing damaged ones.
//!
//! | head                   | tail    | segment               | meaning                                               |
//! |------------------------|---------|-----------------------|-------------------------------------------------------|
//! | valid                  | any     |                       | the head counts (KV-SEG-1)                                  |
//! | invalid, not all zeros | valid   |                       | the tail counts; the head is repaired                 |
//! | zeros                  | valid   | counted               | damaged: see below                                    |
//! | zeros                  | valid   | not counted           | its first initialisation was interrupted              |
//! | invalid                | invalid | counted               | damaged: its records cannot be read                   |
//! | invalid                | invalid | not counted           | not initialised, whatever bytes it holds              |
//!
//! *Counted*: the superblock counts the segment as initialised.
//!
//! A head of zeros has lost the open epoch of the segment's records, and their end. If the first record fits one of
//! the open epochs so far, the segment is read like one that was never sealed. If it fits none, the segment is
//! quarantined and reported: it may hold records. Two damaged copies of `opened` are the same case, except that an
//! interrupted recycling can cause them, too; then the segment holds nothing.
//!
//! # Crash argument
//! Initialisation writes the whole line of a head, beginning with the magic. `opened` and `sealed` do not write the
//! magic. So once a segment's initialisation was durable, every crash leaves a head that begins with the magic. The
//! superblock counts the segment after that (KV-OPEN-5). A crash between the two leaves it uncounted, and it is initialised
//! again.
//!
//! After a kill, a head may be visible and not durable. So every head is flushed before its segment is counted. After
//! a crash the heads of all segments without records are flushed; a segment of records is flushed with its records.
//! Otherwise a segment could be used or recycled while a power cut can still revert its head. The segment could then
//! lose both ends, or show its earlier generation with other bytes in it.
//!
//! Pools of programs that did not count segments have a count of 0 and an open epoch above 0. There a head of zeros
//! means that the segment is not initialised, until the first open writes the count.

use farbank_pm::situation;
use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::{Medium, PersistCtx};

use crate::engine::Engine;
use crate::format::pool_root::RootWords;
use crate::format::segment::{MetaCopy, SegmentMeta, SegmentPlace, SegmentPurpose, SegmentState};

/// Reads head and tail of every segment, sets up the engine's [`SegmentInfo`](crate::format::segment::SegmentInfo) from them,
/// and repairs a head or tail if the other one is valid. The result has `None` for a segment that was never
/// initialised, and for a damaged one, which is quarantined.
pub(crate) fn read<M: Medium>(
    engine: &mut Engine<M>,
    ctx: &mut PersistCtx,
    words: RootWords,
) -> Vec<Option<SegmentMeta>> {
    if words.open_epoch == 0 {
        // Never opened. An interrupted creation may have left anything; it does not matter.
        return vec![None; engine.segments.count() as usize];
    }
    let crashed = words.snapshot == 0;
    let (mut metas, mut damage) = (Vec::new(), Vec::new());
    for segment in 0..engine.segments.count() {
        let is_initialised = u64::from(segment) < words.segments_initialised;
        let (place, m) = (engine.geometry().place(segment), engine.medium());
        let mut meta = place.read(m);
        let info = engine.info(segment);
        let mut lost = None;
        situation!("kv.segment_uninitialised", meta.is_none());
        match &mut meta {
            Some(meta) => {
                let lost_opening = meta.opened.is_some() && meta.open_epoch == 0;
                situation!(
                    "kv.head_lost",
                    lost_opening || (meta.is_head_zero && is_initialised)
                );
                if lost_opening || (meta.is_head_zero && is_initialised) {
                    lost = recover_open_epoch(&place, m, meta, words.open_epoch);
                }
                info.reset(meta.generation);
                let seed = place.record_seed(meta.generation, meta.open_epoch);
                info.seed.store(seed, Relaxed);
                engine.segments.raise_generation(meta.generation);
                situation!("kv.copy_of_header_damaged", meta.damaged.is_some());
                if lost.is_none() {
                    place.repair(m, ctx, meta);
                }
                // The head must be durable if the segment is about to be counted, if the head was repaired, or if
                // it may be visible only, after a crash. A segment of records is flushed with its records.
                let is_log = meta.opened == Some(SegmentPurpose::Log);
                if !is_initialised || meta.damaged == Some(MetaCopy::Head) || (crashed && !is_log) {
                    place.flush_head(m, ctx);
                }
            }
            None if may_be_uninitialised(&place, m, is_initialised, words) => {}
            None => lost = Some("its head and its tail are damaged; its records cannot be read"),
        }
        if let Some(why) = lost {
            info.set_state(SegmentState::Quarantined);
            damage.push(format!("segment {segment} at {:#x}: {why}", place.at.0));
            meta = None;
        }
        metas.push(meta);
    }
    engine.counters.opened.damage.extend(damage);
    metas
}

/// Finds the open epoch of a segment that has lost it, and marks the segment as one of records. Returns an error
/// text if no open epoch fits and the head is zeros. With a valid head, `opened` may also be left over from an
/// interrupted recycling: then the segment holds nothing, and nothing is lost.
fn recover_open_epoch<M: Medium>(
    place: &SegmentPlace,
    m: &M,
    meta: &mut SegmentMeta,
    open_epoch: u64,
) -> Option<&'static str> {
    match place.find_open_epoch(m, meta.generation, open_epoch) {
        Some(open_epoch) => {
            (meta.opened, meta.open_epoch, meta.has_one_valid_opened) =
                (Some(SegmentPurpose::Log), open_epoch, true);
            None
        }
        None if meta.is_head_zero => Some("its head is zeros; its records, if any, cannot be read"),
        None => None,
    }
}

/// Whether a segment without a valid head and tail may never have been initialised.
fn may_be_uninitialised<M: Medium>(
    place: &SegmentPlace,
    m: &M,
    is_initialised: bool,
    words: RootWords,
) -> bool {
    let is_uncounted = words.segments_initialised == 0 && words.open_epoch != 0;
    match is_uncounted {
        true => place.is_headless(m),
        false => !is_initialised,
    }
}
