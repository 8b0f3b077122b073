//! The INFO command.
//!
//! Sections and fields have Redis's names where they mean the same. Fields that only Farbank has are in the section
//! `farbank`. All figures are counted, not estimated.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use farbank_store::Stats;

use super::config_percentiles;
use super::context::CommandContext;
use super::context::command_table::CommandTable;
use super::error::CommandError;
use crate::eviction_policy::POLICIES;
use crate::protocol::resp::{Args, reply};
use crate::settings::REDIS_VERSION;
use crate::settings::WireProtocol;
use crate::state::clients::ClientInfo;
use crate::state::messages::SubscriptionKind;
use crate::state::shared::ServerShared;
use crate::state::users::DenialReason;
use crate::stats::commands::CommandFigures;
use crate::stats::counters::Counter;
use crate::stats::hot_keys::HotKey;
use crate::stats::process::{ResidentMemory, cpu_secs};

/// What the sections read.
#[derive(Clone, Copy)]
struct InfoSource<'a> {
    shared: &'a ServerShared<'a>,
    table: &'static CommandTable,
    figures: &'a Stats,
}

type InfoSection = fn(InfoSource<'_>, &mut String) -> std::fmt::Result;

/// Sections that INFO contains only if they are asked for by name, or by `all` or `everything`.
const NOT_BY_DEFAULT: [&str; 2] = ["Commandstats", "Latencystats"];

const SECTIONS: &[(&str, InfoSection)] = &[
    ("Server", server),
    ("Clients", clients),
    ("Memory", memory),
    ("Persistence", persistence),
    ("Stats", stats),
    ("Replication", replication),
    ("CPU", cpu),
    ("Modules", no_fields),
    ("Commandstats", command_stats),
    ("Errorstats", error_stats),
    ("Latencystats", latency_stats),
    ("Cluster", cluster),
    ("Keyspace", keyspace),
    ("Farbank", farbank),
    ("Hotkeys", hot_keys),
];

/// `INFO [section ...]`
pub(super) fn info(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let wants = |name: &str| {
        let by_default = !NOT_BY_DEFAULT.contains(&name);
        args.len() == 1 && by_default
            || args.from(1).any(|asked| {
                let is = |text: &str| asked.eq_ignore_ascii_case(text.as_bytes());
                is(name)
                    || is("everything")
                    || is("all") && name != "Modules"
                    || is("default") && by_default
            })
    };
    ctx.published.publish(&ctx.thread.counters);
    let figures = ctx.shared.store.stats();
    let table = ctx.client.table;
    let mut text = String::new();
    for (name, section) in SECTIONS.iter().filter(|(name, _)| wants(name)) {
        if !text.is_empty() {
            text.push_str("\r\n");
        }
        // Writing to a string cannot fail.
        let written = write!(text, "# {name}\r\n").and_then(|()| {
            section(
                InfoSource {
                    shared: ctx.shared,
                    table,
                    figures: &figures,
                },
                &mut text,
            )
        });
        debug_assert!(written.is_ok());
    }
    reply::verbatim(ctx.out, ctx.client.resp, &text);
    Ok(())
}

macro_rules! fields {
    ($out:ident, $($name:literal: $value:expr),* $(,)?) => {{
        $(write!($out, concat!($name, ":{}\r\n"), $value)?;)*
        Ok(())
    }};
}

fn server(InfoSource { shared, .. }: InfoSource<'_>, out: &mut String) -> std::fmt::Result {
    let up = shared.uptime_secs();
    let port = shared.port(WireProtocol::Resp).unwrap_or(0);
    let file = shared.options.config_file.as_ref();
    let config_file = file
        .map(|file| file.path.display().to_string())
        .unwrap_or_default();
    fields!(out,
        "redis_version": REDIS_VERSION,
        "farbank_version": env!("CARGO_PKG_VERSION"),
        "redis_mode": "standalone",
        "os": std::env::consts::OS,
        "arch_bits": usize::BITS,
        "multiplexing_api": "epoll",
        "process_id": std::process::id(),
        "run_id": shared.identity.run_id,
        "tcp_port": port,
        "uptime_in_seconds": up,
        "uptime_in_days": up / 86_400,
        "io_threads_active": shared.stats.counters.workers.len(),
        "executable": std::env::current_exe().map(|p| p.display().to_string()).unwrap_or_default(),
        "config_file": config_file,
    )
}

fn clients(InfoSource { shared, .. }: InfoSource<'_>, out: &mut String) -> std::fmt::Result {
    let clients = shared.clients.all();
    let watching = clients
        .iter()
        .filter(|c| c.watching.load(Ordering::Relaxed) > 0)
        .count();
    // Those that CLIENT PAUSE holds back: no command blocks.
    let blocked = clients
        .iter()
        .filter(|c| c.is_paused.load(Ordering::Relaxed))
        .count();
    let largest = |bytes: fn(&ClientInfo) -> usize| {
        clients
            .iter()
            .map(|client_info| bytes(client_info))
            .max()
            .unwrap_or(0)
    };
    fields!(out,
        "connected_clients": clients.len(),
        "cluster_connections": 0,
        "maxclients": shared.settings.clients_max.load(Ordering::Relaxed),
        "client_recent_max_input_buffer": largest(|c| c.input_bytes.load(Ordering::Relaxed)),
        "client_recent_max_output_buffer": largest(|c| c.output_bytes.load(Ordering::Relaxed)),
        "blocked_clients": blocked,
        "tracking_clients": shared.interests.tracking.clients(),
        "watching_clients": watching,
    )
}

fn memory(source: InfoSource<'_>, out: &mut String) -> std::fmt::Result {
    let InfoSource {
        shared, figures, ..
    } = source;
    let ResidentMemory { anonymous, files } = shared.stats.memory.measure();
    let resident = anonymous + files;
    let (peak, startup) = (shared.stats.memory.peak(), shared.stats.memory.startup());
    let (most, policy) = limit(shared, figures);
    let machine = shared.settings.machine_bytes();
    let above_startup = anonymous.saturating_sub(startup);
    fields!(out,
        "used_memory": anonymous,
        "used_memory_human": human(anonymous),
        "used_memory_rss": resident,
        "used_memory_rss_human": human(resident),
        "used_memory_peak": peak,
        "used_memory_peak_human": human(peak),
        "used_memory_peak_perc": format_args!("{:.2}%", anonymous as f64 * 100.0 / peak.max(1) as f64),
        "used_memory_startup": startup,
        "used_memory_dataset": above_startup,
        "used_memory_mapped_files": files,
        "used_memory_mapped_files_human": human(files),
        "used_memory_index": figures.index_bytes,
        "used_memory_live_map": figures.log.unwrap_or_default().live_map_bytes,
        "used_memory_read_cache": figures.read_cache.unwrap_or_default().bytes,
        "used_memory_slow_log": shared.stats.slow_log.bytes(),
        "used_memory_tracking": shared.interests.tracking.bytes(),
        "total_system_memory": machine,
        "total_system_memory_human": human(machine),
        "maxmemory": most,
        "maxmemory_human": human(most),
        "maxmemory_policy": policy,
        // `used_memory` is resident memory, so it includes what the allocator cannot use.
        "mem_fragmentation_ratio": "1.00",
        "mem_fragmentation_bytes": 0,
        "mem_not_counted_for_evict": 0,
        "mem_replication_backlog": 0,
        "mem_total_replication_buffers": 0,
        "mem_clients_slaves": 0,
        "mem_clients_normal": shared.clients.memory_bytes(),
        "mem_cluster_links": 0,
        "mem_aof_buffer": 0,
        "mem_allocator": "libc",
        "active_defrag_running": 0,
        "lazyfree_pending_objects": 0,
        "lazyfreed_objects": 0,
        "number_of_cached_scripts": shared.programs.scripts.count(),
        "number_of_functions": 0,
        "number_of_libraries": 0,
    )
}

/// Returns `maxmemory` and `maxmemory_policy`. The limit of a cache is its capacity.
pub(super) fn limit(shared: &ServerShared<'_>, figures: &Stats) -> (u64, &'static str) {
    match shared.store.as_cache().is_some() {
        true => (figures.pool.capacity_bytes, "allkeys-lru"),
        false => {
            let settings = &shared.settings;
            let most = settings.maxmemory.load(Ordering::Relaxed);
            let policy = settings.maxmemory_policy.load(Ordering::Relaxed);
            (most, POLICIES[policy as usize])
        }
    }
}

fn human(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "K", "M", "G"] {
        if value < 1024.0 {
            return if unit == "B" {
                format!("{bytes}B")
            } else {
                format!("{value:.2}{unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.2}T")
}

fn persistence(InfoSource { shared, .. }: InfoSource<'_>, out: &mut String) -> std::fmt::Result {
    let status = if shared.durability.poisoned.get().is_some() {
        "err"
    } else {
        "ok"
    };
    let saves = &shared.durability.saves;
    let running = saves.running();
    let changes = shared.stats.counters.totals().changes();
    let unsaved = changes.saturating_sub(saves.changes_at_save.load(Ordering::Relaxed));
    let seconds = running.map_or(-1, |running| i64::try_from(running.as_secs()).unwrap_or(-1));
    let rdb_status = if saves.has_failed() { "err" } else { "ok" };
    fields!(out,
        "loading": 0,
        "async_loading": 0,
        "current_cow_peak": 0,
        "current_cow_size": 0,
        "current_cow_size_age": 0,
        "current_fork_perc": "0.00",
        "current_save_keys_processed": saves.keys_done.load(Ordering::Relaxed),
        "current_save_keys_total": saves.keys_total.load(Ordering::Relaxed),
        "farbank_current_save_bytes": saves.bytes.load(Ordering::Relaxed),
        "rdb_changes_since_last_save": unsaved,
        "rdb_bgsave_in_progress": u8::from(running.is_some()),
        "rdb_last_save_time": shared.durability.last_save_secs.load(Ordering::Relaxed),
        "rdb_last_bgsave_status": rdb_status,
        "rdb_last_bgsave_time_sec": saves.last_secs(),
        "rdb_current_bgsave_time_sec": seconds,
        "rdb_saves": saves.saves.load(Ordering::Relaxed),
        "farbank_last_save_damaged_records": saves.damaged.load(Ordering::Relaxed),
        "rdb_last_cow_size": 0,
        "aof_enabled": 1,
        "aof_rewrite_in_progress": 0,
        "aof_rewrite_scheduled": 0,
        "aof_last_rewrite_time_sec": -1,
        "aof_current_rewrite_time_sec": -1,
        "aof_last_bgrewrite_status": "ok",
        "aof_last_write_status": status,
    )
}

fn stats(source: InfoSource<'_>, out: &mut String) -> std::fmt::Result {
    let InfoSource {
        shared, figures, ..
    } = source;
    let read_cache = figures.read_cache.unwrap_or_default();
    let counts = shared.stats.counters.since_reset();
    let expired_at_reset = shared.stats.expired_at_reset.load(Ordering::Relaxed);
    let expired = figures.expired_keys.saturating_sub(expired_at_reset);
    let evicted = match &figures.cache {
        Some(cache) => cache.evictions,
        None => counts.get(Counter::EvictedKeys),
    };
    fields!(out,
        "total_connections_received": shared.stats.accepted.load(Ordering::Relaxed),
        "total_commands_processed": counts.get(Counter::Commands),
        "instantaneous_ops_per_sec": shared.stats.counters.commands_per_sec(),
        "total_net_input_bytes": counts.get(Counter::BytesIn),
        "total_net_output_bytes": counts.get(Counter::BytesOut),
        "rejected_connections": shared.stats.rejected.load(Ordering::Relaxed),
        "expired_keys": expired,
        "evicted_keys": evicted,
        "keyspace_hits": counts.get(Counter::Hits),
        "keyspace_misses": counts.get(Counter::Misses),
        "pubsub_channels": shared.interests.subscriptions.channels(SubscriptionKind::Channel),
        "pubsub_patterns": shared.interests.subscriptions.patterns(),
        "pubsubshard_channels": shared.interests.subscriptions.channels(SubscriptionKind::Shard),
        "evicted_clients": counts.get(Counter::Evictions),
        "client_output_buffer_limit_disconnections": counts.get(Counter::OutputLimits),
        "tracking_total_keys": shared.interests.tracking.keys(),
        "tracking_total_items": shared.interests.tracking.items(),
        "tracking_total_prefixes": shared.interests.tracking.prefixes(),
        "total_error_replies": counts.get(Counter::Errors),
        "acl_access_denied_auth": shared.security.users.denied(DenialReason::Auth),
        "acl_access_denied_cmd": shared.security.users.denied(DenialReason::Command),
        "acl_access_denied_key": shared.security.users.denied(DenialReason::Key),
        "acl_access_denied_channel": shared.security.users.denied(DenialReason::Channel),
        "total_reads_processed": counts.get(Counter::Reads),
        "total_writes_processed": counts.get(Counter::Writes),
        "latest_fork_usec": 0,
        "total_forks": 0,
        "sync_full": shared.durability.saves.copies.load(Ordering::Relaxed),
        "sync_partial_ok": 0,
        "sync_partial_err": 0,
        "farbank_batches": counts.get(Counter::Batches),
        "farbank_long_requests": counts.get(Counter::Long),
        "farbank_read_cache_hits": read_cache.hits,
        "farbank_read_cache_misses": read_cache.misses,
    )
}

fn replication(InfoSource { shared, .. }: InfoSource<'_>, out: &mut String) -> std::fmt::Result {
    fields!(out,
        "role": "master",
        "connected_slaves": 0,
        "master_failover_state": "no-failover",
        "master_replid": shared.identity.run_id,
        "master_replid2": "0".repeat(40),
        "master_repl_offset": 0,
        "second_repl_offset": -1,
        "repl_backlog_active": 0,
        "repl_backlog_size": 1_048_576,
        "repl_backlog_first_byte_offset": 0,
        "repl_backlog_histlen": 0,
    )
}

fn cpu(_: InfoSource<'_>, out: &mut String) -> std::fmt::Result {
    let (user, system) = cpu_secs();
    write!(
        out,
        "used_cpu_sys:{system:.6}\r\nused_cpu_user:{user:.6}\r\n"
    )
}

/// A section without fields.
fn no_fields(_: InfoSource<'_>, _: &mut String) -> std::fmt::Result {
    Ok(())
}

fn command_stats(source: InfoSource<'_>, out: &mut String) -> std::fmt::Result {
    for command in source.table.every() {
        let CommandFigures {
            calls,
            ns,
            rejected,
            failed,
        } = source.shared.stats.counters.command(command.number);
        if calls == 0 && rejected == 0 && failed == 0 {
            continue;
        }
        let (name, usec) = (command.name, ns / 1000);
        let each = ns as f64 / 1000.0 / calls.max(1) as f64;
        write!(
            out,
            "cmdstat_{name}:calls={calls},usec={usec},usec_per_call={each:.2},rejected_calls={rejected},\
             failed_calls={failed}\r\n"
        )?;
    }
    Ok(())
}

fn error_stats(InfoSource { shared, .. }: InfoSource<'_>, out: &mut String) -> std::fmt::Result {
    for (code, count) in shared.stats.counters.errors() {
        write!(out, "errorstat_{code}:count={count}\r\n")?;
    }
    Ok(())
}

fn latency_stats(source: InfoSource<'_>, out: &mut String) -> std::fmt::Result {
    let settings = &source.shared.settings;
    if settings.latency_tracking.load(Ordering::Relaxed) == 0 {
        return Ok(());
    }
    let shown = config_percentiles::value(settings);
    let percentiles: Vec<(&str, f64)> = shown
        .split_ascii_whitespace()
        .filter_map(|label| Some((label, label.parse().ok()?)))
        .collect();
    for command in source.table.every() {
        let Some(times) = source.shared.stats.counters.command_times(command.number) else {
            continue;
        };
        write!(out, "latency_percentiles_usec_{}:", command.name)?;
        for (at, (label, percent)) in percentiles.iter().enumerate() {
            let us = times.percentile(*percent) as f64 / 1000.0;
            let comma = if at > 0 { "," } else { "" };
            write!(out, "{comma}p{label}={us:.3}")?;
        }
        out.push_str("\r\n");
    }
    Ok(())
}

fn cluster(_: InfoSource<'_>, out: &mut String) -> std::fmt::Result {
    fields!(out, "cluster_enabled": 0)
}

fn keyspace(InfoSource { figures, .. }: InfoSource<'_>, out: &mut String) -> std::fmt::Result {
    for (db, keys) in figures
        .keys
        .iter()
        .enumerate()
        .filter(|(_, keys)| **keys > 0)
    {
        write!(out, "db{db}:keys={keys},expires=0,avg_ttl=0\r\n")?;
    }
    Ok(())
}

/// Writes the most requested keys, and their share of all requested keys in percent.
fn hot_keys(InfoSource { shared, .. }: InfoSource<'_>, out: &mut String) -> std::fmt::Result {
    for (at, hot) in shared.stats.counters.hot_keys().iter().enumerate() {
        let HotKey { db, key, share } = hot;
        write!(out, "hotkey{at}:key={key},db={db},share={share:.2}\r\n")?;
    }
    Ok(())
}

/// Replaces control characters by blanks, so that a text with a path stays on one line.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

fn farbank(source: InfoSource<'_>, out: &mut String) -> std::fmt::Result {
    let InfoSource {
        shared, figures, ..
    } = source;
    let caps = shared.store.caps();
    let opened = shared.store.opened();
    let health = shared.store.health();
    let (pool, writes) = (&figures.pool, &figures.writes);
    let log = figures.log.unwrap_or_default();
    let merged_writes = figures
        .cache
        .as_ref()
        .map_or(0, |cache| cache.merged_writes);
    let written = writes.user_bytes + writes.moved_bytes;
    let amplification = written as f64 / writes.user_bytes.max(1) as f64;
    fields!(out,
        "medium": caps.kind.name(),
        "medium_read_by": caps.read_mode,
        "acknowledged_writes_survive": caps.survives,
        "pool": shared.options.pool,
        "pool_bytes": pool.bytes,
        "pool_segment_bytes": pool.segment_bytes,
        "pool_segments": pool.segments,
        "pool_segments_free": pool.segments_free,
        "pool_capacity_bytes": pool.capacity_bytes,
        "pool_live_bytes": pool.live_bytes,
        "pool_tombstone_bytes": log.tombstone_bytes,
        "pool_checkpoints": log.checkpoints_written,
        "pool_checkpoint_bytes": log.checkpoint_bytes,
        "pool_user_bytes": writes.user_bytes,
        "pool_merged_writes": merged_writes,
        "pool_moved_bytes": writes.moved_bytes,
        "pool_write_amplification": format_args!("{amplification:.3}"),
        "pool_segments_cleaned": writes.segments_cleaned,
        "pool_damaged_records": figures.damaged_records,
        "medium_lines": figures.persistence.lines,
        "medium_fences": figures.persistence.fences,
        "medium_bytes": figures.persistence.bytes,
        "medium_syncs": figures.persistence.syncs,
        "opened_clean": u8::from(opened.clean),
        "opened_keys": opened.keys,
        "opened_ms": format_args!("{:.3}", opened.elapsed_ms),
        "pool_health": health.word(),
        "pool_file_error": health.file.map_or(String::new(), |file| one_line(&file.text)),
        "pool_growth_error": health.growth_error.map_or(String::new(), |why| one_line(&why)),
        "poisoned": shared.durability.poisoned.get().map_or("", String::as_str),
    )
}
