//! The worker's event loop: one thread, one poll, one session, many connections.
//!
//! ```text
//!   poll ─▶ release durable replies ─▶ visit each ready connection ─▶ commit ─▶ poll ...
//!                                      (read, parse, execute)         (hold or send replies)
//! ```
//!
//! # Invariants
//! SRV-WORKER-1  One commit covers every connection visited since the last commit: its ticket holds their replies.
//! SRV-WORKER-2  The worker never sleeps on a ticket. It sleeps in poll; the store wakes it when tickets become durable.
//! SRV-WORKER-3  A connection with work left is on a list, or waits for an event that will come: from its socket, its tickets or
//!     the store (free space). Socket events are edge-triggered, so `readable` and `writable` keep them.
//! SRV-WORKER-4  The worker never waits for the store to free space. Before a write it requests the space. If there is none yet,
//!     the request stays in the connection's input until the store wakes the worker. Other connections go on.
//! SRV-WORKER-5  One loop iteration visits all ready connections, one slow connection (its last visit used its whole time slice),
//!     and connections that wait for space up to the first that gets some. So a client that sends one short request at
//!     a time waits for at most two such time slices, however many clients send endless or large requests.
//! SRV-WORKER-6  The worker does not execute a long request: it lends the connection to another thread (`long_requests`). Of a
//!     lent connection the worker keeps its socket's events, its messages, and whether it was killed.
//!
//! `read_ahead` reads from several ready connections before the first is served. `messages` has the worker's part in publish and
//! subscribe, `pauses` that in CLIENT PAUSE, `limits` closes connections that exceed a limit.

mod limits;
mod messages;
mod pauses;
mod read_ahead;

use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use farbank_pm::{Poisoned, Ticket};
use farbank_store::Error;
use mio::{Events, Interest, Poll, Token};

use super::connection::Connection;
use super::connection_table::{ConnectionTable, VisitLists};
use super::delivery::{DeliveryQueue, append_kept};
use super::executor::{Executor, ServerParts};
use super::long_queue::LentConnection;
use super::worker_pool::{WorkerMsg, WorkerPool};
use crate::buffers::input::READ_BYTES;
use crate::buffers::pool::BufferPool;
use crate::exec_context::{LONG_BYTES, STALL_BYTES};
use crate::settings::size;
use crate::state::change_log::KeyChange;
use crate::state::clients::ClientInfo;
use crate::state::messages::Publication;
use crate::state::shared::ServerShared;
use crate::state::subscriptions::ClientSubscriptions;
use crate::state::threads::ServerThreads;
use crate::stats::counters::Counter;

/// The token of the worker's own waker.
pub(super) const WAKE: Token = Token(usize::MAX);

/// Requests after which a batch is committed even if more connections are ready.
const BATCH_REQUESTS: usize = 4096;
/// Bytes read or replied after which a batch is committed even if more connections are ready. So replies are sent
/// while they are in the CPU's cache, and use few buffers.
const BATCH_BYTES: usize = 1 << 20;
/// How often the worker checks for idle and slow connections.
const TICK: Duration = Duration::from_secs(1);
/// How often requests that wait for space are retried if the store has not woken the worker.
const ROOM_TICK: Duration = Duration::from_millis(5);
/// How long a stopping server tries to send the remaining replies.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(200);

/// The connections that have replies held by `ticket`.
struct HeldReplies {
    ticket: Ticket,
    slots: Vec<usize>,
    /// Messages that `ticket` holds (SRV-PUB-2).
    messages: Vec<Publication>,
    /// Changes that are announced when `ticket` is durable (SRV-TRACK-3).
    changes: Vec<KeyChange>,
    /// When the batch began, and its number of requests.
    began: Instant,
    requests: u64,
}

/// What the connections have done since the last commit.
#[derive(Default)]
struct OpenBatch {
    /// Slots of the connections visited.
    touched: Vec<usize>,
    /// Bytes read and replied.
    bytes: usize,
    /// When the worker began to execute the batch's first request.
    began: Option<Instant>,
    /// Whether keys were evicted for no request.
    has_evictions: bool,
}

/// A worker thread's state; see the module.
pub(super) struct Worker<'a> {
    shared: &'a ServerShared<'a>,
    pool: &'a WorkerPool,
    number: usize,
    poll: Poll,
    executor: Executor<'a>,
    table: ConnectionTable,
    visits: VisitLists,
    batch: OpenBatch,
    commits: WorkerCommits,
    messages: MessageWork,
    inputs: SpareInputs,
    ticked_ms: u64,
}

/// The batches that were committed.
struct WorkerCommits {
    /// Those that are not durable yet.
    held: VecDeque<HeldReplies>,
    /// The ticket of the last one.
    last_ticket: Ticket,
    recording: Recording,
}

/// Messages to deliver.
#[derive(Default)]
struct MessageWork {
    deliveries: DeliveryQueue,
    /// Subscriptions of closed connections, which are removed bit by bit.
    ended: Vec<(Arc<ClientInfo>, Box<ClientSubscriptions>)>,
}

/// Input buffers that no connection uses.
struct SpareInputs {
    pool: BufferPool,
    /// Sends buffers to the thread that frees them.
    freed: Sender<Vec<Vec<u8>>>,
}

/// Whether a worker's change log has all its writes that are not visible (SRV-TRACK-4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Recording {
    /// Clients do not track keys.
    Off,
    /// Only writes up to this ticket may be missing.
    From(Ticket),
    Complete,
}

impl<'a> Worker<'a> {
    /// Creates a worker that sends large buffers to `freed`, whose receiver frees them.
    pub(super) fn new(
        parts: &'a ServerParts<'a>,
        number: usize,
        poll: Poll,
        freed: Sender<Vec<Vec<u8>>>,
    ) -> Worker<'a> {
        let shared = &parts.shared;
        let mut executor = Executor::new(parts, &shared.stats.counters.workers[number], false);
        executor.thread.buffer_pool = BufferPool::new(buffer_pool_bytes_max(shared));
        Worker {
            shared,
            pool: parts.pool,
            number,
            poll,
            executor,
            table: ConnectionTable::default(),
            visits: VisitLists::default(),
            batch: OpenBatch::default(),
            commits: WorkerCommits {
                held: VecDeque::new(),
                last_ticket: Ticket::DURABLE,
                recording: Recording::Off,
            },
            messages: MessageWork::default(),
            inputs: SpareInputs {
                pool: BufferPool::new(buffer_pool_bytes_max(shared)),
                freed,
            },
            ticked_ms: 0,
        }
    }

    /// Serves connections until the server stops.
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        let mut found_room = false;
        while !self.pool.is_stopping() {
            let goes_on = self.visits.has_ready()
                || found_room
                || self.messages.deliveries.has_work()
                || self.executor.thread.has_evictions_left
                || !self.messages.ended.is_empty();
            let timeout = if goes_on {
                Duration::ZERO
            } else if self.visits.awaiting_room.is_empty() {
                TICK
            } else {
                ROOM_TICK
            };
            let timeout = timeout.min(self.resume_paused());
            match self.poll.poll(&mut events, Some(timeout)) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            }
            self.note(&events);
            self.handle_messages();
            self.release_durable();
            self.deliver();
            self.remove_ended();
            let flushed = self.executor.flush_if_due();
            self.publish(flushed);
            found_room = self.visit_awaiting_room();
            self.visit_ready();
            if let Some(slot) = self.visits.slow.pop_front() {
                self.visit(slot, 0);
            }
            self.commit_batch();
            self.evict_keys();
            if !self.commits.held.is_empty() {
                self.pool.workers[self.number].will_wait();
                self.release_durable();
            }
            self.follow_tracking();
            self.executor.publish();
            self.tick();
            self.free_huge();
        }
        self.shutdown();
        Ok(())
    }

    /// Sends the buffers that take long to free to another thread.
    fn free_huge(&mut self) {
        let mut huge = self.inputs.pool.take_huge();
        huge.append(&mut self.executor.thread.buffer_pool.take_huge());
        if !huge.is_empty() {
            // If that thread has ended, the buffers are freed here.
            let _ = self.inputs.freed.send(huge);
        }
    }

    /// Records readiness that `events` report for sockets, and lists their connections.
    fn note(&mut self, events: &Events) {
        for event in events {
            if event.token() == WAKE {
                continue;
            }
            let slot = event.token().0;
            let Some(conn) = self.table.get_mut(slot) else {
                if let Some(away) = self.table.lent.get_mut(&slot) {
                    away.readiness.record(event);
                }
                continue;
            };
            conn.readiness.record(event);
            self.list(slot);
        }
    }

    /// Visits connections that wait for space, up to the first that gets some (SRV-WORKER-5). Returns whether one did.
    fn visit_awaiting_room(&mut self) -> bool {
        for _ in 0..self.visits.awaiting_room.len() {
            let Some(slot) = self.visits.awaiting_room.pop_front() else {
                break;
            };
            let requests = self.executor.thread.requests;
            self.visit(slot, 0);
            if self.executor.thread.requests > requests {
                return true;
            }
        }
        false
    }

    /// Lists a connection for a later visit, unless it is listed.
    fn list(&mut self, slot: usize) {
        if let Some(conn) = self.table.get_mut(slot) {
            self.visits.add(slot, conn);
        }
    }

    fn handle_messages(&mut self) {
        let mut killed = HashSet::new();
        for message in self.pool.workers[self.number].drain_inbox() {
            match message {
                WorkerMsg::Accept(stream, tls, client_info) => {
                    let users = &self.shared.security.users;
                    self.add_connection(Connection::new(stream, tls, client_info, users));
                }
                WorkerMsg::Kill(id) => {
                    killed.insert(id);
                }
                WorkerMsg::Deliver(deliveries) => {
                    for delivery in deliveries {
                        self.messages.deliveries.push(delivery);
                    }
                }
                WorkerMsg::UsersChanged => self.follow_users(),
                WorkerMsg::ReturnLent(lent) => self.take_back(lent),
            }
        }
        if !killed.is_empty() {
            self.close_killed(&killed);
        }
    }

    /// Starts to serve a connection.
    fn add_connection(&mut self, conn: Connection) {
        let slot = self.table.reserve();
        let mut conn = Box::new(conn);
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registry = self.poll.registry();
        match registry.register(&mut conn.stream, Token(slot), interest) {
            Ok(()) => {
                conn.client_info.slot.store(slot, Ordering::Relaxed);
                self.table.put(slot, conn);
                self.list(slot);
            }
            Err(error) => {
                tracing::warn!(%error, "closed a new connection: its socket cannot be polled");
                self.table.free(slot);
                self.unregister_client(&conn.client_info);
            }
        }
    }

    /// Closes the connections with these client ids.
    fn close_killed(&mut self, killed: &HashSet<u64>) {
        for slot in 0..self.table.len() {
            if matches!(self.table.get(slot), Some(conn) if killed.contains(&conn.client_info.id)) {
                self.close(slot);
            }
        }
        let mut called_back = Vec::new();
        for (&slot, away) in &mut self.table.lent {
            if killed.contains(&away.id) {
                // A long request that has begun runs to its end; the connection is closed when it returns.
                away.is_killed = true;
                let taken = self.pool.long.take_back(away.id);
                called_back.extend(taken.map(|conn| (slot, conn)));
            }
        }
        for (slot, conn) in called_back {
            self.table.lent.remove(&slot);
            self.table.put(slot, conn);
            self.close(slot);
        }
    }

    /// Closes the connections whose user was removed or may no longer receive what they subscribe to. Lent connections
    /// follow when they return. A connection that closes after its replies is left to do so.
    fn follow_users(&mut self) {
        for slot in 0..self.table.len() {
            if let Some(conn) = self.table.get_mut(slot)
                && !conn.status.closing
                && !conn.follow_users(&self.shared.security.users)
            {
                self.close(slot);
            }
        }
    }

    /// Lends a connection whose next request is long. Its socket's events are recorded until it returns.
    fn lend(&mut self, slot: usize) {
        let Some(conn) = self.table.lend(slot) else {
            return;
        };
        let worker = self.number;
        self.pool.long.lend(LentConnection {
            worker,
            slot,
            conn,
            has_evictions_left: false,
        });
    }

    /// Takes back a lent connection after its long request was executed (LONG-2), and resumes it.
    fn take_back(&mut self, lent: LentConnection) {
        let LentConnection { slot, mut conn, .. } = lent;
        self.executor.thread.has_evictions_left |= lent.has_evictions_left;
        let Some(away) = self.table.lent.remove(&slot) else {
            return;
        };
        conn.readiness.add(away.readiness);
        let is_forsaken = conn.commit_failed;
        if !is_forsaken {
            let buffer_pool = &mut self.executor.thread.buffer_pool;
            append_kept(&mut conn, buffer_pool, self.shared, away.messages);
        }
        let kept = self.check_output_limit(&conn);
        let is_permitted = conn.status.closing || conn.follow_users(&self.shared.security.users);
        conn.publish_info();
        self.table.put(slot, conn);
        if away.is_killed || kept.is_err() || !is_permitted {
            return self.close(slot);
        }
        self.finish(slot);
        if is_forsaken {
            self.close(slot);
        }
        self.list(slot);
        self.evict_clients();
    }

    /// Sends the replies whose tickets have become durable.
    fn release_durable(&mut self) {
        while let Some(ticket) = self.commits.held.front().map(|batch| batch.ticket) {
            match self.executor.session.durable(ticket) {
                Ok(false) => break,
                Ok(true) => {
                    let Some(batch) = self.commits.held.pop_front() else {
                        break;
                    };
                    self.publish(batch.messages);
                    self.announce(&batch.changes);
                    let latency = &self.shared.stats.counters.workers[self.number].latency;
                    for slot in batch.slots {
                        if let Some(conn) = self.table.get_mut(slot) {
                            conn.output.release(ticket);
                            self.finish(slot);
                        }
                    }
                    latency.record(batch.began.elapsed(), batch.requests);
                }
                Err(poisoned) => {
                    self.abort_unacknowledged(&poisoned);
                    break;
                }
            }
        }
    }

    /// Reads what a connection has sent, after the `received` bytes that were read ahead, and executes its requests.
    fn visit(&mut self, slot: usize, received: usize) {
        let Some(mut conn) = self.table.take(slot) else {
            return;
        };
        conn.marks.listed = false;
        if conn.status.awaits_long {
            self.table.put(slot, conn); // It is lent once its tickets are durable.
            return;
        }
        if self.awaits_messages(&mut conn) {
            self.table.put(slot, conn);
            return self.list(slot);
        }
        let kept = self.serve(&mut conn, received);
        self.table.put(slot, conn);
        match kept {
            Ok(()) => {
                if let Some(conn) = self.table.get_mut(slot)
                    && !conn.marks.touched
                {
                    conn.marks.touched = true;
                    self.batch.touched.push(slot);
                }
            }
            Err(error) => self.close_failed(slot, &error),
        }
        self.evict_clients();
    }

    fn serve(&mut self, conn: &mut Connection, received: usize) -> io::Result<()> {
        conn.status.stalled = conn.output.pending() >= STALL_BYTES;
        (conn.status.awaits_room, conn.status.unfinished) = (false, false);
        conn.status.paused = false;
        if conn.status.stalled {
            return Ok(());
        }
        let bytes_max = self.shared.reply_bytes_max(&conn.client_info);
        conn.output
            .prepare_buffer(&mut self.executor.thread.buffer_pool, bytes_max);
        let (bytes, pending) = (self.batch.bytes, conn.output.pending());
        let requests = self.executor.thread.requests;
        let mut deadline = None;
        if !conn.status.closing && !conn.input.unread().is_empty() {
            // Input that was read ahead, or that a stall left unexecuted, comes first.
            deadline = Some(self.execute(conn, deadline));
        }
        if conn.readiness.readable && conn.status.goes_on() && self.receive(conn)?.is_some() {
            deadline = Some(self.execute(conn, deadline));
        }
        if conn.input.unread().len() > size(&self.shared.settings.input_bytes_max) {
            return Err(io::Error::other("request above client-query-buffer-limit"));
        }
        conn.marks.is_pipelining = self.executor.thread.requests > requests + 1;
        self.check_output_limit(conn)?;
        conn.input.release_if_idle(&mut self.inputs.pool);
        self.batch.bytes += conn.output.pending().saturating_sub(pending);
        conn.marks.is_slow = received + self.batch.bytes - bytes >= LONG_BYTES
            && deadline.is_some_and(|deadline| Instant::now() >= deadline);
        conn.publish_info();
        conn.client_info
            .input_bytes
            .store(conn.input.bytes(), Ordering::Relaxed);
        self.shared
            .clients
            .count_memory(&conn.client_info, conn.memory_bytes());
        Ok(())
    }

    /// Evicts keys for a slice if the last eviction has left the store above `maxmemory`. Its deletes are a batch of their
    /// own, so no reply waits for them.
    fn evict_keys(&mut self) {
        if self.executor.thread.has_evictions_left && self.executor.evict() {
            self.batch.has_evictions = true;
            self.commit_batch();
        }
    }

    /// Executes a connection's requests until `deadline`, or for one time slice. Returns when the time slice ends.
    fn execute(&mut self, conn: &mut Connection, deadline: Option<Instant>) -> Instant {
        let now = Instant::now();
        self.batch.began.get_or_insert(now);
        let deadline = deadline.unwrap_or_else(|| now + self.shared.options.time_slice);
        self.executor.execute(conn, now, deadline);
        deadline
    }

    /// Ends the batch: commits once, then sends or holds the replies of every connection visited in it.
    fn commit_batch(&mut self) {
        // Writes staged for a connection that is closed by now block their keys until they are committed.
        let requests = std::mem::take(&mut self.executor.thread.requests) as u64;
        let began = self.batch.began.take();
        self.batch.bytes = 0;
        let has_evictions = std::mem::take(&mut self.batch.has_evictions);
        if self.batch.touched.is_empty() && requests == 0 && !has_evictions {
            return;
        }
        let began = began.unwrap_or_else(Instant::now);
        let mut changes = match self.executor.thread.records {
            true => self.executor.take_changes(),
            false => Vec::new(),
        };
        self.executor.thread.counters.count(Counter::Batches, 1);
        let ticket = match self.commit() {
            Ok(ticket) => ticket,
            Err(Error::Poisoned(poisoned)) => {
                self.abort_unacknowledged(&poisoned);
                Ticket::DURABLE
            }
            Err(error) => {
                tracing::error!(%error, "cannot commit a batch; closing the connections that wait for it");
                self.close_unacknowledged();
                self.announce(&changes);
                self.executor.relist(std::mem::take(&mut changes));
                Ticket::DURABLE
            }
        };
        self.commits.last_ticket = ticket;
        let messages = self.publish_outbox(ticket);
        if ticket == Ticket::DURABLE {
            // Changes of a batch that could not be committed may be visible as well.
            self.announce(&std::mem::take(&mut changes));
        }
        let touched = std::mem::take(&mut self.batch.touched);
        let mut slots = Vec::new();
        for &slot in &touched {
            let Some(conn) = self.table.get_mut(slot) else {
                continue;
            };
            conn.marks.touched = false;
            if conn.output.hold_until(ticket) {
                slots.push(slot);
            }
            self.finish(slot);
        }
        self.batch.touched = touched;
        self.batch.touched.clear();
        if !slots.is_empty() || !messages.is_empty() || !changes.is_empty() {
            self.commits.held.push_back(HeldReplies {
                ticket,
                slots,
                messages,
                changes,
                began,
                requests,
            });
        } else {
            let latency = &self.shared.stats.counters.workers[self.number].latency;
            latency.record(began.elapsed(), requests);
        }
    }

    /// Commits the batch. Once the medium has failed, commits only if a reply of the batch must wait for it.
    fn commit(&mut self) -> Result<Ticket, Error> {
        if self.shared.durability.poisoned.get().is_some() && !self.has_marked_replies() {
            self.executor.thread.outbox.abort_unacknowledged();
            return Ok(Ticket::DURABLE);
        }
        let earlier = self.commits.held.back().map(|batch| batch.ticket);
        self.executor.commit(earlier.unwrap_or(Ticket::DURABLE))
    }

    /// Whether a connection visited in this batch has replies that must wait for the commit.
    fn has_marked_replies(&self) -> bool {
        self.batch
            .touched
            .iter()
            .any(|&slot| matches!(self.table.get(slot), Some(conn) if conn.output.mark.is_some()))
    }

    /// Handles a failed medium: drops all replies that wait for a commit or a ticket, and closes their connections.
    fn abort_unacknowledged(&mut self, poisoned: &Poisoned) {
        self.shared.note_poisoned(poisoned);
        self.close_unacknowledged();
    }

    fn close_unacknowledged(&mut self) {
        let mut changes = Vec::new();
        for batch in std::mem::take(&mut self.commits.held) {
            changes.extend(batch.changes);
        }
        // They are announced now and with the next batch, because they may be visible now or then.
        self.announce(&changes);
        self.executor.relist(changes);
        self.executor.thread.outbox.abort_unacknowledged();
        for slot in 0..self.table.len() {
            if let Some(conn) = self.table.get_mut(slot)
                && conn.output.abort_unacknowledged()
            {
                while conn.can_send() {
                    if let Err(error) = conn.send(&mut self.executor.thread.buffer_pool) {
                        tracing::debug!(%error, "connection lost");
                        break;
                    }
                }
                self.close(slot);
            }
        }
    }

    /// Sends the released replies, then closes, lends or relists the connection.
    fn finish(&mut self, slot: usize) {
        let Some(conn) = self.table.get_mut(slot) else {
            return;
        };
        if conn.can_send() {
            match conn.send(&mut self.executor.thread.buffer_pool) {
                Ok(bytes) => {
                    self.executor
                        .thread
                        .counters
                        .count(Counter::BytesOut, bytes);
                    self.executor.thread.counters.count(Counter::Writes, 1);
                }
                Err(error) => return self.close_failed(slot, &error),
            }
        }
        let pending = conn.output.pending();
        conn.client_info
            .output_bytes
            .store(pending, Ordering::Relaxed);
        let is_subscribed = conn.client_info.is_subscribed.load(Ordering::Relaxed);
        let limit = self.shared.settings.output_limit(is_subscribed);
        if pending > limit.bytes_max() {
            self.executor
                .thread
                .counters
                .count(Counter::OutputLimits, 1);
            tracing::warn!(
                client = conn.client_info.id,
                pending,
                "closed: its unsent replies exceed client-output-buffer-limit"
            );
            return self.close(slot);
        }
        if conn.status.closing && pending == 0 && !conn.output.holds() && !conn.has_unsent_tls() {
            return self.close(slot);
        }
        conn.output
            .release_if_empty(&mut self.executor.thread.buffer_pool);
        let memory_bytes = conn.memory_bytes();
        self.shared
            .clients
            .count_memory(&conn.client_info, memory_bytes);
        if conn.status.awaits_long {
            if !conn.output.holds() && !self.pool.is_stopping() {
                self.lend(slot); // LONG-1
            }
            return;
        }
        let resumes = conn.status.stalled && pending < STALL_BYTES / 2;
        let ready = conn.readiness.readable && !conn.status.stalled && !conn.status.closing;
        let sends_on = conn.can_send();
        conn.marks.is_slow |= sends_on;
        let waits = conn.status.awaits_room || conn.status.paused;
        if waits || resumes || ready || conn.status.unfinished || sends_on {
            self.list(slot);
        }
    }

    /// Closes a connection whose socket or input has failed.
    fn close_failed(&mut self, slot: usize, error: &io::Error) {
        tracing::debug!(%error, "connection lost");
        self.close(slot);
    }

    fn close(&mut self, slot: usize) {
        let Some(mut conn) = self.table.take(slot) else {
            return;
        };
        if let Err(error) = self.poll.registry().deregister(&mut conn.stream) {
            tracing::debug!(%error, "cannot remove a connection from the poll");
        }
        conn.end_tls();
        self.end_subscriptions(&mut conn);
        conn.end_tracking(&self.shared.interests.tracking);
        std::mem::take(&mut conn.output).into_pool(&mut self.executor.thread.buffer_pool);
        std::mem::take(&mut conn.input).release(&mut self.inputs.pool);
        self.unregister_client(&conn.client_info);
        self.table.free(slot);
    }

    fn unregister_client(&self, client_info: &ClientInfo) {
        self.shared.clients.mark_closing(client_info);
        self.shared.clients.remove(client_info.id);
        self.pool.workers[self.number]
            .connections
            .fetch_sub(1, Ordering::Relaxed);
    }

    /// Stops the worker: waits for its tickets and lent connections, sends the remaining replies, closes everything.
    fn shutdown(&mut self) {
        self.commit_batch();
        let mut events = Events::with_capacity(64);
        while !self.table.lent.is_empty() {
            let was_over = self.pool.long.is_over();
            self.handle_messages();
            if was_over {
                break; // LONG-3
            }
            match self.poll.poll(&mut events, Some(TICK)) {
                Ok(()) => self.note(&events),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::error!(%error, "polling failed during shutdown; not waiting for long requests");
                    break;
                }
            }
        }
        if let Some(batch) = self.commits.held.back() {
            match self.executor.session.wait(batch.ticket) {
                Ok(()) => self.release_durable(),
                Err(poisoned) => self.abort_unacknowledged(&poisoned),
            }
        }
        let deadline = Instant::now() + SHUTDOWN_GRACE;
        while self.messages.deliveries.has_work() && Instant::now() < deadline {
            self.deliver();
        }
        loop {
            let owing = self.table.iter().any(Connection::has_unsent);
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = match self.table.iter().any(Connection::can_send) {
                true => Duration::ZERO,
                false => left,
            };
            if !owing || left.is_zero() || self.poll.poll(&mut events, Some(wait)).is_err() {
                break;
            }
            self.note(&events);
            for slot in 0..self.table.len() {
                self.finish(slot);
            }
        }
        for slot in 0..self.table.len() {
            self.close(slot);
        }
        for message in self.pool.workers[self.number].drain_inbox() {
            if let WorkerMsg::Accept(_, _, client_info) = message {
                self.unregister_client(&client_info);
            }
        }
    }
}

/// Most bytes that unused buffers may take for each direction: an eighth of the limit of all clients.
fn buffer_pool_bytes_max(shared: &ServerShared<'_>) -> usize {
    shared.settings.clients_bytes_max() / 8
}

const _: () = assert!(READ_BYTES <= BATCH_BYTES, "a read fits a batch");
