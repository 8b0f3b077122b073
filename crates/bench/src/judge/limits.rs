//! What an engine takes of DRAM: by its own account, and by the kernel's.

use farbank_contest::{ContestLimits, Engine};

/// The most DRAM an engine was seen to hold.
#[derive(Clone, Debug, Default)]
pub(super) struct DramPeak {
    /// By its own account, in bytes, by purpose.
    pub parts: Vec<(&'static str, u64)>,
    /// Anonymous memory the process gained since it was made, by the kernel's account.
    pub resident: Option<u64>,
    before: Option<u64>,
}

/// What is for gets that come again and for writes on their way, and so does not grow with the keys.
const BESIDES: [&str; 10] = [
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
    /// Nothing yet. Far memory and whatever the judge holds is present already.
    pub(super) fn new() -> DramPeak {
        DramPeak {
            before: resident_bytes(),
            ..DramPeak::default()
        }
    }

    /// Looks at `engine` once more.
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

    /// All of it, by the engine's account.
    pub(super) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.1).sum()
    }

    /// What grows with the keys.
    pub(super) fn index_bytes(&self) -> u64 {
        let index = self.parts.iter().filter(|part| !BESIDES.contains(&part.0));
        index.map(|part| part.1).sum()
    }

    /// Part of what the round allows.
    pub(super) fn share_of(&self, terms: &ContestLimits) -> f64 {
        self.bytes() as f64 / terms.dram_bytes as f64
    }
}

/// Anonymous memory of this process, as the kernel accounts for it.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("RssAnon:"))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes << 10)
}
