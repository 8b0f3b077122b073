//! The figures that the admin port reports, with their names, at one moment.

use std::sync::atomic::Ordering;

use farbank_store::Stats;

use crate::state::messages::SubscriptionKind;
use crate::state::shared::ServerShared;
use crate::stats::counters::{Counter, CounterTotals};
use crate::stats::latency::LatencyTotals;
use crate::stats::process::{ResidentMemory, cpu_secs};

/// Whether a figure only grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FigureKind {
    /// It only grows while the server runs.
    Counter,
    /// It grows and falls.
    Gauge,
}

/// A number with a name. Times are in seconds, sizes in bytes.
#[derive(Debug)]
pub(super) struct Figure {
    /// Name without the prefix `farbank_`, and for a counter without the suffix `_total`.
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: FigureKind,
    pub(super) value: f64,
}

/// All figures of a server.
pub(super) struct ServerFigures {
    pub(super) figures: Vec<Figure>,
    /// Keys of each database that has any.
    pub(super) keys: Vec<(usize, u64)>,
    /// How long requests take.
    pub(super) latency: LatencyTotals,
}

/// Reads all figures.
pub(super) fn read(shared: &ServerShared<'_>) -> ServerFigures {
    let stats = shared.store.stats();
    let mut figures = Vec::new();
    let totals = shared.stats.counters.totals();
    requests(&totals, &mut figures);
    clients(shared, &mut figures);
    space(&stats, &totals, &mut figures);
    medium(&stats, &mut figures);
    process(shared, &mut figures);
    let keys = stats.keys.iter().copied().enumerate();
    ServerFigures {
        figures,
        keys: keys.filter(|(_, keys)| *keys > 0).collect(),
        latency: shared.stats.counters.latency(),
    }
}

fn counter(name: &'static str, help: &'static str, value: f64) -> Figure {
    let kind = FigureKind::Counter;
    Figure {
        name,
        help,
        kind,
        value,
    }
}

fn gauge(name: &'static str, help: &'static str, value: f64) -> Figure {
    let kind = FigureKind::Gauge;
    Figure {
        name,
        help,
        kind,
        value,
    }
}

fn requests(totals: &CounterTotals, out: &mut Vec<Figure>) {
    let count = |what| totals.get(what) as f64;
    out.extend([
        counter("commands", "Requests executed.", count(Counter::Commands)),
        counter(
            "keyspace_hits",
            "Look-ups that found a key.",
            count(Counter::Hits),
        ),
        counter(
            "keyspace_misses",
            "Look-ups that found no key.",
            count(Counter::Misses),
        ),
        counter(
            "error_replies",
            "Requests answered with an error.",
            count(Counter::Errors),
        ),
        counter(
            "net_input_bytes",
            "Bytes read from clients.",
            count(Counter::BytesIn),
        ),
        counter(
            "net_output_bytes",
            "Bytes sent to clients.",
            count(Counter::BytesOut),
        ),
        counter(
            "batches",
            "Batches of requests; each has one commit.",
            count(Counter::Batches),
        ),
        counter(
            "long_requests",
            "Requests executed by the thread of long requests.",
            count(Counter::Long),
        ),
    ]);
}

fn clients(shared: &ServerShared<'_>, out: &mut Vec<Figure>) {
    let accepted = shared.stats.accepted.load(Ordering::Relaxed) as f64;
    let rejected = shared.stats.rejected.load(Ordering::Relaxed) as f64;
    let most = shared.settings.clients_max.load(Ordering::Relaxed) as f64;
    let (clients, subscriptions) = (&shared.clients, &shared.interests.subscriptions);
    let channels = subscriptions.channels(SubscriptionKind::Channel);
    out.extend([
        gauge(
            "connected_clients",
            "Connections now.",
            clients.count() as f64,
        ),
        gauge("clients_max", "Maximum number of connections.", most),
        counter("connections_accepted", "Connections accepted.", accepted),
        counter(
            "connections_rejected",
            "Connections refused because of maxclients.",
            rejected,
        ),
        gauge(
            "clients_memory_bytes",
            "Memory of all connections: input, queued requests, unsent replies.",
            clients.memory_bytes() as f64,
        ),
        gauge(
            "pubsub_channels",
            "Channels with subscribers.",
            channels as f64,
        ),
    ]);
}

fn space(stats: &Stats, totals: &CounterTotals, out: &mut Vec<Figure>) {
    let (pool, writes, log) = (&stats.pool, &stats.writes, stats.log.unwrap_or_default());
    let evictions = match &stats.cache {
        Some(cache) => cache.evictions,
        None => totals.get(Counter::EvictedKeys),
    };
    let read_cache = stats.read_cache.unwrap_or_default();
    let free = f64::from(pool.segments_free) * pool.segment_bytes as f64;
    out.extend([
        counter(
            "expired_keys",
            "Keys found expired and removed.",
            stats.expired_keys as f64,
        ),
        counter(
            "evicted_keys",
            "Keys evicted by a cache, or because of maxmemory.",
            evictions as f64,
        ),
        gauge("pool_bytes", "Size of the pool.", pool.bytes as f64),
        gauge(
            "pool_capacity_bytes",
            "Bytes of live records that the pool can hold.",
            pool.capacity_bytes as f64,
        ),
        gauge(
            "pool_live_bytes",
            "Bytes of live records.",
            pool.live_bytes as f64,
        ),
        gauge("pool_free_bytes", "Bytes of free segments.", free),
        gauge(
            "pool_tombstone_bytes",
            "Bytes of tombstones.",
            log.tombstone_bytes as f64,
        ),
        counter(
            "written_bytes",
            "Bytes of records written for clients.",
            writes.user_bytes as f64,
        ),
        counter(
            "cleaner_moved_bytes",
            "Bytes of records that the cleaner moved.",
            writes.moved_bytes as f64,
        ),
        counter(
            "cleaner_segments",
            "Segments that the cleaner emptied.",
            writes.segments_cleaned as f64,
        ),
        gauge(
            "index_bytes",
            "DRAM of the index.",
            stats.index_bytes as f64,
        ),
        gauge(
            "read_cache_bytes",
            "DRAM of the read cache.",
            read_cache.bytes as f64,
        ),
        counter(
            "read_cache_hits",
            "Reads that the read cache answered.",
            read_cache.hits as f64,
        ),
        counter(
            "read_cache_misses",
            "Reads that the read cache did not answer.",
            read_cache.misses as f64,
        ),
        gauge(
            "damaged_records",
            "Records found damaged since the pool was opened.",
            stats.damaged_records as f64,
        ),
    ]);
}

fn medium(stats: &Stats, out: &mut Vec<Figure>) {
    let persistence = &stats.persistence;
    out.extend([
        counter(
            "medium_written_bytes",
            "Bytes stored to the medium.",
            persistence.bytes as f64,
        ),
        counter(
            "medium_lines",
            "Cache lines made persistent.",
            persistence.lines as f64,
        ),
        counter(
            "medium_fences",
            "Persistence fences.",
            persistence.fences as f64,
        ),
        counter(
            "medium_syncs",
            "Syncs of the pool's file.",
            persistence.syncs as f64,
        ),
    ]);
}

fn process(shared: &ServerShared<'_>, out: &mut Vec<Figure>) {
    let ResidentMemory { anonymous, files } = ResidentMemory::now();
    let (user, system) = cpu_secs();
    let opened = shared.store.opened();
    let uptime = shared.identity.started.elapsed().as_secs_f64();
    let works = f64::from(u8::from(shared.durability.poisoned.get().is_none()));
    out.extend([
        counter(
            "cpu_user_seconds",
            "CPU time of the process in user mode.",
            user,
        ),
        counter(
            "cpu_system_seconds",
            "CPU time of the process in the kernel.",
            system,
        ),
        gauge(
            "memory_anonymous_bytes",
            "Resident memory that is not a mapped file.",
            anonymous as f64,
        ),
        gauge(
            "memory_mapped_bytes",
            "Resident pages of mapped files: the pool and the program.",
            files as f64,
        ),
        gauge(
            "workers",
            "Threads that serve clients.",
            shared.stats.counters.workers.len() as f64,
        ),
        gauge("uptime_seconds", "Time since the server started.", uptime),
        gauge(
            "opened_seconds",
            "Time that opening the pool took.",
            opened.elapsed_ms / 1e3,
        ),
        gauge(
            "opened_clean",
            "1 if the pool had been closed cleanly before, 0 after a crash.",
            f64::from(u8::from(opened.clean)),
        ),
        gauge(
            "up",
            "1 while the medium works, 0 once it has failed.",
            works,
        ),
    ]);
}
