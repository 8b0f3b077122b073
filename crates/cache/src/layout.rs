//! Layout of the data medium: the area table, pages and items.
//!
//! ```text
//!   segment 0                segment 1 ... n: pages
//!   ┌──────────────────┐     ┌──────┬────────┬────────┬─ ... ─┬────────┐
//!   │ areas, 16 B each │     │ head │ slot 0 │ slot 1 │       │ rest   │
//!   │ cleared, ~cleared│     │ 64 B │        │        │       │        │
//!   └──────────────────┘     └──────┴────────┴────────┴─ ... ─┴────────┘
//!
//!   page head   0        8            24 .. 64
//!               ┌────────┬────────────┬───────┐
//!               │ class, │ check      │ 0     │
//!               │ slot B │            │       │
//!               └────────┴────────────┴───────┘
//!   item   0      8                     16       24              32            40             48
//!          ┌──────┬─────┬──────┬────────┬────────┬───────┬──┬──┬──────┬──────┬──────┬───────┬─────┬───────┐
//!          │ live │ crc │ area │ key    │ version│expires│k.│m.│flags │value │write │prefix │ key │ value │
//!          │      │ u32 │ u16  │ bytes  │        │ms u48 │u8│u8│ u32  │ bytes│ n s  │ bytes │     │       │
//!          └──────┴─────┴──────┴────────┴────────┴───────┴──┴──┴──────┴──────┴──────┴───────┴─────┴───────┘
//! ```
//!
//! # Invariants
//! MDB-ITEM-1  An item is live iff its live word equals its version, which is not 0, and its crc is valid. The crc is seeded
//!     with the pool's secret and the slot's offset, and covers all bytes after the crc's own four.
//! MDB-ITEM-2  A slot is durably dead before anything else is written into it. So a torn write never leaves the previous item
//!     there: the live word is the version of another item, or 0.
//! MDB-ITEM-3  All bytes after the live word stay unchanged until the slot is used again. Readers that found the item before
//!     it died can read it to the end.
//! MDB-ITEM-4  Items of an area with a version up to the area's `cleared` word are dead. The larger of `cleared` and the
//!     complement of the second word counts. The two differ if a clear was interrupted.

use farbank_pm::crc::{crc32c_append, crc32c_words};
use farbank_pm::{LINE, Medium, Off};

/// Bytes before the first slot of a page.
pub(crate) const PAGE_HEAD_BYTES: u64 = LINE as u64;
/// Bytes before an item's key.
pub(crate) const ITEM_HEAD_BYTES: usize = 48;
/// Bytes of an area table entry.
pub(crate) const AREA_BYTES: u64 = 16;
/// Returns the number of entries of the area table, which fills one segment of `segment_bytes`.
pub(crate) fn areas_in(segment_bytes: u64) -> u64 {
    (segment_bytes / AREA_BYTES).min(1 << 16)
}

/// Longest key, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = u16::MAX as usize;

/// Mark of a counter, whose value is eight bytes.
pub(crate) const COUNTER: u8 = 1;
/// Mark of an item that is hidden from ordinary reads.
pub(crate) const HIDDEN: u8 = 2;
/// Mark of an item that refuses writes until it is unlocked.
pub(crate) const LOCKED: u8 = 4;

/// Header of an item, without its live word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ItemHeader {
    pub(crate) crc: u32,
    pub(crate) area: u16,
    pub(crate) key_len: u16,
    pub(crate) version: u64,
    pub(crate) expires_ms: u64,
    pub(crate) kind: u8,
    pub(crate) marks: u8,
    pub(crate) flags: u32,
    pub(crate) value_len: u32,
    pub(crate) written_s: u32,
    pub(crate) prefix_len: u16,
}

impl ItemHeader {
    fn words(&self) -> [u64; 5] {
        [
            u64::from(self.crc) | u64::from(self.area) << 32 | u64::from(self.key_len) << 48,
            self.version,
            (self.expires_ms & EXPIRES_MAX)
                | u64::from(self.kind) << 48
                | u64::from(self.marks) << 56,
            u64::from(self.flags) | u64::from(self.value_len) << 32,
            u64::from(self.written_s) | u64::from(self.prefix_len) << 32,
        ]
    }

    fn from_words(words: [u64; 5]) -> ItemHeader {
        ItemHeader {
            crc: words[0] as u32,
            area: (words[0] >> 32) as u16,
            key_len: (words[0] >> 48) as u16,
            version: words[1],
            expires_ms: words[2] & EXPIRES_MAX,
            kind: (words[2] >> 48) as u8,
            marks: (words[2] >> 56) as u8,
            flags: words[3] as u32,
            value_len: (words[3] >> 32) as u32,
            written_s: words[4] as u32,
            prefix_len: (words[4] >> 32) as u16,
        }
    }

    /// Reads the header of the item at `at`.
    #[inline]
    pub(crate) fn read<M: Medium>(medium: &M, at: Off) -> ItemHeader {
        ItemHeader::from_words([8, 16, 24, 32, 40].map(|field| medium.load(at.plus(field))))
    }

    /// Returns the bytes of the header, with the live word set to the version.
    pub(crate) fn to_bytes(self) -> [u8; ITEM_HEAD_BYTES] {
        let mut bytes = [0; ITEM_HEAD_BYTES];
        bytes[..8].copy_from_slice(&self.version.to_le_bytes());
        for (word, to) in self.words().iter().zip(bytes[8..].chunks_exact_mut(8)) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Returns the crc of the header's bytes, continued from the slot's seed.
    #[inline]
    pub(crate) fn crc_of_head(&self, seed: u32) -> u32 {
        let words = self.words();
        crc32c_words(seed, (words[0] >> 32) as u32, &words[1..])
    }

    /// Returns the crc of the whole item.
    pub(crate) fn crc_of(&self, seed: u32, key: &[u8], value: &[u8]) -> u32 {
        crc32c_append(crc32c_append(self.crc_of_head(seed), key), value)
    }

    /// Returns the length of the item in bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        ITEM_HEAD_BYTES + usize::from(self.key_len) + self.value_len as usize
    }
}

/// Latest time of expiry. Times have 48 bits, which lasts until the year 10889.
pub(crate) const EXPIRES_MAX: u64 = (1 << 48) - 1;

/// Returns the seed of the crc of the item at `at` (MDB-ITEM-1).
#[inline]
pub(crate) fn seed(secret: u64, at: Off) -> u32 {
    let mixed = (secret ^ at.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32
}

/// Returns the head of a page: its class and slot size, and a check word that depends on the pool's secret.
pub(crate) fn page_head(secret: u64, page: u32, class: u8, slot_bytes: u32) -> [u64; 2] {
    let first = (u64::from(class) + 1) | (u64::from(slot_bytes) << 32);
    let check =
        xxhash_rust::xxh3::xxh3_64_with_seed(&first.to_le_bytes(), secret ^ u64::from(page));
    [first, check]
}
