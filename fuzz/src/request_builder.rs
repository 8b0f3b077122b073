//! Fast generation of inputs: requests by a grammar, with a few bytes changed afterwards.

use farbank_pm::rng::Rng;

/// Builder of an input.
pub struct RequestBuilder<'a> {
    rng: &'a mut Rng,
    bytes: &'a mut Vec<u8>,
}

impl<'a> RequestBuilder<'a> {
    /// Returns a builder of an empty input.
    pub fn new(rng: &'a mut Rng, bytes: &'a mut Vec<u8>) -> RequestBuilder<'a> {
        bytes.clear();
        RequestBuilder { rng, bytes }
    }

    /// Returns a random number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.rng.below(end as u64) as usize
    }

    /// Returns true with probability 1 / `n`.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Appends `text`.
    pub fn text(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
    }

    /// Appends one of `texts`.
    pub fn one_of(&mut self, texts: &[&[u8]]) {
        let text = texts[self.below(texts.len())];
        self.text(text);
    }

    /// Ends a line; rarely with one of `odd`.
    pub fn line_end(&mut self, odd: &[&[u8]]) {
        match self.one_in(32) {
            true => self.one_of(odd),
            false => self.text(b"\r\n"),
        }
    }

    /// Appends `byte` `times` times.
    pub fn repeat(&mut self, byte: u8, times: usize) {
        self.bytes.resize(self.bytes.len() + times, byte);
    }

    /// Appends a number in decimal.
    pub fn decimal(&mut self, number: usize) {
        let (mut digits, mut at, mut rest) = ([0; 20], 20, number);
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.text(&digits[at..]);
    }

    /// Inserts `byte` `times` times at a random place.
    pub fn splice(&mut self, byte: u8, times: usize) {
        let at = self.below(self.bytes.len() + 1);
        let behind = std::iter::repeat_n(byte, times);
        self.bytes.splice(at..at, behind);
    }

    /// Makes up to three random changes. Half of all inputs stay unchanged.
    pub fn mutate(&mut self) {
        if self.one_in(2) {
            return;
        }
        for _ in 0..=self.below(3) {
            self.change();
        }
    }

    fn change(&mut self) {
        const SPECIAL: &[u8] = b"\r\n\0 *$-+0123456789\"'\\\t\xff";
        let len = self.bytes.len();
        if len == 0 {
            return;
        }
        let at = self.below(len);
        let special = SPECIAL[self.below(SPECIAL.len())];
        match self.below(8) {
            0 => self.bytes[at] ^= 1 << self.below(8),
            1 | 2 => self.bytes[at] = special,
            3 => self.bytes.insert(at, special),
            4 => drop(self.bytes.remove(at)),
            5 => self.bytes.truncate(at),
            6 => {
                let end = len.min(at + 1 + self.below(16));
                drop(self.bytes.drain(at..end));
            }
            _ => {
                let end = len.min(at + 1 + self.below(16));
                self.bytes.extend_from_within(at..end);
            }
        }
    }
}
