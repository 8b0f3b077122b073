//! The limit `maxmemory`: evicts keys before requests that may add bytes while live records exceed it, or refuses these
//! requests.
//!
//! The limit is checked once for each request, before it executes. So the request that crosses the limit succeeds, and a
//! transaction or a script is executed whole or not at all, and no key is evicted in between.
//!
//! ```text
//!   within the limit? ── yes ──────────────────────────────────▶ execute
//!        │ no
//!   may the request add bytes? ── no ──────────────────────────▶ execute
//!        │ yes
//!   evict until within the limit, or for a slice ── candidates ─▶ execute
//!        │ no candidate
//!   refuse
//! ```
//!
//! The deletes are in the batch of the request (SRV-EVICT-1). A worker that has left the store above the limit goes on
//! with a slice after each visit to its connections, as Redis does in its timer.

use std::sync::atomic::Ordering;
use std::time::Instant;

use farbank_store::{Error, Key, Session};

use super::context::CommandContext;
use super::context::command_row::{Command, flag};
use super::error::CommandError;
use crate::exec_context::{ExecContext, StoreAccess, ThreadState};
use crate::keyspace_events::KeyspaceEvents;
use crate::lock::lock;
use crate::lua::shebang::ScriptFlags;
use crate::state::evictor::{EvictionOutcome, EvictionTask};
use crate::state::shared::ServerShared;
use crate::stats::counters::Counter;

/// Error of a request that may add bytes above the limit.
pub(super) const OVER_MAXMEMORY: CommandError =
    CommandError::Fixed("OOM command not allowed when used memory > 'maxmemory'.");
/// Error of a script that declares its flags, and neither `allow-oom` nor `no-writes`.
const SCRIPT_OVER_MAXMEMORY: CommandError = CommandError::Fixed(
    "OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'",
);

/// Whether live records and the records staged by `session` exceed the limit.
#[inline]
pub(super) fn is_exceeded(shared: &ServerShared<'_>, session: &dyn Session) -> bool {
    let most = shared.settings.maxmemory.load(Ordering::Relaxed);
    most != 0 && session.used_bytes() > most
}

/// Checks the limit for the request of a client, and evicts keys if the request may add bytes. Records the result for the
/// scripts that the request runs.
///
/// # Errors
/// [`OVER_MAXMEMORY`] if the command must not run or be queued now.
#[inline]
pub(super) fn check(ctx: &mut CommandContext<'_>, command: &Command) -> Result<(), CommandError> {
    let shared = ctx.shared;
    let is_over = ctx
        .session()
        .is_ok_and(|session| is_exceeded(shared, session));
    ctx.request.is_over_maxmemory = is_over;
    match is_over {
        true => check_above(ctx, command),
        false => Ok(()),
    }
}

/// As [`check`], while live records exceed the limit.
#[cold]
fn check_above(ctx: &mut CommandContext<'_>, command: &Command) -> Result<(), CommandError> {
    // A script may write, and is refused by its own flags.
    if uses_memory(ctx, command, flag::DENYOOM | flag::SCRIPT) && evict_for(ctx) {
        ctx.request.is_over_maxmemory = false;
        return Ok(());
    }
    match uses_memory(ctx, command, flag::DENYOOM) {
        true => Err(OVER_MAXMEMORY),
        false => Ok(()),
    }
}

/// Whether a command has one of `flags`, or is in a transaction. As in Redis, a transaction queues nothing above the limit:
/// its requests use memory.
fn uses_memory(ctx: &CommandContext<'_>, command: &Command, flags: u32) -> bool {
    let Some(queue) = &ctx.client.transaction.queue else {
        return command.is(flags);
    };
    match command.name {
        "exec" => queue.commands.iter().any(|queued| queued.is(flags)),
        "discard" | "quit" | "reset" => false,
        _ => true,
    }
}

/// Evicts keys for a request of a Redis client. Its invalidations of these keys precede its reply, as in Redis. Returns
/// whether a request that adds bytes may execute.
pub(super) fn evict_for(ctx: &mut CommandContext<'_>) -> bool {
    let (store, mut rest) = ctx.split_store();
    let StoreAccess::Session(session) = store else {
        return true; // Nothing is evicted within a group.
    };
    let may_grow = evict_for_reply(&mut **session, &mut rest);
    let start = ctx.out.len();
    ctx.settle_changes();
    ctx.note_push(start);
    may_grow
}

/// As [`evict`], for a request whose reply waits for the deletes.
pub(super) fn evict_for_reply<C>(
    session: &mut dyn Session,
    ctx: &mut ExecContext<'_, (), C>,
) -> bool {
    let evictions = evict(session, ctx.shared, ctx.thread);
    if evictions.keys > 0 {
        ctx.mark.get_or_insert(ctx.out.len());
    }
    evictions.may_grow
}

/// Result of [`evict`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evictions {
    /// Number of keys evicted.
    pub(crate) keys: usize,
    /// Whether a request that adds bytes may execute: the store is within the limit, or there are keys that can be
    /// evicted and the time is over.
    may_grow: bool,
}

/// Evicts keys until the store is within the limit, for one [`eviction_slice`](crate::ServerOptions::eviction_slice) at
/// most. If the slice ends first, the thread goes on between requests. Publishes the events `evicted` with the batch.
pub(crate) fn evict(
    session: &mut dyn Session,
    shared: &ServerShared<'_>,
    thread: &mut ThreadState,
) -> Evictions {
    let settings = &shared.settings;
    let policy = settings.eviction_policy();
    let bytes_max = match settings.maxmemory.load(Ordering::Relaxed) {
        0 => u64::MAX,
        bytes => bytes,
    };
    thread.has_evictions_left = false;
    if policy.order.is_none() {
        return Evictions {
            keys: 0,
            may_grow: session.used_bytes() <= bytes_max,
        };
    }
    let table = shared.access_table();
    let samples = settings.maxmemory_samples.load(Ordering::Relaxed);
    let task = EvictionTask {
        policy,
        bytes_max,
        samples: usize::try_from(samples).unwrap_or(usize::MAX),
        clock: shared.access_clock(),
        table: table.as_deref(),
        time_max: shared.options.eviction_slice,
        now: &Instant::now,
    };
    let has_events = settings.keyspace_events().tells(KeyspaceEvents::EVICTED);
    let (mut keys, mut publications) = (0, Vec::new());
    let records = thread.records;
    let set_evicting = |is_on| lock(&thread.log).set_evicting(is_on);
    if records {
        set_evicting(true);
    }
    let mut evicted = |key: Key<'_>| {
        keys += 1;
        if has_events {
            publications.extend(shared.event("evicted", key));
        }
    };
    let outcome = thread.evictor.run(session, &task, &mut evicted);
    if records {
        set_evicting(false);
    }
    thread.counters.count(Counter::EvictedKeys, keys);
    for publication in publications {
        thread.outbox.push(publication, true);
    }
    let may_grow = match outcome {
        Ok(outcome) => {
            thread.has_evictions_left = outcome == EvictionOutcome::OutOfTime;
            outcome != EvictionOutcome::NoCandidate
        }
        Err(error) => {
            if let Error::Poisoned(poisoned) = &error {
                shared.note_poisoned(poisoned);
            }
            true // The request meets the same error and replies with it.
        }
    };
    Evictions { keys, may_grow }
}

/// Checks whether a script with `flags` may start. A script without declared flags may: its first write is checked.
///
/// # Errors
/// The error of a script that may write and does not allow itself to run above the limit.
pub(super) fn check_script(
    ctx: &CommandContext<'_>,
    flags: ScriptFlags,
) -> Result<(), CommandError> {
    let may_run = flags.is_unknown || flags.allow_oom || flags.no_writes;
    match ctx.request.is_over_maxmemory && !may_run {
        true => Err(SCRIPT_OVER_MAXMEMORY),
        false => Ok(()),
    }
}
