//! Errors of creating and opening a cache.

use std::fmt;
use std::io;

use farbank_pm::Poisoned;
use farbank_pm::pool::PoolError;

use crate::layout::ITEM_HEAD_BYTES;

/// Minimum number of pages of a cache, besides the page of the area table.
pub const PAGES_MIN: u64 = 4;

/// Reason why a cache cannot be created or opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The pool's superblock or its medium is unusable.
    Pool(PoolError),
    /// The pool has too few pages.
    TooFewPages {
        /// Number of pages, the page of the area table included.
        pages: u64,
        /// Size of a page in bytes.
        page_bytes: u64,
    },
    /// The pool has or may grow to more pages than slot numbers allow.
    TooManyPages {
        /// Number of pages.
        pages: u64,
        /// Largest number of pages.
        pages_max: u64,
        /// Slots of the smallest class in a page.
        slots: u32,
    },
    /// The slot sizes are invalid.
    SlotSizes {
        /// Smallest slot in bytes.
        slot_bytes_min: u32,
        /// Growth factor from one class to the next.
        slot_factor: f64,
        /// Size of a page in bytes.
        page_bytes: u64,
    },
    /// The pool belongs to another engine.
    NotACache,
    /// Memory for the metadata cannot be allocated.
    Metadata(io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Pool(error) => error.fmt(f),
            OpenError::TooFewPages { pages, page_bytes } => write!(
                f,
                "the pool has {pages} pages of {page_bytes} bytes, but a cache needs more than {PAGES_MIN}: use a \
                 larger pool or smaller pages"
            ),
            OpenError::TooManyPages {
                pages,
                pages_max,
                slots,
            } => write!(
                f,
                "the pool has or may grow to {pages} pages of up to {slots} slots, but at most {pages_max} are \
                 supported: use larger pages"
            ),
            OpenError::SlotSizes {
                slot_bytes_min,
                slot_factor,
                page_bytes,
            } => write!(
                f,
                "the smallest slot is {slot_bytes_min} bytes and each class {slot_factor} times the previous one, in \
                 pages of {page_bytes} bytes; the smallest slot must be {} to 4096 bytes and less than half a page, \
                 and the factor 1.01 to 4",
                ITEM_HEAD_BYTES + 8
            ),
            OpenError::NotACache => f.write_str(
                "the pool was created by the durable store, not by the cache: serve it with --engine kv, or use \
                 another pool",
            ),
            OpenError::Metadata(error) => write!(f, "cannot allocate memory for the cache's metadata: {error}"),
        }
    }
}

impl std::error::Error for OpenError {
    /// Returns the cause. The text of [`OpenError::Pool`] is that of the pool's error, so its cause is the cause of
    /// that error.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Pool(error) => error.source(),
            OpenError::Metadata(error) => Some(error),
            _ => None,
        }
    }
}

impl From<PoolError> for OpenError {
    fn from(error: PoolError) -> OpenError {
        OpenError::Pool(error)
    }
}

impl From<Poisoned> for OpenError {
    fn from(error: Poisoned) -> OpenError {
        OpenError::Pool(PoolError::Poisoned(error))
    }
}
