//! A lane: one worker's identity at the door, and what it has spent there.

use std::ops::AddAssign;

/// Exact counts of what one lane asked of the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Lines written back or written around the cache (one per line and call).
    pub lines: u64,
    /// Drains that had something to order: store fences, or requests for a sync.
    pub fences: u64,
    /// Bytes copied in or stored.
    pub bytes: u64,
    /// `fdatasync` calls this lane's drains caused.
    pub syncs: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.lines += other.lines;
        self.fences += other.fences;
        self.bytes += other.bytes;
        self.syncs += other.syncs;
    }
}

/// One worker at the door. A lane is used by one thread at a time.
#[derive(Debug, Default)]
pub struct Lane {
    id: u32,
    /// What this lane has asked of the medium so far.
    pub counters: Counters,
    /// Whether something was copied in or flushed since the last drain.
    pub(crate) undrained: bool,
}

impl Lane {
    /// A lane with an identity of the caller's choosing; the simulator keeps pending flushes by it.
    #[must_use]
    pub fn new(id: u32) -> Lane {
        Lane { id, ..Lane::default() }
    }

    /// This lane's identity.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }
}
