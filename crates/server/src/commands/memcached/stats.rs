//! Statistics: `stats`, and `stats settings | items | slabs | sizes | conns | hotkeys | detail | reset |
//! cachedump`.
//!
//! Fields have memcached's names where they mean the same, so that dashboards find them. Counts of requests include
//! those of Redis clients. Fields about memcached's own memory management are absent.

use std::fmt::{Display, Write};
use std::sync::atomic::Ordering;

use farbank_store::{SlabClass, Stats};

use super::context::{MemcachedCtx, ReplyStart};
use super::state::MemcachedState;
use crate::buffers::reply::{ReplyBuffer, ReplySink};
use crate::protocol::memcached::VERSION;
use crate::protocol::memcached::parse::{BAD_FORMAT, ERROR, Words, u32_of};
use crate::settings::WireProtocol;
use crate::state::shared::ServerShared;
use crate::state::tls::allows_tls12;
use crate::stats::counters::Counter;
use crate::stats::process::cpu_secs;

/// Most keys of a `cachedump`.
const DUMP_KEYS_MAX: usize = 1 << 16;

/// Writer of `STAT` lines.
struct StatLines<'a>(&'a mut ReplyBuffer);

impl StatLines<'_> {
    fn stat(&mut self, name: &str, value: impl Display) {
        let mut line = String::new();
        let written = write!(line, "STAT {name} {value}\r\n");
        debug_assert!(written.is_ok(), "writing to a String cannot fail");
        self.0.extend_from_slice(line.as_bytes());
    }
}

macro_rules! stats {
    ($lines:ident, $($name:literal: $value:expr),* $(,)?) => {
        $($lines.stat($name, $value);)*
    };
}

/// Whether `stats what` visits many keys or all connections, and so is a long request.
pub(super) fn walks(what: Option<&[u8]>) -> bool {
    matches!(what, Some(b"cachedump" | b"conns"))
}

/// `stats [what [...]]`
pub(super) fn stats(ctx: &mut MemcachedCtx<'_>, mut args: Words<'_>) {
    let what = args.next();
    let figures = ctx.shared.store.stats();
    // A worker publishes its counters once per loop iteration. The reply must include its latest counts.
    ctx.published.publish(&ctx.thread.counters);
    let lines = &mut StatLines(ctx.out);
    match what {
        None => general(ctx.shared, &figures, lines),
        Some(b"settings") => settings(ctx.shared, ctx.client.state, &figures, lines),
        Some(b"items") => items(classes(&figures), lines),
        Some(b"slabs") => slabs(&figures, lines),
        Some(b"sizes") => lines.stat("sizes_status", "disabled"),
        Some(b"conns") => conns(ctx.shared, lines),
        Some(b"hotkeys") => hot_keys(ctx.shared, lines),
        Some(b"detail") => return detail(ctx, args.next().unwrap_or_default()),
        Some(b"cachedump") => return cachedump(ctx, args),
        Some(b"reset") => {
            ctx.shared.stats.counters.reset();
            ctx.client.state.prefixes.clear();
            return ctx.append_reply("RESET", false);
        }
        Some(_) => return ctx.refuse(ERROR),
    }
    ctx.append_reply("END", false);
}

fn general(shared: &ServerShared<'_>, figures: &Stats, lines: &mut StatLines<'_>) {
    let counts = shared.stats.counters.since_reset();
    let count = |what| counts.get(what);
    let (touch_hits, touch_misses) = (count(Counter::TouchHits), count(Counter::TouchMisses));
    let (user, system) = cpu_secs();
    let cache = figures.cache.as_ref();
    let time = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    stats!(lines,
        "pid": std::process::id(),
        "uptime": shared.uptime_secs(),
        "time": time.as_secs(),
        "version": VERSION,
        "farbank_version": env!("CARGO_PKG_VERSION"),
        "pointer_size": usize::BITS,
        "rusage_user": format_args!("{user:.6}"),
        "rusage_system": format_args!("{system:.6}"),
        "max_connections": shared.settings.clients_max.load(Ordering::Relaxed),
        "curr_connections": shared.clients.count(),
        "total_connections": shared.stats.accepted.load(Ordering::Relaxed),
        "rejected_connections": shared.stats.rejected.load(Ordering::Relaxed),
        "connection_structures": shared.clients.count(),
        "cmd_get": count(Counter::Hits) + count(Counter::Misses),
        "cmd_set": count(Counter::Sets),
        "cmd_flush": count(Counter::Flushes),
        "cmd_touch": touch_hits + touch_misses,
        "cmd_meta": count(Counter::Metas),
        "get_hits": count(Counter::Hits),
        "get_misses": count(Counter::Misses),
        "idle_kicks": count(Counter::IdleKicks),
        "get_expired": count(Counter::Expired),
        "get_flushed": count(Counter::Flushed),
        "delete_misses": count(Counter::DeleteMisses),
        "delete_hits": count(Counter::DeleteHits),
        "incr_misses": count(Counter::IncrMisses),
        "incr_hits": count(Counter::IncrHits),
        "decr_misses": count(Counter::DecrMisses),
        "decr_hits": count(Counter::DecrHits),
        "cas_misses": count(Counter::CasMisses),
        "cas_hits": count(Counter::CasHits),
        "cas_badval": count(Counter::CasBad),
        "touch_hits": touch_hits,
        "touch_misses": touch_misses,
        "store_too_large": count(Counter::TooLarge),
        "store_no_memory": count(Counter::NoMemory),
        "auth_cmds": count(Counter::Logins),
        "auth_errors": count(Counter::FailedLogins),
        "bytes_read": count(Counter::BytesIn),
        "bytes_written": count(Counter::BytesOut),
        "limit_maxbytes": figures.pool.capacity_bytes,
        "accepting_conns": 1,
        "listen_disabled_num": 0,
        "time_in_listen_disabled_us": 0,
        "threads": shared.stats.counters.workers.len(),
        "conn_yields": 0,
        "hash_bytes": figures.index_bytes,
        "hash_is_expanding": 0,
        "bytes": figures.pool.live_bytes,
        "curr_items": figures.keys.iter().sum::<u64>(),
        "total_items": count(Counter::Stored),
        "expired_unfetched": 0,
        "evicted_unfetched": 0,
        "evictions": cache.map_or(0, |cache| cache.evictions),
        "reclaimed": cache.map_or(0, |cache| cache.reclaimed),
        "lrutail_reflocked": 0,
        "farbank_batches": count(Counter::Batches),
        "farbank_merged_writes": cache.map_or(0, |cache| cache.merged_writes),
        "farbank_expired_keys": figures.expired_keys,
        "farbank_pool_bytes": figures.pool.bytes,
        "farbank_damaged_records": figures.damaged_records,
    );
    if shared.tls_port(WireProtocol::Memcached).is_some() {
        let tls = &shared.security.tls;
        stats!(lines,
            "ssl_handshake_errors": tls.failed_handshakes(),
            "time_since_server_cert_refresh": tls.age_secs(),
        );
    }
}

fn settings(
    shared: &ServerShared<'_>,
    state: &MemcachedState,
    figures: &Stats,
    lines: &mut StatLines<'_>,
) {
    let yes = |is: bool| if is { "yes" } else { "no" };
    let inter: Vec<_> = shared
        .identity
        .endpoints
        .iter()
        .filter(|endpoint| endpoint.protocol == WireProtocol::Memcached)
        .map(|endpoint| endpoint.addr.ip().to_string())
        .collect();
    let protocol = WireProtocol::Memcached;
    let port = shared.port(protocol).or(shared.tls_port(protocol));
    let auth_file = state
        .credentials()
        .map(|credentials| credentials.file().display().to_string());
    let socket = shared.options.unix_socket(protocol);
    stats!(lines,
        "maxbytes": figures.pool.capacity_bytes,
        "maxconns": shared.settings.clients_max.load(Ordering::Relaxed),
        "tcpport": port.unwrap_or(0),
        "udpport": 0,
        "inter": inter.join(","),
        "verbosity": 0,
        "evictions": if shared.store.as_cache().is_some() { "on" } else { "off" },
        "domain_socket": socket.map_or("NULL".into(), |socket| socket.path.display().to_string()),
        "shutdown_command": "no",
        "num_threads": shared.stats.counters.workers.len(),
        "stat_key_prefix": ":",
        "detail_enabled": yes(state.prefixes.counted()),
        "cas_enabled": yes(shared.options.cas_enabled),
        "binding_protocol": "ascii",
        "auth_enabled_sasl": "no",
        "auth_enabled_ascii": auth_file.as_deref().unwrap_or("no"),
        "item_size_max": shared.item_bytes_max(),
        "maxconns_fast": "yes",
        "flush_enabled": yes(shared.options.flush_allowed),
        "dump_enabled": "yes",
        "hash_algorithm": "siphash13",
        "idle_timeout": shared.settings.timeout_secs.load(Ordering::Relaxed),
        "track_sizes": "no",
        "memory_file": &shared.options.pool,
    );
    let tls = shared.security.tls.settings();
    stats!(lines,
        "ssl_enabled": yes(shared.tls_port(protocol).is_some()),
        "ssl_chain_cert": or_null(&tls.cert_file),
        "ssl_key": or_null(&tls.key_file),
        "ssl_verify_mode": tls.clients.memcached_mode(),
        "ssl_keyformat": 1,
        "ssl_ciphers": "NULL",
        "ssl_session_cache": "no",
        "ssl_kernel_tls": "no",
        "ssl_ca_cert": or_null(&tls.ca_cert_file),
        "ssl_min_version": match allows_tls12(&tls.protocols) {
            true => "tlsv1.2",
            false => "tlsv1.3",
        },
    );
}

/// Returns the text as memcached prints a setting that is a text: "NULL" if it is empty.
fn or_null(text: &str) -> &str {
    match text {
        "" => "NULL",
        text => text,
    }
}

/// Returns the slab classes. A store that is no cache has none.
fn classes(figures: &Stats) -> &[SlabClass] {
    figures.cache.as_ref().map_or(&[], |cache| &cache.classes)
}

fn items(classes: &[SlabClass], lines: &mut StatLines<'_>) {
    for class in classes.iter().filter(|class| class.items > 0) {
        let mut item = |name: &str, value: u64| {
            lines.stat(&format!("items:{}:{name}", class.id), value);
        };
        item("number", class.items);
        item("age", class.age_secs);
        item("mem_requested", class.item_bytes);
        item("evicted", class.evicted);
        item("evicted_nonzero", class.evicted_nonzero);
        item("evicted_time", class.evicted_time);
        item("outofmemory", class.out_of_memory);
        item("tailrepairs", 0);
        item("reclaimed", class.reclaimed);
    }
}

fn slabs(figures: &Stats, lines: &mut StatLines<'_>) {
    let mut bytes = 0;
    let classes = classes(figures);
    for class in classes {
        let slots = class.pages * class.slots_per_page;
        let mut slab = |name: &str, value: u64| {
            lines.stat(&format!("{}:{name}", class.id), value);
        };
        slab("chunk_size", class.slot_bytes);
        slab("chunks_per_page", class.slots_per_page);
        slab("total_pages", class.pages);
        slab("total_chunks", slots);
        slab("used_chunks", class.slots_used);
        slab("free_chunks", class.slots_free);
        slab("free_chunks_end", 0);
        slab("mem_requested", class.item_bytes);
        bytes += slots * class.slot_bytes;
    }
    let all = match classes.is_empty() {
        true => figures.pool.bytes,
        false => bytes,
    };
    lines.stat("active_slabs", classes.len());
    lines.stat("total_malloced", all);
}

fn conns(shared: &ServerShared<'_>, lines: &mut StatLines<'_>) {
    let endpoints = shared.identity.endpoints.iter();
    let endpoints = endpoints.map(|endpoint| format!("tcp:{}", endpoint.addr));
    let sockets = shared.options.unix_sockets.iter();
    let sockets = sockets.map(|socket| format!("unix:{}", socket.path.display()));
    let listening: Vec<_> = endpoints.chain(sockets).collect();
    for (at, addr) in listening.iter().enumerate() {
        lines.stat(&format!("{at}:addr"), addr);
        lines.stat(&format!("{at}:state"), "conn_listening");
    }
    let now_ms = shared.clock_ms();
    for (at, client_info) in shared.clients.all().iter().enumerate() {
        let at = listening.len() + at;
        let idle_ms = now_ms.saturating_sub(client_info.active_ms.load(Ordering::Relaxed));
        let state = match client_info.reads_value.load(Ordering::Relaxed) {
            true => "conn_nread",
            false => "conn_parse_cmd",
        };
        let named = |addr: &str| match client_info.is_unix {
            true => format!("unix:{}", addr.strip_suffix(":0").unwrap_or(addr)),
            false => format!("tcp:{addr}"),
        };
        lines.stat(&format!("{at}:addr"), named(&client_info.addr));
        lines.stat(&format!("{at}:listen_addr"), named(&client_info.laddr));
        lines.stat(&format!("{at}:state"), state);
        lines.stat(&format!("{at}:secs_since_last_cmd"), idle_ms / 1000);
    }
}

fn hot_keys(shared: &ServerShared<'_>, lines: &mut StatLines<'_>) {
    for (at, hot) in shared.stats.counters.hot_keys().iter().enumerate() {
        lines.stat(&format!("hotkeys:{at}:key"), &hot.key);
        lines.stat(&format!("hotkeys:{at}:db"), hot.db);
        lines.stat(
            &format!("hotkeys:{at}:share"),
            format_args!("{:.2}", hot.share),
        );
    }
}

fn detail(ctx: &mut MemcachedCtx<'_>, what: &[u8]) {
    let prefixes = &ctx.client.state.prefixes;
    match what {
        b"on" => prefixes.turn(true),
        b"off" => prefixes.turn(false),
        b"dump" => {
            prefixes.dump(ctx.out);
            return ctx.append_reply("END", false);
        }
        _ => return ctx.refuse("CLIENT_ERROR usage: stats detail on|off|dump"),
    }
    ctx.append_reply("OK", false);
}

/// `stats cachedump class limit`: lists keys of the database. The class is ignored.
fn cachedump(ctx: &mut MemcachedCtx<'_>, mut args: Words<'_>) {
    let (Some(class), Some(limit)) = (args.next(), args.next()) else {
        return ctx.refuse("CLIENT_ERROR bad command line");
    };
    let (Some(_), Some(limit)) = (u32_of(class), u32_of(limit)) else {
        return ctx.refuse(BAD_FORMAT);
    };
    let from = ctx.out.len();
    ctx.reads();
    let most = match limit {
        0 => DUMP_KEYS_MAX,
        limit => DUMP_KEYS_MAX.min(limit as usize),
    };
    let (mut cursor, mut count) = (0, 0);
    loop {
        let out = &mut *ctx.out;
        let scanned = ctx.store.scan(0, cursor, most - count, &mut |key, meta| {
            if count < most {
                count += 1;
                out.extend_from_slice(b"ITEM ");
                out.extend_from_slice(key);
                let (bytes, expires) = (meta.value_bytes, meta.expires_ms / 1000);
                out.extend_from_slice(format!(" [{bytes} b; {expires} s]\r\n").as_bytes());
            }
        });
        cursor = match scanned {
            Ok(next) => next,
            Err(error) => {
                let (first, quiet) = (false, false);
                return ctx.failed(&error, ReplyStart { from, first, quiet });
            }
        };
        if cursor == 0 || count >= most {
            return ctx.append_reply("END", false);
        }
    }
}
