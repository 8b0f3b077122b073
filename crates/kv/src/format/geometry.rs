//! Segment layout of a pool, and the secrets derived from the pool's id.

use farbank_pm::key_hash::KeyHash;
use farbank_pm::pool::Pool;
use farbank_pm::{LINE, Medium, Off};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::format::record::RECORD_MIN;
use crate::format::segment::{FIRST, OVERHEAD, SegmentPlace};

/// Bytes of a segment map before its bits.
pub(crate) const MAP_HEAD: usize = 32;

/// Bytes of a value from which on it is copied to the medium when it is staged. Small segments have a smaller limit.
const RUN_BYTES_MIN: usize = 16 << 10;

/// Returns the bytes that a map takes in a segment of `segment_bytes`.
pub(crate) const fn map_bytes(segment_bytes: usize) -> usize {
    (MAP_HEAD + segment_bytes / RECORD_MIN / 8).next_multiple_of(LINE)
}

/// Segment layout of the pool, and the secrets derived from its id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    first: u64,
    segment_bytes: usize,
    map_bytes: usize,
    shift: u32,
    pool_key: u64,
    key_hash: KeyHash,
    /// Seed of the key hash of format version 1. `None` in later versions, which use `key_hash`.
    seed_of_version_1: Option<u64>,
}

impl Geometry {
    pub(crate) fn of<M: Medium>(pool: &Pool<M>) -> Geometry {
        let id = pool.id();
        Geometry {
            first: pool.segment(0).0,
            segment_bytes: pool.segment_bytes() as usize,
            map_bytes: match pool.version() {
                1 => 0,
                _ => map_bytes(pool.segment_bytes() as usize),
            },
            shift: pool.segment_bytes().trailing_zeros(),
            pool_key: xxh3_64_with_seed(&id, 1),
            key_hash: pool.key_hash(),
            seed_of_version_1: (pool.version() == 1).then(|| xxh3_64_with_seed(&id, 2)),
        }
    }

    /// Returns the offset of the first segment.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Returns the size of a segment in bytes.
    #[inline]
    pub(crate) fn segment_bytes(&self) -> usize {
        self.segment_bytes
    }

    /// Returns the bytes of the map at the end of a segment, before the tail. 0 in a pool of format version 1, which
    /// has no maps.
    pub(crate) fn map_bytes(&self) -> usize {
        self.map_bytes
    }

    /// Returns the pool's secret for checksums.
    pub(crate) fn pool_key(&self) -> u64 {
        self.pool_key
    }

    /// Returns the bytes of records that a segment holds.
    pub(crate) fn payload(&self) -> usize {
        self.segment_bytes - OVERHEAD - self.map_bytes
    }

    /// Returns the largest end of the records, in bytes from a segment's start: there the map begins, or without a
    /// map the tail.
    pub(crate) fn records_end(&self) -> usize {
        FIRST + self.payload()
    }

    /// Returns the length of the longest record that lies in the log. Longer values get segments of their own.
    pub(crate) fn inline_max(&self) -> usize {
        self.payload() / 4
    }

    /// Returns the least number of bytes of a value that are copied to the medium when the value is staged. A copy has
    /// a fixed cost, so shorter values are copied with the other records of their batch.
    pub(crate) fn run_min(&self) -> usize {
        RUN_BYTES_MIN.min(self.inline_max() / 2)
    }

    /// Returns the segment that contains `at`.
    #[inline]
    pub(crate) fn segment_of(&self, at: Off) -> u32 {
        ((at.0 - self.first) >> self.shift) as u32
    }

    /// Returns the position of `at` in its segment.
    #[inline]
    pub(crate) fn within(&self, at: Off) -> usize {
        (at.0 - self.first) as usize & (self.segment_bytes - 1)
    }

    pub(crate) fn base(&self, segment: u32) -> Off {
        Off(self.first + (u64::from(segment) << self.shift))
    }

    pub(crate) fn place(&self, segment: u32) -> SegmentPlace {
        SegmentPlace {
            at: self.base(segment),
            bytes: self.segment_bytes,
            pool: self.pool_key,
        }
    }

    #[inline]
    pub(crate) fn hash(&self, db: u8, key: &[u8]) -> u64 {
        match self.seed_of_version_1 {
            None => self.key_hash.hash(u32::from(db), key),
            Some(seed) => xxh3_64_with_seed(key, seed.wrapping_add(u64::from(db))),
        }
    }
}
