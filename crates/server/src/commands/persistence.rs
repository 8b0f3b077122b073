//! Commands about durability and replication: SAVE BGSAVE BGREWRITEAOF LASTSAVE WAIT ROLE.
//!
//! There are no snapshots and no append-only file: a reply already means that the write is durable, to the extent that
//! `farbank serve` prints. SAVE and BGSAVE go further: when they reply, every acknowledged write is durable on the
//! medium, also under `--sync everysec` and `never`. They wait for the medium, so the thread of long requests executes
//! them.

use std::sync::atomic::Ordering;

use super::context::CommandContext;
use super::error::{CommandError, NOT_INTEGER, SYNTAX};
use super::text;
use crate::protocol::resp::number::parse_i64;
use crate::protocol::resp::{Args, reply};
use crate::stats::process::unix_secs;

/// Makes every acknowledged write durable on the medium.
fn sync(ctx: &mut CommandContext<'_>) -> Result<(), CommandError> {
    ctx.session()?.sync()?;
    let last = &ctx.shared.last_save_secs;
    last.fetch_max(unix_secs(), Ordering::Relaxed);
    Ok(())
}

/// `SAVE`
pub(super) fn save(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    sync(ctx)?;
    reply::ok(ctx.out);
    Ok(())
}

/// `BGSAVE [SCHEDULE]`
pub(super) fn bgsave(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    match args.len() {
        1 => {}
        2 if text::is_option(args.at(1), "schedule") => {}
        _ => return Err(SYNTAX),
    }
    sync(ctx)?;
    reply::simple(ctx.out, "Background saving started");
    Ok(())
}

/// `BGREWRITEAOF`
pub(super) fn bgrewriteaof(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    reply::simple(ctx.out, "Background append only file rewriting started");
    Ok(())
}

/// `LASTSAVE`
pub(super) fn lastsave(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let secs = ctx.shared.last_save_secs.load(Ordering::Relaxed);
    reply::integer(ctx.out, i64::try_from(secs).unwrap_or(i64::MAX));
    Ok(())
}

/// `WAIT numreplicas timeout`. There are no replicas, so that waiting for more of them is useless. The reply waits
/// until the client's writes are durable.
pub(super) fn wait(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    parse_i64(args.at(1)).ok_or(NOT_INTEGER)?;
    text::timeout_ms(args.at(2))?;
    let start = ctx.out.len();
    ctx.mark.get_or_insert(start);
    reply::integer(ctx.out, 0);
    Ok(())
}

/// `ROLE`
pub(super) fn role(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    reply::array(ctx.out, 3);
    reply::bulk(ctx.out, b"master");
    reply::integer(ctx.out, 0);
    reply::array(ctx.out, 0);
    Ok(())
}
