//! Places: the lines of source that store, flush and drain, how often they ran, and how often a
//! crash was tried while what they did was still at stake.

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;

use std::sync::Mutex;

/// What a place does to far memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Act {
    /// A store or a compare-and-swap of one word.
    Store,
    /// A copy of unpublished bytes.
    CopyIn,
    /// A flush.
    Flush,
    /// A drain.
    Drain,
}

impl Act {
    /// As it is printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Act::Store => "store",
            Act::CopyIn => "copy_in",
            Act::Flush => "flush",
            Act::Drain => "drain",
        }
    }
}

/// One line of source that acts on far memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// What it does.
    pub act: Act,
    /// Where it is.
    pub at: &'static Location<'static>,
    /// How often it ran.
    pub hits: u64,
    /// Crash points at which something it did was not yet durable (for a drain: right before it).
    pub crashes: u64,
    /// Most lines (in page mode, sectors) it acted on at once; none for a drain.
    pub units_max: u64,
}

impl fmt::Display for Place {
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
pub(super) type PlaceId = u32;
/// The number of a place nobody recorded.
pub(super) const NOWHERE: PlaceId = u32::MAX;

/// The places of one or many simulated media: share one table among the pools of a run.
#[derive(Default)]
pub struct Places {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    known: HashMap<(Act, &'static Location<'static>), PlaceId>,
    list: Vec<Place>,
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}

impl Places {
    /// An empty table.
    #[must_use]
    pub fn new() -> Places {
        Places::default()
    }

    /// Every place seen, sorted by file, line and act.
    #[must_use]
    pub fn list(&self) -> Vec<Place> {
        let mut list = self.table.lock().expect("no holder panics").list.clone();
        list.sort_by_key(|p| (p.at.file(), p.at.line(), p.at.column(), p.act));
        list
    }

    /// Counts a run of the place, on so many units.
    pub(super) fn hit(&self, act: Act, at: &'static Location<'static>, units: u64) -> PlaceId {
        let table = &mut *self.table.lock().expect("no holder panics");
        let id = *table.known.entry((act, at)).or_insert_with(|| {
            table.list.push(Place {
                act,
                at,
                hits: 0,
                crashes: 0,
                units_max: 0,
            });
            (table.list.len() - 1) as PlaceId
        });
        let place = &mut table.list[id as usize];
        place.hits += 1;
        place.units_max = place.units_max.max(units);
        id
    }

    /// Counts a crash point for each of these, once.
    pub(super) fn crash(&self, ids: impl Iterator<Item = PlaceId>) {
        let mut ids: Vec<PlaceId> = ids.collect();
        ids.sort_unstable();
        ids.dedup();
        let table = &mut *self.table.lock().expect("no holder panics");
        for id in ids {
            if let Some(place) = table.list.get_mut(id as usize) {
                place.crashes += 1;
            }
        }
    }

    pub(super) fn get(&self, id: PlaceId) -> Option<Place> {
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
