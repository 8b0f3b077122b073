//! DRAM arrays that grow without moving and are read without a lock.
//!
//! A table is a row of chunks, each as large as all before it, so that element `i` never moves and
//! growing never copies:
//!
//! ```text
//!   chunk 0     chunk 1     chunk 2               chunk k holds FIRST << (k - 1)
//!   ┌───────┐   ┌───────┐   ┌───────┬───────┐   ┌─ ... ─┐
//!   │ FIRST │   │ FIRST │   │   2 x FIRST   │   │       │
//!   └───────┘   └───────┘   └───────┴───────┘   └─ ... ─┘
//! ```
//!
//! Large chunks are mappings of their own: a page costs nothing until its first use. Chunks of 2 MiB
//! and more ask for huge pages.

use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};
use zerocopy::FromZeros;

use crate::sync::OnceLock;

const CHUNKS: usize = 40;

/// A grow-only array of `T`, all-zero at first.
pub struct Table<T> {
    first: usize,
    chunks: [OnceLock<Chunk<T>>; CHUNKS],
}

impl<T: FromZeros> Table<T> {
    /// An empty table whose first chunk will hold `first` elements, rounded up to a power of two.
    #[must_use]
    pub fn new(first: usize) -> Table<T> {
        Table {
            first: first.next_power_of_two(),
            chunks: [const { OnceLock::new() }; CHUNKS],
        }
    }

    /// Element `index`, which [`Table::reserve`] must have covered.
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> &T {
        let (chunk, within) = self.place(index);
        &self.chunks[chunk].get().expect("index was reserved")[within]
    }

    /// Element `index`, if it was reserved.
    #[inline]
    #[must_use]
    pub fn try_get(&self, index: usize) -> Option<&T> {
        let (chunk, within) = self.place(index);
        self.chunks.get(chunk)?.get()?.get(within)
    }

    /// Makes elements `0..len` exist.
    ///
    /// # Panics
    /// When the allocator has no memory, or `len` is beyond `first << 40`.
    pub fn reserve(&self, len: usize) {
        let Some(last) = len.checked_sub(1) else {
            return;
        };
        for chunk in 0..=self.place(last).0 {
            self.chunks[chunk].get_or_init(|| Chunk::zeroed(self.first << chunk.saturating_sub(1)));
        }
    }

    /// Bytes of DRAM the reserved elements take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.chunks
            .iter()
            .filter_map(|c| c.get())
            .map(|c| size_of_val::<[T]>(c))
            .sum()
    }

    /// Chunks 0 and 1 hold `first` each, chunk k >= 1 holds `first << (k - 1)`.
    #[inline]
    fn place(&self, index: usize) -> (usize, usize) {
        let unit = index >> self.first.trailing_zeros();
        let chunk = (usize::BITS - unit.leading_zeros()) as usize;
        let start = if chunk == 0 {
            0
        } else {
            self.first << (chunk - 1)
        };
        (chunk, index - start)
    }
}

/// Has the CPU fetch the line `at` lies in.
#[inline]
pub fn prefetch<T>(at: &T) {
    // SAFETY: a prefetch of any address is harmless; this one is a live reference's.
    unsafe {
        std::arch::x86_64::_mm_prefetch(
            std::ptr::from_ref(at).cast::<i8>(),
            std::arch::x86_64::_MM_HINT_T0,
        );
    }
}

/// Elements that never move. Large ones are pages of their own, zero until their first use.
struct Chunk<T> {
    elements: NonNull<[T]>,
    /// Bytes of the mapping they are in; 0: they are in the heap.
    mapped: usize,
}

// SAFETY: a chunk owns its elements like a box does.
unsafe impl<T: Send> Send for Chunk<T> {}
// SAFETY: a chunk only hands out shared references to its elements.
unsafe impl<T: Sync> Sync for Chunk<T> {}

impl<T: FromZeros> Chunk<T> {
    /// Chunks from this size on are mapped: the allocator would write zeros to all of it, at once.
    const MAPPED_FROM_BYTES: usize = 64 << 10;

    fn zeroed(len: usize) -> Chunk<T> {
        let bytes = len * size_of::<T>();
        if bytes < Chunk::<T>::MAPPED_FROM_BYTES {
            let boxed = <[T]>::new_box_zeroed_with_elems(len).expect("memory for a table");
            let elements = NonNull::from(Box::leak(boxed));
            return Chunk {
                elements,
                mapped: 0,
            };
        }
        const { assert!(align_of::<T>() <= 4096, "pages are aligned enough") };
        // SAFETY: a fresh anonymous mapping aliases nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .expect("memory for a table");
        advise_huge(base as usize, bytes);
        let base = NonNull::new(base.cast::<T>()).expect("a mapping is not at zero");
        Chunk {
            elements: NonNull::slice_from_raw_parts(base, len),
            mapped: bytes,
        }
    }
}

impl<T> std::ops::Deref for Chunk<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `zeroed` made all elements, zero being a valid `T`; they live as long as the chunk.
        unsafe { self.elements.as_ref() }
    }
}

impl<T> Drop for Chunk<T> {
    fn drop(&mut self) {
        if self.mapped == 0 {
            // SAFETY: the elements came from a box, and nobody else drops them.
            drop(unsafe { Box::from_raw(self.elements.as_ptr()) });
            return;
        }
        // SAFETY: the elements are this chunk's own and are not used again; the mapping is exactly
        // theirs.
        unsafe {
            self.elements.as_ptr().drop_in_place();
            rustix::mm::munmap(self.elements.as_ptr().cast(), self.mapped).ok();
        }
    }
}

/// Asks for huge pages where the range holds whole ones. Only a hint: errors change nothing.
fn advise_huge(start: usize, len: usize) {
    const HUGE: usize = 2 << 20;
    let (from, to) = (start.next_multiple_of(HUGE), (start + len) / HUGE * HUGE);
    if from < to {
        // SAFETY: the range lies inside one live allocation and MADV_HUGEPAGE changes no contents.
        let _ = unsafe {
            rustix::mm::madvise(from as *mut _, to - from, rustix::mm::Advice::LinuxHugepage)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn elements_keep_their_place_while_the_table_grows() {
        let table: Table<AtomicU64> = Table::new(4);
        for len in 1..300_usize {
            table.reserve(len);
            table.get(len - 1).store(len as u64, Ordering::Relaxed);
            assert!((1..=len).all(|n| table.get(n - 1).load(Ordering::Relaxed) == n as u64));
        }
        assert!(table.try_get(1 << 20).is_none());
    }
}
