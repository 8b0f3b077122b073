//! Bulk building of the index during recovery: group by group, by several threads.

use farbank_pm::Off;
use farbank_pm::sync::atomic::Ordering;
use farbank_pm::sync::unpoisoned;

use super::{
    HashIndex, IndexGroup, LINES_PER_EXPECTED_GROUP, LINES_PER_GROUP, OFFSET_BITS, SLOTS, entry,
    tag_of,
};

/// Fresh rows that one thread fills.
#[derive(Default)]
pub(crate) struct FreshRows {
    first: usize,
    end: usize,
}

impl FreshRows {
    /// Number of rows that a thread allocates at a time.
    const TAKEN: usize = 64;
}

/// An index under construction.
pub(crate) struct BulkBuild {
    index: HashIndex,
    depth: u32,
}

impl BulkBuild {
    /// Starts an index for about `entries` entries, or for `expected` if that is more, with at least `2^depth_min`
    /// groups.
    pub(crate) fn new(entries: u64, expected: u64, depth_min: u32) -> BulkBuild {
        const SLOTS_PER_LINE: u64 = SLOTS as u64;
        let (keys, lines) = if expected > entries {
            (expected, LINES_PER_EXPECTED_GROUP)
        } else {
            (entries, LINES_PER_GROUP)
        };
        let groups = keys / (lines * SLOTS_PER_LINE / 2);
        let depth = groups.max(1).ilog2().max(depth_min);
        let mut index = HashIndex::new(depth);
        if expected > entries {
            // A seventh more than the average, for groups that get more than their share.
            let each = (expected >> depth).max(1);
            let lines = (each + each / 7).div_ceil(SLOTS_PER_LINE);
            index.give_homes(lines as usize);
            index.lines_per_group = lines + 1;
        }
        BulkBuild { index, depth }
    }

    /// Returns how many low hash bits choose a group.
    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// Fills one group with `hashes`: all entries with its low hash bits. Must be called once for each group. `rows`
    /// belongs to the calling thread.
    pub(crate) fn fill(&self, rows: &mut FreshRows, hashes: &[(u64, Off)]) {
        let Some((hash, _)) = hashes.first() else {
            return;
        };
        let number = (hash & ((1 << self.depth) - 1)) as usize;
        let word = self.index.directory.get(number);
        let mut run = IndexGroup::from_word(word.load(Ordering::Relaxed));
        if run.lines * SLOTS < hashes.len() {
            run = self.take(rows, run, hashes.len().div_ceil(SLOTS));
            word.store(run.word(), Ordering::Release);
        }
        for (hash, at) in hashes {
            let fresh = entry(tag_of(*hash, run.depth), *at);
            self.index.probe_rows(run, fresh >> OFFSET_BITS, |row| {
                let slot = row.iter().find(|slot| slot.load(Ordering::Relaxed) == 0)?;
                slot.store(fresh, Ordering::Relaxed);
                Some(())
            });
        }
    }

    /// Replaces a group's run, which is too short, by a run of `lines` fresh rows.
    fn take(&self, rows: &mut FreshRows, old: IndexGroup, lines: usize) -> IndexGroup {
        if rows.end - rows.first < lines {
            rows.first = self.index.take_fresh(FreshRows::TAKEN.max(lines));
            rows.end = rows.first + FreshRows::TAKEN.max(lines);
        }
        let first = rows.first;
        rows.first += lines;
        let more = (lines - old.lines) as u64;
        self.index.lines.fetch_add(more, Ordering::Relaxed);
        let mut space = unpoisoned(self.index.space.lock());
        space.give(old.first, old.lines);
        IndexGroup {
            first,
            lines,
            depth: old.depth,
        }
    }

    /// Frees the rows that a thread did not fill.
    pub(crate) fn done(&self, rows: &FreshRows) {
        let mut space = unpoisoned(self.index.space.lock());
        space.give(rows.first, rows.end - rows.first);
    }

    /// Returns the finished index.
    pub(crate) fn finish(self) -> HashIndex {
        self.index
    }
}
