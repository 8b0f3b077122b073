//! Phases of the operations of a compute server's clients. Simulation tests use them to place crashes.

use std::cell::Cell;
use std::rc::Rc;

/// A phase of an operation of several steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// A lock is held.
    Holding,
    /// The nodes of a split are being written, or the new node has no separator yet.
    Splitting,
    /// A new root is being created and is not referenced yet.
    Growing,
    /// A leaf's entries are being moved to its sibling.
    Merging,
    /// A node, or what it leads to, is being moved to another server.
    Draining,
}

/// Number of clients in each phase.
#[derive(Default)]
pub(crate) struct PhaseCounts([Cell<u32>; 5]);

impl PhaseCounts {
    /// Returns whether any client is in phase `what`.
    #[cfg(feature = "check")]
    pub(crate) fn any(&self, what: Phase) -> bool {
        self.0[what as usize].get() > 0
    }

    /// Counts one more client in phase `what`, until the returned guard is dropped.
    pub(crate) fn begin(self: &Rc<PhaseCounts>, what: Phase) -> PhaseGuard {
        let count = &self.0[what as usize];
        count.set(count.get() + 1);
        PhaseGuard {
            all: Rc::clone(self),
            what,
        }
    }
}

/// A client's stay in a phase, ended on drop.
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
