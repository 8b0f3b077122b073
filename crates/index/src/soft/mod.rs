//! SOFT: sets with an optimal flushing technique (Zuriel et al., OOPSLA '19).
//!
//! A key and its value are in a node of 32 bytes in far memory; where it is in the list is known in DRAM alone. So a
//! change flushes one line and drains once, and a search reads no far memory. An open looks at every node there is
//! and builds the list again.
//!
//! ```text
//!   DRAM      heads           list nodes (32 bytes each), in the order of their hashes' bits from the lowest up
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
//! Nobody waits for anybody, but who replaces the value of the same key. A node in the list is in one of four states,
//! which are part of its link: `IntendToInsert`, `Inserted`, `IntendToDelete`, `Deleted`. Each change of a state is one
//! compare-and-swap, and whoever needs the one that comes next does what is missing for it himself.
//!
//! # Invariants
//! I1  A node is live iff `start` is `end` and not `deleted`.
//! I2  A node is made live in this order, within one line: `start`, key and value, `end`. What a crash keeps of it is
//!     a beginning of that. The same stores again, by who helps, change nothing.
//! I3  A node is `Inserted` after it is durable, and `Deleted` after its end is. Searches see those that are `Inserted` or
//!     `IntendToDelete`: nothing visible is volatile. A new value is put in the list after it is durable.
//! I4  The link of a node that is `Deleted` changes no more, and it is unlinked after that. So there is one node of a key in the list
//!     at most.
//! I5  An area is durable, no node in it live, before the root names it. It stays the table's for good, and that it is named
//!     is durable before anybody but its maker has a node of it, or is told of a key in one.
//! I6  A list node and its node in far memory belong together for good; either is in the list or free.
//! I7  A node that was unlinked is used again when nobody can be at it (`nodes.rs`).
//!
//! # Crash argument
//! | crash between                  | recovery sees                        | and does                          |
//! |--------------------------------|--------------------------------------|-----------------------------------|
//! | `start`, `end`                 | flags that disagree                  | takes the node for free (I1)      |
//! | node durable, `Inserted`       | a live node                          | links it: it was not acknowledged |
//! | `deleted`, `Deleted`           | flags that agree                     | takes the node for free           |
//! | run recorded, root             | a run in doubt no area leads to      | frees it                          |
//! | (a kill) store, drain          | what a power cut could take back     | flushes all areas before it serves|
//!
//! Recovery stores nothing, so it can be cut short anywhere.
//!
//! # Where we differ from the paper
//! The paper has a list a bucket, as many as there were at first, and two sentinels in each. Here one list goes through
//! all buckets (`list.rs`), so that buckets can be split ([`Config::node_buckets`]), in DRAM alone; and it needs no sentinels, so
//! every key is allowed. A list node has the hash in place of the key, which it leads back to.
//!
//! The paper's threads are told by `ssmem` when a node can be used again. Here those that change the list are pinned, and
//! searches ask afterwards whether nodes were set free (`nodes.rs`). A torn node needs no mending: making it live stores
//! all of it. What a node's life began with is read in its `end`, in far memory, when it is changed; the paper keeps it in
//! the list node.
//!
//! `update` replaces the value in place, a word (the paper has none). Meanwhile it holds the node: another update and a remove of that key
//! wait for it, searches and inserts do not. New areas are made by one worker at a time; and who inserts into a pool that is
//! full waits for those that may still be at what was removed last. An area is made while a quarter of one is left, so that nobody
//! waits for it.
//!
//! The study's version flushes a slot of its stack in place of the node and has no fence (fault `soft.no_flush`), takes
//! torn nodes for live ones when it recovers (`soft.torn_is_live`), and looks only into the areas of the thread that
//! recovers (`soft.one_area`).

mod layout;
mod list;
mod nodes;
mod ops;
mod recover;
mod resize;
mod tagged_ptr;

use farbank_pm::Medium;
use farbank_pm::Off;
use farbank_pm::fault::NamedFault;
use farbank_pm::sync::Mutex;

use crate::index::{Index, IndexError, SpaceUse};
use crate::pool_heap::{OpenError, PoolPlan, TablePool, TableWorker};
use list::NodeList;
use nodes::NodePool;

/// Its name.
pub const NAME: &str = "soft";

/// Deviations it has by name.
pub(crate) const FAULTS: [NamedFault; 3] = [
    NamedFault {
        name: "soft.no_flush",
        what: "a node that is made or unmade is not flushed",
        source: "the study's version (it flushes a slot of the stack)",
        shows_in: None,
    },
    NamedFault {
        name: "soft.torn_is_live",
        what: "recovery links nodes of which only the first flag was stored",
        source: "the study's version",
        shows_in: None,
    },
    NamedFault {
        name: "soft.one_area",
        what: "recovery looks into one area and not into all",
        source: "the study's version",
        shows_in: None,
    },
];

/// Those that threads find.
pub(crate) const FAULTS_IN_THREADS: [NamedFault; 2] = [
    NamedFault {
        name: "soft.seen_at_once",
        what: "a node is linked as inserted before it is durable",
        source: "what the paper's INTEND_TO_INSERT is for",
        shows_in: None,
    },
    NamedFault {
        name: "soft.reused_at_once",
        what: "a node that was unlinked is handed out while somebody may still be at it",
        source: "reclamation without ssmem's epochs",
        shows_in: None,
    },
];

/// How a table is arranged; fixed when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftConfig {
    /// Buckets of a new table, as a power of two.
    pub bucket_bits: u32,
    /// Nodes of an area.
    pub area_nodes: u32,
    /// Buckets for each node: while there are fewer, every insert has some split. 0: buckets are never split.
    pub node_buckets: u32,
}

impl SoftConfig {
    /// The paper's, with as many buckets as `slots`, a power of two, at first, and two for each node later; areas are of 1 MiB.
    #[must_use]
    pub fn paper(slots: u64) -> SoftConfig {
        SoftConfig {
            bucket_bits: slots.max(2).ilog2(),
            area_nodes: 32_766,
            node_buckets: 2,
        }
    }

    /// Small enough that a dozen keys split buckets and need a second area.
    #[must_use]
    pub fn small() -> SoftConfig {
        SoftConfig {
            bucket_bits: 1,
            area_nodes: 16,
            node_buckets: 1,
        }
    }

    /// Buckets of an opened table that has `nodes`, as a power of two.
    fn bits_for(self, nodes: u64) -> u32 {
        let wanted = nodes * u64::from(self.node_buckets);
        self.bucket_bits.max(wanted.max(1).ilog2())
    }

    /// As published: no growth.
    #[must_use]
    pub fn published(self) -> SoftConfig {
        SoftConfig {
            node_buckets: 0,
            ..self
        }
    }
}

/// The table.
pub struct Soft<M> {
    ground: TablePool<M>,
    config: SoftConfig,
    list: NodeList,
    nodes: NodePool,
    areas: Mutex<Vec<Off>>,
}

impl<M: Medium> Soft<M> {
    /// A table that is to have `nodes`, as far as that is known.
    fn over(ground: TablePool<M>, config: SoftConfig, nodes: u64) -> Soft<M> {
        Soft {
            list: NodeList::new(config.bits_for(nodes)),
            nodes: NodePool::new(ground.contexts(), (config.area_nodes as usize / 4).max(1)),
            areas: Mutex::default(),
            ground,
            config,
        }
    }

    /// Makes an empty table of all of `medium`. Durable on `Ok`.
    pub fn create(medium: M, plan: &PoolPlan, config: SoftConfig) -> Result<Soft<M>, OpenError> {
        config.check()?;
        let ground = TablePool::create(medium, plan, &[])?;
        let ground = ground.finish(NAME, &config.words())?;
        Ok(Soft::over(ground, config, 0))
    }

    /// Opens the table on `medium`, after a crash or not. Reads every node.
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

impl<M: Medium> Index for Soft<M> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn worker(&self) -> Result<TableWorker, IndexError> {
        self.ground.worker()
    }

    fn insert(
        &self,
        worker: &mut TableWorker,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        self.insert_hashed(worker, self.ground.hash(key), key, value)
    }

    fn get(&self, _worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError> {
        let hash = self.ground.hash(key);
        loop {
            let round = self.nodes.round();
            let found = self.list.search(hash);
            if self.nodes.is_still(round) {
                return Ok(found);
            }
        }
    }

    fn update(
        &self,
        worker: &mut TableWorker,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        self.update_hashed(worker, self.ground.hash(key), value)
    }

    fn remove(&self, worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError> {
        self.remove_hashed(worker, self.ground.hash(key))
    }

    fn fetch(&self, keys: &[u64]) {
        self.list
            .fetch(keys.iter().map(|key| self.ground.hash(*key)));
    }

    fn each(
        &self,
        _worker: &mut TableWorker,
        each: &mut dyn FnMut(u64, u64),
    ) -> Result<(), IndexError> {
        let hasher = self.ground.hasher();
        for bucket in 0..self.list.buckets() {
            self.list.walk(bucket, |node| {
                if node.state.is_seen() {
                    each(hasher.key_of(node.hash), node.value);
                }
            });
        }
        Ok(())
    }

    fn space(&self, worker: &mut TableWorker) -> Result<SpaceUse, IndexError> {
        let keys = self.len(worker)?;
        let areas = self.areas.lock().expect("no holder panics").len() as u64;
        Ok(SpaceUse {
            keys,
            slots: areas * u64::from(self.config.area_nodes),
            table_bytes: areas * self.config.area_bytes(),
            far_bytes: self.ground.far_bytes(),
            dram_bytes: self.list.bytes() + self.nodes.bytes(),
        })
    }

    fn check(&self) -> Result<(), IndexError> {
        self.check_all()
    }
}
