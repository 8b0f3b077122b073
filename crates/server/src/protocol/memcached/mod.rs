//! memcached's text protocol with its meta commands: parsing requests ([`parse`]), and keys that are not text
//! (`base64`).

pub(crate) mod base64;
pub mod parse;
