//! Writes segment maps (`segment_map`): the background thread's part.

use farbank_pm::fault;
use farbank_pm::situation;
use farbank_pm::sync::atomic::Ordering::{Acquire, Relaxed};
use farbank_pm::{LINE, Medium, Off, PersistCtx, Poisoned, Ticket, WORD};

use crate::engine::Engine;
use crate::engine::inconsistency::Inconsistency;
use crate::format::record::{RECORD_MIN, RecordType, u64_at};
use crate::format::segment::SegmentState;
use crate::format::segment_map::{MapWriter, SegmentMap, SegmentOpening, place, read};

/// A map is written again when 1 / `STALE_SHARE` of its segment has died since.
const STALE_SHARE: usize = 8;
/// Maximum size of the segments whose maps are written under one hold of the cleaner's lock, in bytes.
const BATCH_BYTES: usize = 32 << 20;
/// Maximum number of batches in one step of the background thread.
const BATCHES: usize = 4;

impl<M: Medium> Engine<M> {
    /// Writes the maps that are due, as a step of the background thread. Where drains are relaxed, this needs a sync,
    /// so it waits until a whole batch is due.
    pub(crate) fn write_maps_in_background(&self) -> Result<(), Poisoned> {
        let batch = self.maps_a_batch();
        let least = match self.access().drains_are_real() {
            true => 1,
            false => batch,
        };
        for _ in 0..BATCHES {
            if self.cleaning.is_stopped() || self.write_maps(least)? < batch {
                break;
            }
        }
        Ok(())
    }

    /// Writes every map that is due.
    pub(crate) fn write_all_maps(&self) -> Result<(), Poisoned> {
        while self.write_maps(1)? > 0 {}
        Ok(())
    }

    fn maps_a_batch(&self) -> usize {
        (BATCH_BYTES / self.geometry().segment_bytes()).clamp(1, 1024)
    }

    /// Writes a batch of maps if at least `least` are due. Returns the number written. The caller holds no lock.
    fn write_maps(&self, least: usize) -> Result<usize, Poisoned> {
        if self.geometry().map_bytes() == 0 {
            return Ok(0);
        }
        // Under this lock no segment is recycled.
        let mut cleaner = self.cleaning.lock();
        let mut maps = self.cleaning.maps();
        let due: Vec<u32> = (0..self.segments.count())
            .filter(|segment| self.needs_map(&maps, *segment))
            .collect();
        if due.is_empty() || due.len() < least {
            return Ok(0);
        }
        let mut batch = Vec::new();
        for segment in due {
            if batch.len() == self.maps_a_batch() {
                break;
            }
            let marked_bytes = self.info(segment).live_bytes();
            if let Some(map) = self.marks_of(&mut maps, segment) {
                batch.push((segment, marked_bytes, map));
            }
        }
        if !self.access().drains_are_real() {
            self.settle(Ticket::DURABLE)?; // KV-MAP-1
        }
        for (segment, _, map) in &batch {
            let opening = SegmentOpening::of(self.info(*segment));
            let bytes = map.encode(self.geometry(), *segment, opening);
            self.store_changed(&mut cleaner.ctx, place(self.geometry(), *segment), &bytes);
        }
        situation!("kv.map_written", !batch.is_empty());
        situation!(
            "kv.map_rewritten",
            batch.iter().any(|(s, ..)| maps
                .of(*s, self.info(*s).generation.load(Relaxed))
                .is_some())
        );
        maps.count_written(batch.len());
        for (segment, marked_bytes, _) in &batch {
            let generation = self.info(*segment).generation.load(Relaxed);
            maps.note(*segment, generation, Some(*marked_bytes));
        }
        Ok(batch.len())
    }

    /// Stores those lines of `bytes` that differ from the medium at `at`. Adjacent lines are stored with one call.
    fn store_changed(&self, ctx: &mut PersistCtx, at: Off, bytes: &[u8]) {
        let differs = |line: usize| {
            let (from, line) = (line * LINE, &bytes[line * LINE..][..LINE]);
            !self.medium().matches(at.plus(from as u64), line)
        };
        let lines: Vec<usize> = (0..bytes.len() / LINE)
            .filter(|line| differs(*line))
            .collect();
        for run in lines.chunk_by(|line, next| line + 1 == *next) {
            let (from, end) = (run[0] * LINE, (run[run.len() - 1] + 1) * LINE);
            let words: Vec<u64> = bytes[from..end]
                .chunks_exact(WORD)
                .map(|word| u64_at(word, 0))
                .collect();
            self.medium().store_words(ctx, at.plus(from as u64), &words);
        }
    }

    /// Whether a segment may have a map (KV-MAP-2) and has none, or a stale one.
    fn needs_map(&self, maps: &MapWriter, segment: u32) -> bool {
        let info = self.info(segment);
        let is_settled = info.is_end_unwritten.load(Acquire) == 0 || fault!("kv.map_unsettled");
        if info.state() != SegmentState::Sealed
            || !is_settled
            || info.large_groups.load(Relaxed) != 0
        {
            return false;
        }
        let Some(written) = maps.of(segment, info.generation.load(Relaxed)) else {
            return true;
        };
        written.marked_bytes.is_some_and(|marked| {
            let dead = marked.saturating_sub(info.live_bytes()) as usize;
            dead * STALE_SHARE >= self.geometry().payload()
        })
    }

    /// Returns a new map for `segment`. `None` if its marks are not known now, or if the segment is damaged.
    fn marks_of(&self, maps: &mut MapWriter, segment: u32) -> Option<SegmentMap> {
        let info = self.info(segment);
        let (base, bytes) = (
            self.geometry().base(segment),
            self.geometry().segment_bytes(),
        );
        let end = info.used.load(Relaxed) as usize;
        if maps.take_tombs_unknown(segment) {
            let whole = self.segments.walk(segment, end, &mut |at, header| {
                if header.what == RecordType::Tombstone {
                    self.segments.tombstone_map().set(at);
                }
            });
            if !whole {
                maps.note(segment, info.generation.load(Relaxed), None);
                return None;
            }
        }
        let mut words: Vec<u64> = self.segments.live_map().words_of(base, bytes).collect();
        let marks: u32 = words.iter().map(|word| word.count_ones()).sum();
        if marks != info.live_records() {
            return None; // Another thread has cleared a bit and not yet decremented the count.
        }
        if fault!("kv.map_before_durable") {
            self.leave_out_pending(base, &mut words);
        }
        for (word, tombs) in words
            .iter_mut()
            .zip(self.segments.tombstone_map().words_of(base, bytes))
        {
            *word |= tombs;
        }
        Some(SegmentMap { end, words })
    }

    /// Implements a fault: clears the marks of values for which a session has staged a newer record.
    fn leave_out_pending(&self, base: Off, words: &mut [u64]) {
        let marked = SegmentMap {
            end: 0,
            words: words.to_vec(),
        };
        for places in marked.places() {
            let hash = places
                .iter()
                .find_map(|at| self.rehash(base.plus(*at as u64)));
            let staged = |hash: u64| self.stripe(hash).lock().of(hash).next().is_some();
            if hash.is_some_and(staged) {
                let bit = places[0] / RECORD_MIN;
                words[bit / 64] &= !(1 << (bit % 64));
            }
        }
    }
}

/// Checks that the map of `segment`, if there is one, marks every record that the index points at and every
/// tombstone in the tombstone map.
///
/// # Errors
/// The first contradiction.
pub(crate) fn verify<M: Medium>(engine: &Engine<M>, segment: u32) -> Result<(), Inconsistency> {
    let info = engine.info(segment);
    let generation = info.generation.load(Relaxed);
    let Some(map) = read(&engine.segments, segment) else {
        let maps = engine.cleaning.maps();
        let written = maps.of(segment, generation).and_then(|w| w.marked_bytes);
        return match written {
            None => Ok(()),
            Some(_) => Err(Inconsistency::InvalidMap { segment }),
        };
    };
    let end = info.used.load(Relaxed) as usize;
    if map.end < end {
        return Err(Inconsistency::MapEnd {
            segment,
            map_end: map.end,
            end,
        });
    }
    let mut unmarked = None;
    engine.segments.walk_own(segment, end, &mut |at, header| {
        let counts = match header.what {
            RecordType::Put => engine
                .rehash(at)
                .is_some_and(|hash| engine.index.names(hash, at)),
            RecordType::Tombstone => engine.segments.tombstone_map().has(at),
            RecordType::Group | RecordType::Pad => false,
        };
        if counts && !map.marks(engine.geometry().within(at)) {
            unmarked.get_or_insert(at);
        }
    });
    match unmarked {
        None => Ok(()),
        Some(at) => Err(Inconsistency::Unmarked { segment, at: at.0 }),
    }
}
