//! The number of leaves that a range reads at once, adapted to the reads that were in time. See `range`.

use std::cell::Cell;

/// Maximum number of leaves read at once.
const LEAVES_MAX: usize = 32;
/// Unit of the number of leaves: an eighth of a leaf. So eight rounds in time increase the number of leaves read at once
/// by one.
const PARTS: usize = 8;

/// The number of leaves that a client's ranges read at once.
pub(crate) struct LeafWindow(Cell<usize>);

impl LeafWindow {
    pub(crate) fn new() -> LeafWindow {
        LeafWindow(Cell::new(LEAVES_MAX * PARTS))
    }

    /// Returns the number of leaves, at least 1.
    pub(crate) fn leaves(&self) -> usize {
        (self.0.get() / PARTS).max(1)
    }

    /// Reduces the window to the number of reads that were in time.
    pub(crate) fn shrink(&self, in_time: usize) {
        self.0.set(in_time * PARTS);
    }

    /// Increases the window by an eighth of a leaf.
    pub(crate) fn grow(&self) {
        let more = self.0.get() + 1;
        self.0.set(more.min(LEAVES_MAX * PARTS));
    }
}
