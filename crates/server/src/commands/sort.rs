//! SORT and SORT_RO. Lists, sets and sorted sets do not exist here, so a key holds nothing to sort, or a string, which
//! is an error.

use farbank_store::ReadView;

use super::context::CommandContext;
use super::context::command_row::{Command, flag};
use super::error::{CommandError, NOT_INTEGER, SYNTAX, WRONG_TYPE};
use super::text;
use crate::protocol::resp::number::parse_i64;
use crate::protocol::resp::{Args, reply};

/// Checks the options, and returns the key that STORE names.
fn destination<'a>(
    ctx: &CommandContext<'_>,
    command: &Command,
    args: Args<'a>,
) -> Result<Option<&'a [u8]>, CommandError> {
    let may_store = command.is(flag::WRITE);
    let reads_all = ctx.may_read_all_keys(command, args);
    let (mut at, mut stored) = (2, None);
    while let Some(option) = args.get(at) {
        let values = args.len() - at - 1;
        at += match text::option(option).as_slice() {
            b"asc" | b"desc" | b"alpha" => 1,
            b"limit" if values >= 2 => {
                for value in [args.at(at + 1), args.at(at + 2)] {
                    parse_i64(value).ok_or(NOT_INTEGER)?;
                }
                3
            }
            b"store" if may_store && values >= 1 => {
                stored = args.get(at + 1);
                2
            }
            // The pattern names keys that are not among the arguments.
            b"by" if values >= 1 && !reads_all && args.at(at + 1).contains(&b'*') => {
                return Err(CommandError::Fixed(
                    "ERR BY option of SORT denied due to insufficient ACL permissions.",
                ));
            }
            b"get" if values >= 1 && !reads_all => {
                return Err(CommandError::Fixed(
                    "ERR GET option of SORT denied due to insufficient ACL permissions.",
                ));
            }
            b"by" | b"get" if values >= 1 => 2,
            _ => return Err(SYNTAX),
        };
    }
    Ok(stored)
}

fn sort_by(ctx: &mut CommandContext<'_>, args: Args<'_>, name: &str) -> Result<(), CommandError> {
    let stored = match ctx.client.table.find(name.as_bytes()) {
        Some(command) => destination(ctx, command, args)?,
        None => None,
    };
    let key = ctx.key(args.at(1));
    let view = match stored {
        Some(_) => ReadView::Pending,
        None => ctx.view(),
    };
    let found = ctx.ops().meta(key, view)?.is_some();
    if stored.is_none() {
        ctx.count_lookup(key, found);
    }
    if found {
        return Err(WRONG_TYPE);
    }
    let Some(stored) = stored.map(|bytes| ctx.key(bytes)) else {
        reply::array(ctx.out, 0);
        return Ok(());
    };
    // An empty result is not stored; the destination is deleted.
    if ctx.ops().delete(stored)? {
        ctx.notify_generic("del", stored);
    }
    reply::integer(ctx.out, 0);
    Ok(())
}

/// `SORT key [BY pattern] [LIMIT offset count] [GET pattern ...] [ASC|DESC] [ALPHA] [STORE destination]`
pub(super) fn sort(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    sort_by(ctx, args, "sort")
}

/// `SORT_RO key [BY pattern] [LIMIT offset count] [GET pattern ...] [ASC|DESC] [ALPHA]`
pub(super) fn sort_ro(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    sort_by(ctx, args, "sort_ro")
}
