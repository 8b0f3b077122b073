//! Reply buffer of a connection, with a limit on its bytes.
//!
//! ```text
//!   bytes   [ replies not yet sent              ][ this reply ...  ]
//!                                                                  ▲ bytes_max
//! ```
//!
//! A reply that does not fit is *cut*: the buffer accepts no further bytes, neither of this reply nor of later ones,
//! and the connection is closed (a client cannot parse half a reply). A command whose reply is cut may still complete
//! its writes to the store, or return at once.
//!
//! # Invariants
//! SRV-REPLY-1  `bytes` has at most `bytes_max` bytes.
//! SRV-REPLY-2  Once cut, a buffer stays cut until it is rewound to a position before the reply that did not fit.

/// Most bytes of memory that a non-empty buffer keeps if less than half of it is used.
const CAPACITY_KEPT: usize = 256 << 10;

/// Most bytes of memory that an empty buffer keeps.
const EMPTY_CAPACITY_KEPT: usize = 4 << 20;

/// Destination of a reply's bytes.
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

/// Replies of one connection, with a limit on their bytes; see the module.
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
    /// Creates a buffer that uses the memory of `bytes`, which must be empty.
    pub(crate) fn reusing(bytes: Vec<u8>) -> ReplyBuffer {
        ReplyBuffer {
            bytes,
            ..ReplyBuffer::default()
        }
    }

    /// Sets the limit of the buffer. Bytes already in it stay, even above the limit.
    pub(crate) fn set_bytes_max(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max.max(self.bytes.len());
    }

    /// The limit of the buffer, in bytes.
    #[inline]
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Whether a reply did not fit; the connection must then be closed.
    #[inline]
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Records that a reply does not fit.
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

    /// Removes all but the first `len` bytes. A cut buffer stays cut.
    #[inline]
    pub(crate) fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
        self.shrink();
    }

    /// As [`ReplyBuffer::truncate`], but also undoes a cut. For requests that are executed again and so write
    /// everything after `len` again.
    pub(crate) fn rewind(&mut self, len: usize) {
        self.truncate(len);
        self.is_cut = false;
    }

    /// Frees memory that only a large reply needed.
    #[inline]
    fn shrink(&mut self) {
        let (len, capacity) = (self.bytes.len(), self.bytes.capacity());
        // The thread's buffer pool keeps or frees empty buffers.
        let kept = if len > 0 {
            CAPACITY_KEPT
        } else {
            EMPTY_CAPACITY_KEPT
        };
        if capacity > kept && len < capacity / 2 {
            self.bytes.shrink_to(CAPACITY_KEPT);
        }
    }

    /// Creates an empty buffer for a part of a reply whose elements are counted before it is appended. Its limit is
    /// half of this buffer's remaining bytes, so that both copies together fit the limit.
    pub(crate) fn sibling(&self) -> ReplyBuffer {
        ReplyBuffer {
            bytes: Vec::new(),
            bytes_max: (self.bytes_max - self.bytes.len()) / 2,
            is_cut: self.is_cut,
        }
    }

    /// Appends the bytes of a sibling, and takes over its cut.
    pub(crate) fn take_from(&mut self, sibling: ReplyBuffer) {
        self.is_cut |= sibling.is_cut;
        self.extend_from_slice(&sibling.bytes);
    }

    /// The bytes, for the store to append a value. The caller maintains SRV-REPLY-1: its head callback compares the value's
    /// length with [`ReplyBuffer::bytes_max`] before the value is appended.
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
    fn a_cut_buffer_stays_within_its_limit_and_accepts_no_later_replies() {
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
