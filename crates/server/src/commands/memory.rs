//! Commands about memory: MEMORY and its subcommands.

use super::command::help_of;
use super::context::CommandContext;
use super::error::{CommandError, NOT_INTEGER, SYNTAX};
use super::text;
use crate::buffers::reply::{ReplyBuffer, ReplySink};
use crate::protocol::resp::number::parse_i64;
use crate::protocol::resp::{Args, RespVersion, reply};
use crate::stats::process::ResidentMemory;

/// Bytes that a key takes in the pool besides its name and its value: the record's header, its index entry and padding,
/// about.
const KEY_OVERHEAD_BYTES: usize = 64;

/// `MEMORY USAGE key [SAMPLES count]`
pub(super) fn usage(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let mut at = 3;
    while let Some(option) = args.get(at) {
        if !text::is_option(option, "samples") || args.len() <= at + 1 {
            return Err(SYNTAX);
        }
        if parse_i64(args.at(at + 1)).ok_or(NOT_INTEGER)? < 0 {
            return Err(SYNTAX);
        }
        at += 2;
    }
    let (key, view) = (ctx.key(args.at(2)), ctx.view());
    match ctx.ops().meta(key, view)? {
        Some(meta) => {
            let bytes = key.bytes.len() + meta.value_bytes + KEY_OVERHEAD_BYTES;
            reply::integer(ctx.out, i64::try_from(bytes).unwrap_or(i64::MAX));
        }
        None => reply::null(ctx.out, ctx.client.resp),
    }
    Ok(())
}

/// Appends a fraction.
fn fraction(out: &mut ReplyBuffer, resp: RespVersion, value: f64) {
    match resp {
        RespVersion::V2 => reply::bulk(out, value.to_string().as_bytes()),
        RespVersion::V3 => out.extend_from_slice(format!(",{value}\r\n").as_bytes()),
    }
}

/// `MEMORY STATS`
pub(super) fn stats(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let shared = ctx.shared;
    let figures = shared.store.stats();
    let ResidentMemory { anonymous, files } = shared.stats.memory.measure();
    let (peak, startup) = (shared.stats.memory.peak(), shared.stats.memory.startup());
    let keys: u64 = figures.keys.iter().sum();
    let clients = shared.clients.memory_bytes() as u64;
    let overhead = startup + figures.index_bytes + clients;
    let dataset = anonymous.saturating_sub(overhead);
    let numbers = [
        ("peak.allocated", peak),
        ("total.allocated", anonymous),
        ("startup.allocated", startup),
        ("replication.backlog", 0),
        ("clients.slaves", 0),
        ("clients.normal", clients),
        ("cluster.links", 0),
        ("aof.buffer", 0),
        ("index.bytes", figures.index_bytes),
        ("slowlog.bytes", shared.stats.slow_log.bytes() as u64),
        ("overhead.total", overhead),
        ("keys.count", keys),
        (
            "keys.bytes-per-key",
            anonymous.saturating_sub(startup) / keys.max(1),
        ),
        ("dataset.bytes", dataset),
        ("mapped-files.bytes", files),
        ("fragmentation.bytes", 0),
    ];
    let percent = |part: u64, whole: u64| part as f64 * 100.0 / whole.max(1) as f64;
    let fractions = [
        (
            "dataset.percentage",
            percent(dataset, anonymous.saturating_sub(startup)),
        ),
        ("peak.percentage", percent(anonymous, peak)),
        ("fragmentation", 1.0),
    ];
    let resp = ctx.client.resp;
    reply::map(ctx.out, resp, numbers.len() + fractions.len());
    for (name, value) in numbers {
        reply::bulk(ctx.out, name.as_bytes());
        reply::integer(ctx.out, i64::try_from(value).unwrap_or(i64::MAX));
    }
    for (name, value) in fractions {
        reply::bulk(ctx.out, name.as_bytes());
        fraction(ctx.out, resp, value);
    }
    Ok(())
}

/// `MEMORY DOCTOR`
pub(super) fn doctor(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    let shared = ctx.shared;
    let (used, machine) = (
        shared.stats.memory.measure().anonymous,
        shared.settings.machine_bytes(),
    );
    let clients = shared.clients.memory_bytes() as u64;
    let clients_max = shared.settings.clients_bytes_max() as u64;
    let mut problems = Vec::new();
    if used > machine / 10 * 9 {
        problems.push(format!(
            "The process uses {used} of the {machine} bytes that it may use. The system may end it."
        ));
    }
    if clients > clients_max / 10 * 9 {
        problems.push(format!(
            "All clients together use {clients} bytes; above {clients_max} (maxmemory-clients) some are disconnected."
        ));
    }
    let text = match problems.is_empty() {
        true => "No memory problem found.\n".to_owned(),
        false => problems.join("\n") + "\n",
    };
    reply::verbatim(ctx.out, ctx.client.resp, &text);
    Ok(())
}

/// `MEMORY PURGE`. The allocator returns memory itself.
pub(super) fn purge(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    reply::ok(ctx.out);
    Ok(())
}

/// `MEMORY MALLOC-STATS`
pub(super) fn malloc_stats(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    reply::bulk(ctx.out, b"Stats not supported for the current allocator");
    Ok(())
}

/// `MEMORY HELP`
pub(super) fn help(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    help_of(ctx, "memory");
    Ok(())
}
