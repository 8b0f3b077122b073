//! What tests do to the volatile store: hold its tickets, turn them, make it fail.

use std::sync::atomic::Ordering;

use farbank_pm::Poisoned;

use crate::harness::wait_until;
use crate::volatile::{Volatile, wake};

impl Volatile {
    /// Stops the clock at `ms`.
    pub(crate) fn set_clock(&self, ms: u64) {
        self.inner.clock_ms.store(ms, Ordering::Relaxed);
    }

    /// From now on tickets turn only when told.
    pub(crate) fn hold(&self) {
        self.inner.state().held = true;
    }

    /// How many tickets have not turned.
    pub(crate) fn held(&self) -> usize {
        self.inner.state().unturned.len()
    }

    /// Turns the oldest ticket.
    pub(crate) fn turn(&self) {
        let mut state = self.inner.state();
        if let Some((ticket, writes)) = state.unturned.pop_first() {
            state.apply(writes);
            state.turned = ticket;
        }
        wake(state);
    }

    /// From now on tickets turn at once; those held turn now.
    pub(crate) fn let_go(&self) {
        self.inner.state().held = false;
        while self.held() > 0 {
            self.turn();
        }
    }

    /// From now on operations on many keys wait.
    pub(crate) fn close_gate(&self) {
        self.inner.gate().is_closed = true;
    }

    /// Waits until an operation on many keys waits.
    pub(crate) fn await_waiting(&self) {
        wait_until(|| self.inner.gate().waiting > 0);
    }

    /// Whether an operation on many keys waits.
    pub(crate) fn is_waiting(&self) -> bool {
        self.inner.gate().waiting > 0
    }

    /// From now on no operation waits; those that do go on.
    pub(crate) fn open_gate(&self) {
        self.inner.gate().is_closed = false;
        self.inner.opened.notify_all();
    }

    /// The medium fails.
    pub(crate) fn poison(&self, reason: &str) {
        let mut state = self.inner.state();
        state.poisoned = Some(Poisoned {
            reason: reason.into(),
        });
        wake(state);
    }

    /// From now on the pool is full, or not.
    pub(crate) fn fill(&self, full: bool) {
        self.inner.state().full = full;
    }

    /// The record of `key` in database 0 is damaged.
    pub(crate) fn damage(&self, key: &str) {
        self.inner.state().damaged.push((0, key.into()));
    }
}
