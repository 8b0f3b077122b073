//! The state of simulated memory between two calls: two images, and the volatile stores between them.

use std::collections::BTreeSet;

use super::CrashObserver;
use super::chains::{Queues, VolatileStore};
use super::image::PoolImage;
use super::lazy_state::LazyState;
use super::source_lines::{SourceLineId, SourceLines};
use crate::medium::Poisoned;
use crate::offset::{LINE, Off, WORD};
use crate::persistency::Persistency;
use crate::sync::Arc;

/// A flush of one unit: a request to make its stores up to call `upto` durable.
#[derive(Clone, Copy)]
pub(super) struct PersistRequest {
    pub(super) unit: u64,
    pub(super) upto: u64,
    pub(super) place: SourceLineId,
}

/// The state that the lock of a [`Sim`](super::Sim) guards.
pub(super) struct SimState {
    pub(super) visible: PoolImage,
    /// Unused under eADR, where the visible image is the durable one.
    pub(super) durable: PoolImage,
    pub(super) queues: Queues,
    /// Units that a failed sync left clean: visible, not durable, and not written back any more (Page only).
    pub(super) lost_units: BTreeSet<u64>,
    pub(super) calls: u64,
    /// Flushes of each context that are not drained yet.
    pub(super) contexts: Vec<(u32, Vec<PersistRequest>)>,
    pub(super) drains: DrainState,
    /// Whether a compare-and-swap completes its context's flushes.
    pub(super) cas_drains: bool,
    /// Number of executions of the active fault's source line on this memory.
    pub(super) fault_hits: u64,
    /// The undecided outcomes of a crash, if this is lazy memory.
    pub(super) lazy: Option<Box<LazyState>>,
    pub(super) observer: Option<CrashObserver>,
    pub(super) places: Option<Arc<SourceLines>>,
}

/// The drains so far, their tickets, and the failure of one.
#[derive(Default)]
pub(super) struct DrainState {
    /// Drained flushes that wait for a sync (files only).
    pub(super) waiting: Vec<PersistRequest>,
    /// Number of the last ticket.
    pub(super) issued_ticket: u64,
    /// Number of the last durable ticket.
    pub(super) durable_ticket: u64,
    /// Number of drains until one fails.
    pub(super) fail_in: Option<u64>,
    pub(super) poisoned: Option<Poisoned>,
    pub(super) wakers: Vec<Arc<dyn Fn() + Send + Sync>>,
}

impl DrainState {
    /// Counts a drain, and returns whether the medium is poisoned: by this drain or earlier.
    pub(super) fn count_drain(&mut self) -> bool {
        if let Some(n) = &mut self.fail_in {
            *n = n.saturating_sub(1);
            if *n == 0 {
                self.fail_in = None;
                self.poisoned = Some(Poisoned::new("drain: simulated I/O error"));
            }
        }
        self.poisoned.is_some()
    }
}

impl SimState {
    pub(super) fn new(durable: PoolImage, visible: PoolImage, queues: Queues) -> SimState {
        SimState {
            calls: queues.values().flatten().map(|s| s.call).max().unwrap_or(0),
            visible,
            durable,
            queues,
            lost_units: BTreeSet::new(),
            contexts: Vec::new(),
            drains: DrainState::default(),
            cas_drains: false,
            fault_hits: 0,
            lazy: None,
            observer: None,
            places: None,
        }
    }

    /// Returns the flushes of a context that are not drained yet.
    pub(super) fn pending(&mut self, ctx: u32) -> &mut Vec<PersistRequest> {
        let at = self
            .contexts
            .iter()
            .position(|l| l.0 == ctx)
            .unwrap_or_else(|| {
                self.contexts.push((ctx, Vec::new()));
                self.contexts.len() - 1
            });
        &mut self.contexts[at].1
    }

    /// Stores one word; with `around` the store bypasses the cache.
    pub(super) fn store(
        &mut self,
        persistency: Persistency,
        at: Off,
        value: u64,
        around: bool,
        place: SourceLineId,
    ) {
        self.visible.set_word(at, value);
        if let Some(lazy) = &mut self.lazy {
            lazy.overwrite(at);
            return;
        }
        let word_chain = 1 + (at.0 as usize % LINE / WORD) as u8;
        let chain = match persistency {
            Persistency::Eadr => return,
            Persistency::Page | Persistency::Relaxed => 0,
            Persistency::Word => word_chain,
            Persistency::Adr => word_chain * u8::from(around),
        };
        let unit = at.0 / persistency.unit_bytes() as u64;
        if self.lost_units.remove(&unit) {
            self.make_dirty(unit, persistency, place);
        }
        let store = VolatileStore {
            call: self.calls,
            word: at.0,
            value,
            place,
            chain,
        };
        self.queues.entry(unit).or_default().push(store);
    }

    /// Queues the words of a unit whose visible values are not durable. The kernel writes back the whole page
    /// when a call writes to a clean page.
    fn make_dirty(&mut self, unit: u64, persistency: Persistency, place: SourceLineId) {
        let unit_bytes = persistency.unit_bytes() as u64;
        let start = unit * unit_bytes;
        let end = self.visible.len().min(start + unit_bytes);
        for word in (start..end).step_by(WORD) {
            let value = self.visible.word(Off(word));
            if value != self.durable.word(Off(word)) {
                let call = self.calls;
                let chain = 0;
                let store = VolatileStore {
                    call,
                    word,
                    value,
                    place,
                    chain,
                };
                self.queues.entry(unit).or_default().push(store);
            }
        }
    }

    /// Makes the stores of a unit that the request covers durable, in all chains (PM-SIM-1).
    pub(super) fn commit(&mut self, request: PersistRequest) {
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

    /// Makes the flushes of a context durable (PM-SIM-3).
    pub(super) fn complete(&mut self, ctx: u32) {
        for request in std::mem::take(self.pending(ctx)) {
            self.commit(request);
        }
    }

    /// Decides the words in `at..at + len`, so that the visible image has their values.
    pub(super) fn decide(&mut self, at: Off, len: usize) {
        if let Some(lazy) = &mut self.lazy {
            let range = at.0..at.0.saturating_add(len as u64);
            lazy.decide(&mut self.visible, &range);
        }
    }

    /// Decides whether the bytes at `at` equal `bytes`. `None`: no word there is open.
    pub(super) fn decide_match(&mut self, at: Off, bytes: &[u8]) -> Option<bool> {
        let lazy = self.lazy.as_mut()?;
        lazy.decide_match(&mut self.visible, at, bytes)
    }

    /// Decides whether the range has content that was written whole and passes `check`, which returns the number
    /// of leading bytes that it covers. Returns these bytes, or no bytes. `None`: no word there is open.
    pub(super) fn decide_intact(
        &mut self,
        at: Off,
        len: usize,
        check: &dyn Fn(&[u8]) -> usize,
    ) -> Option<Vec<u8>> {
        let range = at.0..at.0.saturating_add(len as u64);
        let lazy = self.lazy.as_mut()?;
        lazy.is_open(&range)
            .then(|| lazy.decide_whole(&mut self.visible, &range, check))
    }

    /// Returns the visible image, with values for open words in `at..at + len` that agree with all decisions.
    pub(super) fn representative(&self, at: Off, len: usize) -> PoolImage {
        let mut image = self.visible.clone();
        if let Some(lazy) = &self.lazy {
            lazy.fill(&mut image, &(at.0..at.0.saturating_add(len as u64)));
        }
        image
    }
}
