//! [`UnitSurvivors`], the stores of one line or sector that survived a crash.

use std::fmt;
use std::panic::Location;

use super::chains::{CHAINS, ChainIndex, VolatileStore};
use super::source_lines::SourceLines;
use crate::offset::Off;
use crate::source_action::brief;

/// The number of volatile stores of one line or sector that survived a crash, as far as it is decided.
#[derive(Clone, Debug)]
pub struct UnitSurvivors {
    /// Offset of the line or sector.
    pub at: Off,
    /// Number of its stores that survived.
    pub kept: usize,
    /// Number of its stores that were lost. Stores that are neither kept nor lost were never read (lazy
    /// memory only).
    pub lost: usize,
    /// Number of its stores.
    pub of: usize,
    /// If words have chains of their own, the stores kept of each of the eight words: `#` all, `+` some,
    /// `.` none, `?` undecided, `-` the word had no stores.
    pub words: Option<String>,
    /// Source line of the last store, if source lines were counted.
    pub by: Option<&'static Location<'static>>,
}

impl fmt::Display for UnitSurvivors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, kept, of) = (self.at, self.kept, self.of);
        write!(f, "{at:?}: {kept} of {of} stores survived")?;
        if self.kept + self.lost < self.of {
            write!(f, ", {} were lost, the others never read", self.lost)?;
        }
        if let Some(words) = &self.words {
            write!(f, ", words {words}")?;
        }
        self.by
            .map_or(Ok(()), |by| write!(f, " (last by {})", brief(by)))
    }
}

impl UnitSurvivors {
    /// Counts the survivors of a queue. `bounds` returns the least and the most stores that a chain keeps.
    pub(super) fn of(
        at: Off,
        queue: &[VolatileStore],
        bounds: impl Fn(usize) -> (u32, u32),
        places: Option<&SourceLines>,
    ) -> UnitSurvivors {
        let chains = ChainIndex::of(queue);
        let mut total = [0; CHAINS];
        let mut words = ['-'; CHAINS - 1];
        for store in queue {
            total[chains.slot(store)] += 1;
        }
        let (mut kept, mut lost) = (0, 0);
        for (slot, of) in total.iter().enumerate().take(chains.count) {
            let (least, most) = bounds(slot);
            kept += least as usize;
            lost += (of - most) as usize;
        }
        for store in queue.iter().filter(|s| s.chain != 0) {
            let slot = chains.slot(store);
            words[store.chain as usize - 1] = match bounds(slot) {
                (least, most) if least < most => '?',
                (0, _) => '.',
                (least, _) if least == total[slot] => '#',
                _ => '+',
            };
        }
        let apart = queue.iter().any(|s| s.chain != 0);
        UnitSurvivors {
            at,
            kept,
            lost,
            of: queue.len(),
            words: apart.then(|| words.iter().collect()),
            by: queue.last().and_then(|s| Some(places?.get(s.place)?.at)),
        }
    }
}
