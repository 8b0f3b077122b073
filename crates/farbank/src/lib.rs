//! Farbank: a store for far memory that speaks Redis. Every acknowledged write survives a kill and,
//! on media that can, a power cut.
//!
//! The binary `farbank` serves a pool to Redis clients. This library is for programs that want the
//! store without the server: [`open`] finds out which medium a path is and opens the pool there, or
//! makes one, and a [`Session`] reads, writes and commits.
//!
//! The parts stand behind it: [`pm`] is the memory, [`kv`] the engine on it with everything a
//! session can do ([`kv::store`]).

#![forbid(unsafe_code)]

pub use farbank_kv as kv;
pub use farbank_pm as pm;

mod embed;
mod session;

pub use embed::{Db, OpenError, Options, open};
pub use farbank_kv::store::Error;
pub use farbank_pm::media::{ReadMode, SyncPolicy};
pub use farbank_pm::pool::CopiedPoolPolicy;
pub use session::{CounterError, Iter, Session, Transaction};

/// The README's example is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
