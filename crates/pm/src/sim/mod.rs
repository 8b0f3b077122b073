//! The simulated twin: x86 persistency on a small image in memory, deterministic, and ready to lose
//! power at any point.
//!
//! ```text
//!   store, copy_in ──▶ visible image            what loads see
//!          │
//!          ▼
//!   queue of each line:  s1 s2 s3 │ s4 s5        stores not yet guaranteed, in coherence order
//!                        └─ flush ┘              a lane's flush covers the stores before it
//!          │ drain of that lane
//!          ▼
//!   durable image                               what every crash keeps
//! ```
//!
//! At a crash each queue independently keeps a prefix: caches write lines back when they like, but a
//! line's stores reach the medium in order. A [`CrashState`] is such a moment, and enumerates the
//! images a power cut could leave, or, for a kill, hands on the visible bytes with their queues.
//!
//! # Persistency
//! * [`Persistency::Adr`]: as in the picture, 64-byte lines, every prefix. A drain applies what its
//!   lane flushed. `copy_in` is word stores and their flush.
//! * [`Persistency::Eadr`]: a store is durable at once, so crashes differ at every store.
//! * [`Persistency::Page`]: a file. The unit is the sector of 512 bytes, never torn: it keeps its
//!   content as of any call that wrote to it since the last sync. A drain only asks; what it covers
//!   is durable when [`Sim::sync`] (or a `wait`, which calls it) has run, and its ticket turns then.
//!
//! # Invariants
//! S1  A word of the durable image changes only by a drain (ADR), a store (eADR) or a sync (Page).
//! S2  A flush covers the stores of its lines that precede it, and no later one.
//! S3  A drain covers the flushes of its own lane, and no other's. Compare-and-swap covers none.
//! S4  Everything is a function of the calls made: no clock, no chance. Chance enters only where a
//!     [`CrashState`] has more images than its caller wants, and comes from the caller's seed.
//!
//! # What it does not model
//! Store buffers (a store in one is a store that has not happened yet), and words of one
//! non-temporal copy overtaking each other inside a line: that is a stricter, word-wise persistency.

mod crash;
mod image;
mod places;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::str::FromStr;
use std::sync::PoisonError;

use crate::lane::Lane;
use crate::medium::{Caps, Drain, Kind, LINE, Medium, Off, Poisoned, Ticket, WORD};
use crate::sync::{Arc, Mutex, MutexGuard};

pub use crash::{CrashState, Cut, Images, Moment, Survivor};
pub use image::{Image, Rng};
pub use places::{Act, Place, Places, brief};

use places::{NOWHERE, PlaceId};

/// Bytes of a sector: what a file's device writes whole.
pub const SECTOR: usize = 512;

/// What a power cut may take.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Persistency {
    /// Caches are lost: each line keeps a prefix of its stores.
    Adr,
    /// Caches are saved: nothing stored is lost.
    Eadr,
    /// A file: each sector written since the last sync is old or newer.
    Page,
}

impl Persistency {
    /// All of them.
    pub const ALL: [Persistency; 3] = [Persistency::Adr, Persistency::Eadr, Persistency::Page];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Persistency::Adr => "adr",
            Persistency::Eadr => "eadr",
            Persistency::Page => "page",
        }
    }

    /// Bytes of the unit whose stores stay in order.
    #[must_use]
    pub const fn unit_bytes(self) -> usize {
        match self {
            Persistency::Adr | Persistency::Eadr => LINE,
            Persistency::Page => SECTOR,
        }
    }

    fn caps(self) -> Caps {
        let (tear_bytes, drain, survives) = match self {
            Persistency::Adr => (WORD, Drain::Fence, "a kill and a simulated power cut"),
            Persistency::Eadr => (
                WORD,
                Drain::Fence,
                "a kill and a simulated power cut, caches saved",
            ),
            Persistency::Page => (SECTOR, Drain::Sync, "a kill and a simulated power cut"),
        };
        Caps {
            kind: Kind::Sim,
            tear_bytes,
            drain,
            stores_are_durable: self == Persistency::Eadr,
            survives: survives.into(),
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
        Persistency::ALL
            .into_iter()
            .find(|p| p.name() == name)
            .ok_or_else(|| format!("no persistency is called {name:?}: adr, eadr or page"))
    }
}

/// Told of every crash point while it is set: see [`Sim::observe`].
pub type Observer = Arc<dyn Fn(CrashState) + Send + Sync>;

/// Simulated far memory. A clone is another handle to the same memory.
#[derive(Clone)]
pub struct Sim {
    shared: Arc<Shared>,
}

struct Shared {
    caps: Caps,
    persistency: Persistency,
    state: Mutex<State>,
}

/// One store of one word, not yet guaranteed.
#[derive(Clone, Copy)]
struct Store {
    /// Number of the call that made it: a flush covers calls up to its own moment (S2), and a
    /// sector never keeps half a call.
    call: u64,
    word: u64,
    value: u64,
    place: PlaceId,
}

/// The stores of each line or sector, in coherence order, by its index.
type Queues = BTreeMap<u64, Vec<Store>>;

/// That a lane wants a line's stores up to a call made durable.
#[derive(Clone, Copy)]
struct Request {
    unit: u64,
    upto: u64,
    place: PlaceId,
}

struct State {
    visible: Image,
    /// Unused under eADR, where the visible image is the durable one.
    durable: Image,
    queues: Queues,
    calls: u64,
    /// What each lane has flushed and not drained.
    lanes: Vec<(u32, Vec<Request>)>,
    /// Drained, waiting for a sync (Page only).
    drained: Vec<Request>,
    issued: u64,
    turned: u64,
    fail_in: Option<u64>,
    poisoned: Option<Poisoned>,
    observer: Option<Observer>,
    places: Option<Arc<Places>>,
    wakers: Vec<Arc<dyn Fn() + Send + Sync>>,
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
        Sim::from_image(Image::zeroed(len), persistency)
    }

    /// Far memory as a power cut left it: everything in `image`, all of it durable.
    #[must_use]
    pub fn from_image(image: Image, persistency: Persistency) -> Sim {
        Sim::resume(image.clone(), image, Queues::new(), persistency)
    }

    fn resume(durable: Image, visible: Image, queues: Queues, persistency: Persistency) -> Sim {
        let calls = queues.values().flatten().map(|s| s.call).max().unwrap_or(0);
        let state = State {
            visible,
            durable,
            queues,
            calls,
            lanes: Vec::new(),
            drained: Vec::new(),
            issued: 0,
            turned: 0,
            fail_in: None,
            poisoned: None,
            observer: None,
            places: None,
            wakers: Vec::new(),
        };
        let caps = persistency.caps();
        Sim {
            shared: Arc::new(Shared {
                caps,
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

    /// Has `observer` called at every crash point from now on, or nobody.
    ///
    /// Crash points are: before each drain; under eADR also before each word stored or copied in;
    /// under Page also before each sync. Choices only grow between them, so that no image is missed;
    /// a caller who knows more (an operation begins or has returned) adds [`Sim::tell`] or
    /// [`Sim::crash_state`]. The observer is called under the lock that guards this memory and must
    /// not use it: what it notes of other things belongs to the same moment.
    pub fn observe(&self, observer: Option<Observer>) {
        self.state().observer = observer;
    }

    /// Counts in `places` what each line of source does here from now on.
    pub fn count_places(&self, places: Arc<Places>) {
        self.state().places = Some(places);
    }

    /// The bytes that loads see.
    #[must_use]
    pub fn visible(&self) -> Image {
        self.state().visible.clone()
    }

    /// This moment, as a crash would find it.
    #[must_use]
    pub fn crash_state(&self) -> CrashState {
        self.capture(&self.state(), Moment::Asked, NOWHERE)
    }

    /// Tells the observer of this moment, as of any crash point.
    pub fn tell(&self) {
        drop(self.before(self.state(), Moment::Asked, NOWHERE));
    }

    /// Makes durable everything drained before, and turns its tickets. Only [`Persistency::Page`]
    /// ever has something to do.
    pub fn sync(&self) -> Result<(), Poisoned> {
        let state = self.state();
        if state.turned == state.issued && state.poisoned.is_none() {
            return Ok(());
        }
        let place = state.drained.last().map_or(NOWHERE, |r| r.place);
        let mut state = self.before(state, Moment::Sync, place);
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

    fn state(&self) -> MutexGuard<'_, State> {
        // A bad offset panics under the lock, before anything has changed.
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A crash point: tells the observer of the state as it is, before anyone can change it.
    fn before<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        moment: Moment,
        place: PlaceId,
    ) -> MutexGuard<'a, State> {
        if let Some(observer) = state.observer.clone() {
            observer(self.capture(&state, moment, place));
        }
        state
    }

    fn capture(&self, state: &State, moment: Moment, place: PlaceId) -> CrashState {
        if let Some(places) = &state.places {
            let stores = state.queues.values().flatten().map(|s| s.place);
            let flushes = state.lanes.iter().flat_map(|l| &l.1).chain(&state.drained);
            places.crash(stores.chain(flushes.map(|r| r.place)).chain([place]));
        }
        let durable = match self.shared.persistency {
            Persistency::Eadr => &state.visible,
            Persistency::Adr | Persistency::Page => &state.durable,
        };
        CrashState::new(
            self.shared.persistency,
            durable.clone(),
            state.visible.clone(),
            state.queues.clone(),
            moment,
            place,
            state.places.clone(),
        )
    }

    /// Stores the words of `bytes` at `at`, which is aligned; what they leave of the last stays.
    fn write(&self, at: Off, bytes: &[u8], place: PlaceId, moment: Moment) {
        assert!(
            at.0.is_multiple_of(WORD as u64),
            "the bytes at {at:?} are not aligned"
        );
        let mut state = self.state();
        state.visible.pieces(at, bytes.len(), |_| false);
        state.calls += 1;
        for (i, chunk) in bytes.chunks(WORD).enumerate() {
            if self.shared.persistency == Persistency::Eadr {
                state = self.before(state, moment, place);
            }
            let word = at.plus((i * WORD) as u64);
            let mut value = state.visible.word(word).to_le_bytes();
            value[..chunk.len()].copy_from_slice(chunk);
            state.store(
                self.shared.persistency,
                word,
                u64::from_le_bytes(value),
                place,
            );
        }
    }

    fn flush_units(&self, lane: &Lane, at: Off, len: usize, place: PlaceId) {
        let end = at.0 + len as u64;
        let unit_bytes = self.shared.persistency.unit_bytes() as u64;
        let mut state = self.state();
        let upto = state.calls;
        for unit in at.0 / unit_bytes..end.div_ceil(unit_bytes) {
            if state.queues.contains_key(&unit) {
                state.pending(lane.id()).push(Request { unit, upto, place });
            }
        }
    }

    fn place(&self, act: Act, at: &'static Location<'static>) -> PlaceId {
        match &self.state().places {
            Some(places) => places.hit(act, at),
            None => NOWHERE,
        }
    }
}

impl State {
    fn pending(&mut self, lane: u32) -> &mut Vec<Request> {
        let at = self
            .lanes
            .iter()
            .position(|l| l.0 == lane)
            .unwrap_or_else(|| {
                self.lanes.push((lane, Vec::new()));
                self.lanes.len() - 1
            });
        &mut self.lanes[at].1
    }

    fn store(&mut self, persistency: Persistency, at: Off, value: u64, place: PlaceId) {
        self.visible.set_word(at, value);
        if persistency != Persistency::Eadr {
            let unit = at.0 / persistency.unit_bytes() as u64;
            let store = Store {
                call: self.calls,
                word: at.0,
                value,
                place,
            };
            self.queues.entry(unit).or_default().push(store);
        }
    }

    /// S1: the covered prefix of a queue becomes durable.
    fn commit(&mut self, request: Request) {
        let Some(queue) = self.queues.get_mut(&request.unit) else {
            return;
        };
        let covered = queue.partition_point(|s| s.call <= request.upto);
        for store in queue.drain(..covered) {
            self.durable.set_word(Off(store.word), store.value);
        }
        if queue.is_empty() {
            self.queues.remove(&request.unit);
        }
    }

    /// Counts a drain down to the one that is to fail.
    fn drain_fails(&mut self) -> bool {
        if let Some(n) = &mut self.fail_in {
            *n = n.saturating_sub(1);
            if *n == 0 {
                self.fail_in = None;
                let reason = "drain: simulated I/O error".into();
                self.poisoned = Some(Poisoned { reason });
            }
        }
        self.poisoned.is_some()
    }
}

impl Medium for Sim {
    fn caps(&self) -> &Caps {
        &self.shared.caps
    }

    fn len(&self) -> u64 {
        self.state().visible.len()
    }

    fn grow(&self, len: u64) -> std::io::Result<()> {
        let state = &mut *self.state();
        if len > state.visible.len() {
            state.visible.grow(len);
            state.durable.grow(len);
        }
        Ok(())
    }

    fn load(&self, at: Off) -> u64 {
        self.state().visible.word(at)
    }

    #[track_caller]
    fn store(&self, lane: &mut Lane, at: Off, value: u64) {
        let place = self.place(Act::Store, Location::caller());
        self.write(at, &value.to_le_bytes(), place, Moment::Store);
        lane.counters.bytes += WORD as u64;
    }

    #[track_caller]
    fn cas(&self, lane: &mut Lane, at: Off, old: u64, new: u64) -> Result<u64, u64> {
        let place = self.place(Act::Store, Location::caller());
        let mut state = self.state();
        if self.shared.persistency == Persistency::Eadr {
            state = self.before(state, Moment::Store, place);
        }
        let found = state.visible.word(at);
        if found != old {
            return Err(found);
        }
        state.calls += 1;
        state.store(self.shared.persistency, at, new, place);
        lane.counters.bytes += WORD as u64;
        Ok(found)
    }

    fn copy_out(&self, at: Off, to: &mut [u8]) {
        let mut done = 0;
        self.state().visible.pieces(at, to.len(), |piece| {
            to[done..done + piece.len()].copy_from_slice(piece);
            done += piece.len();
            true
        });
    }

    fn append_out(&self, at: Off, len: usize, to: &mut Vec<u8>) {
        self.state().visible.pieces(at, len, |piece| {
            to.extend_from_slice(piece);
            true
        });
    }

    fn matches(&self, at: Off, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        self.state().visible.pieces(at, bytes.len(), |piece| {
            let (head, tail) = rest.split_at(piece.len());
            if head == piece {
                rest = tail;
            }
            head == piece
        });
        rest.is_empty()
    }

    #[track_caller]
    fn copy_in(&self, lane: &mut Lane, at: Off, parts: &[&[u8]]) {
        let place = self.place(Act::CopyIn, Location::caller());
        let bytes = parts.concat();
        self.write(at, &bytes, place, Moment::CopyIn);
        lane.copied_in(at, bytes.len());
        self.flush_units(lane, at, bytes.len(), place);
    }

    #[track_caller]
    fn flush(&self, lane: &mut Lane, at: Off, len: usize) {
        let place = self.place(Act::Flush, Location::caller());
        self.state().visible.pieces(at, len, |_| false);
        lane.flushed(at, len);
        self.flush_units(lane, at, len, place);
    }

    #[track_caller]
    fn drain(&self, lane: &mut Lane) -> Ticket {
        let place = self.place(Act::Drain, Location::caller());
        if !std::mem::take(&mut lane.undrained) {
            return Ticket::DURABLE;
        }
        lane.counters.fences += 1;
        let mut state = self.state();
        if self.shared.persistency != Persistency::Eadr {
            state = self.before(state, Moment::Drain, place);
        }
        if state.drain_fails() {
            let wakers = state.wakers.clone();
            drop(state);
            wakers.iter().for_each(|wake| wake());
            return Ticket(u64::MAX);
        }
        let pending = std::mem::take(state.pending(lane.id()));
        if self.shared.persistency != Persistency::Page {
            pending
                .into_iter()
                .for_each(|request| state.commit(request)); // S3
            return Ticket::DURABLE;
        }
        state
            .drained
            .extend(pending.into_iter().map(|r| Request { place, ..r }));
        state.issued += 1;
        Ticket(state.issued)
    }

    fn poll(&self, ticket: Ticket) -> Result<bool, Poisoned> {
        let state = self.state();
        match &state.poisoned {
            _ if ticket.0 <= state.turned => Ok(true),
            Some(poisoned) => Err(poisoned.clone()),
            None => Ok(false),
        }
    }

    fn wait(&self, ticket: Ticket) -> Result<(), Poisoned> {
        if self.poll(ticket)? {
            Ok(())
        } else {
            self.sync()
        }
    }

    fn on_turn(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        if self.shared.persistency == Persistency::Page {
            self.state().wakers.push(wake);
        }
    }

    fn crc(&self, at: Off, len: usize, seed: u32) -> u32 {
        let mut crc = seed;
        self.state().visible.pieces(at, len, |piece| {
            crc = crc32c::crc32c_append(crc, piece);
            true
        });
        crc
    }

    fn prefetch(&self, _at: Off, _len: usize) {}
}
