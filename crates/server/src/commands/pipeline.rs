//! Executes a pipeline of RESP requests: parses a window ahead, executes, replies.

use std::sync::atomic::Ordering;
use std::time::Instant;

use farbank_store::{Key, RoomReply};

use super::acl::check::{check, is_long_check};
use super::context::CommandContext;
use super::context::client_state::ClientState;
use super::context::command_row::{Command, WriteNeed, flag};
use super::context::transaction::TransactionQueue;
use super::dispatch::run;
use super::execute::reject;
use super::long;
use super::lookup::{lookup, resolve};
use super::scripts;
use super::slowlog::note_slow;
use super::table::COMMANDS;
use super::tracking::{enables_tracking, is_recording};
use super::transactions;
use crate::exec_context::{
    ExecOutcome, ExecutedRequest, StoreAccess, Turn, TurnProgress, WINDOW, WindowKeys,
};
use crate::protocol::resp::{Args, ProtocolError, RequestParser, reply};
use crate::state::pause::PauseKind;
use crate::state::shared::ServerShared;
use crate::stats::counters::Counter;

/// Executes the complete requests in the connection's input.
pub(crate) fn execute(turn: Turn<'_>, client: &mut ClientState, parser: &mut RequestParser) {
    let (input, mut ctx, mut turn): (_, CommandContext<'_>, _) = turn.split(client);
    // SRV-USER-1
    if !ctx.client.follow_users(&ctx.shared.security.users) {
        turn.status.closing = true;
        return;
    }
    while !turn.status.closing {
        let most = requests_ahead(ctx.client);
        let read = parse_ahead(ctx.shared, ctx.client, parser, input.unread());
        let (window, count) = look_ahead(&mut ctx, parser, input.unread());
        for (index, &command) in window[..count].iter().enumerate() {
            let start = index.checked_sub(1).map_or(0, |before| parser.end(before));
            let end = parser.end(index);
            let args = parser.args(input.unread(), index);
            let request = ParsedRequest {
                command,
                args,
                bytes: end - start,
                is_last: index + 1 == count && count < most,
            };
            let is_executed = execute_one(&mut ctx, &mut turn, request);
            if !turn.status.goes_on() {
                // The requests that were parsed ahead and not executed are parsed again when the connection resumes.
                input.consume(if is_executed { end } else { start });
                return parser.reset();
            }
        }
        input.consume(parser.consumed());
        parser.next();
        if let Err(error) = read {
            let text = error.reply();
            reply::error(ctx.out, &text);
            ctx.count_error(&text);
            turn.status.closing = true;
        } else if count < most {
            return;
        } else if turn.is_over() {
            turn.status.unfinished = true;
            return;
        }
    }
}

/// Most requests that are parsed before the first is executed. AUTH lifts the limits of the request after it.
#[inline]
fn requests_ahead(client: &ClientState) -> usize {
    match client.user.is_authenticated() {
        true => WINDOW,
        false => 1,
    }
}

/// Parses a window of the requests in `input`, for [`lone_key`] and [`execute`]. Parsing again, with more input, continues.
///
/// # Errors
/// The request after the complete ones is malformed. Parsing again returns the error again.
#[inline]
pub(crate) fn parse_ahead(
    shared: &ServerShared<'_>,
    client: &ClientState,
    parser: &mut RequestParser,
    input: &[u8],
) -> Result<usize, ProtocolError> {
    let limits = shared.settings.limits(client.user.is_authenticated());
    parser.read(input, limits, requests_ahead(client))
}

/// The key of the request that was parsed from `input`, and whether the request reads its value. `None` if more than one was
/// parsed.
pub(crate) fn lone_key<'a>(
    client: &ClientState,
    parser: &'a RequestParser,
    input: &'a [u8],
) -> Option<(Key<'a>, bool)> {
    if parser.len() != 1 {
        return None;
    }
    let args = parser.args(input, 0);
    key_of(client, COMMANDS.find(args.at(0))?, args)
}

/// The first key of a request, and whether the request reads its value.
#[inline]
fn key_of<'a>(client: &ClientState, command: &Command, args: Args<'a>) -> Option<(Key<'a>, bool)> {
    let first = command.first_key(args);
    let key = Key {
        db: client.db,
        bytes: args.at(first),
    };
    (first > 0).then_some((key, command.is(flag::READONLY)))
}

/// A request that was parsed.
#[derive(Clone, Copy)]
struct ParsedRequest<'a> {
    command: Option<&'static Command>,
    args: Args<'a>,
    /// Its length, including its frame.
    bytes: usize,
    /// No complete request follows.
    is_last: bool,
}

/// Executes a request if it can run now, and updates the turn's status. Returns whether it was
/// executed. Otherwise it waits for space in the store or among the queued messages, for the thread of long requests,
/// or for the end of a pause.
#[inline]
fn execute_one(
    ctx: &mut CommandContext<'_>,
    turn: &mut TurnProgress<'_>,
    request: ParsedRequest<'_>,
) -> bool {
    let ParsedRequest {
        command,
        args,
        bytes,
        is_last,
    } = request;
    let status = &mut *turn.status;
    let mut outcome = ExecOutcome::Refused;
    let name = command.map_or("NULL", |command| command.name);
    if ctx.shared.clients.pause.is_set() && is_paused(ctx, command, args) {
        status.paused = true;
        return false;
    }
    if !ctx.executes_long && awaits_recording(ctx, command, args) {
        status.awaits_room = true;
        return false;
    }
    if !ctx.executes_long {
        // Before that, the client's requests are refused or short.
        let is_authenticated = ctx.client.user.is_authenticated();
        status.awaits_long =
            is_authenticated && long::is_long(ctx.client, ctx.shared, command, args, bytes);
        status.awaits_room = is_authenticated
            && !status.awaits_long
            && (needs_room(ctx.client, command, args).is_some_and(|need| !has_room(ctx, need))
                || ctx.shared.interests.subscriptions.is_full()
                    && (ctx.shared.interests.subscriptions.has_monitors()
                        || publishes(ctx.client, ctx.shows_changes(), command)));
    }
    if (status.awaits_room || status.awaits_long) && is_denied(ctx.client, command, args) {
        (status.awaits_room, status.awaits_long) = (false, false); // It is refused at once.
    }
    if !status.awaits_room && !status.awaits_long {
        settle_before(ctx, command);
        outcome = run(ctx, command, args);
        status.awaits_long = outcome == ExecOutcome::Long;
    }
    if status.awaits_long && is_script_slow(ctx) {
        status.awaits_long = false;
        ctx.thread.timer.forget_inner();
        refuse_busy(ctx, name);
    }
    if status.awaits_room || status.awaits_long {
        ctx.client.last_command = name;
        ctx.thread.timer.forget_inner();
        return false;
    }
    let number = match outcome {
        ExecOutcome::Done => number_of(command, args),
        _ => 0,
    };
    let request = ExecutedRequest {
        number,
        bytes,
        is_short: command.is_some_and(Command::is_short),
        is_last,
        leaves: ctx.client.leaving,
    };
    let ns = turn.note_executed(ctx, request);
    if let Some(ns) = ns.filter(|ns| *ns >= ctx.shared.settings.slow_ns())
        && outcome == ExecOutcome::Done
        && let Ok(command) = lookup(command, args)
    {
        note_slow(ctx, command, args, ns);
    }
    true
}

/// Whether the request must wait until executors record all changes (SRV-TRACK-4). A request that is refused makes no
/// executor record them.
#[inline]
fn awaits_recording(
    ctx: &CommandContext<'_>,
    command: Option<&'static Command>,
    args: Args<'_>,
) -> bool {
    enables_tracking(ctx.client, command, args)
        && ctx.client.user.is_authenticated()
        && !is_denied(ctx.client, command, args)
        && !is_recording(ctx)
}

/// Whether the client's user may not execute a request.
#[cold]
fn is_denied(client: &ClientState, command: Option<&'static Command>, args: Args<'_>) -> bool {
    let Ok(command) = resolve(command, args) else {
        return false;
    };
    client.user.is_restricted()
        && !is_long_check(client.user.pattern_bytes(), command, args)
        && check(client.user.user(), command, args).is_err()
}

/// The number of a request's command or subcommand.
#[inline]
fn number_of(command: Option<&'static Command>, args: Args<'_>) -> u16 {
    match command {
        Some(command) if command.subcommands.is_empty() => command.number,
        command => lookup(command, args).map_or(0, |command| command.number),
    }
}

/// Counts the time of the pending requests before a request that is not short, which may take much longer than they.
#[inline]
fn settle_before(ctx: &mut CommandContext<'_>, command: Option<&'static Command>) {
    if ctx.thread.timer.is_pending() && !command.is_some_and(Command::is_short) {
        ctx.settle_times(Instant::now(), false);
    }
}

/// Whether a pause of clients holds a request back. As in Redis, requests that are refused anyway are not held back.
#[cold]
fn is_paused(ctx: &CommandContext<'_>, command: Option<&'static Command>, args: Args<'_>) -> bool {
    let Some((kind, _)) = ctx.shared.clients.pause.current(ctx.shared.clock_ms()) else {
        return false;
    };
    let Ok(command) = resolve(command, args) else {
        return false;
    };
    if !ctx.client.user.is_authenticated() && !command.is(flag::NO_AUTH) {
        return false;
    }
    if is_denied(ctx.client, Some(command), args) {
        return false;
    }
    let queue = ctx
        .client
        .transaction
        .queue
        .as_ref()
        .filter(|_| command.name == "exec");
    let queue_writes = |queue: &TransactionQueue| {
        let mut commands = queue.commands.iter().enumerate();
        commands.any(|(at, command)| may_write(ctx.shared, command, queue.requests.args(at)))
    };
    kind == PauseKind::All
        || may_write(ctx.shared, command, args)
        || queue.is_some_and(|queue| queue_writes(queue))
}

/// Whether a pause of writes holds the request back.
fn may_write(shared: &ServerShared<'_>, command: &Command, args: Args<'_>) -> bool {
    if command.is(flag::SCRIPT) && !command.is(flag::READONLY) {
        return !scripts::is_read_only(shared, command, args);
    }
    command.may_write()
}

/// Whether the thread of long requests has run a script for longer than `busy-reply-threshold`.
#[cold]
fn is_script_slow(ctx: &CommandContext<'_>) -> bool {
    let run_ms = ctx.shared.script_run_ms();
    let busy_ms = ctx.shared.settings.busy_ms.load(Ordering::Relaxed);
    busy_ms > 0 && run_ms.is_some_and(|run_ms| run_ms > busy_ms)
}

/// Refuses a long request while a slow script runs, because the request would wait for it.
#[cold]
fn refuse_busy(ctx: &mut CommandContext<'_>, name: &'static str) {
    let fail = scripts::busy(ctx.shared.programs.scripts.running.is_function());
    ctx.request.reply_start = ctx.out.len();
    ctx.client.last_command = name;
    match name {
        "exec" => transactions::abort(ctx, &fail),
        _ => reject(ctx, &fail),
    }
    ctx.count(Counter::Commands);
}

/// The space that a request needs in the store, if it writes now.
#[inline]
fn needs_room(
    client: &ClientState,
    command: Option<&'static Command>,
    args: Args<'_>,
) -> Option<WriteNeed> {
    let command = command?;
    let queue = client.transaction.queue.as_ref();
    if command.name == "exec" {
        return queue.and_then(|queue| queue.needs_room());
    }
    let writes = command.is(flag::WRITE | flag::SCRIPT) && queue.is_none();
    writes.then(|| WriteNeed::of(command, args))
}

/// Whether the request publishes messages now. It then waits while too many are queued (SRV-PUB-4).
#[inline]
fn publishes(client: &ClientState, notifies: bool, command: Option<&'static Command>) -> bool {
    match (command, &client.transaction.queue) {
        (Some(command), None) => command.is(flag::PUBLISHES) || notifies && command.has_keys(),
        (Some(command), Some(queue)) => {
            command.name == "exec" && (notifies || queue.has(flag::PUBLISHES))
        }
        (None, _) => false,
    }
}

/// Whether the request can run now: the store has the space it needs, or will refuse it without waiting.
#[inline]
fn has_room(ctx: &mut CommandContext<'_>, need: WriteNeed) -> bool {
    let StoreAccess::Session(session) = &mut ctx.store else {
        return true;
    };
    // The write itself meets the same error again and replies with it.
    !matches!(
        session.prepare(need.bytes, need.deletes),
        Ok(RoomReply::Wait)
    )
}

/// Returns the commands of the requests that were parsed ahead, and their number. Prefetches their keys in the store
/// together, so that the requests do not each wait for far memory, and samples them for the hot keys.
#[inline]
fn look_ahead(
    ctx: &mut CommandContext<'_>,
    parser: &RequestParser,
    input: &[u8],
) -> ([Option<&'static Command>; WINDOW], usize) {
    let mut window = [None; WINDOW];
    let (count, mut keys) = (parser.len(), WindowKeys::new());
    for (index, slot) in window[..count].iter_mut().enumerate() {
        let args = parser.args(input, index);
        *slot = COMMANDS.find(args.at(0));
        keys.add(slot.and_then(|command| key_of(ctx.client, command, args)));
    }
    ctx.thread.sampler.sample(keys.keys(), &ctx.published.hot);
    if let StoreAccess::Session(session) = &mut ctx.store {
        keys.prefetch(&mut **session);
    }
    (window, count)
}
