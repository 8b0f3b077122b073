//! The fault of a cycle, and its draw.

use std::time::Duration;

use farbank_pm::rng::Rng;

use super::ClusterOptions;

/// A process of the cluster, by its number among those of its kind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ClusterNode {
    Compute(usize),
    Memory(usize),
}

/// The fault of a cycle.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CycleFault {
    None,
    /// A compute process is killed.
    Kill(usize),
    /// A compute process is paused for three leases.
    Pause(usize),
    /// A memory server is killed and started again.
    Restart(usize),
    /// The host of a process is cut off for a time.
    Cut(ClusterNode, CutLength),
}

/// Duration of a cut.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CutLength {
    /// Longer than [`wait_max`](super::wait_max), so that a wait for its end is found.
    Long,
    /// Less than half of a lease.
    Short(Duration),
}

impl CutLength {
    /// Returns the duration with leases of `lease`.
    pub(super) fn duration(self, lease: Duration) -> Duration {
        match self {
            CutLength::Long => 7 * lease,
            CutLength::Short(time) => time,
        }
    }
}

impl CycleFault {
    /// Draws the fault of a cycle with `servers` memory servers.
    pub(super) fn draw(options: &ClusterOptions, servers: usize, rng: &mut Rng) -> CycleFault {
        let process = rng.below(options.processes as u64) as usize;
        let server = rng.below(servers as u64) as usize;
        // Half of the cycles of a cluster with hosts cut one off.
        if options.has_hosts && rng.below(2) == 0 {
            let node = match rng.below(6) {
                0 => ClusterNode::Memory(server),
                _ => ClusterNode::Compute(process),
            };
            return CycleFault::Cut(node, draw_cut(options.lease, rng));
        }
        match rng.below(8) {
            0 => CycleFault::None,
            1..4 => CycleFault::Kill(process),
            4 | 5 => CycleFault::Pause(process),
            _ => CycleFault::Restart(server),
        }
    }

    /// Returns the compute process that it strikes.
    pub(super) fn struck(self) -> Option<usize> {
        match self {
            CycleFault::Kill(process)
            | CycleFault::Pause(process)
            | CycleFault::Cut(ClusterNode::Compute(process), _) => Some(process),
            CycleFault::None
            | CycleFault::Restart(_)
            | CycleFault::Cut(ClusterNode::Memory(_), _) => None,
        }
    }

    /// Returns whether it makes all processes wait for a memory server.
    pub(super) fn is_of_server(self) -> bool {
        matches!(
            self,
            CycleFault::Restart(_) | CycleFault::Cut(ClusterNode::Memory(_), _)
        )
    }
}

/// Draws the duration of a cut: longer than a lease, or shorter than half of one.
fn draw_cut(lease: Duration, rng: &mut Rng) -> CutLength {
    const SHORT_MS_MIN: u64 = 10;
    let short = SHORT_MS_MIN..lease.as_millis() as u64 / 2;
    match rng.below(2) {
        0 => CutLength::Long,
        _ => {
            let ms = short.start + rng.below(short.end - short.start);
            CutLength::Short(Duration::from_millis(ms))
        }
    }
}
