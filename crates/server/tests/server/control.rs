//! Control of the volatile store by tests: hold tickets, complete them, make the store fail.

use std::sync::atomic::Ordering;

use farbank_pm::Poisoned;

use crate::harness::wait_until;
use crate::volatile::{Volatile, wake};

impl Volatile {
    /// Stops the clock at `ms`.
    pub(crate) fn set_clock(&self, ms: u64) {
        self.inner.clock_ms.store(ms, Ordering::Relaxed);
    }

    /// Makes new tickets durable only by [`Volatile::turn`].
    pub(crate) fn hold(&self) {
        self.inner.state().held = true;
    }

    /// Number of tickets that are not durable.
    pub(crate) fn held(&self) -> usize {
        self.inner.state().unturned.len()
    }

    /// Makes the oldest ticket durable.
    pub(crate) fn turn(&self) {
        let mut state = self.inner.state();
        if let Some((ticket, writes)) = state.unturned.pop_first() {
            state.apply(writes);
            state.turned = ticket;
        }
        wake(state);
    }

    /// Makes all held tickets durable now, and new tickets at once.
    pub(crate) fn let_go(&self) {
        self.inner.state().held = false;
        while self.held() > 0 {
            self.turn();
        }
    }

    /// Returns the number of keys of each prefetch since the last call.
    pub(crate) fn take_prefetches(&self) -> Vec<usize> {
        std::mem::take(&mut self.inner.state().prefetches)
    }

    /// Makes operations on many keys wait.
    pub(crate) fn close_gate(&self) {
        self.inner.gate().is_closed = true;
    }

    /// Blocks until an operation on many keys waits.
    pub(crate) fn await_waiting(&self) {
        wait_until(|| self.inner.gate().waiting > 0);
    }

    /// Whether an operation on many keys waits.
    pub(crate) fn is_waiting(&self) -> bool {
        self.inner.gate().waiting > 0
    }

    /// Lets waiting and new operations continue.
    pub(crate) fn open_gate(&self) {
        self.inner.gate().is_closed = false;
        self.inner.opened.notify_all();
    }

    /// Makes the medium fail.
    pub(crate) fn poison(&self, reason: &str) {
        let mut state = self.inner.state();
        state.poisoned = Some(Poisoned::new(reason));
        wake(state);
    }

    /// Makes the pool full, or no longer full.
    pub(crate) fn fill(&self, full: bool) {
        self.inner.state().full = full;
    }

    /// Damages the record of `key` in database 0.
    pub(crate) fn damage(&self, key: &str) {
        self.inner.state().damaged.push((0, key.into()));
    }
}
