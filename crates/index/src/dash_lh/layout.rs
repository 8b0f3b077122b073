//! The use of hash bits, the location of segments, and the configuration words.

use farbank_pm::sync::atomic::Ordering;
use farbank_pm::{Medium, Off, WORD};

use super::{DashLh, DashLhConfig};
use crate::dash::{DashShape, SegmentPlace};
use crate::error::OpenError;
use crate::pool_heap::{BlockClass, CONFIG_WORDS};

/// Number of the root's word of N and next.
pub(super) const STATE: u64 = 0;
/// Number of the root's word for the directory.
pub(super) const DIRECTORY: u64 = 1;
/// Block class of chained stash buckets.
pub(super) const CHAINED: usize = 0;
/// Entries of the directory.
pub(super) const ARRAYS: u64 = 256;
/// Bytes of the directory.
pub(super) const DIRECTORY_BYTES: u64 = ARRAYS * WORD as u64;
/// Maximum number of hash bits that select a segment.
pub(super) const BITS_MAX: u32 = 32;

/// The number of segments: 2^`bits`, plus one for each segment split in this round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LinearState {
    pub(super) bits: u32,
    /// The segment to be split next.
    pub(super) next: u64,
}

impl LinearState {
    const NEXT: u64 = (1 << 32) - 1;

    #[inline]
    pub(super) fn of(word: u64) -> LinearState {
        LinearState {
            bits: (word >> 32) as u32,
            next: word & LinearState::NEXT,
        }
    }

    pub(super) fn word(self) -> u64 {
        u64::from(self.bits) << 32 | self.next
    }

    pub(super) fn is_sound(self) -> bool {
        (1..=BITS_MAX).contains(&self.bits) && self.next >> self.bits == 0
    }

    /// Returns the number of segments, which is also the number of the next one.
    #[inline]
    pub(super) fn count(self) -> u64 {
        (1 << self.bits) + self.next
    }

    /// Returns the state with one more segment.
    pub(super) fn after(self) -> LinearState {
        let next = self.next + 1;
        match next >> self.bits {
            0 => LinearState { next, ..self },
            _ => LinearState {
                bits: self.bits + 1,
                next: 0,
            },
        }
    }

    /// Returns the number of the segment for a hash.
    #[inline]
    pub(super) fn number(self, hash: u64) -> u64 {
        let low = (1 << self.bits) - 1;
        // Without a branch, because it would be unpredictable during a round of splits.
        let split = u64::from(hash & low < self.next);
        hash & (low | split << self.bits)
    }
}

impl DashLhConfig {
    pub(super) fn classes(&self) -> [BlockClass; 1] {
        [BlockClass {
            block_bytes: self.shape.bucket_bytes(),
            align: self.shape.bucket_bytes(),
        }]
    }

    pub(super) fn words(&self) -> [u64; 8] {
        let [bucket_bits, stash, slots] = self.shape.words();
        let DashLhConfig {
            shape: _,
            bits,
            array_bits,
            stride_bits,
            splits,
            as_published,
        } = *self;
        let [bits, array_bits, stride_bits, splits, as_published] = [
            bits,
            array_bits,
            stride_bits,
            splits,
            u32::from(as_published),
        ]
        .map(u64::from);
        [
            bucket_bits,
            stash,
            slots,
            bits,
            array_bits,
            stride_bits,
            splits,
            as_published,
        ]
    }

    pub(super) fn of(words: &[u64; CONFIG_WORDS]) -> Result<DashLhConfig, OpenError> {
        let small = |n: usize| u32::try_from(words[n]).unwrap_or(u32::MAX);
        let config = DashLhConfig {
            shape: DashShape::of(words),
            bits: small(3),
            array_bits: small(4),
            stride_bits: small(5),
            splits: small(6),
            as_published: words[7] == 1,
        };
        config.check()?;
        Ok(config)
    }

    pub(super) fn check(&self) -> Result<(), OpenError> {
        let sound = self.shape.is_sound()
            && self.shape.stash >= 2
            && (1..BITS_MAX).contains(&self.bits)
            && (1..=20).contains(&self.array_bits)
            && self.stride_bits <= 4
            && (1..=1 << 10).contains(&self.splits)
            && self.array_of((1 << self.bits) - 1) < ARRAYS;
        sound.then_some(()).ok_or_else(|| OpenError::Damaged {
            what: format!("{self:?} is no valid configuration of a table"),
        })
    }

    /// Returns the place of a hash: the fingerprint from its top byte, the home bucket from the bits below.
    #[inline]
    pub(super) fn place(&self, hash: u64) -> SegmentPlace {
        let bits = self.shape.bucket_bits;
        SegmentPlace {
            bucket: hash >> (56 - bits) & ((1 << bits) - 1),
            finger: (hash >> 56) as u8,
        }
    }

    /// Returns the array of a segment. Segment numbers are shifted by the total size of the first stride of arrays, so
    /// that array sizes change at powers of two.
    pub(super) fn array_of(&self, number: u64) -> u64 {
        let stride = self.array_bits + self.stride_bits;
        let counted = number + (1 << stride);
        let doublings = counted.ilog2() - stride;
        let doubled = u64::from(doublings) << self.stride_bits;
        doubled + (counted >> (self.array_bits + doublings)) - (1 << self.stride_bits)
    }

    /// Returns the number of an array's first segment.
    pub(super) fn first_of(&self, array: u64) -> u64 {
        (0..array).map(|before| self.segments(before)).sum()
    }

    /// Returns the segments of an array.
    pub(super) fn segments(&self, array: u64) -> u64 {
        1 << (u64::from(self.array_bits) + (array >> self.stride_bits))
    }

    /// Returns the bytes of an array.
    pub(super) fn array_bytes(&self, array: u64) -> u64 {
        self.segments(array) * self.shape.segment_bytes()
    }
}

impl<M: Medium> DashLh<M> {
    /// Returns the offset of an array's directory entry.
    #[inline]
    pub(super) fn entry(&self, array: u64) -> Off {
        self.directory.plus(array * WORD as u64)
    }

    /// Returns the offset of an array; null if it does not exist.
    #[inline]
    pub(super) fn array(&self, array: u64) -> Off {
        Off(self.table_pool.medium().load(self.entry(array)))
    }

    /// Returns the offset of a segment. Its array must exist.
    #[inline]
    pub(super) fn segment(&self, number: u64) -> Off {
        let zeroth = &self.zeroths[(number >> self.config.array_bits) as usize];
        let bytes = number * self.form.segment_bytes;
        Off(zeroth.load(Ordering::Acquire).wrapping_add(bytes))
    }

    /// Stores the offset of an array in DRAM, for [`DashLh::segment`].
    pub(super) fn note_array(&self, array: u64, at: Off) {
        let first = self.config.first_of(array);
        let zeroth = at.0.wrapping_sub(first * self.form.segment_bytes);
        let all = [first, first + self.config.segments(array)]
            .map(|number| (number >> self.config.array_bits) as usize);
        for word in &self.zeroths[all[0]..all[1]] {
            word.store(zeroth, Ordering::Release);
        }
    }

    /// Calls `each` with the number and offset of each array.
    pub(super) fn each_array(&self, mut each: impl FnMut(u64, Off)) {
        let arrays = (0..ARRAYS).map(|array| (array, self.array(array)));
        arrays
            .filter(|(_, at)| !at.is_null())
            .for_each(|(array, at)| each(array, at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_hold_all_numbers_once_and_double_every_stride() {
        for config in [DashLhConfig::small(), DashLhConfig::paper(1 << 16)] {
            let (mut array, mut first) = (0, 0);
            for number in 0..5_000 {
                if number == first + config.segments(array) {
                    (array, first) = (array + 1, number);
                }
                let found = (config.array_of(number), config.first_of(array));
                assert_eq!(found, (array, first), "{number}");
            }
        }
        let paper = DashLhConfig::paper(1 << 16);
        let sizes = [0, 7, 8, 16].map(|array| paper.segments(array));
        assert_eq!(sizes, [64, 64, 128, 256]);
    }

    #[test]
    fn a_split_moves_keys_to_the_new_segment_only() {
        let mut state = LinearState { bits: 1, next: 0 };
        for _ in 0..100 {
            let after = state.after();
            assert_eq!(after.count(), state.count() + 1);
            assert_eq!(LinearState::of(after.word()), after);
            for hash in (0..1_000).map(crate::hash::hash) {
                let (before, now) = (state.number(hash), after.number(hash));
                let moved = (before, now) == (state.next, state.count());
                assert!(before == now || moved, "{state:?}: {before} to {now}");
                assert!(now < after.count());
            }
            state = after;
        }
    }
}
