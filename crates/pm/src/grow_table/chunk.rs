//! A chunk of a [`GrowTable`](super::GrowTable): zeroed memory that holds the elements.

use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};
pub use zerocopy::FromZeros as Zeroed;

/// Maximum number of elements in the first chunk.
pub(super) const FIRST_MAX: usize = 1 << 40;

/// Elements that never move. A large chunk is a mapping of its own, whose pages are allocated on first use.
pub(super) struct Chunk<T> {
    elements: NonNull<[T]>,
    /// Bytes of the mapping that holds the elements; 0 if they are on the heap.
    mapped: usize,
}

// SAFETY: a chunk owns its elements, as a box does.
unsafe impl<T: Send> Send for Chunk<T> {}
// SAFETY: a chunk only hands out shared references to its elements.
unsafe impl<T: Sync> Sync for Chunk<T> {}

impl<T: Zeroed> Chunk<T> {
    /// Size from which a chunk is mapped, in bytes. For a large chunk, the allocator would write zeros to all of
    /// it at once. For a small one, the heap avoids page faults: explorers open a pool thousands of times a second
    /// and would spend most of that time in them. Miri does not support these mappings, so there all chunks are boxes.
    const MAPPED_FROM_BYTES: usize = if cfg!(miri) { usize::MAX } else { 512 << 10 };

    /// Creates a chunk of `len` all-zero elements.
    ///
    /// # Panics
    /// If there is no memory for them.
    pub(super) fn zeroed(len: usize) -> Chunk<T> {
        // If the product wrapped, the mapping would be smaller than the elements.
        let bytes = len.checked_mul(size_of::<T>());
        let bytes = bytes.filter(|bytes| isize::try_from(*bytes).is_ok());
        let bytes = bytes.expect("cannot allocate memory for a table");
        if bytes < Chunk::<T>::MAPPED_FROM_BYTES {
            let boxed =
                <[T]>::new_box_zeroed_with_elems(len).expect("cannot allocate memory for a table");
            let elements = NonNull::from(Box::leak(boxed));
            return Chunk {
                elements,
                mapped: 0,
            };
        }
        const { assert!(align_of::<T>() <= 4096, "pages are aligned enough") };
        // SAFETY: the kernel chooses the address of a new anonymous mapping, so it overlaps no memory in use.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .expect("cannot allocate memory for a table");
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
        // SAFETY: `zeroed` initialised all elements, since zero is a valid `T`; they live as long as the chunk.
        unsafe { self.elements.as_ref() }
    }
}

impl<T> Drop for Chunk<T> {
    fn drop(&mut self) {
        if self.mapped == 0 {
            // SAFETY: the elements came from a leaked box, and only this function drops them.
            drop(unsafe { Box::from_raw(self.elements.as_ptr()) });
            return;
        }
        // SAFETY: the chunk owns its elements and they are not used again. The mapping holds only them.
        unsafe {
            self.elements.as_ptr().drop_in_place();
            rustix::mm::munmap(self.elements.as_ptr().cast(), self.mapped).ok();
        }
    }
}

/// Requests huge pages for the part of the range that consists of whole ones. Errors are ignored: it is a hint.
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
    fn a_chunk_whose_size_overflows_is_refused_with_a_message() {
        // 24 times this value exceeds 2^64 by a little.
        const WRAPS: usize = usize::MAX / 24 + 2;
        for len in [WRAPS, usize::MAX, usize::MAX / 24, 1 << 61] {
            let made = std::panic::catch_unwind(|| Chunk::<[u64; 3]>::zeroed(len).len());
            let panic = made.expect_err("the size overflows");
            let message = panic.downcast_ref::<String>().map(String::as_str);
            let message = message.or(panic.downcast_ref::<&str>().copied());
            assert!(
                message.is_some_and(|m| m.contains("cannot allocate memory for a table")),
                "{len}: {message:?}"
            );
        }
    }
}
