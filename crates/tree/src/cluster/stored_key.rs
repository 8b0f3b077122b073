//! Keys of any bytes as keys of the tree, which all have the same length.
//!
//! ```text
//!   │ the key, padded with zeros to the tree's maximum │ its length u16 │     big-endian: the order of the keys is kept
//! ```
//!
//! The length distinguishes a key that ends with zeros from a shorter one.

#![expect(
    clippy::big_endian_bytes,
    reason = "big-endian numbers have the order of their bytes"
)]

use crate::error::TreeError;
use crate::key::Key;

/// Bytes of the length.
pub(super) const LENGTH_BYTES: usize = 2;

/// Returns `key` as a key of a tree with user keys of at most `most` bytes.
pub(super) fn encode_key(key: &[u8], most: usize) -> Result<Key, TreeError> {
    let bytes = key.len();
    if bytes > most {
        return Err(TreeError::KeyTooLong { bytes, most });
    }
    let mut stored = key.to_vec();
    stored.resize(most, 0);
    stored.extend((bytes as u16).to_be_bytes());
    Ok(Key::new(&stored))
}

/// Returns the user key in `stored`. A length above `most` counts as `most`.
pub(super) fn decode_key(stored: &Key, most: usize) -> Vec<u8> {
    let mut bytes = vec![0; most + LENGTH_BYTES];
    stored.fill(&mut bytes);
    let length = u16::from_be_bytes([bytes[most], bytes[most + 1]]);
    bytes.truncate(usize::from(length).min(most));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_keys_have_the_order_of_the_keys_and_lose_nothing() {
        const MOST: usize = 12;
        let mut keys: Vec<Vec<u8>> = vec![Vec::new()];
        for _ in 0..5 {
            let longer: Vec<_> = keys
                .iter()
                .flat_map(|key| [0, 1, 255].map(|byte| [key.as_slice(), &[byte]].concat()))
                .collect();
            keys.extend(longer);
        }
        keys.extend([vec![7; MOST], vec![0; MOST]]);
        keys.sort();
        keys.dedup();
        let stored: Vec<Key> = keys
            .iter()
            .map(|key| encode_key(key, MOST).unwrap())
            .collect();
        assert!(stored.is_sorted_by(|a, b| a < b));
        for (key, stored) in keys.iter().zip(&stored) {
            assert_eq!(&decode_key(stored, MOST), key);
        }
        let error = encode_key(&[0; MOST + 1], MOST).err();
        let expected = TreeError::KeyTooLong {
            bytes: MOST + 1,
            most: MOST,
        };
        assert_eq!(error, Some(expected));
    }
}
