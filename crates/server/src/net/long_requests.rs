//! The thread that executes long requests, so that other clients do not wait for them.
//!
//! ```text
//!   worker   ── connection, its next request is long ──▶ queue ─▶ thread: execute one request,
//!     │ serves other connections                                   commit, wait until durable
//!     └─◀── connection, its reply ready to be sent ────────────────┘
//! ```
//!
//! A request is long by its arguments, or because it reads large values (`commands::long`). Its worker leaves it in the
//! connection's input. Once no reply of the connection waits for a ticket, the worker lends the whole connection to
//! this thread, which has its own session.
//!
//! # Invariants
//! LONG-1  A lent connection has no reply that waits for a ticket, and its writes are visible to all sessions. So the
//!     request, which reads with another session, sees everything that earlier replies have revealed to this client.
//! LONG-2  A returned connection has only durable replies, or its undurable replies were dropped (`is_forsaken`). So
//!     the worker sends its replies without a ticket.
//! LONG-3  Every lent connection is returned, unless this thread panics while it executes the connection's request;
//!     [`LongRequests::is_over`] then returns `true`.
//! LONG-4  The queue is first-in first-out, and a connection is in it once. So a client that sends many long requests
//!     waits for the queued requests of other clients after each.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use farbank_pm::Ticket;
use farbank_store::Error;

use crate::buffers::pool::BufferPool;
use crate::net::connection::Connection;
use crate::net::executor::Executor;
use crate::state::shared::{Counter, ServerShared, WorkerFigures, WorkerMsg, WorkerPool, lock};

/// A connection that its worker has lent to the thread of long requests.
pub(crate) struct LentConnection {
    /// Number of the worker that owns it; `slot` is its slot there.
    pub(crate) worker: usize,
    pub(crate) slot: usize,
    pub(crate) conn: Box<Connection>,
}

/// Queue of connections whose next request is long, and the published counters of the thread that executes them.
#[derive(Default)]
pub(crate) struct LongRequests {
    queue: Mutex<VecDeque<LentConnection>>,
    arrived: Condvar,
    pub(crate) figures: WorkerFigures,
    is_over: AtomicBool,
}

impl LongRequests {
    /// Appends a connection to the queue.
    pub(crate) fn lend(&self, lent: LentConnection) {
        lock(&self.queue).push_back(lent);
        self.arrived.notify_one();
    }

    /// Removes the connection with this client id from the queue, if its request has not begun.
    pub(crate) fn take_back(&self, id: u64) -> Option<Box<Connection>> {
        let mut queue = lock(&self.queue);
        let place = queue
            .iter()
            .position(|lent| lent.conn.client_info.id == id)?;
        queue.remove(place).map(|lent| lent.conn)
    }

    /// Wakes the thread, so that it sees the stop signal.
    pub(crate) fn wake(&self) {
        // While this holds the lock, the thread either has yet to check the signal, or sleeps.
        let _queue = lock(&self.queue);
        self.arrived.notify_all();
    }

    /// Whether the thread has ended. If so, all connections that it returned are in their workers' inboxes.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Waits for the next connection. Returns `None` once the server is stopping.
    fn next(&self, floor: &WorkerPool) -> Option<LentConnection> {
        let mut queue = lock(&self.queue);
        loop {
            if floor.stopping() {
                return None;
            }
            if let Some(lent) = queue.pop_front() {
                return Some(lent);
            }
            let woken = self.arrived.wait(queue);
            queue = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Executes long requests until the server stops.
pub(crate) fn run(shared: &ServerShared<'_>) {
    let floor = &*shared.worker_pool;
    let _over = LongThreadGuard(floor);
    let mut executor = None;
    while let Some(mut lent) = floor.long.next(floor) {
        let executor =
            executor.get_or_insert_with(|| Executor::new(shared, &floor.long.figures, true));
        serve(executor, &mut lent.conn);
        executor.publish();
        give_back(floor, lent);
    }
}

fn give_back(floor: &WorkerPool, lent: LentConnection) {
    if let Some(worker) = floor.workers.get(lent.worker) {
        worker.send(WorkerMsg::ReturnLent(lent));
    }
}

/// When the thread ends, returns the queued connections and sets [`LongRequests::is_over`].
struct LongThreadGuard<'a>(&'a WorkerPool);

impl Drop for LongThreadGuard<'_> {
    fn drop(&mut self) {
        let waiting = std::mem::take(&mut *lock(&self.0.long.queue));
        for lent in waiting {
            give_back(self.0, lent);
        }
        self.0.long.is_over.store(true, Ordering::Release);
        self.0.wake_workers();
    }
}

/// Executes the next request of a connection, and waits until everything that its reply reveals is durable.
fn serve(executor: &mut Executor<'_>, conn: &mut Connection) {
    let shared = executor.shared;
    let bytes_max = shared.reply_bytes_max(&conn.client_info);
    conn.output.prepare_buffer(&mut executor.outputs, bytes_max);
    (conn.awaits_long, conn.unfinished) = (false, false);
    executor.execute(conn, Instant::now());
    executor.requests = 0;
    executor.outputs = BufferPool::default(); // The connection's buffer goes to its worker's pool later.
    conn.input.release_if_idle(&mut BufferPool::default()); // The request's input buffer is freed here.
    executor.counters.count(Counter::Long, 1);
    if shared.poisoned.get().is_some() && conn.output.mark.is_none() {
        conn.output.hold_until(Ticket::DURABLE);
        return;
    }
    let committed = executor.commit(Ticket::DURABLE).and_then(|ticket| {
        executor.session.wait(ticket)?;
        Ok(())
    });
    match committed {
        Ok(()) => {}
        Err(Error::Poisoned(poisoned)) => {
            executor.note_poisoned(&poisoned);
            conn.commit_failed = conn.output.abort_unacknowledged();
        }
        Err(error) => {
            tracing::error!(%error, "cannot commit a long request; closing its connection");
            conn.commit_failed = conn.output.abort_unacknowledged();
        }
    }
    conn.output.hold_until(Ticket::DURABLE);
}
