//! Statistics of the server.

pub(crate) mod hot_keys;
