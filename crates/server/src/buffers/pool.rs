//! Pool of buffers that the connections of one thread reuse, so that a large value needs no fresh memory.
//!
//! ```text
//!   connection ── takes a buffer ──▶ small | large ── if none ──▶ the allocator
//!   connection ── puts it back ────▶ small | large
//!   once a second: large buffers that were not needed during the last second are freed
//! ```
//!
//! The kernel takes a millisecond to free a few mebibytes of memory. A worker must not spend that time, so the pool
//! keeps larger buffers aside until the worker sends them to another thread ([`BufferPool::take_huge`]).
//!
//! # Invariants
//! SHELF-1  A pool keeps at most [`SMALL_KEPT`] small buffers. Its large buffers have at most `bytes_max` bytes
//!     together, and never more than [`LARGE_BYTES_KEPT`].

/// Bytes of a small buffer; the default size for input and replies.
pub(crate) const SMALL_BYTES: usize = 64 << 10;
/// Most small buffers in a pool.
const SMALL_KEPT: usize = 64;
/// Most bytes of large buffers in a pool: enough for fifty clients that each send a mebibyte at the same time.
const LARGE_BYTES_KEPT: usize = 64 << 20;
/// Bytes from which a buffer is freed by another thread.
const HUGE_BYTES: usize = 4 << 20;
/// A connection gets no large buffer of more than `SLACK` times the bytes it needs.
const OVERSIZE_MAX: usize = 4;

/// Buffers of one direction. Input buffers are initialised up to their length; output buffers have length 0.
#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    small: Vec<Vec<u8>>,
    large: Vec<Vec<u8>>,
    large_bytes: usize,
    /// Most bytes in `large`.
    bytes_max: usize,
    /// Buffers to be freed by another thread.
    huge: Vec<Vec<u8>>,
    /// Lowest length of `large` since the last [`BufferPool::tick`].
    unused: usize,
}

impl BufferPool {
    /// Creates a pool that keeps at most `bytes_max` bytes of large buffers.
    pub(crate) fn new(bytes_max: usize) -> BufferPool {
        BufferPool {
            bytes_max: bytes_max.min(LARGE_BYTES_KEPT),
            ..BufferPool::default()
        }
    }

    /// Takes a buffer of at most [`SMALL_BYTES`].
    pub(crate) fn take_small(&mut self) -> Option<Vec<u8>> {
        self.small.pop()
    }

    /// Takes the smallest large buffer that has at least `bytes`, and at most [`SLACK`] times as many.
    pub(crate) fn take_large(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let fits = |buffer: &Vec<u8>| {
            (bytes..=bytes.saturating_mul(OVERSIZE_MAX)).contains(&buffer.capacity())
        };
        let places = self.large.iter().enumerate().rev();
        let fitting = places.filter(|(_, buffer)| fits(buffer));
        let (place, _) = fitting.min_by_key(|(_, buffer)| buffer.capacity())?;
        let buffer = self.large.remove(place);
        self.large_bytes -= buffer.capacity();
        self.unused = self.unused.min(self.large.len());
        Some(buffer)
    }

    /// Keeps `buffer` for reuse if the pool's limits allow it. Otherwise frees it, or leaves it to
    /// [`BufferPool::take_huge`].
    pub(crate) fn put(&mut self, buffer: Vec<u8>) {
        let bytes = buffer.capacity();
        if bytes <= SMALL_BYTES {
            if self.small.len() < SMALL_KEPT && bytes > 0 {
                self.small.push(buffer);
            }
        } else if self.large_bytes + bytes <= self.bytes_max {
            self.large_bytes += bytes;
            self.large.push(buffer);
        } else if bytes >= HUGE_BYTES {
            self.huge.push(buffer);
        }
    }

    /// Takes the buffers that another thread must free.
    pub(crate) fn take_huge(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.huge)
    }

    /// Frees the large buffers that were not needed since the last call. From now on the pool keeps at most
    /// `bytes_max` bytes of large buffers.
    pub(crate) fn tick(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max.min(LARGE_BYTES_KEPT);
        // Buffers are added at the end and searched from there, so the unused ones are in front.
        for buffer in self.large.drain(..self.unused) {
            self.large_bytes -= buffer.capacity();
            if buffer.capacity() >= HUGE_BYTES {
                self.huge.push(buffer);
            }
        }
        self.unused = self.large.len();
    }

    /// Bytes of all small and large buffers.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.small.iter().map(Vec::capacity).sum::<usize>() + self.large_bytes
    }
}

/// Reserves space for `bytes` more in `out`, in a buffer from the pool if it has one. Small reservations are left to
/// the allocator.
#[inline]
pub(crate) fn reserve(out: &mut Vec<u8>, bytes: usize, buffer_pool: &mut BufferPool) {
    if out.capacity() - out.len() < bytes && bytes > SMALL_BYTES / 2 {
        replace(out, bytes, buffer_pool);
    }
}

#[cold]
fn replace(out: &mut Vec<u8>, bytes: usize, buffer_pool: &mut BufferPool) {
    if out.len() > SMALL_BYTES {
        // `out` holds many values: the allocator may remap its pages instead of copying them.
        return out.reserve(bytes);
    }
    let needed = out.len().saturating_add(bytes);
    let mut larger = buffer_pool
        .take_large(needed)
        .unwrap_or_else(|| Vec::with_capacity(size_class(needed)));
    larger.extend_from_slice(out);
    let mut smaller = std::mem::replace(out, larger);
    smaller.clear();
    buffer_pool.put(smaller);
}

/// Rounds `bytes` up by at most an eighth, or to a multiple of 4096. So values of similar lengths share buffers.
pub(crate) fn size_class(bytes: usize) -> usize {
    let step = (bytes.next_power_of_two() / 16).max(4096);
    bytes.next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_buffer_is_reused_until_it_was_not_needed_for_a_tick() {
        let mut buffer_pool = BufferPool::new(usize::MAX);
        let mut out = Vec::with_capacity(SMALL_BYTES);
        out.extend_from_slice(b"abc");
        reserve(&mut out, 1 << 20, &mut buffer_pool);
        assert_eq!(
            (out.as_slice(), buffer_pool.bytes()),
            (b"abc".as_slice(), SMALL_BYTES)
        );
        let (place, bytes) = (out.as_ptr(), out.capacity());
        out.clear();
        buffer_pool.put(out);
        buffer_pool.tick(usize::MAX);
        let mut next = Vec::new();
        reserve(&mut next, 1 << 20, &mut buffer_pool);
        assert_eq!((next.as_ptr(), next.capacity()), (place, bytes));
        buffer_pool.put(next);
        buffer_pool.tick(usize::MAX);
        assert_eq!(buffer_pool.bytes(), SMALL_BYTES + bytes);
        buffer_pool.tick(usize::MAX);
        assert_eq!(buffer_pool.bytes(), SMALL_BYTES);
    }

    #[test]
    fn a_pool_keeps_to_its_limit_and_gives_no_buffer_that_is_far_too_large() {
        let mut buffer_pool = BufferPool::new(usize::MAX);
        for _ in 0..100 {
            buffer_pool.put(Vec::with_capacity(1 << 20));
        }
        assert_eq!(buffer_pool.bytes(), LARGE_BYTES_KEPT);
        assert!(buffer_pool.take_large(100 << 10).is_none());
        assert!(buffer_pool.take_large(2 << 20).is_none());
        assert!(buffer_pool.take_large(1 << 20).is_some());
        for _ in 0..100 {
            buffer_pool.put(vec![0; 10]);
        }
        assert_eq!(
            buffer_pool.bytes(),
            LARGE_BYTES_KEPT - (1 << 20) + SMALL_KEPT * 10
        );
    }

    #[test]
    fn a_buffer_that_takes_long_to_free_is_left_to_another_thread() {
        let mut buffer_pool = BufferPool::new(usize::MAX);
        buffer_pool.put(Vec::with_capacity(LARGE_BYTES_KEPT + 1));
        buffer_pool.put(Vec::with_capacity(HUGE_BYTES));
        let lens = |huge: Vec<Vec<u8>>| huge.iter().map(Vec::capacity).collect::<Vec<_>>();
        assert_eq!(lens(buffer_pool.take_huge()), [LARGE_BYTES_KEPT + 1]);
        buffer_pool.tick(0);
        buffer_pool.tick(0);
        assert_eq!(lens(buffer_pool.take_huge()), [HUGE_BYTES]);
        assert_eq!(buffer_pool.bytes(), 0);
    }

    #[test]
    fn sizes_are_rounded_up_by_an_eighth_at_most() {
        for bytes in [SMALL_BYTES + 1, 100_032, 1 << 20, (1 << 20) + 30, 3 << 20] {
            let class = size_class(bytes);
            assert!(
                (bytes..=bytes + bytes / 8 + 4096).contains(&class),
                "{bytes}: {class}"
            );
        }
    }
}
