//! Contradictions between the engine's counts, its maps and the log.

use std::fmt;

use farbank_pm::Poisoned;

/// Contradiction between the counts and maps of the engine and the records in its log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Inconsistency {
    /// The medium has failed, so nothing can be compared.
    Poisoned(Poisoned),
    /// Two segments have the same generation (KV-SEG-1).
    SharedGeneration {
        /// Number of the later segment.
        segment: u32,
        /// Its generation.
        generation: u64,
    },
    /// A total differs from the sum over all segments.
    Total {
        /// What is counted.
        what: &'static str,
        /// Value that the engine has.
        found: i64,
        /// Sum over all segments, or over the index.
        expected: i64,
    },
    /// The newest tombstone of a key without a value lies in a segment that counts no tombstones (KV-CLEAN-3).
    UncountedTombstone {
        /// Database of the key.
        db: u8,
        /// The key.
        key: Vec<u8>,
        /// Sequence number of the tombstone.
        seq: u64,
    },
    /// A record has a sequence number that a later write of its key may get (KV-PEND-1).
    SequenceNumber {
        /// Offset of the record in bytes.
        at: u64,
    },
    /// The live records of a segment differ from its counts.
    Live {
        /// Number of the segment.
        segment: u32,
        /// Records that the index points at, and their bytes.
        live: (u64, u64),
        /// Records and bytes that the segment counts.
        counted: (u64, u64),
    },
    /// The map of a segment is invalid (KV-MAP-1).
    InvalidMap {
        /// Number of the segment.
        segment: u32,
    },
    /// The map of a segment ends before its records (KV-MAP-2).
    MapEnd {
        /// Number of the segment.
        segment: u32,
        /// End of the map in bytes.
        map_end: usize,
        /// End of the records in bytes.
        end: usize,
    },
    /// The map of a segment does not mark a record that an open needs (KV-MAP-1).
    Unmarked {
        /// Number of the segment.
        segment: u32,
        /// Offset of the record in bytes.
        at: u64,
    },
}

impl fmt::Display for Inconsistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Inconsistency::Poisoned(poisoned) => poisoned.fmt(f),
            Inconsistency::SharedGeneration {
                segment,
                generation,
            } => write!(
                f,
                "segment {segment}: another segment has its generation {generation}, too"
            ),
            Inconsistency::Total {
                what,
                found,
                expected,
            } => write!(f, "{what}: {found}, expected {expected}"),
            Inconsistency::UncountedTombstone { db, key, seq } => write!(
                f,
                "database {db}, key {}: its newest tombstone, with sequence number {seq}, lies in a segment that counts \
                 no tombstones",
                key.escape_ascii()
            ),
            Inconsistency::SequenceNumber { at } => write!(
                f,
                "the record at {at:#x} has a sequence number that a later write of its key may get"
            ),
            Inconsistency::Live {
                segment,
                live: (records, bytes),
                counted: (counted_records, counted_bytes),
            } => write!(
                f,
                "segment {segment}: {records} live records of {bytes} bytes, but its counts are {counted_records} \
                 records of {counted_bytes} bytes"
            ),
            Inconsistency::InvalidMap { segment } => {
                write!(f, "segment {segment}: its map is invalid")
            }
            Inconsistency::MapEnd {
                segment,
                map_end,
                end,
            } => write!(
                f,
                "segment {segment}: its map ends at {map_end}, but its records end at {end}"
            ),
            Inconsistency::Unmarked { segment, at } => write!(
                f,
                "segment {segment}: its map does not mark the record at {at:#x}"
            ),
        }
    }
}

impl std::error::Error for Inconsistency {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Inconsistency::Poisoned(poisoned) => Some(poisoned),
            _ => None,
        }
    }
}

impl From<Poisoned> for Inconsistency {
    fn from(poisoned: Poisoned) -> Inconsistency {
        Inconsistency::Poisoned(poisoned)
    }
}
