//! The latency monitor: LATENCY and its subcommands.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use super::command::help_of;
use super::context::CommandContext;
use super::context::command_row::Command;
use super::error::CommandError;
use super::text::quote;
use crate::buffers::reply::ReplyBuffer;
use crate::protocol::resp::{Args, reply};
use crate::stats::histogram::Durations;
use crate::stats::slow_log::{LatencyEvent, LatencySamples};

fn number(out: &mut ReplyBuffer, number: u64) {
    reply::integer(out, i64::try_from(number).unwrap_or(i64::MAX));
}

/// Events that have samples.
fn seen(ctx: &CommandContext<'_>) -> Vec<(LatencyEvent, LatencySamples)> {
    LatencyEvent::ALL
        .into_iter()
        .map(|event| (event, ctx.shared.stats.latency_log.samples(event)))
        .filter(|(_, log)| !log.samples.is_empty())
        .collect()
}

/// `LATENCY LATEST`
pub(super) fn latest(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let seen = seen(ctx);
    reply::array(ctx.out, seen.len());
    for (event, log) in seen {
        let last = log.samples.back().copied();
        reply::array(ctx.out, 4);
        reply::bulk(ctx.out, event.name().as_bytes());
        number(ctx.out, last.map_or(0, |last| last.secs));
        number(ctx.out, last.map_or(0, |last| last.ms));
        number(ctx.out, log.ms_max);
    }
    Ok(())
}

/// `LATENCY HISTORY event`
pub(super) fn history(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let event = LatencyEvent::named(args.at(2));
    let log = event.map(|event| ctx.shared.stats.latency_log.samples(event));
    let samples = log.unwrap_or_default().samples;
    reply::array(ctx.out, samples.len());
    for sample in samples {
        reply::array(ctx.out, 2);
        number(ctx.out, sample.secs);
        number(ctx.out, sample.ms);
    }
    Ok(())
}

/// `LATENCY RESET [event ...]`
pub(super) fn reset(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let events: Vec<_> = match args.len() {
        2 => LatencyEvent::ALL.to_vec(),
        _ => args.from(2).filter_map(LatencyEvent::named).collect(),
    };
    let log = &ctx.shared.stats.latency_log;
    let removed = events.into_iter().filter(|event| log.clear(*event)).count();
    number(ctx.out, removed as u64);
    Ok(())
}

/// `LATENCY GRAPH event`
pub(super) fn graph(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    /// Characters of the longest bar.
    const WIDTH: u64 = 60;
    let event = LatencyEvent::named(args.at(2));
    let log = event.map(|event| ctx.shared.stats.latency_log.samples(event));
    let Some(log) = log.filter(|log| !log.samples.is_empty()) else {
        let text = [
            b"ERR No samples available for event '",
            quote(args.at(2), usize::MAX),
            b"'",
        ];
        return Err(CommandError::Detailed(text.concat()));
    };
    let times = || log.samples.iter().map(|sample| sample.ms);
    let (high, low) = (times().max().unwrap_or(0), times().min().unwrap_or(0));
    let mut text = format!(
        "{} - high {high} ms, low {low} ms (all time high {} ms)\n",
        event.map_or("", LatencyEvent::name),
        log.ms_max
    );
    for sample in &log.samples {
        let bar = "#".repeat((sample.ms * WIDTH / high.max(1)) as usize);
        // Writing to a string cannot fail.
        let written = writeln!(text, "{} {:>8} ms {bar}", sample.secs, sample.ms);
        debug_assert!(written.is_ok());
    }
    reply::verbatim(ctx.out, ctx.client.resp, &text);
    Ok(())
}

/// `LATENCY DOCTOR`
pub(super) fn doctor(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let threshold = ctx.shared.settings.latency_ms.load(Ordering::Relaxed);
    let seen = seen(ctx);
    let mut text = match (threshold, seen.len()) {
        (0, _) => "The latency monitor is off. Set latency-monitor-threshold to the milliseconds from which a request \
                   is recorded.\n"
            .to_owned(),
        (_, 0) => format!("No request has taken {threshold} ms or longer.\n"),
        _ => format!("Requests that have taken {threshold} ms or longer:\n"),
    };
    for (event, log) in seen {
        let (count, most) = (log.samples.len(), log.ms_max);
        let sum: u64 = log.samples.iter().map(|sample| sample.ms).sum();
        let mean = sum / count as u64;
        let written = writeln!(
            text,
            "{}: {count} seconds with peaks, mean {mean} ms, longest {most} ms. SLOWLOG GET lists slow requests.",
            event.name()
        );
        debug_assert!(written.is_ok());
    }
    reply::verbatim(ctx.out, ctx.client.resp, &text);
    Ok(())
}

/// The distribution's bounds that Redis prints: 1, 2, 4 ... microseconds of 1024 nanoseconds each, up to about a
/// second.
fn bounds_ns() -> impl Iterator<Item = u64> {
    (10..=30).map(|bits| 1 << bits)
}

/// `LATENCY HISTOGRAM [command ...]`
pub(super) fn histogram(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let table = ctx.client.table;
    let is_called = |command: &&'static Command| {
        let times = ctx.shared.stats.counters.command_times(command.number);
        times.is_some()
    };
    // The times themselves take 8 KiB each, and a request may name many commands.
    let called: Vec<&'static Command> = match args.len() {
        2 => table.every().filter(is_called).collect(),
        _ => args
            .from(2)
            .filter_map(|name| find_any(ctx, name))
            .flat_map(|command| std::iter::once(command).chain(command.subcommands))
            .filter(is_called)
            .collect(),
    };
    let resp = ctx.client.resp;
    reply::map(ctx.out, resp, called.len());
    for command in called {
        let times: Durations = ctx
            .shared
            .stats
            .counters
            .command_times(command.number)
            .unwrap_or_default();
        reply::bulk(ctx.out, command.name.as_bytes());
        reply::map(ctx.out, resp, 2);
        reply::bulk(ctx.out, b"calls");
        number(ctx.out, times.count());
        reply::bulk(ctx.out, b"histogram_usec");
        let mut before = 0;
        let rows: Vec<_> = bounds_ns()
            .map(|bound| (bound, times.count_to(bound - 1)))
            .filter(|(_, count)| *count > std::mem::replace(&mut before, *count))
            .collect();
        reply::map(ctx.out, resp, rows.len());
        for (bound, count) in rows {
            number(ctx.out, bound / 1000);
            number(ctx.out, count);
        }
    }
    Ok(())
}

/// Finds a command, or a subcommand by its name `container|name`.
fn find_any(ctx: &CommandContext<'_>, name: &[u8]) -> Option<&'static Command> {
    let mut parts = name.splitn(2, |&byte| byte == b'|');
    let command = ctx.client.table.find(parts.next()?)?;
    match parts.next() {
        Some(own) => command.subcommand(own),
        None => Some(command),
    }
}

/// `LATENCY HELP`
pub(super) fn help(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    help_of(ctx, "latency");
    Ok(())
}
