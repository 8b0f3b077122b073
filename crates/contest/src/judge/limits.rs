//! DRAM of an engine: as the engine reports it, and as the kernel accounts it.

use crate::{ContestLimits, Engine};

/// Peak DRAM of an engine.
#[derive(Clone, Debug, Default)]
pub(super) struct DramPeak {
    /// Bytes by purpose, as the engine reports them.
    pub parts: Vec<(&'static str, u64)>,
    /// Growth of the process's anonymous memory, in bytes, as the kernel accounts it.
    pub resident: Option<u64>,
    before: Option<u64>,
}

/// Purposes that do not grow with the keys: caches and buffers.
const NOT_INDEX: [&str; 10] = [
    "read cache",
    "buffers",
    "write cache",
    "head cache",
    "recycle pools",
    "sessions",
    "free lists",
    "flushers",
    "locks",
    "spares",
];

impl DramPeak {
    /// Creates an empty record. Far memory and the judge's own data must be present already.
    pub(super) fn new() -> DramPeak {
        DramPeak {
            before: resident_bytes(),
            ..DramPeak::default()
        }
    }

    /// Samples the DRAM of `engine`.
    pub(super) fn look(&mut self, engine: &dyn Engine) {
        let parts = engine.dram();
        let sum = |parts: &[(&str, u64)]| parts.iter().map(|part| part.1).sum::<u64>();
        if sum(&parts) >= sum(&self.parts) {
            self.parts = parts;
        }
        let gained = resident_bytes()
            .zip(self.before)
            .map(|(now, before)| now.saturating_sub(before));
        self.resident = self.resident.max(gained);
    }

    /// Returns the peak in bytes, as the engine reports it.
    pub(super) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.1).sum()
    }

    /// Returns the part of it that grows with the keys.
    pub(super) fn index_bytes(&self) -> u64 {
        let index = self
            .parts
            .iter()
            .filter(|part| !NOT_INDEX.contains(&part.0));
        index.map(|part| part.1).sum()
    }

    /// Returns the peak as a share of the round's limit.
    pub(super) fn share_of(&self, terms: &ContestLimits) -> f64 {
        self.bytes() as f64 / terms.dram_bytes as f64
    }
}

/// Returns the anonymous memory of this process in bytes, as the kernel accounts it.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("RssAnon:"))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes << 10)
}
