//! Tests of the server through its clients, over a volatile store that implements tickets exactly.
//!
//! No test sleeps. To check that an event has *not* happened, a test makes a round trip that the same worker would
//! serve after the event.

mod acl;
mod admin;
mod commands;
mod compared;
mod control;
mod debug;
mod dump;
mod durability;
mod events;
mod eviction;
mod functions;
mod harness;
mod limits;
mod long;
mod maxmemory;
mod memcached;
mod memcached_wire;
mod monitor;
mod operators;
mod passwords;
mod protected;
mod pubsub;
mod read_ahead;
mod saves;
mod scripts;
mod swaps;
mod tls;
mod tracking;
mod transactions;
mod values;
#[path = "../support/volatile.rs"]
mod volatile;
