//! The wire formats of both protocols: parsing requests, writing replies. Depends on neither commands nor the store.

pub mod memcached;
pub mod resp;
