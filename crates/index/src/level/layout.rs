//! The byte layout of buckets and levels.

use farbank_pm::{LINE, Medium, Off, WORD};

use super::{LevelConfig, LevelHash};
use crate::bits::match_mask;
use crate::error::OpenError;
pub(super) use crate::pool_heap::BucketRun as Level;
use crate::pool_heap::CONFIG_WORDS;

/// Number of the root's word for the number of the top level. It shares a line with the words of the levels.
pub(super) const CURRENT: u64 = 0;
/// Number of the root's first word for levels.
const LEVELS_AT: u64 = 1;
/// Number of the root's words for levels: two are in use, a third may be in preparation.
pub(super) const RING: u64 = 4;
/// Maximum size of a level: 2^BITS_MAX buckets would not fit into any pool.
pub(super) const BITS_MAX: u32 = 40;
/// Bytes of a pair: a key and its value.
pub(super) const PAIR_BYTES: u64 = 16;
/// Position of the pairs in a bucket, after the word of tokens.
const PAIRS: u64 = WORD as u64;

/// The two hashes of a key, for the first and the second side of a level.
pub(super) type HashPair = [u64; 2];

impl Level {
    /// Returns the buckets of a side.
    #[inline]
    pub(super) fn half(self) -> u64 {
        self.buckets() / 2
    }

    /// Returns the index within a side of the bucket for a hash.
    #[inline]
    pub(super) fn side_index(self, hash: u64) -> u64 {
        hash & (self.half() - 1)
    }
}

/// The levels of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Levels {
    /// The number of the top level.
    pub(super) current: u64,
    pub(super) top: Level,
    pub(super) bottom: Level,
}

impl Levels {
    pub(super) fn both(self) -> [Level; 2] {
        [self.top, self.bottom]
    }
}

/// A slot for a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LevelSlot {
    pub(super) bucket: Off,
    pub(super) slot: u64,
}

impl LevelSlot {
    /// Returns the offset of its key.
    #[inline]
    pub(super) fn key(self) -> Off {
        self.bucket.plus(PAIRS + self.slot * PAIR_BYTES)
    }

    /// Returns the offset of its value.
    #[inline]
    pub(super) fn value(self) -> Off {
        self.key().plus(WORD as u64)
    }

    /// Returns whether its pair and its token share a line.
    #[inline]
    pub(super) fn is_one_line(self) -> bool {
        let line = LINE as u64;
        self.bucket.0 / line == (self.key().0 + PAIR_BYTES - 1) / line
    }
}

/// Returns the number of the root's word for level `n`.
pub(super) fn level_root(n: u64) -> u64 {
    LEVELS_AT + n % RING
}

impl LevelConfig {
    pub(super) fn words(&self) -> [u64; 7] {
        let LevelConfig {
            slots,
            bucket_bytes,
            token_bits,
            top_bits,
            seeds: [first, second],
            one_by_one,
        } = *self;
        let [slots, bucket_bytes, token_bits, top_bits, one_by_one] =
            [slots, bucket_bytes, token_bits, top_bits, one_by_one.into()].map(u64::from);
        [
            slots,
            bucket_bytes,
            token_bits,
            top_bits,
            first,
            second,
            one_by_one,
        ]
    }

    pub(super) fn of(words: &[u64; CONFIG_WORDS]) -> Result<LevelConfig, OpenError> {
        let small = |word: u64| u32::try_from(word).unwrap_or(u32::MAX);
        let config = LevelConfig {
            slots: small(words[0]),
            bucket_bytes: small(words[1]),
            token_bits: small(words[2]),
            top_bits: small(words[3]),
            seeds: [words[4], words[5]],
            one_by_one: words[6] == 1,
        };
        config.check()?;
        Ok(config)
    }

    pub(super) fn check(&self) -> Result<(), OpenError> {
        let sound = (1..=7).contains(&self.slots)
            && self.bucket_bytes.is_multiple_of(WORD as u32)
            && (PAIRS + u64::from(self.slots) * PAIR_BYTES..=256)
                .contains(&u64::from(self.bucket_bytes))
            && [1, 8].contains(&self.token_bits)
            && (2..=BITS_MAX).contains(&self.top_bits);
        sound.then_some(()).ok_or_else(|| OpenError::Damaged {
            what: format!("{self:?} is no valid configuration of a table"),
        })
    }

    pub(super) fn level_bytes(&self, bits: u32) -> u64 {
        u64::from(self.bucket_bytes) << bits
    }

    /// Returns the bit for slot `n` in a bucket's word of tokens.
    #[inline]
    pub(super) fn token(&self, n: u64) -> u64 {
        1 << (n * u64::from(self.token_bits))
    }

    /// Returns the bucket for a hash in one side of a level.
    #[inline]
    pub(super) fn bucket(&self, level: Level, side: usize, hash: u64) -> Off {
        let n = side as u64 * level.half() + level.side_index(hash);
        level.at.plus(n * u64::from(self.bucket_bytes))
    }

    /// Returns the buckets of a key: two of the top level, two of the bottom one.
    #[inline]
    pub(super) fn buckets(&self, levels: Levels, hashes: HashPair) -> [Off; 4] {
        let Levels { top, bottom, .. } = levels;
        [
            self.bucket(top, 0, hashes[0]),
            self.bucket(top, 1, hashes[1]),
            self.bucket(bottom, 0, hashes[0]),
            self.bucket(bottom, 1, hashes[1]),
        ]
    }

    /// Returns the slots of a bucket.
    #[inline]
    pub(super) fn spots(&self, bucket: Off) -> impl Iterator<Item = LevelSlot> + use<> {
        (0..u64::from(self.slots)).map(move |slot| LevelSlot { bucket, slot })
    }

    /// Returns the slot of `level` whose key is at `at`, if there is one.
    pub(super) fn spot_at(&self, level: Level, at: Off) -> Option<LevelSlot> {
        let bytes = u64::from(self.bucket_bytes);
        let within = at.0.checked_sub(level.at.0)?;
        let bucket = level.at.plus(within / bytes * bytes);
        let is_there = |spot: &LevelSlot| within / bytes < level.buckets() && spot.key() == at;
        self.spots(bucket).find(is_there)
    }
}

impl<M: Medium> LevelHash<M> {
    #[inline]
    pub(super) fn hashes(&self, key: u64) -> HashPair {
        let [first, second] = &self.hashers;
        [first.hash(key), second.hash(key)]
    }

    #[inline]
    pub(super) fn tokens(&self, bucket: Off) -> u64 {
        self.table_pool.medium().load(bucket)
    }

    /// Returns whether the slot holds a live pair.
    #[inline]
    pub(super) fn is_live(&self, spot: LevelSlot) -> bool {
        self.tokens(spot.bucket) & self.config.token(spot.slot) != 0
    }

    /// Returns the mask of the live slots of a bucket that hold `key`.
    #[inline(always)]
    pub(super) fn having(&self, bucket: Off, key: u64) -> u64 {
        const PAPER: u32 = 3;
        const STEP: usize = PAIR_BYTES as usize / WORD;
        let (medium, tokens) = (self.table_pool.medium(), self.tokens(bucket));
        if (self.config.slots, self.config.token_bits) == (PAPER, 1) {
            let first = LevelSlot { bucket, slot: 0 };
            let keys: [u64; PAPER as usize] = medium.load_words(first.key(), STEP);
            return match_mask(keys, |there| there == key) & tokens;
        }
        let mut found = 0;
        for spot in self.config.spots(bucket) {
            let live = tokens & self.config.token(spot.slot) != 0;
            found |= u64::from((medium.load(spot.key()) == key) & live) << spot.slot;
        }
        found
    }

    /// Reads the pair in a slot, live or not.
    #[inline]
    pub(super) fn pair(&self, spot: LevelSlot) -> (u64, u64) {
        let medium = self.table_pool.medium();
        (medium.load(spot.key()), medium.load(spot.value()))
    }

    /// Calls `each` with the level, side and slot of each live pair.
    pub(super) fn each_live(&self, mut each: impl FnMut(Level, usize, LevelSlot)) {
        for level in self.levels().both() {
            for side in 0..2 {
                for n in 0..level.half() {
                    let spots = self.config.spots(self.config.bucket(level, side, n));
                    spots
                        .filter(|spot| self.is_live(*spot))
                        .for_each(|spot| each(level, side, spot));
                }
            }
        }
    }
}
