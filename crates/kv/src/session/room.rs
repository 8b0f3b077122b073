//! Space for a session's writes: admission, open segments, and waiting for the cleaner.
//!
//! ```text
//!   admitted? ── no ──▶ wait for growth ── no ──▶ Full                    (arithmetic: `space`)
//!      │ yes
//!   open segment ── full ──▶ free segment ── none ──▶ another session's ── none ──▶ wait for the cleaner
//! ```
//!
//! With [`CleaningMode::Background`] a session never grows the pool itself. It requests space from the background
//! thread, and does slices of cleaning itself as long as that gains something. Then it waits until there is space, or
//! until a run of the background thread that began after the request has found nothing to gain.
//!
//! A server's session must not wait, because it serves many clients. It calls [`Session::prepare`] before it executes a
//! request, and only that request's client waits.
//!
//! [`Session::prepare`]: farbank_store::Session::prepare
//!
//! # Invariants
//! KV-ROOM-1  A session parks its open segments only while it has nothing staged and nothing unpublished. So sealing or
//!     adopting a parked segment never makes the cleaner drop a record that is about to be published.
//! KV-ROOM-2  A waiting session has no undrained writes and pins no epoch (KV-COMMIT-2, KV-CLEAN-1).
//! KV-ROOM-3  A write for which `prepare` has returned ready is refused only if a run of the cleaner has found nothing
//!     to gain. If other sessions have taken the space meanwhile, the write waits for [`HURRIED_WAIT`] first, and then
//!     for the whole run: on a busy machine the cleaner may not get a CPU within [`HURRIED_WAIT`]. After a run that
//!     sessions have held up ([`CleanOutcome::HeldUp`]) the write waits for another, up to [`HELD_UP_MAX`] times. Retired
//!     segments, and open segments of sessions within a batch, are space to gain: a run waits for both.
//!     If other sessions have taken all that a run gained, the run does not count as one that found nothing.

use std::time::{Duration, Instant};

use farbank_pm::fault;
use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::sync::{Arc, unpoisoned};
use farbank_pm::{Drain, Medium, Poisoned};

use crate::cleaner::help::HelpOutcome;
use crate::cleaner::requests::{CleanOutcome, CleanRequest};
use crate::config::CleaningMode;
use crate::engine::Engine;
use crate::format::record::RecordType;
use crate::pending::planned::PlannedBatch;
use crate::session::KvSession;
use farbank_store::{Error, RoomReply};

/// How long a session waits for a wakeup by the cleaner before it checks again.
const WAIT: Duration = Duration::from_millis(5);
/// How long a session that has called `prepare` waits.
const HURRIED_WAIT: Duration = Duration::from_millis(2);
/// Maximum number of runs of the cleaner that a session waits for while other sessions take all that is gained.
const RUNS_MAX: u32 = 64;
/// Maximum number of runs that a session waits for while sessions hold the cleaner up. With the default
/// [`Config::patience`](crate::Config::patience) each takes about a second at most.
const HELD_UP_MAX: u32 = 8;
/// Maximum bytes of a record beside its key and value.
const RECORD_OVERHEAD: usize = 128;

impl<M: Medium> KvSession<M> {
    /// Whether `len` more bytes of values are admitted.
    #[inline]
    pub(crate) fn fits(&self, len: usize) -> bool {
        len <= self.room.admitted || self.engine.fits(len, self.uncounted())
    }

    /// Bytes of this session that [`SpaceAccounting`](crate::segments::space::SpaceAccounting) does not count yet.
    #[inline]
    fn uncounted(&self) -> i64 {
        self.accounts.live + self.accounts.unpublished
    }

    /// Bytes of the records that are live once this session's writes are published.
    pub(crate) fn used_bytes(&self) -> u64 {
        let counted = self.engine.space().live_bytes();
        let drained = self.tickets.unsynced.iter();
        let drained = drained
            .map(|(_, batch)| batch.replaced_bytes())
            .sum::<u64>();
        counted
            .saturating_add_signed(self.uncounted())
            .saturating_sub(self.batch.planned.replaced_bytes() + drained)
    }

    /// Publishes to other sessions how many bytes this session has not counted yet.
    #[inline]
    pub(crate) fn show_outstanding(&self) {
        self.shared.outstanding.store(self.uncounted(), Relaxed);
    }

    pub(crate) fn count_staged(&mut self, what: RecordType, len: u32) {
        if what == RecordType::Put {
            self.accounts.unpublished += i64::from(len);
            self.show_outstanding();
        }
    }

    pub(crate) fn count_published(&mut self, batch: &PlannedBatch) {
        let records = batch.writes().iter().map(|write| &write.record);
        let puts = records.filter(|record| record.what == RecordType::Put);
        let bytes: i64 = puts.map(|record| i64::from(record.len)).sum();
        self.accounts.unpublished -= bytes;
        self.show_outstanding();
    }

    /// Number of free segments that a write must leave: the cleaner's reserve, and unless it is a delete, that of
    /// deletes.
    pub(crate) fn keep_free(&self, delete: bool) -> u32 {
        let engine = &self.engine;
        match delete || self.room.fail_when_full {
            // `prepare` has kept the reserve of deletes free for this write.
            true => engine.cleaner_reserve(),
            false => engine.cleaner_reserve() + engine.delete_reserve(),
        }
    }

    /// Makes sure that the open segment of `class` has space for a record of `len` bytes. Waits for the cleaner if
    /// necessary. Nothing may be locked.
    ///
    /// # Errors
    /// [`Error::Full`] if there is no space and cleaning gains none.
    pub(crate) fn room_for(&mut self, class: usize, len: usize, delete: bool) -> Result<(), Error> {
        if !delete && !self.fits(len) {
            self.grow_or_refuse(len)?;
        }
        let keep = self.keep_free(delete);
        loop {
            self.unpark();
            let engine = &self.engine;
            if engine
                .make_room(&mut self.log, (class, len), keep, None)
                .is_ok()
            {
                return Ok(());
            }
            match engine.sessions.take_parked(&engine.segments, class, len) {
                Some(open) => self.log.adopt(class, open),
                None => self.await_free(keep)?, // This has parked the open segments.
            }
        }
    }

    /// Grows the pool, or has tombstones removed, until `len` bytes are admitted.
    ///
    /// # Errors
    /// [`Error::Full`] if neither helps.
    pub(crate) fn grow_or_refuse(&mut self, len: usize) -> Result<(), Error> {
        let engine = Arc::clone(&self.engine);
        while !self.fits(len) {
            if engine.config.cleaning == CleaningMode::Inline && engine.grow_pool() {
                continue;
            }
            // Values that this batch replaces count as live until the batch is published.
            let ticket = self.commit_batch()?;
            if !self.room.fail_when_full {
                self.settle(ticket)?;
            }
            self.unpin();
            if self.fits(len) || self.await_growth(len)? {
                return Ok(());
            }
            let may_gain = engine.would_fit(len) || engine.has_segments_to_free();
            let gone = may_gain && self.await_tombstones(len)?;
            if !gone && !self.begin_unlimited_wait() {
                return Err(engine.full());
            }
        }
        Ok(())
    }

    /// Waits while the background thread grows the pool. Returns whether `len` bytes fit then.
    fn await_growth(&self, len: usize) -> Result<bool, Poisoned> {
        let engine = &self.engine;
        if engine.config.cleaning == CleaningMode::Inline {
            return Ok(false);
        }
        for _ in 0..RUNS_MAX {
            if !engine.may_grow() {
                break;
            }
            let request = engine.cleaning.requests.request(0, len);
            // A session that has called `prepare` waits, too: a pool that may grow is not full.
            while !self.fits(len) && !engine.cleaning.requests.is_over(&request) {
                engine.check_poison()?;
                engine.cleaning.requests.wait(WAIT);
            }
            if self.fits(len) || engine.cleaning.requests.outcome(&request) != CleanOutcome::Gained
            {
                break;
            }
        }
        Ok(self.fits(len))
    }

    /// Has tombstones removed until `len` bytes fit. Returns whether they fit.
    fn await_tombstones(&mut self, len: usize) -> Result<bool, Error> {
        match self.engine.config.cleaning {
            CleaningMode::Inline => {
                self.engine.free_checkpoints()?;
                Ok(self.engine.remove_tombstones_until_fits(len)?)
            }
            CleaningMode::Background => {
                Ok(self.await_runs(0, len, |engine| engine.fits_exactly(len))?)
            }
        }
    }

    /// Lets a write for which `prepare` has returned ready wait as long as the cleaner takes (KV-ROOM-3). Returns
    /// whether its wait was limited before.
    fn begin_unlimited_wait(&mut self) -> bool {
        self.room.is_promised && std::mem::take(&mut self.room.fail_when_full)
    }

    /// Waits while `lacks` returns true. A hurried session waits for [`HURRIED_WAIT`] at most.
    fn wait_while(&self, lacks: impl Fn(&Engine<M>) -> bool) -> Result<(), Poisoned> {
        let until = self
            .room
            .fail_when_full
            .then(|| Instant::now() + HURRIED_WAIT);
        while lacks(&self.engine) {
            self.engine.check_poison()?;
            let left = until.map_or(WAIT, |until| {
                until.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                break;
            }
            self.engine.cleaning.requests.wait(left);
        }
        Ok(())
    }

    /// Waits until more than `keep` segments are free.
    ///
    /// # Errors
    /// [`Error::Full`] if cleaning and growing free none.
    pub(crate) fn await_free(&mut self, keep: u32) -> Result<(), Error> {
        let engine = Arc::clone(&self.engine);
        let ticket = self.commit_batch()?;
        self.unpin();
        if engine.config.cleaning == CleaningMode::Inline
            && engine.clean_until(keep + 1)? == CleanOutcome::Gained
        {
            return Ok(());
        }
        if self.room.fail_when_full {
            // The write is longer than `prepare` was called for, or another session has taken the segment.
            if self.await_runs(keep + 1, 0, |engine| engine.segments.free_count() > keep)? {
                return Ok(());
            }
            if !self.begin_unlimited_wait() {
                return Err(engine.full());
            }
        }
        // Segments with unpublished records cannot be cleaned: publish ours (KV-ROOM-2).
        self.settle(ticket)?;
        self.unpin();
        let freed = match engine.config.cleaning {
            CleaningMode::Inline => engine.clean_until(keep + 1)? == CleanOutcome::Gained,
            CleaningMode::Background => self.await_cleaner(keep + 1)?,
        };
        // In background mode, the background thread has tried these, too.
        let is_inline = engine.config.cleaning == CleaningMode::Inline;
        match freed || (is_inline && (engine.grow_pool() || engine.free_checkpoints()?)) {
            true => Ok(()),
            false => Err(engine.full()),
        }
    }

    /// Waits until `want` segments are free. Returns false if a run of the cleaner could not free them.
    fn await_cleaner(&self, want: u32) -> Result<bool, Poisoned> {
        let engine = &self.engine;
        engine.cleaning.requests.request(want, 0);
        while engine.segments.free_count() < want
            && engine.help_clean(u64::MAX)? == HelpOutcome::Done
        {}
        self.await_runs(want, 0, |engine| engine.segments.free_count() >= want)
    }

    /// Requests runs of the cleaner for `segments` free segments and `len` bytes of values, and waits until `suffices`.
    /// Returns false if a run has found nothing to gain. A hurried session waits for one run, for [`HURRIED_WAIT`] at
    /// most.
    fn await_runs(
        &self,
        segments: u32,
        len: usize,
        suffices: impl Fn(&Engine<M>) -> bool,
    ) -> Result<bool, Poisoned> {
        let engine = &*self.engine;
        let (mut taken, mut held_up) = (0, 0);
        loop {
            let request = engine.cleaning.requests.request(segments, len);
            self.wait_while(|engine| {
                !suffices(engine) && !engine.cleaning.requests.is_over(&request)
            })?;
            if suffices(engine) {
                return Ok(true);
            }
            if self.room.fail_when_full {
                return Ok(false);
            }
            match engine.cleaning.requests.outcome(&request) {
                CleanOutcome::Gained if taken < RUNS_MAX => taken += 1,
                CleanOutcome::HeldUp if held_up < HELD_UP_MAX => held_up += 1,
                _ => return Ok(false),
            }
        }
    }

    /// Parks the open segments: other sessions and the cleaner can take them (KV-ROOM-1).
    pub(crate) fn park(&mut self) {
        if self.has_pending() && !fault!("kv.parked_unpublished") {
            return;
        }
        self.log
            .seal_durable(&self.engine.segments, &mut self.ctx, None);
        if !self.room.is_parked {
            let mut parked = unpoisoned(self.shared.parked.lock());
            self.log.exchange(&mut parked);
            self.room.is_parked = true;
        }
    }

    /// Takes the parked segments back, except those that were taken meanwhile.
    pub(crate) fn unpark(&mut self) {
        if self.room.is_parked {
            let mut parked = unpoisoned(self.shared.parked.lock());
            self.log.exchange(&mut parked);
            self.room.is_parked = false;
        }
    }

    /// Returns whether a write of about `bytes` can proceed without waiting. Requests space from the cleaner if not.
    /// See [`Session::prepare`](farbank_store::Session::prepare).
    pub(crate) fn prepare(&mut self, bytes: usize, delete: bool) -> Result<RoomReply, Error> {
        let engine = Arc::clone(&self.engine);
        if engine.config.cleaning == CleaningMode::Inline {
            return Ok(RoomReply::Ready); // The operation cleans by itself.
        }
        if engine.databases.will_release(&engine.cleaning.requests) {
            return Ok(RoomReply::Wait);
        }
        (self.room.fail_when_full, self.room.is_promised) = (true, false);
        self.room.admitted = 0;
        let extents = engine.space().extents_for(bytes + RECORD_OVERHEAD);
        let segments = u32::try_from(extents).unwrap_or(u32::MAX / 2);
        let len = match extents {
            0 => bytes + RECORD_OVERHEAD,
            _ => engine.space().room_of_large(bytes) + RECORD_OVERHEAD,
        };
        let keep = engine.cleaner_reserve() + engine.delete_reserve();
        let fits = self.fits(len);
        if fits {
            // Stays admitted even if the cleaner counts a moved record twice for a moment.
            self.room.admitted = len;
        }
        if fits && engine.segments.free_count() > engine.free_segments_low() + segments {
            self.room.is_promised = true;
            return Ok(RoomReply::Ready);
        }
        if engine.check_poison().is_err() {
            return Ok(RoomReply::Ready); // The operation returns the error.
        }
        self.park(); // A refused write may have left its open segments unparked.
        if !delete && !fits {
            return self.prepare_admission(len);
        }
        let parked = unpoisoned(self.shared.parked.lock());
        let has_open = extents == 0 && parked.take_all(&engine.segments, len);
        drop(parked);
        let keep = if delete {
            engine.cleaner_reserve()
        } else {
            keep
        };
        if has_open || engine.segments.free_count() > keep + segments {
            self.room.request = None;
            self.room.is_promised = true;
            return Ok(RoomReply::Ready);
        }
        self.request_room(keep + segments + 1, 0)
    }

    /// Continues `prepare` for a write that is not admitted now. Pending writes of this session, or tombstones, may
    /// take the space.
    fn prepare_admission(&mut self, len: usize) -> Result<RoomReply, Error> {
        let engine = Arc::clone(&self.engine);
        if self.has_pending() {
            self.commit_batch()?;
            if self.has_pending() && engine.caps().drain != Drain::Fence {
                return Ok(RoomReply::Wait); // The worker is woken when the ticket is durable.
            }
        }
        // The length of the record is not known yet: it may be shorter than `len`.
        let may_gain = engine.may_grow()
            || engine.lacks_room_for_tombstones(len)
            || engine.has_segments_to_free();
        self.room.is_promised = self.fits(len);
        if self.room.is_promised || !may_gain {
            return Ok(RoomReply::Ready); // The write is admitted by now, or will be refused.
        }
        self.request_room(0, len)
    }

    /// Requests a run of the cleaner, unless one is requested already, and returns [`RoomReply::Wait`]. Returns
    /// [`RoomReply::Ready`] if the requested run has ended and found nothing to gain.
    fn request_room(&mut self, segments: u32, len: usize) -> Result<RoomReply, Error> {
        let free = &self.engine.cleaning.requests;
        let mut held_up = 0;
        if let Some(over) = self
            .room
            .request
            .take_if(|asked| free.is_over(&asked.request))
        {
            match free.outcome(&over.request) {
                CleanOutcome::Gained => {}
                CleanOutcome::HeldUp if over.held_up < HELD_UP_MAX => held_up = over.held_up + 1,
                CleanOutcome::HeldUp | CleanOutcome::Nothing => return Ok(RoomReply::Ready),
            }
        }
        if self.room.request.is_none() {
            let request = free.request(segments, len);
            self.room.request = Some(RoomRequest { request, held_up });
        }
        free.want_wake();
        Ok(RoomReply::Wait)
    }
}

/// Pending request for space of a session that does not wait.
#[derive(Debug)]
pub(crate) struct RoomRequest {
    request: CleanRequest,
    /// Number of earlier runs for this request that sessions have held up.
    held_up: u32,
}

const _: () =
    assert!(RECORD_OVERHEAD >= crate::format::record::HEADER_MAX + crate::format::record::ALIGN);
