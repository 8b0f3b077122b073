//! Whole values under other names: RENAME RENAMENX COPY MOVE.
//!
//! Each is one group of two keys: isolated, and after a crash the value is under one name or the other, never under
//! both (or, for COPY, under neither). The expiry moves with the value.

use farbank_store::{GroupDecision, Key, ReadView, Value, ValueMeta};

use super::context::CommandContext;
use super::error::{CommandError, SYNTAX};
use super::text;
use crate::exec_context::LONG_REQUEST_BYTES;
use crate::keyspace_events::KeyspaceEvents;
use crate::protocol::resp::{Args, reply};

const NO_KEY: CommandError = CommandError::Fixed("ERR no such key");
const SAME_OBJECT: CommandError =
    CommandError::Fixed("ERR source and destination objects are the same");

/// What happens to the two keys.
#[derive(Clone, Copy)]
struct Transfer {
    /// The source is deleted.
    deletes_source: bool,
    /// An old value of the destination is replaced.
    replaces: bool,
}

/// Outcome of a [`Transfer`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transferred {
    Done,
    NoSource,
    /// The destination exists.
    Refused,
}

/// Stores the value of `from` under `to`, in one group.
fn transfer(
    ctx: &mut CommandContext<'_>,
    from: Key<'_>,
    to: Key<'_>,
    how: Transfer,
) -> Result<Transferred, CommandError> {
    let bytes_max = match ctx.executes_long {
        true => usize::MAX,
        false => LONG_REQUEST_BYTES.saturating_sub(ctx.request.hidden_bytes),
    };
    let (mut outcome, mut value_bytes) = (Transferred::Done, None);
    let mut expires_ms = 0;
    ctx.grouped(&[from, to], &mut |ops| {
        let (mut bytes, mut found) = (Vec::new(), None::<ValueMeta>);
        // The value is read only if it will be written.
        let meta = ops.meta(from, ReadView::Pending)?;
        outcome = match meta {
            None => Transferred::NoSource,
            Some(_) if !how.replaces && ops.meta(to, ReadView::Pending)?.is_some() => {
                Transferred::Refused
            }
            Some(_) => Transferred::Done,
        };
        value_bytes = meta.map(|meta| meta.value_bytes);
        if outcome != Transferred::Done || value_bytes > Some(bytes_max) {
            return Ok(GroupDecision::Abandon);
        }
        ops.get(from, ReadView::Pending, &mut bytes, &mut |meta, out| {
            found = Some(*meta);
            out.reserve(meta.value_bytes);
            true
        })?;
        let Some(meta) = found else {
            outcome = Transferred::NoSource;
            return Ok(GroupDecision::Abandon);
        };
        expires_ms = meta.expires_ms;
        let value = Value {
            bytes: &bytes,
            expires_ms: meta.expires_ms,
            flags: meta.flags,
            kind: meta.kind,
        };
        ops.put(to, value)?;
        if how.deletes_source {
            ops.delete(from)?;
        }
        Ok(GroupDecision::Apply)
    })?;
    if outcome == Transferred::Done {
        if value_bytes > Some(bytes_max) {
            return Err(CommandError::Long);
        }
        ctx.request.hidden_bytes += value_bytes.unwrap_or(0);
        ctx.note_expiry(to, expires_ms);
    }
    Ok(outcome)
}

/// Renames a key. Returns whether the value is now under the new name.
fn rename_by(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    replaces: bool,
) -> Result<bool, CommandError> {
    let (from, to) = (ctx.key(args.at(1)), ctx.key(args.at(2)));
    if from == to {
        let found = ctx.ops().meta(from, ReadView::Pending)?.is_some();
        return if found { Ok(replaces) } else { Err(NO_KEY) };
    }
    let how = Transfer {
        deletes_source: true,
        replaces,
    };
    match transfer(ctx, from, to, how)? {
        Transferred::Done => {
            ctx.notify(KeyspaceEvents::NEW, "new", to);
            ctx.notify(KeyspaceEvents::GENERIC, "rename_from", from);
            ctx.notify_generic("rename_to", to);
            Ok(true)
        }
        Transferred::Refused => Ok(false),
        Transferred::NoSource => Err(NO_KEY),
    }
}

/// `RENAME key newkey`
pub(super) fn rename(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    rename_by(ctx, args, true)?;
    reply::ok(ctx.out);
    Ok(())
}

/// `RENAMENX key newkey`
pub(super) fn renamenx(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let done = rename_by(ctx, args, false)?;
    reply::integer(ctx.out, i64::from(done));
    Ok(())
}

/// `COPY source destination [DB index] [REPLACE]`
pub(super) fn copy(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let (mut db, mut replaces, mut at) = (ctx.client.db, false, 3);
    while let Some(option) = args.get(at) {
        match (text::option(option).as_slice(), args.get(at + 1)) {
            (b"replace", _) => replaces = true,
            (b"db", Some(index)) => {
                db = text::database(index)?;
                at += 1;
            }
            _ => return Err(SYNTAX),
        }
        at += 1;
    }
    let to = Key {
        db,
        bytes: args.at(2),
    };
    let how = Transfer {
        deletes_source: false,
        replaces,
    };
    transfer_and_reply(ctx, ctx.key(args.at(1)), to, how)
}

/// `MOVE key db`
pub(super) fn move_key(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let to = Key {
        db: text::database(args.at(2))?,
        bytes: args.at(1),
    };
    let how = Transfer {
        deletes_source: true,
        replaces: false,
    };
    transfer_and_reply(ctx, ctx.key(args.at(1)), to, how)
}

fn transfer_and_reply(
    ctx: &mut CommandContext<'_>,
    from: Key<'_>,
    to: Key<'_>,
    how: Transfer,
) -> Result<(), CommandError> {
    if from == to {
        return Err(SAME_OBJECT);
    }
    let outcome = transfer(ctx, from, to, how)?;
    match (outcome, how.deletes_source) {
        (Transferred::Done, true) => {
            ctx.notify(KeyspaceEvents::NEW, "new", to);
            ctx.notify(KeyspaceEvents::GENERIC, "move_from", from);
            ctx.notify_generic("move_to", to);
        }
        (Transferred::Done, false) => {
            ctx.notify(KeyspaceEvents::NEW, "new", to);
            ctx.notify_generic("copy_to", to);
        }
        (Transferred::NoSource, false) => ctx.notify_miss(from),
        _ => {}
    }
    reply::integer(ctx.out, i64::from(outcome == Transferred::Done));
    Ok(())
}
