//! [`InputBuffer`]: received bytes, and the frames in them.

use std::io::{self, Read};

use crate::wire::{FRAME_BYTES_MAX, Frame, WireError};

/// Least free space for a read.
const READ_BYTES: usize = 64 << 10;

/// Maximum bytes of a frame of the handshake. A peer that does not have the key cannot make this end allocate more.
const HANDSHAKE_BYTES_MAX: usize = 4096;

/// Received bytes that were not consumed yet. Holds at most one incomplete frame and what one read has added.
pub(super) struct InputBuffer {
    /// Bytes `start..end` were received.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Maximum bytes of a frame.
    frame_bytes_max: usize,
}

impl InputBuffer {
    pub(super) fn new() -> InputBuffer {
        InputBuffer {
            bytes: vec![0; READ_BYTES],
            start: 0,
            end: 0,
            frame_bytes_max: HANDSHAKE_BYTES_MAX,
        }
    }

    /// Accepts long frames, after the peer has proved that it has the key.
    pub(super) fn accept_long_frames(&mut self) {
        self.frame_bytes_max = FRAME_BYTES_MAX;
    }

    /// Returns the first frame and its length, if it is complete.
    pub(super) fn frame(&self) -> Result<Option<(Frame<'_>, usize)>, WireError> {
        Frame::split(&self.bytes[self.start..self.end], self.frame_bytes_max)
    }

    /// Removes the first `len` bytes.
    pub(super) fn consume(&mut self, len: usize) {
        self.start += len;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Removes all bytes.
    pub(super) fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// Returns whether the last read filled the buffer, so that the stream may have more.
    pub(super) fn is_full(&self) -> bool {
        self.end == self.bytes.len()
    }

    /// Reads once from `from`. Returns the number of bytes, 0 at the end of the stream. A read that a signal interrupts is
    /// repeated: without a handler, too, a process that was stopped and continues has its reads with a timeout interrupted.
    pub(super) fn fill(&mut self, from: &mut impl Read) -> io::Result<usize> {
        if self.bytes.len() - self.end < READ_BYTES / 2 && self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.bytes.len() - self.end < READ_BYTES / 2 {
            // `frame` refuses longer frames, so a full buffer has a complete one.
            let most = FRAME_BYTES_MAX + READ_BYTES;
            self.bytes.resize((self.bytes.len() * 2).min(most), 0);
        }
        loop {
            match from.read(&mut self.bytes[self.end..]) {
                Ok(read) => {
                    self.end += read;
                    return Ok(read);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_a_signal_interrupts_is_repeated() {
        struct Interrupted(bool);
        impl Read for Interrupted {
            fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
                if std::mem::replace(&mut self.0, false) {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                to[..3].copy_from_slice(b"abc");
                Ok(3)
            }
        }
        let mut input = InputBuffer::new();
        assert_eq!(input.fill(&mut Interrupted(true)).unwrap(), 3);
    }
}
