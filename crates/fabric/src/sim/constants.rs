//! Constants of the simulated cluster, and the source of each.
//!
//! *Sherman* (Wang et al., SIGMOD 2022) reports a cluster of eight servers with ConnectX-5 NICs at 100 Gbit/s behind
//! one switch. "Calibrated" values were chosen to reproduce only the paper's lock micro-benchmark and its knee at
//! 256 bytes. "Assumed" values are typical of such hardware and were not fitted.

/// The queues of verbs at a memory server. Verbs of one queue act in the order in which they arrive. A verb that waits
/// for a bucket of host memory delays all verbs behind it in its queue, even those on other addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VerbOrder {
    /// One queue for each thread.
    Thread,
    /// One queue for each compute server, shared by its threads.
    Compute,
    /// One queue for the whole NIC.
    Card,
}

/// Constants of the simulated cluster. [`ClusterConstants::default`] models the paper's cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterConstants {
    /// One-way latency from one NIC to another through the switch, in nanoseconds. Assumed: a round trip of an idle
    /// ConnectX-5 takes 1.8 to 2 us.
    pub wire_ns: u64,
    /// Largest random addition to the latency, in nanoseconds. Batches of one connection stay in order. Assumed:
    /// without jitter, clients that retry a lock fall into step, and one of them may starve.
    pub jitter_ns: u64,
    /// Bandwidth of a NIC in each direction, in bytes per nanosecond: 100 Gbit/s.
    pub bytes_per_ns: f64,
    /// Message rate of a NIC in each direction, per microsecond. Derived: bandwidth is the limit from 256 bytes.
    pub messages_per_us: f64,
    /// Latency between a NIC and its host's memory, in nanoseconds. Assumed.
    pub pcie_ns: u64,
    /// Bandwidth between a NIC and its host's memory, in bytes per nanosecond: 16 lanes of PCIe 3. Assumed.
    pub pcie_bytes_per_ns: f64,
    /// Time for which an atomic on host memory holds its bucket, in nanoseconds: a read and a write over PCIe.
    /// Calibrated.
    pub host_atomic_ns: u64,
    /// Time for which a write of at most one word holds its bucket, in nanoseconds. It first waits for atomics that
    /// hold the bucket.
    pub host_write_holds_ns: u64,
    /// The verb queues of a memory server. Assumed: the NIC has one processing unit for each compute server, and the
    /// unit is blocked while an atomic waits for its bucket. It is known that such units delay each other (Kalia et
    /// al., *Design Guidelines for High Performance RDMA Systems*, ATC 2016). The published code has one connection for
    /// each thread. The lock micro-benchmark is equally fast with every choice, so calibration does not determine it.
    pub verb_order: VerbOrder,
    /// Number of buckets that serialise atomics on host memory. The low bits of the address select one. Assumed.
    pub buckets: usize,
    /// Rate of a NIC's atomics on its own lock memory, per microsecond. Calibrated.
    pub lock_atomics_per_us: f64,
    /// Lock memory of a NIC, in bytes: 256 KiB of a ConnectX-5.
    pub lock_bytes: u64,
    /// Whether a compare-and-swap can apply to only some bits of a word.
    pub masked_cas: bool,
    /// Time to post a batch (the doorbell), in nanoseconds. Assumed.
    pub post_ns: u64,
    /// CPU time of a client's thread to process an answer, in nanoseconds. Assumed.
    pub client_ns: u64,
    /// CPU time of a client's thread for an operation before its first request, in nanoseconds. Code that drives
    /// clients passes it to [`ComputeNode::work`](super::ComputeNode::work). Assumed: an index cache of 475,000 nodes
    /// is a skip list of 19 levels, and most of them miss the CPU caches.
    pub operation_ns: u64,
    /// Time from a client's wake-up of another client on its compute server until that client continues, in
    /// nanoseconds: the transfer of a line between CPU caches, and the current work of the other thread. Calibrated.
    pub wake_ns: u64,
    /// Time of a memory server's thread to serve a call, in nanoseconds. Assumed.
    pub call_ns: u64,
    /// Timeout of a batch or call to a server that does not answer, in nanoseconds.
    pub timeout_ns: u64,
    /// Duration of a lease without renewal, in nanoseconds. After that its holder can be fenced.
    pub lease_ns: u64,
    /// Bytes of a chunk of host memory.
    pub chunk_bytes: u64,
    /// Whether a read takes its lines in increasing order. The default is `false`: a NIC guarantees no order.
    pub read_line_order: bool,
}

impl Default for ClusterConstants {
    fn default() -> ClusterConstants {
        ClusterConstants {
            wire_ns: 850,
            jitter_ns: 100,
            bytes_per_ns: 12.5,
            messages_per_us: 48.8,
            pcie_ns: 300,
            pcie_bytes_per_ns: 12.8,
            host_atomic_ns: 138,
            host_write_holds_ns: 138,
            verb_order: VerbOrder::Compute,
            buckets: 4096,
            lock_atomics_per_us: 21.0,
            lock_bytes: 256 << 10,
            masked_cas: true,
            post_ns: 100,
            client_ns: 100,
            operation_ns: 1_900,
            wake_ns: 720,
            call_ns: 2_000,
            timeout_ns: 2_000_000,
            lease_ns: 5_000_000,
            chunk_bytes: 1 << 20,
            read_line_order: false,
        }
    }
}
