//! The hash of keys that clients choose: SipHash-1-3 under a secret key.
//!
//! ```text
//!   id of the pool ──XXH3──▶ 128-bit key ─┐
//!   key ──────────────────────────────────┴─▶ SipHash-1-3 ─┐
//!   area (a database) × secret odd number ─────────────────┴─ xor ─▶ hash
//! ```
//!
//! A client that does not know the pool's id cannot find keys that collide, however many hashes of other keys it has
//! inferred. An XXH3 hash with a secret seed does not have this property.
//!
//! # Invariants
//! PM-HASH-1  The hash of a key is the same whenever a pool is opened: snapshots of an index keep bits of it.
//! PM-HASH-2  In one area, two keys have equal hashes exactly if their SipHash-1-3 values are equal: the area is mixed
//!     into that value by a bijection.

use siphasher::sip::SipHasher13;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A keyed hash function of keys. See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct KeyHash {
    sip: SipHasher13,
    /// An odd, secret number. Areas are multiplied by it.
    area_factor: u64,
}

impl KeyHash {
    /// Returns the hash function of the pool with this id, which is 16 secret, random bytes.
    pub fn of_pool(id: &[u8; 16]) -> KeyHash {
        let [low, high, factor] = [2, 3, 4].map(|seed| xxh3_64_with_seed(id, seed));
        KeyHash {
            sip: SipHasher13::new_with_keys(low, high),
            area_factor: factor | 1,
        }
    }

    /// Returns the hash of `key` in `area`, a database for example.
    ///
    /// ```
    /// use farbank_pm::key_hash::KeyHash;
    ///
    /// let hash = KeyHash::of_pool(&[7; 16]);
    /// assert_eq!(hash.hash(0, b"key"), hash.hash(0, b"key"));
    /// assert_ne!(hash.hash(0, b"key"), hash.hash(1, b"key"));
    /// ```
    #[inline]
    pub fn hash(&self, area: u32, key: &[u8]) -> u64 {
        self.sip.hash(key) ^ u64::from(area).wrapping_mul(self.area_factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_siphash_1_3_under_keys_derived_from_the_id() {
        let id: [u8; 16] = std::array::from_fn(|byte| byte as u8);
        let hash = KeyHash::of_pool(&id);
        let sip = SipHasher13::new_with_keys(xxh3_64_with_seed(&id, 2), xxh3_64_with_seed(&id, 3));
        assert_eq!(hash.hash(0, b"key"), sip.hash(b"key"));
        let factor = xxh3_64_with_seed(&id, 4) | 1;
        assert_eq!(
            hash.hash(15, b"key"),
            sip.hash(b"key") ^ factor.wrapping_mul(15)
        );
    }

    #[test]
    fn keys_have_other_hashes_under_another_id() {
        let [one, other] = [[1; 16], [2; 16]].map(|id| KeyHash::of_pool(&id));
        for key in [&b""[..], b"k", b"a longer key than a word"] {
            assert_ne!(one.hash(0, key), other.hash(0, key));
        }
    }
}
