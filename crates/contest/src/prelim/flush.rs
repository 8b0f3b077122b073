//! Buffers on their way: empty ones wait for workers, full ones for the flusher threads.

use std::collections::VecDeque;

use farbank_pm::sync::{Arc, Condvar, Mutex, MutexGuard, thread};
use farbank_pm::{Lane, Medium, Poisoned};

use super::records::{Filled, Records};

/// Buffers and who waits for them.
pub(super) struct Queue {
    state: Mutex<State>,
    filled: Condvar,
    emptied: Condvar,
}

struct State {
    filled: VecDeque<Filled>,
    empty: Vec<usize>,
    closed: bool,
    failed: Option<Poisoned>,
}

impl Queue {
    /// A queue of `buffers` empty buffers.
    pub(super) fn new(buffers: usize) -> Queue {
        Queue {
            state: Mutex::new(State {
                filled: VecDeque::new(),
                empty: (0..buffers).collect(),
                closed: false,
                failed: None,
            }),
            filled: Condvar::new(),
            emptied: Condvar::new(),
        }
    }

    /// An empty buffer; waits until there is one. There always will be, if there are as many as workers: each has
    /// at most one, and hands it in before it asks for another.
    pub(super) fn take(&self) -> Result<usize, Poisoned> {
        let mut state = self.state();
        loop {
            if let Some(failed) = &state.failed {
                return Err(failed.clone());
            }
            if let Some(buffer) = state.empty.pop() {
                return Ok(buffer);
            }
            state = self.emptied.wait(state).expect("no holder panics");
        }
    }

    /// Hands in a buffer to be flushed.
    pub(super) fn hand_in(&self, filled: Filled) {
        self.state().filled.push_back(filled);
        self.filled.notify_one();
    }

    /// No more will come; flushers end when they have done what came.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.filled.notify_all();
    }

    fn next(&self) -> Option<Filled> {
        let mut state = self.state();
        loop {
            if let Some(filled) = state.filled.pop_front() {
                return Some(filled);
            }
            if state.closed {
                return None;
            }
            state = self.filled.wait(state).expect("no holder panics");
        }
    }

    fn done(&self, buffer: usize, result: Result<(), Poisoned>) {
        let mut state = self.state();
        match result {
            Ok(()) => state.empty.push(buffer),
            // Its records stay readable where they are.
            Err(poisoned) => state.failed = Some(poisoned),
        }
        drop(state);
        self.emptied.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}

/// Starts a thread that flushes what is handed in until the queue is closed. Lanes from `lane` on are nobody else's.
pub(super) fn start<M: Medium>(
    lane: u32,
    queue: Arc<Queue>,
    records: Arc<Records<M>>,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let (mut lane, mut scratch) = (Lane::new(lane), Vec::new());
        while let Some(filled) = queue.next() {
            let result = records.flush(&mut lane, filled, &mut scratch);
            queue.done(filled.buffer, result);
        }
    })
}
