//! The property of both parsers of requests: cut anywhere, the same bytes are the same requests and end alike.

use std::fmt;

/// What a parser read: its requests, spelled so that two are equal only if they say the same, and how it ended.
#[derive(Default, PartialEq, Eq)]
pub struct Transcript {
    spelled: Vec<u8>,
    requests: u64,
    refused: bool,
}

impl fmt::Debug for Transcript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (spelled, ends) = (self.spelled.escape_ascii(), ["", ", then refused"]);
        let end = ends[usize::from(self.refused)];
        write!(f, "{} requests{end}: {spelled}", self.requests)
    }
}

impl Transcript {
    /// Requests that were read.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Whether the connection would be closed.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    fn clear(&mut self) {
        self.spelled.clear();
        (self.requests, self.refused) = (0, false);
    }

    /// The next request begins, and is of this kind.
    pub(crate) fn begin(&mut self, kind: u8) {
        self.requests += 1;
        self.spelled.push(kind);
    }

    pub(crate) fn word(&mut self, word: &[u8]) {
        self.number(word.len() as u64);
        self.spelled.extend_from_slice(word);
    }

    pub(crate) fn number(&mut self, number: u64) {
        self.spelled.extend_from_slice(&number.to_le_bytes());
    }

    /// Nothing more is read, for this reason.
    pub(crate) fn refuse(&mut self, why: &[u8]) {
        self.refused = true;
        self.word(why);
    }
}

/// How reads cut an input, and how many requests are read ahead.
#[derive(Clone, Copy, Debug)]
pub struct Cut<'a> {
    /// Bytes of each read, over and over; none: all arrive at once.
    pub reads: &'a [usize],
    /// Requests read ahead, by a parser that does.
    pub ahead: usize,
}

impl Cut<'_> {
    /// Everything at once.
    const WHOLE: Cut<'static> = Cut {
        reads: &[],
        ahead: 16,
    };

    /// How much of `len` bytes has arrived after each read; the last one brings nothing.
    pub(crate) fn arrivals(&self, len: usize) -> impl Iterator<Item = usize> {
        let mut arrived = 0;
        let cut = self.reads.iter().cycle().map_while(move |read| {
            arrived = (arrived + read).min(len);
            (arrived < len).then_some(arrived)
        });
        cut.chain([len, len])
    }
}

/// Reads `bytes` as they arrive, checks what holds at every step, and says what it read.
pub type ReadFn = fn(bytes: &[u8], cut: Cut<'_>, heard: &mut Transcript);

/// Compares; keeps its memory between two inputs.
#[derive(Default)]
pub struct Comparer {
    whole: Transcript,
    cut: Transcript,
}

impl Comparer {
    /// Panics if `bytes` are something else when they are cut than in one piece. What they are in one piece.
    pub fn compare(&mut self, hear: ReadFn, bytes: &[u8], cut: Cut<'_>) -> &Transcript {
        let Comparer { whole, cut: pieces } = self;
        for (heard, cut) in [(&mut *whole, Cut::WHOLE), (&mut *pieces, cut)] {
            heard.clear();
            hear(bytes, cut, heard);
        }
        assert_eq!(whole, pieces, "{cut:?}");
        whole
    }
}
