//! SOFT: sets with an optimal flushing technique (Zuriel et al., OOPSLA '19).
//!
//! A key and its value are in a node of 32 bytes in far memory. The list that orders the nodes is in DRAM only. So a
//! change flushes one line and drains once, and a search reads no far memory. An open reads every node and rebuilds the
//! list.
//!
//! ```text
//!   DRAM      heads           list nodes (32 bytes each), ordered by the bits of their hashes, lowest bit first
//!             ┌───────┐      ┌────────────────────┐      ┌────────────────────┐
//!           0 │   ────┼─────▶│hash│value│far│link─┼─────▶│hash│value│far│link─┼──▶ heads[1] ─▶ ...
//!             ├───────┤      └─────────────┼──────┘      └─────────────┼──────┘
//!           1 │   ────┼──▶ ...             │                           │
//!   far       └───────┘                    ▼                           ▼
//!   root  ──▶ ┌──────┬─ ... ─┐     ┌───────────────────────┬─────┬───────┬─────┐
//!   newest    │ next │nodes  │     │start, deleted (bytes) │ key │ value │ end │  half a line
//!   area      └──┼───┴─ ... ─┘     └───────────────────────┴─────┴───────┴─────┘
//!                ▼ the area before
//! ```
//!
//! Operations do not wait for each other, except that changes of a key wait for an update of the same key. A node in
//! the list is in one of four states, which are part of its link: `IntendToInsert`, `Inserted`, `IntendToDelete`,
//! `Deleted`. Each change of a state is one compare-and-swap. A thread that needs the next state performs the missing
//! steps itself.
//!
//! # Invariants
//! IX-SOFT-1  A node is live iff `start` equals `end` and differs from `deleted`.
//! IX-SOFT-2  A node is made live by stores in this order, within one line: `start`, key and value, `end`. A crash keeps a
//!     prefix of them. A helper repeats the same stores, which changes nothing.
//! IX-SOFT-3  A node becomes `Inserted` after it is durable, and `Deleted` after its deletion is durable. Searches return
//!     nodes that are `Inserted` or `IntendToDelete`, so they see no volatile data. A new value is stored in the list
//!     after it is durable.
//! IX-SOFT-4  The link of a `Deleted` node does not change any more; the node is unlinked after that. So the list has at most
//!     one node of a key.
//! IX-SOFT-5  An area is durable, without live nodes, before the root names it. It belongs to the table for ever. That the
//!     root names it is durable before any worker but its creator gets a node of it or sees a key in one.
//! IX-SOFT-6  A list node and its node in far memory belong together permanently. Both are in the list or both are free.
//! IX-SOFT-7  An unlinked node is reused only when no thread can still access it (`nodes.rs`).
//!
//! # Crash argument
//! | crash between                  | recovery sees                        | and does                          |
//! |--------------------------------|--------------------------------------|-----------------------------------|
//! | `start`, `end`                 | flags that disagree                  | treats the node as free (IX-SOFT-1)      |
//! | node durable, `Inserted`       | a live node                          | links it: it was not acknowledged |
//! | `deleted`, `Deleted`           | flags that agree                     | treats the node as free           |
//! | run recorded, root             | a run in doubt, not among the areas  | frees it                          |
//! | (a kill) store, drain          | visible bytes that are not durable   | flushes all areas first           |
//!
//! Recovery stores nothing in the areas, so a crash may interrupt it anywhere.
//!
//! # Deviations from the paper
//! The paper has one list per bucket, a fixed number of buckets, and two sentinels in each list. Here one list runs
//! through all buckets (`list.rs`), so that buckets can be split ([`SoftConfig::node_buckets`]) in DRAM alone. It needs
//! no sentinels, so every key is allowed. A list node holds the hash in place of the key, which can be computed from
//! it.
//!
//! The paper uses `ssmem` to decide when a node can be reused. Here threads that change the list are pinned, and
//! searches check afterwards whether nodes were reused meanwhile (`nodes.rs`). A torn node needs no repair, because
//! making it live stores all of it. A change reads the flags of the node's previous use from its `end` in far memory;
//! the paper keeps them in the list node.
//!
//! `update` replaces the value in place, one word (the paper has no update). Meanwhile it holds the node: other updates
//! and removes of that key wait for it; searches and inserts do not. One worker at a time creates an area. It does so
//! while a quarter of an area is left, so that inserts rarely wait for it. An insert into a full pool waits for the
//! threads that may still access the nodes removed last.
//!
//! The published benchmark's version flushes a slot of the stack in place of the node and has no fence (fault
//! `soft.no_flush`). Its recovery treats torn nodes as live (`soft.torn_is_live`), and reads only the areas of the
//! recovering thread (`soft.one_area`).

mod check;
mod layout;
mod list;
mod nodes;
mod ops;
mod recover;
mod resize;
mod tagged_ptr;

use farbank_pm::Medium;
use farbank_pm::Off;
use farbank_pm::fault::{NamedFault, ShowingRuns};
use farbank_pm::sync::{Mutex, unpoisoned};

use crate::error::{IndexError, OpenError};
use crate::index::SpaceUse;
use crate::pool_heap::{PoolPlan, TablePool, TableWorker};
use crate::reserved_key::HashTable;
use list::NodeList;
use nodes::NodePool;

/// The table's name on the command line.
pub const NAME: &str = "soft";

/// Faults of this table.
pub(crate) const FAULTS: [NamedFault; 3] = [
    NamedFault {
        name: "soft.no_flush",
        description: "the flags of a node are not flushed",
        source: "the published benchmark's version (it flushes a slot of the stack)",
        shows_in: None,
    },
    NamedFault {
        name: "soft.torn_is_live",
        description: "recovery links nodes of which only the first flag was stored",
        source: "the published benchmark's version",
        shows_in: None,
    },
    NamedFault {
        name: "soft.one_area",
        description: "recovery reads only one of the areas",
        source: "the published benchmark's version",
        shows_in: None,
    },
];

/// Faults that exploration with threads finds.
pub(crate) const FAULTS_IN_THREADS: [NamedFault; 2] = [
    NamedFault {
        name: "soft.seen_at_once",
        description: "a node is linked as inserted before it is durable",
        source: "what the paper's INTEND_TO_INSERT is for",
        shows_in: None,
    },
    NamedFault {
        name: "soft.reused_at_once",
        description: "an unlinked node is reused while another thread may still access it",
        source: "reclamation without ssmem's epochs",
        shows_in: Some(ShowingRuns::schedules(0x1_0001)),
    },
];

/// Configuration of a table, fixed at its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftConfig {
    /// Binary logarithm of the buckets of a new table.
    pub bucket_bits: u32,
    /// Nodes of an area.
    pub area_nodes: u32,
    /// Target number of buckets per node. While there are fewer, every insert splits some. 0: buckets are never split.
    pub node_buckets: u32,
}

impl SoftConfig {
    /// Returns the paper's configuration with areas of 1 MiB. The table starts with `slots` buckets, rounded down to a
    /// power of two, and grows to two buckets per node.
    #[must_use]
    pub fn paper(slots: u64) -> SoftConfig {
        SoftConfig {
            bucket_bits: slots.max(2).ilog2(),
            area_nodes: 32_766,
            node_buckets: 2,
        }
    }

    /// Returns a configuration so small that a dozen keys split buckets and need a second area.
    #[must_use]
    pub fn small() -> SoftConfig {
        SoftConfig {
            bucket_bits: 1,
            area_nodes: 16,
            node_buckets: 1,
        }
    }

    /// Returns the binary logarithm of the buckets of an opened table with `nodes`.
    fn bits_for(self, nodes: u64) -> u32 {
        let wanted = nodes * u64::from(self.node_buckets);
        self.bucket_bits.max(wanted.max(1).ilog2())
    }

    /// Returns the published variant: buckets are never split.
    #[must_use]
    pub fn published(self) -> SoftConfig {
        SoftConfig {
            node_buckets: 0,
            ..self
        }
    }
}

/// A SOFT hash set with values.
pub struct Soft<M> {
    table_pool: TablePool<M>,
    config: SoftConfig,
    list: NodeList,
    nodes: NodePool,
    areas: Mutex<Vec<Off>>,
}

impl<M: Medium> Soft<M> {
    /// Creates the DRAM state of a table that is expected to have `nodes`.
    fn over(ground: TablePool<M>, config: SoftConfig, nodes: u64) -> Soft<M> {
        Soft {
            list: NodeList::new(config.bits_for(nodes)),
            nodes: NodePool::new(ground.contexts(), (config.area_nodes as usize / 4).max(1)),
            areas: Mutex::default(),
            table_pool: ground,
            config,
        }
    }

    /// Creates an empty table that uses all of `medium`. Durable on `Ok`.
    pub fn create(medium: M, plan: &PoolPlan, config: SoftConfig) -> Result<Soft<M>, OpenError> {
        config.check()?;
        let ground = TablePool::create(medium, plan, &[])?;
        let ground = ground.finish(NAME, &config.words())?;
        Ok(Soft::over(ground, config, 0))
    }

    /// Opens the table on `medium`. Reads every node.
    pub fn open(medium: M) -> Result<Soft<M>, OpenError> {
        let ground = TablePool::open(medium, NAME, |_| Ok(Vec::new()))?;
        let config = SoftConfig::of(ground.config())?;
        let areas = Soft::named_areas(&ground, config)?;
        let nodes = areas.len() as u64 * u64::from(config.area_nodes);
        let table = Soft::over(ground, config, nodes);
        table.recover(&areas)?;
        Ok(table)
    }
}

impl<M: Medium> HashTable for Soft<M> {
    type Medium = M;

    const NAME: &'static str = NAME;

    const RESERVED_KEY: Option<u64> = None;

    fn table_pool(&self) -> &TablePool<M> {
        &self.table_pool
    }

    fn insert_key(
        &self,
        worker: &mut TableWorker,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        self.insert_hashed(worker, self.table_pool.hash(key), key, value)
    }

    fn get_key(&self, _worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError> {
        Ok(self.get_hashed(self.table_pool.hash(key)))
    }

    fn update_key(
        &self,
        worker: &mut TableWorker,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        self.update_hashed(worker, self.table_pool.hash(key), value)
    }

    fn remove_key(&self, worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError> {
        self.remove_hashed(worker, self.table_pool.hash(key))
    }

    fn fetch_keys(&self, keys: &[u64]) {
        self.list
            .fetch(keys.iter().map(|key| self.table_pool.hash(*key)));
    }

    fn each_pair(
        &self,
        _worker: &mut TableWorker,
        each: &mut dyn FnMut(u64, u64),
    ) -> Result<(), IndexError> {
        let hasher = self.table_pool.hasher();
        for bucket in 0..self.list.buckets() {
            self.list.walk(bucket, |node| {
                if node.state.is_seen() {
                    each(hasher.key_of(node.hash), node.value);
                }
            });
        }
        Ok(())
    }

    fn space_for(&self, keys: u64) -> Result<SpaceUse, IndexError> {
        let areas = unpoisoned(self.areas.lock()).len() as u64;
        Ok(SpaceUse {
            keys,
            slots: areas * u64::from(self.config.area_nodes),
            table_bytes: areas * self.config.area_bytes(),
            far_bytes: self.table_pool.far_bytes(),
            dram_bytes: self.list.bytes() + self.nodes.bytes(),
        })
    }

    fn check_table(&self) -> Result<(), IndexError> {
        self.check_all()
    }
}
