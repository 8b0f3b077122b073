//! The lives of a pool's segments, as an open finds them: what head and tail say, and what it means if
//! they do not.
//!
//! | head                | tail    | segment           | is                                        |
//! |---------------------|---------|-------------------|-------------------------------------------|
//! | sound               | any     |                   | what the head says (S1)                   |
//! | not sound, not zero | sound   |                   | the tail's life; the head is mended       |
//! | zero                | sound   | counted as born   | damaged: see below                        |
//! | zero                | sound   | not counted       | a first birth cut short                   |
//! | not sound           | not so  | counted as born   | damaged, out of reach                     |
//! | not sound           | not so  | not counted       | not born yet, whatever lies there         |
//!
//! A head that was zeroed has lost which opening of the pool its records are of, and where they end. If the
//! first record fits one of the openings so far, the records are read as those of a segment that was never
//! sealed. If it fits none, the segment is left alone and reported: it may have been free, and may not. Both
//! copies of `opened` damaged is the same case, but for a rebirth that can leave that, too.
//!
//! # Crash argument
//! A head's line is written by a birth (all of it, beginning with the magic) and by `opened` and `sealed`,
//! which leave the magic alone. So once one birth was durable, every crash leaves a head that begins
//! with the magic. Segments are counted as born in the superblock, after that (V5); between the two a
//! crash leaves them uncounted, and they are born again. What a killed process left of births is flushed
//! before it is counted: a head may be visible and not durable. After a crash that holds of every head: a
//! segment that is used, or born again, on a head that a power cut can take back would lose both ends, or show its former life
//! with other bytes in it. Pools that were made before segments were
//! counted have a count of 0 and openings: there a zero head counts as unborn, until the first open counts.

use farbank_pm::situation;
use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::{Medium, PersistCtx};

use crate::engine::Engine;
use crate::pool_root::RootWords;
use crate::segment::{MetaCopy, SegmentMeta, SegmentPlace, SegmentPurpose, SegmentState};

/// Reads the head of every segment and tells the engine its life; mends what is damaged at one end. A
/// segment that was never born has no life; one that is out of reach is quarantined.
pub(crate) fn read<M: Medium>(
    engine: &mut Engine<M>,
    ctx: &mut PersistCtx,
    words: RootWords,
) -> Vec<Option<SegmentMeta>> {
    if words.boot == 0 {
        // Never opened: what a making that was cut short has left is not worth a look.
        return vec![None; engine.pool.segments() as usize];
    }
    let crashed = words.snapshot == 0;
    let (mut lives, mut damage) = (Vec::new(), Vec::new());
    for segment in 0..engine.pool.segments() {
        let is_born = u64::from(segment) < words.born;
        let (place, m) = (engine.geometry.place(segment), engine.medium());
        let mut life = place.read(m);
        let info = engine.info(segment);
        let mut lost = None;
        situation!("kv.segment_unborn", life.is_none());
        match &mut life {
            Some(life) => {
                let lost_opening = life.opened.is_some() && life.boot == 0;
                situation!("kv.head_lost", lost_opening || (life.headless && is_born));
                if lost_opening || (life.headless && is_born) {
                    lost = resume(&place, m, life, words.boot);
                }
                info.reset(life.generation);
                let seed = place.record_seed(life.generation, life.boot);
                info.seed.store(seed, Relaxed);
                engine.generation.fetch_max(life.generation, Relaxed);
                situation!("kv.copy_of_header_damaged", life.damaged.is_some());
                if lost.is_none() {
                    place.repair(m, ctx, life);
                }
                // It is about to be counted, or was mended; or it is used, or born again, while it may still be visible
                // and not durable. What holds records is flushed with them.
                let is_log = life.opened == Some(SegmentPurpose::Log);
                if !is_born || life.damaged == Some(MetaCopy::Head) || (crashed && !is_log) {
                    place.flush_head(m, ctx);
                }
            }
            None if may_be_unborn(&place, m, is_born, words) => {}
            None => {
                lost = Some("both copies of its header are damaged; its records are out of reach")
            }
        }
        if let Some(why) = lost {
            info.set_state(SegmentState::Quarantined);
            damage.push(format!("segment {segment} at {:#x}: {why}", place.at.0));
            life = None;
        }
        lives.push(life);
    }
    engine.opened.damage.extend(damage);
    lives
}

/// Has a life that has lost its opening go on as a segment of records; says what is lost if it cannot. A
/// rebirth that was cut short, too, leaves an `opened` that fits nothing: nothing is lost then.
fn resume<M: Medium>(
    place: &SegmentPlace,
    m: &M,
    life: &mut SegmentMeta,
    boot: u64,
) -> Option<&'static str> {
    match place.opening_of(m, life.generation, boot) {
        Some(boot) => {
            (life.opened, life.boot, life.opened_once) = (Some(SegmentPurpose::Log), boot, true);
            None
        }
        None if life.headless => Some("its head is zeros; what records it has are out of reach"),
        None => None,
    }
}

/// Whether a segment without a sound end may never have been born.
fn may_be_unborn<M: Medium>(place: &SegmentPlace, m: &M, is_born: bool, words: RootWords) -> bool {
    let nobody_counted = words.born == 0 && words.boot != 0;
    match nobody_counted {
        true => place.is_headless(m),
        false => !is_born,
    }
}
