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
//! * Interface: `farbank-store` defines the traits that a server uses; [`Kv`] (`api`) is the engine behind them;
//!   `config` holds its settings.
//! * Data on the medium: `record`, `segment`, `segment_map` (which records of a sealed segment an open must read),
//!   `pool_root` (the engine's words in the superblock).
//! * Data in DRAM: `index`, `stripe` (locks and unpublished writes), `live_map`, `read_cache`; `lookup` finds the
//!   record of a key and `read` its value; `engine` holds what all sessions share.
//! * Writing: `session` runs operations and batches on a `session_log` of open segments; `single_write` handles
//!   batches of one write, `group` atomic writes of several keys, `large` long values, `publish` makes durable writes
//!   visible, `flush` is FLUSHALL, and `wait` resolves conflicts between sessions.
//! * Space: `space` does the accounting and admits writes, `room_request` gets a session the room for a write,
//!   `free_segments` keeps the free segments, `growth` remembers failures to grow.
//! * Cleaning: `cleaner` runs a `cleaning_pass` in slices, with `record_walk` to visit the records of a segment;
//!   `background` is the thread that cleans ahead of demand; `cleaning_pace` makes writers help.
//! * Opening: `recovery` opens a pool after a crash (`segment_heads` reads the segments' headers, `segment_scanner`
//!   their records) and `snapshot` after a clean close; `verify` checks an open pool, `unreadable` handles media
//!   errors.

#![forbid(unsafe_code)]

mod admission;
mod api;
mod background;
mod cleaner;
mod cleaner_requests;
mod cleaner_state;
mod cleaning_pace;
mod cleaning_pass;
mod config;
mod engine;
#[cfg(feature = "check")]
mod faults;
mod flush;
mod geometry;
mod group;
mod growth;
mod index;
mod large;
mod live_map;
mod lookup;
mod map_writer;
mod pending;
mod pool_access;
mod pool_root;
mod publish;
mod read;
mod read_cache;
mod record;
mod record_walk;
mod records;
mod recovery;
mod room_request;
mod segment;
mod segment_heads;
mod segment_map;
mod segment_scanner;
mod segments;
mod session;
mod session_log;
mod sessions;
mod single_write;
#[cfg(feature = "check")]
mod situations;
mod snapshot;
mod space;
mod stripe;
mod superblock;
#[cfg(feature = "check")]
pub mod target;
mod unreadable;
mod verify;
mod wait;

pub use api::{Kv, OpenError, SEGMENTS_MIN, segment_bytes_for};
pub use config::{CleaningMode, Config, READ_CACHE_BYTES_MAX};
pub use index::POOL_BYTES_MAX;
pub use pool_root::PoolHistory;
