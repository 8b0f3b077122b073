//! The simulated twin: x86 persistency on a small image in memory, deterministic, and ready to lose
//! power at any point.
//!
//! ```text
//!   store, copy_in ──▶ visible image            what loads see
//!          │
//!          ▼
//!   queue of each line:  s1 s2 s3 │ s4 s5        stores not yet guaranteed, in coherence order
//!                        └─ flush ┘              a context's flush covers the stores before it
//!          │ drain of that context
//!          ▼
//!   durable image                               what every crash keeps
//! ```
//!
//! The stores in a queue form *chains*. At a crash each chain independently keeps a prefix: caches
//! write lines back when they like, but a line's stores reach the medium in order. Where chains
//! share a word, what they keep is applied in coherence order. A [`CrashState`] is such a moment,
//! and enumerates the images a power cut could leave ([`CrashState::images`]), hands out memory
//! that decides what survived only as it is read ([`Sim::lazy`]), or, for a kill, hands on the
//! visible bytes with their queues ([`CrashState::killed`]).
//!
//! # Persistency
//! * [`Persistency::Adr`]: 64-byte lines. Cached stores of a line are one chain. The whole lines of
//!   a `copy_in`, and pairs, go around the cache, where nothing keeps the words of a line together:
//!   each word of theirs is a chain of its own. The partial lines of a `copy_in` are cached stores and their
//!   flush. (Real media go around the cache only from a size on; less order covers both.)
//! * [`Persistency::Word`]: every word is a chain of its own, however it was stored. Eight bytes are
//!   atomic and nothing else is ordered: the model of the contest's judge.
//! * [`Persistency::Eadr`]: a store is durable at once, so crashes differ at every store.
//! * [`Persistency::Page`]: a file. The unit is the sector of 512 bytes, never torn: it keeps its
//!   content as of any call that wrote to it since the last sync. A drain only asks; what it covers
//!   is durable when [`Sim::sync`] (or a `wait`, which calls it) has run, and its ticket turns then.
//!   After a sync that failed, the kernel calls pages clean that the device does not have: a process
//!   that starts on them ([`CrashState::killed_after_failed_sync`]) sees them, and no sync writes them.
//! * [`Persistency::Relaxed`]: the same file whose drains ask for no sync and whose tickets have turned when they are
//!   issued, as under `everysec` and `never`. [`Sim::sync`] is the sync of every second; [`crate::Medium::settle`] syncs.
//!
//! # Instructions
//! A context stands for a thread. A flush is `clwb` or `clflushopt`: what they do to durability is the
//! same, so that the simulator has one of them. A drain is `sfence`. A compare-and-swap drains
//! nothing, because the door does not promise it; with [`Sim::drain_on_cas`] it completes its
//! context's flushes, whether it succeeds or not, as the lock prefix does on x86.
//!
//! # Faults
//! While a fault by place is on ([`crate::fault::with`]), the flush, the `copy_in`'s flush or the
//! drain it names does not happen, or not for the first or last line (on a file, sector) of the
//! request. Counters count what is done. What is not flushed waits for another flush. A drain left
//! out leaves what its context flushed to the context's next drain, and answers with a ticket that its
//! caller takes for done: on a file that is the newest there is, as if an earlier request of
//! anybody's would cover the new bytes as well, which it does not.
//!
//! # Invariants
//! S1  A word of the durable image changes only by a drain (ADR, words; also a locked operation, if
//!     asked for), a store (eADR) or a sync (Page).
//! S2  A flush covers the stores of its lines that precede it, in all their chains, and no later
//!     one.
//! S3  A drain covers the flushes of its own context, and no other's. Compare-and-swap covers none,
//!     unless asked to.
//! S4  Everything is a function of the calls made and of the fault that is on: no clock, no chance.
//!     Chance enters only where a [`CrashState`] has more images than its caller wants, and comes
//!     from the caller's seed.
//!
//! # What it does not model
//! Store buffers: a store in one is a store that has not happened yet. Write-combining buffers as
//! far as others can see them: a copy's words are visible to every thread at once, and another
//! context's flush covers them. Devices that hold back what they have promised.

mod crash;
mod door;
mod image;
mod image_cuts;
mod lazy;
mod source_lines;
mod state;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::str::FromStr;
use std::sync::PoisonError;

use crate::fault::{self, FaultPart};
use crate::medium::{Caps, Drain, Kind, LINE, Off, Poisoned, Ticket, WORD, end_of};
use crate::persist_ctx::PersistCtx;
use crate::sync::{Arc, Mutex, MutexGuard};

pub use crash::{CrashMoment, CrashState, UnitSurvivors};
pub use image::{PoolImage, Rng};
pub use image_cuts::{CrashImages, ImageCut};
pub use lazy::{LazyCrash, LazyDecision, next_script};
pub use source_lines::{SourceAction, SourceLine, SourceLines, brief};

use source_lines::{NOWHERE, SourceLineId};
use state::{PersistRequest, SimState};

/// Bytes of a sector: what a file's device writes whole.
pub const SECTOR: usize = 512;

/// What a power cut may take.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Persistency {
    /// Caches are lost: each line keeps a prefix of its stores, words copied around the cache each
    /// for itself.
    Adr,
    /// Caches are saved: nothing stored is lost.
    Eadr,
    /// Caches are lost and order nothing: each word keeps a prefix of its stores.
    Word,
    /// A file: each sector written since the last sync is old or newer.
    Page,
    /// A file that is synced now and then: as [`Persistency::Page`], but tickets promise nothing. What was written
    /// since the last sync may be lost in a power cut, and nothing else may.
    Relaxed,
}

impl Persistency {
    /// Those in which a ticket that has turned promises something.
    pub const ALL: [Persistency; 4] = [
        Persistency::Adr,
        Persistency::Eadr,
        Persistency::Word,
        Persistency::Page,
    ];

    /// All of them.
    pub const EVERY: [Persistency; 5] = [
        Persistency::Adr,
        Persistency::Eadr,
        Persistency::Word,
        Persistency::Page,
        Persistency::Relaxed,
    ];

    /// Whether it stands for a file.
    #[must_use]
    pub const fn is_file(self) -> bool {
        matches!(self, Persistency::Page | Persistency::Relaxed)
    }

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Persistency::Adr => "adr",
            Persistency::Eadr => "eadr",
            Persistency::Word => "word",
            Persistency::Page => "page",
            Persistency::Relaxed => "relaxed",
        }
    }

    /// Bytes of the unit that is written back as one: a line, or a file's sector.
    #[must_use]
    pub const fn unit_bytes(self) -> usize {
        match self {
            Persistency::Adr | Persistency::Eadr | Persistency::Word => LINE,
            Persistency::Page | Persistency::Relaxed => SECTOR,
        }
    }

    fn caps(self) -> Caps {
        let (tear_bytes, drain, survives) = match self {
            Persistency::Adr | Persistency::Word => {
                (WORD, Drain::Fence, "a kill and a simulated power cut")
            }
            Persistency::Eadr => (
                WORD,
                Drain::Fence,
                "a kill and a simulated power cut, caches saved",
            ),
            Persistency::Page => (SECTOR, Drain::Sync, "a kill and a simulated power cut"),
            Persistency::Relaxed => (SECTOR, Drain::Relaxed, "a kill"),
        };
        Caps {
            kind: Kind::Sim,
            tear_bytes,
            drain,
            read_by: "mapped",
            stores_are_durable: self == Persistency::Eadr,
            survives: survives.into(),
            warnings: Vec::new(),
        }
    }
}

impl fmt::Display for Persistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Persistency {
    type Err = String;

    fn from_str(name: &str) -> Result<Persistency, String> {
        Persistency::EVERY
            .into_iter()
            .find(|p| p.name() == name)
            .ok_or_else(|| {
                format!("no persistency is called {name:?}: adr, eadr, word, page or relaxed")
            })
    }
}

/// Told of every crash point while it is set: see [`Sim::observe`].
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
    /// Far memory of `len` zero bytes, durable.
    #[must_use]
    pub fn new(len: u64, persistency: Persistency) -> Sim {
        Sim::from_image(PoolImage::zeroed(len), persistency)
    }

    /// Far memory as a power cut left it: everything in `image`, all of it durable.
    #[must_use]
    pub fn from_image(image: PoolImage, persistency: Persistency) -> Sim {
        let state = SimState::new(image.clone(), image, state::Queues::new());
        Sim::with_state(state, persistency)
    }

    fn with_state(state: SimState, persistency: Persistency) -> Sim {
        Sim {
            shared: Arc::new(SimShared {
                caps: persistency.caps(),
                persistency,
                state: Mutex::new(state),
            }),
        }
    }

    /// What a power cut may take here.
    #[must_use]
    pub fn persistency(&self) -> Persistency {
        self.shared.persistency
    }

    /// Whether from now on a compare-and-swap also completes the flushes of its context, as the lock
    /// prefix does on x86. It does not at first: structures must not rely on it. Memory after a kill
    /// ([`CrashState::killed`]) goes on like this; a file never does.
    pub fn drain_on_cas(&self, drains: bool) {
        self.state().cas_drains = drains;
    }

    /// Has `observer` called at every crash point from now on, or nobody.
    ///
    /// Crash points are: before each drain, and each compare-and-swap that completes flushes; under
    /// eADR also before each word stored or copied in; under Page also before each sync. Choices
    /// only grow between them, so that no image is missed; a caller who knows more (an operation
    /// begins or has returned) adds [`Sim::tell`] or [`Sim::crash_state`]. The observer is called
    /// under the lock that guards this memory and must not use it: what it notes of other things
    /// belongs to the same moment.
    pub fn observe(&self, observer: Option<CrashObserver>) {
        self.state().observer = observer;
    }

    /// Counts in `places` what each line of source does here from now on.
    pub fn count_places(&self, places: Arc<SourceLines>) {
        self.state().places = Some(places);
    }

    /// The bytes that loads see. Lazy memory answers with one of the images that agree with what
    /// has been decided, and decides nothing.
    #[must_use]
    pub fn visible(&self) -> PoolImage {
        self.state().representative(Off(0), usize::MAX)
    }

    /// This moment, as a crash would find it.
    ///
    /// # Panics
    /// If this is lazy memory, which does not know what a second crash would find.
    #[must_use]
    pub fn crash_state(&self) -> CrashState {
        self.capture(&self.state(), CrashMoment::Asked, NOWHERE)
    }

    /// Tells the observer of this moment, as of any crash point.
    pub fn tell(&self) {
        drop(self.before(self.state(), CrashMoment::Asked, NOWHERE));
    }

    /// Makes durable everything drained before, and turns its tickets. Only files
    /// ever have something to do.
    pub fn sync(&self) -> Result<(), Poisoned> {
        let state = self.state();
        if state.turned == state.issued && state.poisoned.is_none() {
            return Ok(());
        }
        let place = state.drained.last().map_or(NOWHERE, |r| r.place);
        let mut state = self.before(state, CrashMoment::Sync, place);
        if let Some(poisoned) = &state.poisoned {
            return Err(poisoned.clone());
        }
        for request in std::mem::take(&mut state.drained) {
            state.commit(request);
        }
        state.turned = state.issued;
        let wakers = state.wakers.clone();
        drop(state);
        wakers.iter().for_each(|wake| wake());
        Ok(())
    }

    /// Drops what is visible and neither durable nor to be written back, as a process that opens a file
    /// has the kernel do: see [`CrashState::killed_after_failed_sync`].
    pub fn forget_cached(&self) {
        if crate::fault!("pm.cached_pages_trusted") {
            return;
        }
        let mut state = self.state();
        if !std::mem::take(&mut state.lost).is_empty() {
            state.visible = state.durable.clone();
        }
    }

    /// Makes the `n`-th drain from now (1 is the next) fail with an I/O error, which poisons the
    /// medium.
    pub fn fail_drain(&self, n: u64) {
        self.state().fail_in = Some(n);
    }

    /// Whether a drain has failed.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.state().poisoned.is_some()
    }

    fn state(&self) -> MutexGuard<'_, SimState> {
        // A bad offset panics under the lock, before anything has changed.
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A crash point: tells the observer of the state as it is, before anyone can change it.
    fn before<'a>(
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
            "lazy memory cannot crash: take the moment it was made of"
        );
        if let Some(places) = &state.places {
            let stores = state.queues.values().flatten().map(|s| s.place);
            let flushes = state
                .contexts
                .iter()
                .flat_map(|l| &l.1)
                .chain(&state.drained);
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

    /// Stores the words of `bytes` at `at`, which is aligned; what they leave of the last stays.
    /// Those in `around` go around the cache.
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
                state = self.before(state, moment, place);
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

    /// Copies `bytes` in at `at`: those in `around` around the cache, the others through it.
    fn copy(
        &self,
        ctx: &mut PersistCtx,
        at: Off,
        bytes: &[u8],
        (around, from): (Range<u64>, &'static Location<'static>),
    ) {
        let place = self.place(SourceAction::CopyIn, from, (at, bytes.len()));
        self.write(at, bytes, &around, (place, CrashMoment::CopyIn));
        ctx.counters.bytes += bytes.len() as u64;
        self.request(ctx, (at, bytes.len()), place, (SourceAction::CopyIn, from));
    }

    /// Requests what the active fault leaves of `at..at + len`.
    fn request(
        &self,
        ctx: &mut PersistCtx,
        (at, len): (Off, usize),
        place: SourceLineId,
        (act, from): (SourceAction, &'static Location<'static>),
    ) {
        let unit_bytes = self.shared.persistency.unit_bytes() as u64;
        let (mut start, mut end) = (at.0, end_of(at, len));
        match self.dropped(act, from) {
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

    /// What the active fault has this place leave out, this time.
    fn dropped(&self, act: SourceAction, at: &'static Location<'static>) -> Option<FaultPart> {
        let (part, hit) = fault::drops(act, at)?;
        let mut state = self.state();
        state.fault_hits += 1;
        hit.is_none_or(|n| n == state.fault_hits).then_some(part)
    }

    /// The number of a place that acts on `range` now: where, and how many bytes.
    fn place(
        &self,
        act: SourceAction,
        at: &'static Location<'static>,
        range: (Off, usize),
    ) -> SourceLineId {
        let Some(places) = &self.state().places else {
            return NOWHERE;
        };
        let units = self.units(range.0.0, end_of(range.0, range.1));
        places.hit(act, at, units.end - units.start)
    }

    /// The ticket of the drain that was issued as `number`.
    fn ticket(&self, number: u64) -> Ticket {
        match self.shared.persistency {
            Persistency::Relaxed => Ticket::DURABLE,
            _ => Ticket(number),
        }
    }

    /// The lines, or sectors, that `start..end` touches.
    fn units(&self, start: u64, end: u64) -> Range<u64> {
        let unit_bytes = self.shared.persistency.unit_bytes() as u64;
        start / unit_bytes..end.div_ceil(unit_bytes)
    }
}
