//! Queue of connections whose next request is long. `long_requests` has its invariants (LONG-1 to LONG-4).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};

use farbank_pm::sync::ignore_poison;

use super::connection::Connection;
use crate::lock::lock;
use crate::state::threads::ServerThreads;

/// A connection that its worker has lent to the thread of long requests.
pub(super) struct LentConnection {
    /// Number of the worker that owns it; `slot` is its slot there.
    pub(super) worker: usize,
    pub(super) slot: usize,
    pub(super) conn: Box<Connection>,
    /// The store exceeded `maxmemory` when the time for the request's evictions was over.
    pub(super) has_evictions_left: bool,
}

/// Queue of connections whose next request is long.
#[derive(Default)]
pub(super) struct LongRequests {
    queue: Mutex<VecDeque<LentConnection>>,
    arrived: Condvar,
    is_over: AtomicBool,
}

impl LongRequests {
    /// Appends a connection to the queue.
    pub(super) fn lend(&self, lent: LentConnection) {
        lock(&self.queue).push_back(lent);
        self.arrived.notify_one();
    }

    /// Removes the connection with this client id from the queue, if its request has not begun.
    pub(super) fn take_back(&self, id: u64) -> Option<Box<Connection>> {
        let mut queue = lock(&self.queue);
        let place = queue
            .iter()
            .position(|lent| lent.conn.client_info.id == id)?;
        queue.remove(place).map(|lent| lent.conn)
    }

    /// Wakes the thread, so that it sees the stop signal.
    pub(super) fn wake(&self) {
        // While this holds the lock, the thread either has yet to check the signal, or sleeps.
        let _queue = lock(&self.queue);
        self.arrived.notify_all();
    }

    /// Whether the thread has ended. If so, all connections that it returned are in their workers' inboxes.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Waits for the next connection. Returns `None` once the server is stopping.
    pub(super) fn next(&self, threads: &dyn ServerThreads) -> Option<LentConnection> {
        let mut queue = lock(&self.queue);
        loop {
            if threads.is_stopping() {
                return None;
            }
            if let Some(lent) = queue.pop_front() {
                return Some(lent);
            }
            queue = ignore_poison(self.arrived.wait(queue));
        }
    }

    /// Takes all connections, because the thread ends.
    pub(super) fn drain(&self) -> VecDeque<LentConnection> {
        std::mem::take(&mut *lock(&self.queue))
    }

    /// Records that the thread has returned all connections and ends.
    pub(super) fn set_over(&self) {
        self.is_over.store(true, Ordering::Release);
    }
}
