//! The 80-bit floating-point numbers of x87, in which Redis on x86 computes INCRBYFLOAT.
//!
//! Rust has no such type, so it is computed with integers: a mantissa of 64 bits times a power of two. Every operation
//! rounds its exact result to the nearest number, ties to even, so the bytes are those of Redis:
//!
//! * [`LongDouble::parse`] accepts the texts that C's `strtold` accepts (decimal, hexadecimal, infinity).
//! * [`LongDouble::plus`] adds.
//! * [`LongDouble::text`] prints 17 digits after the point and removes the zeros at the end, as Redis does.

use num_bigint::BigUint;

/// Exponent of the smallest positive number.
const EXPONENT_MIN: i32 = -16_445;
/// Numbers from 2 to this power on are infinite.
const EXPONENT_END: i32 = 16_384;
/// Bits of a mantissa.
const MANTISSA_BITS: i32 = 64;
/// Redis refuses longer texts.
const TEXT_BYTES_MAX: usize = 5 * 1024 - 1;
/// Decimal exponents beyond which a number is surely too large or too small.
const DECIMAL_EXPONENT_MAX: i64 = 5_100;
/// Bits of the quotients that are computed, more than a mantissa has.
const QUOTIENT_BITS: u64 = 100;
/// Digits after the point.
const FRACTION_DIGITS: u32 = 17;

/// A finite number `mantissa * 2^exponent`, or an infinity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LongDouble {
    Infinite,
    Finite {
        is_negative: bool,
        mantissa: u64,
        exponent: i32,
    },
}

/// Splits the longest prefix of bytes that satisfy `is` from `text`.
fn split_while(text: &[u8], is: impl Fn(&u8) -> bool) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !is(byte)).unwrap_or(text.len());
    text.split_at(end)
}

/// Digits of a number's text, and the exponent that follows them.
struct NumberText<'a> {
    whole: &'a [u8],
    fraction: &'a [u8],
    exponent: i64,
}

impl<'a> NumberText<'a> {
    /// Parses digits, a point, digits, and an exponent after `mark`.
    fn parse(text: &'a [u8], mark: u8, is_digit: fn(&u8) -> bool) -> Option<NumberText<'a>> {
        let (whole, rest) = split_while(text, is_digit);
        let (fraction, rest) = match rest {
            [b'.', rest @ ..] => split_while(rest, is_digit),
            _ => (&[][..], rest),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let exponent = match rest {
            [] => 0,
            [first, rest @ ..] if first.eq_ignore_ascii_case(&mark) => signed_exponent(rest)?,
            _ => return None,
        };
        Some(NumberText {
            whole,
            fraction,
            exponent,
        })
    }

    fn digits(&self) -> impl Iterator<Item = u8> {
        self.whole.iter().chain(self.fraction).copied()
    }
}

/// Parses an exponent. A very large one is cut off.
fn signed_exponent(text: &[u8]) -> Option<i64> {
    const MOST: i64 = 1_000_000;
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let add = |sum: i64, digit: &u8| (sum * 10 + i64::from(digit - b'0')).min(MOST);
    let exponent = digits.iter().fold(0, add);
    Some(if is_negative { -exponent } else { exponent })
}

impl LongDouble {
    /// Returns `mantissa * 2^exponent` rounded, where `is_more` means that the exact number is slightly greater.
    /// `None` if it is too large.
    fn rounded(
        is_negative: bool,
        mantissa: u128,
        exponent: i32,
        is_more: bool,
    ) -> Option<LongDouble> {
        let bits = 128 - mantissa.leading_zeros().cast_signed();
        let drop = (bits - MANTISSA_BITS).max(EXPONENT_MIN - exponent).max(0);
        let mut kept = mantissa;
        if drop > 128 {
            kept = 0;
        } else if drop > 0 {
            let half = 1_u128 << (drop - 1);
            let rest = mantissa & (half | (half - 1));
            kept = mantissa.checked_shr(drop.cast_unsigned()).unwrap_or(0);
            let is_odd = kept & 1 == 1;
            kept += u128::from(rest > half || rest == half && (is_more || is_odd));
        }
        let mut exponent = exponent + drop;
        if kept >> MANTISSA_BITS != 0 {
            (kept, exponent) = (kept >> 1, exponent + 1);
        }
        let mantissa = u64::try_from(kept).ok()?;
        let end = exponent + MANTISSA_BITS - mantissa.leading_zeros().cast_signed();
        if mantissa != 0 && end > EXPONENT_END {
            return None;
        }
        Some(LongDouble::Finite {
            is_negative,
            mantissa,
            exponent,
        })
    }

    /// Parses a text as Redis does: the whole text, no blanks, no NaN, and nothing that is too large or rounds to zero.
    pub(super) fn parse(text: &[u8]) -> Option<LongDouble> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let (is_negative, magnitude) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        let is = |name: &str| magnitude.eq_ignore_ascii_case(name.as_bytes());
        if is("inf") || is("infinity") {
            return Some(LongDouble::Infinite);
        }
        match magnitude {
            [b'0', b'x' | b'X', digits @ ..] => {
                let number = NumberText::parse(digits, b'p', u8::is_ascii_hexdigit)?;
                LongDouble::from_hexadecimal(is_negative, &number)
            }
            _ => {
                let number = NumberText::parse(magnitude, b'e', u8::is_ascii_digit)?;
                LongDouble::from_decimal(is_negative, &number)
            }
        }
    }

    /// Returns the rounded number, or `None` if it is too large or rounds to zero.
    fn nonzero(
        is_negative: bool,
        mantissa: u128,
        exponent: i32,
        is_more: bool,
    ) -> Option<LongDouble> {
        let number = LongDouble::rounded(is_negative, mantissa, exponent, is_more)?;
        let is_zero = matches!(number, LongDouble::Finite { mantissa: 0, .. });
        (!is_zero).then_some(number)
    }

    fn zero(is_negative: bool) -> LongDouble {
        LongDouble::Finite {
            is_negative,
            mantissa: 0,
            exponent: 0,
        }
    }

    fn from_hexadecimal(is_negative: bool, number: &NumberText<'_>) -> Option<LongDouble> {
        let (mut mantissa, mut dropped, mut is_more) = (0_u128, 0_i64, false);
        for byte in number.digits() {
            let digit = (byte as char).to_digit(16)?;
            if mantissa >> 120 == 0 {
                mantissa = mantissa << 4 | u128::from(digit);
            } else {
                dropped += 1;
                is_more |= digit != 0;
            }
        }
        if mantissa == 0 {
            return Some(LongDouble::zero(is_negative));
        }
        let places = i64::try_from(number.fraction.len()).ok()?;
        let exponent = number.exponent + 4 * (dropped - places);
        LongDouble::nonzero(
            is_negative,
            mantissa,
            i32::try_from(exponent).ok()?,
            is_more,
        )
    }

    fn from_decimal(is_negative: bool, number: &NumberText<'_>) -> Option<LongDouble> {
        let digits: Vec<u8> = number.digits().skip_while(|&digit| digit == b'0').collect();
        let end = digits.iter().rposition(|&digit| digit != b'0');
        let Some(end) = end else {
            return Some(LongDouble::zero(is_negative));
        };
        let (digits, zeros) = (&digits[..=end], digits.len() - end - 1);
        let places = i64::try_from(number.fraction.len()).ok()?;
        let exponent = number.exponent - places + i64::try_from(zeros).ok()?;
        let magnitude = exponent + i64::try_from(digits.len()).ok()?;
        if magnitude.abs() > DECIMAL_EXPONENT_MAX {
            return None;
        }
        let digits = BigUint::parse_bytes(digits, 10)?;
        let power = BigUint::from(10_u32).pow(u32::try_from(exponent.abs()).ok()?);
        let (mantissa, exponent, is_more) = if exponent >= 0 {
            leading_bits(&(digits * power))
        } else {
            quotient(digits, &power)
        };
        LongDouble::nonzero(is_negative, mantissa, exponent, is_more)
    }

    /// Returns the sum; `None` if it is not finite.
    pub(super) fn plus(self, other: LongDouble) -> Option<LongDouble> {
        /// Position of a mantissa's highest bit: one bit is left for the carry.
        const TOP: i32 = 126;
        let parts = |number: LongDouble| match number {
            LongDouble::Infinite => None,
            LongDouble::Finite {
                is_negative,
                mantissa,
                exponent,
            } => {
                let shift = mantissa.leading_zeros().cast_signed() + TOP - (MANTISSA_BITS - 1);
                let wide = u128::from(mantissa).checked_shl(shift.cast_unsigned());
                Some((exponent - shift, wide.unwrap_or(0), is_negative))
            }
        };
        let (a, b) = (parts(self)?, parts(other)?);
        match (a.1, b.1) {
            (0, 0) => return Some(LongDouble::zero(a.2 && b.2)),
            (0, _) => return Some(other),
            (_, 0) => return Some(self),
            _ => {}
        }
        let (large, small) = if a >= b { (a, b) } else { (b, a) };
        let (exponent, large, is_negative) = large;
        let shift = u32::try_from(exponent - small.0).ok()?;
        let shifted = small.1.checked_shr(shift).unwrap_or(0);
        let is_exact = shifted.checked_shl(shift) == Some(small.1);
        // The lowest bit stands for all bits that were shifted out. It is far below the last bit of the result.
        let addend = shifted | u128::from(!is_exact);
        if is_negative == small.2 {
            return LongDouble::rounded(is_negative, large + addend, exponent, false);
        }
        match large - addend {
            0 => Some(LongDouble::zero(false)),
            difference => LongDouble::rounded(is_negative, difference, exponent, false),
        }
    }

    /// Returns the decimal text with up to 17 digits after the point.
    pub(super) fn text(self) -> String {
        let LongDouble::Finite {
            is_negative,
            mantissa,
            exponent,
        } = self
        else {
            return "inf".to_owned();
        };
        let mut text = match u32::try_from(exponent) {
            Ok(shift) => (BigUint::from(mantissa) << shift).to_string(),
            Err(_) => fraction_text(mantissa, exponent.unsigned_abs()),
        };
        if is_negative && text != "0" {
            text.insert(0, '-');
        }
        text
    }
}

/// Returns `(m, e, more)`: the number is `m * 2^e`, or slightly greater if `more`. `m` has 128 bits if the number has.
fn leading_bits(number: &BigUint) -> (u128, i32, bool) {
    let dropped = number.bits().saturating_sub(128);
    let kept = u128::try_from(number >> dropped).expect("it has at most 128 bits");
    let is_more = number.trailing_zeros().is_some_and(|zeros| zeros < dropped);
    let exponent = i32::try_from(dropped).expect("a text of 5 KiB has few bits");
    (kept, exponent, is_more)
}

/// Returns the quotient of two numbers that are not zero, as [`leading_bits`] does. `m` has at least [`QUOTIENT_BITS`]
/// bits.
fn quotient(dividend: BigUint, divisor: &BigUint) -> (u128, i32, bool) {
    let shift = (divisor.bits() + QUOTIENT_BITS).saturating_sub(dividend.bits());
    let dividend = dividend << shift;
    let (quotient, rest) = (&dividend / divisor, &dividend % divisor);
    let (kept, exponent, is_more) = leading_bits(&quotient);
    let shift = i32::try_from(shift).expect("a text of 5 KiB has few bits");
    (kept, exponent - shift, is_more || rest != BigUint::ZERO)
}

/// The text of `mantissa / 2^shift`, rounded to 17 digits after the point, without zeros at the end.
fn fraction_text(mantissa: u64, shift: u32) -> String {
    let unit = 10_u128.pow(FRACTION_DIGITS);
    let scaled = u128::from(mantissa) * unit;
    // From 128 bits on, the number is less than half of the last digit.
    let mut units = scaled.checked_shr(shift).unwrap_or(0);
    if shift < 128 {
        let half = 1_u128 << (shift - 1);
        let rest = scaled & (half | (half - 1));
        units += u128::from(rest > half || rest == half && units & 1 == 1);
    }
    let text = format!("{}.{:017}", units / unit, units % unit);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(a: &str, b: &str) -> Option<String> {
        let parse = |text: &str| LongDouble::parse(text.as_bytes());
        Some(parse(a)?.plus(parse(b)?)?.text())
    }

    /// Sums that redis-server 7.0.15 on x86-64 has computed.
    #[test]
    fn sums_have_the_digits_of_redis() {
        for (a, b, expected) in [
            ("0", "0.1", "0.1"),
            ("0.1", "0.2", "0.3"),
            ("3.0", "1e-17", "3.00000000000000001"),
            ("1e18", "0.3", "1000000000000000000.3125"),
            ("1e-18", "0", "0"),
            ("-1e-18", "0", "0"),
            ("6e-18", "0", "0.00000000000000001"),
            ("0x1p3", "0", "8"),
            ("0x.8", "-.5", "0"),
            ("1.", "-1", "0"),
            ("-0", "-0", "0"),
            ("1e20", "1", "100000000000000000000"),
            ("1e19", "1", "10000000000000000001"),
            ("18446744073709551615", "1", "18446744073709551616"),
            ("18446744073709551617", "0", "18446744073709551616"),
            ("3.6e-4951", "1", "1"),
        ] {
            assert_eq!(sum(a, b).as_deref(), Some(expected), "{a} + {b}");
        }
    }

    #[test]
    fn texts_that_redis_refuses_are_refused() {
        for text in [
            "",
            " 1",
            "1 ",
            "nan",
            "NaN",
            "1e",
            "1e+",
            "0x",
            "0x.",
            ".",
            "e5",
            "1e5000",
            "-1e5000",
            "1e-5000",
            "1.5.5",
            "1,5",
            "1_0",
            "--1",
            "+-1",
            "infinit",
            "0x1p",
            "0x1p20000",
            "1\0",
        ] {
            assert_eq!(LongDouble::parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(LongDouble::parse(&[b'0'; 5120]), None);
        assert!(LongDouble::parse(&[b'0'; 5119]).is_some());
    }

    #[test]
    fn a_sum_that_is_not_finite_is_refused() {
        for (a, b) in [("inf", "1"), ("1", "-Infinity"), ("1.18e4932", "1.18e4932")] {
            assert_eq!(sum(a, b), None, "{a} + {b}");
        }
    }
}
