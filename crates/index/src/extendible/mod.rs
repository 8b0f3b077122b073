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

mod recover;

use std::fmt;

use farbank_pm::sync::Mutex;
use farbank_pm::sync::atomic::{AtomicU64, Ordering};
use farbank_pm::{Medium, Off, WORD, situation};

use crate::error::{IndexError, OpenError};
use crate::locks::{LockGuard, LockTable, VersionedRef};
use crate::pool_heap::{TablePool, TableWorker};

/// Number of the root's word for the directory.
const DIRECTORY: u64 = 0;
/// Block class of segments.
pub(crate) const SEGMENT: usize = 0;
/// Maximum depth of a directory: 2^DEPTH_MAX entries would not fit into any pool.
pub(crate) const DEPTH_MAX: u32 = 40;

/// Offset and depth of a directory, in one word: runs are aligned to chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DirectoryWord(u64);

impl DirectoryWord {
    const DEPTH_BITS: u64 = 0x3f;

    fn new(at: Off, depth: u32) -> DirectoryWord {
        DirectoryWord(at.0 | u64::from(depth))
    }

    #[inline]
    fn at(self) -> Off {
        Off(self.0 & !DirectoryWord::DEPTH_BITS)
    }

    #[inline]
    fn depth(self) -> u32 {
        (self.0 & DirectoryWord::DEPTH_BITS) as u32
    }

    fn entries(self) -> u64 {
        1 << self.depth()
    }

    /// Bytes of far memory.
    pub(crate) fn bytes(self) -> u64 {
        self.entries() * WORD as u64
    }

    fn entry(self, n: u64) -> Off {
        self.at().plus(n * WORD as u64)
    }

    /// Returns the offset of the entry for a hash.
    #[inline]
    pub(crate) fn entry_of(self, hash: u64) -> Off {
        self.entry(top(hash, self.depth()))
    }

    /// Checks that an allocated segment starts at `at`, that the entries of its header's range include that of `hash`,
    /// and that exactly those entries name it.
    fn validate<M: Medium>(
        self,
        ground: &TablePool<M>,
        at: Off,
        hash: u64,
    ) -> Result<(), InvalidSegment> {
        let medium = ground.medium();
        if !ground.is_block(at, SEGMENT) {
            return Err(InvalidSegment::NotAllocated);
        }
        let Some(header) = plausible(medium, self, at).filter(|header| header.owns(hash)) else {
            let header = SegmentHeader::at(medium, at);
            return Err(InvalidSegment::OtherHash { header, hash });
        };
        let (first, count) = self.range(header);
        let names = |n| medium.load(self.entry(n)) == at.0;
        let others = header.depth > 0 && names(first ^ count);
        if others || !(first..first + count).all(names) {
            let last = first + count - 1;
            return Err(InvalidSegment::OtherEntries {
                header,
                first,
                last,
            });
        }
        Ok(())
    }

    /// Returns the first entry of a segment and the number of its entries.
    fn range(self, header: SegmentHeader) -> (u64, u64) {
        let behind = self.depth() - header.depth;
        (header.prefix << behind, 1 << behind)
    }
}

/// The reason why the segment that an entry of the directory names is invalid (IX-EXT-5).
enum InvalidSegment {
    /// No allocated segment starts there.
    NotAllocated,
    /// The range of its header does not include the hash.
    OtherHash { header: SegmentHeader, hash: u64 },
    /// Not exactly the entries of its header's range name it.
    OtherEntries {
        header: SegmentHeader,
        first: u64,
        last: u64,
    },
}

impl fmt::Display for InvalidSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidSegment::NotAllocated => f.write_str("expected an allocated segment there"),
            InvalidSegment::OtherHash { header, hash } => {
                write!(f, "whose header {header:?} does not cover hash {hash:#x}")
            }
            InvalidSegment::OtherEntries {
                header,
                first,
                last,
            } => write!(
                f,
                "whose header is {header:?}; expected that exactly entries {first} to {last} name it"
            ),
        }
    }
}

/// An entry of a directory as it was read.
#[derive(Clone, Copy)]
pub(crate) struct DirectoryEntry {
    directory: DirectoryWord,
    at: Off,
    word: u64,
}

/// The header of a segment, its first word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentHeader {
    /// Number of leading hash bits that its keys have in common.
    depth: u32,
    /// These bits.
    prefix: u64,
}

impl SegmentHeader {
    fn of(word: u64) -> SegmentHeader {
        SegmentHeader {
            depth: (word & 0xff) as u32,
            prefix: word >> 8,
        }
    }

    /// Returns the stored form.
    pub(crate) fn word(self) -> u64 {
        self.prefix << 8 | u64::from(self.depth)
    }

    /// Reads the header of the segment at `segment`.
    #[inline]
    pub(crate) fn at<M: Medium>(medium: &M, segment: Off) -> SegmentHeader {
        SegmentHeader::of(medium.load(segment))
    }

    /// Reads the header of a segment that a lookup of `hash` returned, and checks that it covers `hash`.
    #[inline]
    pub(crate) fn serving<M: Medium>(
        medium: &M,
        segment: Off,
        hash: u64,
    ) -> Result<SegmentHeader, IndexError> {
        let header = SegmentHeader::at(medium, segment);
        if header.depth <= DEPTH_MAX && header.owns(hash) {
            return Ok(header);
        }
        Err(IndexError::damaged(format!(
            "the directory leads hash {hash:#x} to {segment:?}, whose header {header:?} does not cover it"
        )))
    }

    /// Returns the header of the half of a split whose next hash bit is `bit`.
    pub(crate) fn half(self, bit: u64) -> SegmentHeader {
        SegmentHeader {
            depth: self.depth + 1,
            prefix: self.prefix << 1 | bit,
        }
    }

    /// Returns whether keys with this hash belong to the segment.
    #[inline]
    pub(crate) fn owns(self, hash: u64) -> bool {
        top(hash, self.depth) == self.prefix
    }
}

/// Returns the header at `segment` if it fits the directory.
fn plausible<M: Medium>(
    medium: &M,
    directory: DirectoryWord,
    segment: Off,
) -> Option<SegmentHeader> {
    let header = SegmentHeader::at(medium, segment);
    let fits = header.depth <= directory.depth() && header.prefix >> header.depth == 0;
    fits.then_some(header)
}

/// Returns the top `bits` bits of a hash.
#[inline]
fn top(hash: u64, bits: u32) -> u64 {
    hash >> 1 >> (u64::BITS - 1 - bits) // two shifts, so that 0 bits yield 0
}

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

    /// Creates the first directory, and a segment for each entry. `fill` initialises each segment, whose content is
    /// undefined before. Durable on `Ok`.
    pub(crate) fn make<M: Medium>(
        ground: &TablePool<M>,
        depth: u32,
        fill: impl Fn(&mut TableWorker, Off, SegmentHeader),
    ) -> Result<(), OpenError> {
        let mut worker = ground.worker()?;
        let bytes = (WORD as u64) << depth;
        let at = ground.allocate_run(&mut worker, bytes)?;
        let directory = DirectoryWord::new(at, depth);
        let mut entries = Vec::with_capacity(bytes as usize);
        for prefix in 0..directory.entries() {
            let segment = ground.allocate(&mut worker, SEGMENT)?;
            fill(&mut worker, segment, SegmentHeader { depth, prefix });
            entries.extend_from_slice(&segment.0.to_le_bytes());
        }
        let medium = ground.medium();
        medium.copy_in(&mut worker.ctx, at, &[&entries]);
        Ok(ground.set_root(&mut worker, DIRECTORY, directory.0)?)
    }

    /// Takes the lock of the segment for `hash`. Runs `accept` at the first access after an open.
    #[inline]
    pub(crate) fn hold<'a, M: Medium>(
        &self,
        ground: &TablePool<M>,
        locks: &'a LockTable,
        hash: u64,
        fetch: impl Fn(Off),
        accept: impl FnMut(Off) -> Result<(), IndexError>,
    ) -> Result<LockedSegment<'a>, IndexError> {
        let (segment, guard) = locks.hold(
            || self.lookup(ground, hash),
            |led| self.is_current(ground, led),
            fetch,
            accept,
        )?;
        Ok(LockedSegment {
            segment,
            header: SegmentHeader::serving(ground.medium(), segment, hash)?,
            _guard: guard,
        })
    }

    /// Returns the current directory.
    #[inline]
    pub(crate) fn directory(&self) -> DirectoryWord {
        DirectoryWord(self.directory.load(Ordering::Acquire))
    }

    /// Looks up the segment for `hash`; null if the entry cannot be a segment (IX-EXT-5). The entry was read while its
    /// directory was current.
    #[inline]
    pub(crate) fn lookup<M: Medium>(
        &self,
        ground: &TablePool<M>,
        hash: u64,
    ) -> VersionedRef<DirectoryEntry> {
        loop {
            let directory = self.directory();
            let at = directory.entry_of(hash);
            let word = ground.medium().load(at);
            if self.directory() == directory {
                let is_there = ground.holds(Off(word), self.segment_bytes);
                return VersionedRef {
                    to: if is_there { Off(word) } else { Off::NULL },
                    source: DirectoryEntry {
                        directory,
                        at,
                        word,
                    },
                };
            }
        }
    }

    /// Returns whether a lookup's directory is still current and its entry unchanged. Depths only grow, so a replaced
    /// directory never returns.
    #[inline]
    pub(crate) fn is_current<M: Medium>(
        &self,
        ground: &TablePool<M>,
        led: VersionedRef<DirectoryEntry>,
    ) -> bool {
        ground.medium().load(led.source.at) == led.source.word
            && self.directory() == led.source.directory
    }

    /// Checks that the segment for `hash` is one and that exactly its entries name it (IX-EXT-5). The caller holds its lock.
    #[cold]
    pub(crate) fn validate<M: Medium>(
        &self,
        ground: &TablePool<M>,
        segment: Off,
        hash: u64,
    ) -> Result<(), IndexError> {
        let medium = ground.medium();
        loop {
            let directory = self.directory();
            let entry = directory.entry_of(hash);
            let at = if segment.is_null() {
                Off(medium.load(entry))
            } else {
                segment
            };
            let vouched = directory.validate(ground, at, hash);
            if self.directory() == directory {
                return vouched.map_err(|why| {
                    let what = format!("the entry {entry:?} of the directory names {at:?}, {why}");
                    IndexError::damaged(what)
                });
            }
        }
    }

    /// Calls `each` for every segment, with a hash that leads to it. No thread may change the table meanwhile.
    pub(crate) fn each_segment<M: Medium>(
        &self,
        ground: &TablePool<M>,
        mut each: impl FnMut(Off, u64) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        let directory = self.directory();
        let mut n = 0;
        while n < directory.entries() {
            let hash = n << (u64::BITS - directory.depth());
            let segment = self.lookup(ground, hash).to;
            self.validate(ground, segment, hash)?;
            each(segment, hash)?;
            n += directory
                .range(SegmentHeader::at(ground.medium(), segment))
                .1;
        }
        Ok(())
    }

    /// Returns `Ok` if a split of the segment with `header` may double the directory, should it need to. A directory
    /// may take one chunk, or as many bytes as all segments together. Without this limit, keys with equal leading hash
    /// bits would double it endlessly.
    pub(crate) fn may_split<M: Medium>(
        &self,
        ground: &TablePool<M>,
        header: SegmentHeader,
    ) -> Result<(), IndexError> {
        loop {
            let directory = self.directory();
            let (bits, bytes) = (directory.depth(), 2 * directory.bytes());
            if header.depth < bits || bytes <= ground.chunk_bytes() {
                return Ok(());
            }
            let entry = |n| ground.medium().load(directory.entry(n));
            let (mut segments, mut last) = (0, Off::NULL.0);
            for segment in (0..directory.entries()).map(entry) {
                segments += u64::from(segment != last); // a segment's entries are next to each other
                last = segment;
            }
            if self.directory() == directory {
                let fits = bits < DEPTH_MAX && bytes <= segments * self.segment_bytes;
                return fits.then_some(()).ok_or(IndexError::Crowded { bits });
            }
        }
    }

    /// Sets the directory's entries for the second half of the segment with header `elder` to `young`, which is
    /// completely durable (IX-EXT-1). If there is no space, nothing is changed and `young` is freed.
    pub(crate) fn publish<M: Medium>(
        &self,
        ground: &TablePool<M>,
        worker: &mut TableWorker,
        elder: SegmentHeader,
        young: Off,
    ) -> Result<(), IndexError> {
        let _growing = self.growing.lock().expect("no holder panics");
        let directory = self.directory();
        if elder.depth < directory.depth() {
            return set_entries(ground, worker, directory, elder.half(1), young);
        }
        let doubled = self.double(ground, worker, directory, elder.prefix, young);
        // If the medium failed, the root may or may not name the new directory, and in it `young`. Recovery finds out.
        if !matches!(doubled, Ok(()) | Err(IndexError::Poisoned(_))) {
            situation!("extendible.not_doubled");
            ground.free(worker, ground.block(young)?);
        }
        doubled
    }

    /// Replaces the directory by one of twice the size, in which the second entry for `prefix` names `young`.
    fn double<M: Medium>(
        &self,
        ground: &TablePool<M>,
        worker: &mut TableWorker,
        old: DirectoryWord,
        prefix: u64,
        young: Off,
    ) -> Result<(), IndexError> {
        let bytes = 2 * old.bytes();
        let medium = ground.medium();
        let at = ground.allocate_run(worker, bytes)?;
        let mut entries = Vec::with_capacity(bytes as usize);
        for n in 0..old.entries() {
            let segment = medium.load(old.entry(n));
            let second = if n == prefix { young.0 } else { segment };
            entries.extend_from_slice(&segment.to_le_bytes());
            entries.extend_from_slice(&second.to_le_bytes());
        }
        medium.copy_in(&mut worker.ctx, at, &[&entries]);
        let freed = ground.about_to_free(worker, old.at())?; // its drain also makes the new directory durable (IX-EXT-2)
        let word = DirectoryWord::new(at, old.depth() + 1).0;
        ground.set_root(worker, DIRECTORY, word)?;
        self.directory.store(word, Ordering::Release);
        situation!("extendible.doubled");
        // A concurrent reader of the old directory compares `self.directory` again before it uses an entry.
        ground.free(worker, freed);
        Ok(())
    }
}

/// Sets every entry of a segment's range to it. Durable on `Ok`.
fn set_entries<M: Medium>(
    ground: &TablePool<M>,
    worker: &mut TableWorker,
    directory: DirectoryWord,
    header: SegmentHeader,
    segment: Off,
) -> Result<(), IndexError> {
    let medium = ground.medium();
    let (first, count) = directory.range(header);
    situation!("extendible.named_once", count == 1);
    situation!("extendible.named_often", count > 1);
    for n in first..first + count {
        medium.store(&mut worker.ctx, directory.entry(n), segment.0);
    }
    let bytes = count as usize * WORD;
    medium.flush(&mut worker.ctx, directory.entry(first), bytes);
    worker.commit(medium)
}

/// Replaces the depth and prefix of a segment. On `Ok`, they and everything the worker flushed before are durable.
#[track_caller]
pub(crate) fn set_header<M: Medium>(
    ground: &TablePool<M>,
    worker: &mut TableWorker,
    segment: Off,
    header: SegmentHeader,
) -> Result<(), IndexError> {
    let medium = ground.medium();
    worker.put_word(medium, segment, header.word())
}
