//! The simulated medium: x86 persistency on a small image in memory. It is deterministic and can lose
//! power at any point.
//!
//! ```text
//!   store, copy_in ──▶ visible image            loads read it
//!          │
//!          ▼
//!   queue of each line:  s1 s2 s3 │ s4 s5        stores not yet durable, in coherence order
//!                        └─ flush ┘              a context's flush covers the stores before it
//!          │ drain of that context
//!          ▼
//!   durable image                               every crash keeps it
//! ```
//!
//! The stores in a queue form *chains*. At a crash each chain independently keeps a prefix: a cache can
//! write a line back at any time, but a line's stores reach the medium in order. If chains share a
//! word, their kept stores apply in coherence order. A [`CrashState`] is one such moment. It
//! enumerates the images that a power cut could leave ([`CrashState::images`]). It can also create
//! memory that decides lazily, on each read, what survived ([`Sim::lazy`]). For a kill, it creates
//! memory with the visible bytes and their queues ([`CrashState::killed`]).
//!
//! # Persistency
//! * [`Persistency::Adr`]: 64-byte lines. The cached stores of a line are one chain. The whole lines of
//!   a `copy_in`, and pairs, bypass the cache. Their words have no order, so each word is a chain of
//!   its own. The partial lines of a `copy_in` are cached stores with a flush. (Real media bypass the
//!   cache only from a certain size; the weaker order covers both cases.)
//! * [`Persistency::Word`]: every word is a chain of its own, however it was stored. Eight bytes are
//!   atomic and there is no other order. This is the model of the contest's judge.
//! * [`Persistency::Eadr`]: a store is durable at once, so there is a crash point at every store.
//! * [`Persistency::Page`]: a file. The unit is the sector of 512 bytes, which is never torn: it keeps
//!   its content after any call that wrote to it since the last sync. A drain only requests a sync. The
//!   drained bytes and the ticket become durable when [`Sim::sync`] (or a `wait`, which calls it) has run.
//!   After a failed sync the kernel marks pages clean that did not reach the device. A process that
//!   starts then ([`CrashState::killed_after_failed_sync`]) reads these pages, but no sync writes them.
//! * [`Persistency::Relaxed`]: the same file, but drains request no sync and their tickets are durable at
//!   once, as under `everysec` and `never`. [`Sim::sync`] stands for the sync of every second, and
//!   [`crate::Medium::wait_until_durable`] syncs.
//!
//! # Instructions
//! A context stands for a thread. A flush is `clwb` or `clflushopt`, which have the same effect on
//! durability. A drain is `sfence`. A compare-and-swap drains nothing, because [`crate::Medium`] does
//! not promise it. With [`Sim::drain_on_cas`] it completes its context's flushes, whether it succeeds or
//! not, as the lock prefix does on x86.
//!
//! # Faults
//! While a fault by place is on ([`crate::fault::with`]), the flush or drain of its source line, or the
//! implied flush of a `copy_in`, does not happen, or not for the first or last line (on a file, sector)
//! of the request. Counters count only work that is done. Bytes not flushed wait for another flush. If
//! a drain is dropped, the flushes wait for the context's next drain, and the caller gets a wrong ticket:
//! on memory a durable one, on a file the newest issued one, which does not cover the new bytes.
//!
//! # Invariants
//! PM-SIM-1  A word of the durable image changes only by a drain (ADR, words; also a locked operation, if
//!     enabled), a store (eADR) or a sync (Page).
//! PM-SIM-2  A flush covers the stores of its lines that precede it, in all their chains, and no later
//!     one.
//! PM-SIM-3  A drain covers the flushes of its own context, and no other's. A compare-and-swap covers none,
//!     unless enabled.
//! PM-SIM-4  Everything is a function of the calls made and of the active fault. There is no clock and no
//!     randomness. Only the sampling of a [`CrashState`] with too many images is random, from the
//!     caller's seed.
//!
//! # Not modelled
//! * Store buffers: a store in a store buffer is a store that has not happened yet.
//! * The visibility of write-combining buffers: the words of a copy are visible to every thread at once,
//!   and another context's flush covers them.
//! * Devices that report a write as durable before it is.

mod chains;
mod crash;
mod image;
mod image_cuts;
mod lazy;
mod lazy_state;
mod medium;
mod source_lines;
mod state;
mod survivors;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::panic::Location;

use crate::fault::{self, FaultPart};
use crate::medium::{Caps, Drain, Kind, Off, Poisoned, Ticket, WORD};
use crate::offset::end_offset;
use crate::persist_ctx::PersistCtx;
use crate::sync::{Arc, Mutex, MutexGuard, lock};

pub use crash::{CrashMoment, CrashState};
pub use image::PoolImage;
pub use image_cuts::{CrashImages, ImageCut};
pub use lazy::{LazyCrash, next_script};
pub use lazy_state::LazyDecision;
pub use source_lines::{SourceLine, SourceLines};
pub use survivors::UnitSurvivors;

pub use crate::persistency::{ParsePersistencyError, Persistency, SECTOR};
pub use crate::source_action::{SourceAction, brief};

use chains::Queues;
use source_lines::{NOWHERE, SourceLineId};
use state::{PersistRequest, SimState};

/// A function that is called at every crash point: see [`Sim::observe`].
pub type CrashObserver = Arc<dyn Fn(CrashState) + Send + Sync>;

/// Simulated far memory. A clone is another handle to the same memory.
#[derive(Clone)]
pub struct Sim {
    shared: Arc<SimShared>,
}

struct SimShared {
    caps: Caps,
    persistency: Persistency,
    state: Mutex<SimState>,
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        write!(f, "Sim({}, {:?})", self.shared.persistency, state.visible)
    }
}

impl Sim {
    /// Creates far memory of `len` zero bytes, all durable.
    #[must_use]
    pub fn new(len: u64, persistency: Persistency) -> Sim {
        Sim::from_image(PoolImage::zeroed(len), persistency)
    }

    /// Creates far memory with the contents of `image`, all durable, as after a power cut.
    #[must_use]
    pub fn from_image(image: PoolImage, persistency: Persistency) -> Sim {
        let state = SimState::new(image.clone(), image, Queues::new());
        Sim::with_state(state, persistency)
    }

    fn with_state(state: SimState, persistency: Persistency) -> Sim {
        Sim {
            shared: Arc::new(SimShared {
                caps: caps_of(persistency),
                persistency,
                state: Mutex::new(state),
            }),
        }
    }

    /// Returns the persistency mode.
    #[must_use]
    pub fn persistency(&self) -> Persistency {
        self.shared.persistency
    }

    /// Sets whether a compare-and-swap also completes the flushes of its context, as the lock prefix does
    /// on x86. Initially it does not, because structures must not rely on it. Memory after a kill
    /// ([`CrashState::killed`]) inherits the setting. It has no effect on a file.
    pub fn drain_on_cas(&self, drains: bool) {
        self.state().cas_drains = drains;
    }

    /// Sets the observer, which is called at every crash point. `None` removes it.
    ///
    /// Crash points are before each drain and before each compare-and-swap that completes flushes; under
    /// eADR also before each word stored or copied in; on a file also before each sync. Between crash
    /// points the set of possible images only grows, so no image is missed. A caller that needs other
    /// moments, such as the start or the end of an operation, adds [`Sim::notify_observer`] or [`Sim::crash_state`].
    /// The observer runs under the lock of this memory and must not access it. So other state that it
    /// records belongs to the same moment.
    pub fn observe(&self, observer: Option<CrashObserver>) {
        self.state().observer = observer;
    }

    /// From now on, counts in `places` the stores, copies, flushes and drains of each source line.
    pub fn count_places(&self, places: Arc<SourceLines>) {
        self.state().places = Some(places);
    }

    /// Returns the bytes that loads see. Lazy memory returns one of the images that agree with its
    /// decisions so far, and decides nothing.
    #[must_use]
    pub fn visible(&self) -> PoolImage {
        self.state().representative(Off(0), usize::MAX)
    }

    /// Returns the crash state of this moment.
    ///
    /// # Panics
    /// If this is lazy memory, which does not model a second crash.
    #[must_use]
    pub fn crash_state(&self) -> CrashState {
        self.capture(&self.state(), CrashMoment::Asked, NOWHERE)
    }

    /// Calls the observer now, as at a crash point.
    pub fn notify_observer(&self) {
        drop(self.crash_point(self.state(), CrashMoment::Asked, NOWHERE));
    }

    /// Makes everything drained before durable, and its tickets too. Has an effect only on a file.
    pub fn sync(&self) -> Result<(), Poisoned> {
        let state = self.state();
        if state.drains.durable_ticket == state.drains.issued_ticket
            && state.drains.poisoned.is_none()
        {
            return Ok(());
        }
        let place = state.drains.waiting.last().map_or(NOWHERE, |r| r.place);
        let mut state = self.crash_point(state, CrashMoment::Sync, place);
        if let Some(poisoned) = &state.drains.poisoned {
            return Err(poisoned.clone());
        }
        for request in std::mem::take(&mut state.drains.waiting) {
            state.commit(request);
        }
        state.drains.durable_ticket = state.drains.issued_ticket;
        let wakers = state.drains.wakers.clone();
        drop(state);
        wakers.iter().for_each(|wake| wake());
        Ok(())
    }

    /// Drops bytes that are visible but neither durable nor queued for write-back. A process that opens a
    /// file makes the kernel do so: see [`CrashState::killed_after_failed_sync`].
    pub fn drop_lost_pages(&self) {
        if crate::fault!("pm.cached_pages_trusted") {
            return;
        }
        let mut state = self.state();
        if !std::mem::take(&mut state.lost_units).is_empty() {
            state.visible = state.durable.clone();
        }
    }

    /// Makes the `n`-th drain from now (1 is the next) fail with an I/O error, which poisons the
    /// medium.
    pub fn fail_drain(&self, n: u64) {
        self.state().drains.fail_in = Some(n);
    }

    /// Returns whether a drain has failed.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.state().drains.poisoned.is_some()
    }

    fn state(&self) -> MutexGuard<'_, SimState> {
        // A panic about a bad offset happens before any change, so the state is sound.
        lock(&self.shared.state)
    }

    /// A crash point: calls the observer with the current state, under the lock.
    fn crash_point<'a>(
        &'a self,
        state: MutexGuard<'a, SimState>,
        moment: CrashMoment,
        place: SourceLineId,
    ) -> MutexGuard<'a, SimState> {
        if let Some(observer) = state.observer.clone() {
            observer(self.capture(&state, moment, place));
        }
        state
    }

    fn capture(&self, state: &SimState, moment: CrashMoment, place: SourceLineId) -> CrashState {
        assert!(
            state.lazy.is_none(),
            "lazy memory cannot crash: use the crash state that it was made from"
        );
        if let Some(places) = &state.places {
            let stores = state.queues.values().flatten().map(|s| s.place);
            let flushes = state
                .contexts
                .iter()
                .flat_map(|l| &l.1)
                .chain(&state.drains.waiting);
            places.crash(stores.chain(flushes.map(|r| r.place)).chain([place]));
        }
        let durable = match self.shared.persistency {
            Persistency::Eadr => &state.visible,
            Persistency::Adr | Persistency::Word | Persistency::Page | Persistency::Relaxed => {
                &state.durable
            }
        };
        CrashState {
            persistency: self.shared.persistency,
            durable: durable.clone(),
            visible: state.visible.clone(),
            queues: state.queues.clone(),
            cas_drains: state.cas_drains,
            moment,
            place,
            places: state.places.clone(),
        }
    }

    /// Stores the words of `bytes` at `at`, which must be aligned. If `bytes` end within a word, the other
    /// bytes of the word keep their values. Words in the range `around` bypass the cache.
    fn write(
        &self,
        at: Off,
        bytes: &[u8],
        around: &Range<u64>,
        (place, moment): (SourceLineId, CrashMoment),
    ) {
        assert!(
            at.0.is_multiple_of(WORD as u64),
            "the bytes at {at:?} are not aligned"
        );
        let persistency = self.shared.persistency;
        let mut state = self.state();
        state.visible.pieces(at, bytes.len(), |_| false);
        state.calls += 1;
        for (i, chunk) in bytes.chunks(WORD).enumerate() {
            if persistency == Persistency::Eadr {
                state = self.crash_point(state, moment, place);
            }
            let word = at.plus((i * WORD) as u64);
            if chunk.len() < WORD {
                state.decide(word, chunk.len());
            }
            let mut value = state.visible.word(word).to_le_bytes();
            value[..chunk.len()].copy_from_slice(chunk);
            let value = u64::from_le_bytes(value);
            state.store(persistency, word, value, around.contains(&word.0), place);
        }
    }

    /// Copies `bytes` in at `at`. Words in the range `around` bypass the cache.
    fn copy(
        &self,
        ctx: &mut PersistCtx,
        at: Off,
        bytes: &[u8],
        (around, from): (Range<u64>, &'static Location<'static>),
    ) {
        let place = self.record_source_line(SourceAction::CopyIn, from, (at, bytes.len()));
        self.write(at, bytes, &around, (place, CrashMoment::CopyIn));
        ctx.counters.bytes += bytes.len() as u64;
        self.flush_range(ctx, (at, bytes.len()), place, (SourceAction::CopyIn, from));
    }

    /// Flushes `at..at + len`, except for the part that the active fault drops.
    fn flush_range(
        &self,
        ctx: &mut PersistCtx,
        (at, len): (Off, usize),
        place: SourceLineId,
        (act, from): (SourceAction, &'static Location<'static>),
    ) {
        let unit_bytes = self.shared.persistency.unit_bytes() as u64;
        let (mut start, mut end) = (at.0, end_offset(at, len));
        match self.dropped_part(act, from) {
            None => {}
            Some(FaultPart::Whole) => end = start,
            Some(FaultPart::First) => start = end.min((start / unit_bytes + 1) * unit_bytes),
            Some(FaultPart::Last) => end = start.max((end.div_ceil(unit_bytes) - 1) * unit_bytes),
        }
        if start == end {
            return;
        }
        ctx.flushed(Off(start), (end - start) as usize);
        let mut state = self.state();
        let upto = state.calls;
        for unit in self.units(start, end) {
            if state.queues.contains_key(&unit) {
                state
                    .pending(ctx.id())
                    .push(PersistRequest { unit, upto, place });
            }
        }
    }

    /// Counts an execution of the active fault's source line, and returns the part that the fault drops of it.
    fn dropped_part(&self, act: SourceAction, at: &'static Location<'static>) -> Option<FaultPart> {
        let (part, hit) = fault::drops(act, at)?;
        let mut state = self.state();
        state.fault_hits += 1;
        hit.is_none_or(|n| n == state.fault_hits).then_some(part)
    }

    /// Counts an execution of a source line on the range (offset, bytes), and returns the line's number.
    fn record_source_line(
        &self,
        act: SourceAction,
        at: &'static Location<'static>,
        range: (Off, usize),
    ) -> SourceLineId {
        let Some(places) = &self.state().places else {
            return NOWHERE;
        };
        let units = self.units(range.0.0, end_offset(range.0, range.1));
        places.hit(act, at, units.end - units.start)
    }

    /// Returns the ticket of drain `number`.
    fn ticket(&self, number: u64) -> Ticket {
        match self.shared.persistency {
            Persistency::Relaxed => Ticket::DURABLE,
            _ => Ticket(number),
        }
    }

    /// Returns the numbers of the lines or sectors that `start..end` touches.
    fn units(&self, start: u64, end: u64) -> Range<u64> {
        let unit_bytes = self.shared.persistency.unit_bytes() as u64;
        start / unit_bytes..end.div_ceil(unit_bytes)
    }
}

/// Returns the capabilities of simulated memory in this mode.
fn caps_of(persistency: Persistency) -> Caps {
    let (tear_bytes, drain, survives) = match persistency {
        Persistency::Adr | Persistency::Word => {
            (WORD, Drain::Fence, "a kill and a simulated power cut")
        }
        Persistency::Eadr => (
            WORD,
            Drain::Fence,
            "a kill and a simulated power cut (CPU caches saved)",
        ),
        Persistency::Page => (SECTOR, Drain::Sync, "a kill and a simulated power cut"),
        Persistency::Relaxed => (SECTOR, Drain::Relaxed, "a kill"),
    };
    Caps {
        kind: Kind::Sim,
        tear_bytes,
        drain,
        read_mode: "mapped",
        stores_are_durable: persistency == Persistency::Eadr,
        survives: survives.into(),
        warnings: Vec::new(),
    }
}
