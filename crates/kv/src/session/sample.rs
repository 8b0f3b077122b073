//! A sample of the keys, for eviction.
//!
//! A sample begins at a group of the index and goes on in hash order, as a scan does. Hashes do not depend on the use of
//! keys, so neighbouring groups are a random sample. Within a group it begins at a random entry, because the entries of
//! a group keep their places. A random position chooses a group in proportion to the hashes that belong to it, and so
//! to its number of keys.

use farbank_pm::sync::Arc;
use farbank_pm::{Medium, Off};
use farbank_store::{Key, ValueMeta};

use super::{KvSession, meta_of};
use crate::format::record::RecordType;

impl<M: Medium> KvSession<M> {
    /// See [`Session::sample`](farbank_store::Session::sample). An empty group counts as one visit.
    pub(crate) fn sample_keys(
        &mut self,
        mut position: u64,
        visits: usize,
        each: &mut dyn FnMut(Key<'_>, &ValueMeta) -> bool,
    ) -> u64 {
        self.pin();
        let engine = Arc::clone(&self.engine);
        let mut left = visits;
        let mut bytes = Vec::new();
        loop {
            let (mut offsets, next) = engine.index.entries_at(position);
            let first = entry_at(position, offsets.len());
            offsets.rotate_left(first);
            left = left.saturating_sub(1);
            for at in offsets {
                left = left.saturating_sub(1);
                let Some((stored, meta)) = self.sampled(at, &mut bytes) else {
                    continue;
                };
                let db = engine.databases.map.view().map.shown(stored);
                let key = Key { db, bytes: &bytes };
                if !each(key, &meta) {
                    return next.unwrap_or(0);
                }
            }
            match next {
                Some(next) if left > 0 => position = next,
                next => return next.unwrap_or(0),
            }
        }
    }

    /// Reads the key of the value at `at` into `bytes`. Returns its stored database and its metadata. `None`: the record is no
    /// value that a reader would see, or a write of the key is not published yet.
    fn sampled(&self, at: Off, bytes: &mut Vec<u8>) -> Option<(u8, ValueMeta)> {
        let engine = &*self.engine;
        let header = engine.segments.header(at)?;
        if header.what != RecordType::Put || engine.is_expired(header.expires_ms, header.seq) {
            return None;
        }
        bytes.clear();
        let from = at.plus(header.len() as u64);
        engine.medium().append_out(from, header.key_len, bytes);
        let hash = engine.geometry().hash(header.db, bytes);
        let stripe = engine.stripe(hash);
        if !stripe.is_quiet() {
            let locked = stripe.lock();
            if locked.of(hash).next().is_some() || locked.is_guarded(hash, self.id()) {
                return None;
            }
        }
        Some((header.db, meta_of(&header)))
    }
}

/// Returns the number of the entry with which the sample of a group of `len` entries begins.
fn entry_at(position: u64, len: usize) -> usize {
    // The high bits of the position choose the group; all of its bits choose the entry.
    let mixed = (position ^ position >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((u128::from(mixed) * len as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use farbank_pm::rng::Rng;

    use super::*;

    #[test]
    fn samples_of_a_group_begin_with_every_entry_equally_often() {
        const ENTRIES: usize = 20;
        let (mut random, mut counts) = (Rng::new(3), [0; ENTRIES]);
        for _ in 0..20_000 {
            // The group's hashes have the same 20 bits, the highest of a position.
            let position = 0xabcde << 44 | random.draw() >> 20;
            counts[entry_at(position, ENTRIES)] += 1;
        }
        let is_fair = |count: &i32| (800..1200).contains(count);
        assert!(counts.iter().all(is_fair), "{counts:?}");
        assert_eq!(entry_at(7, 0), 0);
    }
}
