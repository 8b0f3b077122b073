//! Transactions: MULTI EXEC DISCARD WATCH UNWATCH.
//!
//! MULTI queues requests. EXEC runs the queue as one group of the store: isolated, and durable completely or not at
//! all. WATCH records the version of a key, and how often SWAPDB has moved its database. EXEC compares them inside the group, so no write can come between the
//! comparison and the group's writes. Marking watchers when another client executes a write, as Redis does, would be
//! wrong: the write becomes visible later, and a client that watches and reads in between would read the old value and
//! stay unmarked.
//!
//! Commands without particular keys (DBSIZE, SCAN, FLUSHALL, CLIENT ...) cannot be in a group. They run at their place,
//! between the group of the commands before them and the group of the commands after them.

use std::ops::Range;
use std::time::Instant;

use farbank_store::{Error, GroupDecision, ReadView};

use super::acl::check::check;
use super::context::CommandContext;
use super::context::command_row::{Command, flag};
use super::context::transaction::{TransactionQueue, WatchedKeys, WatchedState};
use super::error::{CommandError, misconf};
use super::execute::{check_keys, execute, reject};
use super::optimistic::{GroupBody, ends_group};
use super::slowlog::note_slow;
use crate::exec_context::ExecOutcome;
use crate::protocol::resp::{Args, reply};
use crate::settings::size;
use crate::state::acl_log::DenialContext;

/// Queues a request.
pub(super) fn queue(ctx: &mut CommandContext<'_>, command: &'static Command, args: Args<'_>) {
    if command.is(flag::NO_MULTI) {
        ctx.count_rejected(command);
        return reject(
            ctx,
            &CommandError::Fixed("ERR Command not allowed inside a transaction"),
        );
    }
    if let Err(fail) = check_keys(command, args) {
        return reject(ctx, &fail);
    }
    let most = size(&ctx.shared.settings.input_bytes_max);
    let Some(queue) = &mut ctx.client.transaction.queue else {
        return;
    };
    if queue.requests.bytes() > most {
        return reject(
            ctx,
            &CommandError::Fixed("ERR the transaction exceeds client-query-buffer-limit"),
        );
    }
    if !queue.broken {
        queue.requests.push(args);
        queue.commands.push(command);
    }
    reply::simple(ctx.out, "QUEUED");
}

/// `MULTI`
pub(super) fn multi(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    if ctx.client.transaction.queue.is_some() {
        return Err(CommandError::Fixed("ERR MULTI calls can not be nested"));
    }
    ctx.client.transaction.queue = Some(Box::default());
    reply::ok(ctx.out);
    Ok(())
}

/// `DISCARD`
pub(super) fn discard(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    if ctx.client.transaction.queue.take().is_none() {
        return Err(CommandError::Fixed("ERR DISCARD without MULTI"));
    }
    ctx.client.transaction.watched.clear();
    reply::ok(ctx.out);
    Ok(())
}

/// `WATCH key [key ...]`
pub(super) fn watch(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    if ctx.client.transaction.queue.is_some() {
        return Err(CommandError::Fixed("ERR WATCH inside MULTI is not allowed"));
    }
    let view = ctx.view();
    for bytes in args.from(1) {
        let key = ctx.key(bytes);
        let name = (key.db, bytes.to_vec());
        if ctx.client.transaction.watched.contains(&name) {
            continue;
        }
        let swaps = ctx.shared.swaps(key.db);
        let version = ctx.ops().meta(key, view)?.map_or(0, |meta| meta.version);
        ctx.client
            .transaction
            .watched
            .insert(name, WatchedState { version, swaps });
    }
    reply::ok(ctx.out);
    Ok(())
}

/// `UNWATCH`
pub(super) fn unwatch(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    ctx.client.transaction.watched.clear();
    reply::ok(ctx.out);
    Ok(())
}

/// Ends the transaction of an EXEC that is refused before it runs.
#[cold]
pub(super) fn abort(ctx: &mut CommandContext<'_>, fail: &CommandError) {
    ctx.client.transaction.queue = None;
    ctx.client.transaction.watched.clear();
    let text = fail.text(ctx.shared);
    let cause = text.strip_prefix(b"ERR ").unwrap_or(&text);
    ctx.refuse(ctx.out.len(), &aborted(cause));
}

fn aborted(cause: &[u8]) -> CommandError {
    CommandError::Detailed([b"EXECABORT Transaction discarded because of: ", cause].concat())
}

/// `EXEC`
pub(super) fn exec(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let Some(queue) = ctx.client.transaction.queue.take() else {
        return Err(CommandError::Fixed("ERR EXEC without MULTI"));
    };
    let watched = std::mem::take(&mut ctx.client.transaction.watched);
    ctx.client.transaction.executing = Some(queue.len());
    let outcome = run_queue(ctx, &queue, &watched);
    ctx.client.transaction.executing = None;
    if let Err(CommandError::Long) = outcome {
        (ctx.client.transaction.queue, ctx.client.transaction.watched) = (Some(queue), watched);
    }
    outcome
}

/// Executes the queued requests, unless one was refused, the medium has failed, or a watched key has changed.
fn run_queue(
    ctx: &mut CommandContext<'_>,
    queue: &TransactionQueue,
    watched: &WatchedKeys,
) -> Result<(), CommandError> {
    if queue.broken {
        let text = "EXECABORT Transaction discarded because of previous errors.";
        return Err(CommandError::Fixed(text));
    }
    if let Some(reason) = ctx.shared.durability.poisoned.get()
        && queue.commands.iter().any(|c| c.is(flag::WRITE))
    {
        return Err(aborted(&misconf(reason)));
    }
    let start = ctx.out.len();
    reply::array(ctx.out, queue.len());
    let mut at = 0;
    while at < queue.len() || at == 0 {
        let range = queue.groupable(at);
        let watched = (at == 0).then_some(watched);
        match run_group(ctx, queue, range.clone(), watched) {
            Ok(ExecGroup::Applied) => {}
            Ok(ExecGroup::Long) => return Err(CommandError::Long),
            Ok(ExecGroup::Abandoned) => {
                ctx.out.truncate(start);
                reply::null_array(ctx.out, ctx.client.resp);
                return Ok(());
            }
            Err(error) if at == 0 => return Err(abandoned(ctx, error)),
            // Earlier groups have taken effect. Each command of this group replies with the error.
            Err(error) => {
                for at in range.clone() {
                    ctx.refuse(ctx.out.len(), &error.clone().into());
                    ctx.count_failed(queue.commands[at]);
                }
            }
        }
        at = range.end.max(at);
        if let Some(&command) = queue.commands.get(at) {
            run_permitted(ctx, command, queue.requests.args(at));
        }
        at += 1;
    }
    Ok(())
}

/// The error reply of a transaction that had no effect.
fn abandoned(ctx: &CommandContext<'_>, error: Error) -> CommandError {
    match error {
        poisoned @ Error::Poisoned(_) => poisoned.into(),
        other => aborted(&CommandError::Store(other).text(ctx.shared)),
    }
}

/// Outcome of a group.
enum ExecGroup {
    Applied,
    /// A watched key has changed.
    Abandoned,
    /// As [`CommandError::Long`].
    Long,
}

/// Runs the commands in `range` as one group, if the watched keys are unchanged. Only the first group, which has
/// `watched`, may return [`ExecGroup::Long`]: before a later group, other commands have already run.
fn run_group(
    ctx: &mut CommandContext<'_>,
    queue: &TransactionQueue,
    range: Range<usize>,
    watched: Option<&WatchedKeys>,
) -> Result<ExecGroup, Error> {
    let mut keys = queue.keys(range.clone(), ctx.client.db);
    keys.extend(
        watched
            .into_iter()
            .flat_map(WatchedKeys::iter)
            .map(|(key, _)| key),
    );
    if keys.is_empty() && !queue.has_script(range.clone()) {
        for at in range {
            run_permitted(ctx, queue.commands[at], queue.requests.args(at));
        }
        return Ok(ExecGroup::Applied);
    }
    let (from, was_cut, db) = (ctx.out.len(), ctx.out.is_cut(), ctx.client.db);
    ctx.mark.get_or_insert(from); // A group reads the newest values, durable or not.
    let executes_long = ctx.executes_long || watched.is_none();
    let mut is_long = false;
    let effects = ctx.thread.mark_effects();
    let calls = ctx.thread.timer.inner();
    // The group may run more than once; a refusal is recorded once.
    let mut checked = range.start;
    let body: GroupBody<'_> = &mut |ctx| {
        match was_cut {
            true => ctx.out.truncate(from),
            false => ctx.out.rewind(from),
        }
        ctx.client.db = db;
        ctx.thread.rewind_effects(effects);
        ctx.thread.timer.restore_inner(&calls);
        for (key, state) in watched.into_iter().flat_map(WatchedKeys::iter) {
            let now = ctx.ops().meta(key, ReadView::Pending)?;
            let version = now.map_or(0, |meta| meta.version);
            if state.is_touched(version, ctx.shared.swaps(key.db)) {
                return Ok(GroupDecision::Abandon);
            }
        }
        for at in range.clone() {
            let (command, args) = (queue.commands[at], queue.requests.args(at));
            if ctx.client.user.is_restricted() {
                let is_first = at >= checked;
                checked = checked.max(at + 1);
                if !may_execute(ctx, command, args, is_first) {
                    continue;
                }
            }
            let outcome = run_timed(ctx, command, args, run_in_group)?;
            if outcome == ExecOutcome::Long {
                is_long = true;
                return Ok(GroupDecision::Abandon);
            }
        }
        Ok(GroupDecision::Apply)
    };
    let verdict = match queue.has_script(range.clone()) {
        true => ctx.with_any_keys(executes_long, body),
        false => ctx.with_group(&keys, executes_long, body),
    };
    if !matches!(verdict, Ok(GroupDecision::Apply)) {
        ctx.thread.rewind_effects(effects);
        ctx.thread.timer.restore_inner(&calls);
    }
    Ok(match verdict? {
        GroupDecision::Apply => ExecGroup::Applied,
        GroupDecision::Abandon if is_long => ExecGroup::Long,
        GroupDecision::Abandon => ExecGroup::Abandoned,
    })
}

/// Whether the client's user may execute a command of the transaction. Replies with an error if it may not. `records`: a
/// refusal is recorded.
#[cold]
fn may_execute(
    ctx: &mut CommandContext<'_>,
    command: &'static Command,
    args: Args<'_>,
    records: bool,
) -> bool {
    let checked = match records {
        true => ctx.check_permission(command, args, DenialContext::Multi),
        false => check(ctx.client.user.user(), command, args),
    };
    if let Err(denial) = checked {
        ctx.refuse(ctx.out.len(), &denial.error_in_exec());
        return false;
    }
    true
}

/// Runs one command of a transaction outside of any group, if the client's user may execute it.
fn run_permitted(ctx: &mut CommandContext<'_>, command: &'static Command, args: Args<'_>) {
    if !ctx.client.user.is_restricted() || may_execute(ctx, command, args, true) {
        run_timed(ctx, command, args, execute);
    }
}

/// Runs one command of a transaction by `run`, and counts its time.
fn run_timed<T>(
    ctx: &mut CommandContext<'_>,
    command: &'static Command,
    args: Args<'_>,
    run: fn(&mut CommandContext<'_>, &'static Command, Args<'_>) -> T,
) -> T {
    ctx.show_script(command, args);
    let began = Instant::now();
    let outcome = run(ctx, command, args);
    ctx.show_executed(command, args);
    let ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    ctx.thread.timer.time_untimed(ns); // Commands that a script has called.
    ctx.thread.timer.note_inner(command.number, Some(ns));
    if ns >= ctx.shared.settings.slow_ns() {
        note_slow(ctx, command, args, ns);
    }
    outcome
}

/// Runs one command of a group. An error of the request is the command's reply. An error of the pool (full, or failed
/// medium) ends the group.
fn run_in_group(
    ctx: &mut CommandContext<'_>,
    command: &'static Command,
    args: Args<'_>,
) -> Result<ExecOutcome, Error> {
    let from = ctx.out.len();
    ctx.track_reads(command, args);
    match (command.run)(ctx, args) {
        Ok(()) => {
            ctx.count_if_failed(command);
            Ok(ExecOutcome::Done)
        }
        Err(CommandError::Long) => Ok(ExecOutcome::Long),
        Err(CommandError::Store(error)) if ends_group(&error) => Err(error),
        Err(fail) => {
            ctx.refuse(from, &fail);
            ctx.count_failed(command);
            Ok(ExecOutcome::Done)
        }
    }
}
