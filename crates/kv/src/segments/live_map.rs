//! The live map: a bitmap in DRAM of the places where live records begin, one bit for each 32 bytes of the pool.
//!
//! ```text
//!   pool  │ record ··│········│ record ··│········│····rec│ord ····│     bytes of a bit: 32, the size of the smallest
//!   bits  │    1     │   0    │    0     │   0    │   1   │   0    │     record, so no two records begin in one
//!                                dead
//! ```
//!
//! A segment that is cleaned is mostly dead. With the map, the cleaner visits only the live records. Without it, the
//! cleaner reads every header and looks every key up in the index.
//!
//! # Invariants
//! KV-LIVE-1  A set bit belongs to a live record: it is set when a write or an open counts the record as live, and cleared
//!     when the record is counted as dead. Live records of a segment in which an open found damage have no bits.
//! KV-LIVE-2  So if a segment has as many bits as live records, the bits are complete; only such a segment is cleaned by the
//!     map. Both numbers are read while other threads change them. If they differ, the cleaner walks the segment. A
//!     record that the map misses by mistake is detected before the segment is recycled (KV-CLEAN-5).

use farbank_pm::Off;
use farbank_pm::grow_table::{GrowTable, prefetch_for_write};
use farbank_pm::simd::ones;
use farbank_pm::sync::atomic::{AtomicU64, Ordering};

use crate::format::record::{ALIGN, RECORD_MIN};

/// Bytes of the pool that one word of bits covers.
const WORD_BYTES: u64 = (RECORD_MIN * u64::BITS as usize) as u64;

/// The live map; see the module's documentation.
pub(crate) struct LiveMap(GrowTable<AtomicU64>);

impl LiveMap {
    /// Creates an empty map of the first `pool_bytes` of a pool.
    pub(crate) fn new(pool_bytes: u64) -> LiveMap {
        let map = LiveMap(GrowTable::new(word_of(pool_bytes) + 1));
        map.reserve(pool_bytes);
        map
    }

    /// Enlarges the map to cover `pool_bytes`.
    pub(crate) fn reserve(&self, pool_bytes: u64) {
        self.0.reserve(word_of(pool_bytes) + 1);
    }

    /// Returns the bytes of DRAM of a map of `pool_bytes`, once every part of the pool has been written.
    pub(crate) fn bytes(pool_bytes: u64) -> u64 {
        pool_bytes.div_ceil(8 * RECORD_MIN as u64)
    }

    /// Prefetches the word of the record at `at`, for a change. Does nothing if the map does not cover `at`.
    #[inline]
    pub(crate) fn fetch(&self, at: Off) {
        if let Some(word) = self.0.try_get(word_of(at.0)) {
            prefetch_for_write(word);
        }
    }

    /// Sets the bit of the record at `at`.
    #[inline]
    pub(crate) fn set(&self, at: Off) {
        self.0
            .get(word_of(at.0))
            .fetch_or(bit_of(at), Ordering::Relaxed);
    }

    /// Clears the bit of the record at `at`.
    #[inline]
    pub(crate) fn clear(&self, at: Off) {
        self.0
            .get(word_of(at.0))
            .fetch_and(!bit_of(at), Ordering::Relaxed);
    }

    /// Clears the bits of the `bytes` from `from` on. Both must be multiples of the smallest segment size.
    pub(crate) fn clear_all(&self, from: Off, bytes: usize) {
        for word in word_of(from.0)..word_of(from.0 + bytes as u64) {
            let word = self.0.get(word);
            // A read does not allocate the page of the table; a write would.
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Returns whether the bit of a record at `at` is set.
    pub(crate) fn has(&self, at: Off) -> bool {
        self.0.get(word_of(at.0)).load(Ordering::Relaxed) & bit_of(at) != 0
    }

    /// Returns the words of bits of the `bytes` from `from` on. Both must be multiples of the smallest segment size.
    pub(crate) fn words_of(&self, from: Off, bytes: usize) -> impl Iterator<Item = u64> {
        let words = word_of(from.0)..word_of(from.0 + bytes as u64);
        words.map(|word| self.0.get(word).load(Ordering::Relaxed))
    }

    /// Copies the words of [`LiveMap::words_of`] to `out`, which has 8 bytes for each. Returns the number of set bits.
    pub(crate) fn copy_words(&self, from: Off, bytes: usize, out: &mut [u8]) -> u64 {
        let pairs = (word_of(from.0)..word_of(from.0 + bytes as u64)).step_by(2);
        let mut records = 0;
        for (slots, first) in out.chunks_exact_mut(16).zip(pairs) {
            for (slot, word) in slots.chunks_exact_mut(8).zip(self.0.get_all::<2>(first)) {
                let word = word.load(Ordering::Relaxed);
                // In a segment of large records most words are zero.
                if word != 0 {
                    records += u64::from(word.count_ones());
                }
                slot.copy_from_slice(&word.to_le_bytes());
            }
        }
        records
    }

    /// Sets bits of the `bytes` from `from` on, from the words that [`LiveMap::copy_words`] has copied, and reads 8 bytes of
    /// `words` for each.
    pub(crate) fn set_all(&self, from: Off, bytes: usize, words: &[u8]) {
        let places = word_of(from.0)..word_of(from.0 + bytes as u64);
        for (place, word) in places.zip(words.chunks_exact(8)) {
            let word = crate::format::record::u64_at(word, 0);
            self.0.get(place).fetch_or(word, Ordering::Relaxed);
        }
    }

    /// Returns the place of each bit that is set in the `bytes` from `from` on: its record begins there, or [`ALIGN`] bytes
    /// after it.
    pub(crate) fn places(&self, from: Off, bytes: usize) -> impl Iterator<Item = Off> {
        let words = (word_of(from.0)..).zip(self.words_of(from, bytes));
        words.flat_map(|(word, bits)| {
            let base = Off(word as u64 * WORD_BYTES);
            ones(bits).map(move |bit| base.plus(u64::from(bit) * RECORD_MIN as u64))
        })
    }

    /// Returns, for each live record in the `bytes` from `from` on, the two places at which it may begin. `None` if
    /// not exactly `live` bits are set there (KV-LIVE-2).
    pub(crate) fn all_of(&self, from: Off, bytes: usize, live: u32) -> Option<Vec<[Off; 2]>> {
        let mut found = Vec::with_capacity(live as usize);
        found.extend(
            self.places(from, bytes)
                .map(|first| [first, first.plus(ALIGN as u64)]),
        );
        (found.len() == live as usize).then_some(found)
    }
}

fn word_of(at: u64) -> usize {
    (at / WORD_BYTES) as usize
}

fn bit_of(at: Off) -> u64 {
    1 << (at.0 % WORD_BYTES / RECORD_MIN as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_records_are_listed_only_if_their_number_equals_that_of_the_bits() {
        let map = LiveMap::new(1 << 16);
        let segment = |live| map.all_of(Off(1 << 13), 1 << 13, live);
        let [first, second] = [Off((1 << 13) + 64), Off((1 << 14) - 48)];
        map.set(first);
        map.set(second);
        map.set(Off(1 << 14));
        map.fetch(Off(u64::MAX)); // A place outside the map is ignored.
        let begins = |places: [Off; 2], at| places.contains(&at);
        let found = segment(2).expect("two live, two bits");
        assert!(begins(found[0], first) && begins(found[1], second));
        assert_eq!(segment(3), None, "one live record has no bit");
        map.clear(first);
        assert_eq!(segment(2), None, "one bit was cleared");
        assert_eq!(segment(1).map(|found| found.len()), Some(1));
        map.clear_all(Off(1 << 13), 1 << 13);
        assert_eq!(segment(0), Some(Vec::new()));
        assert_eq!(
            map.all_of(Off(1 << 14), 1 << 13, 1).map(|f| f.len()),
            Some(1)
        );
    }
}
