//! The directory of extendible hashing: 2^G offsets, found by the top bits of a hash, doubled when one segment needs it.
//!
//! ```text
//!   root's word      directory (a run)       segment (a block)
//!   ┌──────────┐     ┌────┬────┬────┬────┐   ┌────────┬─ ... ─┐
//!   │ at │ G   │────▶│ 00 │ 01 │ 10 │ 11 │──▶│ header │       │
//!   └──────────┘     └────┴────┴────┴────┘   └────────┴─ ... ─┘
//!                      top G bits             depth L | prefix
//! ```
//!
//! What is in a segment behind its first word is the table's. A table splits one so: it makes a young segment of the
//! keys whose next bit is 1, durable, whole; [`Extendible::publish`] has the directory name it; then the table takes
//! the elder's depth and prefix one bit on with [`set_header`].
//!
//! # Invariants
//! D1  A segment is durable, whole, before any entry of the directory names it.
//! D2  The directory is changed under `growing`; the root names a directory only when it is durable, whole.
//! D3  The first half of a segment's entries is never changed by its split; its depth and prefix, one word, are
//!     changed after the entries of the second half are durable.
//! D4  A worker takes another segment only after the elder of the last one knows of the split, durably.
//! D5  Nothing is read of a segment before it is known to be a block in use that says the range of entries which name it,
//!     by whoever first comes to it after an open. What cannot be one is [`Off::NULL`] to its finders, which never is one.
//!
//! # Crash argument
//! | crash between               | recovery sees                             | and does                           |
//! |-----------------------------|-------------------------------------------|------------------------------------|
//! | new segment, first entry    | a segment in doubt that no entry names    | frees it                           |
//! | first entry, last entry     | one that some entries of its range name   | points the others at it, then the  |
//! | last entry, old depth       | ... that all name, its elder a bit behind | elder's depth (D3)                 |
//! | new directory, root         | a run in doubt that the root does not name| frees it, and the new segment      |
//! | root, old directory freed   | the old one named as being freed          | frees it                           |
//!
//! The allocator's intents name what was being split (D4), so that recovery takes as long as the contexts are many,
//! whatever the table holds.

mod recover;

use farbank_pm::sync::Mutex;
use farbank_pm::sync::atomic::{AtomicU64, Ordering};
use farbank_pm::{Medium, Off, WORD, situation};

use crate::index::IndexError;
use crate::locks::{LockGuard, LockTable, VersionedRef};
use crate::pool_heap::{OpenError, TablePool, TableWorker};

/// The root's word for the directory.
const DIRECTORY: u64 = 0;
/// The class of segments.
pub(crate) const SEGMENT: usize = 0;
/// Deepest directory: 2^DEPTH_MAX entries would not fit into any pool.
pub(crate) const DEPTH_MAX: u32 = 40;

/// Where a directory is, and how many bits of a hash it takes: one word, runs being aligned to chunks.
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

    /// Where the entry for a hash is.
    #[inline]
    pub(crate) fn entry_of(self, hash: u64) -> Off {
        self.entry(top(hash, self.depth()))
    }

    /// Whether the segment at `at` is one, and says a range of entries, `hash`'s among them, that name it and are all that
    /// do; else what is wrong.
    fn validate<M: Medium>(self, ground: &TablePool<M>, at: Off, hash: u64) -> Result<(), String> {
        let medium = ground.medium();
        if !ground.is_block(at, SEGMENT) {
            return Err("where a segment in use was expected, and none is".into());
        }
        let Some(header) = plausible(medium, self, at).filter(|header| header.owns(hash)) else {
            let header = SegmentHeader::at(medium, at);
            return Err(format!(
                "a segment that was expected to have {hash:#x} and says {header:?}"
            ));
        };
        let (first, count) = self.range(header);
        let names = |n| medium.load(self.entry(n)) == at.0;
        let others = header.depth > 0 && names(first ^ count);
        if others || !(first..first + count).all(names) {
            return Err(format!(
                "a segment that says {header:?}, for which entries {first} to {} were expected to name it, and no others",
                first + count - 1
            ));
        }
        Ok(())
    }

    /// The entries of a segment: the first, and how many.
    fn range(self, header: SegmentHeader) -> (u64, u64) {
        let behind = self.depth() - header.depth;
        (header.prefix << behind, 1 << behind)
    }
}

/// An entry of a directory, as it was read.
#[derive(Clone, Copy)]
pub(crate) struct DirectoryEntry {
    directory: DirectoryWord,
    at: Off,
    word: u64,
}

/// The first word of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentHeader {
    /// How many bits of their hashes its keys have in common.
    depth: u32,
    /// Those bits.
    prefix: u64,
}

impl SegmentHeader {
    fn of(word: u64) -> SegmentHeader {
        SegmentHeader {
            depth: (word & 0xff) as u32,
            prefix: word >> 8,
        }
    }

    /// As it is stored.
    pub(crate) fn word(self) -> u64 {
        self.prefix << 8 | u64::from(self.depth)
    }

    /// The header of the segment at `segment`.
    #[inline]
    pub(crate) fn at<M: Medium>(medium: &M, segment: Off) -> SegmentHeader {
        SegmentHeader::of(medium.load(segment))
    }

    /// The header of a segment that was found by `hash`, and is its.
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
            "the directory leads {hash:#x} to {segment:?}, which says that it has others, {header:?}"
        )))
    }

    /// Of the two halves of a split, the one with this next bit.
    pub(crate) fn half(self, bit: u64) -> SegmentHeader {
        SegmentHeader {
            depth: self.depth + 1,
            prefix: self.prefix << 1 | bit,
        }
    }

    /// Whether keys of this hash are the segment's.
    #[inline]
    pub(crate) fn owns(self, hash: u64) -> bool {
        top(hash, self.depth) == self.prefix
    }
}

/// The header of what may be a segment, if it has one that fits the directory.
fn plausible<M: Medium>(
    medium: &M,
    directory: DirectoryWord,
    segment: Off,
) -> Option<SegmentHeader> {
    let header = SegmentHeader::at(medium, segment);
    let fits = header.depth <= directory.depth() && header.prefix >> header.depth == 0;
    fits.then_some(header)
}

/// The top `bits` of a hash.
#[inline]
fn top(hash: u64, bits: u32) -> u64 {
    hash >> 1 >> (u64::BITS - 1 - bits) // none of 0 bits
}

/// A table's directory, as its users find it.
pub(crate) struct ExtendibleDirectory {
    /// The root's word for it.
    directory: AtomicU64,
    segment_bytes: u64,
    growing: Mutex<()>,
}

/// A segment under its lock, which still serves the hash it was found by.
pub(crate) struct LockedSegment<'a> {
    pub(crate) segment: Off,
    pub(crate) header: SegmentHeader,
    _guard: LockGuard<'a>,
}

impl ExtendibleDirectory {
    /// The one the root names, of segments of so many bytes.
    pub(crate) fn of<M: Medium>(ground: &TablePool<M>, segment_bytes: u64) -> ExtendibleDirectory {
        let directory = ground.medium().load(ground.root(DIRECTORY));
        ExtendibleDirectory {
            directory: AtomicU64::new(directory),
            segment_bytes,
            growing: Mutex::new(()),
        }
    }

    /// Makes the first directory, and a segment for each entry, which `fill` fills; its bytes are as they were
    /// left. Durable on `Ok`.
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

    /// Takes the lock of the segment `hash` leads to; whoever comes first after an open has it `accept`ed.
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
            |led| self.still(ground, led),
            fetch,
            accept,
        )?;
        Ok(LockedSegment {
            segment,
            header: SegmentHeader::serving(ground.medium(), segment, hash)?,
            _guard: guard,
        })
    }

    /// The directory now.
    #[inline]
    pub(crate) fn directory(&self) -> DirectoryWord {
        DirectoryWord(self.directory.load(Ordering::Acquire))
    }

    /// The segment `hash` leads to now; null if it can be none (D5). The directory it was read from was the table's when it
    /// was read.
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
                    by: DirectoryEntry {
                        directory,
                        at,
                        word,
                    },
                };
            }
        }
    }

    /// Whether an entry that was read is still the table's, and says the same. Depths only grow: a directory that was
    /// replaced never comes back.
    #[inline]
    pub(crate) fn still<M: Medium>(
        &self,
        ground: &TablePool<M>,
        led: VersionedRef<DirectoryEntry>,
    ) -> bool {
        ground.medium().load(led.by.at) == led.by.word && self.directory() == led.by.directory
    }

    /// Whether the segment that `hash` leads to is one, and its entries are all that name it (D5). Its lock is held.
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

    /// Tells of each segment, and of a hash that leads there. Nobody changes the table meanwhile.
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

    /// Whether a split of the segment that says `header` may double the directory, if it has to: a directory is of one chunk,
    /// or no larger than all segments together. Keys whose hashes begin alike would double it without end.
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

    /// Has the directory name `young`, durable and whole (D1), for the second half of what `elder` says. Refused for
    /// want of room, nothing is changed, and `young` is free.
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
            return name(ground, worker, directory, elder.half(1), young);
        }
        let doubled = self.double(ground, worker, directory, elder.prefix, young);
        // Of a medium that failed nobody knows whether the root names the new directory, and `young` in it: recovery does.
        if !matches!(doubled, Ok(()) | Err(IndexError::Poisoned(_))) {
            situation!("extendible.not_doubled");
            ground.free(worker, ground.block(young)?);
        }
        doubled
    }

    /// Replaces the directory by one twice as large, in which the second entry for `prefix` names `young`.
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
        let freed = ground.about_to_free(worker, old.at())?; // its drain is D2's
        let word = DirectoryWord::new(at, old.depth() + 1).0;
        ground.set_root(worker, DIRECTORY, word)?;
        self.directory.store(word, Ordering::Release);
        situation!("extendible.doubled");
        // Whoever still reads it looks at the table's word again before it believes what it read.
        ground.free(worker, freed);
        Ok(())
    }
}

/// Has every entry of a segment name it.
fn name<M: Medium>(
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

/// Replaces the depth and prefix of a segment. Durable, with all the worker flushed before, when it returns.
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
