//! Redis's protocol (RESP): parsing requests ([`parse`]), writing replies ([`reply`]), and decimal numbers
//! ([`number`]).
//!
//! This module depends on neither commands nor the store. The parser reads requests in place in a connection's input
//! buffer; replies are appended to its output buffer.

pub mod number;
pub mod parse;
pub mod reply;

pub use crate::buffers::reply::ReplySink;
pub use parse::{Args, ProtocolError, RequestLimits, RequestParser};
pub use reply::RespVersion;

/// Appends a request of `words` to `out`, in the format that clients send.
pub fn request<T: AsRef<[u8]>>(out: &mut Vec<u8>, words: &[T]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words.iter().map(AsRef::as_ref) {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}
