//! Executes one command outside of any group. Knows neither the table of commands nor the other families.
//!
//! # Invariants
//! SRV-CMD-1  A write's reply is behind the mark (see `net::output`), whether or not it changed anything: a write that changes
//!     nothing may reveal another, undurable write.
//! SRV-CMD-2  A read sees undurable writes only if its reply is behind the mark.

use farbank_store::{Error, KEY_BYTES_MAX};

use super::context::CommandContext;
use super::context::command_row::{Command, flag};
use super::error::CommandError;
use crate::exec_context::ExecOutcome;
use crate::protocol::resp::Args;

/// Replies with an error before execution. It makes the EXEC of a queued transaction fail.
#[cold]
pub(super) fn reject(ctx: &mut CommandContext<'_>, fail: &CommandError) {
    if let Some(queue) = &mut ctx.client.transaction.queue {
        queue.broken = true;
    }
    ctx.refuse(ctx.out.len(), fail);
}

/// Executes a command outside any group.
#[inline]
pub(super) fn execute(
    ctx: &mut CommandContext<'_>,
    command: &'static Command,
    args: Args<'_>,
) -> ExecOutcome {
    let from = ctx.out.len();
    let clean = ctx.mark.is_none();
    let tells =
        command.is(flag::WRITE) || (command.is(flag::READONLY | flag::READS) && ctx.unacknowledged);
    if tells && clean {
        *ctx.mark = Some(from); // SRV-CMD-1, SRV-CMD-2
    }
    let executed = check_keys(command, args).and_then(|()| {
        ctx.track_reads(command, args);
        (command.run)(ctx, args)
    });
    match executed {
        Ok(()) => {
            if ctx.request.has_failed {
                ctx.count_if_failed(command);
            }
            ExecOutcome::Done
        }
        Err(fail) => failed(ctx, command, from, clean, &fail),
    }
}

#[cold]
fn failed(
    ctx: &mut CommandContext<'_>,
    command: &Command,
    from: usize,
    clean: bool,
    fail: &CommandError,
) -> ExecOutcome {
    if let CommandError::Long = fail {
        ctx.out.rewind(from);
        if clean {
            *ctx.mark = None;
        }
        return ExecOutcome::Long;
    }
    if let CommandError::Store(Error::Poisoned(poisoned)) = fail {
        ctx.shared.note_poisoned(poisoned);
        if clean {
            *ctx.mark = None; // Nothing was written, so the error reply need not wait.
        }
    }
    ctx.refuse(from, fail);
    ctx.count_failed(command);
    ExecOutcome::Done
}

/// Refuses a key that is longer than the store allows.
#[inline]
pub(super) fn check_key(key: &[u8]) -> Result<(), CommandError> {
    match key.len() {
        0..=KEY_BYTES_MAX => Ok(()),
        bytes => Err(Error::KeyTooLong {
            bytes,
            bytes_max: KEY_BYTES_MAX,
        }
        .into()),
    }
}

/// Refuses keys that are longer than the store allows, before anything is done.
#[inline]
pub(super) fn check_keys(command: &Command, args: Args<'_>) -> Result<(), CommandError> {
    if !command.has_keys() {
        return Ok(());
    }
    if command.keys.last == 1 {
        return check_key(args.at(1));
    }
    let mut positions = command.keys.positions(args.len());
    positions.try_for_each(|at| check_key(args.at(at)))
}
