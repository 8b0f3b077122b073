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
//!     `LongRequests::is_over` then returns `true`.
//! LONG-4  The queue is first-in first-out, and a connection is in it once. So a client that sends many long requests
//!     waits for the queued requests of other clients after each.
//! LONG-5  Evictions that the request has left are the worker's: it goes on with them between its requests.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Instant;

use farbank_pm::Ticket;
use farbank_store::Error;

use super::connection::Connection;
use super::executor::{Executor, ServerParts};
use super::long_queue::LentConnection;
use super::worker_pool::{WorkerMsg, WorkerPool};
use crate::buffers::pool::BufferPool;
use crate::state::saves::{BegunCopy, CopyRequest, SaveJob};
use crate::state::shared::ServerShared;
use crate::stats::counters::Counter;

/// Executes long requests until the server stops.
pub(super) fn run(parts: &ServerParts<'_>) {
    let pool = parts.pool;
    let _over = LongThreadGuard(pool);
    let mut executor = None;
    while let Some(mut lent) = pool.long.next(pool) {
        let executor = executor
            .get_or_insert_with(|| Executor::new(parts, &parts.shared.stats.counters.long, true));
        serve(executor, pool, &mut lent.conn);
        lent.has_evictions_left = std::mem::take(&mut executor.thread.has_evictions_left);
        executor.publish();
        give_back(pool, lent);
    }
}

fn give_back(pool: &WorkerPool, lent: LentConnection) {
    if let Some(worker) = pool.workers.get(lent.worker) {
        worker.send(WorkerMsg::ReturnLent(lent));
    }
}

/// When the thread ends, returns the queued connections and then lets the workers know (LONG-3).
struct LongThreadGuard<'a>(&'a WorkerPool);

impl Drop for LongThreadGuard<'_> {
    fn drop(&mut self) {
        for lent in self.0.long.drain() {
            give_back(self.0, lent);
        }
        self.0.long.set_over();
        self.0.wake_workers();
    }
}

/// Executes the next request of a connection, and waits until everything that its reply reveals is durable.
fn serve(executor: &mut Executor<'_>, pool: &WorkerPool, conn: &mut Connection) {
    let shared = executor.shared;
    let bytes_max = shared.reply_bytes_max(&conn.client_info);
    conn.output
        .prepare_buffer(&mut executor.thread.buffer_pool, bytes_max);
    (conn.status.awaits_long, conn.status.unfinished) = (false, false);
    conn.status.paused = false;
    let now = Instant::now();
    shared.interests.tracking.begin_long();
    executor.execute(conn, now, now);
    executor.thread.requests = 0;
    executor.thread.buffer_pool = BufferPool::default(); // The connection's buffer goes to its worker's pool later.
    conn.input.release_if_idle(&mut BufferPool::default()); // The request's input buffer is freed here.
    executor.thread.counters.count(Counter::Long, 1);
    if shared.durability.poisoned.get().is_some() && conn.output.mark.is_none() {
        conn.output.hold_until(Ticket::DURABLE);
        return publish(executor, pool);
    }
    let committed = executor.commit(Ticket::DURABLE).and_then(|ticket| {
        executor.session.wait(ticket)?;
        Ok(())
    });
    match committed {
        Ok(()) => {}
        Err(Error::Poisoned(poisoned)) => {
            shared.note_poisoned(&poisoned);
            conn.commit_failed = conn.output.abort_unacknowledged();
        }
        Err(error) => {
            tracing::error!(%error, "cannot commit a long request; closing its connection");
            conn.commit_failed = conn.output.abort_unacknowledged();
        }
    }
    conn.output.hold_until(Ticket::DURABLE);
    if conn.commit_failed {
        executor.thread.outbox.abort_unacknowledged();
    }
    publish(executor, pool);
    if let Some(copy) = executor.thread.begun_copy.take() {
        pass_on(shared, conn, copy);
    }
}

/// Passes the client of a connection on to the thread of backups, with its copy of the store. The connection itself is
/// closed, which does not end the client's stream.
fn pass_on(shared: &ServerShared<'_>, conn: &mut Connection, copy: BegunCopy) {
    let is_first = conn.output.pending() == 0 && !conn.commit_failed;
    conn.commit_failed = true;
    if !is_first {
        tracing::info!("a client has sent SYNC before it has read earlier replies; closing it");
        return;
    }
    match conn.stream.as_fd().try_clone_to_owned() {
        Ok(socket) => {
            let BegunCopy { preamble, backup } = copy;
            let request = CopyRequest {
                socket,
                preamble,
                backup,
            };
            let saves = &shared.durability.saves;
            saves.copies.fetch_add(1, Ordering::Relaxed);
            saves.copies_now.fetch_add(1, Ordering::Relaxed);
            shared.threads.saves().push(SaveJob::Copy(request));
        }
        Err(error) => tracing::error!(%error, "cannot pass a connection on; closing it"),
    }
}

/// Sends the messages that the request has published, and the invalidations of its changes.
fn publish(executor: &mut Executor<'_>, pool: &WorkerPool) {
    executor.shared.interests.tracking.end_long();
    let changes = executor.take_changes();
    pool.publish(executor.announce(&changes), None);
    if !executor.thread.outbox.is_empty() {
        let (mut messages, durable) = executor.thread.outbox.take();
        messages.extend(durable);
        pool.publish(messages, None);
    }
}
