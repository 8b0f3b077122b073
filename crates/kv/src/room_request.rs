//! Room for a session's writes: admission, open segments, and waiting for the cleaner.
//!
//! ```text
//!   admitted? ── no ──▶ wait for growth ── no ──▶ Full                    (arithmetic: `space`)
//!      │ yes
//!   open segment ── full ──▶ free segment ── none ──▶ another session's ── none ──▶ wait for the cleaner
//! ```
//!
//! With [`Cleaning::Background`] a session never has the pool grow. It asks the background thread for room, helps it with slices while
//! it has not begun, and waits until there is room or a run of that thread that began later has found nothing to gain. A session that
//! serves others does not wait either: it asks with [`Worker::prepare`] before it takes a request on, and has the
//! client wait.
//!
//! # Invariants
//! KV-ROOM-1  Open segments are parked only while the session has nothing staged and nothing unpublished:
//!     sealing or adopting one never makes the cleaner drop a record that is about to be published.
//! KV-ROOM-2  A session waits with nothing undrained in hand and pins no epoch (N2, C1).
//! KV-ROOM-3  A write that was promised room is refused only if a run of the cleaner has found nothing to gain. If other
//!     sessions have taken the room, it waits for [`HURRIED_WAIT`] first and then for the cleaner's run, however long that
//!     takes: on a busy machine the cleaner may not have a CPU within [`HURRIED_WAIT`]. A run that sessions have held up is
//!     followed by another, up to [`HELD_UP_MAX`] times ([`Outcome::HeldUp`]). Nor does a run whose gain others have taken
//!     say that there is none.

use std::time::{Duration, Instant};

use farbank_pm::fault;
use farbank_pm::sync::Arc;
use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::{Drain, Medium, Poisoned};

use crate::cleaning_pace::HelpOutcome;
use crate::config::CleaningMode;
use crate::engine::Engine;
use crate::free_segments::{CleanOutcome, CleanRequest};
use crate::record::RecordType;
use crate::session::{KvSession, StagedWrite};
use crate::session_log::NoRoom;
use crate::store::{Error, RoomReply};

/// How long a session waits for consecutive_inserts of the cleaner before it looks by itself.
const WAIT: Duration = Duration::from_millis(5);
/// How long a session waits that has asked with [`Worker::prepare`] before.
const HURRIED_WAIT: Duration = Duration::from_millis(2);
/// Runs of the cleaner a session waits for whose gain other sessions take.
const RUNS_MAX: u32 = 64;
/// Runs of the cleaner a session waits for that sessions hold up, each for a second at most with the default
/// [`Config::patience`](crate::Config::patience).
const HELD_UP_MAX: u32 = 8;
/// Bytes a record takes beside its key and value, at most.
const RECORD_OVERHEAD: usize = 128;

impl<M: Medium> KvSession<M> {
    /// Whether `len` bytes of values more are admitted.
    #[inline]
    pub(crate) fn fits(&self, len: usize) -> bool {
        len <= self.admitted || self.engine.fits(len, self.uncounted())
    }

    /// Bytes of this session that [`Engine::live`](crate::engine::Engine::live) does not count yet.
    #[inline]
    fn uncounted(&self) -> i64 {
        self.untold.live + self.unpublished_bytes
    }

    /// Shows the others what this session has not counted yet.
    #[inline]
    pub(crate) fn show_outstanding(&self) {
        self.shared.outstanding.store(self.uncounted(), Relaxed);
    }

    pub(crate) fn count_staged(&mut self, what: RecordType, len: u32) {
        if what == RecordType::Put {
            self.unpublished_bytes += i64::from(len);
            self.show_outstanding();
        }
    }

    pub(crate) fn count_published(&mut self, writes: &[StagedWrite]) {
        let puts = writes.iter().filter(|write| write.what == RecordType::Put);
        let bytes: i64 = puts.map(|write| i64::from(write.len)).sum();
        self.unpublished_bytes -= bytes;
        self.show_outstanding();
    }

    /// Free segments that a write leaves for the cleaner, and a write that is no delete for deletes.
    pub(crate) fn keep_free(&self, delete: bool) -> u32 {
        let engine = &self.engine;
        match delete || self.hurried {
            // What is in a hurry was promised room before (`prepare`).
            true => engine.cleaner_reserve(),
            false => engine.cleaner_reserve() + engine.delete_reserve(),
        }
    }

    /// Room for a record in `class`, made by others if need be. Nothing may be locked.
    pub(crate) fn room_for(&mut self, class: usize, len: usize, delete: bool) -> Result<(), Error> {
        if !delete && !self.fits(len) {
            self.grow_or_refuse(len)?;
        }
        let keep = self.keep_free(delete);
        loop {
            self.unpark();
            let engine = &self.engine;
            let own = self.log.make_room(engine, class, len, keep, None);
            match own.or_else(|NoRoom| self.log.adopt(engine, class, len)) {
                Ok(()) => return Ok(()),
                Err(NoRoom) => self.await_free(keep)?, // What is refused has parked them.
            }
        }
    }

    /// Has the pool grow until `len` bytes fit, or tombstones that are in the way go.
    pub(crate) fn grow_or_refuse(&mut self, len: usize) -> Result<(), Error> {
        let engine = Arc::clone(&self.engine);
        while !self.fits(len) {
            if engine.config.cleaning == CleaningMode::Inline && engine.grow_pool() {
                continue;
            }
            // What this batch replaces still counts as live until it is published.
            let ticket = self.commit_batch()?;
            if !self.hurried {
                self.settle(ticket)?;
            }
            self.unpin();
            if self.fits(len) || self.await_growth(len)? {
                return Ok(());
            }
            let may_gain = engine.would_fit(len) || engine.has_dead_extents();
            let gone = may_gain && self.await_tombstones(len)?;
            if !gone && !self.loses_hurry() {
                return Err(engine.full());
            }
        }
        Ok(())
    }

    /// Whether the background thread has the pool grow until `len` bytes fit.
    fn await_growth(&self, len: usize) -> Result<bool, Poisoned> {
        let engine = &self.engine;
        if engine.config.cleaning == CleaningMode::Inline {
            return Ok(false);
        }
        for _ in 0..RUNS_MAX {
            if !engine.may_grow() {
                break;
            }
            let request = engine.free.request(0, len);
            // Also in a hurry: a pool that may grow is not full.
            while !self.fits(len) && !engine.free.is_over(&request) {
                engine.check_poison()?;
                engine.free.wait(WAIT);
            }
            if self.fits(len) || engine.free.outcome(&request) != CleanOutcome::Gained {
                break;
            }
        }
        Ok(self.fits(len))
    }

    /// Whether tombstones could be removed until `len` bytes fit.
    fn await_tombstones(&mut self, len: usize) -> Result<bool, Error> {
        match self.engine.config.cleaning {
            CleaningMode::Inline => Ok(self.engine.make_tombstones_go(len)?),
            CleaningMode::Background => {
                Ok(self.await_runs(0, len, |engine| engine.fits_exactly(len))?)
            }
        }
    }

    /// Has a write that was promised room wait as long as the cleaner takes (KV-ROOM-3); whether it was in a hurry before.
    fn loses_hurry(&mut self) -> bool {
        self.promised && std::mem::take(&mut self.hurried)
    }

    /// Waits while `lacks` says so; what is in a hurry for a moment only.
    fn wait_while(&self, lacks: impl Fn(&Engine<M>) -> bool) -> Result<(), Poisoned> {
        let until = self.hurried.then(|| Instant::now() + HURRIED_WAIT);
        while lacks(&self.engine) {
            self.engine.check_poison()?;
            let left = until.map_or(WAIT, |until| {
                until.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                break;
            }
            self.engine.free.wait(left);
        }
        Ok(())
    }

    /// Gets at least one segment freed beyond `keep`, or says that there is nothing to free.
    pub(crate) fn await_free(&mut self, keep: u32) -> Result<(), Error> {
        let engine = Arc::clone(&self.engine);
        let ticket = self.commit_batch()?;
        self.unpin();
        if engine.config.cleaning == CleaningMode::Inline
            && engine.clean_until(keep + 1)? == CleanOutcome::Gained
        {
            return Ok(());
        }
        if self.hurried {
            // It needs more than its request told, or another session was faster.
            if self.await_runs(keep + 1, 0, |engine| engine.free_count() > keep)? {
                return Ok(());
            }
            if !self.loses_hurry() {
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
        // The background thread has had the pool grow, too.
        match freed || (engine.config.cleaning == CleaningMode::Inline && engine.grow_pool()) {
            true => Ok(()),
            false => Err(engine.full()),
        }
    }

    /// Waits until `want` segments are free; false if a run of the cleaner could not make them.
    fn await_cleaner(&self, want: u32) -> Result<bool, Poisoned> {
        let engine = &self.engine;
        engine.free.request(want, 0);
        while engine.free_count() < want && engine.help_clean(u64::MAX)? == HelpOutcome::Done {}
        self.await_runs(want, 0, |engine| engine.free_count() >= want)
    }

    /// Waits for runs of the cleaner that are to make `segments` free and `len` bytes fit, until `suffices`; false if one of
    /// them has found nothing to gain. What is in a hurry waits for one run, and for a moment only.
    fn await_runs(
        &self,
        segments: u32,
        len: usize,
        suffices: impl Fn(&Engine<M>) -> bool,
    ) -> Result<bool, Poisoned> {
        let engine = &*self.engine;
        let (mut taken, mut held_up) = (0, 0);
        loop {
            let request = engine.free.request(segments, len);
            self.wait_while(|engine| !suffices(engine) && !engine.free.is_over(&request))?;
            if suffices(engine) {
                return Ok(true);
            }
            if self.hurried {
                return Ok(false);
            }
            match engine.free.outcome(&request) {
                CleanOutcome::Gained if taken < RUNS_MAX => taken += 1,
                CleanOutcome::HeldUp if held_up < HELD_UP_MAX => held_up += 1,
                _ => return Ok(false),
            }
        }
    }

    /// Puts the open segments where others can take them (KV-ROOM-1).
    pub(crate) fn park(&mut self) {
        if self.has_pending() && !fault!("kv.parked_unpublished") {
            return;
        }
        self.log.seal_durable(&self.engine, &mut self.ctx, None);
        if !self.parked {
            let mut parked = self.shared.parked.lock().expect("no holder panics");
            self.log.exchange(&mut parked);
            self.parked = true;
        }
    }

    /// Takes the open segments back, those that nobody has taken.
    pub(crate) fn unpark(&mut self) {
        if self.parked {
            let mut parked = self.shared.parked.lock().expect("no holder panics");
            self.log.exchange(&mut parked);
            self.parked = false;
        }
    }

    /// Says whether a write of about `bytes` can be made without waiting, and asks the cleaner for room if not.
    pub(crate) fn prepare(&mut self, bytes: usize, delete: bool) -> Result<RoomReply, Error> {
        let engine = Arc::clone(&self.engine);
        if engine.config.cleaning == CleaningMode::Inline {
            return Ok(RoomReply::Ready); // The operation cleans by itself.
        }
        (self.hurried, self.promised) = (true, false);
        self.admitted = 0;
        let extents = engine.extents_for(bytes + RECORD_OVERHEAD);
        let segments = u32::try_from(extents).unwrap_or(u32::MAX / 2);
        let len = match extents {
            0 => bytes + RECORD_OVERHEAD,
            _ => engine.room_of_large(bytes) + RECORD_OVERHEAD,
        };
        let keep = engine.cleaner_reserve() + engine.delete_reserve();
        let fits = self.fits(len);
        if fits {
            // What the cleaner counts twice for a moment does not revoke it.
            self.admitted = len;
        }
        if fits && engine.free_count() > engine.stock_low() + segments {
            self.promised = true;
            return Ok(RoomReply::Ready);
        }
        if engine.check_poison().is_err() {
            return Ok(RoomReply::Ready); // The operation says what is wrong.
        }
        self.park(); // A write that was refused after it had room leaves its segments here.
        if !delete && !fits {
            return self.prepare_admission(len);
        }
        let parked = self.shared.parked.lock().expect("no holder panics");
        let has_open = extents == 0 && parked.take_all(&engine, len);
        drop(parked);
        let keep = if delete {
            engine.cleaner_reserve()
        } else {
            keep
        };
        if has_open || engine.free_count() > keep + segments {
            self.room_request = None;
            self.promised = true;
            return Ok(RoomReply::Ready);
        }
        self.request_room(keep + segments + 1, 0)
    }

    /// What is not admitted now: what this session has on its way may be in the way, or tombstones.
    fn prepare_admission(&mut self, len: usize) -> Result<RoomReply, Error> {
        let engine = Arc::clone(&self.engine);
        if self.has_pending() {
            self.commit_batch()?;
            if self.has_pending() && engine.caps().drain != Drain::Fence {
                return Ok(RoomReply::Wait); // Its ticket turns, and wakes the worker.
            }
        }
        // How long the record will be is not known yet: it may be shorter than `len`.
        let may_gain =
            engine.may_grow() || engine.lacks_room_for_tombstones(len) || engine.has_dead_extents();
        self.promised = self.fits(len);
        if self.promised || !may_gain {
            return Ok(RoomReply::Ready); // Admitted by now, or to be refused.
        }
        self.request_room(0, len)
    }

    /// Waits for runs of the cleaner that begin after this; ready when one has found nothing to gain.
    fn request_room(&mut self, segments: u32, len: usize) -> Result<RoomReply, Error> {
        let free = &self.engine.free;
        let mut held_up = 0;
        if let Some(over) = self
            .room_request
            .take_if(|asked| free.is_over(&asked.request))
        {
            match free.outcome(&over.request) {
                CleanOutcome::Gained => {}
                CleanOutcome::HeldUp if over.held_up < HELD_UP_MAX => held_up = over.held_up + 1,
                CleanOutcome::HeldUp | CleanOutcome::Nothing => return Ok(RoomReply::Ready),
            }
        }
        if self.room_request.is_none() {
            let request = free.request(segments, len);
            self.room_request = Some(RoomRequest { request, held_up });
        }
        free.want_wake();
        Ok(RoomReply::Wait)
    }
}

/// What a session that does not wait has asked for.
#[derive(Debug)]
pub(crate) struct RoomRequest {
    request: CleanRequest,
    /// Runs before this one that sessions have held up.
    held_up: u32,
}

const _: () = assert!(RECORD_OVERHEAD >= crate::record::HEADER_MAX + crate::record::ALIGN);
