//! Hash functions of the tables. Each is a bijection on words and can be inverted.
//!
//! The published function is libstdc++'s `_Hash_bytes` of a key's eight bytes, bit for bit, a 64-bit variant of
//! MurmurHash 2. Load factors and growth depend on the hash, so published figures can be reproduced only with the same
//! bits. The function has no secret: a client that chooses keys can make all of them collide.
//!
//! A seeded function has the same steps. Its constants are derived from a seed that the table stores, so a client
//! cannot choose colliding keys without the seed. The last step multiplies by an odd constant of the seed, which is a
//! universal family for the top bits (Dietzfelbinger et al., J. Algorithms '97): for a random seed, any two keys agree
//! in their top n bits with a probability of at most 2 / 2^n.

use std::num::NonZeroU64;

/// Start value of the published hash.
pub const SEED: u64 = 0x00c7_0697;

const MULTIPLIER: u64 = 0xc6a4_a793_5bd1_e995;

/// The hash function of a new table. The table stores it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hashing {
    /// Seeded from the random id of the table's pool, so that tables differ.
    #[default]
    Random,
    /// Seeded with this number: tables with the same seed place the same keys alike.
    Seeded(NonZeroU64),
    /// The published function, which has no secret: for figures that are compared with published ones.
    Published,
}

/// A hash function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hasher {
    start: u64,
    multipliers: [u64; 4],
}

#[inline]
const fn mix(word: u64) -> u64 {
    word ^ (word >> 47)
}

/// Returns the multiplicative inverse of an odd number modulo 2^64.
const fn inverse(odd: u64) -> u64 {
    // Newton's method. The start is correct in the low 3 bits; each step doubles the correct bits.
    let mut found = odd;
    let mut right = 3;
    while right < u64::BITS {
        found = found.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(found)));
        right *= 2;
    }
    found
}

/// Returns the `n`th number derived from a seed (SplitMix64).
const fn drawn(seed: u64, n: u64) -> u64 {
    let word = seed.wrapping_add((n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Hashing {
    /// Returns the word that a table in the pool with id `pool` stores: its seed, or 0 for the published hash.
    pub(crate) fn word(self, pool: [u8; 16]) -> u64 {
        match self {
            Hashing::Published => 0,
            Hashing::Seeded(seed) => seed.get(),
            Hashing::Random => {
                let halves = u128::from_le_bytes(pool);
                let seed = drawn(halves as u64, 0) ^ (halves >> 64) as u64;
                seed.max(1) // 0 means the published hash
            }
        }
    }
}

impl Hasher {
    /// The published hash function.
    pub const PUBLISHED: Hasher = Hasher::published(SEED);

    /// Returns the published function with another start value. Published tables with two hashes use two.
    #[must_use]
    pub const fn published(start: u64) -> Hasher {
        Hasher {
            start: start ^ 8_u64.wrapping_mul(MULTIPLIER),
            multipliers: [MULTIPLIER; 4],
        }
    }

    /// Returns the hash function of a seed.
    #[must_use]
    pub fn seeded(seed: NonZeroU64) -> Hasher {
        let seed = seed.get();
        Hasher {
            start: drawn(seed, 0),
            multipliers: [1, 2, 3, 4].map(|n| drawn(seed, n) | 1),
        }
    }

    /// Returns the two hash functions of a table that uses two. The first is [`Hasher::seeded`].
    #[must_use]
    pub fn pair(seed: NonZeroU64) -> [Hasher; 2] {
        let other = NonZeroU64::new(drawn(seed.get(), 5)).unwrap_or(seed);
        [seed, other].map(Hasher::seeded)
    }

    /// Returns the two hash functions for a stored seed. For 0 they are the published ones with these start values.
    pub(crate) fn of_word(word: u64, starts: [u64; 2]) -> [Hasher; 2] {
        match NonZeroU64::new(word) {
            None => starts.map(Hasher::published),
            Some(seed) => Hasher::pair(seed),
        }
    }

    /// Returns the hash of `key`.
    #[inline]
    #[must_use]
    pub const fn hash(&self, key: u64) -> u64 {
        let [first, second, third, last] = self.multipliers;
        let data = mix(key.wrapping_mul(first)).wrapping_mul(second);
        let joined = (self.start ^ data).wrapping_mul(third);
        mix(mix(joined).wrapping_mul(last))
    }

    /// Returns the only key whose hash is `hash`. Every step of the hash can be inverted.
    #[must_use]
    pub const fn key_of(&self, hash: u64) -> u64 {
        let [first, second, third, last] = self.multipliers;
        let joined = mix(mix(hash).wrapping_mul(inverse(last)));
        let data = joined.wrapping_mul(inverse(third)) ^ self.start;
        mix(data.wrapping_mul(inverse(second))).wrapping_mul(inverse(first))
    }
}

/// Returns the published hash of `key`.
#[inline]
#[must_use]
pub const fn hash(key: u64) -> u64 {
    Hasher::PUBLISHED.hash(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeded(seed: u64) -> Hasher {
        Hasher::seeded(NonZeroU64::new(seed).unwrap())
    }

    #[test]
    fn the_published_hash_equals_that_of_libstdcxx() {
        // Printed by a C++ program that called std::_Hash_bytes(&key, 8, seed).
        for (seed, key, bits) in KNOWN {
            let hash = Hasher::published(seed).hash(key);
            assert_eq!(hash, bits, "seed {seed:#x}, key {key:#x}");
        }
    }

    #[test]
    fn inverting_a_hash_returns_its_key() {
        for hasher in [Hasher::PUBLISHED, seeded(1), seeded(2)] {
            for key in (0..1000).chain([u64::MAX, 1 << 63, 0x0123_4567_89ab_cdef]) {
                assert_eq!(hasher.key_of(hasher.hash(key)), key, "{hasher:?}, {key:#x}");
            }
        }
    }

    /// A seed's constants depend on its number alone, so a reopened table finds its keys.
    #[test]
    fn a_seed_stands_for_one_hash_function_in_every_version() {
        let hashes = [1, u64::MAX].map(|seed| seeded(seed).hash(0x2a));
        assert_eq!(hashes, SEEDED, "{hashes:x?}");
    }

    /// Covers keys that the published hash maps to one bucket, and keys that differ only in their top bits.
    #[test]
    fn keys_chosen_against_the_published_hash_are_spread_by_a_seeded_one() {
        let alike = |n: u64| Hasher::PUBLISHED.key_of(n << 8);
        let keys: [(&str, &dyn Fn(u64) -> u64); 2] =
            [("alike", &alike), ("top bits", &|n| n << 52)];
        for seed in 1..=20 {
            let hasher = seeded(seed);
            for (name, key) in keys {
                let (mut high, mut low) = ([0; 256], [0; 256]);
                for hash in (0..4096).map(|n| hasher.hash(key(n))) {
                    high[(hash >> 56) as usize] += 1;
                    low[(hash & 0xff) as usize] += 1;
                }
                let most = high.iter().chain(&low).max();
                assert!(
                    most < Some(&64),
                    "{name}, seed {seed}: {most:?} of 4096 in 1 of 256"
                );
            }
        }
    }

    const SEEDED: [u64; 2] = [0x8c57_de85_b3ff_c263, 0x8c0a_de76_8b8d_115a];

    const KNOWN: [(u64, u64, u64); 10] = [
        (0x00c7_0697, 0, 0xc7e8_34df_e977_8643),
        (0x00c7_0697, 0x1, 0x5933_8fd0_956c_55bd),
        (0x00c7_0697, 0x2a, 0x4c60_d113_42c3_8e05),
        (0x00c7_0697, 0xdead_beef_cafe_babe, 0x0ac1_2c04_7b6b_ffa1),
        (0x00c7_0697, 0xffff_ffff_ffff_ffff, 0x0f8d_cb17_72df_2c17),
        (0x1234_5678_90ab_cdef, 0, 0x846d_1d26_f550_402e),
        (0x1234_5678_90ab_cdef, 0x1, 0xe29f_f717_8e63_9d68),
        (0x1234_5678_90ab_cdef, 0x2a, 0x4700_f2fb_0f8b_91c2),
        (
            0x1234_5678_90ab_cdef,
            0xdead_beef_cafe_babe,
            0x565a_e171_987e_cc97,
        ),
        (
            0x1234_5678_90ab_cdef,
            0xffff_ffff_ffff_ffff,
            0x50d0_d17b_1d90_a6b7,
        ),
    ];
}
