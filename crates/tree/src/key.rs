//! Keys: strings of bytes, in the order of their bytes.
//!
//! All keys of a tree take the same room in its nodes, [`crate::Layout::key_bytes`]; a shorter one is filled up with zeros,
//! and is the same key as the one with zeros. A number is the key of its eight bytes, highest first, so that keys
//! are in the order of their numbers.

#![expect(
    clippy::big_endian_bytes,
    reason = "numbers are in the order of their bytes only with the highest first"
)]

use std::fmt;
use std::rc::Rc;

/// Most bytes of a key.
pub const KEY_BYTES_MAX: usize = 1024;

/// A key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Key {
    /// Its first eight bytes.
    first: u64,
    /// Those that follow, up to the last that is not zero.
    rest: Option<Rc<[u8]>>,
}

impl Key {
    /// The least key.
    pub const LEAST: Key = Key {
        first: 0,
        rest: None,
    };

    /// The key of `bytes`.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Key {
        let (first, rest) = bytes.split_at(bytes.len().min(8));
        let mut word = [0; 8];
        word[..first.len()].copy_from_slice(first);
        let end = rest.iter().rposition(|&byte| byte != 0);
        Key {
            first: u64::from_be_bytes(word),
            rest: end.map(|last| Rc::from(&rest[..=last])),
        }
    }

    /// Its first eight bytes as a number.
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

    /// Bytes up to the last that is not zero.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.rest {
            Some(rest) => 8 + rest.len(),
            None => 8 - self.first.trailing_zeros() as usize / 8,
        }
    }

    /// Whether it is the least key, which has no bytes but zeros.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Key::LEAST
    }

    /// The least key above it of those of `bytes` bytes, if there is one.
    pub(crate) fn next(&self, bytes: usize) -> Option<Key> {
        let mut all = vec![0; bytes];
        self.fill(&mut all);
        let last = all.iter().rposition(|&byte| byte < u8::MAX)?;
        all[last] += 1;
        all[last + 1..].fill(0);
        Some(Key::new(&all))
    }

    /// The greatest key below it of those of `bytes` bytes; of the least, itself.
    pub(crate) fn previous(&self, bytes: usize) -> Key {
        let mut all = vec![0; bytes];
        self.fill(&mut all);
        if let Some(last) = all.iter().rposition(|&byte| byte > 0) {
            all[last] -= 1;
            all[last + 1..].fill(u8::MAX);
        }
        Key::new(&all)
    }

    /// Its bytes, filled up with zeros to fill `to`.
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
    fn zeros_at_the_end_are_no_part_of_a_key() {
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
