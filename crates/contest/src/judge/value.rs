//! Self-identifying keys and values.
//!
//! ```text
//!   key    │ mix(id) │ mix of that │           16 bytes; different ids have different keys
//!   value  │ id │ version, length │ stamp │ stamp + g │ stamp + 2g │ ...  cut off at the length
//! ```
//!
//! The stamp is a hash of the seed and the words before it. So no part of a value equals a part of another key's
//! value, or of another version of the same key. A check compares every byte that was read.

use std::fmt;

use farbank_pm::rng::Rng;

use crate::{KEY_BYTES, Key};

/// Shortest value in bytes: id, version, length and stamp.
pub const VALUE_BYTES_MIN: usize = 24;
/// Difference between neighbouring words of a value. It is odd, so the words differ for 2^64 words.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Generator of the keys and values of one seed.
#[derive(Clone, Copy, Debug)]
pub struct KeyNames {
    salt: u64,
}

/// Reason why an answer is wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum WrongAnswer {
    /// The key exists but was not found.
    Missing,
    /// An old value, whose replacement was acknowledged.
    Stale,
    /// A value that was not written yet.
    Early,
    /// The value has another length than the stored one.
    Length,
    /// A value of another key.
    Key,
    /// A value that was never stored.
    Torn,
}

impl WrongAnswer {
    /// All variants.
    pub const ALL: [WrongAnswer; 6] = [
        WrongAnswer::Missing,
        WrongAnswer::Stale,
        WrongAnswer::Early,
        WrongAnswer::Length,
        WrongAnswer::Key,
        WrongAnswer::Torn,
    ];

    /// Returns the name used in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            WrongAnswer::Missing => "keys not found",
            WrongAnswer::Stale => "values out of date",
            WrongAnswer::Early => "values not written yet",
            WrongAnswer::Length => "lengths wrong",
            WrongAnswer::Key => "values of another key",
            WrongAnswer::Torn => "values torn",
        }
    }
}

impl fmt::Display for WrongAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl KeyNames {
    /// Creates the generator of a seed.
    #[must_use]
    pub fn new(seed: u64) -> KeyNames {
        KeyNames {
            salt: Rng::new(seed).fork(0x6b65_7973).draw(),
        }
    }

    /// Returns the key with this number. Both halves are invertible functions of the number.
    #[must_use]
    pub fn key(&self, id: u64) -> Key {
        let first = Rng::new(id ^ self.salt).draw();
        let second = Rng::new(!first).draw();
        let mut key = [0; KEY_BYTES];
        key[..8].copy_from_slice(&first.to_le_bytes());
        key[8..].copy_from_slice(&second.to_le_bytes());
        key
    }

    fn stamp(&self, id: u64, what: u64) -> u64 {
        Rng::new(self.salt ^ id.wrapping_mul(GOLDEN) ^ Rng::new(what).draw()).draw()
    }

    /// Appends the value of a version, with `bytes` bytes, to `out`.
    pub fn value(&self, id: u64, version: u32, bytes: usize, out: &mut Vec<u8>) {
        let what = u64::from(version) << 32 | bytes as u64;
        let mut word = self.stamp(id, what);
        let end = out.len() + bytes;
        out.reserve(bytes + 8);
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(&what.to_le_bytes());
        while out.len() < end {
            out.extend_from_slice(&word.to_le_bytes());
            word = word.wrapping_add(GOLDEN);
        }
        out.truncate(end);
    }

    /// Returns the version of a value that was read under the key `id`, after comparing every byte.
    ///
    /// # Errors
    /// The kind of [`WrongAnswer`], if the value is not one of this key.
    pub fn version(&self, id: u64, value: &[u8]) -> Result<u32, WrongAnswer> {
        let Some((head, rest)) = value.split_at_checked(16) else {
            return Err(WrongAnswer::Length);
        };
        let [of, what] = [&head[..8], &head[8..]]
            .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
        let mut word = self.stamp(of, what);
        let mut words = rest.chunks_exact(8);
        for found in &mut words {
            if found != word.to_le_bytes() {
                return Err(WrongAnswer::Torn);
            }
            word = word.wrapping_add(GOLDEN);
        }
        let tail = words.remainder();
        if *tail != word.to_le_bytes()[..tail.len()] {
            Err(WrongAnswer::Torn)
        } else if what & 0xffff_ffff != value.len() as u64 {
            Err(WrongAnswer::Length)
        } else if of != id {
            Err(WrongAnswer::Key)
        } else {
            Ok((what >> 32) as u32)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn value(names: &KeyNames, id: u64, version: u32, bytes: usize) -> Vec<u8> {
        let mut out = Vec::new();
        names.value(id, version, bytes, &mut out);
        assert_eq!(out.len(), bytes);
        out
    }

    #[test]
    fn keys_spread_evenly_over_hash_chains() {
        let names = KeyNames::new(1);
        let keys: HashSet<Key> = (0..100_000).map(|id| names.key(id)).collect();
        assert_eq!(keys.len(), 100_000);
        let chains: HashSet<u16> = (0..100_000)
            .map(|id| u16::from_le_bytes([names.key(id)[0], names.key(id)[1]]))
            .collect();
        // With 100,000 keys in 65,536 chains, a share of e^-1.526 of the chains is empty.
        assert!((50_500..52_000).contains(&chains.len()), "{}", chains.len());
        assert_ne!(KeyNames::new(2).key(7), names.key(7));
    }

    #[test]
    fn a_value_is_recognised_and_any_wrong_byte_is_detected() {
        let names = KeyNames::new(1);
        for bytes in [80, 81, 87, 128, 1024] {
            let good = value(&names, 5, 9, bytes);
            assert_eq!(names.version(5, &good), Ok(9));
            assert_eq!(names.version(6, &good), Err(WrongAnswer::Key));
            assert_eq!(
                names.version(5, &good[..bytes - 1]),
                Err(WrongAnswer::Length)
            );
            for at in 0..bytes {
                let mut bad = good.clone();
                bad[at] ^= 0x10;
                assert_eq!(names.version(5, &bad), Err(WrongAnswer::Torn), "byte {at}");
            }
        }
        assert_eq!(names.version(5, &[]), Err(WrongAnswer::Length));
    }

    #[test]
    fn two_versions_spliced_at_any_word_are_torn() {
        let names = KeyNames::new(1);
        let (old, new) = (value(&names, 5, 1, 200), value(&names, 5, 2, 200));
        for at in (8..200).step_by(8).filter(|at| *at != 8) {
            let mut mixed = new.clone();
            mixed[at..].copy_from_slice(&old[at..]);
            assert_eq!(
                names.version(5, &mixed),
                Err(WrongAnswer::Torn),
                "from byte {at}"
            );
        }
    }
}
