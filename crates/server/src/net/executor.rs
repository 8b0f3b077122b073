//! Executes requests on one thread, with a session of the store, counters and reply buffers.
//!
//! Each worker has one executor for all its connections; the thread of long requests (`long_requests`) has its own.
//! Both use [`Executor::execute`], so one place decides when a reply may be sent.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use farbank_pm::Ticket;
use farbank_pm::rng::Rng;
use farbank_store::{ConflictPolicy, Error, Session};

use super::connection::{Connection, ProtocolState};
use super::worker_pool::WorkerPool;
use crate::commands::memcached::state::MemcachedState;
use crate::commands::{maxmemory, memcached, pipeline};
use crate::exec_context::{ThreadState, Turn};
use crate::lock::lock;
use crate::state::change_log::{ChangeLog, KeyChange};
use crate::state::messages::Publication;
use crate::state::recording_session::RecordingSession;
use crate::state::shared::ServerShared;
use crate::state::touching_session::{TouchingSession, UseRecorder};
use crate::stats::counters::ThreadCounters;

/// Everything that the threads of a server share: the state of the server, the state of each protocol, the workers.
pub(super) struct ServerParts<'a> {
    pub(super) shared: ServerShared<'a>,
    pub(super) memcached: MemcachedState,
    pub(super) pool: &'a WorkerPool,
}

/// One thread's session, counters and buffers.
pub(super) struct Executor<'a> {
    pub(super) shared: &'a ServerShared<'a>,
    memcached: &'a MemcachedState,
    pub(super) session: Box<dyn Session>,
    pub(super) thread: ThreadState,
    /// Where this thread publishes its counters and hot keys.
    published: &'a ThreadCounters,
    executes_long: bool,
}

impl<'a> Executor<'a> {
    /// Creates the executor of the thread that publishes its counters in `published`.
    ///
    /// Without `executes_long`, it leaves a long request in the connection's input and sets
    /// `awaits_long` in [`Connection::status`]. With it, each [`Executor::execute`] executes one request.
    pub(super) fn new(
        parts: &'a ServerParts<'a>,
        published: &'a ThreadCounters,
        executes_long: bool,
    ) -> Executor<'a> {
        let shared = &parts.shared;
        let mut session = shared.store.session();
        session.on_conflict(ConflictPolicy::Commit); // Every reply waits for the batch's ticket.
        Executor {
            shared,
            memcached: &parts.memcached,
            session,
            thread: ThreadState::default(),
            published,
            executes_long,
        }
    }

    /// Executes the complete requests in a connection's input, from `now` until `deadline`.
    pub(super) fn execute(&mut self, conn: &mut Connection, now: Instant, deadline: Instant) {
        self.thread.timer.start(now);
        let log = self.change_log();
        let table = self.shared.access_table();
        let (mut touching, mut recording);
        let mut session: &mut dyn Session = &mut *self.session;
        if let Some(table) = &table {
            let uses = UseRecorder {
                table,
                clock: self.shared.access_clock(),
                random: Rng::new(self.thread.evictor.seed()),
            };
            touching = TouchingSession::new(session, uses);
            session = &mut touching;
        }
        if let Some(log) = &log {
            recording = RecordingSession::new(session, log);
            session = &mut recording;
        }
        let turn = Turn {
            session,
            shared: self.shared,
            thread: &mut self.thread,
            published: self.published,
            input: &mut conn.input,
            replies: conn.output.replies(),
            status: &mut conn.status,
            deadline,
            executes_long: self.executes_long,
        };
        match &mut conn.protocol {
            ProtocolState::Resp { client, parser } => pipeline::execute(turn, client, parser),
            ProtocolState::Memcached(conn) => {
                memcached::pipeline::execute(turn, self.memcached, conn);
                self.thread.timer.clear(); // Its requests are not counted by command.
                if let Some(log) = &log {
                    let mut log = lock(log);
                    let events = log.take_events();
                    log.settle(events, 0); // Its client tracks no keys.
                }
            }
        }
        if self.thread.timer.is_pending() {
            let rules = self.shared.count_rules();
            let commands = &self.published.commands;
            let timer = &mut self.thread.timer;
            timer.settle(Instant::now(), false, commands, rules);
        }
    }

    /// Decides whether the changes that follow are recorded (SRV-TRACK-2). Returns the log that records them.
    fn change_log(&mut self) -> Option<Arc<Mutex<ChangeLog>>> {
        self.thread.records = self.shared.interests.tracking.is_on();
        self.thread.records.then(|| Arc::clone(&self.thread.log))
    }

    /// Removes every item if the delay of a memcached client's `flush_all` has passed. Returns the invalidations.
    pub(super) fn flush_if_due(&mut self) -> Vec<Publication> {
        if !self.memcached.flush_is_due(self.session.as_ref()) {
            return Vec::new();
        }
        match self.session.flush_all() {
            Ok(()) => self.memcached.note_flush(self.shared.clock_ms() / 1000),
            Err(error) => tracing::error!(%error, "delayed flush_all failed"),
        }
        self.announce(&[KeyChange::All { origin: 0 }])
    }

    /// Evicts keys for one slice. Returns whether keys were evicted; the caller commits, which announces them.
    pub(super) fn evict(&mut self) -> bool {
        let log = self.change_log();
        let mut recording;
        let mut session: &mut dyn Session = &mut *self.session;
        if let Some(log) = &log {
            recording = RecordingSession::new(session, log);
            session = &mut recording;
        }
        let evictions = maxmemory::evict(session, self.shared, &mut self.thread);
        evictions.keys > 0
    }

    /// Takes the changes that the executed requests have made.
    pub(super) fn take_changes(&mut self) -> Vec<KeyChange> {
        lock(&self.thread.log).take_changes()
    }

    /// Lists changes again, to announce them with the next batch.
    pub(super) fn relist(&mut self, changes: Vec<KeyChange>) {
        if !changes.is_empty() {
            lock(&self.thread.log).relist(changes);
        }
    }

    /// Returns the invalidations of changes that are visible to all sessions (SRV-TRACK-3).
    pub(super) fn announce(&self, changes: &[KeyChange]) -> Vec<Publication> {
        match changes.is_empty() {
            true => Vec::new(),
            false => self.shared.announce(changes),
        }
    }

    /// Commits the executed requests. The ticket covers everything that this session's reads may have seen, so it is
    /// at least `earlier`. Returns [`Ticket::DURABLE`] if everything covered is already durable.
    ///
    /// # Errors
    /// The medium has failed, or the store cannot commit. No reply that waits for this commit may be sent.
    pub(super) fn commit(&mut self, earlier: Ticket) -> Result<Ticket, Error> {
        let ticket = self.session.commit()?.max(earlier);
        if ticket == Ticket::DURABLE || self.session.durable(ticket)? {
            return Ok(Ticket::DURABLE);
        }
        Ok(ticket)
    }

    /// Publishes this thread's counters to other threads.
    pub(super) fn publish(&self) {
        self.published.publish(&self.thread.counters);
    }
}
