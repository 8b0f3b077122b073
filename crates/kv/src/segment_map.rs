//! Segment maps: which records of a full segment an open must read.
//!
//! ```text
//!   segment  │ head │ records ...                                        │ map │ tail │
//!
//!   map       0              8         12        16       32
//!             ┌──────────────┬─────────┬─────────┬────────┬───────────────────────────┐
//!             │ checksum u64 │ end u32 │ marks   │ unused │ a bit for each 32 bytes   │
//!             └──────────────┴─────────┴─────────┴────────┴───────────────────────────┘
//! ```
//!
//! Most records in a segment of a used pool are dead. The segment's map marks the others: values that the index
//! points at, and tombstones. An open reads only the marked records of the segment. The background thread writes the
//! map when the segment is sealed. It writes the map again when an eighth of the segment has died since.
//!
//! # Invariants
//! KV-MAP-1  A map omits a value only if the index no longer points at it. Then a newer record of its key is durable,
//!     or the floor of a FLUSHALL above it. Where drains are relaxed, the map writer waits for a sync before it writes
//!     the map. An open finds the newer record: it lies in a segment without a map, or that segment's map marks it
//!     until the index no longer points at it either.
//! KV-MAP-2  A segment gets a map only when it is sealed and settled: each of its records is published or never will
//!     be. No record becomes live after that. So of two maps of one generation, the earlier marks at least the records
//!     that the later one marks.
//! KV-MAP-3  A map that fails its checksum is ignored, and its segment is scanned from end to end. The checksum's seed
//!     includes the segment's offset, its generation and its open epoch, so a map of an earlier use fails it. The open
//!     epoch matters because interrupted recycling may leave a free segment in its earlier generation.
//! KV-MAP-4  Tombstones stay marked until their segment is recycled; KV-CLEAN-3 alone decides when that may be. Segments with
//!     records of large groups have no map, and neither have segments in which an open found damage.
//!
//! # Crash argument
//! By KV-MAP-2 an older map is correct, and so is a missing map: both only make an open read more. So a map needs no
//! second copy, no flush and no drain. Its words reach the medium when their lines leave the cache, like `sealed`.
//!
//! | crash                           | recovery sees              | recovery does                             |
//! |---------------------------------|----------------------------|-------------------------------------------|
//! | before the map is durable       | no map, or the earlier one | scans, or reads a few dead records        |
//! | while it is written             | a checksum that fails      | scans the segment                         |
//! | kill, before it is durable      | the map, visible only      | relies on durable records (KV-MAP-1)      |
//!
//! # Damage
//! If the header of a marked record is invalid, the open scans the whole segment and reports lost records. If the body
//! of a marked record is invalid, the open reports it as a scan would. Damage in dead records is not detected.

use std::collections::HashSet;

use farbank_pm::fault;
use farbank_pm::simd::ones;
use farbank_pm::situation;
use farbank_pm::sync::atomic::Ordering::{Acquire, Relaxed};
use farbank_pm::{LINE, Medium, Off, PersistCtx, Poisoned, Ticket, WORD};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::engine::{Engine, Geometry};
use crate::record::{ALIGN, RECORD_MIN, RecordType, u32_at, u64_at};
use crate::segment::{FIRST, SegmentInfo, SegmentState};

/// Bytes of a map before its bits.
const HEAD: usize = 32;
/// A map is written again when 1 / `STALE_SHARE` of its segment has died since.
const STALE_SHARE: usize = 8;
/// Maximum size of the segments whose maps are written under one hold of the cleaner's lock, in bytes.
const BATCH_BYTES: usize = 32 << 20;
/// Maximum number of batches in one step of the background thread.
const BATCHES: usize = 4;

/// Returns the bytes that a map takes in a segment of `segment_bytes`.
pub(crate) const fn map_bytes(segment_bytes: usize) -> usize {
    (HEAD + segment_bytes / RECORD_MIN / 8).next_multiple_of(LINE)
}

/// One use of a segment: its generation and its open epoch.
#[derive(Clone, Copy, Debug)]
struct SegmentOpening {
    generation: u64,
    /// The seed of its records, which includes the open epoch.
    seed: u32,
}

impl SegmentOpening {
    fn of(info: &SegmentInfo) -> SegmentOpening {
        SegmentOpening {
            generation: info.generation.load(Relaxed),
            seed: info.seed.load(Relaxed),
        }
    }
}

/// A segment map, decoded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SegmentMap {
    /// End of the segment's records, in bytes from its start.
    pub end: usize,
    /// A bit for each 32 bytes of the segment: whether a record that an open must read begins there.
    words: Vec<u64>,
}

impl SegmentMap {
    /// Returns, for each mark, the two offsets in the segment where the record may begin.
    pub(crate) fn places(&self) -> impl Iterator<Item = [usize; 2]> {
        let words = self.words.iter().enumerate();
        words.flat_map(|(number, word)| {
            let base = number * 64 * RECORD_MIN;
            ones(*word).map(move |bit| {
                let first = base + bit as usize * RECORD_MIN;
                [first, first + ALIGN]
            })
        })
    }

    /// Whether the record that begins at `within` is marked.
    fn marks(&self, within: usize) -> bool {
        let bit = within / RECORD_MIN;
        self.words[bit / 64] >> (bit % 64) & 1 == 1
    }

    fn encode(&self, geometry: &Geometry, segment: u32, life: SegmentOpening) -> Vec<u8> {
        let mut bytes = vec![0; 8];
        let marks: u32 = self.words.iter().map(|word| word.count_ones()).sum();
        bytes.extend_from_slice(&(self.end as u32).to_le_bytes());
        bytes.extend_from_slice(&marks.to_le_bytes());
        bytes.resize(HEAD, 0);
        for word in &self.words {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.resize(geometry.map_bytes, 0);
        let checksum = checksum(geometry, segment, life, &bytes);
        bytes[..8].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn decode(
        bytes: &[u8],
        geometry: &Geometry,
        segment: u32,
        life: SegmentOpening,
    ) -> Option<SegmentMap> {
        let is_whole = u64_at(bytes, 0) == checksum(geometry, segment, life, bytes)
            || fault!("kv.map_unchecked");
        let end = u32_at(bytes, 8) as usize;
        let words = bytes[HEAD..HEAD + geometry.segment_bytes / RECORD_MIN / 8].chunks_exact(8);
        let is_sound = is_whole && (FIRST..=geometry.records_end()).contains(&end);
        is_sound.then(|| SegmentMap {
            end,
            words: words.map(|word| u64_at(word, 0)).collect(),
        })
    }
}

fn checksum(geometry: &Geometry, segment: u32, life: SegmentOpening, bytes: &[u8]) -> u64 {
    let life = [
        life.generation.to_le_bytes(),
        u64::from(life.seed).to_le_bytes(),
        place(geometry, segment).0.to_le_bytes(),
    ];
    let seed = xxh3_64_with_seed(life.as_flattened(), geometry.pool_key);
    xxh3_64_with_seed(&bytes[8..], seed)
}

fn place(geometry: &Geometry, segment: u32) -> Off {
    geometry.base(segment).plus(geometry.records_end() as u64)
}

/// Reads the map of `segment`; `None` if it has no valid one for its current use.
pub(crate) fn read<M: Medium>(engine: &Engine<M>, segment: u32) -> Option<SegmentMap> {
    let geometry = &engine.geometry;
    if geometry.map_bytes == 0 {
        return None;
    }
    let life = SegmentOpening::of(engine.info(segment));
    let decode = |bytes: &[u8]| SegmentMap::decode(bytes, geometry, segment, life);
    let vouched = |bytes: &[u8]| decode(bytes).map_or(0, |_| bytes.len());
    let mut bytes = vec![0; geometry.map_bytes];
    let holds = engine
        .medium()
        .copy_out_if(place(geometry, segment), &mut bytes, &vouched);
    holds.then(|| decode(&bytes)).flatten()
}

/// Facts about the map of a segment that the map writer keeps.
#[derive(Clone, Copy, Debug)]
struct WrittenMap {
    /// Generation of the segment that this applies to.
    generation: u64,
    /// Bytes of the records of values that its last map marks; `None`: it must not get a map in this generation.
    marked_bytes: Option<u32>,
}

/// State of the map writer between steps.
#[derive(Default)]
pub(crate) struct MapWriter {
    written: Vec<Option<WrittenMap>>,
    /// Segments whose tombstones have yet to be located, because the index snapshot does not have their offsets.
    tombs_unknown: HashSet<u32>,
    /// Maps written since the open.
    count: u64,
}

impl MapWriter {
    /// Maps written since the open.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Notes that the map of `segment` marks `marked_bytes` of values; `None`: the segment must not get a map in this
    /// generation.
    pub(crate) fn note(&mut self, segment: u32, generation: u64, marked_bytes: Option<u32>) {
        let number = segment as usize;
        if self.written.len() <= number {
            self.written.resize(number + 1, None);
        }
        self.written[number] = Some(WrittenMap {
            generation,
            marked_bytes,
        });
    }

    /// Notes that the tombstones of `segment` have yet to be located.
    pub(crate) fn note_tombs_unknown(&mut self, segment: u32) {
        self.tombs_unknown.insert(segment);
    }

    fn of(&self, segment: u32, generation: u64) -> Option<WrittenMap> {
        let written = self.written.get(segment as usize).copied().flatten();
        written.filter(|written| written.generation == generation)
    }
}

impl<M: Medium> Engine<M> {
    /// Writes the maps that are due, as a step of the background thread. Where drains are relaxed, this needs a sync,
    /// so it waits until a whole batch is due.
    pub(crate) fn write_maps_in_background(&self) -> Result<(), Poisoned> {
        let batch = self.maps_a_batch();
        let least = match self.drains_are_real() {
            true => 1,
            false => batch,
        };
        for _ in 0..BATCHES {
            if self.stop.load(Acquire) || self.write_maps(least)? < batch {
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
        (BATCH_BYTES / self.geometry.segment_bytes).clamp(1, 1024)
    }

    /// Writes a batch of maps if at least `least` are due. Returns the number written. The caller holds no lock.
    fn write_maps(&self, least: usize) -> Result<usize, Poisoned> {
        if self.geometry.map_bytes == 0 {
            return Ok(0);
        }
        // Under this lock no segment is recycled.
        let mut cleaner = self.cleaner.lock().expect("no holder panics");
        let mut maps = self.maps.lock().expect("no holder panics");
        let due: Vec<u32> = (0..self.pool.segments())
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
        if !self.drains_are_real() {
            self.settle(Ticket::DURABLE)?; // KV-MAP-1
        }
        for (segment, _, map) in &batch {
            let life = SegmentOpening::of(self.info(*segment));
            let bytes = map.encode(&self.geometry, *segment, life);
            self.store_changed(&mut cleaner.ctx, place(&self.geometry, *segment), &bytes);
        }
        situation!("kv.map_written", !batch.is_empty());
        situation!(
            "kv.map_rewritten",
            batch.iter().any(|(s, ..)| maps
                .of(*s, self.info(*s).generation.load(Relaxed))
                .is_some())
        );
        maps.count += batch.len() as u64;
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
            dead * STALE_SHARE >= self.geometry.payload()
        })
    }

    /// Returns a new map for `segment`. `None` if its marks are not known now, or if the segment is damaged.
    fn marks_of(&self, maps: &mut MapWriter, segment: u32) -> Option<SegmentMap> {
        let info = self.info(segment);
        let (base, bytes) = (self.geometry.base(segment), self.geometry.segment_bytes);
        let end = info.used.load(Relaxed) as usize;
        if maps.tombs_unknown.remove(&segment) {
            let whole = self.walk(segment, end, &mut |at, header| {
                if header.what == RecordType::Tombstone {
                    self.tombstone_map.set(at);
                }
            });
            if !whole {
                maps.note(segment, info.generation.load(Relaxed), None);
                return None;
            }
        }
        let mut words: Vec<u64> = self.live_map.words_of(base, bytes).collect();
        let marks: u32 = words.iter().map(|word| word.count_ones()).sum();
        if marks != info.live_records() {
            return None; // Another thread has cleared a bit and not yet decremented the count.
        }
        if fault!("kv.map_before_durable") {
            self.leave_out_pending(base, &mut words);
        }
        for (word, tombs) in words
            .iter_mut()
            .zip(self.tombstone_map.words_of(base, bytes))
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
/// A description of the first contradiction.
pub(crate) fn verify<M: Medium>(engine: &Engine<M>, segment: u32) -> Result<(), String> {
    let info = engine.info(segment);
    let generation = info.generation.load(Relaxed);
    let Some(map) = read(engine, segment) else {
        let maps = engine.maps.lock().expect("no holder panics");
        let written = maps.of(segment, generation).and_then(|w| w.marked_bytes);
        return match written {
            None => Ok(()),
            Some(_) => Err(format!("segment {segment}: its map is invalid")),
        };
    };
    let end = info.used.load(Relaxed) as usize;
    if map.end != end {
        return Err(format!(
            "segment {segment}: its map ends at {}, but its records end at {end}",
            map.end
        ));
    }
    let mut unmarked = None;
    engine.walk_own(segment, end, &mut |at, header| {
        let counts = match header.what {
            RecordType::Put => engine
                .rehash(at)
                .is_some_and(|hash| engine.index.names(hash, at)),
            RecordType::Tombstone => engine.tombstone_map.has(at),
            RecordType::Group | RecordType::Pad => false,
        };
        if counts && !map.marks(engine.geometry.within(at)) {
            unmarked.get_or_insert(at);
        }
    });
    match unmarked {
        None => Ok(()),
        Some(at) => Err(format!(
            "segment {segment}: its map does not mark the record at {:#x}",
            at.0
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Kv;
    use crate::config::{CleaningMode, Config};
    use farbank_pm::media::Mapped;

    #[test]
    fn a_map_is_decoded_as_encoded_and_only_for_its_own_segment_generation_and_open_epoch() {
        let config = Config {
            cleaning: CleaningMode::Inline,
            ..Config::default()
        };
        let medium = Mapped::anonymous(1 << 20).expect("memory");
        let kv = Kv::create(medium, 16 << 10, config).expect("a fresh store");
        let geometry = &kv.engine.geometry;
        assert_eq!(geometry.map_bytes, 128);
        let mut words = vec![0; 8];
        words[0] = 1 << 2 | 1 << 63;
        words[7] = 1;
        let map = SegmentMap { end: 8_000, words };
        let places: Vec<[usize; 2]> = map.places().collect();
        assert_eq!(places, [[64, 80], [2_016, 2_032], [14_336, 14_352]]);
        assert!(map.marks(80) && map.marks(14_336) && !map.marks(96));
        let life = |generation, seed| SegmentOpening { generation, seed };
        let bytes = map.encode(geometry, 3, life(9, 1));
        assert_eq!(bytes.len(), 128);
        let decode =
            |bytes: &[u8], segment, life| SegmentMap::decode(bytes, geometry, segment, life);
        assert_eq!(decode(&bytes, 3, life(9, 1)), Some(map));
        assert_eq!(decode(&bytes, 3, life(10, 1)), None, "another generation");
        assert_eq!(decode(&bytes, 3, life(9, 2)), None, "another open epoch");
        assert_eq!(decode(&bytes, 4, life(9, 1)), None, "another segment");
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            assert_eq!(decode(&bytes, 3, life(9, 1)), None, "byte {at}");
        }
    }
}
