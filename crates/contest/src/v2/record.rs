//! A record of `v2`: one block, written by one write.
//!
//! ```text
//!   0      2    3    4        6            22                22 + n       block end, a multiple of 16
//!   ┌──────┬────┬────┬────────┬────────────┬──────────────────┬───────────┐
//!   │ crc  │ver.│size│ n      │ key:16     │ value            │ undefined │
//!   └──────┴────┴────┴────────┴────────────┴──────────────────┴───────────┘
//!     u16   i8   i8   u16                                       size: of the block, in units of 16 bytes
//! ```
//!
//! The first word reaches far memory as a whole, so version, size and length always belong to the same write. A block
//! with a positive size and a version that is not positive is a spare. If both are 0, the segment's blocks end there.

use crate::block::UNIT;
use crate::engine::{KEY_BYTES, Key};

/// Bytes of the header, before the value.
pub(crate) const HEADER: usize = 22;
const VERSION: usize = 2;
const SIZE: usize = 3;
const LENGTH: usize = 4;
const KEY: usize = 6;

/// Checksum that detects torn records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum V2Checksum {
    /// The sum of every second 32-bit integer, starting with the second, truncated to 16 bits. It covers 36 bytes of a
    /// record of 150 bytes.
    Published,
    /// The low 16 bits of a CRC-32C of all bytes after the checksum.
    Crc32,
}

impl V2Checksum {
    /// Returns the checksum of a record.
    #[must_use]
    pub fn of(self, record: &[u8]) -> u16 {
        match self {
            V2Checksum::Published => {
                let integers = record.chunks_exact(4).skip(1).step_by(2);
                let sum = integers.fold(0_u32, |sum, bytes| {
                    sum.wrapping_add(u32::from_le_bytes(bytes.try_into().expect("four bytes")))
                });
                sum as u16
            }
            V2Checksum::Crc32 => crc32c::crc32c(&record[VERSION..]) as u16,
        }
    }
}

/// Header of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct V2Header {
    crc: u16,
    pub version: i8,
    /// Bytes of the block, in units of 16; positive in every record.
    pub size: i8,
    pub value_bytes: u16,
    pub key: Key,
}

impl V2Header {
    pub(crate) fn decode(bytes: &[u8; HEADER]) -> V2Header {
        V2Header {
            crc: u16::from_le_bytes([bytes[0], bytes[1]]),
            version: bytes[VERSION] as i8,
            size: bytes[SIZE] as i8,
            value_bytes: u16::from_le_bytes([bytes[LENGTH], bytes[LENGTH + 1]]),
            key: bytes[KEY..KEY + KEY_BYTES]
                .try_into()
                .expect("sixteen bytes"),
        }
    }
}

/// Replaces `to` with a record for a block of `block_bytes`.
pub(crate) fn encode(
    to: &mut Vec<u8>,
    (key, value): (&Key, &[u8]),
    version: u8,
    block_bytes: usize,
    checksum: V2Checksum,
) {
    to.clear();
    to.extend_from_slice(&[0, 0, version, (block_bytes / UNIT) as u8]);
    to.extend_from_slice(&(value.len() as u16).to_le_bytes());
    to.extend_from_slice(key);
    to.extend_from_slice(value);
    let crc = checksum.of(to);
    to[..VERSION].copy_from_slice(&crc.to_le_bytes());
}

/// Returns the first word of a spare block.
pub(crate) fn spare(block_bytes: usize) -> [u8; 8] {
    let mut word = [0; 8];
    word[SIZE] = (block_bytes / UNIT) as u8;
    word
}

/// Returns whether the checksum of the whole `record` is right.
pub(crate) fn is_sound(record: &[u8], checksum: V2Checksum) -> bool {
    checksum.of(record).to_le_bytes() == record[..VERSION]
}

#[cfg(test)]
mod tests {
    use farbank_pm::rng::Rng;

    use super::*;

    /// Returns a value as in typical programs: an array of numbers below 2^40.
    fn numbers(rng: &mut Rng) -> Vec<u8> {
        let words = (0..16).map(|_| rng.below(1 << 40));
        words.flat_map(u64::to_le_bytes).collect()
    }

    fn noise(rng: &mut Rng) -> Vec<u8> {
        (0..16).flat_map(|_| rng.draw().to_le_bytes()).collect()
    }

    fn key(rng: &mut Rng) -> Key {
        let mut key = [0; KEY_BYTES];
        key[..8].copy_from_slice(&rng.draw().to_le_bytes());
        key[8..].copy_from_slice(&rng.draw().to_le_bytes());
        key
    }

    /// Returns how many of 20,000 torn writes are accepted as records. Each write overwrites an older record, and each
    /// of its words reaches far memory or does not.
    fn torn_ones_accepted(
        checksum: V2Checksum,
        same_key: bool,
        value: fn(&mut Rng) -> Vec<u8>,
    ) -> usize {
        let mut rng = Rng::new(0x7042);
        let torn = |rng: &mut Rng| {
            let first = key(rng);
            let second = if same_key { first } else { key(rng) };
            let (mut old, mut new) = (Vec::new(), Vec::new());
            let (before, after) = (value(rng), value(rng));
            encode(&mut old, (&first, &before), 1, 160, checksum);
            encode(&mut new, (&second, &after), 2, 160, checksum);
            loop {
                let mut mixed = old.clone();
                for (word, new) in mixed.chunks_mut(8).zip(new.chunks(8)) {
                    if rng.one_in(2) {
                        word.copy_from_slice(new);
                    }
                }
                if mixed != old && mixed != new {
                    return mixed;
                }
            }
        };
        let all = (0..20_000).filter(|_| is_sound(&torn(&mut rng), checksum));
        all.count()
    }

    #[test]
    fn the_published_checksum_covers_36_bytes_of_150() {
        let mut record = Vec::new();
        encode(
            &mut record,
            (&[0; 16], &[0; 128]),
            1,
            160,
            V2Checksum::Published,
        );
        let covered = (0..record.len()).filter(|&byte| {
            let mut changed = record.clone();
            changed[byte] ^= 0x55;
            V2Checksum::Published.of(&changed) != V2Checksum::Published.of(&record)
        });
        let covered: Vec<usize> = covered.collect();
        assert_eq!((record.len(), covered.len()), (150, 36));
        assert!(covered.iter().all(|byte| matches!(byte % 8, 4 | 5)));
        assert!(!covered.contains(&VERSION) && !covered.contains(&SIZE));
    }

    #[test]
    fn the_published_checksum_accepts_every_torn_update_of_small_numbers() {
        assert_eq!(
            torn_ones_accepted(V2Checksum::Published, true, numbers),
            20_000
        );
    }

    #[test]
    fn the_published_checksum_accepts_one_torn_record_in_four_over_another_key() {
        let accepted = torn_ones_accepted(V2Checksum::Published, false, numbers);
        assert!((4_800..5_300).contains(&accepted), "{accepted} of 20,000");
    }

    #[test]
    fn the_published_checksum_detects_torn_updates_of_random_bytes() {
        let accepted = torn_ones_accepted(V2Checksum::Published, true, noise);
        assert!(accepted <= 3, "{accepted} of 20,000");
    }

    #[test]
    fn sixteen_bits_of_a_crc_accept_one_torn_record_in_65_536() {
        for (same_key, value) in [
            (true, numbers as fn(&mut Rng) -> _),
            (false, numbers),
            (true, noise),
        ] {
            let accepted = torn_ones_accepted(V2Checksum::Crc32, same_key, value);
            assert!(accepted <= 3, "{accepted} of 20,000");
        }
    }

    #[test]
    fn a_record_survives_encoding_and_decoding() {
        let mut record = Vec::new();
        encode(
            &mut record,
            (&[7; 16], &[9; 100]),
            200,
            1056,
            V2Checksum::Published,
        );
        let header = V2Header::decode(record[..HEADER].try_into().unwrap());
        assert_eq!((header.size, header.value_bytes), (66, 100));
        assert_eq!(header.version, -56, "the version is signed");
        assert_eq!(header.key, [7; 16]);
        assert!(is_sound(&record, V2Checksum::Published));
    }
}
