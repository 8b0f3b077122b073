//! Sockets and threads.

pub(crate) mod connection;
mod executor;
pub(crate) mod listener;
pub(crate) mod long_requests;
pub(crate) mod output;
pub(crate) mod unix_socket;
mod worker;
