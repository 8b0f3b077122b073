//! Place of a record: the partition, the offset, the size of its block and the version, in one word.

use crate::engine::VALUE_BYTES;

/// Granularity of a block, in bytes.
pub(super) const UNIT_BYTES: usize = 32;
pub(super) const VALUE_BYTES_MAX: usize = *VALUE_BYTES.end();

/// Place of a record, as the index stores it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct RecordPlace(pub(super) u64);

impl RecordPlace {
    pub(super) fn new(part: usize, at: u64, block_bytes: usize, version: u8) -> RecordPlace {
        RecordPlace(
            at | (block_bytes as u64) << 32 | (part as u64) << 48 | u64::from(version) << 56,
        )
    }

    pub(super) fn at(self) -> u64 {
        self.0 & 0xffff_ffff
    }

    pub(super) fn block_bytes(self) -> usize {
        (self.0 >> 32) as usize & 0xffff
    }

    pub(super) fn part(self) -> usize {
        (self.0 >> 48) as usize & 0xff
    }

    pub(super) fn version(self) -> u8 {
        (self.0 >> 56) as u8
    }

    pub(super) fn with_version(self, version: u8) -> RecordPlace {
        RecordPlace(self.0 & !(0xff << 56) | u64::from(version) << 56)
    }
}
