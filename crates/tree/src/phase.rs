//! What a compute server's clients are in the middle of: trials choose by it when somebody dies.

use std::cell::Cell;
use std::rc::Rc;

/// Something that takes several steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// It has a lock.
    Holding,
    /// The nodes of a split are on their way, or no separator leads to the new one yet.
    Splitting,
    /// There is a new root that nothing leads to yet.
    Growing,
    /// A leaf's entries are moving to its neighbour.
    Merging,
}

/// How many of the clients are in the middle of what.
#[derive(Default)]
pub(crate) struct PhaseCounts([Cell<u32>; 4]);

impl PhaseCounts {
    /// Whether any client is in the middle of `what`.
    pub(crate) fn any(&self, what: Phase) -> bool {
        self.0[what as usize].get() > 0
    }

    /// Counts one more, until what is returned is dropped.
    pub(crate) fn begin(self: &Rc<PhaseCounts>, what: Phase) -> PhaseGuard {
        let count = &self.0[what as usize];
        count.set(count.get() + 1);
        PhaseGuard {
            all: Rc::clone(self),
            what,
        }
    }
}

/// Something that is not over.
pub(crate) struct PhaseGuard {
    all: Rc<PhaseCounts>,
    what: Phase,
}

impl Drop for PhaseGuard {
    fn drop(&mut self) {
        let count = &self.all.0[self.what as usize];
        count.set(count.get() - 1);
    }
}
