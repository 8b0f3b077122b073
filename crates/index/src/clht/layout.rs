//! The byte layout of a bucket and of the array.

use farbank_pm::{LINE, Medium, Off, WORD};

use super::{Clht, ClhtConfig};
use crate::bits::match_mask;
use crate::error::{IndexError, OpenError};
pub(super) use crate::pool_heap::BucketRun as Array;
use crate::pool_heap::{BlockClass, CONFIG_WORDS, HeapBlock};

/// The key that means an empty slot.
pub(super) const EMPTY: u64 = 0;
/// Number of the root's word for the array. It shares a line with the next two.
pub(super) const ARRAY: u64 = 0;
/// Number of the root's word for the array that is being built.
pub(super) const YOUNG: u64 = 1;
/// Number of the root's word for the array that is being replaced.
pub(super) const OLD: u64 = 2;
/// Block class of chained buckets.
pub(super) const CHAINED: usize = 0;
/// Slots of a bucket.
pub(super) const SLOTS: u64 = 3;
/// Maximum size of an array: 2^BITS_MAX buckets would not fit into any pool.
pub(super) const BITS_MAX: u32 = 40;

const BUCKET: u64 = LINE as u64;
const KEYS: u64 = WORD as u64;
const VALUES: u64 = KEYS + SLOTS * WORD as u64;
const NEXT: u64 = VALUES + SLOTS * WORD as u64;

impl Array {
    pub(super) fn bytes(self) -> u64 {
        self.buckets() * BUCKET
    }

    /// Returns the index of the bucket for a hash.
    #[inline]
    pub(super) fn index(self, hash: u64) -> u64 {
        hash & (self.buckets() - 1)
    }

    #[inline]
    pub(super) fn bucket(self, index: u64) -> Off {
        self.at.plus(index * BUCKET)
    }

    /// Returns whether `at` is one of its buckets.
    pub(super) fn has(self, at: Off) -> bool {
        let within = at.0.checked_sub(self.at.0);
        within.is_some_and(|within| within < self.bytes() && within.is_multiple_of(BUCKET))
    }
}

/// Returns the offset of slot `n`'s key.
#[inline]
pub(super) fn key_at(bucket: Off, n: u64) -> Off {
    bucket.plus(KEYS + n * WORD as u64)
}

/// Returns the offset of the first key of a bucket that satisfies `holds`.
#[inline]
pub(super) fn first_of(
    bucket: Off,
    keys: [u64; SLOTS as usize],
    holds: impl Fn(u64) -> bool,
) -> Option<Off> {
    let found = match_mask(keys, holds);
    (found != 0).then(|| key_at(bucket, u64::from(found.trailing_zeros())))
}

/// Returns the offset of the value for the key at `key`.
#[inline]
pub(super) fn value_of(key: Off) -> Off {
    key.plus(VALUES - KEYS)
}

/// Returns the offset of a bucket's word for the next bucket of its chain.
#[inline]
pub(super) fn next_of(bucket: Off) -> Off {
    bucket.plus(NEXT)
}

/// Returns the bytes of a bucket with these pairs, at most `SLOTS`.
pub(super) fn image(
    first: Off,
    pairs: impl IntoIterator<Item = (u64, u64)>,
    next: Off,
) -> [u8; LINE] {
    let mut image = [0; LINE];
    let mut put = |at: u64, word: u64| {
        image[at as usize..][..WORD].copy_from_slice(&word.to_le_bytes());
    };
    put(0, first.0);
    for (n, (key, value)) in (0..).zip(pairs) {
        let at = key_at(Off(0), n);
        put(at.0, key);
        put(value_of(at).0, value);
    }
    put(NEXT, next.0);
    image
}

impl ClhtConfig {
    /// Returns the bytes of the array that share one lock.
    pub(super) fn lock_bytes(&self) -> u64 {
        BUCKET << self.lock_bits
    }

    pub(super) fn classes() -> [BlockClass; 1] {
        [BlockClass {
            block_bytes: BUCKET,
            align: BUCKET,
        }]
    }

    pub(super) fn words(&self) -> [u64; 6] {
        let ClhtConfig {
            bits,
            chained_percent,
            growth_bits,
            lock_bits,
            far_locks,
            early_reads,
        } = *self;
        [
            bits,
            chained_percent,
            growth_bits,
            lock_bits,
            u32::from(far_locks),
            u32::from(early_reads),
        ]
        .map(u64::from)
    }

    pub(super) fn of(words: &[u64; CONFIG_WORDS]) -> Result<ClhtConfig, OpenError> {
        let small = |word: u64| u32::try_from(word).unwrap_or(u32::MAX);
        let config = ClhtConfig {
            bits: small(words[0]),
            chained_percent: small(words[1]),
            growth_bits: small(words[2]),
            lock_bits: small(words[3]),
            far_locks: words[4] == 1,
            early_reads: words[5] == 1,
        };
        config.check()?;
        Ok(config)
    }

    pub(super) fn check(&self) -> Result<(), OpenError> {
        let sound = (1..=BITS_MAX).contains(&self.bits)
            && (1..=10_000).contains(&self.chained_percent)
            && (1..=6).contains(&self.growth_bits)
            && self.lock_bits <= self.bits.min(5);
        sound.then_some(()).ok_or_else(|| OpenError::Damaged {
            what: format!("{self:?} is no valid configuration of a table"),
        })
    }
}

impl<M: Medium> Clht<M> {
    /// Returns the keys of a bucket.
    #[inline]
    pub(super) fn keys_of(&self, bucket: Off) -> [u64; SLOTS as usize] {
        self.table_pool.medium().load_words(key_at(bucket, 0), 1)
    }

    /// Calls `each` with every bucket of a chain, the array's bucket first.
    pub(super) fn each_bucket(&self, first: Off, mut each: impl FnMut(Off)) {
        let mut bucket = first;
        while !bucket.is_null() {
            each(bucket);
            bucket = Off(self.table_pool.medium().load(next_of(bucket)));
        }
    }

    /// Returns the buckets chained to the bucket at `first`. Checks that each is an allocated block that names this
    /// chain (IX-CLHT-8).
    pub(super) fn chain_of(&self, first: Off) -> Result<Vec<HeapBlock>, IndexError> {
        let medium = self.table_pool.medium();
        let referrer = "the bucket";
        let next = |at| Off(medium.load(next_of(at)));
        self.table_pool.chain((referrer, first), next(first), CHAINED, next, |block| {
            let says = Off(medium.load(block.at));
            if says == first && self.table_pool.is_block(block.at, CHAINED) {
                return Ok(());
            }
            Err(IndexError::damaged(format!(
                "{referrer} {first:?} leads to {:?}, expected an allocated bucket of its chain, found first bucket {says:?}",
                block.at
            )))
        })
    }

    /// Calls `each` with the bucket, key and value of each live slot of a chain.
    pub(super) fn each_live(&self, first: Off, mut each: impl FnMut(Off, u64, u64)) {
        let medium = self.table_pool.medium();
        self.each_bucket(first, |bucket| {
            for at in (0..SLOTS).map(|n| key_at(bucket, n)) {
                let key = medium.load(at);
                if key != EMPTY {
                    each(bucket, key, medium.load(value_of(at)));
                }
            }
        });
    }
}
