//! Buffers of connections: the pool of their memory ([`pool`]) and the replies of one connection ([`reply`]).

pub(crate) mod pool;
pub(crate) mod reply;
