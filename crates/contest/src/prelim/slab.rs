//! Records in DRAM: 25 atomic words of four bytes each, which may be read while they are written.
//!
//! ```text
//!   0        4                    20                                                   100
//!   ┌────────┬────────────────────┬─────────────────── ─ ─ ────────────────────────────┐
//!   │ prev:4 │ key:16             │ value:80                                           │
//!   └────────┴────────────────────┴─────────────────── ─ ─ ────────────────────────────┘
//! ```
//!
//! A record in far memory has the same bytes. `prev` is the number, plus 1, of the next older record of the bucket. In
//! the read cache it is the next slot, plus 1. A record has no checksum and no length: all values have 80 bytes.

use farbank_pm::grow_table::GrowTable;
use farbank_pm::sync::atomic::AtomicU32;
use farbank_pm::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Bytes of a record.
pub(super) const RECORD_BYTES: usize = 100;
/// Bytes of every value.
pub(super) const VALUE_BYTES: usize = 80;
/// Number of words in a record.
pub(super) const WORDS: usize = RECORD_BYTES / 4;
const KEY: std::ops::Range<usize> = 1..5;
const VALUE: std::ops::Range<usize> = 5..WORDS;
/// The number that means "no record".
pub(super) const NONE: u32 = u32::MAX;

/// A key as four words.
pub(super) type KeyWords = [u32; 4];

/// Converts `bytes` to `N` words.
pub(super) fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let (chunks, rest) = bytes.as_chunks::<4>();
    assert!(
        chunks.len() == N && rest.is_empty(),
        "{} bytes",
        bytes.len()
    );
    std::array::from_fn(|n| u32::from_le_bytes(chunks[n]))
}

/// Returns the record number that the first word of a record encodes. 0 encodes [`NONE`].
pub(super) fn prev_of(word: u32) -> u32 {
    word.wrapping_sub(1)
}

/// Result of comparing a record with a key.
pub(super) enum RecordLookup {
    /// The record has the key, and its value was copied out.
    Same,
    /// The record has another key. The field is the number of the next older record.
    Other(u32),
}

/// An array of records.
pub(super) struct RecordSlab(GrowTable<AtomicU32>);

impl RecordSlab {
    /// Returns `records` records of zeros.
    pub(super) fn new(records: usize) -> RecordSlab {
        let table = GrowTable::new((records * WORDS).max(1));
        table.reserve(records * WORDS);
        RecordSlab(table)
    }

    fn word(&self, record: usize, word: usize) -> &AtomicU32 {
        self.0.get(record * WORDS + word)
    }

    /// Writes `key` and `value` to record `at`.
    pub(super) fn put(&self, at: usize, key: KeyWords, value: &[u8]) {
        for (word, part) in KEY.zip(key) {
            self.word(at, word).store(part, Relaxed);
        }
        self.put_value(at, value);
    }

    pub(super) fn put_value(&self, at: usize, value: &[u8]) {
        for (word, part) in VALUE.zip(words::<{ VALUE_BYTES / 4 }>(value)) {
            self.word(at, word).store(part, Relaxed);
        }
    }

    pub(super) fn prev(&self, at: usize) -> u32 {
        prev_of(self.word(at, 0).load(Acquire))
    }

    pub(super) fn set_prev(&self, at: usize, prev: u32) {
        self.word(at, 0).store(prev.wrapping_add(1), Release);
    }

    pub(super) fn is(&self, at: usize, key: KeyWords) -> bool {
        KEY.zip(key)
            .all(|(word, part)| self.word(at, word).load(Relaxed) == part)
    }

    /// Replaces `out` with the value of record `at`.
    pub(super) fn value(&self, at: usize, out: &mut Vec<u8>) {
        out.clear();
        out.extend(VALUE.flat_map(|word| self.word(at, word).load(Relaxed).to_le_bytes()));
    }

    /// Compares record `at` with `key`, and copies its value to `out` if the keys are equal.
    pub(super) fn look(&self, at: usize, key: KeyWords, out: &mut Vec<u8>) -> RecordLookup {
        if !self.is(at, key) {
            return RecordLookup::Other(self.prev(at));
        }
        self.value(at, out);
        RecordLookup::Same
    }

    /// Replaces `out` with the bytes `from..to` of the slab. Both are multiples of 4.
    pub(super) fn bytes(&self, from: usize, to: usize, out: &mut Vec<u8>) {
        out.clear();
        out.extend(
            (from / 4..to / 4).flat_map(|word| self.0.get(word).load(Relaxed).to_le_bytes()),
        );
    }
}
