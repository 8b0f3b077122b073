//! Base64 with padding, the encoding of keys that are not text.

use crate::buffers::reply::ReplySink;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn value(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

/// Decodes `text`. Returns `None` if it is empty or not valid base64.
pub(crate) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let padding = text.iter().rev().take_while(|&&b| b == b'=').count();
    if text.is_empty() || !text.len().is_multiple_of(4) || padding > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let digits = &text[..text.len() - padding];
    for group in digits.chunks(4) {
        let mut bits = 0;
        for at in 0..4 {
            let digit = group.get(at).map_or(Some(0), |&digit| value(digit))?;
            bits = bits << 6 | digit;
        }
        bytes.extend_from_slice(&[(bits >> 16) as u8, (bits >> 8) as u8, bits as u8]);
    }
    bytes.truncate(digits.len() * 6 / 8);
    Some(bytes)
}

/// Appends the base64 encoding of `bytes`.
pub(crate) fn encode(bytes: &[u8], out: &mut impl ReplySink) {
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at) & 63) as usize];
            out.push(if at <= group.len() { digit } else { b'=' });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_bytes_decode_to_the_same_bytes() {
        for text in ["f", "fo", "foo", "foob", "\u{0}\u{ff}", "テスト"] {
            let mut spelled = Vec::new();
            encode(text.as_bytes(), &mut spelled);
            assert_eq!(decode(&spelled).as_deref(), Some(text.as_bytes()));
        }
        let mut spelled = Vec::new();
        encode("テスト".as_bytes(), &mut spelled);
        assert_eq!(spelled, b"44OG44K544OI");
        for bad in ["", "a", "abc", "ab=c", "====", "a b=", "abc\u{0}"] {
            assert_eq!(decode(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
