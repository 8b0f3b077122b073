//! Natural numbers of any size, as far as the conversion of decimal texts needs them.

use std::cmp::Ordering;

/// A power of ten that fits in a word, and its number of zeros.
const CHUNK: u32 = 1_000_000_000;
const CHUNK_DIGITS: usize = 9;
/// Bits of the quotients and leading bits that [`BigNatural`] computes.
const QUOTIENT_BITS: i32 = 100;

/// A natural number: words of 32 bits, the lowest first, without zeros at the end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct BigNatural {
    words: Vec<u32>,
}

impl From<u128> for BigNatural {
    fn from(mut value: u128) -> BigNatural {
        let mut words = Vec::new();
        while value != 0 {
            words.push(value as u32);
            value >>= 32;
        }
        BigNatural { words }
    }
}

impl BigNatural {
    /// Parses decimal digits.
    pub(super) fn from_decimal(digits: &[u8]) -> BigNatural {
        let mut number = BigNatural { words: Vec::new() };
        for chunk in digits.chunks(CHUNK_DIGITS) {
            let add = |sum: u32, digit: &u8| sum * 10 + u32::from(digit - b'0');
            let scale = (0..chunk.len()).fold(1, |scale, _| scale * 10);
            number.multiply_add(scale, chunk.iter().fold(0, add));
        }
        number
    }

    /// Returns 10 to the power of `exponent`.
    pub(super) fn power_of_ten(exponent: u32) -> BigNatural {
        let mut number = BigNatural::from(1);
        let chunk = CHUNK_DIGITS as u32;
        for _ in 0..exponent / chunk {
            number.multiply_add(CHUNK, 0);
        }
        number.multiply_add(10_u32.pow(exponent % chunk), 0);
        number
    }

    /// Replaces the number by `self * factor + addend`.
    fn multiply_add(&mut self, factor: u32, addend: u32) {
        let mut carry = u64::from(addend);
        for word in &mut self.words {
            carry += u64::from(*word) * u64::from(factor);
            *word = carry as u32;
            carry >>= 32;
        }
        if carry != 0 {
            self.words.push(carry as u32);
        }
    }

    /// Returns the product.
    pub(super) fn times(&self, other: &BigNatural) -> BigNatural {
        let mut words = vec![0_u32; self.words.len() + other.words.len()];
        for (at, &a) in self.words.iter().enumerate() {
            let mut carry = 0_u64;
            let (low, high) = words[at..].split_at_mut(other.words.len());
            for (word, &b) in low.iter_mut().zip(&other.words) {
                carry += u64::from(*word) + u64::from(a) * u64::from(b);
                *word = carry as u32;
                carry >>= 32;
            }
            high[0] = carry as u32;
        }
        BigNatural { words }.trimmed()
    }

    fn trimmed(mut self) -> BigNatural {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
        self
    }

    /// Returns `self * 2^shift`.
    pub(super) fn shifted(&self, shift: u32) -> BigNatural {
        let (whole, part) = (shift as usize / 32, shift % 32);
        let mut words = vec![0; whole];
        let mut carry = 0_u32;
        for &word in &self.words {
            let wide = u64::from(word) << part;
            words.push(wide as u32 | carry);
            carry = (wide >> 32) as u32;
        }
        words.push(carry);
        BigNatural { words }.trimmed()
    }

    /// Number of bits.
    fn bits(&self) -> i32 {
        let last = self.words.last().map_or(32, |word| word.leading_zeros());
        (self.words.len() * 32) as i32 - last as i32
    }

    /// Returns `(m, e, more)`: the number is `m * 2^e`, or slightly greater if `more`. `m` has at least 97 bits if the
    /// number has.
    pub(super) fn leading_bits(&self) -> (u128, i32, bool) {
        let from = self.words.len().saturating_sub(4);
        let (low, high) = self.words.split_at(from);
        let add = |sum: u128, &word: &u32| sum << 32 | u128::from(word);
        let mantissa = high.iter().rev().fold(0, add);
        (
            mantissa,
            from as i32 * 32,
            low.iter().any(|&word| word != 0),
        )
    }

    /// Returns `(m, e, more)`: the quotient is `m * 2^e`, or slightly greater if `more`. `m` has at least
    /// [`QUOTIENT_BITS`] bits. Neither number is zero.
    pub(super) fn divided_by(self, divisor: BigNatural) -> (u128, i32, bool) {
        // Both get the same number of bits, so that the quotient's first bit is worth 1.
        let shift = divisor.bits() - self.bits();
        let mut rest = self.shifted(shift.max(0).cast_unsigned());
        let divisor = divisor.shifted((-shift).max(0).cast_unsigned());
        let mut quotient = 0_u128;
        for _ in 0..=QUOTIENT_BITS {
            quotient <<= 1;
            if rest.compare(&divisor) != Ordering::Less {
                rest.subtract(&divisor);
                quotient |= 1;
            }
            rest.double();
        }
        (quotient, -QUOTIENT_BITS - shift, !rest.words.is_empty())
    }

    fn compare(&self, other: &BigNatural) -> Ordering {
        let by_len = self.words.len().cmp(&other.words.len());
        by_len.then_with(|| self.words.iter().rev().cmp(other.words.iter().rev()))
    }

    /// Subtracts a number that is not greater.
    fn subtract(&mut self, other: &BigNatural) {
        let mut borrow = false;
        for (at, word) in self.words.iter_mut().enumerate() {
            let part = other.words.get(at).copied().unwrap_or(0);
            let (less, under) = word.overflowing_sub(part);
            let (less, under_again) = less.overflowing_sub(u32::from(borrow));
            (*word, borrow) = (less, under || under_again);
        }
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }

    fn double(&mut self) {
        let mut carry = 0;
        for word in &mut self.words {
            (*word, carry) = (*word << 1 | carry, *word >> 31);
        }
        if carry != 0 {
            self.words.push(carry);
        }
    }

    /// Returns the decimal text.
    pub(super) fn to_decimal(&self) -> String {
        let (mut words, mut chunks) = (self.words.clone(), Vec::new());
        while !words.is_empty() {
            let mut rest = 0_u64;
            for word in words.iter_mut().rev() {
                let part = rest << 32 | u64::from(*word);
                *word = (part / u64::from(CHUNK)) as u32;
                rest = part % u64::from(CHUNK);
            }
            chunks.push(rest);
            while words.last() == Some(&0) {
                words.pop();
            }
        }
        let mut text = chunks.pop().unwrap_or(0).to_string();
        for chunk in chunks.iter().rev() {
            text.push_str(&format!("{chunk:09}"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_texts_are_read_and_written_unchanged() {
        for text in [
            "0",
            "1",
            "999999999",
            "1000000000",
            "340282366920938463463374607431768211456",
        ] {
            assert_eq!(BigNatural::from_decimal(text.as_bytes()).to_decimal(), text);
        }
        let power = BigNatural::power_of_ten(5000).to_decimal();
        assert_eq!(power, format!("1{}", "0".repeat(5000)));
        assert_eq!(
            BigNatural::from(1).shifted(128).to_decimal(),
            "340282366920938463463374607431768211456"
        );
    }

    #[test]
    fn products_and_quotients_agree_with_each_other() {
        let (a, b) = (
            BigNatural::power_of_ten(40),
            BigNatural::from_decimal(b"123456789123456789"),
        );
        let (mantissa, exponent, more) = a.times(&b).divided_by(a);
        assert!(!more);
        assert_eq!(mantissa >> -exponent, 123_456_789_123_456_789);
    }
}
