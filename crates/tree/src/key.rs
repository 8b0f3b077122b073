//! Keys: byte strings in lexicographic order.
//!
//! All keys of a tree take the same number of bytes in its nodes, [`crate::NodeLayout::key_bytes`]. A shorter key is
//! padded with zeros, and equals the padded key. A number is encoded as its eight bytes, big-endian, so that keys have
//! the order of their numbers.

#![expect(
    clippy::big_endian_bytes,
    reason = "big-endian numbers have the order of their bytes"
)]

use std::fmt;
use std::sync::Arc;

/// Maximum bytes of a key: 1 KiB, and a length of two bytes.
pub const KEY_BYTES_MAX: usize = 1026;

/// A key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Key {
    /// Its first eight bytes.
    first: u64,
    /// The following bytes, up to the last nonzero one.
    rest: Option<Arc<[u8]>>,
}

impl Key {
    /// The least key.
    pub const LEAST: Key = Key {
        first: 0,
        rest: None,
    };

    /// Creates the key of `bytes`.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Key {
        let (first, rest) = bytes.split_at(bytes.len().min(8));
        let mut word = [0; 8];
        word[..first.len()].copy_from_slice(first);
        let end = rest.iter().rposition(|&byte| byte != 0);
        Key {
            first: u64::from_be_bytes(word),
            rest: end.map(|last| Arc::from(&rest[..=last])),
        }
    }

    /// Returns its first eight bytes as a number.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    pub(crate) fn from_first(first: [u8; 8]) -> Key {
        Key::from(u64::from_be_bytes(first))
    }

    pub(crate) fn first_bytes(&self) -> [u8; 8] {
        self.first.to_be_bytes()
    }

    /// Returns the number of bytes up to the last nonzero one.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.rest {
            Some(rest) => 8 + rest.len(),
            None => 8 - self.first.trailing_zeros() as usize / 8,
        }
    }

    /// Returns whether it is the least key, all of whose bytes are zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Key::LEAST
    }

    /// Returns the next greater key of `bytes` bytes, if there is one.
    pub(crate) fn next(&self, bytes: usize) -> Option<Key> {
        let mut all = vec![0; bytes];
        self.fill(&mut all);
        let last = all.iter().rposition(|&byte| byte < u8::MAX)?;
        all[last] += 1;
        all[last + 1..].fill(0);
        Some(Key::new(&all))
    }

    /// Returns the next smaller key of `bytes` bytes, or the key itself if it is the least.
    pub(crate) fn previous(&self, bytes: usize) -> Key {
        let mut all = vec![0; bytes];
        self.fill(&mut all);
        if let Some(last) = all.iter().rposition(|&byte| byte > 0) {
            all[last] -= 1;
            all[last + 1..].fill(u8::MAX);
        }
        Key::new(&all)
    }

    /// Writes its bytes to `to`, padded with zeros.
    ///
    /// # Panics
    /// If `to` has less than 8 bytes, or less than [`Key::len`].
    pub fn fill(&self, to: &mut [u8]) {
        to[..8].copy_from_slice(&self.first_bytes());
        let rest = self.rest.as_deref().unwrap_or_default();
        to[8..8 + rest.len()].copy_from_slice(rest);
        to[8 + rest.len()..].fill(0);
    }
}

impl From<u64> for Key {
    fn from(number: u64) -> Key {
        Key {
            first: number,
            rest: None,
        }
    }
}

impl From<&[u8]> for Key {
    fn from(bytes: &[u8]) -> Key {
        Key::new(bytes)
    }
}

impl From<&Key> for Key {
    fn from(key: &Key) -> Key {
        key.clone()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        match &self.rest {
            None => Ok(()),
            Some(rest) => {
                let zeros = rest.iter().take_while(|&&byte| byte == 0).count();
                write!(f, "+{zeros}:")?;
                rest[zeros..]
                    .iter()
                    .try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_order_of_their_bytes() {
        let mut padded = vec![vec![0; 12]];
        for at in [0, 7, 8, 11] {
            for byte in [1, 255] {
                for base in padded.clone() {
                    let mut bytes = base;
                    bytes[at] = byte;
                    padded.push(bytes);
                }
            }
        }
        for a in &padded {
            for b in &padded {
                assert_eq!(Key::new(a).cmp(&Key::new(b)), a.cmp(b), "{a:?} {b:?}");
            }
        }
        let numbers = [1, 255, 256, 1 << 32].map(Key::from);
        assert!(numbers.is_sorted(), "{numbers:?}");
    }

    #[test]
    fn trailing_zeros_are_not_part_of_a_key() {
        assert_eq!(Key::new(b"abc"), Key::new(b"abc\0\0\0\0\0\0\0\0"));
        assert_eq!(Key::new(b"abc").len(), 3);
        assert_eq!(Key::new(b"abcdefgh\0i\0").len(), 10);
        assert!(Key::new(b"\0").is_empty() && !Key::new(b"\0\0\0\0\0\0\0\0i").is_empty());
        let next = |key: &[u8], bytes| Key::new(key).next(bytes);
        assert_eq!(next(b"abcdefgh", 9), Some(Key::new(b"abcdefgh\x01")));
        assert_eq!(next(b"abcdefg\xff", 8), Some(Key::new(b"abcdefh")));
        assert_eq!(next(&[u8::MAX; 12], 12), None);
        assert_eq!(
            Key::new(b"a\0").previous(9),
            Key::new(b"`\xff\xff\xff\xff\xff\xff\xff\xff")
        );
        assert_eq!(Key::LEAST.previous(8), Key::LEAST);
        let mut bytes = [9; 12];
        Key::new(b"abcdefghi").fill(&mut bytes);
        assert_eq!(&bytes, b"abcdefghi\0\0\0");
    }
}
