//! A context: one worker's identity at the door, and what it has spent there.

use std::ops::AddAssign;

use crate::medium::{LINE, Off, end_of};

/// Exact counts of what one context asked of the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PersistCounters {
    /// Lines written back or written around the cache (one per line and call).
    pub lines: u64,
    /// Drains that had something to order: store fences, or requests for a sync.
    pub fences: u64,
    /// Bytes copied in or stored.
    pub bytes: u64,
    /// `fdatasync` calls this context's drains caused.
    pub syncs: u64,
}

impl AddAssign for PersistCounters {
    fn add_assign(&mut self, other: PersistCounters) {
        self.lines += other.lines;
        self.fences += other.fences;
        self.bytes += other.bytes;
        self.syncs += other.syncs;
    }
}

/// One worker at the door. A context is used by one thread at a time, and by another one only after a
/// drain: a fence completes the stores of the thread that executes it. Else what was written before
/// may not be durable when its ticket is; nothing worse happens.
#[derive(Debug, Default)]
pub struct PersistCtx {
    id: u32,
    /// What this context has asked of the medium so far.
    pub counters: PersistCounters,
    /// Whether something was copied in or flushed since the last drain.
    pub(crate) undrained: bool,
}

impl PersistCtx {
    /// A context with an identity of the caller's choosing; the simulator keeps pending flushes by it.
    #[must_use]
    pub fn new(id: u32) -> PersistCtx {
        PersistCtx {
            id,
            ..PersistCtx::default()
        }
    }

    /// This context's identity.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Counts a copy of `len` bytes to `at`, which the next drain is to make durable.
    #[inline]
    pub(crate) fn copied_in(&mut self, at: Off, len: usize) {
        self.counters.bytes += len as u64;
        self.flushed(at, len);
    }

    /// Counts the lines of `len` bytes at `at`, which the next drain is to make durable.
    #[inline]
    pub(crate) fn flushed(&mut self, at: Off, len: usize) {
        const LINE_BYTES: u64 = LINE as u64;
        if len > 0 {
            self.counters.lines += end_of(at, len).div_ceil(LINE_BYTES) - at.0 / LINE_BYTES;
            self.undrained = true;
        }
    }
}
