//! The wire formats of the protocols: parsing requests and writing replies. They know neither commands nor the store.
//!
//! A new protocol is a folder beside these. Its commands are in `commands`, its connections in `net::connection`.

pub mod memcached;
pub mod resp;
