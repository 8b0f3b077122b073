//! Farbank: a key-value store for far memory, with the Redis protocol. Every acknowledged write survives a kill, and a
//! power cut if the medium is durable.
//!
//! The binary `farbank` serves a pool to Redis clients. This library is for programs that embed the store without the
//! server. [`open`] detects the medium of a path, and opens the pool there or creates one. A [`Session`] reads, writes
//! and commits.
//!
//! Three crates below have more functions: [`pm`] accesses far memory, [`store`] has all operations of a session, and
//! [`kv`] is the engine behind them.

#![forbid(unsafe_code)]

pub use farbank_kv as kv;
pub use farbank_pm as pm;
pub use farbank_store as store;

mod embed;
mod session;

pub use embed::{Db, OpenError, Options, open};
pub use farbank_pm::media::{ReadMode, SyncPolicy};
pub use farbank_pm::pool::CopiedPoolPolicy;
pub use farbank_store::Error;
pub use session::{CounterError, Iter, Session, Transaction};

/// Compiles the README's example as a doc-test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
