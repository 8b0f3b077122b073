//! memcached's text protocol with its meta commands: parsing requests ([`parse`]), among them those of clients that have
//! to authenticate (`login`), and keys that are not text (`base64`).

pub(crate) mod base64;
pub(crate) mod login;
pub mod parse;

/// The memcached version whose protocol this server implements, as reported to clients.
pub(crate) const VERSION: &str = "1.6.18";
