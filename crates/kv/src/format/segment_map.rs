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
//!     that the later one marks. The earlier may end later: if its segment is scanned without a map and without `sealed`, dead values
//!     at the end whose extents are in use again are torn. An open does not use a map that ends later than `sealed` says.
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
use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::{Medium, Off};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::format::geometry::{Geometry, MAP_HEAD};
use crate::format::record::{ALIGN, RECORD_MIN, u32_at, u64_at};
use crate::format::segment::{FIRST, SegmentInfo};
use crate::segments::Segments;

/// One use of a segment: its generation and its open epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentOpening {
    generation: u64,
    /// The seed of its records, which includes the open epoch.
    seed: u32,
}

impl SegmentOpening {
    pub(crate) fn of(info: &SegmentInfo) -> SegmentOpening {
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
    pub words: Vec<u64>,
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
    pub(crate) fn marks(&self, within: usize) -> bool {
        let bit = within / RECORD_MIN;
        self.words[bit / 64] >> (bit % 64) & 1 == 1
    }

    pub(crate) fn encode(
        &self,
        geometry: &Geometry,
        segment: u32,
        opening: SegmentOpening,
    ) -> Vec<u8> {
        let mut bytes = vec![0; 8];
        let marks: u32 = self.words.iter().map(|word| word.count_ones()).sum();
        bytes.extend_from_slice(&(self.end as u32).to_le_bytes());
        bytes.extend_from_slice(&marks.to_le_bytes());
        bytes.resize(MAP_HEAD, 0);
        for word in &self.words {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.resize(geometry.map_bytes(), 0);
        let checksum = checksum(geometry, segment, opening, &bytes);
        bytes[..8].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn decode(
        bytes: &[u8],
        geometry: &Geometry,
        segment: u32,
        opening: SegmentOpening,
    ) -> Option<SegmentMap> {
        let is_whole = u64_at(bytes, 0) == checksum(geometry, segment, opening, bytes)
            || fault!("kv.map_unchecked");
        let end = u32_at(bytes, 8) as usize;
        let words =
            bytes[MAP_HEAD..MAP_HEAD + geometry.segment_bytes() / RECORD_MIN / 8].chunks_exact(8);
        let is_sound = is_whole && (FIRST..=geometry.records_end()).contains(&end);
        is_sound.then(|| SegmentMap {
            end,
            words: words.map(|word| u64_at(word, 0)).collect(),
        })
    }
}

fn checksum(geometry: &Geometry, segment: u32, opening: SegmentOpening, bytes: &[u8]) -> u64 {
    let words = [
        opening.generation.to_le_bytes(),
        u64::from(opening.seed).to_le_bytes(),
        place(geometry, segment).0.to_le_bytes(),
    ];
    let seed = xxh3_64_with_seed(words.as_flattened(), geometry.pool_key());
    xxh3_64_with_seed(&bytes[8..], seed)
}

pub(crate) fn place(geometry: &Geometry, segment: u32) -> Off {
    geometry.base(segment).plus(geometry.records_end() as u64)
}

/// Reads the map of `segment`; `None` if it has no valid one for its current use.
pub(crate) fn read<M: Medium>(segments: &Segments<M>, segment: u32) -> Option<SegmentMap> {
    let geometry = segments.geometry();
    if geometry.map_bytes() == 0 {
        return None;
    }
    let opening = SegmentOpening::of(segments.info(segment));
    let decode = |bytes: &[u8]| SegmentMap::decode(bytes, geometry, segment, opening);
    let vouched = |bytes: &[u8]| decode(bytes).map_or(0, |_| bytes.len());
    let mut bytes = vec![0; geometry.map_bytes()];
    let holds = segments
        .medium()
        .copy_out_if(place(geometry, segment), &mut bytes, &vouched);
    holds.then(|| decode(&bytes)).flatten()
}

/// Facts about the map of a segment that the map writer keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrittenMap {
    /// Generation of the segment that this applies to.
    pub generation: u64,
    /// Bytes of the records of values that its last map marks; `None`: it must not get a map in this generation.
    pub marked_bytes: Option<u32>,
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

    /// Counts maps that were written.
    pub(crate) fn count_written(&mut self, maps: usize) {
        self.count += maps as u64;
    }

    /// Returns whether the tombstones of `segment` have yet to be located, and forgets that.
    pub(crate) fn take_tombs_unknown(&mut self, segment: u32) -> bool {
        self.tombs_unknown.remove(&segment)
    }

    /// Returns whether the tombstones of `segment` have yet to be located.
    pub(crate) fn lacks_tombs(&self, segment: u32) -> bool {
        self.tombs_unknown.contains(&segment)
    }

    /// Notes that the tombstones of `segment` have yet to be located.
    pub(crate) fn note_tombs_unknown(&mut self, segment: u32) {
        self.tombs_unknown.insert(segment);
    }

    pub(crate) fn of(&self, segment: u32, generation: u64) -> Option<WrittenMap> {
        let written = self.written.get(segment as usize).copied().flatten();
        written.filter(|written| written.generation == generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Kv;
    use crate::config::{CleaningMode, Config};
    use farbank_pm::sim::{Persistency, Sim};

    #[test]
    fn a_map_is_decoded_as_encoded_and_only_for_its_own_segment_generation_and_open_epoch() {
        let config = Config {
            cleaning: CleaningMode::Inline,
            ..Config::default()
        };
        let medium = Sim::new(1 << 20, Persistency::Adr);
        let kv = Kv::create(medium, 16 << 10, config).expect("a fresh store");
        let geometry = kv.engine.geometry();
        assert_eq!(geometry.map_bytes(), 128);
        let mut words = vec![0; 8];
        words[0] = 1 << 2 | 1 << 63;
        words[7] = 1;
        let map = SegmentMap { end: 8_000, words };
        let places: Vec<[usize; 2]> = map.places().collect();
        assert_eq!(places, [[64, 80], [2_016, 2_032], [14_336, 14_352]]);
        assert!(map.marks(80) && map.marks(14_336) && !map.marks(96));
        let opening = |generation, seed| SegmentOpening { generation, seed };
        let bytes = map.encode(geometry, 3, opening(9, 1));
        assert_eq!(bytes.len(), 128);
        let decode =
            |bytes: &[u8], segment, opening| SegmentMap::decode(bytes, geometry, segment, opening);
        assert_eq!(decode(&bytes, 3, opening(9, 1)), Some(map));
        assert_eq!(
            decode(&bytes, 3, opening(10, 1)),
            None,
            "another generation"
        );
        assert_eq!(decode(&bytes, 3, opening(9, 2)), None, "another open epoch");
        assert_eq!(decode(&bytes, 4, opening(9, 1)), None, "another segment");
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            assert_eq!(decode(&bytes, 3, opening(9, 1)), None, "byte {at}");
        }
    }
}
