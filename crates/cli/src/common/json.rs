//! JSON in ASCII, for keys and values of any bytes.

/// Returns the string in which each byte is one character.
pub(crate) fn text(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| char::from(byte)).collect()
}

/// Escapes `json` to ASCII. Each byte of a key or value becomes one character.
pub(crate) fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c.is_ascii() {
            true => out.push(c),
            false => out.push_str(&format!("\\u{:04x}", u32::from(c))),
        }
    }
    out
}
