//! Shared parts of the fuzz targets: parsing of the fuzzer's input, pools to damage, and properties of request parsers.
//!
//! * [`Input`] reads the fuzzer's bytes as numbers; beyond their end it reads zeros.
//! * [`format`] finds and forges fields of a pool, according to `docs/format.md` alone.
//! * [`pools`] are valid pools with a known history, the same in every process.
//! * [`transcript`] defines when two readings of requests are equal. [`memcached`] and [`resp`] read requests, and
//!   generate some with [`request_builder`] for `parsers`, which is faster than a fuzzer.
#![forbid(unsafe_code)]

pub mod format;
pub mod memcached;
pub mod pools;
pub mod request_builder;
pub mod resp;
pub mod transcript;

use transcript::{Comparer, Cut, ReadFn};

/// The fuzzer's bytes, consumed from the front.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// Returns whether all bytes have been consumed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads a number of `bytes` bytes.
    pub fn number(&mut self, bytes: usize) -> u64 {
        let mut word = [0; 8];
        let taken = self.bytes(bytes);
        word[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(word)
    }

    /// Reads a number below `end`, which is below 2^16.
    pub fn below(&mut self, end: usize) -> usize {
        let bytes = if end <= 256 { 1 } else { 2 };
        self.number(bytes) as usize % end.max(1)
    }

    /// Reads the next `len` bytes, or fewer at the end.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// Checks that a request parser reads the same requests from `input` however its bytes are split into reads: at places
/// that the first bytes of `input` select, and byte by byte.
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
