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
//! and more ask for huge pages. A model checker's atomics cannot be made of zeroed bytes: for it
//! chunks are boxes, and small.

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

/// A grow-only array of `T`, all-zero at first.
pub struct GrowTable<T> {
    /// The first chunk holds `1 << first_bits`.
    first_bits: u32,
    chunks: [OnceLock<Chunk<T>>; CHUNKS],
}

impl<T: Zeroed> GrowTable<T> {
    /// An empty table whose first chunk will hold `first` elements, rounded up to a power of two
    /// (under a model checker fewer).
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

    /// Element `index`, which [`Table::reserve`] must have covered.
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> &T {
        let (chunk, within) = self.place(index);
        &self.chunks[chunk].get().expect("index was reserved")[within]
    }

    /// The `N` elements from `index` on, a multiple of `N`, which is a power of two and no more than the first chunk
    /// holds; [`Table::reserve`] must have covered them.
    #[inline]
    #[must_use]
    pub fn get_all<const N: usize>(&self, index: usize) -> &[T; N] {
        let (chunk, within) = self.place(index);
        let chunk = self.chunks[chunk].get().expect("index was reserved");
        chunk[within..]
            .first_chunk()
            .expect("chunks are multiples of N")
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
            let len = 1 << (self.first_bits as usize + chunk.saturating_sub(1));
            self.chunks[chunk].get_or_init(|| Chunk::zeroed(len));
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
        let unit = index >> self.first_bits;
        if unit == 0 {
            return (0, index);
        }
        let level = unit.ilog2();
        let start = 1 << (self.first_bits + level);
        (level as usize + 1, index - start)
    }
}

/// Appends the first `len` bytes of `words`, little-endian. Of words that are written meanwhile any byte may be
/// the old one or the new one: whoever shares them has to find that out.
///
/// # Panics
/// When there are not so many.
#[inline]
pub fn append_words(words: &[AtomicU64], len: usize, to: &mut Vec<u8>) {
    assert!(len <= 8 * words.len(), "as many bytes as there are");
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
        // SAFETY: the words have as many bytes, as was asserted, and the vector has room for them. Its own memory is
        // not theirs.
        unsafe { crate::media::cpu::load(words.as_ptr().cast(), spare, len) };
        // SAFETY: `load` has initialised them.
        unsafe { to.set_len(to.len() + len) };
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

/// Has the CPU fetch the line `at` lies in for this core alone: it is about to be written.
#[inline]
pub fn prefetch_for_write<T>(at: &T) {
    if cfg!(miri) {
        return; // It interprets no instructions of our own.
    }
    // SAFETY: a prefetch changes nothing; processors without this one take it for no operation.
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
    fn elements_keep_their_place_while_the_table_grows() {
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
