//! Lookups of segments, without a lock and with it.

use farbank_pm::sync::atomic::Ordering;
use farbank_pm::{Medium, Off};

use super::layout::{DirectoryEntry, DirectoryWord, SegmentHeader};
use super::{ExtendibleDirectory, LockedSegment};
use crate::error::IndexError;
use crate::locks::{LockTable, VersionedRef};
use crate::pool_heap::TablePool;

impl ExtendibleDirectory {
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
}
