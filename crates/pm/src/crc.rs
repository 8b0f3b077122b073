//! CRC-32C of short byte strings. Every record carries two of them, and every read checks them.
//!
//! Records are short. For them, an implementation made for long buffers costs several times as much as
//! the CPU's own instruction. So below `LONG_BYTES` this module uses the instruction, eight bytes at a
//! time. For longer inputs, and on CPUs without the instruction, it calls the `crc32c` crate, which uses
//! several streams and tables.

use std::arch::asm;

/// Length from which several streams are faster, in bytes.
const LONG_BYTES: usize = 1024;

/// Bytes per iteration of the loop.
const RUN: usize = 64;

/// Returns the CRC-32C of `bytes`, continuing from `crc`, the CRC of the preceding bytes (0 if there are none).
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
        // SAFETY: SSE4.2 was detected above; the instruction reads and changes only these registers.
        unsafe {
            asm!("crc32 {state:e}, {byte}", state = inout(reg) state, byte = in(reg_byte) *byte,
                options(pure, nomem, nostack, preserves_flags));
        }
    }
    !state
}

/// Returns the CRC-32C of `first` and then `words`, all little-endian: of a header that was read as words.
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

/// Adds four bytes to the state. The CPU must have SSE4.2.
#[inline]
fn step_four(mut state: u32, four: u32) -> u32 {
    // SAFETY: the caller has detected SSE4.2; the instruction reads and changes only these registers.
    unsafe {
        asm!("crc32 {state:e}, {four:e}", state = inout(reg) state, four = in(reg) four,
            options(pure, nomem, nostack, preserves_flags));
    }
    state
}

/// Adds eight bytes to the state. The CPU must have SSE4.2.
#[inline]
fn step(mut state: u64, word: [u8; 8]) -> u64 {
    let word = u64::from_le_bytes(word);
    // SAFETY: the caller has detected SSE4.2; the instruction reads and changes only these registers.
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
    fn it_equals_the_crc_of_the_crc32c_crate_at_every_length_and_seed() {
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
