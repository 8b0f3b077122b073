//! What a checkpoint of the index has beside the groups: its head, and a row for each segment.

use crate::format::record::{u32_at, u64_at};

/// Version of the layout, the first word.
const VERSION: u64 = 1;

/// The head of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CheckpointHead {
    /// The floor of FLUSHALL at the begin.
    pub floor: u64,
    /// Highest sequence number of a covered record, or more.
    pub seq_max: u64,
    /// Number of rows.
    pub segments: u64,
    /// Number of groups of the index.
    pub groups: u64,
    /// Number of tombstones.
    pub tombstones: u64,
    /// The database of all covered records, plus 1, if no covered value is in extents; 0: the checkpoint does not tell.
    pub only_db: u64,
}

impl CheckpointHead {
    pub(crate) const BYTES: usize = 56;

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let words = [
            VERSION,
            self.floor,
            self.seq_max,
            self.segments,
            self.groups,
            self.tombstones,
            self.only_db,
        ];
        for word in words {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }

    /// Decodes a head. `None` if it has another version.
    pub(crate) fn decode(bytes: &[u8; CheckpointHead::BYTES]) -> Option<CheckpointHead> {
        let [
            version,
            floor,
            seq_max,
            segments,
            groups,
            tombstones,
            only_db,
        ] = std::array::from_fn(|word| u64_at(bytes, 8 * word));
        (version == VERSION).then_some(CheckpointHead {
            floor,
            seq_max,
            segments,
            groups,
            tombstones,
            only_db,
        })
    }
}

/// A segment that a checkpoint covers. The default, without a generation, is a segment that it does not cover.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct CoveredSegment {
    pub generation: u64,
    /// Seed of the segment's records, which includes the open epoch.
    pub seed: u32,
    /// End of the segment's records, in bytes from its start.
    pub end: u32,
    /// Lower bound of the expiry times of the segment's records, in milliseconds since 1970; 0: no record expires.
    pub expires_ms: u64,
}

/// What stands for the live records of a segment that were not counted.
pub(crate) const UNCOUNTED: u64 = u64::MAX;

impl CoveredSegment {
    pub(crate) const BYTES: usize = 24;

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(&self.seed.to_le_bytes());
        out.extend_from_slice(&self.end.to_le_bytes());
        out.extend_from_slice(&self.expires_ms.to_le_bytes());
    }

    pub(crate) fn decode(bytes: &[u8]) -> CoveredSegment {
        CoveredSegment {
            generation: u64_at(bytes, 0),
            seed: u32_at(bytes, 8),
            end: u32_at(bytes, 12),
            expires_ms: u64_at(bytes, 16),
        }
    }
}
