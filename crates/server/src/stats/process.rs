//! CPU time and memory of the process, as the kernel counts them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Resident memory of the process, in bytes; 0 if the system does not report it.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct ResidentMemory {
    /// The heap, stacks, and all other memory that is not a mapped file.
    pub(crate) anonymous: u64,
    /// Pages of mapped files: the pool, and the program itself.
    pub(crate) files: u64,
}

impl ResidentMemory {
    /// Reads the current figures.
    pub(crate) fn now() -> ResidentMemory {
        ResidentMemory::parse(&std::fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    fn parse(status: &str) -> ResidentMemory {
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib: Option<u64> =
                line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
            kib.unwrap_or(0) * 1024
        };
        ResidentMemory {
            anonymous: bytes("RssAnon:"),
            // A file on tmpfs counts as shared memory.
            files: bytes("RssFile:") + bytes("RssShmem:"),
        }
    }
}

/// Memory of the process over time.
pub(crate) struct MemoryWatch {
    /// [`ResidentMemory::anonymous`] when the server started, and the highest value measured since.
    startup: u64,
    peak: AtomicU64,
}

impl MemoryWatch {
    /// Starts to watch the process's memory.
    pub(crate) fn start() -> MemoryWatch {
        let startup = ResidentMemory::now().anonymous;
        MemoryWatch {
            startup,
            peak: AtomicU64::new(startup),
        }
    }

    /// Measures the memory now.
    pub(crate) fn measure(&self) -> ResidentMemory {
        let now = ResidentMemory::now();
        self.peak.fetch_max(now.anonymous, Ordering::Relaxed);
        now
    }

    /// The highest value of [`ResidentMemory::anonymous`] that was measured.
    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// [`ResidentMemory::anonymous`] when the server started.
    pub(crate) fn startup(&self) -> u64 {
        self.startup
    }
}

/// Seconds since 1970, by the machine's clock.
pub(crate) fn unix_secs() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}

/// Milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(now.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

/// Returns the CPU seconds of this process in user mode and in the kernel.
pub(crate) fn cpu_secs() -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Field 2 is the process's name in parentheses and may contain any characters, so parsing starts after the last `)`
    // with field 3. Fields 14 and 15 are the times, in hundredths of a second.
    let fields: Vec<_> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let secs = |at: usize| {
        let ticks: Option<u64> = fields.get(at).and_then(|field| field.parse().ok());
        ticks.unwrap_or(0) as f64 / 100.0
    };
    (secs(11), secs(12))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_file_is_not_used_memory() {
        let status = "VmRSS:\t 1572864 kB\nRssAnon:\t   40960 kB\nRssFile:\t   12288 kB\n\
                      RssShmem:\t 1519616 kB\n";
        let expected = ResidentMemory {
            anonymous: 40 << 20,
            files: (12 << 20) + (1484 << 20),
        };
        assert_eq!(ResidentMemory::parse(status), expected);
        assert_eq!(ResidentMemory::parse(""), ResidentMemory::default());
    }
}
