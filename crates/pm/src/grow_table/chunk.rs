//! A chunk of a table: zeroed memory that is the elements.

use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};
pub use zerocopy::FromZeros as Zeroed;

/// Most elements the first chunk may have.
pub(super) const FIRST_MAX: usize = 1 << 40;

/// Elements that never move. Large ones are pages of their own, zero until their first use.
pub(super) struct Chunk<T> {
    elements: NonNull<[T]>,
    /// Bytes of the mapping they are in; 0: they are in the heap.
    mapped: usize,
}

// SAFETY: a chunk owns its elements like a box does.
unsafe impl<T: Send> Send for Chunk<T> {}
// SAFETY: a chunk only hands out shared references to its elements.
unsafe impl<T: Sync> Sync for Chunk<T> {}

impl<T: Zeroed> Chunk<T> {
    /// Chunks from this size on are mapped: the allocator would write zeros to all of it, at once. Smaller ones take no page
    /// faults from the heap, of which explorers, who open a pool thousands of times a second, would do little else.
    /// Miri knows neither these mappings nor their pages, so there everything is a box.
    const MAPPED_FROM_BYTES: usize = if cfg!(miri) { usize::MAX } else { 512 << 10 };

    /// # Panics
    /// When there is no memory for `len` elements.
    pub(super) fn zeroed(len: usize) -> Chunk<T> {
        // A product that wrapped would map fewer elements than the chunk hands out.
        let bytes = len.checked_mul(size_of::<T>());
        let bytes = bytes.filter(|bytes| isize::try_from(*bytes).is_ok());
        let bytes = bytes.expect("memory for a table");
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
    let (Some(from), Some(end)) = (start.checked_next_multiple_of(HUGE), start.checked_add(len))
    else {
        return;
    };
    let to = end / HUGE * HUGE;
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

    #[test]
    fn a_chunk_whose_bytes_wrap_is_refused_with_a_message() {
        // Times 24 this is 24 more than 2^64.
        const WRAPS: usize = usize::MAX / 24 + 2;
        for len in [WRAPS, usize::MAX, usize::MAX / 24, 1 << 61] {
            let made = std::panic::catch_unwind(|| Chunk::<[u64; 3]>::zeroed(len).len());
            let panic = made.expect_err("there is no such memory");
            let message = panic.downcast_ref::<String>().map(String::as_str);
            let message = message.or(panic.downcast_ref::<&str>().copied());
            assert!(
                message.is_some_and(|m| m.contains("memory for a table")),
                "{len}: {message:?}"
            );
        }
    }
}
