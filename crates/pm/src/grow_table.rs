//! DRAM arrays that grow without moving and are read without a lock.
//!
//! A table is a sequence of chunks, each as large as all earlier ones together. So element `i` never
//! moves and growth never copies:
//!
//! ```text
//!   chunk 0     chunk 1     chunk 2               chunk k holds FIRST << (k - 1)
//!   ┌───────┐   ┌───────┐   ┌───────┬───────┐   ┌─ ... ─┐
//!   │ FIRST │   │ FIRST │   │   2 x FIRST   │   │       │
//!   └───────┘   └───────┘   └───────┴───────┘   └─ ... ─┘
//! ```
//!
//! Large chunks are mappings of their own, so a page costs nothing until its first use. Chunks of 2 MiB
//! and more use huge pages if possible. A model checker's atomics cannot be zeroed bytes, so under it
//! chunks are small boxes.

#[cfg(not(any(shuttle, loom)))]
mod chunk;
#[cfg(any(shuttle, loom))]
#[path = "grow_table/chunk_checked.rs"]
mod chunk;

use crate::sync::OnceLock;
use crate::sync::atomic::AtomicU64;
use chunk::Chunk;
pub use chunk::Zeroed;

const CHUNKS: usize = 40;

/// An array of `T` that only grows. New elements are all-zero.
pub struct GrowTable<T> {
    /// The first chunk holds `1 << first_bits` elements.
    first_bits: u32,
    chunks: [OnceLock<Chunk<T>>; CHUNKS],
}

impl<T: Zeroed> GrowTable<T> {
    /// Creates an empty table whose first chunk will hold `first` elements, rounded up to a power of two
    /// (fewer under a model checker).
    #[must_use]
    pub fn new(first: usize) -> GrowTable<T> {
        GrowTable {
            first_bits: first
                .min(chunk::FIRST_MAX)
                .next_power_of_two()
                .trailing_zeros(),
            chunks: std::array::from_fn(|_| OnceLock::default()),
        }
    }

    /// Returns element `index`.
    ///
    /// # Panics
    /// If the element was not reserved ([`GrowTable::reserve`]).
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> &T {
        let (chunk, within) = self.locate(index);
        &self.chunks[chunk].get().expect("index was reserved")[within]
    }

    /// Returns the `N` elements from `index`. `N` is a power of two, at most the length of the first chunk, and
    /// `index` is a multiple of `N`.
    ///
    /// # Panics
    /// If the elements were not reserved ([`GrowTable::reserve`]).
    #[inline]
    #[must_use]
    pub fn get_all<const N: usize>(&self, index: usize) -> &[T; N] {
        let (chunk, within) = self.locate(index);
        let chunk = self.chunks[chunk].get().expect("index was reserved");
        chunk[within..]
            .first_chunk()
            .expect("chunks are multiples of N")
    }

    /// Returns element `index` if it was reserved.
    #[inline]
    #[must_use]
    pub fn try_get(&self, index: usize) -> Option<&T> {
        let (chunk, within) = self.locate(index);
        self.chunks.get(chunk)?.get()?.get(within)
    }

    /// Allocates elements `0..len` where they are missing.
    ///
    /// # Panics
    /// If memory cannot be allocated, or if `len` exceeds `first << 39`, the elements of 40 chunks.
    pub fn reserve(&self, len: usize) {
        let Some(last) = len.checked_sub(1) else {
            return;
        };
        for chunk in 0..=self.locate(last).0 {
            let len = 1 << (self.first_bits as usize + chunk.saturating_sub(1));
            self.chunks[chunk].get_or_init(|| Chunk::zeroed(len));
        }
    }

    /// Returns the bytes of DRAM that the reserved elements take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.chunks
            .iter()
            .filter_map(|c| c.get())
            .map(|c| size_of_val::<[T]>(c))
            .sum()
    }

    /// Returns the chunk of element `index` and the position in that chunk. Chunk 0 holds `first` elements,
    /// chunk k >= 1 holds `first << (k - 1)`.
    #[inline]
    fn locate(&self, index: usize) -> (usize, usize) {
        let unit = index >> self.first_bits;
        if unit == 0 {
            return (0, index);
        }
        let level = unit.ilog2();
        let start = 1 << (self.first_bits + level);
        (level as usize + 1, index - start)
    }
}

/// Appends the first `len` bytes of `words`, little-endian, to `to`. If another thread writes the words meanwhile,
/// each byte may be old or new; the caller has to detect that.
///
/// # Panics
/// If `len` exceeds the bytes of `words`.
#[inline]
pub fn append_words(words: &[AtomicU64], len: usize, to: &mut Vec<u8>) {
    assert!(len <= 8 * words.len(), "the words have fewer bytes");
    #[cfg(any(shuttle, loom, miri))]
    {
        use crate::sync::atomic::Ordering;
        let bytes = words
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        to.extend(bytes.take(len));
    }
    #[cfg(not(any(shuttle, loom, miri)))]
    {
        to.reserve(len);
        let spare = to.spare_capacity_mut().as_mut_ptr().cast();
        // SAFETY: the words have at least `len` bytes, as asserted above. The vector has reserved `len` bytes, and
        // its memory does not overlap the words.
        unsafe { crate::media::cpu::load(words.as_ptr().cast(), spare, len) };
        // SAFETY: `load` has initialised `len` bytes after the vector's length.
        unsafe { to.set_len(to.len() + len) };
    }
}

/// Prefetches the line that contains `at`.
#[inline]
pub fn prefetch<T>(at: &T) {
    // SAFETY: a prefetch never faults and changes no memory.
    unsafe {
        std::arch::x86_64::_mm_prefetch(
            std::ptr::from_ref(at).cast::<i8>(),
            std::arch::x86_64::_MM_HINT_T0,
        );
    }
}

/// Prefetches the line that contains `at` in exclusive state, before a write.
#[inline]
pub fn prefetch_for_write<T>(at: &T) {
    if cfg!(miri) {
        return; // Miri does not run inline assembly.
    }
    // SAFETY: a prefetch never faults and changes no memory; CPUs without this instruction ignore it.
    unsafe {
        std::arch::asm!(
            "prefetchw [{at}]",
            at = in(reg) std::ptr::from_ref(at),
            options(nostack, preserves_flags, readonly),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::atomic::Ordering;

    #[test]
    fn words_are_appended_as_their_bytes() {
        let bytes: Vec<u8> = (1..=200).collect();
        let (chunks, _) = bytes.as_chunks();
        let words: Vec<AtomicU64> = chunks
            .iter()
            .map(|word| AtomicU64::new(u64::from_le_bytes(*word)))
            .collect();
        for len in 0..=bytes.len() {
            let mut out = vec![7];
            append_words(&words, len, &mut out);
            assert_eq!((out[0], &out[1..]), (7, &bytes[..len]), "{len} bytes");
        }
    }

    #[test]
    fn elements_keep_their_values_while_the_table_grows() {
        let table: GrowTable<AtomicU64> = GrowTable::new(4);
        for len in 1..300_usize {
            table.reserve(len);
            table.get(len - 1).store(len as u64, Ordering::Relaxed);
            for n in [1, len / 2 + 1, len] {
                assert_eq!(table.get(n - 1).load(Ordering::Relaxed), n as u64);
            }
        }
        assert!((1..300).all(|n| table.get(n - 1).load(Ordering::Relaxed) == n as u64));
        let [third, fourth] = table.get_all(2);
        assert_eq!(third.load(Ordering::Relaxed), 3);
        assert_eq!(fourth.load(Ordering::Relaxed), 4);
        assert!(table.try_get(1 << 20).is_none());
    }
}
