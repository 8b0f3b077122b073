//! Which techniques a tree uses: Sherman is all of them, FG none.

use farbank_fabric::Nanos;

use crate::layout::{NodeFormat, NodeLayout};

/// Where a node's lock is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockPlacement {
    /// In the memory server's host memory: an atomic crosses PCIe twice.
    Host,
    /// In its card's own memory (Sherman, section 4.3).
    OnChip,
}

/// What clients of one compute server do before they ask for a lock over the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LocalLockMode {
    /// Nothing: they compete with one another as with everybody.
    None,
    /// One at a time asks, chosen at random of those who wait.
    Table,
    /// One at a time asks, the one that has waited longest.
    Queue,
    /// The same, and a lock is handed on to the next without being released, so often at most.
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

/// What values are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueMode {
    /// Words of 8 bytes, in the leaf.
    Words,
    /// Any bytes, in blocks out of line ([`crate::Client::insert_bytes`]).
    Blocks {
        /// How many at most; no more than [`crate::VALUE_BYTES_MAX`], nor than a chunk of the fabric has.
        bytes_max: usize,
    },
}

/// A tree's techniques and sizes. All compute servers of a tree must agree on `layout`, `values` and `locks`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Config {
    /// How nodes are laid out; a checksum instead of versions means that nodes are written whole.
    pub layout: NodeLayout,
    /// What values are.
    pub values: ValueMode,
    /// Whether an update writes its entry only (Sherman's two levels of versions), not the node.
    pub entries_alone: bool,
    /// Whether writing back and releasing go in one batch (Sherman's command combination).
    pub combine: bool,
    /// Where locks are.
    pub locks: LockPlacement,
    /// What comes before them.
    pub local: LocalLockMode,
    /// How they are released.
    pub release: ReleasePolicy,
    /// Where a release is a round trip of its own: how many more there are before it, while the lock is held. 0 but in
    /// experiments that ask what a longer hold would explain.
    pub lone_release_trips: u32,
    /// Whether a read that took longer than its versions can tell is discarded and made again. `false` only in experiments that
    /// reproduce the published code, which has no such rule: versions may then have wrapped unnoticed.
    pub discards_late_reads: bool,
    /// Locks of a server in its host memory, 1 to [`HOST_LOCKS_MAX`].
    pub host_locks: u64,
    /// Bytes of internal nodes each compute server keeps; 0: none.
    pub cache_bytes: usize,
    /// A client waiting for the same owner so long asks whether that one is alive, in nanoseconds.
    pub doubt_ns: Nanos,
}

/// Times a lock is handed on at most: as in the published code.
const HAND_OVERS_MAX: u32 = 8;
/// Locks that a server has room for in its host memory.
pub const HOST_LOCKS_MAX: u64 = 32 << 10;
const CACHE_BYTES: usize = 500 << 20;

impl Config {
    /// Sherman, all of it, on the safe layout.
    #[must_use]
    pub fn sherman() -> Config {
        Config {
            layout: NodeLayout::new(NodeFormat::Safe),
            values: ValueMode::Words,
            entries_alone: true,
            combine: true,
            locks: LockPlacement::OnChip,
            local: LocalLockMode::HandOver(HAND_OVERS_MAX),
            release: ReleasePolicy::Write,
            lone_release_trips: 0,
            discards_late_reads: true,
            host_locks: HOST_LOCKS_MAX,
            cache_bytes: CACHE_BYTES,
            doubt_ns: 2_500_000,
        }
    }

    /// Sherman on the published layout.
    #[must_use]
    pub fn sherman_published() -> Config {
        Config {
            layout: NodeLayout::new(NodeFormat::Paper),
            ..Config::sherman()
        }
    }

    /// FG (Ziegler et al., SIGMOD 2019) with an index cache and a release by write: Sherman's baseline.
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

    /// How long a read may take, in nanoseconds, before it is discarded.
    pub(crate) fn read_ns_max(&self) -> Nanos {
        match self.discards_late_reads {
            true => self.layout.read_ns_max(),
            false => Nanos::MAX,
        }
    }

    /// The same on nodes of so few entries that splits, merges and new roots are many: for trials.
    #[must_use]
    pub fn with_small_nodes(self) -> Config {
        let entries = match self.layout.format {
            NodeFormat::Safe => 7,
            NodeFormat::Paper => 6,
        };
        Config {
            layout: self.layout.with_keys(self.layout.key_bytes, entries),
            ..self
        }
    }

    /// FG: no cache, a release by fetch-and-add.
    #[must_use]
    pub fn fg() -> Config {
        Config {
            release: ReleasePolicy::FetchAdd,
            cache_bytes: 0,
            ..Config::fg_plus()
        }
    }
}
