//! Parts of strings: GETRANGE SUBSTR SETRANGE.

use farbank_store::UpdateDecision;

use super::context::CommandContext;
use super::error::{CommandError, NOT_INTEGER, TOO_LONG};
use super::values::{extended, string_in, string_instead_of};
use crate::exec_context::LONG_REQUEST_BYTES;
use crate::protocol::resp::number::parse_i64;
use crate::protocol::resp::{Args, reply};

/// Resolves a range of positions of which negative ones count from the end. Returns the first and the last position
/// in a sequence of `len`, or `None` if the range is empty. As in Redis, a position before the start means the start.
pub(super) fn resolve_range(start: i64, end: i64, len: usize) -> Option<(usize, usize)> {
    if start < 0 && end < 0 && start > end {
        return None;
    }
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let from_start = |at: i64| if at < 0 { (at + len).max(0) } else { at };
    let (start, end) = (from_start(start), from_start(end).min(len - 1));
    if start > end {
        return None;
    }
    Some((usize::try_from(start).ok()?, usize::try_from(end).ok()?))
}

/// `GETRANGE key start end`, `SUBSTR key start end`
pub(super) fn getrange(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let start = parse_i64(args.at(2)).ok_or(NOT_INTEGER)?;
    let end = parse_i64(args.at(3)).ok_or(NOT_INTEGER)?;
    let value = ctx.read_string(ctx.key(args.at(1)))?.unwrap_or_default();
    let part = resolve_range(start, end, value.len()).map_or(&[][..], |(a, b)| &value[a..=b]);
    // The reply contains these bytes, so they are not hidden.
    ctx.request.hidden_bytes -= part.len();
    if ctx.out.bytes_max().saturating_sub(ctx.out.len()) < part.len() {
        ctx.out.cut();
        return Ok(());
    }
    reply::bulk(ctx.out, part);
    Ok(())
}

/// `SETRANGE key offset value`
pub(super) fn setrange(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let offset = parse_i64(args.at(2)).ok_or(NOT_INTEGER)?;
    let offset =
        usize::try_from(offset).map_err(|_| CommandError::Fixed("ERR offset is out of range"))?;
    let (key, part) = (ctx.key(args.at(1)), args.at(3));
    let (end, most) = (offset.saturating_add(part.len()), ctx.value_bytes_max());
    ctx.refuse_long_value(key)?;
    if !ctx.executes_long && !part.is_empty() && (LONG_REQUEST_BYTES + 1..=most).contains(&end) {
        return Err(CommandError::Long);
    }
    let mut outcome = Ok(0);
    ctx.update(key, &mut |item| {
        let old = string_in(item).map(Option::unwrap_or_default);
        outcome = old.and_then(|old| match part {
            [] => Ok(old.len()),
            _ if end > most => Err(TOO_LONG),
            _ => Ok(old.len().max(end)),
        });
        if outcome.is_err() || part.is_empty() {
            return UpdateDecision::Keep;
        }
        let mut bytes = extended(item.map_or(&[][..], |item| item.bytes), end);
        bytes[offset..end].copy_from_slice(part);
        string_instead_of(item, bytes)
    })?;
    let len = outcome?;
    if !part.is_empty() {
        ctx.notify_string("setrange", key, ctx.request.was_absent);
    }
    reply::integer(ctx.out, i64::try_from(len).unwrap_or(i64::MAX));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_before_the_start_means_the_start() {
        for (start, end, len, expected) in [
            (0, -1, 5, Some((0, 4))),
            (-3, -2, 5, Some((2, 3))),
            (-100, -50, 5, Some((0, 0))),
            (-1, -2, 5, None),
            (3, 2, 5, None),
            (5, 9, 5, None),
            (0, 0, 0, None),
            (i64::MIN, i64::MAX, 5, Some((0, 4))),
            (i64::MAX, i64::MIN, 5, None),
        ] {
            assert_eq!(
                resolve_range(start, end, len),
                expected,
                "{start} {end} {len}"
            );
        }
    }
}
