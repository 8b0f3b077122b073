//! Decimal integers in Redis's canonical format: each number has exactly one spelling.

/// Most characters of a 64-bit number, including its sign.
const DIGITS_MAX: usize = 20;

/// Parses an integer strictly: no blanks, no `+`, no leading zeros, no `-0`, and nothing after it.
#[must_use]
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    let magnitude = parse_digits(digits)?;
    if negative {
        match magnitude {
            0 => None,
            _ => 0i64.checked_sub_unsigned(magnitude),
        }
    } else {
        i64::try_from(magnitude).ok()
    }
}

/// Parses an unsigned integer by the rules of [`parse_i64`].
#[must_use]
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    parse_digits(text)
}

fn parse_digits(digits: &[u8]) -> Option<u64> {
    match digits {
        [] => return None,
        [b'0'] => return Some(0),
        [b'0', ..] => return None,
        _ if digits.len() > DIGITS_MAX => return None,
        _ => {}
    }
    let mut value = 0u64;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(value)
}

/// Decimal text of a number, without a heap allocation.
pub struct DecimalText {
    bytes: [u8; DIGITS_MAX],
    start: usize,
}

impl DecimalText {
    /// Formats `value`.
    #[must_use]
    pub fn new(value: i64) -> DecimalText {
        let mut decimal = DecimalText::unsigned(value.unsigned_abs());
        if value < 0 {
            decimal.start -= 1;
            decimal.bytes[decimal.start] = b'-';
        }
        decimal
    }

    /// Formats an unsigned `value`.
    #[must_use]
    pub fn unsigned(mut value: u64) -> DecimalText {
        let mut bytes = [0; DIGITS_MAX];
        let mut start = DIGITS_MAX;
        loop {
            start -= 1;
            bytes[start] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                return DecimalText { bytes, start };
            }
        }
    }

    /// The text: digits, with a `-` before them for a negative number.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_exactly_one_accepted_spelling() {
        for good in [
            0,
            1,
            -1,
            9,
            10,
            99,
            100,
            -100,
            i64::MAX,
            i64::MIN,
            i64::MAX - 1,
        ] {
            let text = good.to_string();
            assert_eq!(parse_i64(text.as_bytes()), Some(good));
            assert_eq!(DecimalText::new(good).as_bytes(), text.as_bytes());
        }
        assert_eq!(
            DecimalText::unsigned(u64::MAX).as_bytes(),
            u64::MAX.to_string().as_bytes()
        );
        for bad in [
            "",
            "-",
            "-0",
            "+1",
            "01",
            "-01",
            " 1",
            "1 ",
            "1.0",
            "0x1",
            "9223372036854775808",
            "-9223372036854775809",
            "99999999999999999999",
            "999999999999999999999",
            "1\0",
        ] {
            assert_eq!(parse_i64(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
