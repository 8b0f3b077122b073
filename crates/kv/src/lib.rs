//! A durable key-value engine in far memory: one log, one cleaner.
//!
//! ```text
//!   sessions ── stage, drain, publish ──▶ index (DRAM): offset of each key's newest durable record
//!      │                                    │
//!      ▼                                    ▼
//!   segments of the pool: [ records ][ records ][ free ][ records ] ...
//!      ▲
//!   cleaner ── relocates live records out of segments that are mostly dead ──▶ free segments
//! ```
//!
//! Lower layers first; a layer uses only those before it:
//!
//! * `format`: data on the medium. `record`, `segment`, `geometry` (the layout of a pool), `segment_map` (which records
//!   of a sealed segment an open must read), `pool_root` (the engine's words in the superblock).
//! * `segments`: the pool and the facts about its segments, the accounting of space, and the reading of records.
//! * `index`: from a key's hash to the offsets of records. `read_cache`: copies of small values. `pending`: the locks of
//!   keys and the writes that are not published yet. `session_log`: the open segments of a session. `sessions`: what
//!   other threads see of each session.
//! * `engine`: all of these together, with the operations that need several of them: lookup of a key, admission of
//!   writes, growth, segment maps, FLUSHALL, the mapping of the databases' numbers, checks.
//! * `cleaner`: makes free segments, in slices: `pass` does the work, `help` does it in a session's thread, `background`
//!   in a thread of its own; `requests` are the wakeups between sessions and that thread.
//! * `session`: one worker's operations. `read` finds values; `single_write`, `group` and `large` stage writes; `publish`
//!   makes durable writes visible; `room` gets the space for a write; `wait` resolves conflicts between sessions; `sample`
//!   lists random keys for eviction; `swap` exchanges two databases.
//! * `backup`: reads every key as it was at one moment. `engine::backup` is what writers do meanwhile.
//! * `recovery`: opens a pool after a crash (`segment_heads` reads the segments' headers, `segment_scanner` their
//!   records), and `snapshot` after a clean close.
//! * `api`: [`Kv`], the engine behind the traits of `farbank-store`. `any`: [`AnyKv`], the same on a medium that is known at
//!   run time only. `config`: their settings.

#![forbid(unsafe_code)]

#[cfg(not(test))] // Unit tests do not need the code for every medium, which takes long to build.
mod any;
mod api;
mod backup;
mod cleaner;
mod config;
mod engine;
#[cfg(feature = "check")]
mod faults;
mod format;
mod index;
mod pending;
mod read_cache;
mod recovery;
mod segments;
mod session;
mod session_log;
mod sessions;
#[cfg(feature = "check")]
mod situations;
#[cfg(feature = "check")]
pub mod target;

#[cfg(not(test))]
pub use any::AnyKv;
pub use api::{Kv, OpenError, SEGMENTS_MIN, segment_bytes_for};
pub use config::{CleaningMode, Config, READ_CACHE_BYTES_MAX};
pub use engine::inconsistency::Inconsistency;
pub use format::pool_root::PoolHistory;
pub use index::POOL_BYTES_MAX;
