//! Executes requests on one thread, with a session of the store, counters and reply buffers.
//!
//! Each worker has one executor for all its connections; the thread of long requests (`long_requests`) has its own.
//! Both use [`Executor::execute`], so one place decides when a reply may be sent.

use std::time::Instant;

use farbank_pm::{Poisoned, Ticket};
use farbank_store::{ConflictPolicy, Error, Session};

use crate::buffers::pool::BufferPool;
use crate::commands::{self, memcached};
use crate::exec_context::ExecContext;
use crate::net::connection::{Connection, ProtocolState};
use crate::state::shared::{CounterTotals, ServerShared, WorkerFigures};
use crate::stats::hot_keys::Sampler;

/// One thread's session, counters and buffers.
pub(crate) struct Executor<'a> {
    pub(crate) shared: &'a ServerShared<'a>,
    /// Where this thread publishes its counters and hot keys.
    figures: &'a WorkerFigures,
    pub(crate) session: Box<dyn Session>,
    pub(crate) counters: CounterTotals,
    sampler: Sampler,
    /// Buffers for replies.
    pub(crate) outputs: BufferPool,
    /// Requests executed since the last commit.
    pub(crate) requests: usize,
    executes_long: bool,
}

impl<'a> Executor<'a> {
    /// Creates the executor of the thread that publishes its counters in `figures`.
    ///
    /// Without `executes_long`, it leaves a long request in the connection's input and sets
    /// [`Connection::awaits_long`]. With it, each [`Executor::execute`] executes one request.
    pub(crate) fn new(
        shared: &'a ServerShared<'a>,
        figures: &'a WorkerFigures,
        executes_long: bool,
    ) -> Executor<'a> {
        let mut session = shared.store.session();
        session.on_conflict(ConflictPolicy::Commit); // Every reply waits for the batch's ticket.
        Executor {
            shared,
            figures,
            session,
            counters: CounterTotals::default(),
            sampler: Sampler::default(),
            outputs: BufferPool::default(),
            requests: 0,
            executes_long,
        }
    }

    /// Executes the complete requests in a connection's input until `deadline`.
    pub(crate) fn execute(&mut self, conn: &mut Connection, deadline: Instant) {
        let turn = ExecContext {
            deadline,
            executes_long: self.executes_long,
            session: self.session.as_mut(),
            shared: self.shared,
            figures: self.figures,
            buffer_pool: &mut self.outputs,
            sampler: &mut self.sampler,
            counters: &mut self.counters,
            input: &mut conn.input,
            output: &mut conn.output,
            closing: &mut conn.closing,
            stalled: &mut conn.stalled,
            awaits_room: &mut conn.awaits_room,
            awaits_long: &mut conn.awaits_long,
            unfinished: &mut conn.unfinished,
            requests: &mut self.requests,
        };
        match &mut conn.protocol {
            ProtocolState::Resp { client, parser } => {
                commands::pipeline::execute(turn, client, parser)
            }
            ProtocolState::Memcached(talk) => memcached::execute(turn, talk),
        }
    }

    /// Commits the executed requests. The ticket covers everything that this session's reads may have seen, so it is
    /// at least `earlier`. Returns [`Ticket::DURABLE`] if everything covered is already durable.
    ///
    /// # Errors
    /// The medium has failed, or the store cannot commit. No reply that waits for this commit may be sent.
    pub(crate) fn commit(&mut self, earlier: Ticket) -> Result<Ticket, Error> {
        let ticket = self.session.commit()?.max(earlier);
        if ticket == Ticket::DURABLE || self.session.durable(ticket)? {
            return Ok(Ticket::DURABLE);
        }
        Ok(ticket)
    }

    /// Records that the medium has failed, and logs the first such failure.
    pub(crate) fn note_poisoned(&self, poisoned: &Poisoned) {
        let reason = poisoned.reason.to_string();
        if self.shared.poisoned.set(reason).is_ok() {
            tracing::error!("{poisoned}");
        }
    }

    /// Publishes this thread's counters to other threads.
    pub(crate) fn publish(&self) {
        self.figures.publish(&self.counters);
    }
}
