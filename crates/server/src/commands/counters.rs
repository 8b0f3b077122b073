//! Counters: INCR DECR INCRBY DECRBY INCRBYFLOAT.

use farbank_store::UpdateDecision;

use super::context::CommandContext;
use super::error::{CommandError, NOT_INTEGER};
use super::long_double::LongDouble;
use super::values::{string_in, string_instead_of};
use crate::protocol::resp::number::{DecimalText, parse_i64};
use crate::protocol::resp::{Args, reply};

/// `INCR key`
pub(super) fn incr(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    add(ctx, args.at(1), 1)
}

/// `DECR key`
pub(super) fn decr(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    add(ctx, args.at(1), -1)
}

/// `INCRBY key by`
pub(super) fn incrby(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    add(ctx, args.at(1), parse_i64(args.at(2)).ok_or(NOT_INTEGER)?)
}

/// `DECRBY key by`
pub(super) fn decrby(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let by = parse_i64(args.at(2)).ok_or(NOT_INTEGER)?;
    let by = by
        .checked_neg()
        .ok_or(CommandError::Fixed("ERR decrement would overflow"))?;
    add(ctx, args.at(1), by)
}

/// Adds `by` to the number at `key`; an absent key counts as 0. Keeps the expiry.
fn add(ctx: &mut CommandContext<'_>, key: &[u8], by: i64) -> Result<(), CommandError> {
    let key = ctx.key(key);
    ctx.refuse_long_value(key)?;
    let mut outcome = Ok(0);
    ctx.update(key, &mut |item| {
        let parse = |bytes| parse_i64(bytes).ok_or(NOT_INTEGER);
        let old = string_in(item).and_then(|bytes| bytes.map_or(Ok(0), parse));
        outcome = old.and_then(|old| {
            old.checked_add(by).ok_or(CommandError::Fixed(
                "ERR increment or decrement would overflow",
            ))
        });
        let Ok(new) = outcome else {
            return UpdateDecision::Keep;
        };
        string_instead_of(item, DecimalText::new(new).as_bytes().to_vec())
    })?;
    let new = outcome?;
    ctx.notify_string("incrby", key, ctx.request.was_absent);
    reply::integer(ctx.out, new);
    Ok(())
}

/// `INCRBYFLOAT key by`
pub(super) fn incrbyfloat(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
) -> Result<(), CommandError> {
    const NOT_FLOAT: CommandError = CommandError::Fixed("ERR value is not a valid float");
    const NOT_FINITE: CommandError =
        CommandError::Fixed("ERR increment would produce NaN or Infinity");
    let key = ctx.key(args.at(1));
    ctx.refuse_long_value(key)?;
    let by = LongDouble::parse(args.at(2));
    let mut outcome = Err(NOT_FLOAT);
    ctx.update(key, &mut |item| {
        outcome = string_in(item).and_then(|bytes| {
            let old = LongDouble::parse(bytes.unwrap_or(b"0")).ok_or(NOT_FLOAT)?;
            let sum = old.plus(by.ok_or(NOT_FLOAT)?).ok_or(NOT_FINITE)?;
            Ok(sum.text())
        });
        let Ok(new) = &outcome else {
            return UpdateDecision::Keep;
        };
        string_instead_of(item, new.as_bytes().to_vec())
    })?;
    let new = outcome?;
    ctx.notify_string("incrbyfloat", key, ctx.request.was_absent);
    reply::bulk(ctx.out, new.as_bytes());
    Ok(())
}
