//! What the fuzz targets share: an input read field by field, and pools to damage.
//!
//! * [`Input`] is the fuzzer's bytes, read as numbers; where they end it reads zeros.
//! * [`format`] finds and forges the fields of a pool, by `docs/format.md` alone.
//! * [`pools`] are sound pools with a known past, the same in every process.
#![forbid(unsafe_code)]

pub mod format;
pub mod pools;

/// The fuzzer's bytes, read from the front.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A number of `bytes` bytes.
    pub fn number(&mut self, bytes: usize) -> u64 {
        let mut word = [0; 8];
        let taken = self.bytes(bytes);
        word[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(word)
    }

    /// A number below `end`, which is below 2^16.
    pub fn below(&mut self, end: usize) -> usize {
        let bytes = if end <= 256 { 1 } else { 2 };
        self.number(bytes) as usize % end.max(1)
    }

    /// The next `len` bytes, or what is left of them.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// `bytes` in pieces of these lengths, over and over.
pub fn pieces<'a>(mut bytes: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    for cut in cuts.iter().cycle() {
        if bytes.is_empty() {
            break;
        }
        let (piece, rest) = bytes.split_at((*cut).min(bytes.len()));
        pieces.push(piece);
        bytes = rest;
    }
    pieces.push(bytes);
    pieces
}
