//! The byte layout of a segment.

use farbank_pm::{LINE, Medium, Off, WORD};

use super::{Cceh, CcehConfig};
use crate::bits::match_mask;
use crate::error::OpenError;
use crate::extendible::{DEPTH_MAX, SegmentHeader};
use crate::pool_heap::{BlockClass, CONFIG_WORDS};

/// The key that means an empty slot.
pub(super) const EMPTY: u64 = 0;

const SLOT: u64 = 16;
const SLOTS_A_LINE: u64 = LINE as u64 / SLOT;

impl CcehConfig {
    pub(super) fn slots(&self) -> u64 {
        SLOTS_A_LINE << self.bucket_bits
    }

    /// Bytes in a segment, its header's line included.
    pub(super) fn segment_bytes(&self) -> u64 {
        LINE as u64 + ((LINE as u64) << self.bucket_bits)
    }

    pub(super) fn classes(&self) -> [BlockClass; 1] {
        [BlockClass {
            block_bytes: self.segment_bytes(),
            align: LINE as u64,
        }]
    }

    pub(super) fn words(&self) -> [u64; 5] {
        let CcehConfig {
            bucket_bits,
            probe_lines,
            depth,
            far_locks,
            early_reads,
        } = *self;
        let [far_locks, early_reads] = [far_locks, early_reads].map(u32::from);
        [bucket_bits, probe_lines, depth, far_locks, early_reads].map(u64::from)
    }

    pub(super) fn of(words: &[u64; CONFIG_WORDS]) -> Result<CcehConfig, OpenError> {
        let small = |word: u64| u32::try_from(word).unwrap_or(u32::MAX);
        let config = CcehConfig {
            bucket_bits: small(words[0]),
            probe_lines: small(words[1]),
            depth: small(words[2]),
            far_locks: words[3] == 1,
            early_reads: words[4] == 1,
        };
        config.check()?;
        Ok(config)
    }

    pub(super) fn check(&self) -> Result<(), OpenError> {
        let sound = self.bucket_bits <= 16
            && (1..=1 << self.bucket_bits).contains(&self.probe_lines)
            && (1..=DEPTH_MAX).contains(&self.depth);
        sound.then_some(()).ok_or_else(|| OpenError::Damaged {
            what: format!("{self:?} is no valid configuration of a table"),
        })
    }
}

impl<M: Medium> Cceh<M> {
    #[inline]
    pub(super) fn header(&self, segment: Off) -> SegmentHeader {
        SegmentHeader::at(self.table_pool.medium(), segment)
    }

    /// Returns the offset of the word that holds the lock in the published code.
    pub(super) fn lock_word(segment: Off) -> Off {
        segment.plus(WORD as u64)
    }

    /// Returns the offset of slot `n` of a segment.
    #[inline]
    pub(super) fn slot(segment: Off, n: u64) -> Off {
        segment.plus(LINE as u64 + n * SLOT)
    }

    /// Returns the offset of the home bucket of a hash.
    #[inline]
    pub(super) fn home(&self, segment: Off, hash: u64) -> Off {
        let bucket = hash & ((1 << self.config.bucket_bits) - 1);
        Self::slot(segment, bucket * SLOTS_A_LINE)
    }

    /// Returns the buckets that may hold keys with this hash, in probe order.
    #[inline]
    pub(super) fn buckets_of(&self, segment: Off, hash: u64) -> impl Iterator<Item = Off> + use<M> {
        let mask = (1 << self.config.bucket_bits) - 1;
        (0..u64::from(self.config.probe_lines))
            .map(move |line| Self::slot(segment, (hash.wrapping_add(line) & mask) * SLOTS_A_LINE))
    }

    /// Returns the keys of a bucket.
    #[inline]
    pub(super) fn keys_of(&self, bucket: Off) -> [u64; SLOTS_A_LINE as usize] {
        self.table_pool.medium().load_words(bucket, 2)
    }

    /// Finds the slot of `key`: searches the home bucket, then the others.
    #[inline(always)]
    pub(super) fn find(&self, segment: Off, hash: u64, key: u64) -> Option<Off> {
        const PAPER: u32 = 4;
        const OTHERS: usize = (PAPER as usize - 1) * SLOTS_A_LINE as usize;
        let is_it = |there| there == key;
        let home = self.home(segment, hash);
        let at_home = first_slot(home, self.keys_of(home), is_it);
        if at_home.is_some() {
            return at_home;
        }
        let mask = (1 << self.config.bucket_bits) - 1;
        if self.config.probe_lines == PAPER && (hash & mask) + u64::from(PAPER) <= mask + 1 {
            let next = home.plus(LINE as u64);
            let keys: [u64; OTHERS] = self.table_pool.medium().load_words(next, 2);
            return first_slot(next, keys, is_it);
        }
        let mut others = self.buckets_of(segment, hash).skip(1);
        others.find_map(|bucket| first_slot(bucket, self.keys_of(bucket), is_it))
    }

    /// Calls `each` with the slot, key and value of each live slot.
    pub(super) fn each_live(&self, segment: Off, mut each: impl FnMut(Off, u64, u64)) {
        let medium = self.table_pool.medium();
        let header = self.header(segment);
        // One prefetch of the whole segment, not one per line.
        medium.prefetch(segment, self.config.segment_bytes() as usize);
        for bucket in 0..1 << self.config.bucket_bits {
            let bucket = Self::slot(segment, bucket * SLOTS_A_LINE);
            for (n, key) in (0..).zip(self.keys_of(bucket)) {
                if key != EMPTY && header.owns(self.table_pool.hash(key)) {
                    let slot = bucket.plus(n * SLOT);
                    each(slot, key, medium.load(value_of(slot)));
                }
            }
        }
    }
}

/// Returns the first slot, from `bucket` on, whose key satisfies `holds`.
#[inline]
pub(super) fn first_slot<const N: usize>(
    bucket: Off,
    keys: [u64; N],
    holds: impl Fn(u64) -> bool,
) -> Option<Off> {
    let found = match_mask(keys, holds);
    (found != 0).then(|| bucket.plus(u64::from(found.trailing_zeros()) * SLOT))
}

/// Returns the offset of a slot's value. The key is at the slot's start.
#[inline]
pub(super) fn value_of(slot: Off) -> Off {
    slot.plus(WORD as u64)
}
