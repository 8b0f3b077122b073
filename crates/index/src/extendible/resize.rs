//! The first directory, splits and doublings.

use farbank_pm::sync::atomic::Ordering;
use farbank_pm::sync::unpoisoned;
use farbank_pm::{Medium, Off, WORD, situation};

use super::layout::{DirectoryWord, SegmentHeader};
use super::{DEPTH_MAX, DIRECTORY, ExtendibleDirectory, SEGMENT};
use crate::error::{IndexError, OpenError};
use crate::pool_heap::{TablePool, TableWorker};

impl ExtendibleDirectory {
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
        let _growing = unpoisoned(self.growing.lock());
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
pub(super) fn set_entries<M: Medium>(
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
