//! The index: hash lines of five keys in DRAM, with linear probing.
//!
//! ```text
//!   0          16         32         48         64         80      88            120     128
//!   ┌──────────┬──────────┬──────────┬──────────┬──────────┬───────┬─ ... ─┬───────┬───────┐
//!   │  key 0   │  key 1   │  key 2   │  key 3   │  key 4   │ val 0 │       │ val 4 │ count │
//!   └──────────┴──────────┴──────────┴──────────┴──────────┴───────┴─ ... ─┴───────┴───────┘
//!   └──────────── first cache line ─────────────┘└─────────── second cache line ───────────┘
//! ```
//!
//! Five keys waste the fewest bytes of whole cache lines: 5 x (16 + 8) bytes and a count fill two lines but for 7
//! bytes. A key's line is its hash modulo the number of lines, which is prime. If that line is full, the key is in the
//! next line, and so on. Keys are never removed, so a line that is not full ends a search.
//!
//! # Invariants
//! KID-LINE-1  `count` only grows, up to 5. Slots below it are reserved, slots above it are empty.
//! KID-LINE-2  A slot's value is [`PENDING`] from soon after its reservation until its record is durable. A reader treats a key
//!     whose value is [`PENDING`], or the 0 before it, as absent.
//!
//! The count is published before the key is written, and a key is two words. So a reader can see half a key beside
//! zeros. A second writer of that key could see the same and reserve another slot. The contest never has two writers of
//! one key at a time.

use farbank_pm::grow_table::{GrowTable, prefetch};
use farbank_pm::sync::atomic::AtomicU64;
use farbank_pm::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use xxhash_rust::xxh3::xxh3_64;

use super::{KidOptions, LineHash, ProbeStep};
use crate::engine::Key;

/// Number of keys in a line.
pub(super) const KEYS: usize = 5;
/// The value of a reserved slot whose record is not durable yet.
pub(super) const PENDING: u64 = u64::MAX;

farbank_pm::zeroed! {
    #[repr(C, align(128))]
    struct HashLine {
        keys: [[AtomicU64; 2]; KEYS],
        vals: [AtomicU64; KEYS],
        count: AtomicU64,
    }
}

const _: () = assert!(size_of::<HashLine>() == 128 || farbank_pm::sync::CHECKED);

impl HashLine {
    fn find(&self, key: [u64; 2], prefetched: bool) -> (Option<&AtomicU64>, bool) {
        let count = self.count.load(Acquire) as usize;
        if prefetched && count == KEYS {
            prefetch(&self.keys[KEYS - 1]);
        }
        let found = self.keys[..count]
            .iter()
            .position(|k| k[0].load(Relaxed) == key[0] && k[1].load(Relaxed) == key[1]);
        (found.map(|slot| &self.vals[slot]), count == KEYS)
    }

    /// Reserves the next free slot for `key`, if there is one.
    fn reserve(&self, key: [u64; 2]) -> Option<&AtomicU64> {
        let next = |count| (count < KEYS as u64).then_some(count + 1);
        let slot = self.count.fetch_update(AcqRel, Acquire, next).ok()? as usize;
        self.vals[slot].store(PENDING, Relaxed);
        self.keys[slot][0].store(key[0], Release);
        self.keys[slot][1].store(key[1], Release);
        Some(&self.vals[slot])
    }
}

/// Result of a search: the key's value, if the key was found, and the number of lines visited.
pub(super) struct LineSearch<'a> {
    pub(super) val: Option<&'a AtomicU64>,
    pub(super) lines: u64,
}

/// A key's slot.
pub(super) enum LineSlot<'a> {
    /// The slot held the key already.
    Old(&'a AtomicU64),
    /// The slot was just reserved for the key.
    New(&'a AtomicU64),
    /// Every line is full.
    None,
}

/// The hash table.
pub(super) struct HashLines {
    lines: GrowTable<HashLine>,
    len: u64,
    options: KidOptions,
}

impl HashLines {
    /// Returns an empty table for `keys` keys; with all of them its load factor is 20 / 21.
    pub(super) fn new(keys: u64, options: KidOptions) -> HashLines {
        let len = lines_for(keys);
        let lines = GrowTable::new(len as usize);
        lines.reserve(len as usize);
        HashLines {
            lines,
            len,
            options,
        }
    }

    /// Returns the bytes of DRAM that the lines take.
    pub(super) fn bytes(&self) -> u64 {
        self.len * size_of::<HashLine>() as u64
    }

    /// Looks for `key`.
    pub(super) fn find(&self, key: &Key) -> LineSearch<'_> {
        let words = words_of(key);
        for (lines, line) in (1..).zip(self.walk(key)) {
            let (val, full) = line.find(words, self.options.prefetch);
            if val.is_some() || !full {
                return LineSearch { val, lines };
            }
        }
        LineSearch {
            val: None,
            lines: self.len,
        }
    }

    /// Looks for `key`, and reserves a slot for it if it is absent. Also returns the number of lines visited.
    pub(super) fn find_or_reserve(&self, key: &Key) -> (LineSlot<'_>, u64) {
        let words = words_of(key);
        for (lines, line) in (1..).zip(self.walk(key)) {
            if let (Some(val), _) = line.find(words, self.options.prefetch) {
                return (LineSlot::Old(val), lines);
            }
            if let Some(val) = line.reserve(words) {
                return (LineSlot::New(val), lines);
            }
        }
        (LineSlot::None, self.len)
    }

    /// Iterates once over all lines, starting at the key's own line.
    fn walk(&self, key: &Key) -> impl Iterator<Item = &HashLine> {
        let hash = match self.options.key_hash {
            LineHash::Crc32c => u64::from(crc32c::crc32c(key)),
            LineHash::Xxh3 => xxh3_64(key),
        };
        let home = hash % self.len;
        let mut at = home;
        (0..self.len).map(move |step| {
            if step > 0 {
                at = match self.options.step {
                    ProbeStep::Modulo => (home + step) % self.len,
                    ProbeStep::Branch if at + 1 == self.len => 0,
                    ProbeStep::Branch => at + 1,
                };
            }
            let line = self.lines.get(at as usize);
            if step > 0 && self.options.prefetch {
                prefetch(&line.keys);
            }
            line
        })
    }
}

/// Returns the number of lines for `keys` keys: a prime number that gives at least 1.05 slots per key.
pub(super) fn lines_for(keys: u64) -> u64 {
    let least = (u128::from(keys) * 21).div_ceil(20 * KEYS as u128) as u64;
    (least.max(2)..)
        .find(|n| is_prime(*n))
        .expect("there are primes above any number")
}

fn is_prime(n: u64) -> bool {
    n >= 2
        && (2..)
            .take_while(|d| d * d <= n)
            .all(|d| !n.is_multiple_of(d))
}

fn words_of(key: &Key) -> [u64; 2] {
    let word =
        |half: &[u8]| u64::from_le_bytes(half.try_into().expect("half a key is eight bytes"));
    [word(&key[..8]), word(&key[8..])]
}

#[cfg(test)]
mod tests {
    use farbank_pm::rng::Rng;

    use super::*;
    use crate::engine::EngineStats;
    use crate::limits::ContestLimits;

    fn random_key(rng: &mut Rng) -> Key {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&rng.draw().to_le_bytes());
        key[8..].copy_from_slice(&rng.draw().to_le_bytes());
        key
    }

    fn take(lines: &HashLines, key: &Key, val: u64) {
        match lines.find_or_reserve(key).0 {
            LineSlot::Old(slot) | LineSlot::New(slot) => slot.store(val, Release),
            LineSlot::None => panic!("every line is full"),
        }
    }

    #[test]
    fn at_full_scale_the_number_of_lines_is_the_published_one() {
        let terms = ContestLimits::finals(1);
        assert_eq!(lines_for(terms.keys), 48_097_859);
        let load = terms.keys as f64 / (48_097_859 * KEYS) as f64;
        assert!((load - 0.9524).abs() < 0.0001, "{load}");
    }

    #[test]
    fn at_the_contests_load_a_hit_visits_2_9_lines_and_a_miss_44() {
        let keys = 1_000_000;
        let lines = HashLines::new(keys, KidOptions::default());
        let mut rng = Rng::new(0x16d);
        let all: Vec<Key> = (0..keys).map(|_| random_key(&mut rng)).collect();
        for (n, key) in (0..).zip(&all) {
            take(&lines, key, n);
        }
        let mut tally = EngineStats::default();
        for (n, key) in (0..).zip(&all) {
            let search = lines.find(key);
            assert_eq!(search.val.map(|v| v.load(Acquire)), Some(n));
            tally.hit(search.lines);
        }
        for _ in 0..20_000 {
            let search = lines.find(&random_key(&mut rng));
            assert!(search.val.is_none());
            tally.miss(search.lines);
        }
        let hit = tally.probes_of_hits as f64 / keys as f64;
        let miss = tally.probes_of_misses as f64 / tally.misses as f64;
        assert!((2.6..3.2).contains(&hit), "{hit} lines a hit");
        assert!((36.0..52.0).contains(&miss), "{miss} lines a miss");
        let first = tally.depth[0] as f64 / keys as f64;
        assert!((first - 0.781).abs() < 0.01, "{first} in the first line");
    }

    #[test]
    fn lookups_give_the_same_result_with_all_options() {
        let plain = KidOptions::default();
        let others = [
            KidOptions {
                step: ProbeStep::Modulo,
                ..plain
            },
            KidOptions {
                prefetch: false,
                ..plain
            },
            KidOptions {
                key_hash: LineHash::Xxh3,
                ..plain
            },
        ];
        for options in others {
            let lines = HashLines::new(500, options);
            let mut rng = Rng::new(7);
            let all: Vec<Key> = (0..500).map(|_| random_key(&mut rng)).collect();
            for (n, key) in (0..).zip(&all) {
                take(&lines, key, n);
            }
            for (n, key) in (0..).zip(&all) {
                assert_eq!(lines.find(key).val.map(|v| v.load(Acquire)), Some(n));
            }
        }
    }

    #[test]
    fn when_every_line_is_full_inserts_are_refused_and_searches_end() {
        let lines = HashLines::new(8, KidOptions::default());
        let mut rng = Rng::new(1);
        for _ in 0..lines.len * KEYS as u64 {
            take(&lines, &random_key(&mut rng), 1);
        }
        let stranger = random_key(&mut rng);
        assert!(matches!(
            lines.find_or_reserve(&stranger),
            (LineSlot::None, _)
        ));
        assert!(lines.find(&stranger).val.is_none());
    }
}
