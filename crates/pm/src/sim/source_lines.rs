//! Places: the lines of source that store, flush and drain, how often they ran, and how often a
//! crash was tried while what they did was still at stake.

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;

use std::sync::Mutex;

/// What a place does to far memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SourceAction {
    /// A store or a compare-and-swap of one word.
    Store,
    /// A copy of unpublished bytes.
    CopyIn,
    /// A flush.
    Flush,
    /// A drain.
    Drain,
}

impl SourceAction {
    /// As it is printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            SourceAction::Store => "store",
            SourceAction::CopyIn => "copy_in",
            SourceAction::Flush => "flush",
            SourceAction::Drain => "drain",
        }
    }
}

/// One line of source that acts on far memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceLine {
    /// What it does.
    pub act: SourceAction,
    /// Where it is.
    pub at: &'static Location<'static>,
    /// How often it ran.
    pub hits: u64,
    /// Crash points at which something it did was not yet durable (for a drain: right before it).
    pub crashes: u64,
    /// Most lines (in page mode, sectors) it acted on at once; none for a drain.
    pub units_max: u64,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.act.name(), brief(self.at))
    }
}

/// A location as it is printed, from its crate's folder on: `kv/log.rs:88`, `kv/tests/crash.rs:9`.
#[must_use]
pub fn brief(at: &Location<'_>) -> String {
    format!("{}:{}", brief_file(at.file()), at.line())
}

fn brief_file(file: &str) -> String {
    let parts: Vec<&str> = file.split(['/', '\\']).collect();
    let Some(src) = parts.iter().rposition(|&part| part == "src") else {
        let others = ["tests", "benches", "examples"];
        let at = parts.iter().position(|part| others.contains(part));
        return parts[at.unwrap_or(0).saturating_sub(1)..].join("/");
    };
    let path = [&parts[src.saturating_sub(1)..src], &parts[src + 1..]];
    path.concat().join("/")
}

/// A place's number in its table; [`NOWHERE`] when nobody keeps one.
pub(super) type SourceLineId = u32;
/// The number of a place nobody recorded.
pub(super) const NOWHERE: SourceLineId = u32::MAX;

/// The places of one or many simulated media: share one table among the pools of a run.
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
    /// An empty table.
    #[must_use]
    pub fn new() -> SourceLines {
        SourceLines::default()
    }

    /// Every place seen, sorted by file, line and act.
    #[must_use]
    pub fn list(&self) -> Vec<SourceLine> {
        let mut list = self.table.lock().expect("no holder panics").list.clone();
        list.sort_by_key(|p| (p.at.file(), p.at.line(), p.at.column(), p.act));
        list
    }

    /// Counts a run of the place, on so many units.
    pub(super) fn hit(
        &self,
        act: SourceAction,
        at: &'static Location<'static>,
        units: u64,
    ) -> SourceLineId {
        let table = &mut *self.table.lock().expect("no holder panics");
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

    /// Counts a crash point for each of these, once.
    pub(super) fn crash(&self, ids: impl Iterator<Item = SourceLineId>) {
        let mut ids: Vec<SourceLineId> = ids.collect();
        ids.sort_unstable();
        ids.dedup();
        let table = &mut *self.table.lock().expect("no holder panics");
        for id in ids {
            if let Some(place) = table.list.get_mut(id as usize) {
                place.crashes += 1;
            }
        }
    }

    pub(super) fn get(&self, id: SourceLineId) -> Option<SourceLine> {
        self.table
            .lock()
            .expect("no holder panics")
            .list
            .get(id as usize)
            .copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_called_by_its_crate_and_its_path_in_it() {
        for (file, called) in [
            ("crates/kv/src/log.rs", "kv/log.rs"),
            ("crates/pm/src/pool/log.rs", "pm/pool/log.rs"),
            ("crates/check/tests/toy/mod.rs", "check/tests/toy/mod.rs"),
            ("src/log.rs", "log.rs"),
            ("tests/log.rs", "tests/log.rs"),
            (
                "/home/me/registry/src/index/table-1.0.2/src/lib.rs",
                "table-1.0.2/lib.rs",
            ),
            ("log.rs", "log.rs"),
        ] {
            assert_eq!(brief_file(file), called);
        }
    }
}
