//! What a protocol works with while it executes requests of one connection.
//!
//! ```text
//!   executor ── Turn: thread, input, replies, status ──▶ pipeline of the protocol
//!                                                            │ for each request
//!                                                            ▼
//!                                    ExecContext: store, client, replies ──▶ command
//! ```
//!
//! Both protocols use the same types. A [`Turn`] is one visit to a connection; the protocol's pipeline reads requests
//! from its input, a window ahead, and sets its [`TurnStatus`]. An [`ExecContext`] is what one command works with.
//! Neither uses sockets or tickets: the mark separates replies that must wait for the commit (see `net::output`).

use std::sync::{Arc, Mutex};
use std::time::Instant;

use farbank_store::{Error, Key, Ops, Session};

use crate::buffers::input::InputBuffer;
use crate::buffers::pool::BufferPool;
use crate::buffers::reply::ReplyBuffer;
use crate::lua::engine::ScriptEngine;
use crate::state::change_log::ChangeLog;
use crate::state::evictor::Evictor;
use crate::state::messages::Outbox;
use crate::state::saves::BegunCopy;
use crate::state::shared::ServerShared;
use crate::stats::commands::{CommandTimer, PENDING};
use crate::stats::counters::{Counter, CounterTotals, ThreadCounters};
use crate::stats::hot_keys::Sampler;

/// Most requests of a connection that are parsed ahead.
pub(crate) const WINDOW: usize = 16;
/// Bytes of unsent replies at which a connection's requests wait. This is many times what sockets buffer, so that a
/// client that writes a long pipeline before it reads does not deadlock.
pub(crate) const STALL_BYTES: usize = 64 << 20;
/// Most bytes of a request that a worker executes, or of the values that it reads. Copying them takes about a
/// millisecond. The thread of long requests executes larger ones.
pub(crate) const LONG_REQUEST_BYTES: usize = 2 << 20;

/// Bytes of a request and its reply from which the clock is read after the request.
pub(crate) const LONG_BYTES: usize = 16 << 10;
/// The clock is read after every `SHORT_REQUESTS` short requests, because each may have processed a large value.
const SHORT_REQUESTS: usize = 4;

/// The first keys of requests that are executed soon, to be prefetched together.
pub(crate) struct WindowKeys<'a> {
    keys: [Key<'a>; WINDOW],
    len: usize,
    /// Whether a request reads its value.
    reads: bool,
}

impl<'a> WindowKeys<'a> {
    #[inline]
    pub(crate) fn new() -> WindowKeys<'a> {
        WindowKeys {
            keys: [Key { db: 0, bytes: &[] }; WINDOW],
            len: 0,
            reads: false,
        }
    }

    /// Adds the key of a request, and whether the request reads its value, if the request has a key. At most [`WINDOW`] are added.
    #[inline]
    pub(crate) fn add(&mut self, first: Option<(Key<'a>, bool)>) {
        if let Some((key, is_read)) = first {
            self.keys[self.len] = key;
            self.len += 1;
            self.reads |= is_read;
        }
    }

    #[inline]
    pub(crate) fn keys(&self) -> &[Key<'a>] {
        &self.keys[..self.len]
    }

    /// Prefetches the keys in the store, if there are several: a request does not wait longer for one key.
    #[inline]
    pub(crate) fn prefetch(&self, session: &mut dyn Session) {
        if self.len > 1 {
            session.prefetch(self.keys(), self.reads);
        }
    }
}

/// Outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExecOutcome {
    /// It was executed.
    Done,
    /// The transaction has queued or refused it.
    Queued,
    /// It was refused before its execution.
    Refused,
    /// It is long and this thread does not execute long requests. It has changed nothing.
    Long,
}

/// Counters and buffers of a thread that executes requests.
#[derive(Default)]
pub(crate) struct ThreadState {
    pub(crate) counters: CounterTotals,
    pub(crate) sampler: Sampler,
    /// Requests whose time is not counted yet.
    pub(crate) timer: CommandTimer,
    /// Executes scripts; created for the first one.
    pub(crate) scripts: Option<Box<ScriptEngine>>,
    /// Buffers for replies.
    pub(crate) buffer_pool: BufferPool,
    /// Evicts keys above `maxmemory`.
    pub(crate) evictor: Evictor,
    /// The store still exceeded `maxmemory` when the time of the last eviction was over.
    pub(crate) has_evictions_left: bool,
    /// Messages published since the last commit.
    pub(crate) outbox: Outbox,
    /// The copy of the store that the last request has begun for its client.
    pub(crate) begun_copy: Option<BegunCopy>,
    /// Requests executed since the last commit.
    pub(crate) requests: usize,
    /// Whether the changes of this turn are recorded in `log`.
    pub(crate) records: bool,
    /// Changes of keys that are not announced yet.
    pub(crate) log: Arc<Mutex<ChangeLog>>,
}

/// What the requests of a thread had published and changed at some moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EffectsMark {
    messages: usize,
    changes: u64,
}

impl ThreadState {
    /// Marks the effects so far.
    pub(crate) fn mark_effects(&self) -> EffectsMark {
        EffectsMark {
            messages: self.outbox.len(),
            changes: self.counters.get(Counter::Changes),
        }
    }

    /// Removes the messages and the counted changes after `mark`, because the group that has made them had no effect.
    pub(crate) fn rewind_effects(&mut self, mark: EffectsMark) {
        self.outbox.truncate(mark.messages);
        self.counters.restore(Counter::Changes, mark.changes);
    }
}

/// Why a connection executes no more requests for now. The worker decides by it when to visit the connection again.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct TurnStatus {
    /// Nothing more is read or executed; the connection is closed when all replies are sent.
    pub(crate) closing: bool,
    /// The client must read replies before more requests are executed.
    pub(crate) stalled: bool,
    /// The next request waits until the store has freed space for it, or until queued messages are delivered.
    pub(crate) awaits_room: bool,
    /// The next request is long and this thread does not execute long requests.
    pub(crate) awaits_long: bool,
    /// CLIENT PAUSE holds the next request back.
    pub(crate) paused: bool,
    /// The time slice ended before all complete requests were executed.
    pub(crate) unfinished: bool,
}

impl TurnStatus {
    /// Whether the turn goes on with the next request.
    #[inline]
    pub(crate) fn goes_on(self) -> bool {
        let waits = self.stalled || self.awaits_room || self.awaits_long || self.paused;
        !self.closing && !waits && !self.unfinished
    }
}

/// Where a connection's replies go.
pub(crate) struct ReplyTarget<'a> {
    pub(crate) out: &'a mut ReplyBuffer,
    /// Start of the first reply that must wait for this batch's ticket.
    pub(crate) mark: &'a mut Option<usize>,
    /// Whether replies of earlier batches still wait for their tickets.
    pub(crate) unacknowledged: bool,
    /// The length of `out` at which the connection stalls.
    pub(crate) stalled_len: usize,
}

/// One visit to a connection: what a protocol's pipeline works with.
pub(crate) struct Turn<'a> {
    pub(crate) session: &'a mut dyn Session,
    pub(crate) shared: &'a ServerShared<'a>,
    pub(crate) thread: &'a mut ThreadState,
    /// Where the thread publishes its counters and hot keys.
    pub(crate) published: &'a ThreadCounters,
    pub(crate) input: &'a mut InputBuffer,
    pub(crate) replies: ReplyTarget<'a>,
    pub(crate) status: &'a mut TurnStatus,
    /// When the time slice ends.
    pub(crate) deadline: Instant,
    /// The thread executes one request, however long it is. Otherwise a long request stays in the input.
    pub(crate) executes_long: bool,
}

/// Access to the store: the thread's session, or a group inside it.
pub(crate) enum StoreAccess<'a> {
    Session(&'a mut dyn Session),
    Group(&'a mut dyn Ops),
    /// A group whose keys are not known before it ends.
    Optimistic(&'a mut dyn OptimisticAccess),
}

/// Access to the store inside a group whose keys are not known before it ends.
pub(crate) trait OptimisticAccess {
    /// Operations on single keys.
    fn ops(&mut self) -> &mut dyn Ops;

    /// The session, for commands that visit all keys. They see the store without the group's writes.
    fn session(&mut self) -> &mut dyn Session;

    /// Removes every key at once, and the group's writes so far.
    fn flush_all(&mut self) -> Result<(), Error>;
}

impl StoreAccess<'_> {
    /// Operations on single keys.
    #[inline]
    pub(crate) fn ops(&mut self) -> &mut dyn Ops {
        match self {
            StoreAccess::Session(session) => &mut **session,
            StoreAccess::Group(ops) => &mut **ops,
            StoreAccess::Optimistic(access) => access.ops(),
        }
    }

    /// The same access, for a shorter time.
    pub(crate) fn reborrow(&mut self) -> StoreAccess<'_> {
        match self {
            StoreAccess::Session(session) => StoreAccess::Session(&mut **session),
            StoreAccess::Group(ops) => StoreAccess::Group(&mut **ops),
            StoreAccess::Optimistic(access) => StoreAccess::Optimistic(&mut **access),
        }
    }
}

/// Figures of the request that is executing.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct RequestFigures {
    /// Start of its reply in the reply buffer.
    pub(crate) reply_start: usize,
    /// Whether the key that it has updated last was absent before.
    pub(crate) was_absent: bool,
    /// End of the messages that precede its reply.
    pub(crate) push_end: usize,
    /// Bytes of the values that it has read and that its reply does not contain.
    pub(crate) hidden_bytes: usize,
    /// It runs in a group, so other sessions wait for it.
    pub(crate) holds_locks: bool,
    /// Its reply goes to a script, not to the client.
    pub(crate) replies_to_script: bool,
    /// Its reply is an error that its function has appended itself.
    pub(crate) has_failed: bool,
    /// The live records exceeded `maxmemory` when it started, and no keys could be evicted.
    pub(crate) is_over_maxmemory: bool,
}

/// What a command works with. `S` is its access to the store, `C` the state of its client in the client's protocol.
pub(crate) struct ExecContext<'a, S, C> {
    pub(crate) store: S,
    pub(crate) client: &'a mut C,
    pub(crate) shared: &'a ServerShared<'a>,
    pub(crate) thread: &'a mut ThreadState,
    /// Where the thread publishes its counters and hot keys.
    pub(crate) published: &'a ThreadCounters,
    pub(crate) out: &'a mut ReplyBuffer,
    /// Start of the first reply that must wait for this batch's ticket.
    pub(crate) mark: &'a mut Option<usize>,
    /// Whether replies of earlier batches still wait for their tickets.
    pub(crate) unacknowledged: bool,
    /// Whether this thread executes long requests.
    pub(crate) executes_long: bool,
    pub(crate) request: RequestFigures,
}

impl<'a> From<&'a mut dyn Session> for StoreAccess<'a> {
    fn from(session: &'a mut dyn Session) -> StoreAccess<'a> {
        StoreAccess::Session(session)
    }
}

impl<'a> Turn<'a> {
    /// Splits the turn into the input, the context of the commands of `client`, and the turn's progress.
    #[inline]
    pub(crate) fn split<'b, S, C>(
        self,
        client: &'b mut C,
    ) -> (&'b mut InputBuffer, ExecContext<'b, S, C>, TurnProgress<'b>)
    where
        'a: 'b,
        S: From<&'b mut dyn Session>,
    {
        let ReplyTarget {
            out,
            mark,
            unacknowledged,
            stalled_len,
        } = self.replies;
        let context = ExecContext {
            store: S::from(self.session),
            client,
            shared: self.shared,
            thread: self.thread,
            published: self.published,
            out,
            mark,
            unacknowledged,
            executes_long: self.executes_long,
            request: RequestFigures::default(),
        };
        let progress = TurnProgress {
            status: self.status,
            deadline: self.deadline,
            times_each: self.shared.settings.times_each(),
            stalled_len,
        };
        (self.input, context, progress)
    }
}

impl<'a, C> ExecContext<'a, (), C> {
    /// The context with `store`.
    pub(crate) fn with_store<S>(self, store: S) -> ExecContext<'a, S, C> {
        ExecContext {
            store,
            client: self.client,
            shared: self.shared,
            thread: self.thread,
            published: self.published,
            out: self.out,
            mark: self.mark,
            unacknowledged: self.unacknowledged,
            executes_long: self.executes_long,
            request: self.request,
        }
    }
}

/// A request that was executed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExecutedRequest {
    /// The number of its command; 0 if it has none.
    pub(crate) number: u16,
    /// Its length.
    pub(crate) bytes: usize,
    /// It accesses one key.
    pub(crate) is_short: bool,
    /// No complete request follows.
    pub(crate) is_last: bool,
    /// The connection is closed after its reply.
    pub(crate) leaves: bool,
}

/// Progress of a [`Turn`]: its status, and when it ends.
pub(crate) struct TurnProgress<'a> {
    pub(crate) status: &'a mut TurnStatus,
    deadline: Instant,
    /// The clock is read after each request.
    times_each: bool,
    /// The length of the reply buffer at which the connection stalls.
    stalled_len: usize,
}

impl TurnProgress<'_> {
    /// Whether the time slice is over. Reads the clock.
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// Updates the status after a request. Returns the nanoseconds that the request took, if they are known: an
    /// average over the requests since the last reading, unless the request is large.
    ///
    /// The clock is read after some short requests, because each may have processed a large value, and after every
    /// other request.
    #[inline]
    pub(crate) fn note_executed<S, C>(
        &mut self,
        ctx: &mut ExecContext<'_, S, C>,
        request: ExecutedRequest,
    ) -> Option<u64> {
        let ExecutedRequest {
            number,
            bytes,
            is_short,
            is_last,
            leaves,
        } = request;
        ctx.thread.requests += 1;
        let reply_bytes = ctx.out.len().saturating_sub(ctx.request.reply_start);
        let moved_bytes = bytes + reply_bytes + std::mem::take(&mut ctx.request.hidden_bytes);
        self.status.closing = leaves || ctx.out.is_cut();
        self.status.stalled = ctx.out.len() >= self.stalled_len;
        self.status.unfinished = ctx.executes_long;
        let pending = ctx.thread.timer.note(number);
        let is_large = !is_short || moved_bytes >= LONG_BYTES;
        let ends_group = is_large || is_last || self.times_each || pending >= PENDING;
        if !ends_group && !pending.is_multiple_of(SHORT_REQUESTS) {
            return None;
        }
        let now = Instant::now();
        self.status.unfinished |= now >= self.deadline;
        if !ends_group && !self.status.unfinished {
            return None;
        }
        Some(ctx.settle_times(now, is_large))
    }
}

impl<S, C> ExecContext<'_, S, C> {
    /// Splits into the access to the store, and the context without it, for a context with another access.
    pub(crate) fn split_store(&mut self) -> (&mut S, ExecContext<'_, (), C>) {
        let rest = ExecContext {
            store: (),
            client: self.client,
            shared: self.shared,
            thread: self.thread,
            published: self.published,
            out: self.out,
            mark: self.mark,
            unacknowledged: self.unacknowledged,
            executes_long: self.executes_long,
            request: self.request,
        };
        (&mut self.store, rest)
    }

    /// Counts the pending requests, which have ended at `now`. Returns the nanoseconds of the last one. `is_large`: it
    /// took most of the time.
    #[inline]
    pub(crate) fn settle_times(&mut self, now: Instant, is_large: bool) -> u64 {
        let rules = self.shared.count_rules();
        let timer = &mut self.thread.timer;
        timer.settle(now, is_large, &self.published.commands, rules)
    }

    /// Counts one `what`.
    #[inline]
    pub(crate) fn count(&mut self, what: Counter) {
        self.thread.counters.count(what, 1);
    }
}
