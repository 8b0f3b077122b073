//! The byte layout of slots, buckets and levels.

use farbank_pm::simd::upper_halves_equal;
use farbank_pm::{Medium, Off, WORD};

use super::{Clevel, ClevelConfig};
use crate::error::{IndexError, OpenError};
pub(super) use crate::pool_heap::BucketRun as Level;
use crate::pool_heap::{BlockClass, CONFIG_WORDS};

/// Number of the root's word for the present levels.
pub(super) const META: u64 = 0;
/// Number of the root's word for the bucket that is being emptied.
pub(super) const CURSOR: u64 = 1;
/// Number of the root's first word for levels.
const LEVELS_AT: u64 = 2;
/// Maximum number of levels: the other words of the root's first line.
pub(super) const LEVELS: u64 = 6;
/// Maximum size of a level: 2^TOP_BITS_MAX buckets would not fit into any pool.
pub(super) const TOP_BITS_MAX: u32 = 40;
/// Block class of pairs.
pub(super) const PAIR: usize = 0;
/// Bytes of a pair: a key and its value.
pub(super) const PAIR_BYTES: u64 = 16;
/// The value of an empty slot.
pub(super) const EMPTY: u64 = 0;

const MULTIPLIER: u64 = 0xc6a4_a793_5bd1_e995;
const TAG_SHIFT: u32 = 48;
const CURSOR_BITS: u32 = 48;

/// The present levels, as the root's word encodes them: the number of the bottom level, and the number of levels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LevelsWord {
    pub(super) bottom: u64,
    pub(super) count: u64,
}

impl LevelsWord {
    pub(super) fn of(word: u64) -> LevelsWord {
        LevelsWord {
            bottom: word >> 8,
            count: word & 0xff,
        }
    }

    pub(super) fn word(self) -> u64 {
        self.bottom << 8 | self.count
    }

    /// Returns the levels' numbers, bottom first.
    pub(super) fn levels(self) -> std::ops::Range<u64> {
        self.bottom..self.bottom + self.count
    }

    /// Returns whether the bottom level is being emptied.
    pub(super) fn is_resizing(self) -> bool {
        self.count > 2
    }
}

/// Encodes the cursor: the bucket of the bottom level that is being emptied, with the level's number. A cursor with
/// another level's number means bucket 0.
pub(super) fn cursor(bottom: u64, bucket: u64) -> u64 {
    bottom << CURSOR_BITS | bucket
}

/// Returns the bucket of a cursor's word.
pub(super) fn bucket_in(word: u64, bottom: u64) -> u64 {
    let bucket = word & ((1 << CURSOR_BITS) - 1);
    if word >> CURSOR_BITS == bottom {
        bucket
    } else {
        0
    }
}

/// Returns the tag of a slot's word.
#[inline]
pub(super) fn tag_in(word: u64) -> u64 {
    word >> TAG_SHIFT
}

/// Returns the offset of the pair of a slot's word.
#[inline]
pub(super) fn pair_in(word: u64) -> Off {
    Off(word & ((1 << TAG_SHIFT) - 1))
}

/// Returns the offset of a pair's value. The key is at the pair's start.
pub(super) fn value_of(pair: Off) -> Off {
    pair.plus(WORD as u64)
}

/// Returns the number of the root's word for level `n`.
pub(super) fn level_root(n: u64) -> u64 {
    LEVELS_AT + n % LEVELS
}

impl ClevelConfig {
    pub(super) fn bucket_bytes(&self) -> u64 {
        u64::from(self.slots) * WORD as u64
    }

    pub(super) fn classes() -> [BlockClass; 1] {
        [BlockClass {
            block_bytes: PAIR_BYTES,
            align: PAIR_BYTES,
        }]
    }

    pub(super) fn words(&self) -> [u64; 4] {
        let ClevelConfig {
            slots,
            top_bits,
            tag_bits,
            early_reads,
        } = *self;
        [slots, top_bits, tag_bits, u32::from(early_reads)].map(u64::from)
    }

    pub(super) fn of(words: &[u64; CONFIG_WORDS]) -> Result<ClevelConfig, OpenError> {
        let small = |word: u64| u32::try_from(word).unwrap_or(u32::MAX);
        let config = ClevelConfig {
            slots: small(words[0]),
            top_bits: small(words[1]),
            tag_bits: small(words[2]),
            early_reads: words[3] == 1,
        };
        config.check()?;
        Ok(config)
    }

    pub(super) fn check(&self) -> Result<(), OpenError> {
        // A bucket lies within a line, so that one flush is enough.
        let sound = [1, 2, 4, 8].contains(&self.slots)
            && (2..=TOP_BITS_MAX).contains(&self.top_bits)
            && (1..=16).contains(&self.tag_bits);
        sound.then_some(()).ok_or_else(|| OpenError::Damaged {
            what: format!("{self:?} is no valid configuration of a table"),
        })
    }
}

impl<M: Medium> Clevel<M> {
    pub(super) fn level_bytes(&self, bits: u32) -> u64 {
        self.config.bucket_bytes() << bits
    }

    /// Returns the tag of a hash: its top bits.
    #[inline]
    pub(super) fn tag_of(&self, hash: u64) -> u64 {
        hash >> (u64::BITS - self.config.tag_bits)
    }

    /// Returns the word of a slot for the pair at `at`.
    pub(super) fn slot_word(&self, at: Off, hash: u64) -> u64 {
        at.0 | self.tag_of(hash) << TAG_SHIFT
    }

    /// Returns the buckets of a hash, one in each half. The second is computed from the first and the tag.
    #[inline]
    pub(super) fn buckets_of(&self, level: Level, hash: u64) -> [u64; 2] {
        let half = level.buckets() / 2;
        let first = hash & (half - 1);
        let second = (first ^ self.tag_of(hash).wrapping_mul(MULTIPLIER)) & (half - 1);
        [first, second + half]
    }

    /// Returns the offset of bucket `n` of a level.
    #[inline]
    pub(super) fn bucket(&self, level: Level, n: u64) -> Off {
        level.at.plus(n * self.config.bucket_bytes())
    }

    /// Returns the mask of the slots of a bucket with this tag. Empty slots have tag 0.
    #[inline(always)]
    pub(super) fn tagged(&self, bucket: Off, tag: u64) -> u64 {
        const PAPER: u32 = 8;
        let medium = self.table_pool.medium();
        if self.config.slots == PAPER {
            const HALF: u32 = u32::BITS;
            let words: [u64; PAPER as usize] = medium.load_words(bucket, 1);
            let [tag, mask] = [tag, u64::MAX].map(|tag| (tag << TAG_SHIFT >> HALF) as u32);
            return upper_halves_equal(words, tag, mask);
        }
        let mut found = 0;
        for n in 0..u64::from(self.config.slots) {
            let word = medium.load(bucket.plus(n * WORD as u64));
            found |= u64::from(tag_in(word) == tag) << n;
        }
        found
    }

    /// Returns the slots of a bucket.
    #[inline]
    pub(super) fn slots(&self, level: Level, bucket: u64) -> impl Iterator<Item = Off> + use<M> {
        let at = self.bucket(level, bucket);
        (0..u64::from(self.config.slots)).map(move |n| at.plus(n * WORD as u64))
    }

    /// Returns the slots of a level in which a key of `hash` may be.
    #[inline]
    pub(super) fn slots_of(&self, level: Level, hash: u64) -> impl Iterator<Item = Off> {
        let buckets = self.buckets_of(level, hash).into_iter();
        buckets.flat_map(move |bucket| self.slots(level, bucket))
    }

    /// Calls `each` with the level, offset and word of every slot in use.
    pub(super) fn each_taken(
        &self,
        mut each: impl FnMut(Level, Off, u64) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        for n in self.meta().levels() {
            let level = self.level(n);
            for bucket in 0..level.buckets() {
                for slot in self.slots(level, bucket) {
                    let word = self.table_pool.medium().load(slot);
                    if word != EMPTY {
                        each(level, slot, word)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns whether `pair` can be the offset of a pair.
    #[inline]
    pub(super) fn is_pair(&self, pair: Off) -> bool {
        pair.0.is_multiple_of(PAIR_BYTES) && pair.0 + PAIR_BYTES <= self.table_pool.medium().len()
    }

    /// Returns the pair of the slot at `slot`, whose word is `word`. Fails if the offset cannot be that of a pair (IX-CLEVEL-8).
    #[inline]
    pub(super) fn pair_of(&self, slot: Off, word: u64) -> Result<Off, IndexError> {
        let pair = pair_in(word);
        if self.is_pair(pair) {
            return Ok(pair);
        }
        Err(IndexError::damaged(format!(
            "the slot at {slot:?} is {word:#x} and leads to {pair:?}, expected a pair: an offset in the pool, a multiple of \
             {PAIR_BYTES}"
        )))
    }
}
