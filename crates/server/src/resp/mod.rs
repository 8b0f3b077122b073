//! The protocol: requests in ([`parse`]), replies out ([`reply`]), and the numbers both are made of.
//!
//! Nothing here knows a command or a store. Requests are read where they lie in a connection's input
//! buffer, replies are appended to its output buffer.

pub mod number;
pub mod parse;
pub mod reply;

pub use parse::{Args, Limits, Parser, Protocol};
pub use reply::Resp;
