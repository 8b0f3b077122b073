//! Tair MDB: a cache on far memory that keeps its items across a kill.
//!
//! ```text
//!   sessions ── find: buckets and chains (metadata) ──▶ slot ──▶ item (data medium)
//!      │
//!      ├── write: a batch, one write per key: store items, mark old ones dead, one drain; then publish (lock)
//!      ▼
//!   metadata:  slab managers, LRU lists, page infos, buckets, links      in DRAM, or on a given medium
//!   data:      [ areas ][ page | item | item ... ][ page ... ]           on any medium
//! ```
//!
//! The cache keeps items in slabs of 1 MiB pages as long as there is space. Then it evicts the least recently used
//! item of the class and area, or the one that S3-FIFO chooses ([`EvictionOrder`]). After a kill or a power cut, every
//! item found is the newest acknowledged one of its key. An item that was replaced, deleted or expired never comes back.
//! An item may be missing, as after an eviction. A power cut loses at most the items that were being written.
//!
//! [`Cache`] is the cache and [`CacheSession`] one worker's session. Both also implement the traits of
//! [`farbank_store`]. The modules are layers. Each imports only from those below it:
//!
//! * `cache` is the facade, and `any` the same on a medium that is known at run time only. `maintenance` is its background
//!   thread, `recover` creates and opens a pool.
//! * `session` has the operations of a session, with those of Tair's clients in `tair_api`. `group` writes several
//!   keys.
//! * `writer` stages writes in a batch and writes them.
//! * `worker` reads items, finds slots for new ones, evicts items and empties pages.
//! * `engine` is the state that sessions share. It consists of `data` (areas, pages and items on the data medium),
//!   `state` (the operations on the metadata under the one lock), `areas` (the namespaces), `key_locks` (serialise
//!   the writers of a key), `counters`, and `balance` (the balance between classes).
//! * `metadata` has the metadata by field, `item` and `slot_cache` what sessions keep.
//! * `layout` has the bytes on the data medium, `classes` the slot sizes, `root` the cache's words in the superblock.
//!
//! `target` is the adapter for the crash explorer, `faults` lists the faults that it must detect.

#![forbid(unsafe_code)]

#[cfg(not(test))] // Unit tests do not need the code for every medium, which takes long to build.
mod any;
mod areas;
mod balance;
mod cache;
mod classes;
mod config;
mod counters;
mod data;
mod engine;
#[cfg(feature = "check")]
mod faults;
mod group;
mod item;
mod key_locks;
mod layout;
mod maintenance;
mod metadata;
mod open_error;
mod recover;
mod root;
mod session;
#[cfg(feature = "check")]
mod situations;
mod slot_cache;
mod state;
#[cfg(feature = "check")]
pub mod target;
mod worker;
mod writer;

#[cfg(not(test))]
pub use any::AnyCache;
pub use cache::{Cache, PAGE_BYTES};
pub use config::{Config, EvictionOrder, LockWatch, PageFormatting};
pub use metadata::MetadataRoom;
pub use open_error::{OpenError, PAGES_MIN};
pub use root::CacheHistory;
pub use session::{CacheSession, CounterBounds};
pub use state::Inconsistency;
