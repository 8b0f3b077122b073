//! A run of buckets, encoded in one word.

use farbank_pm::Off;

/// Offset of a run, and the binary logarithm of its number of buckets. Both fit into one word, because runs are aligned
/// to chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BucketRun {
    pub(crate) at: Off,
    pub(crate) bits: u32,
}

impl BucketRun {
    const BITS: u64 = 0x3f;

    pub(crate) fn of(word: u64) -> BucketRun {
        BucketRun {
            at: Off(word & !BucketRun::BITS),
            bits: (word & BucketRun::BITS) as u32,
        }
    }

    pub(crate) fn word(self) -> u64 {
        self.at.0 | u64::from(self.bits)
    }

    pub(crate) fn buckets(self) -> u64 {
        1 << self.bits
    }
}
