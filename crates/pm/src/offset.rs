//! [`Off`], a position in far memory, and the units in which far memory is accessed.

use std::fmt;

/// Bytes in a word. The CPU stores a word atomically, and a power cut never tears it.
pub const WORD: usize = 8;
/// Bytes in a cache line, the unit of a flush.
pub const LINE: usize = 64;
/// Bytes in a page of memory, the unit of mappings and of the page cache.
pub(crate) const PAGE: u64 = 4096;

/// A position in far memory, in bytes from the start of the pool. 0 is the null offset.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Off(pub u64);

impl Off {
    /// The null offset.
    pub const NULL: Off = Off(0);

    /// Returns whether this is the null offset.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// Returns the offset `bytes` after this one.
    ///
    /// # Panics
    /// If the sum does not fit in 64 bits.
    #[inline]
    #[must_use]
    #[track_caller]
    pub const fn plus(self, bytes: u64) -> Off {
        match self.0.checked_add(bytes) {
            Some(at) => Off(at),
            None => no_offset(),
        }
    }
}

#[cold]
#[inline(never)]
#[track_caller]
const fn no_offset() -> ! {
    panic!("an offset has 64 bits, but the sum of an offset and a length exceeds them")
}

impl fmt::Debug for Off {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{:#x}", self.0)
    }
}

/// Returns the offset after the `len` bytes at `at`.
///
/// # Panics
/// If the offset does not fit in 64 bits.
#[inline]
#[track_caller]
pub(crate) fn end_offset(at: Off, len: usize) -> u64 {
    match at.0.checked_add(len as u64) {
        Some(end) => end,
        None => panic!("{len} bytes at {at:?} are outside any medium"),
    }
}
