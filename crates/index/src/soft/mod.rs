//! SOFT: sets with an optimal flushing technique (Zuriel et al., OOPSLA '19).
//!
//! A key and its value are in a node of 32 bytes in far memory; which list they are in is known in DRAM alone. So a
//! change flushes one line and drains once, and a search reads no far memory. An open looks at every node there is
//! and builds the lists again.
//!
//! ```text
//!   DRAM      heads           list nodes (32 bytes each), by key
//!             ┌───────┐      ┌───────────────────┐      ┌───────────────────┐
//!             │   ────┼─────▶│key│value│far│ next─┼─────▶│key│value│far│ 0    │
//!             ├───────┤      └────────────┼──────┘      └────────────┼──────┘
//!             │   0   │                   │                          │
//!   far       └───────┘                   ▼                          ▼
//!   root  ──▶ ┌──────┬─ ... ─┐    ┌───────────────────────────┬─────┬───────┐
//!   newest    │ next │nodes  │    │start, end, deleted (bytes)│ key │ value │  half a line
//!   area      └──┼───┴─ ... ─┘    └───────────────────────────┴─────┴───────┘
//!                ▼ the area before
//! ```
//!
//! # Invariants
//! I1  A node is live iff `start` is `end` and not `deleted`.
//! I2  A node is made live in this order, within one line: `start`, key and value, `end`. What a crash keeps of it is
//!     a beginning of that.
//! I3  A node is linked in DRAM after it is durable, and unlinked after its end is: nothing visible is volatile.
//! I4  A list is changed under its bucket's lock; a reader believes what it read if the bucket's version is the same.
//! I5  An area is durable, no node in it live, before the root names it. It stays the table's for good, and that it is named
//!     is durable before anybody but its maker has a node of it.
//! I6  A list node and its node in far memory belong together for good; either is in a list or free.
//!
//! # Crash argument
//! | crash between                  | recovery sees                        | and does                          |
//! |--------------------------------|--------------------------------------|-----------------------------------|
//! | `start`, `end`                 | flags that disagree                  | takes the node for free (I1)      |
//! | node durable, linked           | a live node                          | links it: it was not acknowledged |
//! | `deleted`, unlinked            | flags that agree                     | takes the node for free           |
//! | run recorded, root             | a run in doubt no area leads to      | frees it                          |
//! | (a kill) store, drain          | what a power cut could take back     | flushes all areas before it serves|
//!
//! Recovery stores nothing, so it can be cut short anywhere.
//!
//! # Where we differ from the paper
//! Lists are changed under a lock in DRAM and read without one. The paper's are lock-free: a node that is being made or
//! unmade is in the list with that state, and whoever meets it helps. Kept are one flush and one drain a change,
//! that nothing else is in far memory, that searches read none of it, and the three flags; not kept is that a thread
//! that stops in the middle of a change stops nobody else. A list here ends with 0 and needs no sentinels, so every
//! key is allowed. A torn node needs no mending: the flags are one word, and making a node live stores all three.
//!
//! `update` replaces the value in place, a word (the paper has none). A node that is freed is used again at once, as
//! readers are never in far memory. Buckets are split one by one when there are fewer than nodes ([`Config::list_nodes`]), in
//! DRAM alone; the paper's are as many as they were.
//!
//! The study's version flushes a slot of its stack in place of the node and has no fence (fault `soft.no_flush`), takes
//! torn nodes for live ones when it recovers (`soft.torn_is_live`), and looks only into the areas of the thread that
//! recovers (`soft.one_area`).

mod layout;
mod lists;
mod nodes;
mod ops;
mod recover;
mod resize;

use farbank_pm::Medium;
use farbank_pm::Off;
use farbank_pm::fault::Named;
use farbank_pm::sync::Mutex;

use crate::ground::{Ground, OpenError, Plan, Worker};
use crate::hash::hash;
use crate::index::{Index, Refused, Space};
use lists::Lists;
use nodes::Free;

/// Its name.
pub const NAME: &str = "soft";

/// Deviations it has by name.
pub(crate) const FAULTS: [Named; 3] = [
    Named {
        name: "soft.no_flush",
        what: "a node that is made or unmade is not flushed",
        source: "the study's version (it flushes a slot of the stack)",
    },
    Named {
        name: "soft.torn_is_live",
        what: "recovery links nodes of which only the first flag was stored",
        source: "the study's version",
    },
    Named {
        name: "soft.one_area",
        what: "recovery looks into one area and not into all",
        source: "the study's version",
    },
];

/// How a table is arranged; fixed when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Lists of a new table, as a power of two.
    pub bucket_bits: u32,
    /// Nodes of an area.
    pub area_nodes: u32,
    /// Nodes for each bucket: while there are more, every insert has some buckets split. 0: buckets are never split.
    pub list_nodes: u32,
}

impl Config {
    /// The paper's, with as many lists as `slots`, a power of two; areas are of 1 MiB. There are as many
    /// lists as nodes.
    #[must_use]
    pub fn paper(slots: u64) -> Config {
        Config {
            bucket_bits: slots.max(2).ilog2(),
            area_nodes: 32_766,
            list_nodes: 1,
        }
    }

    /// Small enough that a dozen keys split buckets and need a second area.
    #[must_use]
    pub fn small() -> Config {
        Config {
            bucket_bits: 1,
            area_nodes: 16,
            list_nodes: 2,
        }
    }

    /// As published: no growth.
    #[must_use]
    pub fn published(self) -> Config {
        Config {
            list_nodes: 0,
            ..self
        }
    }
}

/// The table.
pub struct Soft<M> {
    ground: Ground<M>,
    config: Config,
    lists: Lists,
    free: Free,
    areas: Mutex<Vec<Off>>,
}

impl<M: Medium> Soft<M> {
    fn over(ground: Ground<M>, config: Config) -> Soft<M> {
        Soft {
            lists: Lists::new(config.bucket_bits),
            free: Free::new(ground.lanes()),
            areas: Mutex::default(),
            ground,
            config,
        }
    }

    /// Makes an empty table of all of `medium`. Durable on `Ok`.
    pub fn create(medium: M, plan: &Plan, config: Config) -> Result<Soft<M>, OpenError> {
        config.check()?;
        let ground = Ground::create(medium, plan, &[])?;
        let ground = ground.finish(NAME, &config.words())?;
        Ok(Soft::over(ground, config))
    }

    /// Opens the table on `medium`, after a crash or not. Reads every node.
    pub fn open(medium: M) -> Result<Soft<M>, OpenError> {
        let ground = Ground::open(medium, NAME, |_| Ok(Vec::new()))?;
        let config = Config::of(ground.config())?;
        let table = Soft::over(ground, config);
        table.recover()?;
        Ok(table)
    }
}

impl<M: Medium> Index for Soft<M> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn worker(&self) -> Result<Worker, Refused> {
        self.ground.worker()
    }

    fn insert(&self, worker: &mut Worker, key: u64, value: u64) -> Result<Option<u64>, Refused> {
        self.insert_hashed(worker, hash(key), key, value)
    }

    fn get(&self, _worker: &mut Worker, key: u64) -> Result<Option<u64>, Refused> {
        Ok(self.lists.get(hash(key), key))
    }

    fn update(&self, worker: &mut Worker, key: u64, value: u64) -> Result<Option<u64>, Refused> {
        self.update_hashed(worker, hash(key), key, value)
    }

    fn remove(&self, worker: &mut Worker, key: u64) -> Result<Option<u64>, Refused> {
        self.remove_hashed(worker, hash(key), key)
    }

    fn fetch(&self, keys: &[u64]) {
        self.lists.fetch(keys);
    }

    fn each(&self, _worker: &mut Worker, each: &mut dyn FnMut(u64, u64)) -> Result<(), Refused> {
        self.lists.each(|_, node| each(node.key, node.value));
        Ok(())
    }

    fn space(&self, worker: &mut Worker) -> Result<Space, Refused> {
        let keys = self.len(worker)?;
        let areas = self.areas.lock().expect("no holder panics").len() as u64;
        Ok(Space {
            keys,
            slots: areas * u64::from(self.config.area_nodes),
            table_bytes: areas * self.config.area_bytes(),
            far_bytes: self.ground.far_bytes(),
            dram_bytes: self.lists.bytes() + self.free.bytes(),
        })
    }

    fn check(&self) -> Result<(), Refused> {
        self.check_all()
    }
}
