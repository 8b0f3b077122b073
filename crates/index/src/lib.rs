//! Persistent hash indexes, each as its paper describes it, on any far memory.
//!
//! ```text
//!     registry     names, sizes, presets          target     what the explorers crash
//!         │                                          │
//!     ┌───▼──────────────────────────────────────────▼───┐
//!     │ Index    insert get update remove  ...            │
//!     └───┬──────────────────────────────────────────────┘
//!   cceh clevel clht dash_eh dash_lh level soft   one folder a paper, the same files in each
//!         │
//!     ┌───▼────────────────┐   ┌────────┐   ┌─────────┐
//!     │ ground: a pool,    │   │ locks  │   │ outlier │
//!     │ blocks and runs    │   │ (DRAM) │   │         │
//!     └───┬────────────────┘   └────────┘   └─────────┘
//!         ▼ pm::Medium
//! ```
//!
//! Keys and values are words; every key and every value is allowed. What an operation did is durable when it
//! returns, and nobody has seen it before that.
//!
//! * [`Index`] is what all tables are to their users, [`Worker`] one thread at them.
//! * [`registry`] makes and opens a table by its name.
//! * [`target`] is how the crash explorer sees one.
//! * [`mod@hash`] are hash functions: with a seed for each table, or of the study these tables were compared in.
//! * [`cceh`] is cacheline-conscious extendible hashing.
//! * [`clevel`] is level hashing whose searches are not blocked.
//! * [`clht`] is the cache-line hash table, made persistent.
//! * [`dash_eh`] is Dash over extendible hashing, [`dash_lh`] over linear hashing; [`dash`] are their segments.
//! * [`level`] is level hashing.
//! * [`soft`] are sets with an optimal flushing technique.

#![forbid(unsafe_code)]

mod bits;
pub mod cceh;
pub mod clevel;
pub mod clht;
pub mod dash;
pub mod dash_eh;
pub mod dash_lh;
mod extendible;
pub mod hash;
mod index;
pub mod level;
mod locks;
mod pool_heap;
pub mod registry;
mod reserved_key;
mod situations;
pub mod soft;
pub mod target;

pub use index::{Index, IndexError, SpaceUse};
pub use pool_heap::{OpenError, PoolPlan, TableWorker};
