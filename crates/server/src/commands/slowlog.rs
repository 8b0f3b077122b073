//! The log of slow requests: SLOWLOG, and the measuring of requests for it and for LATENCY.

use std::sync::atomic::Ordering;

use super::command::help_of;
use super::context::CommandContext;
use super::context::command_row::{Command, flag};
use super::error::CommandError;
use super::redact::redacted;
use super::text;
use crate::lock::lock;
use crate::protocol::resp::number::parse_i64;
use crate::protocol::resp::{Args, reply};
use crate::settings::size;
use crate::stats::process::unix_secs;
use crate::stats::slow_log::{LatencyEvent, SlowRequest};

/// Most arguments of a request in the log, and most bytes of an argument.
const ARGS_MAX: usize = 32;
const ARG_BYTES_MAX: usize = 128;
/// Entries of SLOWLOG GET without a count.
const DEFAULT_COUNT: i64 = 10;

/// Adds a request that has taken `ns` nanoseconds to the log of slow requests and to the latency peaks, if it has
/// exceeded their thresholds.
#[cold]
pub(super) fn note_slow(
    ctx: &CommandContext<'_>,
    command: &'static Command,
    args: Args<'_>,
    ns: u64,
) {
    let settings = &ctx.shared.settings;
    let micros = ns / 1000;
    // Negative: off.
    let threshold = settings.slowlog_micros.load(Ordering::Relaxed) as i64;
    let is_slow = u64::try_from(threshold).is_ok_and(|threshold| micros >= threshold);
    if is_slow && !command.is(flag::SKIP_SLOWLOG) {
        let entry = SlowRequest {
            id: 0,
            secs: unix_secs(),
            micros,
            args: shortened(command, args),
            addr: ctx.client.client_info.addr.clone(),
            name: lock(&ctx.client.client_info.labels).name.clone(),
        };
        ctx.shared
            .stats
            .slow_log
            .add(entry, size(&settings.slowlog_len));
    }
    let threshold_ms = settings.latency_ms.load(Ordering::Relaxed);
    if threshold_ms > 0 && micros / 1000 >= threshold_ms {
        let event = match command.is(flag::FAST) {
            true => LatencyEvent::FastCommand,
            false => LatencyEvent::Command,
        };
        ctx.shared
            .stats
            .latency_log
            .add(event, unix_secs(), micros / 1000);
    }
}

/// The arguments as the log keeps them.
fn shortened(command: &Command, args: Args<'_>) -> Vec<Vec<u8>> {
    let shown = match args.len() {
        0..=ARGS_MAX => args.len(),
        _ => ARGS_MAX - 1,
    };
    let mut texts: Vec<_> = (0..shown)
        .map(|at| match redacted(command, args, at) {
            arg if arg.len() > ARG_BYTES_MAX => {
                let more = format!("... ({} more bytes)", arg.len() - ARG_BYTES_MAX);
                [&arg[..ARG_BYTES_MAX], more.as_bytes()].concat()
            }
            arg => arg.to_vec(),
        })
        .collect();
    if shown < args.len() {
        let more = format!("... ({} more arguments)", args.len() - shown);
        texts.push(more.into_bytes());
    }
    texts
}

/// `SLOWLOG GET [count]`
pub(super) fn get(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    if args.len() > 3 {
        return Err(text::subcommand_syntax("SLOWLOG", args.at(1)));
    }
    let count = args.get(2).map_or(Some(DEFAULT_COUNT), parse_i64);
    let count = count
        .filter(|count| *count >= -1)
        .ok_or(CommandError::Fixed(
            "ERR count should be greater than or equal to -1",
        ))?;
    let entries = ctx
        .shared
        .stats
        .slow_log
        .latest(usize::try_from(count).unwrap_or(usize::MAX));
    reply::array(ctx.out, entries.len());
    for entry in entries {
        if ctx.out.is_cut() {
            break;
        }
        reply::array(ctx.out, 6);
        for number in [entry.id, entry.secs, entry.micros] {
            reply::integer(ctx.out, i64::try_from(number).unwrap_or(i64::MAX));
        }
        reply::array(ctx.out, entry.args.len());
        for arg in &entry.args {
            reply::bulk(ctx.out, arg);
        }
        reply::bulk(ctx.out, entry.addr.as_bytes());
        reply::bulk(ctx.out, &entry.name);
    }
    Ok(())
}

/// `SLOWLOG LEN`
pub(super) fn len(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let len = ctx.shared.stats.slow_log.len();
    reply::integer(ctx.out, i64::try_from(len).unwrap_or(i64::MAX));
    Ok(())
}

/// `SLOWLOG RESET`
pub(super) fn reset(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    ctx.shared.stats.slow_log.clear();
    reply::ok(ctx.out);
    Ok(())
}

/// `SLOWLOG HELP`
pub(super) fn help(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    help_of(ctx, "slowlog");
    Ok(())
}
