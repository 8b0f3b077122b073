//! Tair MDB: a cache on far memory, warm after a kill.
//!
//! ```text
//!   sessions ── find: buckets and chains (near) ──▶ slot ──▶ item (far)
//!      │
//!      ├── write: the batch, one write a key; its items, the old ones' deaths, one drain; then the lock: publish
//!      ▼
//!   near: slab managers, LRU lists, page infos, buckets, links      metadata: DRAM, or what one gives it
//!   far:  [ areas ][ page | item | item ... ][ page ... ]           items: any medium
//! ```
//!
//! What the cache was told is kept as long as there is room, in slabs of 1 MiB pages; what was used least lately, in
//! its class and area, goes first. After a kill or a power cut every item that is found is the newest that was
//! acknowledged of its key: an older one, one that was deleted or has expired never comes back. An item may be
//! missing, as after an eviction; a power cut takes at most those that were being written.
//!
//! * [`Cache`] is the cache, [`Door`] one worker's session; both are a [`farbank_kv::store`] as well.
//! * `layout` are the bytes on the data medium, `classes` the slot sizes, `root` what the superblock keeps.
//! * `near` is the metadata by field; `state` what is done to it, under the one lock; `areas` the namespaces.
//! * `worker` reads items and finds room for new ones, `batch` writes them, `claims` keeps a key's writers apart, `purse` is
//!   the slots a session keeps, `group` writes several keys.
//! * `tair` has what Tair's clients have besides; `tend` what goes on behind them; `recover` opens a pool.
//! * `target` shows the cache to the crash explorer, `faults` lists what it must find.

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
pub use tair_api::{CounterBounds, TairError};
pub use worker::ItemKey;
