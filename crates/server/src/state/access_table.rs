//! When keys were last used, and how often, for the eviction policies `lru` and `lfu`, OBJECT IDLETIME and OBJECT FREQ.
//!
//! The store does not keep the uses of keys, because a write to far memory with every read would be expensive. They are
//! in a table of fixed size in DRAM with one word for each hash. Keys with the same hash share a word, so a rarely used
//! key may count as used. The table exists while the policy needs it. A key that has no word counts as last used when
//! the table was created.
//!
//! ```text
//!   word: seconds of the server's clock : 24 | frequency : 8        0: no use is known
//! ```
//!
//! The frequency is Redis's: a counter that a use increments with a probability that falls with the counter
//! (`lfu-log-factor`), and that loses one per `lfu-decay-time` minutes. Both fields are updated at each use. So a change
//! between `lru` and `lfu` finds both.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use farbank_pm::grow_table::GrowTable;
use farbank_pm::rng::Rng;
use farbank_store::{DatabaseMap, Key};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::lock::lock;
use crate::settings::LiveSettings;

const FREQUENCY_BITS: u32 = 8;
const SECONDS_MASK: u32 = u32::MAX >> FREQUENCY_BITS;
/// Frequency of a new key. A key that is not used again loses it in a few periods.
const NEW_FREQUENCY: u8 = 5;
/// Bytes of `maxmemory` for each word: less than a small record takes, so that few keys share a word.
const BYTES_PER_WORD: u64 = 64;
/// Fewest and most words of a table: 4 MiB and 1 GiB.
const WORDS_MIN: u64 = 1 << 20;
const WORDS_MAX: u64 = 1 << 28;

/// The time, how frequencies change with it, and which databases keys are in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessClock {
    /// Seconds of the server's clock.
    pub(crate) secs: u64,
    /// `lfu-log-factor`.
    pub(crate) log_factor: u64,
    /// `lfu-decay-time` in minutes.
    pub(crate) decay_minutes: u64,
    /// The mapping of the databases' numbers. Uses follow their keys through SWAPDB.
    pub(crate) databases: DatabaseMap,
}

/// What is known about the uses of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct KeyUse {
    pub(crate) idle_secs: u64,
    pub(crate) frequency: u8,
}

impl AccessClock {
    /// Seconds as a word has them.
    fn word_secs(self) -> u32 {
        self.secs as u32 & SECONDS_MASK
    }

    /// The frequency that is left of `frequency` after a use at `since`, in seconds as a word has them.
    fn decayed(self, frequency: u8, since: u32) -> u8 {
        if self.decay_minutes == 0 {
            return frequency;
        }
        // As in Redis, minutes begin at multiples of 60 seconds, so a key in steady use loses frequency too.
        let elapsed = u64::from(self.word_secs().wrapping_sub(since) & SECONDS_MASK);
        let before = self.secs.saturating_sub(elapsed);
        let periods = (self.secs / 60 - before / 60) / self.decay_minutes;
        frequency.saturating_sub(u8::try_from(periods).unwrap_or(u8::MAX))
    }

    /// The frequency after one more use.
    fn incremented(self, frequency: u8, random: &mut Rng) -> u8 {
        let above_new = u64::from(frequency.saturating_sub(NEW_FREQUENCY));
        let one_in = above_new.saturating_mul(self.log_factor).saturating_add(1);
        let grows = frequency < u8::MAX && random.one_in(one_in);
        frequency + u8::from(grows)
    }
}

fn word(secs: u32, frequency: u8) -> u32 {
    secs << FREQUENCY_BITS | u32::from(frequency)
}

/// The table; see the module.
pub(crate) struct AccessTable {
    words: GrowTable<AtomicU32>,
    len: usize,
    /// When it was created, in seconds as a word has them.
    since: u32,
}

impl AccessTable {
    /// Creates a table without uses for at least `words` hashes.
    fn new(words: u64, secs: u64) -> AccessTable {
        let len = words.next_power_of_two() as usize;
        let words = GrowTable::new(len);
        words.reserve(len);
        let since = secs as u32 & SECONDS_MASK;
        AccessTable { words, len, since }
    }

    #[inline]
    fn word_of(&self, key: Key<'_>, clock: AccessClock) -> &AtomicU32 {
        let key = clock.databases.stored_key(key);
        let hash = xxh3_64_with_seed(key.bytes, u64::from(key.db));
        self.words.get(hash as usize & (self.len - 1))
    }

    /// Records a use of `key`. Concurrent uses may count as one.
    #[inline]
    pub(crate) fn note(&self, key: Key<'_>, clock: AccessClock, random: &mut Rng) {
        let slot = self.word_of(key, clock);
        let old = slot.load(Ordering::Relaxed);
        let frequency = match old {
            0 => NEW_FREQUENCY,
            _ => {
                let left = clock.decayed(old as u8, old >> FREQUENCY_BITS);
                clock.incremented(left, random)
            }
        };
        let new = word(clock.word_secs(), frequency);
        if new != old {
            slot.store(new, Ordering::Relaxed);
        }
    }

    /// Forgets the uses of `key`, which was deleted.
    pub(crate) fn forget(&self, key: Key<'_>, clock: AccessClock) {
        self.word_of(key, clock).store(0, Ordering::Relaxed);
    }

    /// Sets the uses of `key`, as RESTORE demands it.
    pub(crate) fn set(&self, key: Key<'_>, clock: AccessClock, used: KeyUse) {
        let idle = used.idle_secs.min(u64::from(SECONDS_MASK)) as u32;
        let secs = clock.word_secs().wrapping_sub(idle) & SECONDS_MASK;
        self.word_of(key, clock)
            .store(word(secs, used.frequency), Ordering::Relaxed);
    }

    /// Returns the uses of `key`.
    pub(crate) fn of(&self, key: Key<'_>, clock: AccessClock) -> KeyUse {
        let (secs, frequency) = match self.word_of(key, clock).load(Ordering::Relaxed) {
            0 => (self.since, NEW_FREQUENCY),
            word => (word >> FREQUENCY_BITS, word as u8),
        };
        KeyUse {
            idle_secs: u64::from(clock.word_secs().wrapping_sub(secs) & SECONDS_MASK),
            frequency: clock.decayed(frequency, secs),
        }
    }
}

/// The table, while the policy needs it.
#[derive(Default)]
pub(crate) struct SharedAccessTable(Mutex<Option<Arc<AccessTable>>>);

impl SharedAccessTable {
    /// Returns the table, if there is one.
    pub(crate) fn current(&self) -> Option<Arc<AccessTable>> {
        lock(&self.0).clone()
    }

    /// Creates, replaces or frees the table, as the settings need it now. A larger table begins without uses, because
    /// copying them would delay other requests.
    pub(crate) fn follow(&self, settings: &LiveSettings, secs: u64) {
        let mut table = lock(&self.0);
        if !settings.eviction_policy().depends_on_use() {
            *table = None;
            return;
        }
        let words = settings.maxmemory.load(Ordering::Relaxed) / BYTES_PER_WORD;
        let words = words.clamp(WORDS_MIN, WORDS_MAX);
        if table
            .as_ref()
            .is_none_or(|table| (table.len as u64) < words)
        {
            *table = Some(Arc::new(AccessTable::new(words, secs)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key<'_> = Key {
        db: 3,
        bytes: b"key",
    };

    fn at(secs: u64) -> AccessClock {
        AccessClock {
            secs,
            log_factor: 10,
            decay_minutes: 1,
            databases: DatabaseMap::default(),
        }
    }

    fn used(idle_secs: u64, frequency: u8) -> KeyUse {
        KeyUse {
            idle_secs,
            frequency,
        }
    }

    #[test]
    fn a_key_is_idle_since_its_last_use_or_since_the_table_was_created() {
        let (table, mut random) = (AccessTable::new(1 << 16, 100), Rng::new(1));
        assert_eq!(table.of(KEY, at(110)), used(10, NEW_FREQUENCY));
        assert_eq!(table.of(KEY, at(130)), used(30, NEW_FREQUENCY - 1));
        table.note(KEY, at(150), &mut random);
        assert_eq!(table.of(KEY, at(157)), used(7, NEW_FREQUENCY));
        let other = Key { db: 4, ..KEY };
        assert_eq!(table.of(other, at(157)).idle_secs, 57);
        let swapped = AccessClock {
            databases: DatabaseMap::default().swapped(3, 4),
            ..at(157)
        };
        assert_eq!(table.of(other, swapped), used(7, NEW_FREQUENCY));
        table.forget(KEY, at(157));
        assert_eq!(table.of(KEY, at(157)).idle_secs, 57);
    }

    #[test]
    fn idle_times_survive_the_wrap_of_the_seconds() {
        let (table, mut random) = (AccessTable::new(1 << 16, 0), Rng::new(1));
        table.set(KEY, at(10), used(1000, 100));
        assert_eq!(table.of(KEY, at(10)), used(1000, 100));
        table.note(KEY, at((1 << 24) - 1), &mut random);
        assert_eq!(table.of(KEY, at((1 << 24) + 4)).idle_secs, 5);
    }

    #[test]
    fn a_frequency_decays_by_one_per_period() {
        let table = AccessTable::new(1 << 16, 0);
        table.set(KEY, at(59), used(0, 20));
        let after = |secs, decay_minutes| {
            let clock = AccessClock {
                decay_minutes,
                ..at(secs)
            };
            table.of(KEY, clock).frequency
        };
        assert_eq!([after(59, 1), after(60, 1), after(600, 1)], [20, 19, 10]);
        assert_eq!([after(600, 2), after(600, 0), after(9000, 1)], [15, 20, 0]);
    }

    #[test]
    fn a_frequency_grows_by_the_logarithm_of_the_uses() {
        let frequency = |uses: u64, log_factor| {
            let (table, mut random) = (AccessTable::new(1 << 16, 0), Rng::new(1));
            let clock = AccessClock {
                log_factor,
                ..at(1)
            };
            (0..uses).for_each(|_| table.note(KEY, clock, &mut random));
            table.of(KEY, clock).frequency
        };
        // The table in Redis's documentation of lfu-log-factor.
        assert!((8..=12).contains(&frequency(100, 10)));
        assert!((14..=22).contains(&frequency(1000, 10)));
        assert!((120..=160).contains(&frequency(100_000, 10)));
        assert_eq!(frequency(1000, 0), u8::MAX);
    }
}
