//! Commands about the server: TIME LOLWUT SHUTDOWN, and containers without a subcommand.

use std::time::{SystemTime, UNIX_EPOCH};

use super::context::CommandContext;
use super::error::{CommandError, NOT_INTEGER, SYNTAX};
use super::text;
use crate::protocol::resp::number::parse_i64;
use crate::protocol::resp::{Args, reply};
use crate::settings::REDIS_VERSION;

/// Table entry of a container command. Its arity requires a subcommand, so no request reaches this function.
pub(super) fn container(_: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    Err(SYNTAX)
}

/// `TIME`
pub(super) fn time(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    reply::array(ctx.out, 2);
    reply::bulk_number(ctx.out, now.as_secs());
    reply::bulk_number(ctx.out, u64::from(now.subsec_micros()));
    Ok(())
}

/// `LOLWUT [VERSION version] [arg ...]`. As in Redis 7.0 without arguments, the reply is the version.
pub(super) fn lolwut(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    if args.len() > 2 && text::is_option(args.at(1), "version") {
        parse_i64(args.at(2)).ok_or(NOT_INTEGER)?;
    }
    let text = format!("Redis ver. {REDIS_VERSION}\n");
    reply::verbatim(ctx.out, ctx.client.resp, &text);
    Ok(())
}

/// `SHUTDOWN [NOSAVE|SAVE] [NOW] [FORCE] [ABORT]`. Acknowledged writes are durable with every option.
pub(super) fn shutdown(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let (mut save, mut nosave, mut abort) = (false, false, false);
    for option in args.from(1) {
        match text::option(option).as_slice() {
            b"save" => save = true,
            b"nosave" => nosave = true,
            b"now" | b"force" => {}
            b"abort" => abort = true,
            _ => return Err(SYNTAX),
        }
    }
    if (save && nosave) || (abort && args.len() > 2) {
        return Err(SYNTAX);
    }
    if abort {
        return Err(CommandError::Fixed("ERR No shutdown in progress."));
    }
    if !ctx.may_protected() {
        return Err(CommandError::Fixed(
            "ERR SHUTDOWN command not allowed. If the enable-protected-configs option is set to \
             \"local\", you can run it from a local connection, otherwise you need to set this option in \
             the configuration file, and then restart the server.",
        ));
    }
    tracing::info!(client = ctx.client.id(), "stopping: a client sent SHUTDOWN");
    ctx.client.leaving = true;
    ctx.shared.threads.stop();
    Ok(())
}
