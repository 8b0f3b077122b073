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
//! W3  A connection with something left to do is on the list, or waits for an event that will come:
//!     its socket (edge-triggered, so `readable` and `writable` are remembered), its tickets, or room in the
//!     store.
//! W4  The worker never waits until the store has made room: before a write it asks, and if there is none yet
//!     this connection's request stays in the input until the store wakes the worker. Others go on.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use farbank_kv::store::{Conflicts, Error, Session};
use farbank_pm::{Poisoned, Ticket};
use mio::{Events, Interest, Poll, Token};

use crate::conn::{Conn, READ_BYTES, Speech};
use crate::hotkeys::Stride;
use crate::settings::size;
use crate::shared::{Card, Count, Mail, Shared, Tally};
use crate::turn::{STALL_BYTES, TURN, Turn};
use crate::{cmd, memcached};

/// The token of the worker's own waker.
pub(crate) const WAKE: Token = Token(usize::MAX);

/// Requests after which a batch is committed though more connections are ready.
const BATCH_REQUESTS: usize = 4096;
/// Bytes read after which a batch is committed though more connections are ready.
const BATCH_BYTES: usize = 1 << 20;
/// How often idle and slow connections are looked for.
const TICK: Duration = Duration::from_secs(1);
/// How often requests that wait for room ask the store again if it has not woken the worker.
const ROOM_TICK: Duration = Duration::from_millis(5);
/// How long a closing server tries to send what clients are owed.
const FAREWELL: Duration = Duration::from_millis(200);

/// Connections that a ticket holds replies of.
struct Batch {
    ticket: Ticket,
    slots: Vec<usize>,
}

pub(crate) struct Worker<'a> {
    shared: &'a Shared<'a>,
    number: usize,
    poll: Poll,
    session: Box<dyn Session>,
    conns: Vec<Option<Box<Conn>>>,
    free: Vec<usize>,
    /// Connections to visit.
    listed: VecDeque<usize>,
    /// Connections visited since the last commit.
    touched: Vec<usize>,
    /// Connections whose next request waits for room in the store.
    awaiting_room: Vec<usize>,
    held: VecDeque<Batch>,
    tally: Tally,
    stride: Stride,
    batch_requests: usize,
    batch_bytes: usize,
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
    ticked_ms: u64,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(shared: &'a Shared<'a>, number: usize, poll: Poll) -> Worker<'a> {
        let mut session = shared.store.session();
        session.on_conflict(Conflicts::Commit); // Every reply waits for the batch's ticket.
        Worker {
            shared,
            number,
            poll,
            session,
            conns: Vec::new(),
            free: Vec::new(),
            listed: VecDeque::new(),
            touched: Vec::new(),
            awaiting_room: Vec::new(),
            held: VecDeque::new(),
            tally: Tally::default(),
            stride: Stride::default(),
            batch_requests: 0,
            batch_bytes: 0,
            inputs: Vec::new(),
            outputs: Vec::new(),
            ticked_ms: 0,
        }
    }

    /// Serves until the server ends.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        while !self.shared.floor.stopping() {
            let timeout = if !self.listed.is_empty() {
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
            self.take_mail();
            self.release_turned();
            for slot in std::mem::take(&mut self.awaiting_room) {
                self.list(slot);
            }
            self.flush_if_due();
            // Those listed while others are visited come next time round: their turn is not skipped.
            for _ in 0..self.listed.len() {
                if let Some(slot) = self.listed.pop_front() {
                    self.visit(slot);
                }
                if self.batch_requests >= BATCH_REQUESTS || self.batch_bytes >= BATCH_BYTES {
                    self.settle();
                }
            }
            self.settle();
            if !self.held.is_empty() {
                self.shared.floor.desks[self.number].will_wait();
                self.release_turned();
            }
            self.shared.floor.desks[self.number].publish(&self.tally);
            self.tick();
        }
        self.farewell();
        Ok(())
    }

    /// Remembers what sockets have become able to do.
    fn note(&mut self, events: &Events) {
        for event in events {
            if event.token() == WAKE {
                continue;
            }
            let slot = event.token().0;
            let Some(conn) = self.conns.get_mut(slot).and_then(Option::as_mut) else {
                continue;
            };
            conn.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
            conn.ending |= event.is_read_closed() || event.is_error();
            conn.writable |= event.is_writable();
            self.list(slot);
        }
    }

    fn list(&mut self, slot: usize) {
        if let Some(conn) = self.conns.get_mut(slot).and_then(Option::as_mut)
            && !conn.listed
        {
            conn.listed = true;
            self.listed.push_back(slot);
        }
    }

    fn take_mail(&mut self) {
        let mut doomed = HashSet::new();
        for mail in self.shared.floor.desks[self.number].take_mail() {
            match mail {
                Mail::Welcome(stream, card) => {
                    let slot = self.free.pop().unwrap_or_else(|| {
                        self.conns.push(None);
                        self.conns.len() - 1
                    });
                    let mut conn = Box::new(Conn::new(stream, card));
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
                            self.strike_off(&conn.card);
                        }
                    }
                }
                Mail::Kill(id) => {
                    doomed.insert(id);
                }
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
    }

    /// Sends what tickets held that have turned.
    fn release_turned(&mut self) {
        while let Some(ticket) = self.held.front().map(|batch| batch.ticket) {
            match self.session.durable(ticket) {
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
                    self.forsake(&poisoned);
                    break;
                }
            }
        }
    }

    /// Removes everything, if a client of memcached's asked for it ahead and the time has come.
    fn flush_if_due(&mut self) {
        if !self.shared.memo.flush_is_due(self.session.as_ref()) {
            return;
        }
        match self.session.flush_all() {
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

    fn serve(&mut self, conn: &mut Conn) -> io::Result<()> {
        conn.stalled = conn.output.pending() >= STALL_BYTES;
        (conn.awaits_room, conn.unfinished) = (false, false);
        if conn.stalled {
            return Ok(());
        }
        let bytes_max = self.shared.reply_bytes_max(&conn.card);
        conn.output.open(&mut self.outputs, bytes_max);
        let deadline = Instant::now() + TURN;
        if !conn.closing {
            // What a stall left behind comes first.
            self.execute(conn, deadline);
        }
        let waits = conn.stalled || conn.awaits_room || conn.unfinished;
        if conn.readable && !conn.closing && !waits {
            if let Some(bytes) = conn.fill(&mut self.inputs)? {
                self.tally.count(Count::BytesIn, bytes);
                self.tally.count(Count::Reads, 1);
                self.batch_bytes += bytes;
                conn.card
                    .active_ms
                    .store(self.shared.clock_ms(), Ordering::Relaxed);
                self.execute(conn, deadline);
            }
            if conn.input.unread().len() > size(&self.shared.settings.input_bytes_max) {
                return Err(io::Error::other("request above client-query-buffer-limit"));
            }
        }
        if conn.output.buffer.is_cut() {
            self.tally.count(Count::OutputLimits, 1);
            let (client, bytes) = (conn.card.id, conn.output.pending());
            tracing::warn!(
                client,
                bytes,
                bytes_max,
                "closed: its replies exceed client-output-buffer-limit"
            );
            return Err(io::Error::other("replies above client-output-buffer-limit"));
        }
        conn.input.rest(&mut self.inputs);
        conn.show();
        conn.card
            .input_bytes
            .store(conn.input.bytes(), Ordering::Relaxed);
        self.shared
            .clients
            .count_memory(&conn.card, conn.memory_bytes());
        Ok(())
    }

    /// Executes what has arrived whole.
    fn execute(&mut self, conn: &mut Conn, deadline: Instant) {
        let turn = Turn {
            deadline,
            session: self.session.as_mut(),
            shared: self.shared,
            desk: &self.shared.floor.desks[self.number],
            stride: &mut self.stride,
            tally: &mut self.tally,
            input: &mut conn.input,
            output: &mut conn.output,
            closing: &mut conn.closing,
            stalled: &mut conn.stalled,
            awaits_room: &mut conn.awaits_room,
            unfinished: &mut conn.unfinished,
            requests: &mut self.batch_requests,
        };
        match &mut conn.speech {
            Speech::Resp { client, parser } => cmd::pipeline::execute(turn, client, parser),
            Speech::Memcached(talk) => memcached::execute(turn, talk),
        }
    }

    /// Ends the batch: one commit, then every connection touched holds or sends its replies.
    fn settle(&mut self) {
        // What a connection staged that is lost by now keeps its keys until it is committed.
        let executed = std::mem::take(&mut self.batch_requests) > 0;
        self.batch_bytes = 0;
        if self.touched.is_empty() && !executed {
            return;
        }
        self.tally.count(Count::Batches, 1);
        let ticket = match self.commit() {
            Ok(ticket) => ticket,
            Err(Error::Poisoned(poisoned)) => {
                self.forsake(&poisoned);
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
            if conn.output.settle(ticket) {
                slots.push(slot);
            }
            self.finish(slot);
        }
        self.touched = touched;
        self.touched.clear();
        if !slots.is_empty() {
            self.held.push_back(Batch { ticket, slots });
        }
    }

    /// Commits. The ticket covers all that this session's reads may have seen, so while an earlier
    /// one has not turned it is at least that one.
    fn commit(&mut self) -> Result<Ticket, Error> {
        if self.shared.poisoned.get().is_some() && !self.owes() {
            return Ok(Ticket::DURABLE);
        }
        let ticket = self.session.commit()?;
        let earlier = self
            .held
            .back()
            .map_or(Ticket::DURABLE, |batch| batch.ticket);
        let ticket = ticket.max(earlier);
        if ticket == Ticket::DURABLE || self.session.durable(ticket)? {
            return Ok(Ticket::DURABLE);
        }
        Ok(ticket)
    }

    /// Whether a connection touched in this batch has replies that must wait.
    fn owes(&self) -> bool {
        self.touched.iter().any(
            |&slot| matches!(self.conns.get(slot), Some(Some(conn)) if conn.output.mark.is_some()),
        )
    }

    /// The medium failed: what is withheld will never be acknowledged.
    fn forsake(&mut self, poisoned: &Poisoned) {
        let reason = poisoned.reason.to_string();
        if self.shared.poisoned.set(reason).is_ok() {
            tracing::error!("{poisoned}");
        }
        self.close_unacknowledged();
    }

    fn close_unacknowledged(&mut self) {
        self.held.clear();
        for slot in 0..self.conns.len() {
            if let Some(conn) = &mut self.conns[slot]
                && conn.output.forsake()
            {
                if let Err(error) = conn.send() {
                    tracing::debug!(%error, "connection lost");
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
        if conn.writable && conn.output.can_send() {
            match conn.send() {
                Ok(bytes) => {
                    self.tally.count(Count::BytesOut, bytes);
                    self.tally.count(Count::Writes, 1);
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
            self.tally.count(Count::OutputLimits, 1);
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
        conn.output.shelve(&mut self.outputs);
        let memory_bytes = conn.memory_bytes();
        self.shared.clients.count_memory(&conn.card, memory_bytes);
        let resumes = conn.stalled && pending < STALL_BYTES / 2;
        let ready = conn.readable && !conn.stalled && !conn.closing;
        if conn.awaits_room {
            self.awaiting_room.push(slot);
        } else if resumes || ready || conn.unfinished {
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
                self.tally.count(Count::Evictions, 1);
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
        self.strike_off(&conn.card);
        self.free.push(slot);
    }

    fn strike_off(&self, card: &Card) {
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
                self.tally.count(Count::IdleKicks, usize::from(!slow));
                self.tally.count(Count::OutputLimits, usize::from(slow));
                self.close(slot);
            }
        }
    }

    /// The server ends: waits for what was committed, sends what is owed, leaves.
    fn farewell(&mut self) {
        self.settle();
        if let Some(batch) = self.held.back() {
            match self.session.wait(batch.ticket) {
                Ok(()) => self.release_turned(),
                Err(poisoned) => self.forsake(&poisoned),
            }
        }
        let deadline = Instant::now() + FAREWELL;
        let mut events = Events::with_capacity(64);
        loop {
            let owing = self
                .conns
                .iter()
                .flatten()
                .any(|conn| conn.output.can_send());
            let left = deadline.saturating_duration_since(Instant::now());
            if !owing || left.is_zero() || self.poll.poll(&mut events, Some(left)).is_err() {
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
        for mail in self.shared.floor.desks[self.number].take_mail() {
            if let Mail::Welcome(_, card) = mail {
                self.strike_off(&card);
            }
        }
    }
}

const _: () = assert!(READ_BYTES <= BATCH_BYTES, "a read fits a batch");
