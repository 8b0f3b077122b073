//! What the simulated rack is made of, and where each number comes from.
//!
//! Sources: *Sherman* (Wang et al., SIGMOD 2022) reports a cluster of eight servers with ConnectX-5 cards at
//! 100 Gbit/s behind one switch. "Calibrated" numbers were chosen so that the paper's micro-benchmark of locks and
//! its knee at 256 bytes come out; nothing else was looked at for them. "Assumed" numbers are usual for such
//! hardware and were not fitted.

/// Whose verbs are done in the order in which they reach a memory server. One that waits for a bucket of host memory
/// holds up those behind it in its line, even if they want something else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VerbOrder {
    /// Each thread has a line of its own.
    Thread,
    /// All threads of a compute server stand in one.
    Compute,
    /// There is only one.
    Card,
}

/// Numbers of the simulated rack. [`Constants::default`] is the paper's.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterConstants {
    /// From one card to another through the switch, one way, in nanoseconds. Assumed: a round trip of an idle
    /// ConnectX-5 takes 1.8 to 2 us.
    pub wire_ns: u64,
    /// What chance adds to that, at most, in nanoseconds; batches of one connection stay in order. Assumed: without any,
    /// clients that ask for a lock again and again get into step, and one of them may never be the first.
    pub jitter_ns: u64,
    /// Bytes a card moves a nanosecond, in each direction: 100 Gbit/s.
    pub bytes_per_ns: f64,
    /// Messages a card handles a microsecond, in each direction. Derived: bandwidth is the limit from 256 bytes on.
    pub messages_per_us: f64,
    /// Between a card and its host's memory, in nanoseconds. Assumed.
    pub pcie_ns: u64,
    /// Bytes that cross that way a nanosecond: 16 contexts of the third generation. Assumed.
    pub pcie_bytes_per_ns: f64,
    /// An atomic on host memory holds its bucket so long: a read and a write over PCIe. Calibrated.
    pub host_atomic_ns: u64,
    /// A small write to a word of which an atomic is under way waits for the bucket and holds it so long.
    pub host_write_holds_ns: u64,
    /// How many lines there are at a memory server. Assumed: as if its card had a unit for each compute server, which does
    /// nothing else while an atomic waits for its bucket; that such units get in each other's way is known (Kalia et
    /// al., *Design Guidelines for High Performance RDMA Systems*, ATC 2016). The published code has a connection for each
    /// thread. Locks alone are as fast one way as another, so that the calibration says nothing about it.
    pub line: VerbOrder,
    /// Buckets by which a card orders atomics on host memory, by the low bits of the address. Assumed.
    pub buckets: usize,
    /// Atomics a card does a microsecond on its own memory. Calibrated.
    pub lock_atomics_per_us: f64,
    /// Lock memory of a card, in bytes: 256 KiB of a ConnectX-5.
    pub lock_bytes: u64,
    /// Whether some bits of a word can be compared and swapped.
    pub masked_cas: bool,
    /// Posting a batch, once, in nanoseconds: the doorbell. Assumed.
    pub post_ns: u64,
    /// What a client's thread does with an answer before it asks for more, in nanoseconds. Assumed.
    pub client_ns: u64,
    /// What a client's thread does for an operation before it asks for anything, in nanoseconds: for those who drive
    /// clients, see [`Node::work`](super::Node::work). Assumed: an index cache of 475,000 nodes is a skip list of 19
    /// levels, most of them a miss of the processor's caches.
    pub operation_ns: u64,
    /// From one client's calling another of its compute server to that one's going on, in nanoseconds: a line that goes from
    /// one processor's cache to another's, and what that one was at. Calibrated.
    pub wake_ns: u64,
    /// A call served by a memory server's thread, in nanoseconds. Assumed.
    pub call_ns: u64,
    /// A batch to a server that does not answer fails after so long, in nanoseconds.
    pub timeout_ns: u64,
    /// A compute server that has not renewed its lease for so long may be declared dead, in nanoseconds.
    pub lease_ns: u64,
    /// Bytes of a chunk of host memory.
    pub chunk_bytes: u64,
    /// Whether the lines of a read are taken in increasing order. They are not: a card promises no order.
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
            line: VerbOrder::Compute,
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
