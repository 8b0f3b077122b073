//! Where a hash leads, where a segment is, and the words of the configuration.

use farbank_pm::{Medium, Off, WORD};

use super::{Config, DashLh};
use crate::dash::{Place, Shape};
use crate::ground::{CONFIG_WORDS, Class, OpenError};

/// The root's word of N and next.
pub(super) const STATE: u64 = 0;
/// The root's word for the directory.
pub(super) const DIRECTORY: u64 = 1;
/// The class of what is chained to a stash.
pub(super) const CHAINED: usize = 0;
/// Entries of the directory.
pub(super) const ARRAYS: u64 = 256;
/// Bytes of the directory.
pub(super) const DIRECTORY_BYTES: u64 = ARRAYS * WORD as u64;
/// Most bits a segment's number is taken from.
pub(super) const BITS_MAX: u32 = 32;

/// How many segments there are: 2^`bits`, and one more for each of those that has been split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct State {
    pub(super) bits: u32,
    /// The segment to be split next.
    pub(super) next: u64,
}

impl State {
    const NEXT: u64 = (1 << 32) - 1;

    #[inline]
    pub(super) fn of(word: u64) -> State {
        State {
            bits: (word >> 32) as u32,
            next: word & State::NEXT,
        }
    }

    pub(super) fn word(self) -> u64 {
        u64::from(self.bits) << 32 | self.next
    }

    pub(super) fn is_sound(self) -> bool {
        (1..=BITS_MAX).contains(&self.bits) && self.next >> self.bits == 0
    }

    /// How many segments there are, which is the number of the one that comes next.
    #[inline]
    pub(super) fn count(self) -> u64 {
        (1 << self.bits) + self.next
    }

    /// With one more.
    pub(super) fn after(self) -> State {
        let next = self.next + 1;
        match next >> self.bits {
            0 => State { next, ..self },
            _ => State {
                bits: self.bits + 1,
                next: 0,
            },
        }
    }

    /// The number of the segment that keys of a hash are in.
    #[inline]
    pub(super) fn number(self, hash: u64) -> u64 {
        let half = 1 << self.bits;
        let number = hash & (half - 1);
        if number < self.next {
            hash & (2 * half - 1)
        } else {
            number
        }
    }
}

/// Where a segment is among the arrays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ArraySpot {
    pub(super) array: u64,
    pub(super) within: u64,
}

impl Config {
    pub(super) fn classes(&self) -> [Class; 1] {
        [Class {
            block_bytes: self.shape.bucket_bytes(),
            align: self.shape.bucket_bytes(),
        }]
    }

    pub(super) fn words(&self) -> [u64; 8] {
        let [bucket_bits, stash, slots] = self.shape.words();
        let Config {
            shape: _,
            bits,
            array_bits,
            stride_bits,
            splits,
            far_locks,
        } = *self;
        let [bits, array_bits, stride_bits, splits, far_locks] =
            [bits, array_bits, stride_bits, splits, u32::from(far_locks)].map(u64::from);
        [
            bucket_bits,
            stash,
            slots,
            bits,
            array_bits,
            stride_bits,
            splits,
            far_locks,
        ]
    }

    pub(super) fn of(words: &[u64; CONFIG_WORDS]) -> Result<Config, OpenError> {
        let small = |n: usize| u32::try_from(words[n]).unwrap_or(u32::MAX);
        let config = Config {
            shape: Shape::of(words),
            bits: small(3),
            array_bits: small(4),
            stride_bits: small(5),
            splits: small(6),
            far_locks: words[7] == 1,
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
            && self.spot((1 << self.bits) - 1).array < ARRAYS;
        sound.then_some(()).ok_or_else(|| OpenError::Damaged {
            what: format!("{self:?} is no arrangement of a table"),
        })
    }

    /// Its fingerprint is the first byte of a hash, its home bucket the bits after it.
    #[inline]
    pub(super) fn place(&self, hash: u64) -> Place {
        let bits = self.shape.bucket_bits;
        Place {
            bucket: hash >> (56 - bits) & ((1 << bits) - 1),
            finger: (hash >> 56) as u8,
        }
    }

    /// Counted from as many segments before the first as the first arrays of one size have, sizes change at powers of two.
    #[inline]
    pub(super) fn spot(&self, number: u64) -> ArraySpot {
        let stride = self.array_bits + self.stride_bits;
        let counted = number + (1 << stride);
        let doublings = counted.ilog2() - stride;
        let array_bits = self.array_bits + doublings;
        let arrays = (counted >> array_bits) - (1 << self.stride_bits);
        ArraySpot {
            array: (u64::from(doublings) << self.stride_bits) + arrays,
            within: counted & ((1 << array_bits) - 1),
        }
    }

    /// How many segments an array has.
    pub(super) fn segments(&self, array: u64) -> u64 {
        1 << (u64::from(self.array_bits) + (array >> self.stride_bits))
    }

    /// Bytes of an array.
    pub(super) fn array_bytes(&self, array: u64) -> u64 {
        self.segments(array) * self.shape.segment_bytes()
    }
}

impl<M: Medium> DashLh<M> {
    /// Where the directory names an array.
    #[inline]
    pub(super) fn entry(&self, array: u64) -> Off {
        self.directory.plus(array * WORD as u64)
    }

    /// Where an array is; null if there is none.
    #[inline]
    pub(super) fn array(&self, array: u64) -> Off {
        Off(self.ground.medium().load(self.entry(array)))
    }

    /// Where the segment of a number is, if its array is there.
    #[inline]
    pub(super) fn segment(&self, number: u64) -> Off {
        let spot = self.config.spot(number);
        let bytes = self.config.shape.segment_bytes();
        self.array(spot.array).plus(spot.within * bytes)
    }

    /// Tells of each array: its number, where it is.
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
        for config in [Config::small(), Config::paper(1 << 16)] {
            let mut expected = ArraySpot {
                array: 0,
                within: 0,
            };
            for number in 0..5_000 {
                assert_eq!(config.spot(number), expected, "{number}");
                expected.within += 1;
                if expected.within == config.segments(expected.array) {
                    expected.array += 1;
                    expected.within = 0;
                }
            }
        }
        let paper = Config::paper(1 << 16);
        let sizes = [0, 7, 8, 16].map(|array| paper.segments(array));
        assert_eq!(sizes, [64, 64, 128, 256]);
    }

    #[test]
    fn a_split_moves_keys_to_the_new_segment_only() {
        let mut state = State { bits: 1, next: 0 };
        for _ in 0..100 {
            let after = state.after();
            assert_eq!(after.count(), state.count() + 1);
            assert_eq!(State::of(after.word()), after);
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
