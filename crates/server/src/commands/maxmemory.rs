//! The limit `maxmemory`: refuses requests that may add bytes while live records exceed it.
//!
//! The limit is checked once for each request, before it executes. So the request that crosses the limit succeeds, and a
//! transaction or a script is executed whole or not at all.

use std::sync::atomic::Ordering;

use farbank_store::Session;

use super::context::CommandContext;
use super::context::command_row::{Command, flag};
use super::error::CommandError;
use crate::lua::shebang::ScriptFlags;
use crate::state::shared::ServerShared;

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

/// Checks the limit for the request of a client, and records the result for the scripts that the request runs.
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
    match is_over && is_refused(ctx, command) {
        true => Err(OVER_MAXMEMORY),
        false => Ok(()),
    }
}

/// Whether a command is refused above the limit. As in Redis, a transaction queues nothing then: its requests use memory.
#[cold]
fn is_refused(ctx: &CommandContext<'_>, command: &Command) -> bool {
    let Some(queue) = &ctx.client.queue else {
        return command.is(flag::DENYOOM);
    };
    match command.name {
        "exec" => queue.commands.iter().any(|queued| queued.is(flag::DENYOOM)),
        "discard" | "quit" | "reset" => false,
        _ => true,
    }
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
