//! Persistent hash indexes, each as its paper describes it, on any far memory.
//!
//! ```text
//!     registry     names, sizes, presets          target     adapter for the crash explorer
//!         │                                          │
//!     ┌───▼──────────────────────────────────────────▼───┐
//!     │ Index    insert get update remove  ...           │
//!     └───┬──────────────────────────────────────────────┘
//!   cceh clevel clht dash_eh dash_lh level soft   one folder per paper, with the same files in each:
//!         │                                       mod layout ops resize recover check
//!     ┌───▼──────────┐
//!     │ reserved_key │   the one implementation of Index for all of them
//!     └───┬──────────┘
//!     ┌───▼────────────────┐   ┌────────┐   ┌───────────────┐
//!     │ pool_heap: blocks  ├──▶│ locks  ├──▶│ failure error │
//!     │ and runs of a pool │   │ (DRAM) │   │               │
//!     └───┬────────────────┘   └────────┘   └───────────────┘
//!         ▼ pm::Medium
//! ```
//!
//! Keys and values are words; every key and every value is allowed. When an operation returns, its change is durable.
//! No other thread reads the change before it is durable.
//!
//! * [`Index`] is the interface of every table. [`TableWorker`] is the handle of one thread.
//! * [`registry`] creates and opens a table by its name.
//! * `target` adapts a table to the crash explorer.
//! * [`mod@hash`] holds the hash functions: seeded per table, or the published one.
//! * [`cceh`] is cacheline-conscious extendible hashing.
//! * [`clevel`] is level hashing with lock-free search.
//! * [`clht`] is the cache-line hash table, made persistent (P-CLHT).
//! * [`dash_eh`] is Dash over extendible hashing, [`dash_lh`] is Dash over linear hashing. [`dash`] holds their
//!   segments.
//! * [`level`] is level hashing.
//! * [`soft`] is the hash set SOFT (sets with an optimal flushing technique).

#![forbid(unsafe_code)]

mod bits;
pub mod cceh;
pub mod clevel;
pub mod clht;
pub mod dash;
pub mod dash_eh;
pub mod dash_lh;
mod error;
mod extendible;
mod failure;
pub mod hash;
mod index;
mod kind_word;
pub mod level;
mod locks;
mod pool_heap;
pub mod registry;
mod reserved_key;
mod situations;
pub mod soft;
#[cfg(feature = "check")]
pub mod target;

pub use error::{IndexError, OpenError};
pub use index::{Index, SpaceUse};
pub use pool_heap::{PoolPlan, TableWorker};
