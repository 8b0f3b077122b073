//! [`PoolImage`], the bytes of a pool at one moment, with copy-on-write pages and a running hash.
//!
//! An explorer makes millions of crash images from a few snapshots, and most of them differ in only a
//! few words. A clone costs one reference count per page. A write copies its page at most once. The hash
//! is updated with every word, so equal images are recognised before they are made.

use std::fmt;
use std::sync::Arc;

use crate::medium::{Off, WORD};
use crate::rng::mix;

/// Bytes of a page: small, because writing one word copies it, and large enough for a short page table.
const PAGE: usize = 4096;

/// The bytes of a pool. Clones share pages until one of them is written.
#[derive(Clone)]
pub struct PoolImage {
    pages: Vec<Arc<[u8; PAGE]>>,
    len: u64,
    hash: u64,
}

impl fmt::Debug for PoolImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Image({} bytes, {:016x})", self.len, self.hash)
    }
}

impl PoolImage {
    /// Creates an image of `len` zero bytes; `len` is a multiple of 8.
    #[must_use]
    pub fn zeroed(len: u64) -> PoolImage {
        let mut image = PoolImage {
            pages: Vec::new(),
            len: 0,
            hash: 0,
        };
        image.grow(len);
        image
    }

    /// Creates an image of these bytes, padded with zeros to a whole word.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> PoolImage {
        let mut image = PoolImage::zeroed(bytes.len().next_multiple_of(WORD) as u64);
        for (i, chunk) in bytes.chunks(WORD).enumerate() {
            if chunk.iter().any(|&b| b != 0) {
                let mut word = [0; WORD];
                word[..chunk.len()].copy_from_slice(chunk);
                image.set_word(Off((i * WORD) as u64), u64::from_le_bytes(word));
            }
        }
        image
    }

    /// Returns all bytes, for a dump.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.pages.len() * PAGE);
        for page in &self.pages {
            bytes.extend_from_slice(&page[..]);
        }
        bytes.truncate(self.len as usize);
        bytes
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the image has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a 64-bit hash of the content. Equal images have equal hashes.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash ^ self.len
    }

    /// Returns the word at `at`.
    ///
    /// # Panics
    /// If `at` is not aligned or is outside the image.
    #[must_use]
    pub fn word(&self, at: Off) -> u64 {
        let (page, byte) = self.locate(at, WORD);
        assert!(
            at.0.is_multiple_of(WORD as u64),
            "the word at {at:?} is not aligned"
        );
        let bytes = &self.pages[page][byte..byte + WORD];
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }

    /// Replaces the word at `at`.
    pub fn set_word(&mut self, at: Off, value: u64) {
        let old = self.word(at);
        let (page, byte) = self.locate(at, WORD);
        self.hash ^= word_hash(at.0 / 8, old) ^ word_hash(at.0 / 8, value);
        let page = Arc::make_mut(&mut self.pages[page]);
        page[byte..byte + WORD].copy_from_slice(&value.to_le_bytes());
    }

    /// Calls `each` with the `len` bytes at `at`, in pieces, until it returns `false`.
    pub fn pieces(&self, at: Off, len: usize, mut each: impl FnMut(&[u8]) -> bool) {
        let (mut page, mut byte) = self.locate(at, len);
        let mut left = len;
        while left > 0 {
            let n = left.min(PAGE - byte);
            if !each(&self.pages[page][byte..byte + n]) {
                return;
            }
            left -= n;
            page += 1;
            byte = 0;
        }
    }

    /// Appends zeros until the image is `len` bytes long.
    pub fn grow(&mut self, len: u64) {
        assert!(
            len.is_multiple_of(WORD as u64),
            "the length of an image must be a multiple of 8, not {len} bytes"
        );
        assert!(len >= self.len, "an image never shrinks");
        let pages = (len as usize).div_ceil(PAGE);
        if pages > self.pages.len() {
            self.pages.resize(pages, Arc::new([0; PAGE]));
        }
        self.len = len;
    }

    fn locate(&self, at: Off, len: usize) -> (usize, usize) {
        assert!(
            at.0.checked_add(len as u64)
                .is_some_and(|end| end <= self.len),
            "{len} bytes at {at:?} are outside the {} bytes of this image",
            self.len
        );
        (at.0 as usize / PAGE, at.0 as usize % PAGE)
    }
}

/// Returns the contribution of `value` at word `index` to an image's hash. Zero contributes nothing, so a
/// zeroed image needs no hashing.
#[must_use]
pub(super) fn word_hash(index: u64, value: u64) -> u64 {
    if value == 0 {
        0
    } else {
        mix(value ^ mix(index))
    }
}
