//! Farbank: a store for far memory that speaks Redis. Every acknowledged write survives a kill and,
//! on media that can, a power cut.
//!
//! This library is a facade: [`pm`] is the memory, [`kv`] the engine on it, [`server`] speaks RESP.
//! The binary `farbank` is made of the same parts; `farbank serve` starts a server.

pub use farbank_kv as kv;
pub use farbank_pm as pm;
pub use farbank_server as server;
