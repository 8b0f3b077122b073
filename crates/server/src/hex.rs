//! Bytes as text.

/// Returns `bytes` in hexadecimal digits, two for each byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
