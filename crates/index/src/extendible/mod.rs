//! The directory of extendible hashing: 2^G offsets, indexed by the top bits of a hash, doubled when one segment needs
//! it.
//!
//! ```text
//!   root's word      directory (a run)       segment (a block)
//!   ┌──────────┐     ┌────┬────┬────┬────┐   ┌────────┬─ ... ─┐
//!   │ at │ G   │────▶│ 00 │ 01 │ 10 │ 11 │──▶│ header │       │
//!   └──────────┘     └────┴────┴────┴────┘   └────────┴─ ... ─┘
//!                      top G bits             depth L | prefix
//! ```
//!
//! The content of a segment after its first word belongs to the table. To split a segment, a table writes a new segment
//! with the keys whose next hash bit is 1, and makes it durable. Then [`ExtendibleDirectory::publish`] changes the
//! directory's entries to the new segment. Last, the table increases the old segment's depth and prefix by one bit with
//! [`set_header`].
//!
//! # Invariants
//! IX-EXT-1  A segment is completely durable before any entry of the directory names it.
//! IX-EXT-2  The directory is changed under `growing`. The root names a directory only after it is completely durable.
//! IX-EXT-3  A split never changes the first half of the entries of the segment. The segment's depth and prefix, one word,
//!     are changed after the entries of the second half are durable.
//! IX-EXT-4  A worker allocates another segment only after the header of the last segment that it split is durable.
//! IX-EXT-5  A segment is read only after it is validated: it is an allocated block, and exactly the entries of its header's
//!     range name it. The first access after an open validates it. A lookup returns [`Off::NULL`], which is never a
//!     segment, for an offset that cannot be one.
//!
//! # Crash argument
//! | crash between               | recovery sees                             | and does                           |
//! |-----------------------------|-------------------------------------------|------------------------------------|
//! | new segment, first entry    | a segment in doubt that no entry names    | frees it                           |
//! | first entry, last entry     | one that some entries of its range name   | sets the other entries, then the   |
//! | last entry, old depth       | one that all name, old segment's depth    | old segment's depth (IX-EXT-3)           |
//! |                             | one bit less                              |                                    |
//! | new directory, root         | a run in doubt that the root does not name| frees it, and the new segment      |
//! | root, old directory freed   | the old run named as being freed          | frees it                           |
//!
//! The allocator's intents name the new segment of an interrupted split (IX-EXT-4). So recovery time depends on the number of
//! contexts, not on the size of the table.

mod check;
mod layout;
mod ops;
mod recover;
mod resize;

use farbank_pm::sync::Mutex;
use farbank_pm::sync::atomic::AtomicU64;
use farbank_pm::{Medium, Off};

use crate::locks::LockGuard;
use crate::pool_heap::TablePool;
pub(crate) use layout::{DirectoryEntry, SegmentHeader};
pub(crate) use resize::set_header;

/// Number of the root's word for the directory.
const DIRECTORY: u64 = 0;
/// Block class of segments.
pub(crate) const SEGMENT: usize = 0;
/// Maximum depth of a directory: 2^DEPTH_MAX entries would not fit into any pool.
pub(crate) const DEPTH_MAX: u32 = 40;

/// The directory of a table.
pub(crate) struct ExtendibleDirectory {
    /// Copy of the root's word for it.
    directory: AtomicU64,
    segment_bytes: u64,
    growing: Mutex<()>,
}

/// A locked segment that covers the hash it was looked up by.
pub(crate) struct LockedSegment<'a> {
    pub(crate) segment: Off,
    pub(crate) header: SegmentHeader,
    _guard: LockGuard<'a>,
}

impl ExtendibleDirectory {
    /// Reads the directory word from the root. Segments have `segment_bytes`.
    pub(crate) fn of<M: Medium>(ground: &TablePool<M>, segment_bytes: u64) -> ExtendibleDirectory {
        let directory = ground.medium().load(ground.root(DIRECTORY));
        ExtendibleDirectory {
            directory: AtomicU64::new(directory),
            segment_bytes,
            growing: Mutex::new(()),
        }
    }
}
