//! LZF, the compression of strings in Redis's files and DUMP payloads.
//!
//! The format is a sequence of items. An item begins with a control byte:
//!
//! ```text
//!   000LLLLL  L+1 literal bytes                            1 to 32 literals
//!   LLLooooo oooooooo           copy L+2 bytes, L = 1..6    from o+1 bytes before the end of the output
//!   111ooooo LLLLLLLL oooooooo  copy L+9 bytes
//! ```
//!
//! Many compressed forms of a string are valid. This compressor makes the choices of the algorithm's published fast
//! variant, with a hash table of 2^16 positions, because the payloads of DUMP must be those of Redis byte for byte:
//! one candidate for each position, the latest one with the same hash of 3 bytes; after a match, only the last two
//! positions of the match enter the table.

/// Entries of the table of positions.
const TABLE_ENTRIES: usize = 1 << 16;
/// Longest literal run of an item.
const LITERALS_MAX: usize = 32;
/// Distances of a copy are smaller.
const DISTANCE_END: usize = 1 << 13;
/// Longest copy of an item, and shortest one.
const COPY_BYTES_MAX: usize = 264;
const COPY_BYTES_MIN: usize = 3;
/// Most bytes of output that one byte of input stands for.
const EXPANSION_MAX: usize = COPY_BYTES_MAX / 3;

/// Where the bytes `[a, b, c]` enter the table.
#[inline]
fn slot(bytes: &[u8], at: usize) -> usize {
    let word =
        u32::from(bytes[at]) << 16 | u32::from(bytes[at + 1]) << 8 | u32::from(bytes[at + 2]);
    (word >> 8).wrapping_sub(word.wrapping_mul(5)) as usize % TABLE_ENTRIES
}

/// The output of a compression: complete items, then the control byte and the bytes of a literal run.
struct Compressor {
    out: Vec<u8>,
    out_bytes_max: usize,
    /// Bytes of the literal run at the end of `out`.
    literals: usize,
}

impl Compressor {
    fn begin_run(&mut self) {
        self.out.push(0);
        self.literals = 0;
    }

    /// Completes the literal run, or removes it if it is empty.
    fn end_run(&mut self) {
        match self.literals {
            0 => drop(self.out.pop()),
            literals => {
                let control = self.out.len() - literals - 1;
                self.out[control] = (literals - 1) as u8;
            }
        }
    }

    fn literal(&mut self, byte: u8) {
        self.out.push(byte);
        self.literals += 1;
        if self.literals == LITERALS_MAX {
            self.end_run();
            self.begin_run();
        }
    }

    /// Appends a copy of `len` bytes from `distance` bytes before the end. `None`: the output is too long.
    fn copy(&mut self, distance: usize, len: usize) -> Option<()> {
        let begun = usize::from(self.literals == 0);
        if self.out.len() - begun + 4 >= self.out_bytes_max {
            return None;
        }
        self.end_run();
        let (offset, stored) = (distance - 1, len - 2);
        let high = (offset >> 8) as u8;
        match stored {
            0..7 => self.out.push(high | (stored as u8) << 5),
            _ => self
                .out
                .extend_from_slice(&[high | 7 << 5, (stored - 7) as u8]),
        }
        self.out.push(offset as u8);
        self.begin_run();
        Some(())
    }
}

/// Length of the match of the bytes at `at` with those at `from`, of which the first three are equal.
///
/// The published algorithm compares 16 bytes at once where it can. So a match may reach the end of the input if it has
/// 19 bytes, but a longer or shorter one ends before the last two bytes.
fn match_length(input: &[u8], from: usize, at: usize) -> usize {
    const UNROLLED: usize = 16;
    let longest = (input.len() - at - 2).min(COPY_BYTES_MAX);
    let same = |len: usize| input[from + len] == input[at + len];
    let mut len = COPY_BYTES_MIN - 1;
    if longest > UNROLLED {
        for _ in 0..UNROLLED {
            len += 1;
            if !same(len) {
                return len;
            }
        }
    }
    loop {
        len += 1;
        if len >= longest || !same(len) {
            return len;
        }
    }
}

/// Compresses `input`. Returns `None` if the result would have more than about `out_bytes_max` bytes; the exact limit
/// is that of the published algorithm.
pub(super) fn compress(input: &[u8], out_bytes_max: usize) -> Option<Vec<u8>> {
    if input.is_empty() || out_bytes_max == 0 {
        return None;
    }
    // Positions are below 2^32: values have at most 2^29 bytes. 0 is an empty entry, so nothing is copied from there.
    let mut table = vec![0_u32; TABLE_ENTRIES];
    let mut state = Compressor {
        out: Vec::with_capacity(out_bytes_max.min(input.len())),
        out_bytes_max,
        literals: 0,
    };
    state.begin_run();
    let mut at = 0;
    while at + 2 < input.len() {
        let entry = &mut table[slot(input, at)];
        let from = *entry as usize;
        *entry = at as u32;
        let is_match = from > 0
            && at - from <= DISTANCE_END
            && input[from..from + COPY_BYTES_MIN] == input[at..at + COPY_BYTES_MIN];
        if !is_match {
            if state.out.len() >= out_bytes_max {
                return None;
            }
            state.literal(input[at]);
            at += 1;
            continue;
        }
        let len = match_length(input, from, at);
        state.copy(at - from, len)?;
        at += len;
        if at + 2 >= input.len() {
            break;
        }
        for position in [at - 2, at - 1] {
            table[slot(input, position)] = position as u32;
        }
    }
    if state.out.len() + 3 > out_bytes_max {
        return None;
    }
    input[at..].iter().for_each(|&byte| state.literal(byte));
    state.end_run();
    Some(state.out)
}

/// Whether `compressed_bytes` bytes may stand for `bytes` bytes. A caller checks it before it reserves memory.
pub(super) fn may_expand_to(compressed_bytes: usize, bytes: usize) -> bool {
    bytes / EXPANSION_MAX <= compressed_bytes
}

/// Restores a string of `bytes` bytes. Returns `None` if `input` is not the compressed form of one.
pub(super) fn decompress(input: &[u8], bytes: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes);
    let mut rest = input;
    while let Some((&control, after)) = rest.split_first() {
        rest = after;
        if usize::from(control) < LITERALS_MAX {
            let (literals, after) = rest.split_at_checked(usize::from(control) + 1)?;
            rest = after;
            out.extend_from_slice(literals);
        } else {
            let mut len = usize::from(control >> 5) + 2;
            if len == 9 {
                let (&more, after) = rest.split_first()?;
                (len, rest) = (len + usize::from(more), after);
            }
            let (&low, after) = rest.split_first()?;
            rest = after;
            let distance = (usize::from(control & 0x1f) << 8 | usize::from(low)) + 1;
            let from = out.len().checked_sub(distance)?;
            if len > bytes - out.len() {
                return None;
            }
            copy_within_output(&mut out, from, len);
        }
        if out.len() > bytes {
            return None;
        }
    }
    (out.len() == bytes).then_some(out)
}

/// Appends `len` bytes of `out` from `from` on. The copy may read bytes that it has appended itself.
fn copy_within_output(out: &mut Vec<u8>, from: usize, len: usize) {
    let mut left = len;
    while left > 0 {
        let count = left.min(out.len() - from);
        out.extend_from_within(from..from + count);
        left -= count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_strings_are_restored() {
        let mut word = 1_u64;
        let mut random = move |end: u64| {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (word >> 33) % end
        };
        for _ in 0..2_000 {
            let (len, letters) = (random(3_000), 1 + random(20));
            let input: Vec<u8> = (0..len).map(|_| random(letters) as u8).collect();
            let Some(compressed) = compress(&input, input.len().saturating_sub(4)) else {
                continue;
            };
            assert!(compressed.len() + 4 <= input.len());
            assert!(may_expand_to(compressed.len(), input.len()));
            assert_eq!(
                decompress(&compressed, input.len()).as_deref(),
                Some(&input[..])
            );
            assert_eq!(decompress(&compressed, input.len() - 1), None);
            assert_eq!(decompress(&compressed, input.len() + 1), None);
        }
    }

    #[test]
    fn a_long_run_takes_three_bytes_for_264() {
        let compressed = compress(&[b'a'; 1 << 20], 1 << 20).unwrap();
        assert!(
            compressed.len() <= (1 << 20) * 3 / 264 + 8,
            "{}",
            compressed.len()
        );
        assert_eq!(decompress(&compressed, 1 << 20).unwrap(), [b'a'; 1 << 20]);
    }

    #[test]
    fn bytes_that_are_no_compressed_form_are_refused() {
        for input in [
            &b""[..],
            b"\x03abc",
            b"\x20",
            b"\xe0\x01",
            b"\x00a\x20\x01",
            b"\xff\xff\xff",
        ] {
            assert_eq!(decompress(input, 5), None, "{input:?}");
        }
    }
}
