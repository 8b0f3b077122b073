//! Inputs that are quick to make: requests by a grammar, a few of their bytes changed then.

use farbank_pm::sim::Rng;

/// An input that is being written.
pub struct RequestBuilder<'a> {
    rng: &'a mut Rng,
    bytes: &'a mut Vec<u8>,
}

impl<'a> RequestBuilder<'a> {
    /// An empty one.
    pub fn new(rng: &'a mut Rng, bytes: &'a mut Vec<u8>) -> RequestBuilder<'a> {
        bytes.clear();
        RequestBuilder { rng, bytes }
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.rng.below(end as u64) as usize
    }

    /// True once in `n` times.
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

    /// Ends a line, once in a while by one of `odd`.
    pub fn line_end(&mut self, odd: &[&[u8]]) {
        match self.one_in(32) {
            true => self.one_of(odd),
            false => self.text(b"\r\n"),
        }
    }

    /// Appends `byte` so many times.
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

    /// Puts `byte` so many times somewhere.
    pub fn splice(&mut self, byte: u8, times: usize) {
        let at = self.below(self.bytes.len() + 1);
        let behind = std::iter::repeat_n(byte, times);
        self.bytes.splice(at..at, behind);
    }

    /// Changes up to three things, in half of all inputs none.
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
