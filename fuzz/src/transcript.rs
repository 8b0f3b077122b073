//! The common property of both request parsers: however its bytes are split into reads, an input gives the same
//! requests and the same end.

use std::fmt;

/// The requests that a parser has read, encoded so that only equal requests are equal, and whether it refused the rest.
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
    /// Returns the number of requests read.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Returns whether the parser refused the input, so that the connection would be closed.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    fn clear(&mut self) {
        self.spelled.clear();
        (self.requests, self.refused) = (0, false);
    }

    /// Begins the next request, of the given kind.
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

    /// Ends the transcript because the parser refused the input, with its reason.
    pub(crate) fn refuse(&mut self, why: &[u8]) {
        self.refused = true;
        self.word(why);
    }
}

/// Split of an input into reads, and the number of requests parsed ahead.
#[derive(Clone, Copy, Debug)]
pub struct Cut<'a> {
    /// Length of each read in bytes, repeated cyclically. If empty, all bytes arrive in one read.
    pub reads: &'a [usize],
    /// Number of requests parsed ahead, for a parser that does so.
    pub ahead: usize,
}

impl Cut<'_> {
    /// All bytes in one read.
    const WHOLE: Cut<'static> = Cut {
        reads: &[],
        ahead: 16,
    };

    /// Iterates over the number of bytes, of `len`, that have arrived after each read. The last read adds none.
    pub(crate) fn arrivals(&self, len: usize) -> impl Iterator<Item = usize> {
        let mut arrived = 0;
        let cut = self.reads.iter().cycle().map_while(move |read| {
            arrived = (arrived + read).min(len);
            (arrived < len).then_some(arrived)
        });
        cut.chain([len, len])
    }
}

/// Reads requests as their bytes arrive, checks invariants at every step, and adds the requests to the transcript.
pub type ReadFn = fn(bytes: &[u8], cut: Cut<'_>, heard: &mut Transcript);

/// Compares transcripts. Reuses its memory from input to input.
#[derive(Default)]
pub struct Comparer {
    whole: Transcript,
    cut: Transcript,
}

impl Comparer {
    /// Compares the requests in `bytes` read in one piece with those read as `cut` splits them. Returns the former.
    ///
    /// # Panics
    /// If the two differ.
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
