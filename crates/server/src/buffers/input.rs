//! Input buffer of a connection: bytes that have arrived and are not yet executed.

use super::pool::{BufferPool, SMALL_BYTES, size_class};

/// Bytes of a connection's first input buffer, and so of a read while little input is pending.
pub(crate) const READ_BYTES: usize = SMALL_BYTES;
/// Most bytes of one read, so that the worker visits other connections in between. The kernel copies a mebibyte in one
/// to three milliseconds.
const READ_BYTES_MAX: usize = 256 << 10;
/// Bytes of input from which the buffer grows by [`GROWTH`] instead of 2, so that less is copied.
const LARGE_BYTES: usize = 4 << 20;
const GROWTH: usize = 8;

/// Input that has arrived and is not yet executed. All of `buffer` is initialised; `start..end` is unread.
#[derive(Default)]
pub(crate) struct InputBuffer {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes of the buffer that were already backed by memory when it was taken.
    used: usize,
    /// Largest `end` since the buffer was taken.
    peak: usize,
    /// `peak` of the previous buffer.
    last_peak: usize,
}

impl InputBuffer {
    /// The bytes not yet executed.
    #[inline]
    pub(crate) fn unread(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Removes `bytes` from the front.
    #[inline]
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Returns space to read into. The current request has announced `needed` bytes, counted from the first unread
    /// byte. One buffer takes all of them, so none is copied when more arrive. A fresh buffer uses memory only where
    /// bytes have arrived.
    pub(crate) fn space(&mut self, needed: usize, buffer_pool: &mut BufferPool) -> &mut [u8] {
        let unread = self.end - self.start;
        if self.buffer.len() < READ_BYTES {
            // A client whose last request was large is likely to send a large one again.
            let large = Some(self.last_peak).filter(|&peak| peak > READ_BYTES);
            let large = large.and_then(|peak| buffer_pool.take_large(peak));
            let buffer = large.or_else(|| buffer_pool.take_small());
            self.move_to(buffer.unwrap_or_else(|| vec![0; READ_BYTES]));
            self.used = self.buffer.len();
        }
        let tight = self.end == self.buffer.len() || self.start + needed > self.buffer.len();
        if self.start > 0 && tight {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, unread);
        }
        if self.end == self.buffer.len() {
            let needed = needed.max(self.end + READ_BYTES);
            let kept = buffer_pool.take_large(needed);
            let used = kept.as_ref().map_or(0, Vec::len);
            let buffer = kept.unwrap_or_else(|| self.larger(needed));
            buffer_pool.put(self.move_to(buffer));
            self.used = used;
        }
        let room = &mut self.buffer[self.end..];
        let len = room.len().min(READ_BYTES_MAX);
        &mut room[..len]
    }

    /// Allocates a buffer for `needed` bytes, or a smaller one if the address space has no room for them.
    fn larger(&self, needed: usize) -> Vec<u8> {
        let growth = if self.end < LARGE_BYTES { 2 } else { GROWTH };
        let len = size_class(needed.max(growth * self.end));
        if len <= LARGE_BYTES || Vec::<u8>::new().try_reserve_exact(len).is_ok() {
            vec![0; len]
        } else {
            vec![0; 2 * self.end]
        }
    }

    /// Copies the unread bytes to the front of `buffer` and uses it from now on. Returns the old buffer.
    fn move_to(&mut self, mut buffer: Vec<u8>) -> Vec<u8> {
        let unread = self.end - self.start;
        buffer[..unread].copy_from_slice(self.unread());
        (self.start, self.end) = (0, unread);
        std::mem::replace(&mut self.buffer, buffer)
    }

    /// Returns the buffer to the pool if little or no input is left in it, so that an idle connection keeps none.
    pub(crate) fn release_if_idle(&mut self, buffer_pool: &mut BufferPool) {
        let unread = self.end - self.start;
        if unread > READ_BYTES / 16 || self.buffer.len() < READ_BYTES {
            return;
        }
        (self.last_peak, self.peak) = (self.peak, 0);
        let rest = self.unread().to_vec();
        let buffer = std::mem::replace(&mut self.buffer, rest);
        (self.start, self.end, self.used) = (0, unread, unread);
        buffer_pool.put(buffer);
    }

    /// Returns the buffer of a closed connection to the pool, unless it is the short remainder that
    /// [`InputBuffer::release_if_idle`] has kept.
    pub(crate) fn release(self, buffer_pool: &mut BufferPool) {
        if self.buffer.len() >= READ_BYTES {
            buffer_pool.put(self.buffer);
        }
    }

    /// Adds the first `bytes` bytes of [`InputBuffer::space`], which have arrived.
    pub(crate) fn arrived(&mut self, bytes: usize) {
        self.end += bytes;
        self.peak = self.peak.max(self.end);
    }

    /// Bytes of memory that the buffer uses.
    pub(crate) fn bytes(&self) -> usize {
        self.used.max(self.peak).min(self.buffer.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announced_request_gets_one_buffer_that_uses_memory_only_for_arrived_bytes() {
        let (mut input, mut buffer_pool) = (InputBuffer::default(), BufferPool::new(usize::MAX));
        assert_eq!(input.space(512 << 20, &mut buffer_pool).len(), READ_BYTES);
        assert_eq!(input.bytes(), READ_BYTES);
        (input.end, input.peak) = (READ_BYTES, READ_BYTES);
        let place = input
            .space(512 << 20, &mut buffer_pool)
            .as_ptr_range()
            .start;
        for _ in 0..100 {
            assert_eq!(input.bytes(), input.end);
            let space = input.space(512 << 20, &mut buffer_pool);
            assert_eq!(space.len(), READ_BYTES_MAX);
            input.end += READ_BYTES_MAX;
            input.peak = input.end;
        }
        let first = input.unread().as_ptr();
        assert_eq!(place as usize - first as usize, READ_BYTES);
        input.consume(input.end);
        input.release_if_idle(&mut buffer_pool);
        assert_eq!((input.bytes(), buffer_pool.bytes()), (0, READ_BYTES));
        assert_eq!(buffer_pool.take_huge().len(), 1);
    }

    #[test]
    fn a_request_that_arrives_in_many_parts_is_copied_few_times() {
        let (mut input, mut buffer_pool) = (InputBuffer::default(), BufferPool::new(0));
        let (mut moves, mut copied, mut place) = (0, 0, std::ptr::null());
        while input.end < 200 << 20 {
            let end = input.end;
            input.space(end + 100, &mut buffer_pool);
            if place != input.buffer.as_ptr() {
                (moves, copied, place) = (moves + 1, copied + end, input.buffer.as_ptr());
            }
            input.end = input.buffer.len().min(input.end + READ_BYTES_MAX);
        }
        assert!(moves < 30 && copied < 300 << 20, "{moves} {copied}");
    }

    #[test]
    fn the_input_reuses_a_large_pooled_buffer_and_reads_a_bounded_part_at_once() {
        let (mut input, mut buffer_pool) = (InputBuffer::default(), BufferPool::new(usize::MAX));
        let large = vec![0; 4 << 20];
        let place = large.as_ptr();
        buffer_pool.put(large);
        input.space(3 << 20, &mut buffer_pool)[..3].copy_from_slice(b"abc");
        input.end = READ_BYTES;
        assert_eq!(input.space(3 << 20, &mut buffer_pool).len(), READ_BYTES_MAX);
        assert_eq!(
            (input.buffer.as_ptr(), &input.unread()[..3]),
            (place, b"abc".as_slice())
        );
        input.consume(READ_BYTES);
        input.release_if_idle(&mut buffer_pool);
        assert_eq!(
            (input.bytes(), buffer_pool.bytes()),
            (0, (4 << 20) + READ_BYTES)
        );
    }

    #[test]
    fn a_connection_whose_last_request_was_large_starts_with_a_large_buffer() {
        let (mut input, mut buffer_pool) = (InputBuffer::default(), BufferPool::new(usize::MAX));
        let large = 4 * READ_BYTES;
        buffer_pool.put(vec![0; large]);
        for (peak, bytes) in [(READ_BYTES + 1, READ_BYTES), (9, large), (9, READ_BYTES)] {
            input.space(0, &mut buffer_pool);
            assert_eq!(input.bytes(), bytes);
            (input.end, input.peak) = (9, peak);
            input.consume(9);
            input.release_if_idle(&mut buffer_pool);
        }
    }

    #[test]
    fn a_connection_with_a_partial_request_keeps_no_full_buffer() {
        let (mut input, mut buffer_pool) = (InputBuffer::default(), BufferPool::new(usize::MAX));
        input.space(0, &mut buffer_pool)[..3].copy_from_slice(b"abc");
        input.end = 3;
        input.consume(1);
        input.release_if_idle(&mut buffer_pool);
        assert_eq!(
            (input.bytes(), buffer_pool.bytes(), input.unread()),
            (2, READ_BYTES, b"bc".as_slice())
        );
        let mut other = InputBuffer::default();
        other.space(0, &mut buffer_pool)[..2].copy_from_slice(b"ef");
        other.end = 2;
        other.release_if_idle(&mut buffer_pool);
        other.release(&mut buffer_pool);
        assert_eq!(
            buffer_pool.bytes(),
            READ_BYTES,
            "short remainders are not put in the pool"
        );
        input.space(0, &mut buffer_pool)[0] = b'd';
        input.end += 1;
        assert_eq!(
            (input.unread(), buffer_pool.bytes()),
            (b"bcd".as_slice(), 0)
        );
    }
}
