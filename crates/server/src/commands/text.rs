//! Texts that clients send as arguments: options, databases, and texts that errors quote.

use farbank_store::DATABASES;

use super::error::{CommandError, NOT_INTEGER};
use crate::protocol::resp::number::parse_i64;
use crate::stats::process::unix_secs;

/// Whether `word` is the option `name`, in either case. As in Redis, a word ends at its first NUL.
#[inline]
pub(super) fn is_option(word: &[u8], name: &str) -> bool {
    word.get(name.len()).is_none_or(|&next| next == 0)
        && word
            .get(..name.len())
            .is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()))
}

/// An option's name or value in lower case. As in Redis, it ends at the first NUL.
pub(super) fn option(text: &[u8]) -> Vec<u8> {
    quote(text, usize::MAX).to_ascii_lowercase()
}

/// The part of a client's text that an error quotes: up to `most` bytes, and nothing after a NUL.
pub(super) fn quote(text: &[u8], most: usize) -> &[u8] {
    let text = &text[..text.len().min(most)];
    let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
    &text[..end]
}

/// Returns the error for a subcommand of `container` with a wrong number of arguments.
pub(super) fn subcommand_syntax(container: &str, subcommand: &[u8]) -> CommandError {
    let mut text = b"ERR unknown subcommand or wrong number of arguments for '".to_vec();
    text.extend_from_slice(quote(subcommand, 128));
    text.extend_from_slice(format!("'. Try {container} HELP.").as_bytes());
    CommandError::Detailed(text)
}

/// Parses a timeout in milliseconds.
pub(super) fn timeout_ms(word: &[u8]) -> Result<u64, CommandError> {
    let timeout = parse_i64(word).ok_or(CommandError::Fixed(
        "ERR timeout is not an integer or out of range",
    ))?;
    let timeout_ms =
        u64::try_from(timeout).map_err(|_| CommandError::Fixed("ERR timeout is negative"))?;
    // As in Redis, its end must be a time that fits in 64 bits.
    let end_ms = timeout_ms.saturating_add(unix_secs().saturating_mul(1000));
    match i64::try_from(end_ms) {
        Ok(_) => Ok(timeout_ms),
        Err(_) => Err(CommandError::Fixed("ERR timeout is out of range")),
    }
}

/// Parses the number of a database.
pub(super) fn database(word: &[u8]) -> Result<u8, CommandError> {
    let index = parse_i64(word).ok_or(NOT_INTEGER)?;
    if i32::try_from(index).is_err() {
        let (low, high) = (i32::MIN, i32::MAX);
        let text = format!("ERR value is out of range, value must between {low} and {high}");
        return Err(CommandError::Detailed(text.into_bytes()));
    }
    database_number(index)
}

/// Returns the database with this number.
pub(super) fn database_number<I: TryInto<u8>>(index: I) -> Result<u8, CommandError> {
    let db = index.try_into().ok();
    db.filter(|&db| usize::from(db) < DATABASES)
        .ok_or(CommandError::Fixed("ERR DB index is out of range"))
}
