//! From a request to a reply: finds the command, checks that it is allowed now, and queues or executes it.
//!
//! ```text
//!   args ─▶ find ─▶ arity ─▶ allowed now? ─▶ queue (in MULTI), or execute ─▶ reply
//!             │        │            │                          │
//!             └────────┴────────────┴───── error reply ◀───────┘
//! ```

use super::context::CommandContext;
use super::context::client_state::ReplyMode;
use super::context::command_row::{Command, flag};
use super::error::{CommandError, misconf};
use super::execute::{execute, reject};
use super::lookup::{lookup, resolve};
use super::text::is_option;
use super::transactions;
use super::{maxmemory, monitor, pubsub};
use crate::exec_context::ExecOutcome;
use crate::protocol::resp::Args;
use crate::state::acl_log::DenialContext;
use crate::stats::counters::Counter;

const NOAUTH: CommandError = CommandError::Fixed("NOAUTH Authentication required.");

/// Executes one request; `command` is the result of looking up its name. Appends exactly one reply, or none if the
/// client has turned replies off or the request is long.
#[inline]
pub(super) fn run(
    ctx: &mut CommandContext<'_>,
    command: Option<&'static Command>,
    args: Args<'_>,
) -> ExecOutcome {
    ctx.limit_tracked_keys();
    let from = ctx.out.len();
    ctx.request.reply_start = from;
    ctx.request.push_end = from;
    let mut outcome = ExecOutcome::Refused;
    match resolve(command, args) {
        Ok(command) => {
            outcome = queue_or_execute(ctx, command, args);
            if outcome == ExecOutcome::Long {
                ctx.forget_events();
                return outcome;
            }
        }
        Err(fail) => {
            if is_http(args.at(0)) {
                ctx.client.leaving = true;
                return outcome;
            }
            let found = lookup(command, args);
            ctx.client.last_command = found.as_ref().map_or("NULL", |found| found.name);
            if let Ok(found) = found {
                ctx.count_rejected(found);
            }
            match command {
                Some(command) if command.name == "exec" => transactions::abort(ctx, &fail),
                _ => reject(ctx, &fail),
            }
        }
    }
    ctx.count(Counter::Commands);
    if ctx.client.replies != ReplyMode::On {
        withhold_reply(ctx, from);
    }
    ctx.settle_changes();
    ctx.end_caching(command);
    outcome
}

/// Whether the request is HTTP, which a web page could make a browser send to the server.
fn is_http(name: &[u8]) -> bool {
    is_option(name, "post") || is_option(name, "host:")
}

#[cold]
fn withhold_reply(ctx: &mut CommandContext<'_>, from: usize) {
    match ctx.client.replies {
        ReplyMode::On => return,
        ReplyMode::Off => {}
        ReplyMode::Skip => ctx.client.replies = ReplyMode::SkipThis,
        ReplyMode::SkipThis => ctx.client.replies = ReplyMode::On,
    }
    // Messages are no replies.
    let pushed = ctx.request.push_end.max(from);
    ctx.out.truncate(pushed);
}

/// Replies that a client cannot use a command now.
#[cold]
fn refuse(ctx: &mut CommandContext<'_>, command: &'static Command, fail: &CommandError) {
    ctx.count_rejected(command);
    match command.name {
        "exec" => transactions::abort(ctx, fail),
        _ => reject(ctx, fail),
    }
}

/// Checks the permissions of a restricted user. Replies with an error if it may not execute the request.
#[cold]
fn may_execute(ctx: &mut CommandContext<'_>, command: &'static Command, args: Args<'_>) -> bool {
    let context = match ctx.client.transaction.queue.is_some() {
        // The transaction refuses it anyway, with another error.
        true if command.is(flag::NO_MULTI) => return true,
        true => DenialContext::Multi,
        false => DenialContext::TopLevel,
    };
    match ctx.check_permission(command, args, context) {
        Ok(()) => true,
        Err(denial) => {
            refuse(ctx, command, &denial.error(command));
            false
        }
    }
}

/// Queues a command (in MULTI) or executes it, if it is allowed now.
#[inline]
fn queue_or_execute(
    ctx: &mut CommandContext<'_>,
    command: &'static Command,
    args: Args<'_>,
) -> ExecOutcome {
    ctx.client.last_command = command.name;
    if !ctx.client.user.is_authenticated() && !command.is(flag::NO_AUTH) {
        refuse(ctx, command, &NOAUTH);
        return ExecOutcome::Refused;
    }
    if ctx.client.user.is_restricted() && !may_execute(ctx, command, args) {
        return ExecOutcome::Refused;
    }
    // As in Redis, PING is refused together with writes: clients use it as a health check.
    if (command.is(flag::WRITE) || command.name == "ping")
        && let Some(reason) = ctx.shared.durability.poisoned.get()
    {
        ctx.count_rejected(command);
        reject(ctx, &CommandError::Detailed(misconf(reason)));
        return ExecOutcome::Refused;
    }
    if let Err(fail) = maxmemory::check(ctx, command) {
        refuse(ctx, command, &fail);
        return ExecOutcome::Refused;
    }
    if pubsub::is_restricted(ctx) && !pubsub::is_allowed(command.name) {
        refuse(ctx, command, &pubsub::not_allowed(command.name));
        return ExecOutcome::Refused;
    }
    if let Err(fail) = monitor::check_allowed(ctx, command) {
        refuse(ctx, command, &fail);
        return ExecOutcome::Refused;
    }
    if ctx.client.transaction.queue.is_some() && !command.is(flag::AT_ONCE) {
        transactions::queue(ctx, command, args);
        return ExecOutcome::Queued;
    }
    let effects = ctx.thread.mark_effects();
    ctx.show_script(command, args);
    let outcome = execute(ctx, command, args);
    match outcome {
        ExecOutcome::Long => ctx.thread.rewind_effects(effects),
        _ => ctx.show_executed(command, args),
    }
    outcome
}
