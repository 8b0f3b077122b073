//! One pass of the cleaner, in slices.
//!
//! A pass empties a few victims. Between slices it is stored in the [`Cleaner`], under the cleaner's lock. So any
//! thread can continue it: the background thread, a writer that cleans in proportion to its own appends
//! (`cleaning_pace`), or a caller that needs the whole pass.
//!
//! ```text
//!   begin ──▶ copy a slice ── drain ──▶ publish ──▶ copy a slice ... ──▶ end      where a drain is a fence
//!   begin ──▶ copy a slice ──▶ copy a slice ... ── drain ──▶ publish a slice ...  where it waits for the device
//! ```
//!
//! To publish a move is to make the index point at the copy. A victim is retired as soon as its walk has ended and its
//! moves are published. The invariants of the cleaner (KV-CLEAN-1 to KV-CLEAN-5) hold. Slices add these:
//!
//! # Invariants
//! KV-PASS-1  A victim is walked to its end before it is retired. It stays in the state `Cleaning` until then, so no
//!     other pass takes it, and it is not recycled between slices.
//! KV-PASS-2  Stamps are taken when a pass begins, and stay valid until it ends. Later tombstones have higher reclaim
//!     stamps (KV-CLEAN-2), and a tombstone older than every segment stays older (KV-CLEAN-3).
//! KV-PASS-3  Between slices the cleaner pins no epoch. It holds offsets only in its victims and in extents of their
//!     groups. Only the cleaner frees those, or FLUSHALL, which ends the pass first.
//! KV-PASS-4  Drained moves are published before the inputs of a move change: the setbacks of the clock, and the floor
//!     of FLUSHALL.
//! KV-PASS-5  A record is durable before its copy is written. Where drains are relaxed, this needs a sync when the
//!     pass begins. Without it a power cut could leave copies of a few members of a group that was lost, or a MOVED
//!     copy whose extents were lost (KV-RECORD-6).
//!
//! # Crash argument
//! | crash between          | recovery sees                         | recovery does                         |
//! |------------------------|---------------------------------------|---------------------------------------|
//! | two slices             | the victim, copies of some records    | keeps one: same key, same number (KV-OPEN-6) |

use std::collections::VecDeque;

use farbank_pm::fault;
use farbank_pm::situation;
use farbank_pm::sync::MutexGuard;
use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::{Drain, Medium, Off, Poisoned, Ticket};

use crate::cleaner::state::{
    Cleaner, CleaningPass, PassStamps, PassVictim, Relocation, WalkedRecord,
};
use crate::engine::Engine;
use crate::format::record::{RecordHeader, RecordType, ValueExtent, u64_at};
use crate::format::segment::SegmentState;
use crate::segments::record_walk::RecordWalk;
use crate::segments::records::body_matches;
use crate::session_log::RelocationOrigin;
use farbank_store::Key;

/// Maximum number of records read ahead, whose index lines are prefetched.
const READ_AHEAD_MAX: usize = 64;
/// Bytes that a record counts as if it is examined and not copied.
const LOOK_BYTES: usize = 64;
/// How often a victim may keep live records that no walk finds before it counts as damaged.
const FAILURES_MAX: u8 = 8;

/// Limits of one slice of a pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SliceLimit {
    /// Maximum number of records that are examined, or of moves that are published.
    pub records: usize,
    /// Bytes to copy. The record that reaches the limit is the last. A record that is only examined counts as
    /// [`LOOK_BYTES`].
    pub bytes: usize,
    /// Whether the caller may wait for the device.
    pub may_settle: bool,
}

/// Result of a slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SliceProgress {
    /// The pass is not over.
    Going,
    /// The pass has to wait for the device, which this caller must not do.
    Undrained,
    /// The pass is over, and has retired this number of victims.
    Ended { retired: usize },
}

impl<M: Medium> Engine<M> {
    /// Begins a pass over those of `victims` that are sealed. The cleaner must have no pass.
    pub(crate) fn begin_pass(&self, cleaner: &mut Cleaner, victims: &[u32]) {
        debug_assert!(cleaner.pass.is_none());
        let turned = |v: &u32| {
            self.info(*v)
                .transition(SegmentState::Sealed, SegmentState::Cleaning)
        };
        let waiting: VecDeque<u32> = victims.iter().copied().filter(turned).collect();
        let infos = waiting.iter().map(|v| self.info(*v));
        let (kept, gain) = infos.fold((0, 0), |(kept, gain), info| {
            let tombs = u64::from(info.tombstone_bytes.load(Relaxed));
            let live = u64::from(info.live_bytes());
            (kept + live + tombs, gain + self.space().gain_of(info))
        });
        self.cleaning.pace.note_victims(kept, gain);
        cleaner.passes += 1;
        cleaner.pass = Some(Box::new(CleaningPass {
            stamps: PassStamps {
                filled: self.pass_stamp(),
                oldest: self.oldest_stamps(),
            },
            sources_durable: self.access().drains_are_real() || fault!("kv.copied_before_sync"),
            waiting,
            current: None,
            walked: Vec::new(),
            read_ahead: VecDeque::with_capacity(READ_AHEAD_MAX),
            moves: VecDeque::new(),
            drained: false,
            is_out_of_room: false,
            tombs: Vec::new(),
            retired: 0,
            body: Vec::new(),
        }));
    }

    /// Continues the cleaner's pass, if it has one, by a slice.
    ///
    /// # Errors
    /// [`Poisoned`] if the medium has failed. The pass is dropped, and its victims stay in the state `Cleaning`.
    pub(crate) fn advance_pass(
        &self,
        cleaner: &mut Cleaner,
        slice: SliceLimit,
    ) -> Result<SliceProgress, Poisoned> {
        let Some(mut pass) = cleaner.pass.take() else {
            return Ok(SliceProgress::Ended { retired: 0 });
        };
        if !pass.sources_durable {
            if !slice.may_settle {
                cleaner.pass = Some(pass);
                return Ok(SliceProgress::Undrained);
            }
            self.settle(Ticket::DURABLE)?; // KV-PASS-5
            pass.sources_durable = true;
        }
        // Where a drain is a fence, each slice drains, and its moves are published at once.
        let at_once = self.caps().drain == Drain::Fence;
        if !pass.drained {
            if !pass.is_copied() {
                self.copy_slice(cleaner, &mut pass, slice);
            }
            let is_due = at_once || (pass.is_copied() && slice.may_settle);
            if !is_due {
                let progress = match pass.is_copied() {
                    true => SliceProgress::Undrained,
                    false => SliceProgress::Going,
                };
                cleaner.pass = Some(pass);
                return Ok(progress);
            }
            self.drain_moves(cleaner, &mut pass)?;
        }
        self.publish_moves(&mut pass, if at_once { usize::MAX } else { slice.records });
        if !pass.moves.is_empty() {
            cleaner.pass = Some(pass);
            return Ok(SliceProgress::Going);
        }
        pass.drained = false;
        self.retire_walked(&mut pass);
        if pass.is_copied() {
            return Ok(self.end_pass(cleaner, *pass));
        }
        cleaner.pass = Some(pass);
        Ok(SliceProgress::Going)
    }

    /// Ends the cleaner's pass, if it has one, and returns the locked cleaner. Copied moves are published, and victims
    /// that are not empty are sealed again (KV-PASS-3, KV-PASS-4).
    ///
    /// # Errors
    /// [`Poisoned`] if the medium has failed.
    pub(crate) fn lock_cleaner_without_pass(&self) -> Result<MutexGuard<'_, Cleaner>, Poisoned> {
        let mut cleaner = self.cleaning.lock();
        if let Some(mut pass) = cleaner.pass.take() {
            if !pass.drained {
                self.drain_moves(&mut cleaner, &mut pass)?;
            }
            self.publish_moves(&mut pass, usize::MAX);
            self.retire_walked(&mut pass);
            self.end_pass(&mut cleaner, *pass);
        }
        Ok(cleaner)
    }

    /// Copies records of the pass's victims until the slice's limits are reached, all are copied, or no free segment is
    /// left for copies.
    fn copy_slice(&self, cleaner: &mut Cleaner, pass: &mut CleaningPass, slice: SliceLimit) {
        self.epochs.pin(&cleaner.slot);
        let (mut records, mut bytes) = (0, 0);
        while records < slice.records && bytes < slice.bytes && !pass.is_copied() {
            if pass.read_ahead.is_empty() {
                self.read_ahead_records(pass, READ_AHEAD_MAX.min(slice.records - records));
            }
            let Some(met) = pass.read_ahead.front() else {
                self.end_walk(pass);
                continue;
            };
            let (at, header, hash) = (met.at, met.header, met.hash);
            match self.copy_record(cleaner, pass, at, &header, hash) {
                Some(copied) => bytes += copied.max(LOOK_BYTES),
                None => {
                    pass.is_out_of_room = true;
                    break;
                }
            }
            pass.read_ahead.pop_front();
            records += 1;
        }
        if fault!("kv.slice_ends_victim") && !pass.is_out_of_room {
            self.end_walk(pass); // KV-PASS-1
        }
        let copied = cleaner.log.copy_in(&self.segments, &mut cleaner.ctx, None);
        self.counters.moved_bytes.fetch_add(copied, Relaxed);
        cleaner.slot.unpin();
    }

    /// Reads up to `most` records ahead, of the current victim or the next. Prefetches the index lines of all of them.
    fn read_ahead_records(&self, pass: &mut CleaningPass, most: usize) {
        if pass.current.is_none() {
            let next = pass.waiting.pop_front();
            pass.current = next.map(|segment| self.walk_of(segment));
        }
        let Some(victim) = &mut pass.current else {
            return;
        };
        while pass.read_ahead.len() < most
            && let Some((at, header)) = victim.walk.next(&self.segments)
        {
            pass.body.clear();
            let from = at.plus(header.len() as u64);
            self.medium()
                .append_out(from, header.key_len, &mut pass.body);
            let hash = self.geometry().hash(header.db, &pass.body);
            self.index.touch(&self.index.spot(hash));
            pass.read_ahead.push_back(WalkedRecord { at, header, hash });
        }
    }

    /// Begins a walk over the records of `segment`: by the live map if only live values must be kept, otherwise from
    /// end to end.
    fn walk_of(&self, segment: u32) -> PassVictim {
        let info = self.info(segment);
        let groups = if fault!("kv.groups_cleaned_away") {
            &info.tombstone_bytes
        } else {
            &info.large_groups
        };
        let kept = [&info.tombstone_bytes, groups];
        let only_values = kept.iter().all(|count| count.load(Relaxed) == 0);
        let live = info.live_records();
        let (from, bytes) = (
            self.geometry().base(segment),
            self.geometry().segment_bytes(),
        );
        let mapped = match (only_values, live) {
            (true, 0) => Some(Vec::new()),
            (true, _) => self.segments.live_map().all_of(from, bytes, live),
            (false, _) => None,
        };
        let walk = match mapped {
            Some(places) => RecordWalk::at(places),
            None => RecordWalk::through(&self.segments, segment, info.used.load(Relaxed) as usize),
        };
        PassVictim {
            segment,
            walk,
            tables: Vec::new(),
            damaged: false,
        }
    }

    /// Ends the walk of the current victim.
    fn end_walk(&self, pass: &mut CleaningPass) {
        pass.read_ahead.clear();
        if let Some(mut victim) = pass.current.take() {
            victim.damaged |= !victim.walk.is_whole();
            pass.walked.push(victim);
        }
    }

    /// Returns the opening stamp for the segments of a pass that begins now (KV-CLEAN-2). It is no higher than the reclaim
    /// stamp of any tombstone that is pending now or later, because the pass may copy the records that those delete.
    fn pass_stamp(&self) -> u64 {
        let now = self.segments.stamp();
        let lowest = self.pending.lowest_reclaim_stamp();
        lowest.map_or(now, |lowest| lowest.min(now))
    }

    fn oldest_stamps(&self) -> (u64, u32, u64) {
        let mut oldest = (u64::MAX, u32::MAX, u64::MAX);
        for segment in 0..self.segments.count() {
            let info = self.info(segment);
            if matches!(
                info.state(),
                SegmentState::Free | SegmentState::Extent | SegmentState::Piece
            ) {
                continue;
            }
            let opened = info.opened.load(Relaxed);
            if opened < oldest.0 {
                oldest = (opened, segment, oldest.0);
            } else {
                oldest.2 = oldest.2.min(opened);
            }
        }
        oldest
    }

    /// Copies one record of the current victim if it must be kept. Returns the bytes copied; `None` if there is no free
    /// segment for the copy.
    fn copy_record(
        &self,
        cleaner: &mut Cleaner,
        pass: &mut CleaningPass,
        at: Off,
        header: &RecordHeader,
        hash: u64,
    ) -> Option<usize> {
        let victim = pass.current.as_mut()?;
        let segment = victim.segment;
        match header.what {
            RecordType::Put if !self.index.names(hash, at) => return Some(0),
            RecordType::Tombstone if cleaner.has_copied(segment, at) => return Some(0),
            RecordType::Pad => return Some(0),
            RecordType::Group => {
                match self.segments.body_holds(at, header) {
                    true => victim.tables.push(self.segments.table_of(at, header)),
                    false => victim.damaged = true,
                }
                return Some(0);
            }
            RecordType::Put | RecordType::Tombstone => {}
        }
        pass.body.clear();
        let from = at.plus(header.len() as u64);
        self.medium()
            .append_out(from, self.segments.body_len(header), &mut pass.body);
        let body = &pass.body[..];
        let key = Key {
            db: header.db,
            bytes: &body[..header.key_len],
        };
        let tomb = header.what == RecordType::Tombstone;
        // A tombstone with a damaged key may be needed.
        let sound = body_matches(header, key.bytes, &body[header.key_len..]);
        let needed = || self.tomb_is_needed(pass.stamps.oldest, segment, hash, key, header, body);
        let keep = !tomb || !sound || needed();
        situation!("kv.tombstone_dropped", tomb && !keep);
        victim.damaged |= keep && !sound;
        if !keep || !sound {
            return Some(0);
        }
        let written_at = self.info_at(at).written_at_average.load(Relaxed);
        situation!("kv.value_moved", !tomb);
        situation!("kv.tombstone_moved", tomb);
        situation!("kv.large_value_moved", header.large);
        let class = self.class_of_age(written_at);
        let len = self.segments.record_len(header);
        let origin = RelocationOrigin {
            opened: pass.stamps.filled,
            written_at,
        };
        let room = self.make_room(&mut cleaner.log, (class, len), 0, Some(origin));
        room.ok()?;
        let new = cleaner.log.next(class);
        let copy = RecordHeader {
            member: false,
            moved: true,
            ..*header
        };
        let ctx = &mut cleaner.ctx;
        cleaner
            .log
            .stage(&self.segments, ctx, class, &copy, &[body]);
        let expires_ms = match self
            .superblock
            .clock()
            .is_set_back(header.expires_ms, header.seq)
        {
            true => 1, // A setback applies: the value has expired, whatever the time is.
            false => header.expires_ms,
        };
        if tomb {
            pass.tombs.push((segment, at));
        }
        pass.moves.push_back(Relocation {
            hash,
            old: at,
            new,
            len: len as u32,
            expires_ms,
            tomb,
        });
        Some(len)
    }

    /// Whether a tombstone must be kept (KV-CLEAN-3).
    fn tomb_is_needed(
        &self,
        oldest: (u64, u32, u64),
        victim: u32,
        hash: u64,
        key: Key<'_>,
        header: &RecordHeader,
        body: &[u8],
    ) -> bool {
        let (oldest, whose, second) = oldest;
        let oldest = if whose == victim { second } else { oldest };
        let fence = body
            .get(header.key_len..)
            .map_or(u64::MAX, |rest| u64_at(rest, 0));
        // A tombstone of an earlier open epoch waits for all segments that this open found.
        let boot_stamp = if fault!("kv.tombstone_of_earlier_opening") {
            0
        } else {
            self.segments.open_epoch_stamp()
        };
        if fence.max(boot_stamp) < oldest {
            return false;
        }
        let newer = self.locate(hash, key).found.and_then(|found| found.header);
        newer.is_none_or(|newer| newer.seq() < header.seq)
    }

    /// Makes the copies durable.
    fn drain_moves(&self, cleaner: &mut Cleaner, pass: &mut CleaningPass) -> Result<(), Poisoned> {
        let ticket = self.medium().drain(&mut cleaner.ctx);
        cleaner.log.drained(&self.segments, ticket);
        if !fault!("kv.victims_before_copies") {
            self.settle(ticket)?;
        }
        pass.drained = true;
        Ok(())
    }

    /// Publishes up to `most` moves, which are durable: makes the index point at the copies.
    fn publish_moves(&self, pass: &mut CleaningPass, most: usize) {
        let count = pass.moves.len().min(most);
        for moved in pass.moves.drain(..count) {
            let to = self.info_at(moved.new);
            if moved.tomb {
                self.segments.tombstone_map().set(moved.new);
                if !fault!("kv.copied_tombstone_uncounted") {
                    to.tombstone_bytes.fetch_add(moved.len, Relaxed);
                }
                self.space().count_tombstones(i64::from(moved.len));
            } else {
                let _locked = self.stripe(moved.hash).lock();
                self.read_cache.take(moved.hash); // KV-CACHE-2
                if self.index.replace(moved.hash, moved.old, moved.new) {
                    self.segments.mark_dead(moved.old, moved.len);
                    self.segments.mark_live(moved.new, moved.len);
                    to.note_expiry(moved.expires_ms);
                }
            }
        }
    }

    /// Retires the victims whose walk has ended, and quarantines damaged ones (KV-CLEAN-5). All moves must be published.
    fn retire_walked(&self, pass: &mut CleaningPass) {
        if pass.walked.is_empty() {
            return;
        }
        let epoch = self.epochs.retire();
        for victim in std::mem::take(&mut pass.walked) {
            pass.retired += usize::from(self.retire(&victim, epoch));
        }
    }

    /// Retires an emptied victim. Returns false if it is kept.
    fn retire(&self, victim: &PassVictim, epoch: u64) -> bool {
        let info = self.info(victim.segment);
        let is_holding = self.free_tables(&victim.tables);
        let left = info.live_records();
        if left != 0 || victim.damaged || is_holding {
            // Another thread may have updated the index and not the counts yet, so the victim is cleaned again later.
            let again = info.failures.fetch_add(1, Relaxed) < FAILURES_MAX;
            let damaged = victim.damaged || !again;
            info.set_state(if damaged {
                SegmentState::Quarantined
            } else {
                SegmentState::Sealed
            });
            if damaged {
                self.segments.note_emptied(victim.segment);
                self.counters.damaged.fetch_add(u64::from(left), Relaxed);
            }
            return false;
        }
        // Its tombstones are copied or not needed. Live bytes may be left over where damage hid a record's length.
        situation!("kv.segment_emptied");
        self.segments.drop_tombstones(info);
        let hidden = info.clear_live();
        self.space().count_live(-i64::from(hidden));
        info.set_state(SegmentState::Retired);
        self.segments.note_emptied(victim.segment);
        self.counters.cleaned.fetch_add(1, Relaxed);
        self.segments.retired().push_back((epoch, victim.segment));
        true
    }

    /// Frees the extents of large groups that have no live members left in them. Returns whether a group still has
    /// some.
    fn free_tables(&self, tables: &[Vec<u8>]) -> bool {
        let mut is_holding = false;
        for table in tables {
            let has_members = |extent: ValueExtent| {
                self.segments.has_generation(&extent)
                    && self.info(extent.segment).live_records() != 0
            };
            if ValueExtent::decode_all(table).any(has_members) {
                is_holding = true;
            } else {
                self.free_table(table);
            }
        }
        is_holding
    }

    /// Ends a pass. Victims that were not walked to their ends are sealed again.
    fn end_pass(&self, cleaner: &mut Cleaner, pass: CleaningPass) -> SliceProgress {
        debug_assert!(pass.moves.is_empty() && pass.walked.is_empty());
        situation!(
            "kv.pass_ends_early",
            pass.current.is_some() || !pass.waiting.is_empty()
        );
        let unwalked = pass.current.iter().map(|victim| victim.segment);
        for segment in unwalked.chain(pass.waiting) {
            self.info(segment).set_state(SegmentState::Sealed);
        }
        // Remember which tombstones have copies, as long as their victims are to be cleaned again.
        let is_kept = |victim: u32| self.info(victim).state() == SegmentState::Sealed;
        cleaner.copied.retain(|victim, _| is_kept(*victim));
        for (victim, at) in pass.tombs.into_iter().filter(|(v, _)| is_kept(*v)) {
            cleaner.copied.entry(victim).or_default().insert(at);
        }
        cleaner.log.rotate(&self.segments);
        SliceProgress::Ended {
            retired: pass.retired,
        }
    }
}
