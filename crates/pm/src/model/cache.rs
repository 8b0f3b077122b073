//! The processor's last-level cache: which lines are resident, and which of them are dirty.
//!
//! Sets of eleven ways, as Cascade Lake's are, the least lately used one replaced. A line found in it costs a load no more
//! than the cache; a dirty one that is replaced goes to the memory controller in whatever order sets
//! overflow, which is why plain stores combine badly.

use super::step::Category;

const WAYS: usize = 11;
const EMPTY: u32 = u32::MAX;
const DIRTY: u32 = 1 << 31;

/// Resident lines. Line numbers are below 2^31.
#[derive(Clone, Debug)]
pub(super) struct CpuCache {
    /// Lines of each set, the one used last first.
    sets: Vec<[u32; WAYS]>,
    /// What each of them was last stored to for, as long as it is dirty.
    dirtied: Vec<[Category; WAYS]>,
}

/// What was looked for, and what had to leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TouchOutcome {
    pub(super) hit: bool,
    /// A dirty line that was replaced, and what it was last stored to for.
    pub(super) written_back: Option<(u32, Category)>,
}

impl CpuCache {
    /// A cache of `bytes`, rounded down to whole sets.
    pub(super) fn new(bytes: u64) -> CpuCache {
        let sets = (bytes / 64 / WAYS as u64).max(1) as usize;
        CpuCache {
            sets: vec![[EMPTY; WAYS]; sets],
            dirtied: vec![[Category::Other; WAYS]; sets],
        }
    }

    fn set(&self, line: u32) -> usize {
        // Sets are chosen by a hash of the address, as on the processor.
        let hash = u64::from(line.wrapping_mul(0x9e37_79b1));
        ((hash * self.sets.len() as u64) >> u32::BITS) as usize
    }

    /// Uses `line`: it is resident afterwards, and dirty if it is stored to for something or if it was.
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

    /// Whether `line` is resident and dirty; it is clean afterwards, and gone unless `keep`.
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
