//! [`ServerShared`]: the store, the settings, the connections and the counters of a server.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use farbank_pm::Poisoned;
use farbank_store::{DatabaseMap, Key, Store};

use super::access_table::{AccessClock, AccessTable, SharedAccessTable};
use super::acl_log::AclLog;
use super::change_log::KeyChange;
use super::clients::{ClientInfo, ClientRegistry};
use super::functions::FunctionRegistry;
use super::messages::{Publication, SubscriptionKind};
use super::saves::Saves;
use super::scripts::ScriptRegistry;
use super::subscriptions::Subscriptions;
use super::threads::ServerThreads;
use super::tls::TlsState;
use super::tracking::Tracking;
use super::users::UserRegistry;
use crate::keyspace_events::KeyspaceEvents;
use crate::settings::{Endpoint, LiveSettings, ServerOptions, WireProtocol};
use crate::stats::commands::CountRules;
use crate::stats::counters::ServerCounters;
use crate::stats::process::MemoryWatch;
use crate::stats::slow_log::{LatencyLog, SlowLog};

/// Bytes that a connection's replies may always use, however much memory other clients use, unless
/// client-output-buffer-limit is lower.
const REPLY_BYTES_MIN: usize = 32 << 20;

/// State that all threads of a server share.
pub(crate) struct ServerShared<'a> {
    pub(crate) store: &'a dyn Store,
    pub(crate) options: &'a ServerOptions,
    pub(crate) settings: LiveSettings,
    pub(crate) threads: &'a dyn ServerThreads,
    pub(crate) identity: ServerIdentity,
    pub(crate) clients: ClientRegistry,
    pub(crate) security: Security,
    pub(crate) programs: Programs,
    pub(crate) interests: Interests,
    pub(crate) access: SharedAccessTable,
    pub(crate) durability: Durability,
    pub(crate) stats: ServerStats,
}

/// What distinguishes this run of the server from others.
pub(crate) struct ServerIdentity {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) started: Instant,
    /// 40 hexadecimal digits.
    pub(crate) run_id: String,
}

/// The permissions of users, and the encryption of connections.
pub(crate) struct Security {
    pub(crate) users: UserRegistry,
    pub(crate) acl_log: AclLog,
    pub(crate) tls: TlsState,
}

/// Programs that clients have loaded.
pub(crate) struct Programs {
    pub(crate) scripts: ScriptRegistry,
    pub(crate) functions: FunctionRegistry,
}

/// What clients have asked to hear of.
pub(crate) struct Interests {
    pub(crate) subscriptions: Subscriptions,
    pub(crate) tracking: Tracking,
}

/// State of the pool's medium, and of backups.
pub(crate) struct Durability {
    /// Why the pool accepts no more writes; set once the medium has failed.
    pub(crate) poisoned: OnceLock<String>,
    pub(crate) saves: Saves,
    /// When SAVE or BGSAVE last succeeded, in seconds since 1970; the start of the server if none has.
    pub(crate) last_save_secs: AtomicU64,
}

/// What the server counts and logs.
pub(crate) struct ServerStats {
    pub(crate) counters: ServerCounters,
    /// Connections accepted since the start or the last CONFIG RESETSTAT.
    pub(crate) accepted: AtomicU64,
    /// Connections refused because of maxclients since the start or the last CONFIG RESETSTAT.
    pub(crate) rejected: AtomicU64,
    /// Expired values that the store had removed or replaced at the last CONFIG RESETSTAT.
    pub(crate) expired_at_reset: AtomicU64,
    pub(crate) memory: MemoryWatch,
    pub(crate) slow_log: SlowLog,
    pub(crate) latency_log: LatencyLog,
}

impl ServerShared<'_> {
    /// Seconds since the server started.
    pub(crate) fn uptime_secs(&self) -> u64 {
        self.identity.started.elapsed().as_secs()
    }

    /// Milliseconds since the server started.
    pub(crate) fn clock_ms(&self) -> u64 {
        u64::try_from(self.identity.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Milliseconds for which the thread of long requests has run its script or function, if it runs one.
    pub(crate) fn script_run_ms(&self) -> Option<u64> {
        self.programs.scripts.running.run_ms(self.clock_ms())
    }

    /// How calls of commands are counted now.
    #[inline]
    pub(crate) fn count_rules(&self) -> CountRules {
        CountRules {
            generation: self.stats.counters.generation(),
            keeps_times: self.settings.latency_tracking.load(Ordering::Relaxed) != 0,
        }
    }

    /// The time, the settings and the mapping of databases with which uses of keys are recorded.
    pub(crate) fn access_clock(&self) -> AccessClock {
        let get = |setting: &AtomicU64| setting.load(Ordering::Relaxed);
        AccessClock {
            secs: self.clock_ms() / 1000,
            log_factor: get(&self.settings.lfu_log_factor),
            decay_minutes: get(&self.settings.lfu_decay_minutes),
            databases: self.database_map(),
        }
    }

    /// Creates or frees the table of uses after a change of the settings. A cache has its own.
    pub(crate) fn follow_eviction_policy(&self) {
        if self.store.as_cache().is_none() {
            self.access.follow(&self.settings, self.clock_ms() / 1000);
        }
    }

    /// Returns the uses of keys, if the eviction policy depends on them.
    #[inline]
    pub(crate) fn access_table(&self) -> Option<Arc<AccessTable>> {
        match self.settings.eviction_policy().depends_on_use() {
            true => self.access.current(),
            false => None,
        }
    }

    /// Returns `key` with the stored number of its database, which follows the key through every SWAPDB.
    pub(crate) fn stored_key<'k>(&self, key: Key<'k>) -> Key<'k> {
        self.database_map().stored_key(key)
    }

    /// Returns the mapping of the databases' numbers.
    pub(crate) fn database_map(&self) -> DatabaseMap {
        let databases = self.store.databases();
        databases.map_or_else(DatabaseMap::default, |databases| databases.view().map)
    }

    /// Returns how often SWAPDB has exchanged database `db` with another one.
    pub(crate) fn swaps(&self, db: u8) -> u64 {
        let databases = self.store.databases();
        databases.map_or(0, |databases| databases.swaps(db))
    }

    /// Most bytes of a memcached item: the configured limit, or the store's if that is lower.
    pub(crate) fn item_bytes_max(&self) -> usize {
        let kept = self.store.item_bytes_max();
        self.options.item_bytes_max.min(kept)
    }

    /// Most bytes of unsent replies that a client's connection may have: the part of maxmemory-clients that other
    /// clients do not use, but at least [`REPLY_BYTES_MIN`]. So a client is served even while other clients, which are
    /// evicted next, use the memory.
    pub(crate) fn reply_bytes_max(&self, client_info: &ClientInfo) -> usize {
        let own = client_info.counted_bytes.load(Ordering::Relaxed);
        let others = self.clients.memory_bytes().saturating_sub(own);
        let left = self.settings.clients_bytes_max().saturating_sub(others);
        self.settings
            .output_limit(client_info.is_subscribed.load(Ordering::Relaxed))
            .bytes_max()
            .min(left.max(REPLY_BYTES_MIN))
    }

    /// Returns the messages of a keyspace event that have receivers.
    pub(crate) fn event(&self, event: &str, key: Key<'_>) -> Vec<Publication> {
        let events = self.settings.keyspace_events();
        let db = key.db;
        let mut messages = Vec::new();
        if events.has(KeyspaceEvents::KEYSPACE) {
            let channel = [format!("__keyspace@{db}__:").as_bytes(), key.bytes].concat();
            messages.push((channel, event.as_bytes()));
        }
        if events.has(KeyspaceEvents::KEYEVENT) {
            let channel = format!("__keyevent@{db}__:{event}").into_bytes();
            messages.push((channel, key.bytes));
        }
        let publish = |(channel, text): (Vec<u8>, &[u8])| {
            let kind = SubscriptionKind::Channel;
            self.interests.subscriptions.publish(kind, &channel, text)
        };
        messages.into_iter().filter_map(publish).collect()
    }

    /// Returns the invalidations of changes that are visible to all sessions (SRV-TRACK-3).
    pub(crate) fn announce(&self, changes: &[KeyChange]) -> Vec<Publication> {
        self.interests.tracking.announce(&self.clients, changes)
    }

    /// Unregisters a client, and lets its worker close the connection.
    pub(crate) fn kill(&self, client_info: &ClientInfo) {
        self.clients.remove(client_info.id);
        self.threads.close(client_info);
    }

    /// Records that the medium has failed, and logs the first such failure.
    pub(crate) fn note_poisoned(&self, poisoned: &Poisoned) {
        let reason = poisoned.reason().to_owned();
        if self.durability.poisoned.set(reason).is_ok() {
            tracing::error!("{poisoned}");
        }
    }

    /// The port of the first endpoint with `protocol`, without TLS.
    pub(crate) fn port(&self, protocol: WireProtocol) -> Option<u16> {
        self.first_port(|endpoint| endpoint.protocol == protocol && !endpoint.tls)
    }

    /// The port of the first endpoint with `protocol` and TLS.
    pub(crate) fn tls_port(&self, protocol: WireProtocol) -> Option<u16> {
        self.first_port(|endpoint| endpoint.protocol == protocol && endpoint.tls)
    }

    fn first_port(&self, is_meant: impl Fn(&Endpoint) -> bool) -> Option<u16> {
        let first = self
            .identity
            .endpoints
            .iter()
            .find(|endpoint| is_meant(endpoint));
        first.map(|endpoint| endpoint.addr.port())
    }
}
