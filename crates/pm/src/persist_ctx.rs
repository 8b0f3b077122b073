//! [`PersistCtx`], the persistence context of one thread, and its counters.

use std::ops::AddAssign;

use crate::offset::{LINE, Off, end_offset};

/// Exact counts of one context's operations on the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PersistCounters {
    /// Lines written back, or written around the cache (one per line and call).
    pub lines: u64,
    /// Drains after at least one flush or copy: store fences, or requests for a sync.
    pub fences: u64,
    /// Bytes copied in or stored.
    pub bytes: u64,
    /// `fdatasync` calls that this context's drains caused.
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

/// The persistence context of one thread: what it has written and not yet drained.
///
/// One thread at a time uses a context. Another thread may take it over only after a drain, because a
/// fence completes only the stores of the thread that executes it. Otherwise earlier writes may not be
/// durable when their ticket is; there is no other harm.
#[derive(Debug, Default)]
pub struct PersistCtx {
    id: u32,
    /// Counts of this context's operations so far.
    pub counters: PersistCounters,
    /// Whether bytes were copied in or flushed since the last drain.
    undrained: bool,
}

impl PersistCtx {
    /// Creates a context with an identity that the caller chooses. The simulator keeps pending flushes by
    /// it, so contexts of one medium have different ones.
    #[must_use]
    pub fn new(id: u32) -> PersistCtx {
        PersistCtx {
            id,
            ..PersistCtx::default()
        }
    }

    /// Returns the context's identity.
    #[inline]
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns whether bytes were copied in or flushed since the last drain.
    #[inline]
    pub(crate) fn is_undrained(&self) -> bool {
        self.undrained
    }

    /// Records a drain. Returns whether bytes were copied in or flushed since the last one.
    #[inline]
    pub(crate) fn take_undrained(&mut self) -> bool {
        std::mem::take(&mut self.undrained)
    }

    /// Counts a copy of `len` bytes to `at`, which the next drain makes durable.
    #[inline]
    pub(crate) fn copied_in(&mut self, at: Off, len: usize) {
        self.counters.bytes += len as u64;
        self.flushed(at, len);
    }

    /// Counts the lines of the `len` bytes at `at`, which the next drain makes durable.
    #[inline]
    pub(crate) fn flushed(&mut self, at: Off, len: usize) {
        const LINE_BYTES: u64 = LINE as u64;
        if len > 0 {
            self.counters.lines += end_offset(at, len).div_ceil(LINE_BYTES) - at.0 / LINE_BYTES;
            self.undrained = true;
        }
    }
}
