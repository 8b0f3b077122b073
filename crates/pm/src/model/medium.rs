//! [`Modelled`], a medium that executes accesses at once and records their steps for a [`Machine`](super::Machine).

use std::collections::HashMap;
use std::io;
use std::panic::Location;
use std::sync::{Arc, Mutex};

use super::step::{Category, Step, StepKind};
use crate::media::mapped::NON_TEMPORAL_FROM_BYTES;
use crate::medium::{Caps, LINE, Medium, Off, Poisoned, Ticket, WORD, total_bytes};
use crate::offset::end_offset;
use crate::persist_ctx::PersistCtx;
use crate::sync::ignore_poison;

/// The steps recorded since they were last taken. Clones share them, so a caller can keep a clone when it moves the
/// medium into a structure.
#[derive(Clone, Debug, Default)]
pub struct Trace(Arc<Mutex<StepLog>>);

#[derive(Debug)]
struct StepLog {
    on: bool,
    steps: Vec<Step>,
    numbers: HashMap<usize, u16>,
    places: Vec<Option<&'static Location<'static>>>,
}

impl Default for StepLog {
    fn default() -> StepLog {
        StepLog {
            on: true,
            steps: Vec::new(),
            numbers: HashMap::new(),
            places: vec![None],
        }
    }
}

impl Trace {
    /// Removes the steps so far and appends them to `to`.
    pub fn take(&self, to: &mut Vec<Step>) {
        to.append(&mut self.lock().steps);
    }

    /// Switches recording on or off, and drops the steps so far. Switch it off to fill a pool.
    pub fn record(&self, on: bool) {
        let mut steps = self.lock();
        steps.on = on;
        steps.steps.clear();
    }

    /// Records CPU time of an operation besides its memory accesses.
    pub fn compute(&self, ns: u32) {
        self.push(Step::new(StepKind::Compute, ns));
    }

    /// Records that a lock is taken. The real operation does not wait; the machine models the wait.
    pub fn lock_taken(&self, lock: u32) {
        self.push(Step::new(StepKind::Lock, lock));
    }

    /// Records that a lock is released.
    pub fn lock_dropped(&self, lock: u32) {
        self.push(Step::new(StepKind::Unlock, lock));
    }

    /// Records a barrier: every worker waits here until all have reached it.
    pub fn stop_the_world(&self) {
        self.push(Step::new(StepKind::Barrier, 0));
    }

    /// Records a store and a flush of the line at `at`, and with `waits` a fence, which the medium itself did not see.
    pub fn persist(&self, at: Off, waits: bool) {
        self.lines(&[StepKind::Store, StepKind::Flush], at, WORD, None);
        if waits {
            self.push(Step::new(StepKind::Fence, 0));
        }
    }

    /// Returns the source line with this number; `None` if it is unknown.
    #[must_use]
    pub fn place(&self, number: u16) -> Option<&'static Location<'static>> {
        self.lock()
            .places
            .get(usize::from(number))
            .copied()
            .flatten()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, StepLog> {
        ignore_poison(self.0.lock())
    }

    fn push(&self, step: Step) {
        let mut steps = self.lock();
        if steps.on {
            let category = Category::current();
            steps.steps.push(Step { category, ..step });
        }
    }

    /// Records steps for each line of `at..at + len`.
    fn lines(
        &self,
        acts: &[StepKind],
        at: Off,
        len: usize,
        place: Option<&'static Location<'static>>,
    ) {
        let mut steps = self.lock();
        if !steps.on || len == 0 {
            return;
        }
        let place = place.map_or(0, |place| steps.number(place));
        let category = Category::current();
        for what in lines_of(at, len) {
            for &act in acts {
                steps.steps.push(Step {
                    act,
                    category,
                    place,
                    argument: what,
                });
            }
        }
    }

    /// Records a read: all lines are fetched concurrently, and the last one waits for them.
    fn loads(&self, at: Off, len: usize) {
        self.lines(&[StepKind::Fetch], at, len, None);
        let mut steps = self.lock();
        if let (true, Some(last)) = (steps.on && len > 0, steps.steps.last_mut()) {
            last.act = StepKind::Load;
        }
    }
}

impl StepLog {
    fn number(&mut self, place: &'static Location<'static>) -> u16 {
        // A source line with several `Location` addresses gets several numbers.
        let key = std::ptr::from_ref(place).addr();
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        let known = self.places.iter().position(|known| *known == Some(place));
        let number = known.unwrap_or(self.places.len());
        if known.is_none() {
            self.places.push(Some(place));
        }
        let number = u16::try_from(number).unwrap_or(0);
        self.numbers.insert(key, number);
        number
    }
}

fn lines_of(at: Off, len: usize) -> std::ops::Range<u32> {
    const LINE_BYTES: u64 = LINE as u64;
    let end = end_offset(at, len).div_ceil(LINE_BYTES);
    // Below 2^31, as the cache requires: `Modelled::new` checks the length.
    (at.0 / LINE_BYTES) as u32..end as u32
}

/// A medium that records every access as steps, and executes it on the inner medium.
#[derive(Debug)]
pub struct Modelled<M> {
    inner: M,
    trace: Trace,
    writes_back: bool,
}

impl<M: Medium> Modelled<M> {
    /// Wraps `inner`. Recording is on.
    ///
    /// # Panics
    /// If `inner` is longer than 64 GiB.
    pub fn new(inner: M) -> Modelled<M> {
        assert!(
            inner.len() <= 1 << 36,
            "the model supports pools of up to 64 GiB"
        );
        Modelled {
            inner,
            trace: Trace::default(),
            writes_back: true,
        }
    }

    /// Stops recording write-backs and fences, to measure the cost of durability. Stored lines then stay in the
    /// modelled cache until it evicts them.
    #[must_use]
    pub fn without_durability(mut self) -> Modelled<M> {
        self.writes_back = false;
        self
    }

    /// Returns the recorded steps.
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.trace.clone()
    }
}

impl<M: Medium> Medium for Modelled<M> {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        self.inner.grow(len)
    }

    fn load(&self, at: Off) -> u64 {
        let word = self.inner.load(at);
        self.trace.loads(at, WORD);
        word
    }

    fn load_words<const N: usize>(&self, at: Off, step: usize) -> [u64; N] {
        let words = self.inner.load_words(at, step);
        // With a single word, `step` has no meaning.
        self.trace
            .loads(at, if N == 1 { WORD } else { N * step * WORD });
        words
    }

    #[track_caller]
    fn store(&self, ctx: &mut PersistCtx, at: Off, value: u64) {
        self.inner.store(ctx, at, value);
        self.trace
            .lines(&[StepKind::Store], at, WORD, Some(Location::caller()));
    }

    #[track_caller]
    fn cas(&self, ctx: &mut PersistCtx, at: Off, old: u64, new: u64) -> Result<u64, u64> {
        let found = self.inner.cas(ctx, at, old, new);
        self.trace.loads(at, WORD);
        if found.is_ok() {
            self.trace
                .lines(&[StepKind::Store], at, WORD, Some(Location::caller()));
        }
        found
    }

    fn copy_out(&self, at: Off, to: &mut [u8]) {
        self.inner.copy_out(at, to);
        self.trace.loads(at, to.len());
    }

    fn append_out(&self, at: Off, len: usize, to: &mut Vec<u8>) {
        self.inner.append_out(at, len, to);
        self.trace.loads(at, len);
    }

    fn matches(&self, at: Off, bytes: &[u8]) -> bool {
        let equal = self.inner.matches(at, bytes);
        self.trace.loads(at, bytes.len());
        equal
    }

    /// Records whole lines of large copies as stores around the cache, and other lines as cached stores with flushes,
    /// as on real media.
    #[track_caller]
    fn copy_in(&self, ctx: &mut PersistCtx, at: Off, parts: &[&[u8]]) {
        self.inner.copy_in(ctx, at, parts); // Panics if the bytes are outside the medium.
        let len = total_bytes(parts);
        let place = Some(Location::caller());
        let through: &[StepKind] = match self.writes_back {
            true => &[StepKind::Store, StepKind::Flush],
            false => &[StepKind::Store],
        };
        let end = end_offset(at, len);
        let first = at.0.next_multiple_of(LINE as u64);
        let last = end / LINE as u64 * LINE as u64;
        if !self.writes_back || len < NON_TEMPORAL_FROM_BYTES || first >= last {
            self.trace.lines(through, at, len, place);
        } else {
            self.trace
                .lines(through, at, (first - at.0) as usize, place);
            self.trace.lines(
                &[StepKind::Around],
                Off(first),
                (last - first) as usize,
                place,
            );
            self.trace
                .lines(through, Off(last), (end - last) as usize, place);
        }
    }

    #[track_caller]
    fn flush(&self, ctx: &mut PersistCtx, at: Off, len: usize) {
        self.inner.flush(ctx, at, len);
        if self.writes_back {
            self.trace
                .lines(&[StepKind::Flush], at, len, Some(Location::caller()));
        }
    }

    #[track_caller]
    fn drain(&self, ctx: &mut PersistCtx) -> Ticket {
        if self.writes_back {
            self.trace.push(Step::new(StepKind::Fence, 0));
        }
        self.inner.drain(ctx)
    }

    fn make_visible(&self, ctx: &mut PersistCtx) {
        if self.writes_back {
            self.trace.push(Step::new(StepKind::Fence, 0));
        }
        self.inner.make_visible(ctx);
    }

    fn poll(&self, ticket: Ticket) -> Result<bool, Poisoned> {
        self.inner.poll(ticket)
    }

    fn wait(&self, ticket: Ticket) -> Result<(), Poisoned> {
        self.inner.wait(ticket)
    }

    fn wait_until_durable(&self, ticket: Ticket) -> Result<(), Poisoned> {
        self.inner.wait_until_durable(ticket)
    }

    fn unreadable(&self, at: Off, len: usize) -> Option<Off> {
        self.inner.unreadable(at, len)
    }

    fn on_durable(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.inner.on_durable(wake);
    }

    fn crc(&self, at: Off, len: usize, seed: u32) -> u32 {
        let crc = self.inner.crc(at, len, seed);
        self.trace.loads(at, len);
        crc
    }

    fn prefetch(&self, at: Off, len: usize) {
        let end = at.0.checked_add(len as u64);
        if end.is_some_and(|end| end <= self.inner.len()) {
            self.trace.lines(&[StepKind::Fetch], at, len, None);
        }
        self.inner.prefetch(at, len);
    }
}
