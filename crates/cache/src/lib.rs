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
//! item of the class and area. After a kill or a power cut, every item found is the newest acknowledged one of its
//! key. An item that was replaced, deleted or expired never comes back. An item may be missing, as after an eviction.
//! A power cut loses at most the items that were being written.
//!
//! * [`Cache`] is the cache and [`CacheSession`] one worker's session. Both also implement the traits of
//!   [`farbank_store`].
//! * `layout` has the bytes on the data medium, `classes` the slot sizes, `root` the cache's words in the superblock.
//! * `metadata` has the metadata by field, `state` the operations on it under the one lock, `areas` the namespaces.
//! * `worker` reads items and finds slots for new ones, `batch` writes them. `key_locks` serialises the writers of a
//!   key. `slot_cache` has the slots that a session keeps, `group` writes several keys.
//! * `tair_api` has the other operations of Tair's clients, `maintenance` the background work, `balance` the balance
//!   between classes. `recover` creates and opens a pool.
//! * `target` is the adapter for the crash explorer, `faults` lists the faults that it must detect.

#![forbid(unsafe_code)]

mod api;
mod areas;
mod balance;
mod batch;
mod classes;
mod config;
mod engine;
#[cfg(feature = "check")]
mod faults;
mod group;
mod key_locks;
mod layout;
mod maintenance;
mod metadata;
mod recover;
mod root;
#[cfg(feature = "check")]
mod situations;
mod slot_cache;
mod state;
mod stats;
mod tair_api;
#[cfg(feature = "check")]
pub mod target;
mod verify;
mod worker;

pub use api::{Cache, CacheSession, OpenError, PAGE_BYTES, PAGES_MIN};
pub use config::{Config, LockWatch, PageFormatting};
pub use metadata::MetadataRoom;
pub use root::CacheHistory;
pub use tair_api::CounterBounds;
