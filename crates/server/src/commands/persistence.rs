//! Commands about backups, durability and replication: SAVE BGSAVE BGREWRITEAOF LASTSAVE WAIT ROLE REPLCONF SYNC PSYNC.
//!
//! A reply already means that the write is durable, to the extent that `farbank serve` prints. There is no append-only
//! file. SAVE and BGSAVE write a backup of one moment: an RDB file (`state::save_file`). They first make every
//! acknowledged write durable on the medium, also under `--sync everysec` and `never`. The thread of long requests
//! executes them, and the thread of backups (`net::saves`) writes the file of BGSAVE.
//!
//! SYNC and PSYNC send a copy of the store and close the connection: enough for `redis-cli --rdb`, and no replication.

use std::sync::atomic::Ordering;

use farbank_store::{Backup, BackupError, Error};

use super::config_paths::save_path;
use super::context::CommandContext;
use super::error::{CommandError, NOT_INTEGER, SYNTAX};
use super::text;
use crate::protocol::resp::number::parse_i64;
use crate::protocol::resp::{Args, reply};
use crate::state::save_file::{self, SaveError};
use crate::state::saves::{BegunCopy, COPIES_MAX, SaveJob};

const RUNNING: CommandError = CommandError::Fixed("ERR Background save already in progress");

/// Length from which the address of a replica is too long.
const ADDRESS_BYTES: usize = 256;

/// Makes every acknowledged write durable on the medium, and begins a backup of this moment.
fn begin(ctx: &mut CommandContext<'_>) -> Result<Box<dyn Backup>, CommandError> {
    if ctx.shared.durability.saves.running().is_some() {
        return Err(RUNNING);
    }
    ctx.session()?.sync()?;
    // Before the backup's moment: a change that is counted meanwhile is in the backup, and counts as unsaved.
    let changes = ctx.shared.stats.counters.totals().changes();
    let saves = &ctx.shared.durability.saves;
    saves.changes_at_begin.store(changes, Ordering::Relaxed);
    ctx.shared.store.backup().map_err(|error| match error {
        Error::Backup(BackupError::Running) => RUNNING,
        error => error.into(),
    })
}

/// `SAVE`
pub(super) fn save(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let backup = begin(ctx)?;
    let path = save_path(ctx.shared);
    let saved = save_file::save(ctx.shared, backup, &path, false);
    ctx.shared.durability.saves.note_progress(0, 0, 0);
    match saved {
        Ok(saved) if saved.damaged > 0 => {
            let text = format!(
                "ERR the backup was written, but it lacks {} damaged records",
                saved.damaged
            );
            return Err(CommandError::Detailed(text.into_bytes()));
        }
        Ok(_) => {}
        Err(SaveError::Store(error)) => return Err(error.into()),
        Err(error) => {
            tracing::error!(%error, "SAVE failed");
            return Err(CommandError::Detailed(format!("ERR {error}").into_bytes()));
        }
    }
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
    let backup = begin(ctx)?;
    ctx.shared
        .durability
        .saves
        .begin(backup.keys().iter().sum());
    let job = SaveJob::File(backup, save_path(ctx.shared));
    ctx.shared.threads.saves().push(job);
    reply::simple(ctx.out, "Background saving started");
    Ok(())
}

/// `REPLCONF option value [option value ...]`. Options of replicas are accepted and have no effect, except a request for
/// a part of a copy.
pub(super) fn replconf(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    if args.len().is_multiple_of(2) {
        return Err(SYNTAX);
    }
    for at in (1..args.len()).step_by(2) {
        let (option, value) = (args.at(at), args.at(at + 1));
        match text::option(option).as_slice() {
            b"capa" => {}
            b"listening-port" => drop(parse_i64(value).ok_or(NOT_INTEGER)?),
            b"rdb-only" => match parse_i64(value).ok_or(NOT_INTEGER)? {
                0 | 1 => {}
                _ => {
                    let text = "ERR value is out of range, value must between 0 and 1";
                    return Err(CommandError::Fixed(text));
                }
            },
            b"ip-address" if value.len() < ADDRESS_BYTES => {}
            b"ip-address" => {
                let text = format!(
                    "ERR REPLCONF ip-address provided by replica instance is too long: {} bytes",
                    value.len()
                );
                return Err(CommandError::Detailed(text.into_bytes()));
            }
            // As in Redis, these have no reply.
            b"ack" | b"getack" => return Ok(()),
            b"rdb-filter-only" if value.is_empty() => {}
            b"rdb-filter-only" if !text::is_option(value, "functions") => {
                let text = [
                    b"ERR Unsupported rdb-filter-only option: ",
                    text::quote(value, 128),
                ];
                return Err(CommandError::Detailed(text.concat()));
            }
            b"rdb-filter-only" => {
                let text =
                    "ERR this server sends whole copies only: RDB-FILTER-ONLY is not supported";
                return Err(CommandError::Fixed(text));
            }
            _ => {
                let text = [
                    b"ERR Unrecognized REPLCONF option: ",
                    text::quote(option, 128),
                ];
                return Err(CommandError::Detailed(text.concat()));
            }
        }
    }
    reply::ok(ctx.out);
    Ok(())
}

/// Begins a copy for the client; the thread of long requests passes its connection on.
fn begin_copy(ctx: &mut CommandContext<'_>, preamble: Vec<u8>) -> Result<(), CommandError> {
    let saves = &ctx.shared.durability.saves;
    if saves.copies_now.load(Ordering::Relaxed) >= COPIES_MAX {
        return Err(CommandError::Fixed(
            "ERR too many clients receive a copy of the store; try again later",
        ));
    }
    if !ctx.executes_long {
        return Err(CommandError::Long);
    }
    let backup = begin(ctx)?;
    ctx.thread.begun_copy = Some(BegunCopy { preamble, backup });
    Ok(())
}

/// `SYNC`
pub(super) fn sync(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    begin_copy(ctx, Vec::new())
}

/// `PSYNC replicationid offset`
pub(super) fn psync(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    parse_i64(args.at(2)).ok_or(NOT_INTEGER)?;
    let preamble = format!("+FULLRESYNC {} 0\r\n", ctx.shared.identity.run_id);
    begin_copy(ctx, preamble.into_bytes())
}

/// `BGREWRITEAOF`
pub(super) fn bgrewriteaof(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    reply::simple(ctx.out, "Background append only file rewriting started");
    Ok(())
}

/// `LASTSAVE`
pub(super) fn lastsave(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let secs = ctx.shared.durability.last_save_secs.load(Ordering::Relaxed);
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
