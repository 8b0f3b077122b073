//! Buffers of connections. They know neither protocols nor sockets.
//!
//! * [`pool`]: memory that the connections of a thread share.
//! * [`input`]: bytes of one connection that have arrived.
//! * [`reply`]: replies of one connection. `net::output` keeps those that wait.

pub(crate) mod input;
pub(crate) mod pool;
pub(crate) mod reply;
