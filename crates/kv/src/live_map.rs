//! The live map: where in the pool live records begin, a bit in DRAM for each 32 bytes.
//!
//! ```text
//!   pool  │ record ··│········│ record ··│········│····rec│ord ····│     bytes of a bit: 32, the least a record has,
//!   bits  │    1     │   0    │    0     │   0    │   1   │   0    │     so that no two records begin in one
//!                                dead
//! ```
//!
//! A segment that is cleaned is mostly dead. With the map the cleaner goes from one live record to the next and reads
//! nothing else; without it, it reads every header, and asks the index about every key.
//!
//! # Invariants
//! L1  A bit that is set is a live record's: it is set when the record is counted as live, by a write or by an
//!     open, and goes when that is taken back. Live records of a segment in which an open found damage have none.
//! L2  So a segment with as many bits as live records has them all, and only such a segment is cleaned by the map. Both are
//!     read while others count: who sees too few, or too many, walks. What the map leaves out by mistake is
//!     found missing before the segment is given up (C5).

use farbank_pm::Off;
use farbank_pm::grow_table::{GrowTable, prefetch_for_write};
use farbank_pm::simd::ones;
use farbank_pm::sync::atomic::{AtomicU64, Ordering};

use crate::record::{ALIGN, RECORD_MIN};

/// Bytes of the pool that a word of bits is about.
const WORD_BYTES: u64 = (RECORD_MIN * u64::BITS as usize) as u64;

/// See the module's documentation.
pub(crate) struct LiveMap(GrowTable<AtomicU64>);

impl LiveMap {
    /// A map of the first `pool_bytes` of a pool; nothing lives there.
    pub(crate) fn new(pool_bytes: u64) -> LiveMap {
        let map = LiveMap(GrowTable::new(word_of(pool_bytes) + 1));
        map.reserve(pool_bytes);
        map
    }

    /// Makes room for `pool_bytes` in all.
    pub(crate) fn reserve(&self, pool_bytes: u64) {
        self.0.reserve(word_of(pool_bytes) + 1);
    }

    /// Bytes of DRAM one takes, of a pool of `pool_bytes` that was written everywhere.
    pub(crate) fn bytes(pool_bytes: u64) -> u64 {
        pool_bytes.div_ceil(8 * RECORD_MIN as u64)
    }

    /// Has the CPU fetch what will be changed for the record at `at`.
    #[inline]
    pub(crate) fn fetch(&self, at: Off) {
        prefetch_for_write(self.0.get(word_of(at.0)));
    }

    /// A record lives at `at`.
    #[inline]
    pub(crate) fn set(&self, at: Off) {
        self.0
            .get(word_of(at.0))
            .fetch_or(bit_of(at), Ordering::Relaxed);
    }

    /// None does any more.
    #[inline]
    pub(crate) fn clear(&self, at: Off) {
        self.0
            .get(word_of(at.0))
            .fetch_and(!bit_of(at), Ordering::Relaxed);
    }

    /// Nothing lives in the `bytes` from `from` on, both multiples of a segment's least size.
    pub(crate) fn clear_all(&self, from: Off, bytes: usize) {
        for word in word_of(from.0)..word_of(from.0 + bytes as u64) {
            let word = self.0.get(word);
            // A page of the table that was never written to takes no memory.
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Whether a record lives at `at`.
    pub(crate) fn has(&self, at: Off) -> bool {
        self.0.get(word_of(at.0)).load(Ordering::Relaxed) & bit_of(at) != 0
    }

    /// The bits of the `bytes` from `from` on, both multiples of a segment's least size.
    pub(crate) fn words_of(&self, from: Off, bytes: usize) -> impl Iterator<Item = u64> {
        let words = word_of(from.0)..word_of(from.0 + bytes as u64);
        words.map(|word| self.0.get(word).load(Ordering::Relaxed))
    }

    /// Where live records may begin in the `bytes` from `from` on, if `live` of them have a bit there (L2): for each,
    /// the two places its bit is about.
    pub(crate) fn all_of(&self, from: Off, bytes: usize, live: u32) -> Option<Vec<[Off; 2]>> {
        let mut found = Vec::with_capacity(live as usize);
        let first = word_of(from.0);
        for (word, bits) in (first..).zip(self.words_of(from, bytes)) {
            let base = Off(word as u64 * WORD_BYTES);
            found.extend(ones(bits).map(|bit| {
                let first = base.plus(u64::from(bit) * RECORD_MIN as u64);
                [first, first.plus(ALIGN as u64)]
            }));
        }
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
    fn a_segment_is_listed_if_all_that_lives_there_has_a_bit() {
        let map = LiveMap::new(1 << 16);
        let segment = |live| map.all_of(Off(1 << 13), 1 << 13, live);
        let [first, second] = [Off((1 << 13) + 64), Off((1 << 14) - 48)];
        map.set(first);
        map.set(second);
        map.set(Off(1 << 14));
        let begins = |places: [Off; 2], at| places.contains(&at);
        let found = segment(2).expect("two live, two bits");
        assert!(begins(found[0], first) && begins(found[1], second));
        assert_eq!(segment(3), None, "one that an open found has no bit");
        map.clear(first);
        assert_eq!(segment(2), None, "one is being taken back");
        assert_eq!(segment(1).map(|found| found.len()), Some(1));
        map.clear_all(Off(1 << 13), 1 << 13);
        assert_eq!(segment(0), Some(Vec::new()));
        assert_eq!(
            map.all_of(Off(1 << 14), 1 << 13, 1).map(|f| f.len()),
            Some(1)
        );
    }
}
