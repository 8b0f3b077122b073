//! The buffer that replies are appended to, which refuses to grow beyond its limit.
//!
//! ```text
//!   bytes   [ replies not yet sent              ][ this reply ...  ]
//!                                                                  ▲ bytes_max
//! ```
//!
//! A reply that does not fit is *cut*: neither its bytes nor those of any later reply are kept, and the
//! connection is closed (a client cannot read half a reply). A command that has cut its reply may go on, for
//! what it has still to write to the store, or return at once.
//!
//! # Invariants
//! B1  `bytes` has at most `bytes_max` bytes.
//! B2  Once cut, a buffer stays cut, until it is rewound to before the reply that did not fit.

/// Most memory that a buffer with something in it keeps when it holds less than half of it.
const CAPACITY_KEPT: usize = 256 << 10;

/// Most memory that an empty buffer keeps.
const EMPTY_CAPACITY_KEPT: usize = 4 << 20;

/// What bytes of a reply are appended to.
pub trait ReplySink {
    /// Appends `bytes`.
    fn extend_from_slice(&mut self, bytes: &[u8]);

    /// Appends one byte.
    fn push(&mut self, byte: u8) {
        self.extend_from_slice(&[byte]);
    }
}

impl ReplySink for Vec<u8> {
    #[inline]
    fn extend_from_slice(&mut self, bytes: &[u8]) {
        Vec::extend_from_slice(self, bytes);
    }
}

/// Replies of one connection: see the module.
#[derive(Debug)]
pub(crate) struct ReplyBuffer {
    bytes: Vec<u8>,
    bytes_max: usize,
    is_cut: bool,
}

impl Default for ReplyBuffer {
    fn default() -> ReplyBuffer {
        ReplyBuffer {
            bytes: Vec::new(),
            bytes_max: usize::MAX,
            is_cut: false,
        }
    }
}

impl ReplySink for ReplyBuffer {
    #[inline]
    fn extend_from_slice(&mut self, bytes: &[u8]) {
        if bytes.len() <= self.bytes_max.wrapping_sub(self.bytes.len()) && !self.is_cut {
            self.bytes.extend_from_slice(bytes);
        } else {
            self.cut();
        }
    }
}

impl ReplyBuffer {
    /// A buffer that reuses the memory of `bytes`, which is empty.
    pub(crate) fn reusing(bytes: Vec<u8>) -> ReplyBuffer {
        ReplyBuffer {
            bytes,
            ..ReplyBuffer::default()
        }
    }

    /// Sets how many bytes the buffer may hold. What it holds already stays.
    pub(crate) fn set_bytes_max(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max.max(self.bytes.len());
    }

    /// Most bytes the buffer may hold.
    #[inline]
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Whether a reply did not fit: the connection is to be closed.
    #[inline]
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Notes that a reply does not fit.
    #[cold]
    pub(crate) fn cut(&mut self) {
        self.is_cut = true;
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// Takes back what was appended after the first `len` bytes. A cut buffer stays cut.
    #[inline]
    pub(crate) fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
        self.shrink();
    }

    /// As [`ReplyBuffer::truncate`], before everything after `len` is executed again: a cut is taken back, too.
    pub(crate) fn rewind(&mut self, len: usize) {
        self.truncate(len);
        self.is_cut = false;
    }

    /// Gives back memory that a large reply has needed.
    #[inline]
    fn shrink(&mut self) {
        let (len, capacity) = (self.bytes.len(), self.bytes.capacity());
        // An empty one is kept, or freed, by its thread's shelf.
        let kept = if len > 0 {
            CAPACITY_KEPT
        } else {
            EMPTY_CAPACITY_KEPT
        };
        if capacity > kept && len < capacity / 2 {
            self.bytes.shrink_to(CAPACITY_KEPT);
        }
    }

    /// An empty buffer for a part of a reply that is counted before it is appended: it takes half of what
    /// this one has room for, so that both copies together take no more.
    pub(crate) fn sibling(&self) -> ReplyBuffer {
        ReplyBuffer {
            bytes: Vec::new(),
            bytes_max: (self.bytes_max - self.bytes.len()) / 2,
            is_cut: self.is_cut,
        }
    }

    /// Appends what a sibling has collected.
    pub(crate) fn take_from(&mut self, sibling: ReplyBuffer) {
        self.is_cut |= sibling.is_cut;
        self.extend_from_slice(&sibling.bytes);
    }

    /// The bytes themselves, for the store to append a value to. Its caller keeps B1: the head that comes
    /// before the value compares its length with [`ReplyBuffer::bytes_max`].
    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_does_not_grow_beyond_its_limit_and_keeps_nothing_of_later_replies() {
        let mut out = ReplyBuffer::default();
        out.set_bytes_max(8);
        out.extend_from_slice(b"1234");
        out.extend_from_slice(b"5678");
        assert!(!out.is_cut());
        out.push(b'9');
        assert!(out.is_cut());
        out.truncate(4);
        out.push(b'x');
        assert_eq!((out.as_slice(), out.is_cut()), (b"1234".as_slice(), true));
        out.rewind(4);
        out.push(b'x');
        assert_eq!((out.as_slice(), out.is_cut()), (b"1234x".as_slice(), false));
    }
}
