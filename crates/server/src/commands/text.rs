//! Texts that clients send as arguments: options, and texts that errors quote.

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
