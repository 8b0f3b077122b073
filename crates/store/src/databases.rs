//! The numbers of databases: a database that clients call by one number may be stored under another one.
//!
//! ```text
//!   clients:  0 1 2 3 ...       SWAPDB 0 2       0 1 2 3 ...
//!             │ │ │ │          ──────────▶        ╲ │ ╱ │
//!   records:  0 1 2 3 ...                        0 1 2 3 ...     records keep their stored number
//! ```
//!
//! A swap changes the mapping and no record. A [`SharedDatabaseMap`] is the mapping of an open store, which all sessions
//! read. An operation takes a [`DatabaseView`], and asks afterwards whether the mapping was in force all the time.

use farbank_pm::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    fence,
};
use farbank_pm::sync::thread;

use crate::value::{DATABASES, Key};

/// Bits of a number in a mapping.
const NUMBER_BITS: u32 = u64::BITS / DATABASES as u32;
/// The mapping of every number to itself.
const IDENTITY: u64 = 0xfedc_ba98_7654_3210;

const _: () = assert!(DATABASES == 16);

/// A mapping from the databases' numbers to the numbers in records, which is a permutation.
///
/// ```
/// use farbank_store::DatabaseMap;
///
/// let map = DatabaseMap::default().swapped(0, 2).swapped(2, 5);
/// assert_eq!([0, 2, 5].map(|db| map.stored(db)), [2, 5, 0]);
/// assert_eq!(map.shown(0), 5);
/// assert_eq!(DatabaseMap::from_word(map.to_word()), Some(map));
/// assert_eq!(DatabaseMap::default().to_word(), 0);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatabaseMap(u64);

impl Default for DatabaseMap {
    fn default() -> DatabaseMap {
        DatabaseMap(IDENTITY)
    }
}

impl DatabaseMap {
    /// Returns the mapping that [`DatabaseMap::to_word`] has encoded as `word`. `None` if the word is no permutation.
    #[must_use]
    pub fn from_word(word: u64) -> Option<DatabaseMap> {
        let map = DatabaseMap(word ^ IDENTITY);
        let numbers = (0..DATABASES as u8).fold(0_u32, |found, db| found | 1 << map.stored(db));
        (numbers == (1 << DATABASES) - 1).then_some(map)
    }

    /// Returns the mapping as a word: 4 bits for each database, the lowest for database 0, xor its own number. So 0 is the
    /// mapping of every number to itself.
    #[must_use]
    pub fn to_word(self) -> u64 {
        self.0 ^ IDENTITY
    }

    /// Returns the number in the records of database `db`. The number of no database is returned as it is.
    #[inline(always)]
    #[must_use]
    pub fn stored(self, db: u8) -> u8 {
        match usize::from(db) < DATABASES {
            true => (self.0 >> (u32::from(db) * NUMBER_BITS)) as u8 & (DATABASES as u8 - 1),
            false => db,
        }
    }

    /// Returns the database whose records have the number `stored`. A number that no record has is returned as it is.
    #[must_use]
    pub fn shown(self, stored: u8) -> u8 {
        let mut all = 0..DATABASES as u8;
        all.find(|db| self.stored(*db) == stored).unwrap_or(stored)
    }

    /// Returns the mapping after an exchange of the databases `first` and `second`, which are below [`DATABASES`].
    #[must_use]
    pub fn swapped(self, first: u8, second: u8) -> DatabaseMap {
        let changes = u64::from(self.stored(first) ^ self.stored(second));
        let at = |db: u8| u32::from(db) * NUMBER_BITS;
        match first == second {
            true => self,
            false => DatabaseMap(self.0 ^ changes << at(first) ^ changes << at(second)),
        }
    }

    /// Returns `key` with the number in its records.
    #[inline]
    #[must_use]
    pub fn stored_key(self, key: Key<'_>) -> Key<'_> {
        Key {
            db: self.stored(key.db),
            ..key
        }
    }
}

/// A mapping as an operation has read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DatabaseView {
    /// The mapping.
    pub map: DatabaseMap,
    /// Number of its version, which is even.
    version: u64,
}

/// The mapping of an open store. A seqlock: readers never wait for more than the store of two words.
#[derive(Debug, Default)]
pub struct SharedDatabaseMap {
    /// Even; odd while the mapping changes.
    version: AtomicU64,
    /// The mapping as [`DatabaseMap::to_word`] encodes it.
    word: AtomicU64,
    /// Number of swaps of each database since the store was opened.
    swaps: [AtomicU64; DATABASES],
}

impl SharedDatabaseMap {
    /// Creates the mapping of a store that is being opened.
    #[must_use]
    pub fn new(map: DatabaseMap) -> SharedDatabaseMap {
        SharedDatabaseMap {
            word: AtomicU64::new(map.to_word()),
            ..SharedDatabaseMap::default()
        }
    }

    /// Returns the mapping. It is that of the view's version only if [`SharedDatabaseMap::is_current`] returns true later.
    #[inline(always)]
    pub fn view(&self) -> DatabaseView {
        loop {
            let version = self.version.load(Acquire);
            if version.is_multiple_of(2) {
                let map = DatabaseMap(self.word.load(Acquire) ^ IDENTITY);
                return DatabaseView { map, version };
            }
            thread::yield_now();
        }
    }

    /// Returns whether the mapping has not changed since `view` was taken. What the caller has read in between was read
    /// under this mapping.
    #[inline(always)]
    pub fn is_current(&self, view: &DatabaseView) -> bool {
        fence(Acquire);
        self.version.load(Relaxed) == view.version
    }

    /// Exchanges the databases `first` and `second`. The caller excludes other changes.
    pub fn swap(&self, first: u8, second: u8) {
        let after = self.view().map.swapped(first, second);
        self.version.fetch_add(1, AcqRel);
        self.word.store(after.to_word(), Release);
        for db in [first, second] {
            self.swaps[usize::from(db)].fetch_add(1, Relaxed);
        }
        self.version.fetch_add(1, AcqRel);
    }

    /// Returns how often database `db` was exchanged with another one since the store was opened.
    pub fn swaps(&self, db: u8) -> u64 {
        self.swaps[usize::from(db)].load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use farbank_pm::rng::Rng;

    use super::*;

    #[test]
    fn a_mapping_of_random_swaps_stays_a_permutation_with_its_inverse() {
        let (mut random, mut map) = (Rng::new(1), DatabaseMap::default());
        let mut expected: [u8; DATABASES] = std::array::from_fn(|db| db as u8);
        for _ in 0..1000 {
            let [a, b] = [(); 2].map(|()| random.below(DATABASES as u64) as u8);
            map = map.swapped(a, b);
            expected.swap(usize::from(a), usize::from(b));
            for (db, stored) in (0..).zip(expected) {
                assert_eq!((map.stored(db), map.shown(stored)), (stored, db));
            }
            assert_eq!(DatabaseMap::from_word(map.to_word()), Some(map));
        }
    }

    #[test]
    fn a_word_that_is_no_permutation_is_refused() {
        assert_eq!(DatabaseMap::from_word(0), Some(DatabaseMap::default()));
        assert_eq!(DatabaseMap::from_word(1), None);
        assert_eq!(DatabaseMap::from_word(u64::MAX << 60), None);
    }

    #[test]
    fn a_view_is_current_until_the_next_swap() {
        let shared = SharedDatabaseMap::default();
        let view = shared.view();
        assert!(shared.is_current(&view));
        shared.swap(3, 4);
        assert!(!shared.is_current(&view));
        assert_eq!(shared.view().map.stored(3), 4);
        shared.swap(4, 3);
        assert!(
            !shared.is_current(&view),
            "each swap makes a new version, even if the mapping is the same"
        );
        assert_eq!([3, 4, 5].map(|db| shared.swaps(db)), [2, 2, 0]);
    }
}
