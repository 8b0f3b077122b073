//! What the fuzz targets share: an input read field by field, pools to damage, and what holds of requests.
//!
//! * [`Input`] is the fuzzer's bytes, read as numbers; where they end it reads zeros.
//! * [`format`] finds and forges the fields of a pool, by `docs/format.md` alone.
//! * [`pools`] are sound pools with a known past, the same in every process.
//! * [`transcript`] says when two readings of requests are the same; [`memcached`] and [`resp`] read them, and draft some
//!   ([`request_builder`]) for `parsers`, which is quicker than a fuzzer.
#![forbid(unsafe_code)]

pub mod request_builder;
pub mod format;
pub mod transcript;
pub mod memcached;
pub mod pools;
pub mod resp;

use transcript::{Cut, ReadFn, Comparer};

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

/// The rest of `input` is the same to a parser of requests however reads cut it: at places chosen by what comes first, and
/// byte by byte.
pub fn cut(mut input: Input<'_>, hear: ReadFn) {
    let ahead = 1 + input.below(4);
    let reads: Vec<usize> = (0..input.below(8)).map(|_| 1 + input.below(64)).collect();
    let (bytes, mut judge) = (input.0, Comparer::default());
    let reads = &reads[..];
    judge.compare(hear, bytes, Cut { reads, ahead });
    if bytes.len() < 200 {
        let (reads, ahead) = (&[1][..], 1);
        judge.compare(hear, bytes, Cut { reads, ahead });
    }
}
