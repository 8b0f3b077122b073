//! The state of servers and NICs. All times are in units of 1 / [`PER_NS`](super::PER_NS) ns.

use super::memory::ServerMemory;

/// One server's NIC: the times at which its parts are free.
#[derive(Default)]
pub(super) struct Nic {
    pub(super) tx_free: u64,
    pub(super) rx_free: u64,
    pub(super) atomic_free: u64,
}

/// Whether a memory server works.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerState {
    Alive,
    Dead,
}

pub(super) struct MemoryServer {
    pub(super) state: ServerState,
    /// Number of times its memory started as zeros.
    pub(super) generation: u32,
    pub(super) memory: ServerMemory,
    /// Time at which each bucket of addresses is free for the next atomic.
    pub(super) buckets: Vec<u64>,
    /// Time at which all writes to host memory so far have landed.
    pub(super) written: u64,
    /// First epoch of each compute server that this server does not refuse.
    pub(super) admitted: Vec<u8>,
    /// Time at which the last verb of each queue acts.
    pub(super) newest: QueueTimes,
    /// Time at which the last verb of each queue arrives.
    pub(super) arrived: QueueTimes,
    /// Offset of the next chunk to allocate.
    pub(super) next_chunk: u64,
    /// Time at which the service thread is free.
    pub(super) thread_free: u64,
}

/// A time for each verb queue (see [`VerbOrder`](super::VerbOrder)); 0 for an unused one.
#[derive(Default)]
pub(super) struct QueueTimes(Vec<u64>);

impl QueueTimes {
    pub(super) fn of(&mut self, line: usize) -> &mut u64 {
        if self.0.len() <= line {
            self.0.resize(line + 1, 0);
        }
        &mut self.0[line]
    }
}

pub(super) struct ComputeServer {
    /// Generation of each memory server to which this compute server is connected.
    pub(super) connected: Vec<u32>,
    pub(super) crashed_at: Option<u64>,
    pub(super) paused_until: u64,
}
