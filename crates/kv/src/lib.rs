//! A durable key-value engine in far memory: one log, one cleaner.
//!
//! ```text
//!   sessions ── stage, drain, publish ──▶ index (DRAM): where each key's newest durable record is
//!      │                                    │
//!      ▼                                    ▼
//!   segments of the pool: [ records ][ records ][ free ][ records ] ...
//!      ▲
//!   cleaner ── moves what lives out of segments that are mostly dead ──▶ free segments
//! ```
//!
//! * [`store`] is what a front end sees; [`Kv`] is the engine behind it.
//! * `record` and `segment` are the bytes on the medium; `index` and `stripe` the DRAM beside them; `seek` finds a key's record,
//!   `read_cache` holds copies of those that are asked for often.
//! * `session` runs operations and batches on a `log` of open segments, `alone` those of one write; `group` writes several keys at
//!   once, `large` long values, `flush` empties the store; `wait` is what a session does about a key that another has
//!   staged.
//! * `space` says how much the pool takes, `room` finds a session the room for a write, `free` has the free segments.
//! * [`clock`] is the time that expiries are compared with.
//! * `segment_map` says on the medium which records of a full segment an open must read.
//! * `cleaner` makes room, in slices of a `pass` that `walk`s segments; `background` has it do so in time, and writers keep its `pace`; `recover` opens a pool after anything (`lives` reads what its segments say of themselves, `scan` what is in them), `snapshot` after a clean close, `past` is
//!   what the superblock keeps for them.

#![forbid(unsafe_code)]

mod api;
mod background;
mod cleaner;
mod cleaning_pace;
mod cleaning_pass;
pub mod clock;
mod config;
mod engine;
#[cfg(feature = "check")]
mod faults;
mod flush;
mod free_segments;
mod group;
mod growth;
mod index;
mod large;
mod live_map;
mod lookup;
mod pool_root;
mod publish;
mod read;
mod read_cache;
mod record;
mod record_walk;
mod recovery;
mod room_request;
mod segment;
mod segment_heads;
mod segment_map;
mod segment_scanner;
mod session;
mod session_log;
mod single_write;
#[cfg(feature = "check")]
mod situations;
mod snapshot;
mod space;
pub mod store;
mod stripe;
#[cfg(feature = "check")]
pub mod target;
#[cfg(feature = "check")]
mod target_names;
mod unreadable;
mod verify;
mod wait;

pub use api::{Kv, OpenError, SEGMENTS_MIN, segment_bytes_for};
pub use config::{CleaningMode, ClockFn, Config, READ_CACHE_BYTES_MAX, uptime_ms, wall_clock_ms};
pub use index::POOL_BYTES_MAX;
pub use pool_root::PoolHistory;
