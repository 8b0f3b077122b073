//! The CPU's last-level cache: the resident lines, and which of them are dirty.
//!
//! It has sets of eleven ways with least-recently-used replacement, as Cascade Lake. A load of a resident line costs
//! only a cache hit. Evicted dirty lines go to the memory controller in the order in which sets overflow. That is
//! why plain stores combine badly.

use super::step::Category;

const WAYS: usize = 11;
const EMPTY: u32 = u32::MAX;
const DIRTY: u32 = 1 << 31;

/// Resident lines. Line numbers are below 2^31.
#[derive(Clone, Debug)]
pub(super) struct CpuCache {
    /// Lines of each set, most recently used first.
    sets: Vec<[u32; WAYS]>,
    /// Category of the last store to each of these lines, if the line is dirty.
    dirtied: Vec<[Category; WAYS]>,
}

/// The result of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TouchOutcome {
    pub(super) hit: bool,
    /// The dirty line that was evicted, and the category of the last store to it.
    pub(super) written_back: Option<(u32, Category)>,
}

impl CpuCache {
    /// Creates a cache of `bytes`, rounded down to whole sets.
    pub(super) fn new(bytes: u64) -> CpuCache {
        let sets = (bytes / 64 / WAYS as u64).max(1) as usize;
        CpuCache {
            sets: vec![[EMPTY; WAYS]; sets],
            dirtied: vec![[Category::Other; WAYS]; sets],
        }
    }

    fn set(&self, line: u32) -> usize {
        // A hash of the address selects the set, as on the CPU.
        let hash = u64::from(line.wrapping_mul(0x9e37_79b1));
        ((hash * self.sets.len() as u64) >> u32::BITS) as usize
    }

    /// Accesses `line`; `stored_for` is the category of a store. Afterwards the line is resident, and dirty if this or
    /// an earlier access was a store.
    pub(super) fn touch(&mut self, line: u32, stored_for: Option<Category>) -> TouchOutcome {
        let set = self.set(line);
        let (set, dirtied) = (&mut self.sets[set], &mut self.dirtied[set]);
        let found = set
            .iter()
            .position(|way| *way != EMPTY && *way & !DIRTY == line);
        let at = found.unwrap_or(WAYS - 1);
        let (old, old_for) = (set[at], dirtied[at]);
        set.copy_within(..at, 1);
        dirtied.copy_within(..at, 1);
        let was_dirty = found.is_some() && old & DIRTY != 0;
        let is_dirty = stored_for.is_some() || was_dirty;
        set[0] = line | if is_dirty { DIRTY } else { 0 };
        dirtied[0] = stored_for.unwrap_or(old_for);
        let replaced = found.is_none() && old != EMPTY && old & DIRTY != 0;
        TouchOutcome {
            hit: found.is_some(),
            written_back: replaced.then_some((old & !DIRTY, old_for)),
        }
    }

    /// Cleans `line`, and evicts it unless `keep`. Returns whether it was resident and dirty.
    pub(super) fn clean(&mut self, line: u32, keep: bool) -> bool {
        let set = self.set(line);
        let Some(way) = self.sets[set]
            .iter_mut()
            .find(|way| **way != EMPTY && **way & !DIRTY == line)
        else {
            return false;
        };
        let dirty = *way & DIRTY != 0;
        *way = if keep { line } else { EMPTY };
        dirty
    }
}
