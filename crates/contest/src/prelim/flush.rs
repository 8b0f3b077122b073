//! The flush queue: empty buffers for the workers, full buffers for the flusher threads.

use std::collections::VecDeque;

use farbank_pm::sync::{Arc, Condvar, Mutex, MutexGuard, thread, unpoisoned};
use farbank_pm::{Medium, PersistCtx, Poisoned};

use super::records::{FullBuffer, RecordStore};

/// Queue of full and empty buffers.
pub(super) struct FlushQueue {
    state: Mutex<FlushState>,
    filled: Condvar,
    emptied: Condvar,
}

struct FlushState {
    filled: VecDeque<FullBuffer>,
    empty: Vec<usize>,
    closed: bool,
    failed: Option<Poisoned>,
}

impl FlushQueue {
    /// Returns a queue of `buffers` empty buffers.
    pub(super) fn new(buffers: usize) -> FlushQueue {
        FlushQueue {
            state: Mutex::new(FlushState {
                filled: VecDeque::new(),
                empty: (0..buffers).collect(),
                closed: false,
                failed: None,
            }),
            filled: Condvar::new(),
            emptied: Condvar::new(),
        }
    }

    /// Takes an empty buffer; waits until there is one. The wait ends if there are at least as many buffers as workers,
    /// because a worker has at most one buffer and hands it in before it takes another.
    pub(super) fn take(&self) -> Result<usize, Poisoned> {
        let mut state = self.state();
        loop {
            if let Some(failed) = &state.failed {
                return Err(failed.clone());
            }
            if let Some(buffer) = state.empty.pop() {
                return Ok(buffer);
            }
            state = unpoisoned(self.emptied.wait(state));
        }
    }

    /// Queues a buffer to be flushed.
    pub(super) fn hand_in(&self, filled: FullBuffer) {
        self.state().filled.push_back(filled);
        self.filled.notify_one();
    }

    /// Closes the queue. The flushers end when they have flushed all queued buffers.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.filled.notify_all();
    }

    fn next(&self) -> Option<FullBuffer> {
        let mut state = self.state();
        loop {
            if let Some(filled) = state.filled.pop_front() {
                return Some(filled);
            }
            if state.closed {
                return None;
            }
            state = unpoisoned(self.filled.wait(state));
        }
    }

    fn done(&self, buffer: usize, result: Result<(), Poisoned>) {
        let mut state = self.state();
        match result {
            Ok(()) => state.empty.push(buffer),
            // The buffer is not reused, so its records stay readable.
            Err(poisoned) => state.failed = Some(poisoned),
        }
        drop(state);
        self.emptied.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, FlushState> {
        unpoisoned(self.state.lock())
    }
}

/// Starts a thread that flushes queued buffers until the queue is closed. `ctx` is the number of its persistence
/// context, which no other thread uses.
pub(super) fn start<M: Medium>(
    ctx: u32,
    queue: Arc<FlushQueue>,
    records: Arc<RecordStore<M>>,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let (mut ctx, mut scratch) = (PersistCtx::new(ctx), Vec::new());
        while let Some(filled) = queue.next() {
            let result = records.flush(&mut ctx, filled, &mut scratch);
            queue.done(filled.buffer, result);
        }
    })
}
