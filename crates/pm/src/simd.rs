//! Comparisons of several bytes or words at once. The result is a mask with one bit for each.

use std::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_castps_si128, _mm_castsi128_ps, _mm_cmpeq_epi8, _mm_cmpeq_epi32,
    _mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32, _mm_set_epi64x, _mm_set1_epi8,
    _mm_set1_epi32, _mm_shuffle_ps,
};

/// Returns a mask of the bytes of two words that equal `byte`. Bit 0 stands for the lowest byte of the first word.
#[inline(always)]
#[must_use]
pub fn bytes_equal([low, high]: [u64; 2], byte: u8) -> u64 {
    // SAFETY: every x86-64 CPU has SSE2, and the instructions touch no memory.
    let mask = unsafe {
        let equal = _mm_cmpeq_epi8(
            _mm_set_epi64x(high as i64, low as i64),
            _mm_set1_epi8(byte as i8),
        );
        _mm_movemask_epi8(equal)
    };
    u64::from(mask as u16)
}

/// Returns a mask of the words whose upper half equals `half` in the bits of `mask`. Bit 0 stands for the first word.
#[inline(always)]
#[must_use]
pub fn upper_halves_equal(words: [u64; 8], half: u32, mask: u32) -> u64 {
    let [a, b, c, d, e, f, g, h] = words;
    // SAFETY: every x86-64 CPU has SSE2, and the instructions touch no memory.
    let found = unsafe {
        let first = _mm_packs_epi32(
            halves_equal([a, b, c, d], half, mask),
            halves_equal([e, f, g, h], half, mask),
        );
        _mm_movemask_epi8(_mm_packs_epi16(first, first))
    };
    u64::from(found as u8)
}

/// Returns 32 bits for each of four words: all ones if its upper half equals `half` in the bits of `mask`, else zeros.
///
/// # Safety
/// The processor has SSE2.
#[inline(always)]
unsafe fn halves_equal([a, b, c, d]: [u64; 4], half: u32, mask: u32) -> __m128i {
    const ODD: i32 = 0b11_01_11_01;
    // SAFETY: the caller guarantees SSE2; the instructions touch no memory.
    unsafe {
        let low = _mm_castsi128_ps(_mm_set_epi64x(b as i64, a as i64));
        let high = _mm_castsi128_ps(_mm_set_epi64x(d as i64, c as i64));
        let halves = _mm_castps_si128(_mm_shuffle_ps::<ODD>(low, high));
        let masked = _mm_and_si128(halves, _mm_set1_epi32(mask as i32));
        _mm_cmpeq_epi32(masked, _mm_set1_epi32((half & mask) as i32))
    }
}

/// Returns the positions of the set bits of `mask`, from the lowest.
#[inline(always)]
pub fn ones(mut mask: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let n = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (n < u64::BITS).then_some(n)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_equal_bytes_are_found() {
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

    #[test]
    fn words_are_found_by_the_masked_bits_of_their_upper_half() {
        const HALF: u32 = 0x8123_4567;
        for which in 0..256_u64 {
            let words = std::array::from_fn(|n| match which >> n & 1 {
                1 => u64::from(HALF) << 32 | n as u64,
                _ => u64::from(HALF ^ 1 << (4 * n)) << 32,
            });
            assert_eq!(upper_halves_equal(words, HALF, u32::MAX), which);
            let unseen = 1 << 12;
            let fourth = which | 1 << 3;
            assert_eq!(upper_halves_equal(words, HALF ^ unseen, !unseen), fourth);
        }
    }

    #[test]
    fn the_set_bits_of_a_mask_are_listed_from_the_lowest() {
        let mask = 1 | 1 << 5 | 1 << 63;
        assert_eq!(ones(mask).collect::<Vec<_>>(), [0, 5, 63]);
        assert_eq!(ones(0).next(), None);
    }
}
