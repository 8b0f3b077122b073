//! CRC-32C of a few bytes: what every record carries twice, and every read asks again.
//!
//! Records are short, and for them the calls and tables of an implementation made for long buffers cost
//! several times what the processor's own instruction does. So up to `LONG_BYTES` that instruction
//! runs here, eight bytes at a time; beyond, and on processors without it, the `crc32c` crate has several
//! streams and tables.

use std::arch::asm;

/// From how many bytes on several streams pay.
const LONG_BYTES: usize = 1024;

/// Bytes of a turn of the loop.
const RUN: usize = 64;

/// The CRC-32C of `bytes`, continuing from `crc`, that of what comes before them (0: nothing).
#[inline]
#[must_use]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    if bytes.len() >= LONG_BYTES || !std::is_x86_feature_detected!("sse4.2") || cfg!(miri) {
        return crc32c::crc32c_append(crc, bytes);
    }
    let mut state = u64::from(!crc);
    let (runs, rest) = bytes.as_chunks::<RUN>();
    for run in runs {
        let (words, _) = run.as_chunks::<8>();
        for word in words {
            state = step(state, *word);
        }
    }
    let (words, mut rest) = rest.as_chunks::<8>();
    for word in words {
        state = step(state, *word);
    }
    let mut state = state as u32;
    if let Some((four, after)) = rest.split_first_chunk::<4>() {
        state = step_four(state, u32::from_le_bytes(*four));
        rest = after;
    }
    for byte in rest {
        // SAFETY: the processor has the instruction; it reads and changes only these registers.
        unsafe {
            asm!("crc32 {state:e}, {byte}", state = inout(reg) state, byte = in(reg_byte) *byte,
                options(pure, nomem, nostack, preserves_flags));
        }
    }
    !state
}

/// The same of `first` and then `words`, little-endian: what a header is made of, read as words.
#[inline(always)]
#[must_use]
pub fn crc32c_words(crc: u32, first: u32, words: &[u64]) -> u32 {
    if !std::is_x86_feature_detected!("sse4.2") || cfg!(miri) {
        return by_bytes(crc, first, words);
    }
    let mut state = step_four(!crc, first).into();
    for word in words {
        state = step(state, word.to_le_bytes());
    }
    !(state as u32)
}

#[cold]
fn by_bytes(crc: u32, first: u32, words: &[u64]) -> u32 {
    let crc = crc32c::crc32c_append(crc, &first.to_le_bytes());
    words.iter().fold(crc, |crc, word| {
        crc32c::crc32c_append(crc, &word.to_le_bytes())
    })
}

/// Takes four bytes more into the state. The processor must have the instruction.
#[inline]
fn step_four(mut state: u32, four: u32) -> u32 {
    // SAFETY: the caller has asked for it; the instruction reads and changes only these registers.
    unsafe {
        asm!("crc32 {state:e}, {four:e}", state = inout(reg) state, four = in(reg) four,
            options(pure, nomem, nostack, preserves_flags));
    }
    state
}

/// Takes eight bytes more into the state. The processor must have the instruction.
#[inline]
fn step(mut state: u64, word: [u8; 8]) -> u64 {
    let word = u64::from_le_bytes(word);
    // SAFETY: the caller has asked for it; the instruction reads and changes only these registers.
    unsafe {
        asm!("crc32 {state}, {word}", state = inout(reg) state, word = in(reg) word,
            options(pure, nomem, nostack, preserves_flags));
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_crates_crc_at_every_length_and_continuation() {
        let bytes: Vec<u8> = (0..2 * LONG_BYTES)
            .map(|n| (n * 7 + n / 256) as u8)
            .collect();
        for len in (0..200).chain(LONG_BYTES - 9..LONG_BYTES + 9) {
            for from in 0..9 {
                let part = &bytes[from..from + len];
                for crc in [0, 1, 0xdead_beef, u32::MAX] {
                    assert_eq!(crc32c_append(crc, part), crc32c::crc32c_append(crc, part));
                }
            }
        }
        assert_eq!(crc32c_append(0, b"123456789"), 0xe306_9283);
    }

    #[test]
    fn words_have_the_crc_of_their_bytes() {
        let words = [0x0123_4567_89ab_cdef, u64::MAX, 0, 42];
        for len in 0..=words.len() {
            let mut bytes = 7_u32.to_le_bytes().to_vec();
            bytes.extend(words[..len].iter().flat_map(|word| word.to_le_bytes()));
            let expected = crc32c::crc32c_append(99, &bytes);
            assert_eq!(crc32c_words(99, 7, &words[..len]), expected);
            assert_eq!(by_bytes(99, 7, &words[..len]), expected);
        }
    }
}
