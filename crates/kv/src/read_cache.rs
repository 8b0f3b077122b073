//! The read cache: copies in DRAM of small values that are read often.
//!
//! ```text
//!   hash ──▶ row: a mark for each slot ──▶ slot: 256 bytes
//!            ┌───┬───┬─ ... ─┬───┐         ┌──────┬────────┬────────┬──────────────┬───────┬────────┐
//!            │ 0 │ 1 │       │ 7 │         │ word │ offset │ header │ key          │ value │ unused │
//!            └───┴───┴─ ... ─┴───┘         └──────┴────────┴────────┴──────────────┴───────┴────────┘
//!            a byte of the hash,                   of the   as on    to a multiple
//!            0: the slot is empty                  record   the log  of 8 bytes
//!
//!   word  hash:26  version:37  HELD:1
//! ```
//!
//! A get that hits touches neither the index nor far memory. A get that misses offers the value that it found. An
//! empty slot accepts any value. A full row accepts one only if its key missed before, not long ago: the row
//! remembers its last eight misses, by a byte of the hash each. So a client that reads every key once does not evict
//! the contents of a full cache. The victim is the first slot that has not been read since all slots of the row had
//! been read.
//!
//! A write of a single value replaces the cached one; any other write empties its slot. A single write of a cached
//! key need not read far memory to learn what it replaces: the slot has that record's offset and length.
//!
//! # Invariants
//! KV-CACHE-1  A row belongs to one stripe: there are at least as many rows as stripes, and the lowest bits of the hash
//!     choose both. Marks and slots change only under that stripe's lock.
//! KV-CACHE-2  A slot holds the record to which the index refers. Before a thread (the cleaner, too) changes a key's index
//!     entry, it empties the key's slot, under the same lock. So the slot's offset is that of the key's record, never
//!     that of a later record at the same place.
//! KV-CACHE-3  A slot's word changes before the other words do, each time to a value that it has not had before. So a reader
//!     that finds the same word before and after has read the bytes of one writer. Marks are only hints where to
//!     look.
//! KV-CACHE-4  The cache holds only records in the index, hence only durable ones. A reader that may have to see a listed
//!     write does not use the cache.
//! KV-CACHE-5  A reader does not use the cache while a group is being published: an update may have seen one member, and the
//!     slot of another may still hold the value before the group.

use farbank_pm::Off;
use farbank_pm::fault;
use farbank_pm::grow_table::{GrowTable, append_words, prefetch, prefetch_for_write};
use farbank_pm::simd::{bytes_equal, ones};
use farbank_pm::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::config::READ_CACHE_BYTES_MAX;
use crate::format::record::{HEADER_MAX, RawHeader};
use farbank_store::Key;

const WAYS: usize = 8;
const WORD: usize = 8;
const SLOT_WORDS: usize = 32;
const HEADER_WORDS: usize = HEADER_MAX / WORD;
const HEADER_AT: usize = 2;
const KEY_AT: usize = HEADER_AT + HEADER_WORDS;
const HASH_MASK: u64 = !VERSION_MASK;
const HELD: u64 = 1;
const VERSION_MASK: u64 = (1 << 38) - 1;

farbank_pm::zeroed! {
    #[repr(C, align(64))]
    struct CacheSlot([AtomicU64; SLOT_WORDS]);
}

/// The read cache; see the module's documentation.
pub(crate) struct ReadCache {
    /// Number of rows; 0: the cache is off.
    rows: usize,
    marks: GrowTable<AtomicU64>,
    slots: GrowTable<CacheSlot>,
    /// For each row, one bit for each slot: set if it was read since it was filled, or since all bits were cleared.
    read: GrowTable<AtomicU32>,
    /// For each row, the marks of its last misses, the newest in the lowest byte.
    recent_misses: GrowTable<AtomicU64>,
}

/// A cached value, valid as long as [`CachedValue::still_holds`] returns true.
pub(crate) struct CachedValue<'a> {
    slot: &'a CacheSlot,
    was: u64,
    /// Offset of the record.
    pub(crate) at: Off,
    /// Header of the record, as it is in the log.
    pub(crate) raw: RawHeader,
    value_at: usize,
}

/// A slot that was emptied to take another value of its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EmptiedSlot {
    row: usize,
    way: usize,
}

fn words_of(bytes: usize) -> usize {
    bytes.div_ceil(WORD)
}

#[inline]
fn mark_of(hash: u64) -> u8 {
    ((hash >> 24) as u8).max(1)
}

impl ReadCache {
    /// Creates a cache of about `bytes`; it may be larger because of KV-CACHE-1.
    pub(crate) fn new(bytes: u64, stripes: usize) -> ReadCache {
        let row_bytes = (WAYS * size_of::<CacheSlot>()) as u64;
        let rows = (bytes.min(READ_CACHE_BYTES_MAX) / row_bytes) as usize;
        let rows = match bytes {
            0 => 0,
            _ => rows.next_power_of_two().max(stripes),
        };
        let cache = ReadCache {
            rows,
            marks: GrowTable::new(rows.max(1)),
            slots: GrowTable::new((rows * WAYS).max(1)),
            read: GrowTable::new(rows.max(1)),
            recent_misses: GrowTable::new(rows.max(1)),
        };
        cache.marks.reserve(rows);
        cache.recent_misses.reserve(rows);
        cache.read.reserve(rows);
        cache
    }

    /// Returns the bytes of DRAM that the cache uses when it is full.
    pub(crate) fn bytes(&self) -> u64 {
        let marks = 2 * size_of::<AtomicU64>() + size_of::<AtomicU32>();
        (self.rows * (marks + WAYS * size_of::<CacheSlot>())) as u64
    }

    #[inline]
    pub(crate) fn is_off(&self) -> bool {
        self.rows == 0
    }

    #[inline]
    fn row(&self, hash: u64) -> usize {
        hash as usize & (self.rows - 1)
    }

    #[inline]
    fn slot(&self, row: usize, way: usize) -> &CacheSlot {
        self.slots.get(row * WAYS + way)
    }

    /// Returns the slots of a row that may hold `hash`'s key.
    #[inline(always)]
    fn ways_of(&self, row: usize, hash: u64) -> impl Iterator<Item = usize> {
        let marks = self.marks.get(row).load(Ordering::Relaxed);
        ones(bytes_equal([marks, 0], mark_of(hash))).map(|way| way as usize)
    }

    /// Returns the empty slots of a row, one bit each.
    #[inline]
    fn empty_ways(&self, row: usize) -> u64 {
        let marks = self.marks.get(row).load(Ordering::Relaxed);
        bytes_equal([marks, u64::MAX], 0)
    }

    /// Prefetches the slots that a write of `hash`'s key reads.
    #[inline]
    pub(crate) fn fetch(&self, hash: u64) {
        if self.is_off() {
            return;
        }
        let row = self.row(hash);
        for way in self.ways_of(row, hash) {
            prefetch(self.slot(row, way));
        }
    }

    /// Returns the cached value of `key`.
    #[inline(always)]
    pub(crate) fn find(&self, hash: u64, key: Key<'_>) -> Option<CachedValue<'_>> {
        if self.is_off() {
            return None;
        }
        let row = self.row(hash);
        for way in self.ways_of(row, hash) {
            if let Some(held) = held(self.slot(row, way), hash, key) {
                self.note_read(row, way);
                return Some(held);
            }
        }
        None
    }

    /// Marks a slot as read. Stores only if that changes the word, so that a hot row stays in every reader's CPU
    /// cache.
    #[inline]
    fn note_read(&self, row: usize, way: usize) {
        let read = self.read.get(row);
        let ways = read.load(Ordering::Relaxed);
        if ways >> way & 1 == 0 {
            read.store(ways | 1 << way, Ordering::Relaxed);
        }
    }

    /// Prefetches what [`ReadCache::wants`] accesses after a miss.
    #[inline]
    pub(crate) fn fetch_asked(&self, hash: u64) {
        if !self.is_off() {
            prefetch_for_write(self.recent_misses.get(self.row(hash)));
        }
    }

    /// Returns whether a key that missed should be cached: if its row has an empty slot, or if the key most likely
    /// missed before, not long ago. Otherwise records the miss.
    #[inline]
    pub(crate) fn wants(&self, hash: u64) -> bool {
        if self.is_off() {
            return false;
        }
        let row = self.row(hash);
        if self.empty_ways(row) != 0 {
            return true;
        }
        let asked = self.recent_misses.get(row);
        let (before, mark) = (asked.load(Ordering::Relaxed), mark_of(hash));
        let again = bytes_equal([before, 0], mark) != 0;
        if !again {
            asked.store(before << 8 | u64::from(mark), Ordering::Relaxed);
        }
        again
    }

    /// Empties the slot of `hash`'s key, if it has one. The caller holds the stripe's lock and has not yet changed
    /// the index.
    #[inline]
    pub(crate) fn take(&self, hash: u64) -> Option<EmptiedSlot> {
        if self.is_off() || fault!("kv.read_cache_kept") {
            return None;
        }
        let row = self.row(hash);
        let mut emptied = None;
        for way in self.ways_of(row, hash) {
            let word = self.slot(row, way).0[0].load(Ordering::Relaxed);
            if is_held(word, hash) {
                self.empty(row, way);
                emptied = Some(EmptiedSlot { row, way });
            }
        }
        emptied
    }

    /// Sets the slot's word to the next version, without `HELD` (KV-CACHE-3).
    #[inline]
    fn empty(&self, row: usize, way: usize) {
        let word = &self.slot(row, way).0[0];
        let version = word.load(Ordering::Relaxed) & VERSION_MASK & !HELD;
        word.store((version + 2) & VERSION_MASK, Ordering::Release);
        self.mark(row, way, 0);
    }

    #[inline]
    fn mark(&self, row: usize, way: usize, mark: u8) {
        let marks = self.marks.get(row);
        let mut bytes = marks.load(Ordering::Relaxed).to_le_bytes();
        bytes[way] = mark;
        marks.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
    }

    /// Stores a value, to which the index now refers, in a slot that was emptied. The caller holds the stripe's lock.
    #[inline]
    pub(crate) fn put(
        &self,
        EmptiedSlot { row, way }: EmptiedSlot,
        hash: u64,
        at: Off,
        raw: &RawHeader,
        [key, value]: [&[u8]; 2],
    ) {
        if !fits(key, value) {
            return;
        }
        let slot = &self.slot(row, way).0;
        fence(Ordering::Release); // KV-CACHE-3: a reader that sees a store below sees the slot emptied.
        slot[1].store(at.0, Ordering::Relaxed);
        let (header, rest) = slot[HEADER_AT..].split_at(HEADER_WORDS);
        for (to, word) in header.iter().zip(raw.words()) {
            to.store(word, Ordering::Relaxed);
        }
        let (name, body) = rest.split_at(words_of(key.len()));
        store_bytes(name, key);
        store_bytes(body, value);
        let version = slot[0].load(Ordering::Relaxed) & VERSION_MASK;
        slot[0].store(hash & HASH_MASK | version | HELD, Ordering::Release);
        self.mark(row, way, mark_of(hash));
    }

    /// Stores the record to which the index refers for a key, in place of another one. The caller holds the stripe's
    /// lock.
    #[inline(never)]
    pub(crate) fn offer(&self, hash: u64, at: Off, raw: &RawHeader, body: [&[u8]; 2]) {
        let row = self.row(hash);
        self.slots.reserve((row + 1) * WAYS);
        let place = self.take(hash).unwrap_or_else(|| {
            let way = self.victim(row);
            self.empty(row, way);
            EmptiedSlot { row, way }
        });
        self.put(place, hash, at, raw, body);
    }

    /// Chooses the slot of a row to be replaced: an empty one, or else one that has not been read for long.
    fn victim(&self, row: usize) -> usize {
        if let Some(way) = ones(self.empty_ways(row)).next() {
            return way as usize;
        }
        let read = self.read.get(row);
        let way = read.load(Ordering::Relaxed).trailing_ones() as usize;
        if way < WAYS {
            return way;
        }
        read.store(0, Ordering::Relaxed);
        0
    }

    /// Empties every slot. The caller holds every stripe's lock.
    pub(crate) fn clear(&self) {
        for row in 0..self.rows {
            let marks = self.marks.get(row).load(Ordering::Relaxed).to_le_bytes();
            for (way, _) in marks.iter().enumerate().filter(|(_, mark)| **mark != 0) {
                self.empty(row, way);
            }
        }
    }
}

/// Returns whether a slot with this word most likely holds `hash`'s key.
#[inline(always)]
fn is_held(word: u64, hash: u64) -> bool {
    (word ^ hash) & HASH_MASK == 0 && word & HELD != 0
}

/// Returns the content of `slot`, if it is `key`'s.
#[inline(always)]
fn held<'a>(slot: &'a CacheSlot, hash: u64, key: Key<'_>) -> Option<CachedValue<'a>> {
    for line in slot.0.chunks(WORD).skip(1) {
        prefetch(&line[0]);
    }
    let was = slot.0[0].load(Ordering::Acquire);
    let header = std::array::from_fn(|n| slot.0[HEADER_AT + n].load(Ordering::Relaxed));
    let held = CachedValue {
        slot,
        was,
        at: Off(slot.0[1].load(Ordering::Relaxed)),
        raw: RawHeader::from_words(header),
        value_at: KEY_AT + words_of(key.bytes.len()),
    };
    (is_held(was, hash) && held.is_of(key) && held.still_holds()).then_some(held)
}

/// Returns whether a slot has room for a key and its value.
#[inline]
pub(crate) fn fits(key: &[u8], value: &[u8]) -> bool {
    KEY_AT + words_of(key.len()) + words_of(value.len()) <= SLOT_WORDS
}

#[inline]
fn store_bytes(to: &[AtomicU64], bytes: &[u8]) {
    let (words, tail) = bytes.as_chunks::<WORD>();
    for (to, word) in to.iter().zip(words) {
        to.store(u64::from_le_bytes(*word), Ordering::Relaxed);
    }
    if !tail.is_empty() {
        let mut last = [0; WORD];
        last[..tail.len()].copy_from_slice(tail);
        to[words.len()].store(u64::from_le_bytes(last), Ordering::Relaxed);
    }
}

impl CachedValue<'_> {
    /// Returns whether all bytes read so far belong to one value, to which the index referred when it was found.
    #[inline]
    pub(crate) fn still_holds(&self) -> bool {
        fence(Ordering::Acquire);
        self.slot.0[0].load(Ordering::Relaxed) == self.was || fault!("kv.read_cache_torn")
    }

    #[inline(always)]
    fn is_of(&self, Key { db, bytes: key }: Key<'_>) -> bool {
        if self.raw.db() != db || self.raw.key_len() != key.len() {
            return false;
        }
        let Some(name) = self.slot.0.get(KEY_AT..self.value_at) else {
            return false;
        };
        let (words, tail) = key.as_chunks::<WORD>();
        let mut last = [0; WORD];
        last[..tail.len()].copy_from_slice(tail);
        let ours = words.iter().chain((!tail.is_empty()).then_some(&last));
        name.iter()
            .zip(ours)
            .all(|(word, ours)| word.load(Ordering::Relaxed) == u64::from_le_bytes(*ours))
    }

    /// Appends the value. The bytes are valid only if [`CachedValue::still_holds`] afterwards.
    #[inline]
    pub(crate) fn append(&self, out: &mut Vec<u8>) {
        append_words(&self.slot.0[self.value_at..], self.raw.value_len(), out);
    }
}
