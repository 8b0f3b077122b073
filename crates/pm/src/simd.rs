//! Questions to many bytes at once.

use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};

/// Which bytes of two words are `byte`: a bit each, that of the first word's lowest byte the lowest.
#[inline(always)]
#[must_use]
pub fn bytes_equal([low, high]: [u64; 2], byte: u8) -> u64 {
    // SAFETY: these are SSE2's, which every x86-64 processor has, and touch no memory.
    let mask = unsafe {
        let equal = _mm_cmpeq_epi8(
            _mm_set_epi64x(high as i64, low as i64),
            _mm_set1_epi8(byte as i8),
        );
        _mm_movemask_epi8(equal)
    };
    u64::from(mask as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_bytes_are_found_and_no_others() {
        const NONE: u64 = !0x5555_5555_5555_5555;
        for (word, byte, found) in [
            (0, 0, 0xff),
            (0x0100, 0, 0xfd),
            (0x0100, 1, 0b10),
            (0x80_00_7f_ff_01_80_00_81, 0x80, 0b1000_0100),
            (0x80_00_7f_ff_01_80_00_81, 0, 0b0100_0010),
            (u64::MAX, 0xfe, 0),
        ] {
            assert_eq!(
                bytes_equal([word, NONE], byte),
                found,
                "{word:#x} {byte:#x}"
            );
            assert_eq!(
                bytes_equal([NONE, word], byte),
                found << 8,
                "{word:#x} {byte:#x}"
            );
        }
    }
}
