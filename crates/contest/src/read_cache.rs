//! The read cache of `v1` and `v2`: one slot per stripe, which holds the last value read.
//!
//! ```text
//!   slot ┌───────┬────────┬──────────────┐    slot number: hash & (slots - 1);
//!        │ bytes │ key:16 │ value:1024   │    bytes = 0: the slot is empty
//!        └───────┴────────┴──────────────┘
//! ```
//!
//! A slot is read and written under its stripe's lock. It consists of atomic words, so that no unsafe code is needed.
//! It has 1,048 bytes; the published slot has 1,042 bytes, because its length takes two.
//!
//! CONTEST-CACHE-1  A slot belongs to one stripe: there are at least as many slots as stripes, and both numbers are powers of two.
//! CONTEST-CACHE-2  A set empties its key's slot before it changes anything. Only a get fills a slot.

use farbank_pm::grow_table::GrowTable;
use farbank_pm::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::engine::{Key, VALUE_BYTES};

const WORDS: usize = *VALUE_BYTES.end() / 8;
const ROW: usize = 32;

farbank_pm::zeroed! {
    struct Slot {
        bytes: AtomicU64,
        key: [AtomicU64; 2],
        value: [[AtomicU64; ROW]; WORDS / ROW],
    }
}

/// The read cache. With 0 slots it is off.
pub(crate) struct ReadCache {
    slots: GrowTable<Slot>,
    count: u64,
}

fn words_of(key: &Key) -> [u64; 2] {
    let word = |n: usize| u64::from_le_bytes(key[n * 8..][..8].try_into().expect("eight bytes"));
    [word(0), word(1)]
}

impl ReadCache {
    /// Returns an empty cache of `slots` slots, which is a power of two or 0.
    pub(crate) fn new(slots: u64) -> ReadCache {
        assert!(slots == 0 || slots.is_power_of_two(), "{slots} slots");
        let table = GrowTable::new(slots.max(1) as usize);
        table.reserve(slots as usize);
        ReadCache {
            slots: table,
            count: slots,
        }
    }

    pub(crate) fn is_off(&self) -> bool {
        self.count == 0
    }

    fn slot(&self, hash: u64) -> Option<&Slot> {
        let mask = self.count.checked_sub(1)?;
        Some(self.slots.get((hash & mask) as usize))
    }

    fn slot_of(&self, hash: u64, key: &Key) -> Option<&Slot> {
        let slot = self.slot(hash)?;
        let [first, second] = words_of(key);
        let is_its = slot.bytes.load(Relaxed) != 0
            && slot.key[0].load(Relaxed) == first
            && slot.key[1].load(Relaxed) == second;
        is_its.then_some(slot)
    }

    /// Appends the value of `key` to `out`. Returns false if the cache does not hold it.
    pub(crate) fn get(&self, hash: u64, key: &Key, out: &mut Vec<u8>) -> bool {
        let Some(slot) = self.slot_of(hash, key) else {
            return false;
        };
        let bytes = slot.bytes.load(Relaxed) as usize;
        let end = out.len() + bytes;
        let words = slot.value.iter().flatten().take(bytes.div_ceil(8));
        for word in words {
            out.extend_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        out.truncate(end);
        true
    }

    /// Empties the slot of `key` if it holds that key (CONTEST-CACHE-2).
    pub(crate) fn evict(&self, hash: u64, key: &Key) {
        if let Some(slot) = self.slot_of(hash, key) {
            slot.bytes.store(0, Relaxed);
        }
    }

    /// Stores the value of `key` in its slot and replaces the former value.
    pub(crate) fn fill(&self, hash: u64, key: &Key, value: &[u8]) {
        let Some(slot) = self.slot(hash) else { return };
        for (place, word) in slot.key.iter().zip(words_of(key)) {
            place.store(word, Relaxed);
        }
        for (place, bytes) in slot.value.iter().flatten().zip(value.chunks(8)) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            place.store(u64::from_le_bytes(word), Relaxed);
        }
        slot.bytes.store(value.len() as u64, Relaxed);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.count * size_of::<Slot>() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_holds_the_last_value_filled_in_by_any_key() {
        let cache = ReadCache::new(4);
        let (a, b) = ([1; 16], [2; 16]);
        let found = |key: &Key| {
            let mut out = vec![9];
            cache.get(6, key, &mut out).then(|| out.split_off(1))
        };
        cache.fill(6, &a, &[7; 1024]);
        assert_eq!(found(&a), Some(vec![7; 1024]));
        assert_eq!(found(&b), None);
        cache.fill(6, &b, &[8; 83]);
        assert_eq!((found(&a), found(&b)), (None, Some(vec![8; 83])));
        cache.evict(6, &a);
        assert_eq!(found(&b), Some(vec![8; 83]));
        cache.evict(6, &b);
        assert_eq!(found(&b), None);
    }

    #[test]
    fn without_slots_nothing_is_found() {
        let cache = ReadCache::new(0);
        cache.fill(1, &[1; 16], &[1; 80]);
        assert!(!cache.get(1, &[1; 16], &mut Vec::new()));
        assert_eq!(cache.bytes(), 0);
    }

    #[test]
    fn at_full_scale_the_cache_takes_262_mib() {
        let slots = 1 << 18;
        assert_eq!(size_of::<Slot>(), 1048);
        assert_eq!((slots * size_of::<Slot>()) >> 20, 262);
    }
}
