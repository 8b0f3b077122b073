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
//! superblock names the chain, and the segments of the checkpoint before it become free.
//!
//! The segments of a chain are reserved before its copy begins. Where the pool has no room for two checkpoints, the next
//! one is written *in place*: it is copied into DRAM first, up to
//! [`Config::checkpoint_buffer_bytes`](crate::Config::checkpoint_buffer_bytes). Then the superblock names none, and the
//! chain takes the segments of the checkpoint before it. A crash leaves no checkpoint from there until the end of the
//! chain. In a nearly full pool the cleaner may clean without end, so it does slices of checkpoints between its own. A
//! copy keeps pace with the log. A pool that gets full gives its checkpoint up for the space.
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
//! KV-CKPT-5  The segments of a chain are recycled, or used by the next chain, only after the superblock names it no more.
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
//! | while a chain is written in place | none | reads every record, and frees the segments of the unfinished chain |
//! | otherwise before the chain is named | the earlier checkpoint, or none | frees the segments of the unfinished chain |
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

use super::piece_chain::{ChainWriter, piece_bytes, reserve};
use crate::cleaner::requests::CleanOutcome;
use crate::engine::{Engine, NoRoom};
use crate::format::checkpoint::{CheckpointHead, CoveredSegment, UNCOUNTED};
use crate::format::record::RECORD_MIN;
use crate::format::segment::SegmentState;
use crate::format::segment_map::MapWriter;

/// Bytes of entries that one slice copies, for each record that a slice of the cleaner moves.
const SLICE_BYTES: usize = 256;
/// A copy is to end before the log has grown by a part of the checkpoint's size: one in `GROWTH_PART`.
const GROWTH_PART: u64 = 2;
/// Segments that are freed at a time to make room for a checkpoint.
const FREED_AT_ONCE: u32 = 4;
/// A checkpoint begins if it leaves the pool no fuller than this share of its capacity, in sixteenths.
const BEGIN_SHARE: u64 = 15;
/// A checkpoint is given up when the pool is fuller than this share of its capacity, in thirty-seconds.
const CROWDED_SHARE: u64 = 31;

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
    /// Held by the thread that splits index groups.
    split_lock: Mutex<()>,
    /// Segments that the chains occupy.
    segments: AtomicU32,
    /// Checkpoints written since the open.
    written: AtomicU64,
}

struct CheckpointWork {
    ctx: PersistCtx,
    named: Option<NamedCheckpoint>,
    copying: Option<IndexCopy>,
    /// Segments for the next checkpoint.
    reserved: Vec<u32>,
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
    /// Number of segments that the chain takes, or a few more.
    size: u32,
    /// Whether the chain takes the segments of the checkpoint before it.
    is_in_place: bool,
}

/// How the next checkpoint gets its segments.
#[derive(Clone, Copy)]
struct ChainPlan {
    /// Segments to reserve besides those that are reserved.
    missing: u32,
    /// Whether the chain takes the segments of the named checkpoint.
    is_in_place: bool,
}

impl IndexCopy {
    /// Whether the log grows too fast for the copy. `stamp`: number of segment openings.
    fn lags_behind(&self, stamp: u64) -> bool {
        let (done, all) = (self.group + self.segment, self.groups + self.covers.len());
        let due = (stamp - self.stamp) * GROWTH_PART * all as u64;
        (done as u64) * u64::from(self.size) < due
    }
}

impl CheckpointWork {
    /// Whether checkpoints occupy or reserve segments.
    fn has_segments(&self) -> bool {
        self.named.is_some() || self.copying.is_some() || !self.reserved.is_empty()
    }
}

impl Checkpointer {
    pub(crate) fn new(id: u32) -> Checkpointer {
        Checkpointer {
            work: Mutex::new(CheckpointWork {
                ctx: PersistCtx::new(id),
                named: None,
                copying: None,
                reserved: Vec::new(),
                since: 0,
            }),
            pauses_splits: AtomicBool::new(false),
            split_lock: Mutex::default(),
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

    /// Begins to split an index group; the split ends with the result. `None`: another thread splits one, or the index must
    /// keep its groups (KV-CKPT-2).
    pub(crate) fn begin_split(&self) -> Option<MutexGuard<'_, ()>> {
        let split = self.split_lock.try_lock().ok()?;
        (!self.pauses_splits.load(Acquire)).then_some(split)
    }

    /// Lets no split begin, and waits for one that has begun.
    fn pause_splits(&self) {
        self.pauses_splits.store(true, Release);
        drop(unpoisoned(self.split_lock.lock()));
    }

    /// Returns the number of segments that checkpoints occupy.
    pub(crate) fn segments(&self) -> u32 {
        self.segments.load(Relaxed)
    }

    /// Returns the number of checkpoints written since the open.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    /// Waits until no thread works on a checkpoint. None begins to while the result exists. A caller that also locks the
    /// cleaner calls this first.
    #[must_use]
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, CheckpointWork> {
        unpoisoned(self.work.lock())
    }

    fn count_segments(&self, work: &CheckpointWork) {
        let named = work.named.as_ref().map_or(0, |named| named.segments.len());
        let copying = work.copying.as_ref();
        let taken = copying.map_or(0, |copy| copy.chain.segment_count());
        let all = named + taken + work.reserved.len();
        self.segments.store(all as u32, Relaxed);
    }
}

impl<M: Medium> Engine<M> {
    /// Does the next slice of a checkpoint, and up to `slices` while the log grows too fast for it. Begins one that is
    /// due. Gives a checkpoint up that is of no use, or whose space is needed. One thread calls this; it holds no lock
    /// and pins no epoch.
    ///
    /// # Errors
    /// [`Poisoned`] if the medium has failed.
    pub(crate) fn advance_checkpoint(&self, slices: u32) -> Result<CheckpointStep, Poisoned> {
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
        if work.copying.is_none() {
            return self.begin_if_due(work);
        }
        for _ in 0..slices {
            let Some(copy) = work.copying.take() else {
                break;
            };
            self.copy_slice_of(work, copy)?;
            let copying = work.copying.as_ref();
            if !copying.is_some_and(|copy| copy.lags_behind(self.segments.stamp())) {
                break;
            }
        }
        self.recount_checkpoints(work);
        Ok(match work.copying {
            Some(_) => CheckpointStep::Going,
            None => CheckpointStep::Idle,
        })
    }

    /// Writes a checkpoint if one is due. For stores without a background thread.
    ///
    /// # Errors
    /// [`Poisoned`] if the medium has failed.
    pub(crate) fn write_checkpoint_if_due(&self) -> Result<(), Poisoned> {
        while self.advance_checkpoint(1)? == CheckpointStep::Going {}
        Ok(())
    }

    /// Frees the segments of checkpoints: their space is needed, or the pool is being closed. The caller holds no lock.
    /// Returns whether there were any.
    ///
    /// # Errors
    /// [`Poisoned`] if the medium has failed.
    pub(crate) fn free_checkpoints(&self) -> Result<bool, Poisoned> {
        let mut work = self.cleaning.checkpoints.lock();
        let had = work.has_segments();
        self.give_up(&mut work)?;
        Ok(had)
    }

    /// Whether the pool is so full that a checkpoint would take the space of values.
    fn is_crowded(&self) -> bool {
        self.space().occupied() > self.space().capacity() / 32 * CROWDED_SHARE
    }

    fn recount_checkpoints(&self, work: &CheckpointWork) {
        self.cleaning.checkpoints.count_segments(work);
        self.recount_capacity();
    }

    /// Gives up the named checkpoint, the one that is being written, and what is reserved for the next.
    fn give_up(&self, work: &mut CheckpointWork) -> Result<(), Poisoned> {
        if !work.has_segments() {
            return Ok(());
        }
        let copying = work.copying.take();
        let mut segments = copying.map_or(Vec::new(), |copy| self.end_copy(work, copy));
        self.free_reserved(work);
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

    /// Frees the segments that are reserved for the next checkpoint.
    fn free_reserved(&self, work: &mut CheckpointWork) {
        for segment in work.reserved.drain(..) {
            self.segments.give(segment);
        }
    }

    /// Ends a copy, finished or not. Returns the segments of its chain; those that it has not used stay reserved.
    fn end_copy(&self, work: &mut CheckpointWork, copy: IndexCopy) -> Vec<u32> {
        let checkpoints = &self.cleaning.checkpoints;
        checkpoints.pauses_splits.store(false, Release);
        let (segments, unused) = copy.chain.into_segments();
        work.reserved = unused;
        segments
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

    /// Begins a checkpoint, if enough was logged since the last one and there is space. Reserves its segments before, a few
    /// at a time. In a nearly full pool this takes time, so it begins when half of that was logged.
    fn begin_if_due(&self, work: &mut CheckpointWork) -> Result<CheckpointStep, Poisoned> {
        let least = self.config.checkpoint_bytes;
        let segment_bytes = self.geometry().segment_bytes() as u64;
        let logged = self.segments.stamp().saturating_sub(work.since) * segment_bytes;
        if least == 0 || logged < least / 2 {
            return Ok(CheckpointStep::Idle);
        }
        let needed = self.segments_of_checkpoint();
        let due = least.max(self.config.checkpoint_share * u64::from(needed) * segment_bytes);
        if logged < due / 2 {
            return Ok(CheckpointStep::Idle);
        }
        let mut step = CheckpointStep::Going;
        match self.plan_chain(work, needed) {
            None => {
                self.free_reserved(work);
                step = CheckpointStep::Idle;
            }
            Some(plan) if logged < due && (plan.missing == 0 || !plan.is_in_place) => {
                return Ok(CheckpointStep::Idle);
            }
            Some(plan) if plan.missing == 0 => self.begin_copy(work, needed, plan.is_in_place),
            Some(plan) if self.reserve_some(work, plan.missing)? => {}
            Some(_) => {
                self.free_reserved(work);
                work.since = self.segments.stamp(); // Another attempt costs as much cleaning.
                step = CheckpointStep::Idle;
            }
        }
        self.recount_checkpoints(work);
        Ok(step)
    }

    /// Returns how a checkpoint of `needed` segments gets them, `None` if the pool is too full.
    fn plan_chain(&self, work: &CheckpointWork, needed: u32) -> Option<ChainPlan> {
        let named = work.named.as_ref().map_or(0, |named| named.segments.len());
        let plan_of = |is_in_place, share| {
            let had = work.reserved.len() + if is_in_place { named } else { 0 };
            let missing = needed.saturating_sub(had as u32);
            let bytes = u64::from(missing) * self.geometry().payload() as u64;
            let leaves_room =
                self.space().occupied() + bytes <= self.space().capacity() / 16 * share;
            leaves_room.then_some(ChainPlan {
                missing,
                is_in_place,
            })
        };
        plan_of(false, self.config.checkpoint_pair_share).or_else(|| plan_of(true, BEGIN_SHARE))
    }

    /// Reserves up to `missing` free segments. If none is free, cleans until a few are. Returns whether a segment was
    /// reserved or freed.
    fn reserve_some(&self, work: &mut CheckpointWork, missing: u32) -> Result<bool, Poisoned> {
        let keep = self.free_segments_low();
        let free = (0..missing).map_while(|_| reserve(self, keep));
        let before = work.reserved.len();
        work.reserved.extend(free);
        if work.reserved.len() > before {
            return Ok(true);
        }
        let cleaned = self.clean_until(keep + missing.min(FREED_AT_ONCE))?;
        Ok(cleaned == CleanOutcome::Gained)
    }

    /// Returns the segments of the named checkpoint for the next one. The superblock names none then.
    fn take_named(&self, work: &mut CheckpointWork) -> Result<Vec<u32>, Poisoned> {
        let Some(named) = work.named.take() else {
            return Ok(Vec::new());
        };
        situation!("kv.checkpoint_in_place");
        if !fault!("kv.checkpoint_reused_early") {
            // KV-CKPT-5
            self.set_root(|words| (words.checkpoint, words.checkpoint_generation) = (0, 0))?;
        }
        self.segments.initialise(&mut work.ctx, &named.segments)?;
        Ok(named.segments)
    }

    /// Begins the copy of a checkpoint of `size` segments.
    fn begin_copy(&self, work: &mut CheckpointWork, size: u32, is_in_place: bool) {
        self.cleaning.checkpoints.pause_splits();
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
        chain.add_reserved(std::mem::take(&mut work.reserved));
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
            size,
            is_in_place,
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
            let words_begin = out.len();
            let bytes = self.geometry().segment_bytes();
            out.resize(words_begin + bytes / RECORD_MIN / 8, 0);
            let live_map = self.segments.live_map();
            let records = live_map.copy_words(base, bytes, &mut out[words_begin..]);
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

    /// Copies groups until a slice is full, and writes full pieces, unless the chain waits for the segments of the named
    /// checkpoint. Names the checkpoint after the last segment.
    fn copy_slice_of(
        &self,
        work: &mut CheckpointWork,
        mut copy: IndexCopy,
    ) -> Result<(), Poisoned> {
        self.export_slice(&mut copy);
        let is_last = copy.group == copy.groups && copy.segment == copy.covers.len();
        let (chain, keep) = (&mut copy.chain, self.pace_line());
        if copy.is_in_place && work.named.is_some() {
            let is_full = chain.buffer().len() as u64 >= self.config.checkpoint_buffer_bytes;
            if !is_full && !is_last {
                work.copying = Some(copy);
                return Ok(());
            }
            chain.add_reserved(self.take_named(work)?);
        }
        let written = match is_last {
            false => chain.write_full(self, &mut work.ctx, keep).map(|()| None),
            true => chain.finish(self, &mut work.ctx, keep).map(Some),
        };
        match written {
            Ok(None) => work.copying = Some(copy),
            Ok(Some(place)) => self.name(work, copy, place)?,
            Err(NoRoom) => {
                // Writers have taken the segments.
                work.since = self.segments.stamp();
                let segments = self.end_copy(work, copy);
                self.free_reserved(work);
                self.recycle_chain(work, &segments)?;
            }
        }
        Ok(())
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
        let (floor, is_in_place) = (copy.floor, copy.is_in_place);
        let segments = self.end_copy(work, copy);
        if !is_in_place {
            self.free_reserved(work);
        }
        work.named = Some(NamedCheckpoint { segments, floor });
        self.cleaning.checkpoints.written.fetch_add(1, Relaxed);
        if !is_early {
            self.recycle_chain(work, &before)?; // KV-CKPT-5
        }
        Ok(())
    }
}
