//! A worker: one thread, one poll, one session, many connections.
//!
//! ```text
//!   poll ─▶ release what turned ─▶ visit each ready connection ─▶ settle ─▶ poll ...
//!                                  (read, parse, execute)         (one commit; hold or send)
//! ```
//!
//! # Invariants
//! W1  One commit serves every connection visited since the last: its ticket holds their replies.
//! W2  The worker never sleeps on a ticket. It sleeps in poll, and is woken when tickets turn.
//! W3  A connection with something left to do is on a list, or waits for an event that will come:
//!     its socket (edge-triggered, so `readable` and `writable` are remembered), its tickets, or room in the
//!     store.
//! W4  The worker never waits until the store has made room: before a write it asks, and if there is none yet
//!     this connection's request stays in the input until the store wakes the worker. Others go on.
//! W5  A round visits one connection whose last turn took its whole time, and of those that wait for room up to one that
//!     finds some, beside all others. So a client that sends one short request at a time waits for two such turns at most,
//!     however many clients send requests without end, or large ones.
//! W6  A request that is long is not executed here: its connection is lent to another thread (`long`). Of a lent
//!     connection the worker has the events of its socket, and whether it was killed.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use farbank_kv::store::Error;
use farbank_pm::{Poisoned, Ticket};
use mio::event::Event;
use mio::{Events, Interest, Poll, Token};

use crate::buffer_pool::BufferPool;
use crate::connection::{Connection, READ_BYTES};
use crate::exec_context::{LONG_BYTES, STALL_BYTES};
use crate::executor::Executor;
use crate::long_requests::LentConnection;
use crate::settings::size;
use crate::shared::{ClientInfo, Counter, ServerShared, WorkerMsg};

/// The token of the worker's own waker.
pub(crate) const WAKE: Token = Token(usize::MAX);

/// Requests after which a batch is committed though more connections are ready.
const BATCH_REQUESTS: usize = 4096;
/// Bytes read, or replied, after which a batch is committed though more connections are ready: replies are sent
/// while the processor's cache has them, and from few buffers.
const BATCH_BYTES: usize = 1 << 20;
/// How often idle and slow connections are looked for.
const TICK: Duration = Duration::from_secs(1);
/// How often requests that wait for room ask the store again if it has not woken the worker.
const ROOM_TICK: Duration = Duration::from_millis(5);
/// How long a closing server tries to send what clients are owed.
const FAREWELL: Duration = Duration::from_millis(200);

/// What is known of a lent connection.
struct LentState {
    id: u64,
    readable: bool,
    writable: bool,
    ending: bool,
    is_killed: bool,
}

impl LentState {
    fn of(conn: &Connection) -> LentState {
        LentState {
            id: conn.card.id,
            readable: false,
            writable: false,
            ending: false,
            is_killed: false,
        }
    }

    /// Remembers what its socket has become able to do.
    fn note(&mut self, event: &Event) {
        self.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        self.ending |= event.is_read_closed() || event.is_error();
        self.writable |= event.is_writable();
    }
}

/// Connections that a ticket holds replies of.
struct HeldReplies {
    ticket: Ticket,
    slots: Vec<usize>,
}

pub(crate) struct Worker<'a> {
    shared: &'a ServerShared<'a>,
    number: usize,
    poll: Poll,
    executor: Executor<'a>,
    conns: Vec<Option<Box<Connection>>>,
    /// Slots whose connections are lent to the thread of long requests.
    away: HashMap<usize, LentState>,
    free: Vec<usize>,
    /// Connections to visit.
    listed: VecDeque<usize>,
    /// Connections to visit whose last turn took its whole time.
    slow: VecDeque<usize>,
    /// Connections visited since the last commit.
    touched: Vec<usize>,
    /// Connections whose next request waits for room in the store.
    awaiting_room: VecDeque<usize>,
    held: VecDeque<HeldReplies>,
    batch_bytes: usize,
    inputs: BufferPool,
    /// Takes buffers that another thread frees.
    freed: Sender<Vec<Vec<u8>>>,
    ticked_ms: u64,
}

impl<'a> Worker<'a> {
    /// A worker that leaves large buffers to the receiver of `freed`, which frees them.
    pub(crate) fn new(
        shared: &'a ServerShared<'a>,
        number: usize,
        poll: Poll,
        freed: Sender<Vec<Vec<u8>>>,
    ) -> Worker<'a> {
        let figures = &shared.floor.desks[number].figures;
        let mut executor = Executor::new(shared, figures, false);
        executor.outputs = BufferPool::new(shelf_bytes(shared));
        Worker {
            shared,
            number,
            poll,
            executor,
            conns: Vec::new(),
            away: HashMap::new(),
            free: Vec::new(),
            listed: VecDeque::new(),
            slow: VecDeque::new(),
            touched: Vec::new(),
            awaiting_room: VecDeque::new(),
            held: VecDeque::new(),
            batch_bytes: 0,
            inputs: BufferPool::new(shelf_bytes(shared)),
            freed,
            ticked_ms: 0,
        }
    }

    /// Serves until the server ends.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        let mut found_room = false;
        while !self.shared.floor.stopping() {
            let goes_on = !self.listed.is_empty() || !self.slow.is_empty() || found_room;
            let timeout = if goes_on {
                Duration::ZERO
            } else if self.awaiting_room.is_empty() {
                TICK
            } else {
                ROOM_TICK
            };
            match self.poll.poll(&mut events, Some(timeout)) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            }
            self.note(&events);
            self.handle_messages();
            self.release_turned();
            self.flush_if_due();
            found_room = self.visit_awaiting_room();
            // Those listed while others are visited come next time round: their turn is not skipped.
            for _ in 0..self.listed.len() {
                if let Some(slot) = self.listed.pop_front() {
                    self.visit(slot);
                }
                if self.executor.requests >= BATCH_REQUESTS || self.batch_bytes >= BATCH_BYTES {
                    self.settle();
                }
            }
            if let Some(slot) = self.slow.pop_front() {
                self.visit(slot);
            }
            self.settle();
            if !self.held.is_empty() {
                self.shared.floor.desks[self.number].will_wait();
                self.release_turned();
            }
            self.executor.publish();
            self.tick();
            self.free_huge();
        }
        self.shutdown();
        Ok(())
    }

    /// Has another thread free the buffers that would take long here.
    fn free_huge(&mut self) {
        let mut huge = self.inputs.take_huge();
        huge.append(&mut self.executor.outputs.take_huge());
        if !huge.is_empty() {
            // Else its thread has ended, and the buffers are freed here.
            let _ = self.freed.send(huge);
        }
    }

    /// Remembers what sockets have become able to do.
    fn note(&mut self, events: &Events) {
        for event in events {
            if event.token() == WAKE {
                continue;
            }
            let slot = event.token().0;
            let Some(conn) = self.conns.get_mut(slot).and_then(Option::as_mut) else {
                if let Some(away) = self.away.get_mut(&slot) {
                    away.note(event);
                }
                continue;
            };
            conn.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
            conn.ending |= event.is_read_closed() || event.is_error();
            conn.writable |= event.is_writable();
            self.list(slot);
        }
    }

    /// Visits connections that wait for room, up to one that finds some (W5); whether one did.
    fn visit_awaiting_room(&mut self) -> bool {
        for _ in 0..self.awaiting_room.len() {
            let Some(slot) = self.awaiting_room.pop_front() else {
                break;
            };
            let requests = self.executor.requests;
            self.visit(slot);
            if self.executor.requests > requests {
                return true;
            }
        }
        false
    }

    fn list(&mut self, slot: usize) {
        if let Some(conn) = self.conns.get_mut(slot).and_then(Option::as_mut)
            && !conn.listed
        {
            conn.listed = true;
            let list = match (conn.awaits_room, conn.unfinished || conn.is_slow) {
                (true, _) => &mut self.awaiting_room,
                (false, true) => &mut self.slow,
                (false, false) => &mut self.listed,
            };
            list.push_back(slot);
        }
    }

    fn handle_messages(&mut self) {
        let mut doomed = HashSet::new();
        for mail in self.shared.floor.desks[self.number].drain_inbox() {
            match mail {
                WorkerMsg::Welcome(stream, card) => {
                    let slot = self.free.pop().unwrap_or_else(|| {
                        self.conns.push(None);
                        self.conns.len() - 1
                    });
                    let mut conn = Box::new(Connection::new(stream, card));
                    let interest = Interest::READABLE | Interest::WRITABLE;
                    let registered =
                        self.poll
                            .registry()
                            .register(&mut conn.stream, Token(slot), interest);
                    match registered {
                        Ok(()) => {
                            self.conns[slot] = Some(conn);
                            self.list(slot);
                        }
                        Err(error) => {
                            tracing::warn!(%error, "a connection could not be polled");
                            self.free.push(slot);
                            self.unregister_client(&conn.card);
                        }
                    }
                }
                WorkerMsg::Kill(id) => {
                    doomed.insert(id);
                }
                WorkerMsg::Back(lent) => self.take_back(lent),
            }
        }
        if doomed.is_empty() {
            return;
        }
        for slot in 0..self.conns.len() {
            if matches!(&self.conns[slot], Some(conn) if doomed.contains(&conn.card.id)) {
                self.close(slot);
            }
        }
        let mut called_back = Vec::new();
        for (&slot, away) in &mut self.away {
            if doomed.contains(&away.id) {
                // What has begun is executed to its end: the connection is closed when it is back.
                away.is_killed = true;
                called_back.extend(self.shared.floor.long.take_back(away.id).map(|c| (slot, c)));
            }
        }
        for (slot, conn) in called_back {
            self.away.remove(&slot);
            self.conns[slot] = Some(conn);
            self.close(slot);
        }
    }

    /// Lends a connection whose next request is long; what its socket becomes able to do meanwhile is remembered.
    fn lend(&mut self, slot: usize) {
        let Some(mut conn) = self.conns.get_mut(slot).and_then(Option::take) else {
            return;
        };
        conn.listed = false;
        self.away.insert(slot, LentState::of(&conn));
        let worker = self.number;
        self.shared
            .floor
            .long
            .lend(LentConnection { worker, slot, conn });
    }

    /// Goes on with a connection whose long request was executed (LONG-2).
    fn take_back(&mut self, lent: LentConnection) {
        let LentConnection { slot, mut conn, .. } = lent;
        let Some(away) = self.away.remove(&slot) else {
            return;
        };
        conn.readable |= away.readable;
        conn.writable |= away.writable;
        conn.ending |= away.ending;
        let is_forsaken = conn.is_forsaken;
        let kept = self.check_cut(&conn);
        conn.show();
        self.conns[slot] = Some(conn);
        if away.is_killed || kept.is_err() {
            return self.close(slot);
        }
        self.finish(slot);
        if is_forsaken {
            self.close(slot);
        }
        self.list(slot);
        self.evict_clients();
    }

    /// Sends what tickets held that have turned.
    fn release_turned(&mut self) {
        while let Some(ticket) = self.held.front().map(|batch| batch.ticket) {
            match self.executor.session.durable(ticket) {
                Ok(false) => break,
                Ok(true) => {
                    let slots = self
                        .held
                        .pop_front()
                        .map(|batch| batch.slots)
                        .unwrap_or_default();
                    for slot in slots {
                        if let Some(conn) = self.conns.get_mut(slot).and_then(Option::as_mut) {
                            conn.output.release(ticket);
                            self.finish(slot);
                        }
                    }
                }
                Err(poisoned) => {
                    self.abort_unacknowledged(&poisoned);
                    break;
                }
            }
        }
    }

    /// Removes everything, if a client of memcached's asked for it ahead and the time has come.
    fn flush_if_due(&mut self) {
        if !self
            .shared
            .memo
            .flush_is_due(self.executor.session.as_ref())
        {
            return;
        }
        match self.executor.session.flush_all() {
            Ok(()) => self.shared.memo.note_flush(self.shared.clock_ms() / 1000),
            Err(error) => tracing::error!(%error, "flush_all with a delay failed"),
        }
    }

    /// Reads what a connection has sent and executes it.
    fn visit(&mut self, slot: usize) {
        let Some(mut conn) = self.conns.get_mut(slot).and_then(Option::take) else {
            return;
        };
        conn.listed = false;
        if conn.awaits_long {
            self.conns[slot] = Some(conn); // It is lent when its tickets have turned.
            return;
        }
        let kept = self.serve(&mut conn);
        self.conns[slot] = Some(conn);
        match kept {
            Ok(()) => {
                if let Some(conn) = &mut self.conns[slot]
                    && !conn.touched
                {
                    conn.touched = true;
                    self.touched.push(slot);
                }
            }
            Err(error) => {
                tracing::debug!(%error, "connection lost");
                self.close(slot);
            }
        }
        self.evict_clients();
    }

    fn serve(&mut self, conn: &mut Connection) -> io::Result<()> {
        conn.stalled = conn.output.pending() >= STALL_BYTES;
        (conn.awaits_room, conn.unfinished) = (false, false);
        if conn.stalled {
            return Ok(());
        }
        let bytes_max = self.shared.reply_bytes_max(&conn.card);
        conn.output.open(&mut self.executor.outputs, bytes_max);
        let (bytes, pending) = (self.batch_bytes, conn.output.pending());
        let deadline = Instant::now() + self.shared.options.turn;
        if !conn.closing {
            // What a stall left behind comes first.
            self.executor.execute(conn, deadline);
        }
        let waits = conn.stalled || conn.awaits_room || conn.awaits_long || conn.unfinished;
        if conn.readable && !conn.closing && !waits {
            if let Some(bytes) = conn.fill(&mut self.inputs)? {
                self.executor.tally.count(Counter::BytesIn, bytes);
                self.executor.tally.count(Counter::Reads, 1);
                self.batch_bytes += bytes;
                conn.card
                    .active_ms
                    .store(self.shared.clock_ms(), Ordering::Relaxed);
                self.executor.execute(conn, deadline);
            }
            if conn.input.unread().len() > size(&self.shared.settings.input_bytes_max) {
                return Err(io::Error::other("request above client-query-buffer-limit"));
            }
        }
        self.check_cut(conn)?;
        conn.input.rest(&mut self.inputs);
        self.batch_bytes += conn.output.pending().saturating_sub(pending);
        conn.is_slow = self.batch_bytes - bytes >= LONG_BYTES && Instant::now() >= deadline;
        conn.show();
        conn.card
            .input_bytes
            .store(conn.input.bytes(), Ordering::Relaxed);
        self.shared
            .clients
            .count_memory(&conn.card, conn.memory_bytes());
        Ok(())
    }

    /// A connection whose replies did not fit is closed.
    fn check_cut(&mut self, conn: &Connection) -> io::Result<()> {
        if !conn.output.buffer.is_cut() {
            return Ok(());
        }
        self.executor.tally.count(Counter::OutputLimits, 1);
        let (client, bytes) = (conn.card.id, conn.output.pending());
        let bytes_max = conn.output.buffer.bytes_max();
        tracing::warn!(
            client,
            bytes,
            bytes_max,
            "closed: its replies exceed client-output-buffer-limit"
        );
        Err(io::Error::other("replies above client-output-buffer-limit"))
    }

    /// Ends the batch: one commit, then every connection touched holds or sends its replies.
    fn settle(&mut self) {
        // What a connection staged that is lost by now keeps its keys until it is committed.
        let executed = std::mem::take(&mut self.executor.requests) > 0;
        self.batch_bytes = 0;
        if self.touched.is_empty() && !executed {
            return;
        }
        self.executor.tally.count(Counter::Batches, 1);
        let ticket = match self.commit() {
            Ok(ticket) => ticket,
            Err(Error::Poisoned(poisoned)) => {
                self.abort_unacknowledged(&poisoned);
                Ticket::DURABLE
            }
            Err(error) => {
                tracing::error!(%error, "a batch could not be committed");
                self.close_unacknowledged();
                Ticket::DURABLE
            }
        };
        let touched = std::mem::take(&mut self.touched);
        let mut slots = Vec::new();
        for &slot in &touched {
            let Some(conn) = self.conns.get_mut(slot).and_then(Option::as_mut) else {
                continue;
            };
            conn.touched = false;
            if conn.output.hold_until(ticket) {
                slots.push(slot);
            }
            self.finish(slot);
        }
        self.touched = touched;
        self.touched.clear();
        if !slots.is_empty() {
            self.held.push_back(HeldReplies { ticket, slots });
        }
    }

    /// Commits, if anything waits for it that can still be had.
    fn commit(&mut self) -> Result<Ticket, Error> {
        if self.shared.poisoned.get().is_some() && !self.owes() {
            return Ok(Ticket::DURABLE);
        }
        let earlier = self.held.back().map(|batch| batch.ticket);
        self.executor.commit(earlier.unwrap_or(Ticket::DURABLE))
    }

    /// Whether a connection touched in this batch has replies that must wait.
    fn owes(&self) -> bool {
        self.touched.iter().any(
            |&slot| matches!(self.conns.get(slot), Some(Some(conn)) if conn.output.mark.is_some()),
        )
    }

    /// The medium failed: what is withheld will never be acknowledged.
    fn abort_unacknowledged(&mut self, poisoned: &Poisoned) {
        self.executor.note_poisoned(poisoned);
        self.close_unacknowledged();
    }

    fn close_unacknowledged(&mut self) {
        self.held.clear();
        for slot in 0..self.conns.len() {
            if let Some(conn) = &mut self.conns[slot]
                && conn.output.abort_unacknowledged()
            {
                while conn.can_send() {
                    if let Err(error) = conn.send(&mut self.executor.outputs) {
                        tracing::debug!(%error, "connection lost");
                        break;
                    }
                }
                self.close(slot);
            }
        }
    }

    /// Sends what may leave, then closes, stalls or goes on as the connection needs.
    fn finish(&mut self, slot: usize) {
        let Some(conn) = self.conns.get_mut(slot).and_then(Option::as_mut) else {
            return;
        };
        if conn.can_send() {
            match conn.send(&mut self.executor.outputs) {
                Ok(bytes) => {
                    self.executor.tally.count(Counter::BytesOut, bytes);
                    self.executor.tally.count(Counter::Writes, 1);
                }
                Err(error) => {
                    tracing::debug!(%error, "connection lost");
                    return self.close(slot);
                }
            }
        }
        let pending = conn.output.pending();
        conn.card.output_bytes.store(pending, Ordering::Relaxed);
        if pending > self.shared.settings.output_bytes_max() {
            self.executor.tally.count(Counter::OutputLimits, 1);
            tracing::warn!(
                client = conn.card.id,
                pending,
                "closed: client-output-buffer-limit"
            );
            return self.close(slot);
        }
        if conn.closing && pending == 0 && !conn.output.holds() {
            return self.close(slot);
        }
        conn.output.shelve(&mut self.executor.outputs);
        let memory_bytes = conn.memory_bytes();
        self.shared.clients.count_memory(&conn.card, memory_bytes);
        if conn.awaits_long {
            if !conn.output.holds() && !self.shared.floor.stopping() {
                self.lend(slot); // LONG-1
            }
            return;
        }
        let resumes = conn.stalled && pending < STALL_BYTES / 2;
        let ready = conn.readable && !conn.stalled && !conn.closing;
        let sends_on = conn.can_send();
        conn.is_slow |= sends_on;
        if conn.awaits_room || resumes || ready || conn.unfinished || sends_on {
            self.list(slot);
        }
    }

    /// Closes the clients that take most memory, as long as all together take more than maxmemory-clients.
    fn evict_clients(&mut self) {
        let bytes_max = self.shared.settings.clients_bytes_max();
        if self.shared.clients.memory_bytes() <= bytes_max {
            return;
        }
        let mut cards = self.shared.clients.all();
        cards.retain(|card| !card.spared.load(Ordering::Relaxed));
        cards.sort_by_key(|card| card.counted_bytes.load(Ordering::Relaxed));
        while let Some(card) = cards.pop() {
            if self.shared.clients.memory_bytes() <= bytes_max {
                break;
            }
            let bytes = card.counted_bytes.load(Ordering::Relaxed);
            if self.shared.clients.doom(&card) {
                tracing::warn!(client = card.id, bytes, "closed: maxmemory-clients");
                self.executor.tally.count(Counter::Evictions, 1);
                let mut slots = self.conns.iter();
                match slots.position(|c| matches!(c, Some(c) if c.card.id == card.id)) {
                    Some(slot) => self.close(slot),
                    None => self.shared.kill(&card),
                }
            }
        }
    }

    fn close(&mut self, slot: usize) {
        let Some(mut conn) = self.conns.get_mut(slot).and_then(Option::take) else {
            return;
        };
        if let Err(error) = self.poll.registry().deregister(&mut conn.stream) {
            tracing::debug!(%error, "connection was not polled");
        }
        std::mem::take(&mut conn.output).give_up(&mut self.executor.outputs);
        std::mem::take(&mut conn.input).give_up(&mut self.inputs);
        self.unregister_client(&conn.card);
        self.free.push(slot);
    }

    fn unregister_client(&self, card: &ClientInfo) {
        self.shared.clients.doom(card);
        self.shared.clients.remove(card.id);
        self.shared.floor.desks[self.number]
            .connections
            .fetch_sub(1, Ordering::Relaxed);
    }

    /// Closes connections that are idle for too long, or read too slowly.
    fn tick(&mut self) {
        let now = self.shared.clock_ms();
        if now.saturating_sub(self.ticked_ms) < 1000 {
            return;
        }
        self.ticked_ms = now;
        self.inputs.tick(shelf_bytes(self.shared));
        self.executor.outputs.tick(shelf_bytes(self.shared));
        let settings = &self.shared.settings;
        let idle_ms = settings
            .timeout_secs
            .load(Ordering::Relaxed)
            .saturating_mul(1000);
        let soft_bytes = size(&settings.output_bytes_soft);
        let soft_ms = settings
            .output_soft_secs
            .load(Ordering::Relaxed)
            .saturating_mul(1000);
        for slot in 0..self.conns.len() {
            let Some(conn) = &mut self.conns[slot] else {
                continue;
            };
            let idle = now.saturating_sub(conn.card.active_ms.load(Ordering::Relaxed));
            let above = soft_bytes > 0 && conn.output.pending() > soft_bytes;
            let since = above.then(|| conn.soft_since_ms.unwrap_or(now));
            conn.soft_since_ms = since;
            let slow = since.is_some_and(|since| now - since >= soft_ms);
            if slow || (idle_ms > 0 && idle > idle_ms && !conn.output.holds()) {
                tracing::debug!(client = conn.card.id, slow, "closed: idle or slow");
                self.executor
                    .tally
                    .count(Counter::IdleKicks, usize::from(!slow));
                self.executor
                    .tally
                    .count(Counter::OutputLimits, usize::from(slow));
                self.close(slot);
            }
        }
    }

    /// The server ends: waits for what was committed, sends what is owed, leaves.
    fn shutdown(&mut self) {
        self.settle();
        let mut events = Events::with_capacity(64);
        while !self.away.is_empty() {
            let was_over = self.shared.floor.long.is_over();
            self.handle_messages();
            if was_over {
                break; // LONG-3
            }
            match self.poll.poll(&mut events, Some(TICK)) {
                Ok(()) => self.note(&events),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::error!(%error, "long requests are not waited for");
                    break;
                }
            }
        }
        if let Some(batch) = self.held.back() {
            match self.executor.session.wait(batch.ticket) {
                Ok(()) => self.release_turned(),
                Err(poisoned) => self.abort_unacknowledged(&poisoned),
            }
        }
        let deadline = Instant::now() + FAREWELL;
        loop {
            let owing = self
                .conns
                .iter()
                .flatten()
                .any(|conn| conn.output.can_send());
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = match self.conns.iter().flatten().any(|conn| conn.can_send()) {
                true => Duration::ZERO,
                false => left,
            };
            if !owing || left.is_zero() || self.poll.poll(&mut events, Some(wait)).is_err() {
                break;
            }
            self.note(&events);
            for slot in 0..self.conns.len() {
                self.finish(slot);
            }
        }
        for slot in 0..self.conns.len() {
            self.close(slot);
        }
        for mail in self.shared.floor.desks[self.number].drain_inbox() {
            if let WorkerMsg::Welcome(_, card) = mail {
                self.unregister_client(&card);
            }
        }
    }
}

/// Memory that unused buffers may take for each direction: a small part of what clients may.
fn shelf_bytes(shared: &ServerShared<'_>) -> usize {
    shared.settings.clients_bytes_max() / 8
}

const _: () = assert!(READ_BYTES <= BATCH_BYTES, "a read fits a batch");
