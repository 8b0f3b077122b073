//! Other names of parameters, which Redis keeps for old configurations. `CONFIG REWRITE` replaces them by the names.

/// Other names, each with the name.
pub(super) const ALIASES: &[(&str, &str)] = &[
    ("hash-max-ziplist-entries", "hash-max-listpack-entries"),
    ("hash-max-ziplist-value", "hash-max-listpack-value"),
    ("list-max-ziplist-size", "list-max-listpack-size"),
    ("lua-time-limit", "busy-reply-threshold"),
    ("min-slaves-max-lag", "min-replicas-max-lag"),
    ("min-slaves-to-write", "min-replicas-to-write"),
    ("repl-ping-slave-period", "repl-ping-replica-period"),
    ("slave-announce-ip", "replica-announce-ip"),
    ("slave-announce-port", "replica-announce-port"),
    ("slave-ignore-maxmemory", "replica-ignore-maxmemory"),
    ("slave-lazy-flush", "replica-lazy-flush"),
    ("slave-priority", "replica-priority"),
    ("slave-read-only", "replica-read-only"),
    ("slave-serve-stale-data", "replica-serve-stale-data"),
    ("slaveof", "replicaof"),
    ("zset-max-ziplist-entries", "zset-max-listpack-entries"),
    ("zset-max-ziplist-value", "zset-max-listpack-value"),
];

/// Returns the name of the parameter that has the other name `alias`.
#[must_use]
pub fn name_of_alias(alias: &str) -> Option<&'static str> {
    let found = ALIASES.iter().find(|(other, _)| *other == alias);
    found.map(|(_, name)| *name)
}

/// Returns the name of the parameter that has the name or the other name `name`.
pub(super) fn name_of(name: &str) -> &str {
    name_of_alias(name).unwrap_or(name)
}
