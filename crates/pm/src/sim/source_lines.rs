//! Counters for the source lines that store, flush and drain: how often each ran, and at how many crash
//! points its effect was not durable yet.

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::Mutex;

use crate::source_action::{SourceAction, brief};
use crate::sync::ignore_poison;

/// A source line that acts on far memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceLine {
    /// Its action.
    pub act: SourceAction,
    /// Its location.
    pub at: &'static Location<'static>,
    /// Number of executions.
    pub hits: u64,
    /// Number of crash points at which its effect was not durable yet. For a drain: crash points right before it.
    pub crashes: u64,
    /// Largest number of lines (on a file, sectors) in one execution; 0 for a drain.
    pub units_max: u64,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.act.name(), brief(self.at))
    }
}

/// The number of a source line in its table, or [`NOWHERE`] if source lines are not counted.
pub(super) type SourceLineId = u32;
/// The number of a source line that is not recorded.
pub(super) const NOWHERE: SourceLineId = u32::MAX;

/// A table of source lines. The pools of a run can share one.
#[derive(Default)]
pub struct SourceLines {
    table: Mutex<SourceLineTable>,
}

#[derive(Default)]
struct SourceLineTable {
    known: HashMap<(SourceAction, &'static Location<'static>), SourceLineId>,
    list: Vec<SourceLine>,
}

impl fmt::Debug for SourceLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}

impl SourceLines {
    /// Creates an empty table.
    #[must_use]
    pub fn new() -> SourceLines {
        SourceLines::default()
    }

    /// Returns all recorded source lines, sorted by file, line, column and action.
    #[must_use]
    pub fn list(&self) -> Vec<SourceLine> {
        let mut list = ignore_poison(self.table.lock()).list.clone();
        list.sort_by_key(|p| (p.at.file(), p.at.line(), p.at.column(), p.act));
        list
    }

    /// Counts one execution of a source line on `units` lines or sectors.
    pub(super) fn hit(
        &self,
        act: SourceAction,
        at: &'static Location<'static>,
        units: u64,
    ) -> SourceLineId {
        let table = &mut *ignore_poison(self.table.lock());
        let id = *table.known.entry((act, at)).or_insert_with(|| {
            table.list.push(SourceLine {
                act,
                at,
                hits: 0,
                crashes: 0,
                units_max: 0,
            });
            (table.list.len() - 1) as SourceLineId
        });
        let place = &mut table.list[id as usize];
        place.hits += 1;
        place.units_max = place.units_max.max(units);
        id
    }

    /// Counts one crash point for each of these source lines.
    pub(super) fn crash(&self, ids: impl Iterator<Item = SourceLineId>) {
        let mut ids: Vec<SourceLineId> = ids.collect();
        ids.sort_unstable();
        ids.dedup();
        let table = &mut *ignore_poison(self.table.lock());
        for id in ids {
            if let Some(place) = table.list.get_mut(id as usize) {
                place.crashes += 1;
            }
        }
    }

    pub(super) fn get(&self, id: SourceLineId) -> Option<SourceLine> {
        ignore_poison(self.table.lock())
            .list
            .get(id as usize)
            .copied()
    }
}
