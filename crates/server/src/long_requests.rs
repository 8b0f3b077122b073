//! Long requests: one thread executes them, so that no client waits for another's.
//!
//! ```text
//!   worker   ── connection, its next request is long ──▶ queue ─▶ thread: execute one request,
//!     │ serves the others                                          commit, wait until durable
//!     └─◀── connection, its reply ready to leave ──────────────────┘
//! ```
//!
//! A request is long by its arguments, or because of the values it turns out to read (`cmd::long`). Its worker
//! leaves it in the connection's input. When nothing of the connection waits for a ticket any more, the worker lends the whole
//! connection to this thread, which has a session of its own.
//!
//! # Invariants
//! LONG-1  A lent connection has no reply that waits for a ticket, and its writes are visible: what the request reads
//!     with another session includes what this client was told before.
//! LONG-2  A connection comes back with its replies durable, or forsaken: the worker sends them without a ticket.
//! LONG-3  Every lent connection comes back, unless this thread panics: then [`LongRequests::is_over`] says so.
//! LONG-4  The queue keeps order, and a connection is in it once: a client that sends many long requests waits for the others'
//!     after each.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use farbank_kv::store::Error;
use farbank_pm::Ticket;

use crate::buffer_pool::BufferPool;
use crate::connection::Connection;
use crate::executor::Executor;
use crate::shared::{Counter, ServerShared, WorkerFigures, WorkerMsg, WorkerPool, lock};

/// A connection on its way to the thread of long requests, or back.
pub(crate) struct LentConnection {
    /// The worker it belongs to, and its slot there.
    pub(crate) worker: usize,
    pub(crate) slot: usize,
    pub(crate) conn: Box<Connection>,
}

/// Connections whose next request is long, and what the thread that executes them shows.
#[derive(Default)]
pub(crate) struct LongRequests {
    queue: Mutex<VecDeque<LentConnection>>,
    arrived: Condvar,
    pub(crate) figures: WorkerFigures,
    is_over: AtomicBool,
}

impl LongRequests {
    /// Queues a connection, whose next request is executed after those of the others.
    pub(crate) fn lend(&self, lent: LentConnection) {
        lock(&self.queue).push_back(lent);
        self.arrived.notify_one();
    }

    /// Takes the connection of this number back, if its request has not begun.
    pub(crate) fn take_back(&self, id: u64) -> Option<Box<Connection>> {
        let mut queue = lock(&self.queue);
        let place = queue.iter().position(|lent| lent.conn.card.id == id)?;
        queue.remove(place).map(|lent| lent.conn)
    }

    /// Wakes the thread, so that it sees that the server is to end.
    pub(crate) fn wake(&self) {
        // Under the lock: the thread is before its look at the signal, or sleeps.
        let _queue = lock(&self.queue);
        self.arrived.notify_all();
    }

    /// Whether the thread has ended. All connections that will ever come back are in their workers' mail then.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// The next connection; `None` once the server is to end.
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

/// Executes long requests until the server ends.
pub(crate) fn run(shared: &ServerShared<'_>) {
    let floor = &*shared.floor;
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
    if let Some(desk) = floor.desks.get(lent.worker) {
        desk.send(WorkerMsg::Back(lent));
    }
}

/// Gives back what was not begun, and says that the thread has ended.
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

/// Executes the next request of a connection, and waits until what it tells is durable.
fn serve(executor: &mut Executor<'_>, conn: &mut Connection) {
    let shared = executor.shared;
    let bytes_max = shared.reply_bytes_max(&conn.card);
    conn.output.open(&mut executor.outputs, bytes_max);
    (conn.awaits_long, conn.unfinished) = (false, false);
    executor.execute(conn, Instant::now());
    executor.requests = 0;
    executor.outputs = BufferPool::default(); // The connection takes its buffer to its worker's shelf.
    conn.input.rest(&mut BufferPool::default()); // What the request has needed is freed here.
    executor.tally.count(Counter::Long, 1);
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
            conn.is_forsaken = conn.output.abort_unacknowledged();
        }
        Err(error) => {
            tracing::error!(%error, "a long request could not be committed");
            conn.is_forsaken = conn.output.abort_unacknowledged();
        }
    }
    conn.output.hold_until(Ticket::DURABLE);
}
