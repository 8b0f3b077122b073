//! One pass of the cleaner, in slices.
//!
//! A pass empties a few victims. It is kept between slices, in the cleaner under its lock, so that any thread can go on with it:
//! the background thread, a writer that pays for its own bytes (`pace`), or a caller that needs all of it.
//!
//! ```text
//!   begin ──▶ copy a slice ── drain ──▶ swing ──▶ copy a slice ... ──▶ end      where a drain is a fence
//!   begin ──▶ copy a slice ──▶ copy a slice ... ── drain ──▶ swing a slice ...  where it waits for the device
//! ```
//!
//! A victim is put in retired as soon as its walk has ended and its moves are swung. The invariants are the cleaner's (C1 to C5);
//! slices add these:
//!
//! # Invariants
//! KV-PASS-1  A victim is walked to its end before it is put in retired, and stays in the state `Cleaning` until then: no other
//!     pass takes it, and it is not reborn between slices.
//! KV-PASS-2  Stamps are taken when a pass begins. Both keep their meaning: later tombstones have higher fences (C2), and what is
//!     older than every segment stays so (C3).
//! KV-PASS-3  Between slices the cleaner pins no epoch. It holds places in its victims and in extents of their groups only. Those
//!     are freed by the cleaner, or by FLUSHALL, which gives the pass up first.
//! KV-PASS-4  Moves that are drained are swung before anything that moves depend on changes: the clock's setbacks, FLUSHALL's floor.
//! KV-PASS-5  What is copied is durable before its copy is written. Where drains are relaxed that takes a sync when the pass
//!     begins: else a power cut could leave copies of a few members of a group that was lost, or a copy that vouches for
//!     extents that were.
//!
//! # Crash argument
//! | crash between          | recovery sees                         | and does                           |
//! |------------------------|---------------------------------------|------------------------------------|
//! | two slices             | the victim, copies of some records    | keeps one: same key, same number (V6) |

use std::collections::VecDeque;

use farbank_pm::fault;
use farbank_pm::situation;
use farbank_pm::sync::MutexGuard;
use farbank_pm::sync::atomic::Ordering::{Acquire, Relaxed};
use farbank_pm::{Drain, Medium, Off, Poisoned, Ticket};

use crate::cleaner::Cleaner;
use crate::engine::Engine;
use crate::publish::note_expiry;
use crate::record::{RecordHeader, RecordType, ValueExtent, u64_at};
use crate::record_walk::RecordWalk;
use crate::segment::{SegmentInfo, SegmentState};
use crate::session_log::RelocationOrigin;
use crate::store::Key;

/// Records that are met before what the index says of them is fetched.
const MET_MAX: usize = 64;
/// Bytes that a record costs that is looked at and not copied.
const LOOK_BYTES: usize = 64;
/// How often a victim may keep live records that no walk finds before it counts as damaged.
const FAILURES_MAX: u8 = 8;

/// How much of a pass is done at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SliceLimit {
    /// Records that are looked at, or swung, at most.
    pub records: usize,
    /// Bytes that are copied; the record that exceeds them is the last. A record that is only looked at counts as 64.
    pub bytes: usize,
    /// Whether the caller may wait for the device.
    pub may_settle: bool,
}

/// What a slice has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SliceProgress {
    /// The pass goes on.
    Going,
    /// The pass has to wait for the device, which this caller must not do.
    Undrained,
    /// The pass is over, and has put so many victims in retired.
    Ended { retired: usize },
}

/// A record on its way to a new place.
struct Relocation {
    hash: u64,
    old: Off,
    new: Off,
    len: u32,
    expires_ms: u64,
    tomb: bool,
}

/// A victim that is being walked, or was.
struct PassVictim {
    segment: u32,
    walk: RecordWalk,
    /// Tables of large groups in it.
    tables: Vec<Vec<u8>>,
    /// Whether something in it was damaged.
    damaged: bool,
}

/// A record that was met and not yet looked at.
struct WalkedRecord {
    at: Off,
    header: RecordHeader,
    hash: u64,
}

/// What a pass needs to know until it ends.
pub(crate) struct CleaningPass {
    /// When the segments it fills count as opened: [`Engine::pass_stamp`].
    stamp: u64,
    /// The two oldest stamps of segments with records, and which segment has the oldest.
    oldest: (u64, u32, u64),
    /// Whether what the victims hold is durable (KV-PASS-5).
    sources_durable: bool,
    /// Victims that are still to be walked.
    waiting: VecDeque<u32>,
    /// The victim that is being walked.
    current: Option<PassVictim>,
    /// Victims that were walked and have moves to be swung.
    walked: Vec<PassVictim>,
    met: VecDeque<WalkedRecord>,
    /// Copied and not swung.
    moves: VecDeque<Relocation>,
    /// Whether `moves` are durable.
    drained: bool,
    /// Whether there was no room for a copy.
    is_out_of_room: bool,
    /// Tombstones with copies, in case their victims are kept.
    tombs: Vec<(u32, Off)>,
    /// Victims in retired.
    retired: usize,
    /// Key and value of the record that is being copied.
    body: Vec<u8>,
}

impl CleaningPass {
    /// Whether nothing is left to copy.
    fn is_copied(&self) -> bool {
        self.is_out_of_room
            || (self.current.is_none() && self.waiting.is_empty() && self.met.is_empty())
    }
}

impl<M: Medium> Engine<M> {
    /// Begins a pass over those of `victims` that are sealed. The cleaner must have none.
    pub(crate) fn begin_pass(&self, cleaner: &mut Cleaner, victims: &[u32]) {
        debug_assert!(cleaner.pass.is_none());
        let turned = |v: &u32| {
            self.info(*v)
                .turn(SegmentState::Sealed, SegmentState::Cleaning)
        };
        let waiting: VecDeque<u32> = victims.iter().copied().filter(turned).collect();
        let infos = waiting.iter().map(|v| self.info(*v));
        let (kept, gain) = infos.fold((0, 0), |(kept, gain), info| {
            let tombs = u64::from(info.tombs.load(Relaxed));
            let live = u64::from(info.live_bytes());
            (kept + live + tombs, gain + self.gain_of(info))
        });
        self.pace.note_victims(kept, gain);
        cleaner.passes += 1;
        cleaner.pass = Some(Box::new(CleaningPass {
            stamp: self.pass_stamp(),
            oldest: self.oldest_stamps(),
            sources_durable: self.drains_are_real() || fault!("kv.copied_before_sync"),
            waiting,
            current: None,
            walked: Vec::new(),
            met: VecDeque::with_capacity(MET_MAX),
            moves: VecDeque::new(),
            drained: false,
            is_out_of_room: false,
            tombs: Vec::new(),
            retired: 0,
            body: Vec::new(),
        }));
    }

    /// Goes on with the cleaner's pass, if it has one, by a slice.
    ///
    /// # Errors
    /// [`Poisoned`] if the medium has failed. The pass is given up, and its victims are left alone.
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
        // Where a drain is a fence each slice has its own, and its moves are swung at once.
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
        self.swing(&mut pass, if at_once { usize::MAX } else { slice.records });
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

    /// The cleaner with no pass and no moves in flight: what was copied is swung, victims that are not empty are sealed
    /// again (KV-PASS-3, KV-PASS-4).
    ///
    /// # Errors
    /// [`Poisoned`] if the medium has failed.
    pub(crate) fn cleaner_at_rest(&self) -> Result<MutexGuard<'_, Cleaner>, Poisoned> {
        let mut cleaner = self.cleaner.lock().expect("no holder panics");
        if let Some(mut pass) = cleaner.pass.take() {
            if !pass.drained {
                self.drain_moves(&mut cleaner, &mut pass)?;
            }
            self.swing(&mut pass, usize::MAX);
            self.retire_walked(&mut pass);
            self.end_pass(&mut cleaner, *pass);
        }
        Ok(cleaner)
    }

    /// Copies records of the pass's victims until the slice is full, nothing is left, or there is no room.
    fn copy_slice(&self, cleaner: &mut Cleaner, pass: &mut CleaningPass, slice: SliceLimit) {
        self.epochs.pin(&cleaner.slot);
        let (mut records, mut bytes) = (0, 0);
        while records < slice.records && bytes < slice.bytes && !pass.is_copied() {
            if pass.met.is_empty() {
                self.visit(pass, MET_MAX.min(slice.records - records));
            }
            let Some(met) = pass.met.front() else {
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
            pass.met.pop_front();
            records += 1;
        }
        if fault!("kv.slice_ends_victim") && !pass.is_out_of_room {
            self.end_walk(pass); // KV-PASS-1
        }
        let copied = cleaner.log.copy_in(self, &mut cleaner.ctx, None);
        self.tally.moved_bytes.fetch_add(copied, Relaxed);
        cleaner.slot.unpin();
    }

    /// Meets up to `most` records of the current victim, or of the next. What the index says of them is fetched for all at
    /// once.
    fn visit(&self, pass: &mut CleaningPass, most: usize) {
        if pass.current.is_none() {
            let next = pass.waiting.pop_front();
            pass.current = next.map(|segment| self.walk_of(segment));
        }
        let Some(victim) = &mut pass.current else {
            return;
        };
        while pass.met.len() < most
            && let Some((at, header)) = victim.walk.next(self)
        {
            pass.body.clear();
            let from = at.plus(header.len() as u64);
            self.medium()
                .append_out(from, header.key_len, &mut pass.body);
            let hash = self.geometry.hash(header.db, &pass.body);
            self.index.touch(&self.index.spot(hash));
            pass.met.push_back(WalkedRecord { at, header, hash });
        }
    }

    /// A walk through what must be kept of `segment`.
    fn walk_of(&self, segment: u32) -> PassVictim {
        let info = self.info(segment);
        let groups = if fault!("kv.groups_cleaned_away") {
            &info.tombs
        } else {
            &info.groups
        };
        let kept = [&info.tombs, groups];
        let only_values = kept.iter().all(|count| count.load(Relaxed) == 0);
        let live = info.live_records();
        let (from, bytes) = (self.geometry.base(segment), self.geometry.segment_bytes);
        let mapped = match (only_values, live) {
            (true, 0) => Some(Vec::new()),
            (true, _) => self.live_map.all_of(from, bytes, live),
            (false, _) => None,
        };
        let walk = match mapped {
            Some(places) => RecordWalk::at(places),
            None => RecordWalk::through(self, segment, info.used.load(Relaxed) as usize),
        };
        PassVictim {
            segment,
            walk,
            tables: Vec::new(),
            damaged: false,
        }
    }

    /// The current victim was walked to its end.
    fn end_walk(&self, pass: &mut CleaningPass) {
        pass.met.clear();
        if let Some(mut victim) = pass.current.take() {
            victim.damaged |= !victim.walk.is_whole();
            pass.walked.push(victim);
        }
    }

    /// What a pass that begins now gives its segments as stamp (C2): no later than the fence of any
    /// tombstone that is listed now, or will be. What those delete may still be copied.
    fn pass_stamp(&self) -> u64 {
        let now = self.stamp.load(Relaxed);
        let fences = self.stripes.iter().map(|s| s.lock().lowest_fence());
        fences.min().map_or(now, |lowest| lowest.min(now))
    }

    fn oldest_stamps(&self) -> (u64, u32, u64) {
        let mut oldest = (u64::MAX, u32::MAX, u64::MAX);
        for segment in 0..self.pool.segments() {
            let info = self.info(segment);
            if matches!(info.state(), SegmentState::Free | SegmentState::Extent) {
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

    /// Copies one record of the current victim if it must be kept. Returns the bytes copied; `None` if there is no room.
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
            RecordType::Tomb if cleaner.has_copied(segment, at) => return Some(0),
            RecordType::Pad => return Some(0),
            RecordType::Group => {
                match self.body_holds(at, header) {
                    true => victim.tables.push(self.table_of(at, header)),
                    false => victim.damaged = true,
                }
                return Some(0);
            }
            RecordType::Put | RecordType::Tomb => {}
        }
        pass.body.clear();
        let from = at.plus(header.len() as u64);
        self.medium()
            .append_out(from, self.body_len(header), &mut pass.body);
        let body = &pass.body[..];
        let key = Key {
            db: header.db,
            bytes: &body[..header.key_len],
        };
        let tomb = header.what == RecordType::Tomb;
        // A tombstone whose key cannot be trusted may be needed.
        let sound = Engine::<M>::body_matches(header, key.bytes, &body[header.key_len..]);
        let needed = || self.tomb_is_needed(pass.oldest, segment, hash, key, header, body);
        let keep = !tomb || !sound || needed();
        situation!("kv.tombstone_dropped", tomb && !keep);
        victim.damaged |= keep && !sound;
        if !keep || !sound {
            return Some(0);
        }
        let born = self.info_at(at).born.load(Relaxed);
        situation!("kv.value_moved", !tomb);
        situation!("kv.tombstone_moved", tomb);
        situation!("kv.large_value_moved", header.large);
        let class = self.class_of_age(born);
        let len = self.record_len(header);
        let heritage = RelocationOrigin {
            opened: pass.stamp,
            born,
        };
        let room = cleaner.log.make_room(self, class, len, 0, Some(heritage));
        room.ok()?;
        let new = cleaner.log.next(class);
        let copy = RecordHeader {
            member: false,
            moved: true,
            ..*header
        };
        cleaner.log.stage(self, class, &copy, &[body]);
        let expires_ms = match self.clock.is_set_back(header.expires_ms, header.seq) {
            true => 1, // It has expired, whatever the time is.
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

    /// C3.
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
        // A fence of an earlier opening of the pool waits for everything this one found.
        let boot_stamp = if fault!("kv.tombstone_of_earlier_opening") {
            0
        } else {
            self.boot_stamp
        };
        if fence.max(boot_stamp) < oldest {
            return false;
        }
        let newer = self.locate(hash, key).found.and_then(|found| found.header);
        newer.is_none_or(|newer| newer.seq() < header.seq)
    }

    /// Makes what was copied durable.
    fn drain_moves(&self, cleaner: &mut Cleaner, pass: &mut CleaningPass) -> Result<(), Poisoned> {
        let ticket = self.medium().drain(&mut cleaner.ctx);
        cleaner.log.drained(self, ticket);
        if !fault!("kv.victims_before_copies") {
            self.settle(ticket)?;
        }
        pass.drained = true;
        Ok(())
    }

    /// Swings the index to up to `most` moves, which are durable.
    fn swing(&self, pass: &mut CleaningPass, most: usize) {
        let count = pass.moves.len().min(most);
        for moved in pass.moves.drain(..count) {
            let to = self.info_at(moved.new);
            if moved.tomb {
                self.tomb_map.set(moved.new);
                if !fault!("kv.copied_tombstone_uncounted") {
                    to.tombs.fetch_add(moved.len, Relaxed);
                }
                self.tombs.fetch_add(i64::from(moved.len), Relaxed);
            } else {
                let _locked = self.stripe(moved.hash).lock();
                self.read_cache.take(moved.hash); // H2
                if self.index.replace(moved.hash, moved.old, moved.new) {
                    self.mark_dead(moved.old, moved.len);
                    self.mark_live(moved.new, moved.len);
                    note_expiry(&to.expires_ms, moved.expires_ms);
                }
            }
        }
    }

    /// Puts the victims that were walked in retired, quarantines the damaged (C5). Every move must be swung.
    fn retire_walked(&self, pass: &mut CleaningPass) {
        if pass.walked.is_empty() {
            return;
        }
        let epoch = self.epochs.retire();
        for victim in std::mem::take(&mut pass.walked) {
            pass.retired += usize::from(self.retire(&victim, epoch));
        }
    }

    /// Puts an emptied victim in retired; false if it is kept.
    fn retire(&self, victim: &PassVictim, epoch: u64) -> bool {
        let info = self.info(victim.segment);
        let is_holding = self.free_tables(&victim.tables);
        let left = info.live_records();
        if left != 0 || victim.damaged || is_holding {
            // Someone may have swung the index and not counted yet: it is looked at again.
            let again = info.failures.fetch_add(1, Relaxed) < FAILURES_MAX;
            let damaged = victim.damaged || !again;
            info.set_state(if damaged {
                SegmentState::Quarantined
            } else {
                SegmentState::Sealed
            });
            if damaged {
                self.note_emptied(victim.segment);
                self.tally.damaged.fetch_add(u64::from(left), Relaxed);
            }
            return false;
        }
        // Its tombstones, copied or not needed, go with it, and so does what damage hid.
        situation!("kv.segment_emptied");
        self.drop_tombstones(info);
        let hidden = info.forget_live();
        self.live.fetch_sub(i64::from(hidden), Relaxed);
        info.set_state(SegmentState::Limbo);
        self.note_emptied(victim.segment);
        self.tally.cleaned.fetch_add(1, Relaxed);
        self.retired
            .lock()
            .expect("no holder panics")
            .push_back((epoch, victim.segment));
        true
    }

    /// Frees the extents of large groups whose members have all been moved. Returns whether some group still has members
    /// there.
    fn free_tables(&self, tables: &[Vec<u8>]) -> bool {
        let mut is_holding = false;
        for table in tables {
            let has_members = |extent: ValueExtent| {
                self.is_alive(&extent) && self.info(extent.segment).live_records() != 0
            };
            if ValueExtent::decode_all(table).any(has_members) {
                is_holding = true;
            } else {
                self.free_table(table);
            }
        }
        is_holding
    }

    /// Counts no tombstone of a segment any more.
    pub(crate) fn drop_tombstones(&self, info: &SegmentInfo) {
        let tombs = info.tombs.swap(0, Relaxed);
        self.tombs.fetch_sub(i64::from(tombs), Relaxed);
    }

    /// Ends a pass: victims that were not walked to their ends stay where they are.
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
        // Which tombstones have copies, as long as their victims are still to be cleaned.
        let is_kept = |victim: u32| self.info(victim).state() == SegmentState::Sealed;
        cleaner.copied.retain(|victim, _| is_kept(*victim));
        for (victim, at) in pass.tombs.into_iter().filter(|(v, _)| is_kept(*v)) {
            cleaner.copied.entry(victim).or_default().insert(at);
        }
        cleaner.log.rotate(self);
        SliceProgress::Ended {
            retired: pass.retired,
        }
    }

    /// Whether a segment is sealed and its records are all published.
    pub(crate) fn is_candidate(&self, segment: u32) -> bool {
        let info = self.info(segment);
        info.state() == SegmentState::Sealed && info.unsettled.load(Acquire) == 0
    }
}
