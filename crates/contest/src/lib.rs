//! The contest's engines as they were published, on any medium.
//!
//! In 2020 a contest asked for a key-value engine on persistent memory: keys of 16 bytes, values of 80 to 1,024,
//! sixteen threads, 64 GiB of far memory and 8 GiB of DRAM, every acknowledged write durable. Four engines of it
//! are described well enough to be built again; they are here, one a module, as they were described, with what
//! they got wrong. Nobody should keep data in them: that is what `farbank-kv` is for.
//!
//! * [`terms`] is what the contest allowed, at any scale.
//! * [`Engine`] and [`Worker`] are what a judge sees of an engine.
//! * [`prelim`] is the first round's: volatile, written late and in streams.
//! * [`kid`] is the slides' engine: a hash table of whole cache lines, one write a set.
//! * [`v1`] and [`v2`] are the final round's third place: its first version, two writes a set, and its last, one.
//! * [`target`] is how the crash explorer sees one.

#![forbid(unsafe_code)]

mod engine;
#[cfg(test)]
mod harness;
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
