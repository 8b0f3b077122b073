//! The server as its clients see it, over a volatile store that is honest about tickets.
//!
//! Nothing here waits for time to pass: a test that must know that something has *not* happened asks
//! for something that happens after it on the same worker.

mod commands;
mod compared;
mod control;
mod durability;
mod harness;
mod limits;
mod long;
mod memcached;
mod memcached_wire;
mod protected;
mod transactions;
#[path = "../support/volatile.rs"]
mod volatile;
