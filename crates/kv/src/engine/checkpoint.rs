//! Checkpoints of the index: an open after a crash reads the latest one instead of most of the log.
//!
//! ```text
//!            begin                         end            crash
//!   ───────────┼──── index is copied ───────┼───────────────┼──▶ time
//!
//!   segments   │ sealed before the begin: covered           │    open: entries of the checkpoint
//!              │ open at the begin, or opened later         │    open: every record is read
//!
//!   chain      head ── a row for each segment ── tombstones ── groups of the index ── live records of covered segments
//! ```
//!
//! The background thread writes a checkpoint into free segments (`piece_chain`), a slice at a time, after as many bytes
//! were logged as [`Config::checkpoint_bytes`](crate::Config::checkpoint_bytes) and
//! [`Config::checkpoint_share`](crate::Config::checkpoint_share) say. Writers go on meanwhile. So the copy is not of one
//! moment: what changed after the begin is in segments that an open reads. When the chain is durable, the
//! superblock names the chain, and the segments of the checkpoint before it become free. A pool that gets full gives
//! its checkpoint up for the space.
//!
//! # Invariants
//! KV-CKPT-1  A checkpoint *covers* a segment in one generation and open epoch. At the begin the segment is sealed, and each
//!     of its records is published or never will be. It has no record of a large group, and no damage was found in it.
//! KV-CKPT-2  The index is copied after the begin, and no group is split meanwhile. Only entries of covered segments are
//!     kept.
//! KV-CKPT-3  The checkpoint lists the tombstones of covered segments that were once their key's newest record. An older
//!     record of such a key may be in a segment that is not covered.
//! KV-CKPT-4  The superblock names a chain after the chain is durable, and after every write that was published before the
//!     end of the copy is durable.
//! KV-CKPT-5  The segments of a chain are recycled only after the superblock names it no more.
//! KV-CKPT-6  A checkpoint has the floor of FLUSHALL at its begin. It counts only while that is the floor.
//! KV-CKPT-7  The live records of a segment (their places, number and bytes) are of one moment after the copy. A covered
//!     segment gains no live record, so each of them has an entry. An open drops the other entries of the segment: newer
//!     records are in segments that it reads. If the numbers do not agree, it scans the whole log. A checkpoint has no
//!     numbers if covered records are in several databases or extents; the open then reads the headers of all entries.
//!
//! # Crash argument
//! Let *r* be the record that a scan of the whole log would choose for a key: its newest valid record. An open with the
//! checkpoint compares the same records, except values of covered segments that the checkpoint lacks, and tombstones of
//! covered segments that were never the newest of their key. So it chooses *r*, unless it leaves *r* itself out.
//!
//! *r* in a segment that is not covered now (opened later, or recycled and used again) is read. Let *r* be a value in a
//! covered segment. It was published before the begin (KV-CKPT-1). If the index did not point at it, or at a copy of it,
//! when its group was copied, a newer record of the key had been published, and is durable (KV-CKPT-4). The log keeps a
//! newer record, value or tombstone, until the older ones are gone (KV-CLEAN-3). So *r* would not be the newest. If the
//! index pointed at a copy by the cleaner, the copy is in a covered segment, and its entry is in the checkpoint, or it
//! is in another one, and is read. Let *r* be a tombstone in a covered segment: then it is listed (KV-CKPT-3).
//!
//! | a crash | the superblock names | the open |
//! |---|---|---|
//! | before the chain is named | the earlier checkpoint, or none | frees the segments of the unfinished chain |
//! | after that, before the earlier chain is recycled | the new checkpoint | frees the segments of the earlier chain |
//! | after later writes, cleaning, growth | the checkpoint | ignores entries of segments that were recycled |
//! | after a later open, before the next checkpoint | the checkpoint | reads what was written since its begin |

use farbank_pm::fault;
use farbank_pm::situation;
use farbank_pm::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use farbank_pm::sync::{Mutex, MutexGuard, unpoisoned};
use farbank_pm::{Medium, Off, PersistCtx, Poisoned};

use super::piece_chain::{ChainWriter, piece_bytes};
use crate::cleaner::requests::CleanOutcome;
use crate::engine::{Engine, NoRoom};
use crate::format::checkpoint::{CheckpointHead, CoveredSegment, UNCOUNTED};
use crate::format::record::RECORD_MIN;
use crate::format::segment::SegmentState;
use crate::format::segment_map::MapWriter;

/// Bytes of entries that one slice copies, for each record that a slice of the cleaner moves.
const SLICE_BYTES: usize = 256;
/// Segments that are freed at a time to make room for a checkpoint.
const FREED_AT_ONCE: u32 = 4;

/// Result of [`Engine::advance_checkpoint`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CheckpointStep {
    /// There is nothing to do now.
    Idle,
    /// The next slice can be done.
    Going,
}

/// The checkpoint that the superblock names, and the one that is being written.
pub(crate) struct Checkpointer {
    work: Mutex<CheckpointWork>,
    /// Whether the index must keep its groups (KV-CKPT-2).
    pauses_splits: AtomicBool,
    /// Segments that the chains occupy.
    segments: AtomicU32,
    /// Checkpoints written since the open.
    written: AtomicU64,
}

struct CheckpointWork {
    ctx: PersistCtx,
    named: Option<NamedCheckpoint>,
    copying: Option<IndexCopy>,
    /// Number of segment openings at which the next interval begins.
    since: u64,
}

/// The checkpoint that the superblock names.
#[derive(Debug)]
pub(crate) struct NamedCheckpoint {
    /// The segments of its chain.
    pub(crate) segments: Vec<u32>,
    /// The floor of FLUSHALL when it was begun.
    pub(crate) floor: u64,
}

/// A checkpoint that is being written.
struct IndexCopy {
    chain: ChainWriter,
    /// For each segment, whether the checkpoint covers it.
    covers: Vec<bool>,
    /// The next group of the index, and the number of groups.
    group: usize,
    groups: usize,
    /// The next segment of which the live records are to be written.
    segment: usize,
    /// Whether numbers are written (KV-CKPT-7).
    is_counted: bool,
    floor: u64,
    /// Number of segment openings at the begin.
    stamp: u64,
}

impl Checkpointer {
    pub(crate) fn new(id: u32) -> Checkpointer {
        Checkpointer {
            work: Mutex::new(CheckpointWork {
                ctx: PersistCtx::new(id),
                named: None,
                copying: None,
                since: 0,
            }),
            pauses_splits: AtomicBool::new(false),
            segments: AtomicU32::new(0),
            written: AtomicU64::new(0),
        }
    }

    /// Sets what an open has found: the checkpoint that the superblock names, and the number of segment openings at
    /// which the interval to the next one begins.
    pub(crate) fn start(&self, named: Option<NamedCheckpoint>, since: u64) {
        let mut work = self.lock();
        (work.named, work.since) = (named, since);
        self.count_segments(&work);
    }

    /// Returns whether the index must not split groups now.
    #[inline]
    pub(crate) fn pauses_splits(&self) -> bool {
        self.pauses_splits.load(Acquire)
    }

    /// Returns the number of segments that checkpoints occupy.
    pub(crate) fn segments(&self) -> u32 {
        self.segments.load(Relaxed)
    }

    /// Returns the number of checkpoints written since the open.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, CheckpointWork> {
        unpoisoned(self.work.lock())
    }

    fn count_segments(&self, work: &CheckpointWork) {
        let named = work.named.as_ref().map_or(0, |named| named.segments.len());
        let copying = work.copying.as_ref();
        let taken = copying.map_or(0, |copy| copy.chain.segments().len());
        self.segments.store((named + taken) as u32, Relaxed);
    }
}

impl<M: Medium> Engine<M> {
    /// Does one slice of a checkpoint, or begins one that is due. Gives a checkpoint up that is of no use, or whose space
    /// is needed. One thread calls this; it holds no lock and pins no epoch.
    ///
    /// # Errors
    /// [`Poisoned`] if the medium has failed.
    pub(crate) fn advance_checkpoint(&self) -> Result<CheckpointStep, Poisoned> {
        let mut work = self.cleaning.checkpoints.lock();
        let work = &mut *work;
        let floor = self.superblock.flushed_seq();
        let is_stale = |of: u64| of != floor; // KV-CKPT-6
        let named = work.named.as_ref().map(|named| named.floor);
        let copied = work.copying.as_ref().map(|copy| copy.floor);
        if self.is_crowded() || named.is_some_and(is_stale) || copied.is_some_and(is_stale) {
            self.give_up(work)?;
            return Ok(CheckpointStep::Idle);
        }
        let Some(copy) = work.copying.take() else {
            return self.begin_if_due(work);
        };
        let step = self.copy_slice_of(work, copy)?;
        self.recount_checkpoints(work);
        Ok(step)
    }

    /// Writes a checkpoint if one is due. For stores without a background thread.
    ///
    /// # Errors
    /// [`Poisoned`] if the medium has failed.
    pub(crate) fn write_checkpoint_if_due(&self) -> Result<(), Poisoned> {
        while self.advance_checkpoint()? == CheckpointStep::Going {}
        Ok(())
    }

    /// Frees the segments of checkpoints: their space is needed, or the pool is being closed. The caller holds no lock.
    /// Returns whether there were any.
    ///
    /// # Errors
    /// [`Poisoned`] if the medium has failed.
    pub(crate) fn free_checkpoints(&self) -> Result<bool, Poisoned> {
        let mut work = self.cleaning.checkpoints.lock();
        let had = work.named.is_some() || work.copying.is_some();
        self.give_up(&mut work)?;
        Ok(had)
    }

    /// Whether the pool is so full that a checkpoint would take the space of values.
    fn is_crowded(&self) -> bool {
        self.space().occupied() > self.space().capacity() / 16 * 15
    }

    fn recount_checkpoints(&self, work: &CheckpointWork) {
        self.cleaning.checkpoints.count_segments(work);
        self.recount_capacity();
    }

    /// Gives up the named checkpoint and the one that is being written.
    fn give_up(&self, work: &mut CheckpointWork) -> Result<(), Poisoned> {
        if work.named.is_none() && work.copying.is_none() {
            return Ok(());
        }
        let copying = work.copying.take();
        let mut segments = copying.map_or(Vec::new(), |copy| self.end_copy(copy));
        if let Some(named) = work.named.take() {
            situation!("kv.checkpoint_given_up");
            // KV-CKPT-5
            self.set_root(|words| (words.checkpoint, words.checkpoint_generation) = (0, 0))?;
            segments.extend(named.segments);
        }
        work.since = self.segments.stamp();
        self.recycle_chain(work, &segments)?;
        self.recount_checkpoints(work);
        Ok(())
    }

    /// Ends a copy, finished or not. Returns its segments.
    fn end_copy(&self, copy: IndexCopy) -> Vec<u32> {
        let checkpoints = &self.cleaning.checkpoints;
        checkpoints.pauses_splits.store(false, Release);
        copy.chain.into_segments()
    }

    fn recycle_chain(&self, work: &mut CheckpointWork, segments: &[u32]) -> Result<(), Poisoned> {
        if segments.is_empty() {
            return Ok(());
        }
        self.segments.initialise(&mut work.ctx, segments)?;
        for segment in segments {
            self.segments.give(*segment);
        }
        Ok(())
    }

    /// Number of segments that a checkpoint takes, or a few more.
    fn segments_of_checkpoint(&self) -> u32 {
        let keys = self.sessions.keys_of_all();
        let tombstones = self.space().tombstone_bytes() / RECORD_MIN as u64;
        let live = 8 + self.geometry().segment_bytes() / RECORD_MIN / 8;
        let rows = u64::from(self.segments.count()) * (CoveredSegment::BYTES + live) as u64;
        let groups = self.index.group_count() as u64 * 4;
        let bytes = CheckpointHead::BYTES as u64 + rows + 8 * tombstones + groups + 8 * keys;
        bytes.div_ceil(piece_bytes(self) as u64) as u32 + 1
    }

    /// Begins a checkpoint, if enough was logged since the last one and there is space.
    fn begin_if_due(&self, work: &mut CheckpointWork) -> Result<CheckpointStep, Poisoned> {
        let least = self.config.checkpoint_bytes;
        let segment_bytes = self.geometry().segment_bytes() as u64;
        let logged = self.segments.stamp().saturating_sub(work.since) * segment_bytes;
        if least == 0 || logged < least {
            return Ok(CheckpointStep::Idle);
        }
        let needed = self.segments_of_checkpoint();
        if logged < self.config.checkpoint_share * u64::from(needed) * segment_bytes {
            return Ok(CheckpointStep::Idle);
        }
        let bytes = u64::from(needed) * self.geometry().payload() as u64;
        if self.space().occupied() + bytes > self.space().capacity() / 8 * 7 {
            return Ok(CheckpointStep::Idle);
        }
        let want = needed + self.pace_line() + 1;
        let free = self.segments.free_count();
        if free < want {
            let cleaned = self.clean_until(want.min(free + FREED_AT_ONCE))?;
            if cleaned != CleanOutcome::Gained {
                work.since = self.segments.stamp(); // Another attempt costs as much cleaning.
                return Ok(CheckpointStep::Idle);
            }
            return Ok(CheckpointStep::Going);
        }
        self.begin_copy(work);
        Ok(CheckpointStep::Going)
    }

    fn begin_copy(&self, work: &mut CheckpointWork) {
        self.cleaning.checkpoints.pauses_splits.store(true, Release);
        drop(unpoisoned(self.split_lock.lock())); // Waits for a split that has begun.
        // Under this lock no segment is recycled.
        let _cleaner = self.cleaning.lock();
        let (floor, stamp) = (self.superblock.flushed_seq(), self.segments.stamp());
        let covers: Vec<bool> = {
            let maps = self.cleaning.maps();
            (0..self.segments.count())
                .map(|segment| self.may_cover(&maps, segment))
                .collect()
        };
        let tombstones = match fault!("kv.checkpoint_without_tombstones") {
            true => Vec::new(),
            false => self.tombstones_of(&covers),
        };
        let groups = self.index.group_count();
        let mut chain = ChainWriter::default();
        let out = chain.buffer();
        let head = CheckpointHead {
            floor,
            seq_max: self.pending.seq_max(),
            segments: covers.len() as u64,
            groups: groups as u64,
            tombstones: tombstones.len() as u64,
            only_db: self.only_database().map_or(0, |db| db as u64 + 1),
        };
        head.encode(out);
        for (segment, is_covered) in (0..).zip(&covers) {
            let info = self.info(segment);
            let row = is_covered.then(|| CoveredSegment {
                generation: info.generation.load(Relaxed),
                seed: info.seed.load(Relaxed),
                end: info.used.load(Relaxed),
                expires_ms: info.expires_ms.load(Relaxed),
            });
            row.unwrap_or_default().encode(out);
        }
        for at in tombstones {
            out.extend_from_slice(&at.0.to_le_bytes());
        }
        work.copying = Some(IndexCopy {
            chain,
            covers,
            group: 0,
            groups,
            segment: 0,
            is_counted: head.only_db != 0,
            floor,
            stamp,
        });
    }

    /// Returns the database that has all keys, if no value is in extents.
    fn only_database(&self) -> Option<usize> {
        let mut databases = (0..farbank_store::DATABASES).filter(|db| self.sessions.keys(*db) > 0);
        let only = databases.next().filter(|_| databases.next().is_none());
        only.filter(|_| self.space().extents() == 0)
    }

    /// Appends the live records of `segment` at one moment: their number and bytes, and the words of the live map.
    fn export_live(&self, segment: u32, out: &mut Vec<u8>) {
        const TRIES: usize = 3;
        let info = self.info(segment);
        let base = self.geometry().base(segment);
        let begins = out.len();
        for _ in 0..TRIES {
            let live = info.live();
            out.extend_from_slice(&live.to_le_bytes());
            let mut records = 0;
            let bytes = self.geometry().segment_bytes();
            for word in self.segments.live_map().words_of(base, bytes) {
                records += u64::from(word.count_ones());
                out.extend_from_slice(&word.to_le_bytes());
            }
            // Another thread may have cleared a bit and not yet decremented the count.
            if info.live() == live && records == live >> 32 {
                return;
            }
            out.truncate(begins);
        }
        out.extend_from_slice(&UNCOUNTED.to_le_bytes());
    }

    /// Whether a checkpoint that begins now may cover `segment` (KV-CKPT-1).
    fn may_cover(&self, maps: &MapWriter, segment: u32) -> bool {
        let info = self.info(segment);
        let is_sealed = info.state() == SegmentState::Sealed;
        let is_settled =
            info.is_end_unwritten.load(Acquire) == 0 || fault!("kv.checkpoint_unsettled");
        let written = maps.of(segment, info.generation.load(Relaxed));
        let is_damaged = written.is_some_and(|written| written.marked_bytes.is_none());
        is_sealed
            && is_settled
            && !is_damaged
            && !maps.lacks_tombs(segment)
            && info.large_groups.load(Relaxed) == 0
    }

    /// Returns where the tombstones of covered segments that were once their key's newest record begin: at the offset,
    /// or [`ALIGN`](crate::format::record::ALIGN) bytes after it.
    fn tombstones_of(&self, covers: &[bool]) -> Vec<Off> {
        let mut found = Vec::new();
        let bytes = self.geometry().segment_bytes();
        for (segment, is_covered) in (0..).zip(covers) {
            if *is_covered && self.info(segment).tombstone_bytes.load(Relaxed) != 0 {
                let base = self.geometry().base(segment);
                found.extend(self.segments.tombstone_map().places(base, bytes));
            }
        }
        found
    }

    /// Copies groups until a slice is full, and writes full pieces. Names the checkpoint after the last segment.
    fn copy_slice_of(
        &self,
        work: &mut CheckpointWork,
        mut copy: IndexCopy,
    ) -> Result<CheckpointStep, Poisoned> {
        self.export_slice(&mut copy);
        let is_last = copy.group == copy.groups && copy.segment == copy.covers.len();
        let (chain, keep) = (&mut copy.chain, self.pace_line());
        let written = match is_last {
            false => chain.write_full(self, &mut work.ctx, keep).map(|()| None),
            true => chain.finish(self, &mut work.ctx, keep).map(Some),
        };
        match written {
            Ok(None) => {
                work.copying = Some(copy);
                return Ok(CheckpointStep::Going);
            }
            Ok(Some(place)) => self.name(work, copy, place)?,
            Err(NoRoom) => {
                // Writers have taken the segments.
                work.since = self.segments.stamp();
                let segments = self.end_copy(copy);
                self.recycle_chain(work, &segments)?;
            }
        }
        Ok(CheckpointStep::Idle)
    }

    /// Appends groups of the index, and then live records of segments, until a slice is full.
    fn export_slice(&self, copy: &mut IndexCopy) {
        let geometry = self.geometry();
        let is_covered = |at: Off| {
            let segment = geometry.segment_of(at) as usize;
            copy.covers.get(segment).is_some_and(|covered| *covered)
        };
        let out = copy.chain.buffer();
        let enough = out.len() + SLICE_BYTES * self.config.slice_records.max(1) as usize;
        let slot = self.epochs.slot();
        self.epochs.pin(&slot);
        while copy.group < copy.groups && out.len() < enough {
            self.index.export_group(copy.group, is_covered, out);
            copy.group += 1;
        }
        slot.unpin();
        if copy.group < copy.groups {
            return;
        }
        while copy.segment < copy.covers.len() && out.len() < enough {
            if copy.is_counted && copy.covers[copy.segment] {
                self.export_live(copy.segment as u32, out);
            }
            copy.segment += 1;
        }
    }

    /// Makes the superblock name the finished copy, and frees the checkpoint before it.
    fn name(
        &self,
        work: &mut CheckpointWork,
        copy: IndexCopy,
        (first, generation): (u32, u64),
    ) -> Result<(), Poisoned> {
        if !fault!("kv.checkpoint_before_drain") {
            // Under everysec and never, this makes durable what has replaced entries, too (KV-CKPT-4).
            self.settle(self.medium().drain(&mut work.ctx))?;
        }
        let before = work.named.take().map_or(Vec::new(), |named| named.segments);
        let is_early = fault!("kv.checkpoint_recycled_early");
        if is_early {
            self.recycle_chain(work, &before)?;
        }
        self.set_root(|words| {
            (words.checkpoint, words.checkpoint_generation) = (u64::from(first) + 1, generation);
        })?;
        situation!("kv.checkpoint_written");
        situation!("kv.checkpoint_replaced", !before.is_empty());
        work.since = copy.stamp;
        let floor = copy.floor;
        let segments = self.end_copy(copy);
        work.named = Some(NamedCheckpoint { segments, floor });
        self.cleaning.checkpoints.written.fetch_add(1, Relaxed);
        if !is_early {
            self.recycle_chain(work, &before)?; // KV-CKPT-5
        }
        Ok(())
    }
}
