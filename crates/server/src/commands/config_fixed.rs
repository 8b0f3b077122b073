//! Parameters of Redis that change nothing in this server, for CONFIG GET and CONFIG SET.
//!
//! * [`IGNORED`]: about representations, snapshots and replicas, which this server does not have. CONFIG SET checks a
//!   value and keeps it, so that CONFIG GET returns it.
//! * [`FIXED`]: a change would promise behaviour that this server does not have. CONFIG SET refuses it with the reason.

/// Values of a parameter.
#[derive(Clone, Copy)]
pub(super) enum ValueKind {
    /// `yes` or `no`.
    Switch,
    /// A number in this range.
    Number(i64, i64),
    /// A number of bytes, of at least this many.
    Memory(u64),
    /// One of these words.
    Word(&'static [&'static str]),
    /// Any text.
    Text,
}

/// A parameter without effect: its name, its default and its values.
pub(super) struct IgnoredParameter {
    pub(super) name: &'static str,
    pub(super) default: &'static str,
    pub(super) kind: ValueKind,
}

const fn ignored(name: &'static str, default: &'static str, kind: ValueKind) -> IgnoredParameter {
    IgnoredParameter {
        name,
        default,
        kind,
    }
}

const INT: i64 = i32::MAX as i64;
const LONG: i64 = i64::MAX;
const SWITCH: ValueKind = ValueKind::Switch;
const LOG_LEVELS: &[&str] = &["debug", "verbose", "notice", "warning"];
const LOADS: &[&str] = &["disabled", "on-empty-db", "swapdb"];
const SCORES: &[&str] = &["no", "yes", "relative", "absolute"];

/// Parameters without effect, with Redis's defaults.
pub(super) const IGNORED: &[IgnoredParameter] = &[
    ignored("active-expire-effort", "1", ValueKind::Number(1, 10)),
    ignored("activerehashing", "yes", SWITCH),
    ignored("aof-load-truncated", "yes", SWITCH),
    ignored("aof-rewrite-incremental-fsync", "yes", SWITCH),
    ignored("aof-timestamp-enabled", "no", SWITCH),
    ignored("aof-use-rdb-preamble", "yes", SWITCH),
    ignored(
        "auto-aof-rewrite-min-size",
        "67108864",
        ValueKind::Memory(0),
    ),
    ignored(
        "auto-aof-rewrite-percentage",
        "100",
        ValueKind::Number(0, INT),
    ),
    ignored("crash-log-enabled", "yes", SWITCH),
    ignored("crash-memcheck-enabled", "yes", SWITCH),
    ignored("dynamic-hz", "yes", SWITCH),
    ignored(
        "hash-max-listpack-entries",
        "512",
        ValueKind::Number(0, LONG),
    ),
    ignored("hash-max-listpack-value", "64", ValueKind::Memory(0)),
    ignored("hz", "10", ValueKind::Number(0, INT)),
    ignored("jemalloc-bg-thread", "yes", SWITCH),
    ignored("lazyfree-lazy-eviction", "no", SWITCH),
    ignored("lazyfree-lazy-expire", "no", SWITCH),
    ignored("lazyfree-lazy-server-del", "no", SWITCH),
    ignored("lazyfree-lazy-user-del", "no", SWITCH),
    ignored("lazyfree-lazy-user-flush", "no", SWITCH),
    ignored("list-compress-depth", "0", ValueKind::Number(0, INT)),
    ignored(
        "list-max-listpack-size",
        "-2",
        ValueKind::Number(-INT - 1, INT),
    ),
    ignored("loglevel", "notice", ValueKind::Word(LOG_LEVELS)),
    ignored(
        "maxmemory-eviction-tenacity",
        "10",
        ValueKind::Number(0, 100),
    ),
    ignored("min-replicas-max-lag", "10", ValueKind::Number(0, INT)),
    ignored("no-appendfsync-on-rewrite", "no", SWITCH),
    ignored("oom-score-adj", "no", ValueKind::Word(SCORES)),
    ignored("rdb-del-sync-files", "no", SWITCH),
    ignored("rdb-save-incremental-fsync", "yes", SWITCH),
    // Backups read it.
    ignored("rdbcompression", "yes", SWITCH),
    ignored("repl-backlog-size", "1048576", ValueKind::Memory(1)),
    ignored("repl-backlog-ttl", "3600", ValueKind::Number(0, LONG)),
    ignored("repl-disable-tcp-nodelay", "no", SWITCH),
    ignored("repl-diskless-load", "disabled", ValueKind::Word(LOADS)),
    ignored("repl-diskless-sync", "yes", SWITCH),
    ignored("repl-diskless-sync-delay", "5", ValueKind::Number(0, INT)),
    ignored("repl-ping-replica-period", "10", ValueKind::Number(1, INT)),
    ignored("repl-timeout", "60", ValueKind::Number(1, INT)),
    ignored("replica-announce-ip", "", ValueKind::Text),
    ignored("replica-announce-port", "0", ValueKind::Number(0, 65_535)),
    ignored("replica-ignore-maxmemory", "yes", SWITCH),
    ignored("replica-lazy-flush", "no", SWITCH),
    ignored("replica-priority", "100", ValueKind::Number(0, INT)),
    ignored("replica-read-only", "yes", SWITCH),
    ignored("replica-serve-stale-data", "yes", SWITCH),
    ignored("set-max-intset-entries", "512", ValueKind::Number(0, LONG)),
    ignored("shutdown-timeout", "10", ValueKind::Number(0, INT)),
    ignored("stop-writes-on-bgsave-error", "yes", SWITCH),
    ignored("stream-node-max-bytes", "4096", ValueKind::Memory(0)),
    ignored("stream-node-max-entries", "100", ValueKind::Number(0, LONG)),
    ignored(
        "zset-max-listpack-entries",
        "128",
        ValueKind::Number(0, LONG),
    ),
    ignored("zset-max-listpack-value", "64", ValueKind::Memory(0)),
];

/// A parameter that CONFIG SET does not change: its value, and why.
pub(super) struct FixedParameter {
    pub(super) name: &'static str,
    pub(super) value: &'static str,
    pub(super) reason: &'static str,
}

const fn fixed(name: &'static str, value: &'static str, reason: &'static str) -> FixedParameter {
    FixedParameter {
        name,
        value,
        reason,
    }
}

const ALWAYS_DURABLE: &str =
    "every acknowledged write is durable; BGSAVE writes backups, and there is no append-only file";
const NO_REPLICAS: &str = "this server has no replicas";

/// Parameters that are always so.
pub(super) const FIXED: &[FixedParameter] = &[
    fixed("save", "", ALWAYS_DURABLE),
    fixed("appendonly", "yes", ALWAYS_DURABLE),
    fixed(
        "rdbchecksum",
        "yes",
        "records and backups always have checksums",
    ),
    fixed(
        "activedefrag",
        "no",
        "the cleaner of the pool always runs, and DRAM is not defragmented",
    ),
    fixed(
        "hll-sparse-max-bytes",
        "3000",
        "sparse HyperLogLogs always have at most 3000 bytes",
    ),
    fixed("masterauth", "", NO_REPLICAS),
    fixed("masteruser", "", NO_REPLICAS),
    fixed("min-replicas-to-write", "0", NO_REPLICAS),
    fixed("replicaof", "", NO_REPLICAS),
    fixed("logfile", "", "the log goes to stderr"),
];

/// Parses `yes` or `no`, in either case.
pub(super) fn is_switch(value: &[u8]) -> bool {
    ["yes", "no"]
        .iter()
        .any(|word| value.eq_ignore_ascii_case(word.as_bytes()))
}
