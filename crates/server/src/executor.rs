//! What a thread executes requests with: a session of the store, counts, buffers.
//!
//! A worker has one for all its connections, the thread of long requests (`long`) has one of its own. Both
//! execute requests by [`Executor::execute`], so that what may be answered when is decided in one place.

use std::time::Instant;

use farbank_kv::store::{ConflictPolicy, Error, Session};
use farbank_pm::{Poisoned, Ticket};

use crate::buffer_pool::BufferPool;
use crate::connection::{Connection, ProtocolState};
use crate::exec_context::ExecContext;
use crate::hotkeys::Sampler;
use crate::shared::{CounterTotals, ServerShared, WorkerFigures};
use crate::{commands, memcached};

/// One thread's session, and what it has done with it.
pub(crate) struct Executor<'a> {
    pub(crate) shared: &'a ServerShared<'a>,
    /// Where others see what this thread does.
    figures: &'a WorkerFigures,
    pub(crate) session: Box<dyn Session>,
    pub(crate) tally: CounterTotals,
    stride: Sampler,
    /// Buffers for replies.
    pub(crate) outputs: BufferPool,
    /// Requests executed since the last commit.
    pub(crate) requests: usize,
    executes_long: bool,
}

impl<'a> Executor<'a> {
    /// For the thread that shows its counts in `figures`. If it does not execute long requests, it leaves them in the
    /// connection's input and says so ([`Conn::awaits_long`]); if it does, it executes one request a turn.
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
            tally: CounterTotals::default(),
            stride: Sampler::default(),
            outputs: BufferPool::default(),
            requests: 0,
            executes_long,
        }
    }

    /// Executes what has arrived whole of a connection, until `deadline`.
    pub(crate) fn execute(&mut self, conn: &mut Connection, deadline: Instant) {
        let turn = ExecContext {
            deadline,
            executes_long: self.executes_long,
            session: self.session.as_mut(),
            shared: self.shared,
            figures: self.figures,
            shelf: &mut self.outputs,
            stride: &mut self.stride,
            tally: &mut self.tally,
            input: &mut conn.input,
            output: &mut conn.output,
            closing: &mut conn.closing,
            stalled: &mut conn.stalled,
            awaits_room: &mut conn.awaits_room,
            awaits_long: &mut conn.awaits_long,
            unfinished: &mut conn.unfinished,
            requests: &mut self.requests,
        };
        match &mut conn.speech {
            ProtocolState::Resp { client, parser } => {
                commands::pipeline::execute(turn, client, parser)
            }
            ProtocolState::Memcached(talk) => memcached::execute(turn, talk),
        }
    }

    /// Commits what was executed. The ticket covers all that this session's reads may have seen, so while `earlier` has
    /// not turned it is at least that.
    ///
    /// # Errors
    /// The medium has failed, or the store cannot commit: nothing that waits for this commit may be acknowledged.
    pub(crate) fn commit(&mut self, earlier: Ticket) -> Result<Ticket, Error> {
        let ticket = self.session.commit()?.max(earlier);
        if ticket == Ticket::DURABLE || self.session.durable(ticket)? {
            return Ok(Ticket::DURABLE);
        }
        Ok(ticket)
    }

    /// Notes that the medium has failed.
    pub(crate) fn note_poisoned(&self, poisoned: &Poisoned) {
        let reason = poisoned.reason.to_string();
        if self.shared.poisoned.set(reason).is_ok() {
            tracing::error!("{poisoned}");
        }
    }

    /// Shows this thread's counts to the others.
    pub(crate) fn publish(&self) {
        self.figures.publish(&self.tally);
    }
}
