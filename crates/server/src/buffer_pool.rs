//! Buffers that the connections of one thread take in turn, so that a large value costs no fresh memory.
//!
//! ```text
//!   connection ── needs a buffer ──▶ small | large ── else ──▶ the allocator
//!              ◀─ has emptied it ───┘
//!   once a second: large buffers that were not needed since the last time are freed
//! ```
//!
//! The kernel takes a millisecond to free a few mebibytes of memory. A buffer that is larger is no worker's to free: the
//! shelf keeps it aside until its thread hands it to another one ([`Shelf::take_huge`]).
//!
//! # Invariants
//! SHELF-1  A shelf keeps at most [`SMALL_KEPT`] small buffers, and of large ones as many bytes as it was told, at most
//!     [`LARGE_BYTES_KEPT`].

/// Length of a small buffer: what is read at once from a connection that owes nothing.
pub(crate) const SMALL_BYTES: usize = 64 << 10;
/// Most small buffers a shelf keeps.
const SMALL_KEPT: usize = 64;
/// Most bytes of large buffers a shelf keeps: fifty clients that send a mebibyte each at the same time.
const LARGE_BYTES_KEPT: usize = 64 << 20;
/// Length of a buffer that is freed by another thread.
const HUGE_BYTES: usize = 4 << 20;
/// A large buffer is not given to a connection that needs less than one part in so many of it.
const SLACK: usize = 4;

/// Buffers of one direction. Those for input are initialised up to their length, those for output are empty.
#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    small: Vec<Vec<u8>>,
    large: Vec<Vec<u8>>,
    large_bytes: usize,
    /// Most bytes of large buffers.
    bytes_max: usize,
    /// Buffers for which there is no room, to be freed by another thread.
    huge: Vec<Vec<u8>>,
    /// Least number of large buffers that were here since the last [`Shelf::tick`].
    unused: usize,
}

impl BufferPool {
    /// A shelf that keeps at most `bytes_max` bytes of large buffers.
    pub(crate) fn new(bytes_max: usize) -> BufferPool {
        BufferPool {
            bytes_max: bytes_max.min(LARGE_BYTES_KEPT),
            ..BufferPool::default()
        }
    }

    /// Takes a buffer of [`SMALL_BYTES`], or less.
    pub(crate) fn take_small(&mut self) -> Option<Vec<u8>> {
        self.small.pop()
    }

    /// Takes the smallest buffer that has `bytes`, if there is one that is not far larger.
    pub(crate) fn take_large(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let fits =
            |buffer: &Vec<u8>| (bytes..=bytes.saturating_mul(SLACK)).contains(&buffer.capacity());
        let places = self.large.iter().enumerate().rev();
        let fitting = places.filter(|(_, buffer)| fits(buffer));
        let (place, _) = fitting.min_by_key(|(_, buffer)| buffer.capacity())?;
        let buffer = self.large.remove(place);
        self.large_bytes -= buffer.capacity();
        self.unused = self.unused.min(self.large.len());
        Some(buffer)
    }

    /// Keeps `buffer` for the next connection, if there is room for it.
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

    /// Takes the buffers that another thread is to free.
    pub(crate) fn take_huge(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.huge)
    }

    /// Frees the large buffers that were not needed since the last call. From now on at most `bytes_max` are kept.
    pub(crate) fn tick(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max.min(LARGE_BYTES_KEPT);
        // Buffers are pushed and searched at the end: the unused ones are in front.
        for buffer in self.large.drain(..self.unused) {
            self.large_bytes -= buffer.capacity();
            if buffer.capacity() >= HUGE_BYTES {
                self.huge.push(buffer);
            }
        }
        self.unused = self.large.len();
    }

    /// Bytes of all buffers here.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.small.iter().map(Vec::capacity).sum::<usize>() + self.large_bytes
    }
}

/// Makes room for `bytes` more in `out`, in a buffer from `shelf` if there is one.
#[inline]
pub(crate) fn make_room(out: &mut Vec<u8>, bytes: usize, shelf: &mut BufferPool) {
    if out.capacity() - out.len() < bytes && bytes > SMALL_BYTES / 2 {
        replace(out, bytes, shelf);
    }
}

#[cold]
fn replace(out: &mut Vec<u8>, bytes: usize, shelf: &mut BufferPool) {
    if out.len() > SMALL_BYTES {
        // Many values: the allocator may move the pages of what is there instead of copying it.
        return out.reserve(bytes);
    }
    let needed = out.len().saturating_add(bytes);
    let mut larger = shelf
        .take_large(needed)
        .unwrap_or_else(|| Vec::with_capacity(size_class(needed)));
    larger.extend_from_slice(out);
    let mut smaller = std::mem::replace(out, larger);
    smaller.clear();
    shelf.put(smaller);
}

/// `bytes`, up to an eighth more: so that buffers for values of about a length serve each other.
pub(crate) fn size_class(bytes: usize) -> usize {
    let step = (bytes.next_power_of_two() / 16).max(4096);
    bytes.next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_buffer_serves_again_until_it_was_not_needed_for_a_while() {
        let mut shelf = BufferPool::new(usize::MAX);
        let mut out = Vec::with_capacity(SMALL_BYTES);
        out.extend_from_slice(b"abc");
        make_room(&mut out, 1 << 20, &mut shelf);
        assert_eq!(
            (out.as_slice(), shelf.bytes()),
            (b"abc".as_slice(), SMALL_BYTES)
        );
        let (place, bytes) = (out.as_ptr(), out.capacity());
        out.clear();
        shelf.put(out);
        shelf.tick(usize::MAX);
        let mut next = Vec::new();
        make_room(&mut next, 1 << 20, &mut shelf);
        assert_eq!((next.as_ptr(), next.capacity()), (place, bytes));
        shelf.put(next);
        shelf.tick(usize::MAX);
        assert_eq!(shelf.bytes(), SMALL_BYTES + bytes);
        shelf.tick(usize::MAX);
        assert_eq!(shelf.bytes(), SMALL_BYTES);
    }

    #[test]
    fn a_shelf_keeps_no_more_than_its_limit_and_gives_no_buffer_that_is_far_too_large() {
        let mut shelf = BufferPool::new(usize::MAX);
        for _ in 0..100 {
            shelf.put(Vec::with_capacity(1 << 20));
        }
        assert_eq!(shelf.bytes(), LARGE_BYTES_KEPT);
        assert!(shelf.take_large(100 << 10).is_none());
        assert!(shelf.take_large(2 << 20).is_none());
        assert!(shelf.take_large(1 << 20).is_some());
        for _ in 0..100 {
            shelf.put(vec![0; 10]);
        }
        assert_eq!(
            shelf.bytes(),
            LARGE_BYTES_KEPT - (1 << 20) + SMALL_KEPT * 10
        );
    }

    #[test]
    fn a_buffer_that_takes_long_to_free_is_left_to_another_thread() {
        let mut shelf = BufferPool::new(usize::MAX);
        shelf.put(Vec::with_capacity(LARGE_BYTES_KEPT + 1));
        shelf.put(Vec::with_capacity(HUGE_BYTES));
        let lens = |huge: Vec<Vec<u8>>| huge.iter().map(Vec::capacity).collect::<Vec<_>>();
        assert_eq!(lens(shelf.take_huge()), [LARGE_BYTES_KEPT + 1]);
        shelf.tick(0);
        shelf.tick(0);
        assert_eq!(lens(shelf.take_huge()), [HUGE_BYTES]);
        assert_eq!(shelf.bytes(), 0);
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
