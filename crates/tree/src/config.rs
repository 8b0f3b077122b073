//! The techniques that a tree uses. Sherman uses all of them, FG none.

use farbank_fabric::Nanos;

use crate::layout::{NodeFormat, NodeLayout};

/// Location of the locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockPlacement {
    /// In the memory server's host memory: an atomic verb crosses PCIe twice.
    Host,
    /// In the network card's own memory (Sherman, section 4.3).
    OnChip,
}

/// Coordination among the clients of one compute server before they request a lock over the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LocalLockMode {
    /// None: they compete with each other and with all other clients.
    None,
    /// One client at a time requests the lock; the next is chosen at random among the waiting ones.
    Table,
    /// One client at a time requests the lock, in the order of arrival.
    Queue,
    /// Like `Queue`, but a held lock is handed over to the next client without a release, at most this many times in a
    /// row.
    HandOver(u32),
}

/// How a lock is released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReleasePolicy {
    /// By writing zero.
    Write,
    /// By an atomic addition (FG).
    FetchAdd,
}

/// Representation of values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueMode {
    /// Words of 8 bytes, in the leaf.
    Words,
    /// Byte strings, in blocks out of line ([`crate::Client::insert_bytes`]).
    Blocks {
        /// Maximum bytes of a value; at most [`crate::VALUE_BYTES_MAX`] and the size of the fabric's chunks.
        bytes_max: usize,
    },
}

/// Techniques and sizes of a tree. All compute servers of a tree must agree on `layout`, `values` and `locks`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Config {
    /// Layout of nodes. A checksum in place of versions means that nodes are always written whole.
    pub layout: NodeLayout,
    /// Representation of values.
    pub values: ValueMode,
    /// Whether an update writes only its entry, not the node (Sherman's two-level versions).
    pub entries_alone: bool,
    /// Whether the write of a node and the release of its lock go in one batch (Sherman's command combination).
    pub combine: bool,
    /// Whether the batch that takes a node's lock also reads the node, so that a write takes two round trips. A batch that does
    /// not get the lock reads in vain.
    pub reads_with_lock: bool,
    /// Location of the locks.
    pub locks: LockPlacement,
    /// Coordination within a compute server.
    pub local: LocalLockMode,
    /// Whether clients of a compute server share simultaneous reads, and simultaneous writes, of one word value (SMART's read
    /// delegation and write combining).
    pub shares_keys: bool,
    /// Method of release.
    pub release: ReleasePolicy,
    /// Extra round trips before a release that is not part of a batch, while the lock is held. 0 except in experiments
    /// that measure the effect of longer holds.
    pub lone_release_trips: u32,
    /// Whether a read slower than the version window is discarded and repeated. `false` only in experiments that
    /// reproduce the published code, which has no such rule: versions may then have wrapped unnoticed.
    pub discards_late_reads: bool,
    /// Number of locks in a server's host memory, 1 to [`HOST_LOCKS_MAX`].
    pub host_locks: u64,
    /// Maximum bytes of internal nodes in the cache of each compute server; 0: no cache.
    pub cache_bytes: usize,
    /// Whether the cache holds nodes without their free entries.
    pub compact_cache: bool,
    /// Whether a split places the new node on the next memory server. Otherwise it stays on the server of the old node,
    /// which saves a round trip, and a tree keeps the placement of its bulk load.
    pub spread_splits: bool,
    /// Whether compute servers leave unused memory to others at their end, and take such memory before new chunks.
    pub shares_spare: bool,
    /// Maximum time in nanoseconds between the reads of a leaf and of a value's block, divided by the 4,096 numbers of a block. A
    /// block rests for the whole time before its numbers begin again.
    pub block_reuse_ns_min: Nanos,
    /// Maximum age in nanoseconds of a compute server's copy of the list of memory servers when it places a node (`server_list`).
    pub list_ns_max: Nanos,
    /// Time in nanoseconds after which a client that waits for the same lock owner asks the lease manager whether the
    /// owner is alive.
    pub doubt_ns: Nanos,
}

/// Maximum number of hand-overs in a row, as in the published code.
const HAND_OVERS_MAX: u32 = 8;
/// Maximum number of locks in a server's host memory.
pub const HOST_LOCKS_MAX: u64 = 32 << 10;
const CACHE_BYTES: usize = 500 << 20;

impl Config {
    /// Returns this configuration with checksums in the nodes in place of versions: for a network on which a read may take
    /// longer than any version window, such as TCP.
    #[must_use]
    pub fn with_checksums(self) -> Config {
        Config {
            layout: NodeLayout {
                checked: true,
                ..NodeLayout::new(NodeFormat::Paper)
            },
            entries_alone: false,
            ..self
        }
    }

    /// Returns Sherman with all techniques, on the safe layout.
    #[must_use]
    pub fn sherman() -> Config {
        Config {
            layout: NodeLayout::new(NodeFormat::Safe),
            values: ValueMode::Words,
            entries_alone: true,
            combine: true,
            reads_with_lock: false,
            locks: LockPlacement::OnChip,
            local: LocalLockMode::HandOver(HAND_OVERS_MAX),
            shares_keys: false,
            release: ReleasePolicy::Write,
            lone_release_trips: 0,
            discards_late_reads: true,
            host_locks: HOST_LOCKS_MAX,
            cache_bytes: CACHE_BYTES,
            compact_cache: false,
            spread_splits: false,
            shares_spare: false,
            block_reuse_ns_min: 500,
            list_ns_max: Nanos::MAX,
            doubt_ns: 2_500_000,
        }
    }

    /// Returns Sherman on the published layout.
    #[must_use]
    pub fn sherman_published() -> Config {
        Config {
            layout: NodeLayout::new(NodeFormat::Paper),
            ..Config::sherman()
        }
    }

    /// Returns Sherman with what later systems added: the best combination of techniques that Farbank has.
    #[must_use]
    pub fn farbank() -> Config {
        /// Lines that a lookup reads: 256 bytes, the longest message that is not bound by the bandwidth of a NIC.
        const NEIGHBOURHOOD_LINES: usize = 4;
        Config {
            layout: NodeLayout {
                neighbourhood_lines: NEIGHBOURHOOD_LINES,
                ..NodeLayout::new(NodeFormat::Safe)
            },
            shares_keys: true,
            reads_with_lock: true,
            compact_cache: true,
            ..Config::sherman()
        }
    }

    /// Returns FG+: FG (Ziegler et al., SIGMOD 2019) with an index cache and a release by write. It is Sherman's
    /// baseline.
    #[must_use]
    pub fn fg_plus() -> Config {
        Config {
            layout: NodeLayout {
                checked: true,
                ..NodeLayout::new(NodeFormat::Paper)
            },
            entries_alone: false,
            combine: false,
            locks: LockPlacement::Host,
            local: LocalLockMode::None,
            ..Config::sherman()
        }
    }

    /// Returns the time in nanoseconds after which a read is discarded.
    pub(crate) fn read_ns_max(&self) -> Nanos {
        match self.discards_late_reads {
            true => self.layout.read_ns_max(),
            false => Nanos::MAX,
        }
    }

    /// Returns this configuration with so few entries per node that splits, merges and new roots are frequent: for
    /// simulation tests.
    #[must_use]
    pub fn with_small_nodes(self) -> Config {
        let mut layout = self.layout;
        // A neighbourhood is a part of the leaf.
        layout.neighbourhood_lines = layout.neighbourhood_lines.min(2);
        let entries = match layout.format {
            NodeFormat::Safe if layout.is_hashed() => 13,
            NodeFormat::Safe => 7,
            NodeFormat::Paper => 6,
        };
        Config {
            layout: layout.with_keys(layout.key_bytes, entries),
            ..self
        }
    }

    /// Returns FG: no cache, a release by fetch-and-add.
    #[must_use]
    pub fn fg() -> Config {
        Config {
            release: ReleasePolicy::FetchAdd,
            cache_bytes: 0,
            ..Config::fg_plus()
        }
    }
}
