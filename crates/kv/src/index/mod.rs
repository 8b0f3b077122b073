//! The index: the offset of each key's newest durable record. It is in DRAM.
//!
//! ```text
//!   directory                         group: a run of lines            entry (8 bytes)
//!   ┌─────┬─────┬─────┬─ ... ─┐       ┌────────┬────────┬────────┐     ┌───────────┬──────────────┐
//!   │  0  │  1  │  2  │       │──────▶│ line 0 │ line 1 │ line 2 │     │ tag : 26  │ offset/16:38 │
//!   └─────┴─────┴─────┴─ ... ─┘       └────────┴────────┴────────┘     └───────────┴──────────────┘
//!    one word a group:                  8 entries a line (64 bytes)      tag: a 1, then the hash bits
//!    lines, first line, depth                                            that it still stores
//! ```
//!
//! It is linear hashing over groups. The low bits of a hash choose one of N groups. Growth splits one group after
//! another, in order, so that no operation pauses for a resize. Groups that are not split yet hold twice as many keys
//! as split groups. They are longer, not fuller: a group is a run of as many lines as it needs, and an entry's line
//! in it follows from its tag. So memory stays near eight bytes a key at every stage of growth.
//!
//! An index that is created for an expected number of keys gives each group a *home*: a run of its own, in the order
//! of the groups. Most groups stay in their home, so a key's line can be prefetched before its group's word has
//! arrived.
//!
//! A tag holds the hash bits just above those that chose the group. A split uses up the lowest bit: the tag shifts
//! down and stores one bit less. The leading 1 marks how many bits are left. Growth reads a key from far memory only
//! if its entry is so old that its tag has too few bits left (KV-INDEX-5).
//!
//! # Invariants
//! KV-INDEX-1  A group is changed only under its stripe's lock. Stripes are chosen by the lowest hash bits, so a group and
//!     all groups split from it have one stripe.
//! KV-INDEX-2  Readers take no lock. A reader reads the group's word once. The run to which the word points stays readable
//!     while the reader is pinned, and holds what the index held when the word was read or later.
//! KV-INDEX-3  A group's word stores its depth (how many hash bits chose it). A reader that used fewer bits looks again with
//!     that many: its key may have moved to a sibling group.
//! KV-INDEX-4  An entry is in its home line, or in one of the lines after it (cyclically) if every line before it was full.
//!     Removing an entry from a full line leaves a `GONE` mark, so that the line still counts as full.
//! KV-INDEX-5  Every tag stores at least `HOME_BITS` bits: enough to find its line and to split once more.

mod bulk;
mod image;

pub(crate) use bulk::{BulkBuild, FreshRows};
pub(crate) use image::{GroupsImport, RowsImport};

use crossbeam_utils::CachePadded;
use farbank_pm::epoch::EpochTable;
use farbank_pm::grow_table::GrowTable;
use farbank_pm::simd::{ones, upper_halves_equal};
use farbank_pm::sync::atomic::{AtomicU64, Ordering};
use farbank_pm::sync::{Mutex, unpoisoned};
use farbank_pm::{LINE, Off};
use smallvec::SmallVec;

const SLOTS: usize = 8;
const OFFSET_BITS: u32 = 38;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;
const TAG_BITS: u32 = 64 - OFFSET_BITS;
const HOME_BITS: u32 = 12;
/// Mark of a removed entry whose line was full. It has no tag, so it matches nothing.
const GONE: u64 = 1;
/// Position of the tag in an entry's upper half, and the tag bits there that every entry stores (KV-INDEX-5).
const HALF_SHIFT: u32 = OFFSET_BITS - 32;
const HOME_HALF: u32 = ((1 << HOME_BITS) - 1) << HALF_SHIFT;
/// Largest pool that the index can address: 4 TiB.
pub const POOL_BYTES_MAX: u64 = 16 << OFFSET_BITS;
/// Lines of a group, on average, just before the index splits one, if the index was created without an expected number
/// of keys. Splitting longer runs leaves free pieces that no other group can use.
const LINES_PER_GROUP: u64 = 3;
/// Lines of a group in an index created for an expected number of keys. Fewer groups keep their words in the CPU's
/// caches, and no splits are expected.
const LINES_PER_EXPECTED_GROUP: u64 = 8;
/// Number of retired runs from which on an allocation tries to reclaim them.
const RETIRED_MAX: usize = 64;

farbank_pm::zeroed! {
    #[repr(C, align(64))]
    struct IndexRow([AtomicU64; SLOTS]);
}

const _: () = assert!(size_of::<IndexRow>() == LINE || farbank_pm::sync::CHECKED);

/// Entries of a group on their way to another run. Groups of usual length need no heap allocation: growth happens in
/// every thread, and they share the allocator.
type RunEntries = SmallVec<[u64; 8 * SLOTS]>;

/// A group's directory word, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IndexGroup {
    first: usize,
    lines: usize,
    depth: u32,
}

impl IndexGroup {
    fn word(self) -> u64 {
        self.first as u64 | (self.lines as u64) << 40 | u64::from(self.depth) << 56
    }

    fn from_word(word: u64) -> IndexGroup {
        IndexGroup {
            first: (word & ((1 << 40) - 1)) as usize,
            lines: (word >> 40) as usize & 0xffff,
            depth: (word >> 56) as u32,
        }
    }
}

/// Location of a hash's entries: its group, as the directory word was when read, and the tag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketRef {
    number: usize,
    group: IndexGroup,
    tag: u64,
}

/// An entry that may be the key's, and its position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    row: usize,
    slot: usize,
    entry: u64,
}

impl Candidate {
    /// Returns the offset of the record.
    #[inline]
    pub(crate) fn at(&self) -> Off {
        at_of(self.entry)
    }
}

/// The map from hashes to offsets; see the module's documentation.
pub(crate) struct HashIndex {
    directory: GrowTable<AtomicU64>,
    rows: GrowTable<IndexRow>,
    first_depth: u32,
    /// Lines that a group of depth `first_depth` starts with.
    first_lines: usize,
    /// Lines of each group's home run; 0: the index has no homes. Homes lie in the order of the groups from the first
    /// row on. Most groups stay there, so that their lines can be prefetched before their words are read.
    home_lines: usize,
    /// Lines of a group, on average, just before one is split.
    lines_per_group: u64,
    // On other cache lines than the read-only fields above, which every thread reads: these change with every run.
    groups: CachePadded<AtomicU64>,
    lines: CachePadded<AtomicU64>,
    space: CachePadded<Mutex<RowSpace>>,
    /// Rows ever allocated, and rows whose pages have been faulted in ahead of that.
    taken: AtomicU64,
    touched: AtomicU64,
}

/// Allocator of rows.
#[derive(Default)]
struct RowSpace {
    used: usize,
    /// First rows of the free runs, by length in lines.
    free: Vec<Vec<usize>>,
    /// Retired runs that readers may still use: epoch, first row, lines.
    retired: std::collections::VecDeque<(u64, usize, usize)>,
}

/// Returns how many rows to fault in ahead when `taken` are allocated: a quarter, from 512 KiB to 32 MiB.
fn ahead(taken: u64) -> u64 {
    (taken / 4).clamp(8 << 10, 512 << 10)
}

/// Returns the full tag of a hash at a depth.
#[inline]
fn tag_of(hash: u64, depth: u32) -> u64 {
    (hash >> depth) & ((1 << (TAG_BITS - 1)) - 1) | 1 << (TAG_BITS - 1)
}

#[inline]
fn entry(tag: u64, at: Off) -> u64 {
    debug_assert!(at.0.is_multiple_of(16) && at.0 < POOL_BYTES_MAX);
    tag << OFFSET_BITS | at.0 >> 4
}

#[inline]
fn at_of(entry: u64) -> Off {
    Off((entry & OFFSET_MASK) << 4)
}

/// Returns how many hash bits an entry's tag stores.
#[inline]
fn known_bits(entry: u64) -> u32 {
    63 - OFFSET_BITS - entry.leading_zeros()
}

/// Returns whether every hash bit that the entry stores agrees with `tag`. False for empty slots and `GONE` marks.
#[inline]
fn tag_matches(entry: u64, tag: u64) -> bool {
    let theirs = entry >> OFFSET_BITS;
    let differ = (theirs ^ tag) as u32;
    // Every tag stores the low bits (KV-INDEX-5), and most entries of other keys differ in them.
    differ & ((1 << HOME_BITS) - 1) == 0 && theirs != 0 && differ << (32 - known_bits(entry)) == 0
}

/// Returns a free slot of a row.
#[inline]
fn free_slot(row: &[AtomicU64; SLOTS]) -> Option<&AtomicU64> {
    // An entry has a tag, and no tag is all zeros.
    let words = std::array::from_fn(|n| row[n].load(Ordering::Relaxed));
    row.get(upper_halves_equal(words, 0, u32::MAX << HALF_SHIFT).trailing_zeros() as usize)
}

#[inline]
fn home(tag: u64, lines: usize) -> usize {
    (((tag & ((1 << HOME_BITS) - 1)) as usize) * lines) >> HOME_BITS
}

/// What a walk does after it has passed the entries of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WalkStep {
    /// Visit the next group.
    Next,
    /// End. The next walk goes on behind the group.
    Stop,
    /// End. The next walk begins with the group again.
    StopBefore,
}

impl HashIndex {
    /// Creates an index of `2^depth` empty groups.
    pub(crate) fn new(depth: u32) -> HashIndex {
        let groups = 1_usize << depth;
        let directory = GrowTable::new(groups.max(64));
        directory.reserve(groups);
        let index = HashIndex {
            directory,
            rows: GrowTable::new(4096),
            groups: CachePadded::new(AtomicU64::new(groups as u64)),
            lines: CachePadded::default(),
            space: CachePadded::default(),
            taken: AtomicU64::new(0),
            touched: AtomicU64::new(0),
            first_depth: depth,
            first_lines: LINES_PER_GROUP as usize,
            home_lines: 0,
            lines_per_group: LINES_PER_GROUP,
        };
        index.directory_words(0..groups, |_| IndexGroup {
            first: 0,
            lines: 0,
            depth,
        });
        index
    }

    fn directory_words(&self, range: std::ops::Range<usize>, word: impl Fn(usize) -> IndexGroup) {
        for group in range {
            self.directory
                .get(group)
                .store(word(group).word(), Ordering::Release);
        }
    }

    /// Returns the number of hash bits that choose every group, at least. Stripes may use that many.
    pub(crate) fn first_depth(&self) -> u32 {
        self.first_depth
    }

    /// Returns the bytes of DRAM in use: lines, including free ones, and the directory.
    pub(crate) fn bytes(&self) -> u64 {
        let used = unpoisoned(self.space.lock()).used;
        used as u64 * LINE as u64 + self.groups.load(Ordering::Relaxed) * 8
    }

    /// Returns the number of `hash`'s group, unless a split happens meanwhile.
    #[inline]
    fn number(&self, hash: u64) -> u64 {
        let groups = self.groups.load(Ordering::Acquire);
        let level = groups.ilog2();
        let number = hash & ((2 << level) - 1);
        if number >= groups {
            number & ((1 << level) - 1)
        } else {
            number
        }
    }

    /// Returns the group of `hash` and its number (KV-INDEX-3).
    #[inline(always)]
    fn find(&self, hash: u64) -> (usize, IndexGroup) {
        let mut number = self.number(hash);
        loop {
            let word = self.directory.get(number as usize).load(Ordering::Acquire);
            let group = IndexGroup::from_word(word);
            let deeper = hash & ((1 << group.depth) - 1);
            if deeper == number {
                return (number as usize, group);
            }
            number = deeper;
        }
    }

    /// Prefetches the word of `hash`'s group, and its line in the group's home run.
    #[inline]
    pub(crate) fn touch_group(&self, hash: u64) {
        farbank_pm::grow_table::prefetch(self.directory.get(self.number(hash) as usize));
        self.touch_home(hash);
    }

    /// Prefetches `hash`'s line in its group's home run.
    #[inline]
    fn touch_home(&self, hash: u64) {
        if self.home_lines > 0 {
            let number = hash as usize & ((1 << self.first_depth) - 1);
            let line = home(tag_of(hash, self.first_depth), self.home_lines);
            farbank_pm::grow_table::prefetch(self.rows.get(number * self.home_lines + line));
        }
    }

    /// Returns the location of `hash`'s entries.
    #[inline(always)]
    pub(crate) fn spot(&self, hash: u64) -> BucketRef {
        self.touch_home(hash);
        let (number, group) = self.find(hash);
        let tag = tag_of(hash, group.depth);
        BucketRef { number, group, tag }
    }

    /// Prefetches the first line of a search at `spot`.
    #[inline]
    pub(crate) fn touch(&self, spot: &BucketRef) {
        if spot.group.lines > 0 {
            let line = spot.group.first + home(spot.tag, spot.group.lines);
            farbank_pm::grow_table::prefetch(self.rows.get(line));
        }
    }

    /// Returns whether the group has not changed since `spot` was read. Under its stripe's lock it stays so.
    #[inline]
    fn is_current(&self, spot: &BucketRef) -> bool {
        let word = self.directory.get(spot.number).load(Ordering::Acquire);
        word == spot.group.word()
    }

    /// Returns whether neither the group's run nor the entry has changed since they were read. The caller is still
    /// under the same pin, so neither run nor offset can have been freed and reused.
    #[inline]
    pub(crate) fn holds(&self, spot: &BucketRef, hit: &Candidate) -> bool {
        let current = self.is_current(spot);
        let entry = self.rows.get(hit.row).0[hit.slot].load(Ordering::Acquire);
        current && entry == hit.entry
    }

    /// Calls `look` with each entry at `spot` whose tag matches, until it returns a value.
    #[inline(always)]
    pub(crate) fn search_at<R>(
        &self,
        spot: &BucketRef,
        mut look: impl FnMut(Candidate) -> Option<R>,
    ) -> Option<R> {
        let BucketRef { group, tag, .. } = *spot;
        if group.lines == 0 {
            return None;
        }
        let mut line = home(tag, group.lines);
        for _ in 0..group.lines {
            let row = group.first + line;
            let slots = &self.rows.get(row).0;
            let words: [u64; SLOTS] = std::array::from_fn(|n| slots[n].load(Ordering::Relaxed));
            let alike = upper_halves_equal(words, (tag as u32) << HALF_SHIFT, HOME_HALF);
            for slot in ones(alike) {
                let slot = slot as usize;
                let entry = slots[slot].load(Ordering::Acquire);
                if tag_matches(entry, tag)
                    && let Some(answer) = look(Candidate { row, slot, entry })
                {
                    return Some(answer);
                }
            }
            if words.iter().fold(false, |any, word| any | (*word == 0)) {
                return None;
            }
            line = if line + 1 == group.lines { 0 } else { line + 1 };
        }
        None
    }

    /// Returns the first entry at `spot` whose tag matches.
    #[inline(always)]
    pub(crate) fn first(&self, spot: &BucketRef) -> Option<Candidate> {
        self.search_at(spot, Some)
    }

    /// Calls `look` with the offset of each entry whose tag matches `hash`, until it returns a value.
    #[inline]
    pub(crate) fn search<R>(&self, hash: u64, mut look: impl FnMut(Off) -> Option<R>) -> Option<R> {
        self.search_at(&self.spot(hash), |hit| look(hit.at()))
    }

    /// Returns the entry at `spot` that refers to `at`.
    #[inline]
    pub(crate) fn hit(&self, spot: &BucketRef, at: Off) -> Option<Candidate> {
        self.search_at(spot, |hit| (hit.at() == at).then_some(hit))
    }

    /// Returns whether an entry of `hash` refers to `at`.
    pub(crate) fn names(&self, hash: u64, at: Off) -> bool {
        self.hit(&self.spot(hash), at).is_some()
    }

    /// Changes the entry `hit` to refer to `new`. The caller has held the stripe's lock since it found the entry at
    /// `spot`.
    #[inline]
    pub(crate) fn update_entry(&self, spot: &BucketRef, hit: &Candidate, new: Off) {
        debug_assert!(
            self.holds(spot, hit),
            "the entry is where the lookup found it"
        );
        self.rows.get(hit.row).0[hit.slot].store(entry(spot.tag, new), Ordering::Release);
    }

    /// Changes the entry that refers to `old` to refer to `new`. Returns false if there is none. The caller holds the
    /// stripe's lock.
    #[inline]
    pub(crate) fn replace(&self, hash: u64, old: Off, new: Off) -> bool {
        let spot = self.spot(hash);
        let hit = self.hit(&spot, old);
        if let Some(hit) = &hit {
            self.update_entry(&spot, hit, new);
        }
        hit.is_some()
    }

    /// Removes the entry that refers to `at`. Returns false if there is none. The caller holds the stripe's lock.
    pub(crate) fn remove(&self, hash: u64, at: Off) -> bool {
        let Some(Candidate { row, slot, .. }) = self.hit(&self.spot(hash), at) else {
            return false;
        };
        let slots = &self.rows.get(row).0;
        let full = slots.iter().all(|slot| slot.load(Ordering::Relaxed) != 0);
        slots[slot].store(if full { GONE } else { 0 }, Ordering::Release);
        true
    }

    #[inline]
    fn probe_rows<R>(
        &self,
        group: IndexGroup,
        tag: u64,
        visit: impl FnMut(&[AtomicU64; SLOTS]) -> Option<R>,
    ) -> Option<R> {
        let start = home(tag, group.lines);
        let lines = (start..group.lines).chain(0..start);
        lines
            .map(|line| &self.rows.get(group.first + line).0)
            .find_map(visit)
    }

    /// Adds an entry. `rehash` returns the hash of the key of the record at an offset, for old entries whose tags
    /// have too few bits left. The caller holds the stripe's lock.
    pub(crate) fn insert(
        &self,
        hash: u64,
        at: Off,
        epochs: &EpochTable,
        rehash: &dyn Fn(Off) -> Option<u64>,
    ) {
        let spot = self.spot(hash);
        if !self.place(&spot, at) {
            let spot = self.lengthen(&spot, epochs, rehash);
            let placed = self.place(&spot, at);
            debug_assert!(placed, "room was made");
        }
    }

    /// Puts an entry into the first free slot. Returns false if the group is full. The caller holds the stripe's
    /// lock.
    #[inline]
    pub(crate) fn place(&self, spot: &BucketRef, at: Off) -> bool {
        let placed = self.probe_rows(spot.group, spot.tag, |row| {
            let slot = free_slot(row)?;
            slot.store(entry(spot.tag, at), Ordering::Release);
            Some(())
        });
        placed.is_some()
    }

    /// Returns whether [`HashIndex::place`] would find a slot. The caller holds the stripe's lock.
    #[inline]
    pub(crate) fn has_room(&self, spot: &BucketRef) -> bool {
        let free = |row: &[AtomicU64; SLOTS]| free_slot(row).map(|_| ());
        self.probe_rows(spot.group, spot.tag, free).is_some()
    }

    /// Moves a full group to a longer run and returns its new location. The caller holds the stripe's lock.
    #[inline(never)]
    pub(crate) fn lengthen(
        &self,
        spot: &BucketRef,
        epochs: &EpochTable,
        rehash: &dyn Fn(Off) -> Option<u64>,
    ) -> BucketRef {
        let BucketRef { number, group, tag } = *spot;
        let entries = self.entries(group);
        // Grow by one line at a time.
        let lines = self.lines_for(entries.len().max(1), group.depth);
        let run = self.build(&entries, lines, group.depth, epochs, rehash);
        self.directory
            .get(number)
            .store(run.word(), Ordering::Release);
        self.retire(group, epochs);
        BucketRef {
            number,
            group: run,
            tag,
        }
    }

    /// Returns the number of lines of a run for `entries` entries: at least one slot stays free. Groups of the first depth
    /// start with as many lines as they will have when splitting begins: shorter runs could not be reused later.
    fn lines_for(&self, entries: usize, depth: u32) -> usize {
        let lines = match entries {
            0 => return 0,
            entries => entries / SLOTS + 1,
        };
        match depth == self.first_depth {
            true => lines.max(self.first_lines),
            false => lines,
        }
    }

    /// Returns the live entries of a group.
    fn entries(&self, group: IndexGroup) -> RunEntries {
        for line in 0..group.lines {
            farbank_pm::grow_table::prefetch(self.rows.get(group.first + line));
        }
        (0..group.lines)
            .flat_map(|line| &self.rows.get(group.first + line).0)
            .map(|slot| slot.load(Ordering::Relaxed))
            .filter(|entry| *entry > GONE)
            .collect()
    }

    /// Builds a new run that holds `entries`. No reader sees it yet.
    fn build(
        &self,
        entries: &[u64],
        lines: usize,
        depth: u32,
        epochs: &EpochTable,
        rehash: &dyn Fn(Off) -> Option<u64>,
    ) -> IndexGroup {
        if lines == 0 {
            return IndexGroup {
                first: 0,
                lines,
                depth,
            };
        }
        let (first, lines) = self.take(lines, epochs);
        for line in 0..lines {
            farbank_pm::grow_table::prefetch_for_write(self.rows.get(first + line));
        }
        for line in 0..lines {
            for slot in &self.rows.get(first + line).0 {
                slot.store(0, Ordering::Relaxed);
            }
        }
        let group = IndexGroup {
            first,
            lines,
            depth,
        };
        for &old in entries {
            let Some(fresh) = refreshed(old, depth, rehash) else {
                continue;
            };
            self.probe_rows(group, fresh >> OFFSET_BITS, |row| {
                let slot = row.iter().find(|slot| slot.load(Ordering::Relaxed) == 0)?;
                slot.store(fresh, Ordering::Relaxed);
                Some(())
            });
        }
        group
    }

    /// Returns whether a split is due: groups are longer than intended.
    pub(crate) fn wants_split(&self) -> bool {
        self.lines.load(Ordering::Relaxed)
            > self.groups.load(Ordering::Relaxed) * self.lines_per_group
    }

    /// Returns the number of the group to be split next. Its low bits choose its stripe.
    pub(crate) fn next_split(&self) -> u64 {
        let groups = self.groups.load(Ordering::Acquire);
        groups - (1 << groups.ilog2())
    }

    /// Splits the next group. The caller holds that group's stripe, and no other thread splits meanwhile.
    pub(crate) fn split(&self, epochs: &EpochTable, rehash: &dyn Fn(Off) -> Option<u64>) {
        let groups = self.groups.load(Ordering::Acquire);
        let low = self.next_split() as usize;
        let sibling = groups as usize;
        let old = IndexGroup::from_word(self.directory.get(low).load(Ordering::Acquire));
        let (mut stay, mut leave) = (RunEntries::new(), RunEntries::new());
        for entry in self.entries(old) {
            let tag = entry >> OFFSET_BITS;
            let side = if tag & 1 == 0 { &mut stay } else { &mut leave };
            side.push(tag >> 1 << OFFSET_BITS | entry & OFFSET_MASK);
        }
        self.directory.reserve(sibling + 1);
        let depth = old.depth + 1;
        for (number, entries) in [(sibling, leave), (low, stay)] {
            let lines = self.lines_for(entries.len(), depth);
            let run = self.build(&entries, lines, depth, epochs, rehash);
            self.directory
                .get(number)
                .store(run.word(), Ordering::Release);
        }
        self.groups.store(groups + 1, Ordering::Release);
        self.retire(old, epochs);
    }

    /// Returns whether rows are being allocated faster than they are faulted in.
    pub(crate) fn wants_touch(&self) -> bool {
        let taken = self.taken.load(Ordering::Relaxed);
        taken + ahead(taken) / 2 > self.touched.load(Ordering::Relaxed)
    }

    /// Faults in the pages of rows and directory words that will be allocated soon, so that no writer waits for that.
    /// One thread at a time may call this.
    pub(crate) fn fault_in_ahead(&self) {
        const ROWS_PER_PAGE: usize = 4096 / LINE;
        let taken = self.taken.load(Ordering::Relaxed);
        let from = self.touched.load(Ordering::Relaxed).max(taken);
        let to = taken + ahead(taken);
        if from >= to {
            return;
        }
        self.rows.reserve(to as usize);
        for row in (from as usize..to as usize).step_by(ROWS_PER_PAGE) {
            // A write that changes nothing: the row may have been allocated meanwhile.
            self.rows.get(row).0[0].fetch_or(0, Ordering::Relaxed);
        }
        let groups = self.groups.load(Ordering::Relaxed) as usize;
        let soon = groups + groups / 4;
        self.directory.reserve(soon);
        for number in (groups..soon).step_by(4096 / size_of::<u64>()) {
            self.directory.get(number).fetch_or(0, Ordering::Relaxed);
        }
        self.touched.store(to, Ordering::Relaxed);
    }

    /// Removes every entry. The caller holds every stripe's lock.
    pub(crate) fn clear(&self, epochs: &EpochTable) {
        for number in 0..self.groups.load(Ordering::Acquire) as usize {
            let word = self.directory.get(number);
            let group = IndexGroup::from_word(word.load(Ordering::Acquire));
            let empty = IndexGroup {
                first: 0,
                lines: 0,
                depth: group.depth,
            };
            word.store(empty.word(), Ordering::Release);
            self.retire(group, epochs);
        }
    }

    /// Calls `each` with the entries of each group, in hash order from `cursor`, until it ends the walk. Returns the
    /// next cursor; 0 at the end. The entries of a group are passed in the order of their offsets: the order of their
    /// lines would reveal bits of their hashes.
    ///
    /// Hash order is the order of the bit-reversed hashes. A group is one interval of it, and a split cuts the
    /// interval in two. A cursor is a position, bit-reversed again, so that it is a small number.
    pub(crate) fn walk(&self, cursor: u64, mut each: impl FnMut(&[Off]) -> WalkStep) -> u64 {
        let mut position = cursor.reverse_bits();
        loop {
            let (mut offsets, next) = self.entries_at(position);
            offsets.sort_unstable();
            match (each(&offsets), next) {
                (WalkStep::Next, Some(next)) => position = next,
                (WalkStep::Next | WalkStep::Stop, next) => {
                    return next.map_or(0, u64::reverse_bits);
                }
                (WalkStep::StopBefore, _) => return position.reverse_bits(),
            }
        }
    }

    /// Returns the entries of the group that holds `position`, a bit-reversed hash, and the first position behind the
    /// group; `None` at the end.
    pub(crate) fn entries_at(&self, position: u64) -> (Vec<Off>, Option<u64>) {
        let (_, group) = self.find(position.reverse_bits());
        let offsets = self.entries(group).into_iter().map(at_of).collect();
        let width = 1_u64.checked_shl(64 - group.depth).unwrap_or(0);
        let next = (position & !width.wrapping_sub(1)).wrapping_add(width);
        (offsets, (next != 0).then_some(next))
    }

    /// Allocates a run of `lines` rows, or of one more. Returns its first row and its length.
    fn take(&self, lines: usize, epochs: &EpochTable) -> (usize, usize) {
        let mut space = unpoisoned(self.space.lock());
        let mut reused = space.reuse(lines);
        if reused.is_none() && space.retired.len() > RETIRED_MAX {
            let oldest = epochs.oldest_pinned();
            space.reclaim(oldest);
            reused = space.reuse(lines);
        }
        let run = reused.unwrap_or_else(|| {
            let first = space.used;
            space.used += lines;
            self.rows.reserve(space.used);
            self.taken.store(space.used as u64, Ordering::Relaxed);
            (first, lines)
        });
        self.lines.fetch_add(run.1 as u64, Ordering::Relaxed);
        run
    }

    /// Gives every group of an empty index a home run of `lines`, and faults in its pages, so that no writer waits
    /// for that later.
    fn give_homes(&mut self, lines: usize) {
        const ROWS_PER_PAGE: usize = 4096 / LINE;
        let groups = 1_usize << self.first_depth;
        self.rows = GrowTable::new(groups * lines); // One piece: huge pages, and no lookup of the piece.
        let first = self.take_fresh(groups * lines);
        debug_assert_eq!(first, 0, "nothing has been taken yet");
        for row in (0..groups * lines).step_by(ROWS_PER_PAGE) {
            self.rows.get(row).0[0].store(0, Ordering::Relaxed);
        }
        (self.first_lines, self.home_lines) = (lines, lines);
        self.lines = CachePadded::new(AtomicU64::new((groups * lines) as u64));
        self.directory_words(0..groups, |number| IndexGroup {
            first: number * lines,
            lines,
            depth: self.first_depth,
        });
    }

    /// Allocates rows that were never used, and so are zero. Returns the first.
    fn take_fresh(&self, lines: usize) -> usize {
        let mut space = unpoisoned(self.space.lock());
        let first = space.used;
        space.used += lines;
        self.rows.reserve(space.used);
        self.taken.store(space.used as u64, Ordering::Relaxed);
        first
    }

    fn retire(&self, group: IndexGroup, epochs: &EpochTable) {
        if group.lines > 0 {
            self.lines.fetch_sub(group.lines as u64, Ordering::Relaxed);
            let epoch = epochs.retire();
            let mut space = unpoisoned(self.space.lock());
            space.retired.push_back((epoch, group.first, group.lines));
        }
    }
}

impl RowSpace {
    /// Returns a free run of `lines`, or of one more: a single leftover line would be useless.
    fn reuse(&mut self, lines: usize) -> Option<(usize, usize)> {
        let longer = (lines..self.free.len()).find(|n| !self.free[*n].is_empty())?;
        let first = self.free[longer].pop()?;
        let lines = if longer == lines + 1 { longer } else { lines };
        self.give(first + lines, longer - lines);
        Some((first, lines))
    }

    fn give(&mut self, first: usize, lines: usize) {
        if lines > 0 {
            if self.free.len() <= lines {
                self.free.resize_with(lines + 1, Vec::new);
            }
            self.free[lines].push(first);
        }
    }

    fn reclaim(&mut self, oldest: u64) {
        while let Some(&(epoch, first, lines)) = self.retired.front() {
            if epoch >= oldest {
                break;
            }
            self.retired.pop_front();
            self.give(first, lines);
        }
    }
}

/// Returns `entry` with a tag that has enough bits (KV-INDEX-5); `None` if its key can no longer be read.
fn refreshed(entry: u64, depth: u32, rehash: &dyn Fn(Off) -> Option<u64>) -> Option<u64> {
    if known_bits(entry) > HOME_BITS {
        return Some(entry);
    }
    let at = at_of(entry);
    rehash(at).map(|hash| self::entry(tag_of(hash, depth), at))
}

#[cfg(test)]
mod tests;
