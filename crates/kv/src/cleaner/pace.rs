//! The cost of cleaning: how many bytes the cleaner must move to gain a byte.

use farbank_pm::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Resolution of the ratio of bytes kept to bytes gained: it is counted in 1 / `PARTS`.
const PARTS: u64 = 16;
/// Maximum ratio of bytes kept to bytes gained.
const KEPT_BYTES_MAX: u64 = 64;
/// Ratio of bytes kept to bytes gained until the first pass begins.
const KEPT_BYTES: u32 = 4;

/// Cost of gaining a byte by cleaning.
#[derive(Debug)]
pub(crate) struct CleaningPace {
    /// Bytes kept for each byte gained in the last pass, times [`PARTS`].
    kept_parts: AtomicU32,
}

impl Default for CleaningPace {
    fn default() -> CleaningPace {
        CleaningPace {
            kept_parts: AtomicU32::new(KEPT_BYTES * PARTS as u32),
        }
    }
}

impl CleaningPace {
    /// Updates the cost when a pass begins. Its victims have `kept` bytes to move, and emptying them gains `gain`
    /// bytes.
    pub(crate) fn note_victims(&self, kept: u64, gain: u64) {
        let parts = kept * PARTS / gain.max(1) + 1;
        let parts = parts.min(KEPT_BYTES_MAX * PARTS) as u32;
        self.kept_parts.store(parts, Relaxed);
    }

    /// Returns the bytes of cleaning that `bytes` appended bytes cost.
    pub(crate) fn debt_of(&self, bytes: u64) -> u64 {
        bytes * u64::from(self.kept_parts.load(Relaxed)) / PARTS
    }
}
