//! Rebuilt key-value engines of a 2020 persistent-memory contest, as they were published, on any medium.
//!
//! The contest set these limits: keys of 16 bytes, values of 80 to 1,024 bytes, sixteen threads, 64 GiB of far memory
//! and 8 GiB of DRAM, and every acknowledged write durable. Four of its engines are described well enough to be
//! rebuilt. Each is one module here, built as its authors described it, defects included. Do not keep data in them:
//! use `farbank-kv`.
//!
//! * [`limits`]: the limits of both rounds, at any scale.
//! * [`Engine`] and [`Worker`]: the interface that the contest's driver calls.
//! * [`prelim`]: an engine of the preliminary round; volatile, with deferred sequential writes.
//! * [`kid`]: the engine known from its authors' slides; a hash table of whole cache lines, one write per set.
//! * [`v1`] and [`v2`]: two versions of the engine that took third place in the final round. `v1` is the first and
//!   needs two writes per set; `v2` is the last and needs one.
//! * `target` (feature `check`): the adapter for the crash explorer.
//! * `judge` (feature `judge`): the contest's judge, which tests and measures any engine.

#![forbid(unsafe_code)]

mod block;
mod engine;
#[cfg(test)]
mod harness;
#[cfg(feature = "judge")]
pub mod judge;
pub mod kid;
pub mod limits;
pub mod prelim;
mod read_cache;
mod recycle;
mod space;
mod stripes;
#[cfg(feature = "check")]
pub mod target;
pub mod v1;
pub mod v2;

pub use engine::{
    Engine, EngineRequest, EngineStats, Error, KEY_BYTES, Key, OpenError, VALUE_BYTES, Worker,
};
pub use limits::ContestLimits;
pub use recycle::{BlockPools, ReusePolicy};
pub use stripes::StripeLock;
