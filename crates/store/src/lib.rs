//! The interface between a server and a store: a [`Store`] creates one [`Session`] for each worker, and a session
//! runs operations ([`Ops`]) and commits them in batches.
//!
//! ```text
//!   server, memcached, embedding program
//!        │  Session: get, put, update, group, commit, durable
//!        ▼
//!   farbank-store ◀── implements ── farbank-kv      a log with an index; refuses writes when it is full
//!                 ◀── implements ── farbank-cache   slabs; evicts when it is full
//! ```
//!
//! What only caches have is in [`CacheStore`], which [`Store::as_cache`] returns. [`clock`] is the time that both stores compare expiries with.
//!
//! # Batches
//! A batch is everything a session did since its last [`Session::commit`]. `commit` returns a ticket. Until that
//! ticket is durable ([`Session::durable`]), the writes of the batch are not visible to other sessions and must not
//! be acknowledged. The session's own reads see them with [`ReadView::Pending`]; replies to such reads must wait for
//! the same ticket. Dropping a session abandons the writes that it has staged and not committed.
//!
//! A session sometimes commits before its caller does: to make room in a full pool, before a [`Session::scan`], and
//! on a conflict with [`ConflictPolicy::Commit`].
//!
//! # Two sessions, one key
//! A staged write reserves its key: another session that writes the key waits until the first session commits or is
//! dropped. [`ConflictPolicy`] says how it waits, and when it fails with [`Error::Conflict`] instead.
//!
//! # Processes
//! A store belongs to the process that opened it. In a forked child every operation fails with [`Error::Poisoned`],
//! and dropping sessions and the store has no effect.

#![forbid(unsafe_code)]

mod backup;
mod cache_store;
pub mod clock;
mod databases;
mod error;
#[cfg(feature = "check")]
pub mod explored;
mod session;
mod stats;
mod store;
mod value;

pub use backup::Backup;
pub use cache_store::{AreaUsage, CacheStore, ItemError, ItemKey, ItemSession};
pub use databases::{DatabaseMap, DatabaseView, SharedDatabaseMap};
pub use error::{BackupError, Error};
pub use session::{
    Absence, BeforeValue, BeforeValues, CONFLICT_WAIT, ConflictPolicy, GetStep, GroupDecision, Ops,
    ReadView, RoomReply, Session, UpdateDecision,
};
pub use stats::{CacheStats, LogStats, PoolStats, ReadCacheStats, SlabClass, Stats, WriteStats};
pub use store::{EvictionListener, OpenReport, Store, StoreHealth};
pub use value::{
    DATABASES, KEY_BYTES_MAX, KIND_STALE, KIND_TYPE, KIND_WON, Key, StoredItem, VALUE_BYTES_MAX,
    Value, ValueMeta,
};
