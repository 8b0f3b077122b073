//! Options of a server at its start ([`ServerOptions`]), and the settings that CONFIG SET can change while it runs
//! (`LiveSettings`).

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::eviction_policy::{EvictionPolicy, NOEVICTION};
use crate::keyspace_events::KeyspaceEvents;
use crate::lock::lock;
use crate::protocol::resp::RequestLimits;
use crate::protocol::resp::parse::words_of;
use crate::settings_error::SettingsError;

/// Protocol of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireProtocol {
    /// Redis's protocol: RESP2, RESP3 and inline requests.
    Resp,
    /// memcached's text protocol with its meta commands.
    Memcached,
}

impl WireProtocol {
    /// The reply to a client that is refused because of maxclients.
    pub(crate) fn too_many(self) -> &'static [u8] {
        match self {
            WireProtocol::Resp => b"-ERR max number of clients reached\r\n",
            WireProtocol::Memcached => b"ERROR Too many open connections\r\n",
        }
    }
}

impl WireProtocol {
    /// The reply to a client of another machine that protected mode refuses.
    pub(crate) fn protected(self) -> &'static [u8] {
        match self {
            WireProtocol::Resp => PROTECTED.as_bytes(),
            WireProtocol::Memcached => b"CLIENT_ERROR unauthenticated\r\n",
        }
    }
}

const PROTECTED: &str = "-DENIED Redis is running in protected mode because protected mode is enabled and no password is \
    set for the default user. In this mode connections are only accepted from the loopback interface. If you want to \
    connect from external computers to Redis you may adopt one of the following solutions: 1) Just disable protected mode \
    sending the command 'CONFIG SET protected-mode no' from the loopback interface by connecting to Redis from the same \
    host the server is running, however MAKE SURE Redis is not publicly accessible from internet if you do so. Use CONFIG \
    REWRITE to make this change permanent. 2) Alternatively you can just disable the protected mode by editing the Redis \
    configuration file, and setting the protected mode option to 'no', and then restarting the server. 3) If you started \
    the server manually just for testing, restart it with the '--protected-mode no' option. 4) Setup a an authentication \
    password for the default user. NOTE: You only need to do one of the above things in order for the server to start \
    accepting connections from the outside.\r\n";

/// An address to listen on, and its protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// The address.
    pub addr: SocketAddr,
    /// The protocol.
    pub protocol: WireProtocol,
    /// Connections are encrypted by TLS.
    pub tls: bool,
}

impl Endpoint {
    /// Returns an endpoint for Redis clients.
    #[must_use]
    pub fn resp(addr: SocketAddr) -> Endpoint {
        Endpoint {
            addr,
            protocol: WireProtocol::Resp,
            tls: false,
        }
    }

    /// Returns an endpoint for memcached clients.
    #[must_use]
    pub fn memcached(addr: SocketAddr) -> Endpoint {
        Endpoint {
            addr,
            protocol: WireProtocol::Memcached,
            tls: false,
        }
    }
}

/// Which TLS clients must show a certificate that an accepted authority has signed (`tls-auth-clients`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TlsClients {
    /// No client; certificates are not asked for.
    No,
    /// Every client.
    #[default]
    Yes,
    /// A client may have no certificate.
    Optional,
}

impl TlsClients {
    /// All values, in Redis's order.
    pub const ALL: [TlsClients; 3] = [TlsClients::No, TlsClients::Yes, TlsClients::Optional];

    /// The value in CONFIG GET's reply.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            TlsClients::No => "no",
            TlsClients::Yes => "yes",
            TlsClients::Optional => "optional",
        }
    }

    /// The number that memcached has for it (`ssl_verify_mode`).
    #[must_use]
    pub const fn memcached_mode(self) -> u8 {
        match self {
            TlsClients::No => 0,
            TlsClients::Optional => 1,
            TlsClients::Yes => 2,
        }
    }

    /// The clients that must show a certificate.
    #[must_use]
    pub const fn summary(self) -> &'static str {
        match self {
            TlsClients::No => "No client",
            TlsClients::Yes => "Every client",
            TlsClients::Optional => "No client, but a certificate that is shown must be valid",
        }
    }
}

/// Settings of TLS connections. Files are PEM.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TlsSettings {
    /// File of the server's certificate, followed by those of its issuers; empty without TLS.
    pub cert_file: String,
    /// File of the certificate's private key; empty if it is in `cert_file`.
    pub key_file: String,
    /// File of the authorities that sign the certificates of clients.
    pub ca_cert_file: String,
    /// Which clients must show a certificate.
    pub clients: TlsClients,
    /// Versions of the protocol, `TLSv1.2` and `TLSv1.3`; empty means both.
    pub protocols: String,
}

/// A Unix socket to listen on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnixSocket {
    /// Path of its file.
    pub path: PathBuf,
    /// Permissions of its file. A client needs write permission to connect.
    pub mode: u32,
    /// The protocol of its clients.
    pub protocol: WireProtocol,
}

/// Which clients may change limits with CONFIG SET and stop the server with SHUTDOWN: Redis's
/// `enable-protected-configs`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ProtectedActions {
    /// No client.
    No,
    /// Every client.
    Yes,
    /// Clients from 127.0.0.1, from ::1 and on the Unix socket.
    #[default]
    Local,
}

impl ProtectedActions {
    /// All values.
    pub const ALL: [ProtectedActions; 3] = [
        ProtectedActions::No,
        ProtectedActions::Yes,
        ProtectedActions::Local,
    ];

    /// The value in CONFIG GET's reply.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ProtectedActions::No => "no",
            ProtectedActions::Yes => "yes",
            ProtectedActions::Local => "local",
        }
    }

    /// The clients that may perform protected actions.
    #[must_use]
    pub const fn summary(self) -> &'static str {
        match self {
            ProtectedActions::No => "No client",
            ProtectedActions::Yes => "Every client",
            ProtectedActions::Local => "Local clients",
        }
    }

    /// Whether a client may perform protected actions; `local`: the client is on this machine.
    pub(crate) fn allows(self, local: bool) -> bool {
        match self {
            ProtectedActions::No => false,
            ProtectedActions::Yes => true,
            ProtectedActions::Local => local,
        }
    }
}

/// Memory that all connections may use together (`maxmemory-clients`): input, queued requests, watched keys and unsent
/// replies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientsMemory {
    /// Bytes; 0 means no limit.
    Bytes(u64),
    /// Percent of the memory that the process may use: the machine's, or its control group's limit if that is lower.
    /// 0 means no limit.
    Percent(u8),
}

impl Default for ClientsMemory {
    fn default() -> ClientsMemory {
        ClientsMemory::Percent(25)
    }
}

impl ClientsMemory {
    /// Encodes the value as one number: bytes as they are, percentages as negative numbers.
    pub(crate) fn encode(self) -> u64 {
        match self {
            ClientsMemory::Bytes(bytes) => bytes,
            ClientsMemory::Percent(percent) => u64::from(percent).wrapping_neg(),
        }
    }

    pub(crate) fn decode(number: u64) -> ClientsMemory {
        match u8::try_from(number.wrapping_neg()) {
            Ok(percent) if percent > 0 => ClientsMemory::Percent(percent),
            _ => ClientsMemory::Bytes(number),
        }
    }
}

impl fmt::Display for ClientsMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientsMemory::Bytes(bytes) => write!(f, "{bytes}"),
            ClientsMemory::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// Memory that this process may use, in bytes: the machine's, or its control group's limit if that is lower.
fn machine_bytes() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let meminfo = read("/proc/meminfo");
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let machine = kib.map_or(u64::MAX, |kib| kib.saturating_mul(1024));
    let limits = [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ];
    let group = limits
        .iter()
        .filter_map(|path| read(path).trim().parse::<u64>().ok())
        .min();
    machine.min(group.unwrap_or(u64::MAX))
}

/// The Redis version whose commands, replies and files this server implements.
pub const REDIS_VERSION: &str = "7.0.15";

/// A password. Its `Debug` output hides it.
#[derive(Clone)]
pub struct Password(Box<[u8]>);

impl Password {
    /// Creates a password; `None` if it is empty, which Redis takes for no password.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Password> {
        (!bytes.is_empty()).then(|| Password(bytes.into()))
    }

    /// The password.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(...)")
    }
}

/// A user and its rules, as in a line `user NAME RULE ...` of redis.conf. Parsed from `NAME RULE ...`; words may be quoted
/// as in Redis. Its `Debug` output hides the rules.
///
/// ```
/// use farbank_server::UserRules;
///
/// assert!("reader on >secret ~cache:* +@read".parse::<UserRules>().is_ok());
/// assert!("reader on >\"secret".parse::<UserRules>().is_err());
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct UserRules {
    pub(crate) name: Vec<u8>,
    pub(crate) rules: Vec<Vec<u8>>,
}

impl UserRules {
    /// Parses `NAME RULE ...`, which need not be UTF-8.
    ///
    /// # Errors
    /// Quotes are not balanced, or there is no name.
    pub fn parse(text: &[u8]) -> Result<UserRules, SettingsError> {
        let words = words_of(text);
        let mut words = words.ok_or_else(|| SettingsError::new("unbalanced quotes"))?;
        if words.is_empty() {
            return Err(SettingsError::new("must be NAME RULE ..."));
        }
        let rules = words.split_off(1);
        let name = words.swap_remove(0);
        Ok(UserRules { name, rules })
    }
}

impl FromStr for UserRules {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<UserRules, SettingsError> {
        UserRules::parse(text.as_bytes())
    }
}

impl fmt::Debug for UserRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "UserRules({:?}, ...)",
            String::from_utf8_lossy(&self.name)
        )
    }
}

/// A parameter of CONFIG SET, and its value when the server starts. Parsed from `NAME=VALUE`.
///
/// ```
/// use farbank_server::LiveParameter;
///
/// assert!("slowlog-max-len=500".parse::<LiveParameter>().is_ok());
/// assert!("slowlog-max-len=many".parse::<LiveParameter>().is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiveParameter {
    pub(crate) name: String,
    pub(crate) value: String,
}

/// The redis.conf that a server was started with: CONFIG REWRITE writes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigFile {
    /// Absolute path of the file.
    pub path: PathBuf,
    /// Value of the directive `pool`: where the pool is.
    pub pool: PathBuf,
    /// Addresses that the server listens on without a directive `bind`.
    pub default_bind: Vec<IpAddr>,
}

/// Options of a server at its start.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Threads that serve connections; 0 means one per two CPUs, at least 1 and at most 4.
    pub workers: usize,
    /// Most concurrent connections. Lowered if the process's limit of open files is too low.
    pub clients_max: u64,
    /// When an acknowledged write is durable: the value of `CONFIG GET appendfsync`.
    pub sync: &'static str,
    /// Path of the pool, for INFO and CONFIG GET.
    pub pool: String,
    /// File that keeps the libraries of FUNCTION LOAD; `None` keeps them in memory only.
    pub functions_file: Option<PathBuf>,
    /// Most bytes of a memcached item, including key and header.
    pub item_bytes_max: usize,
    /// Seconds after which an idle connection is closed; 0 means never.
    pub idle_secs: u64,
    /// Whether memcached clients may use `flush_all`.
    pub flush_allowed: bool,
    /// Whether memcached items have `cas` numbers.
    pub cas_enabled: bool,
    /// Which clients may change limits and stop the server.
    pub protected_actions: ProtectedActions,
    /// Which clients may use DEBUG; none by default.
    pub debug_command: ProtectedActions,
    /// The password of the user `default` (`requirepass`).
    pub password: Option<Password>,
    /// Users besides `default`, or with its name other rules for it.
    pub users: Vec<UserRules>,
    /// File of users, in place of `password` and `users`. ACL LOAD reads it, ACL SAVE writes it.
    pub acl_file: Option<PathBuf>,
    /// The file that CONFIG REWRITE writes; `None` without one.
    pub config_file: Option<ConfigFile>,
    /// Settings of the endpoints with TLS.
    pub tls: TlsSettings,
    /// Refuse clients of other machines while the user `default` needs no password (`protected-mode`).
    pub protected_mode: bool,
    /// Serve memcached clients without an auth file whatever the user `default` may do. Otherwise they are served while that
    /// user needs no password and has no restriction.
    pub memcached_unprotected: bool,
    /// File of lines `name:password`, one of which each memcached client must give. It is read when the server starts, and
    /// again by [`ServerHandle::reload`](crate::ServerHandle::reload).
    pub memcached_auth_file: Option<PathBuf>,
    /// Unix sockets to listen on, besides the addresses; at most one for each protocol.
    pub unix_sockets: Vec<UnixSocket>,
    /// Address of the admin port, which serves figures and a page over HTTP.
    pub admin: Option<SocketAddr>,
    /// Memory that all connections may use together.
    pub clients_memory: ClientsMemory,
    /// Events that keyspace notifications tell of; none by default.
    pub keyspace_events: KeyspaceEvents,
    /// Parameters of CONFIG SET that differ from their defaults.
    pub parameters: Vec<LiveParameter>,
    /// Time slice of a connection: how long it executes requests before other connections are served; 200 microseconds
    /// by default. A request is not interrupted; one that takes longer ends the time slice.
    pub time_slice: Duration,
    /// How long a request evicts keys at most before it executes; 1 millisecond by default. If the store is still above
    /// `maxmemory` then, the worker evicts for as long again after each visit to its connections.
    pub eviction_slice: Duration,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            workers: 0,
            clients_max: 10_000,
            sync: "always",
            pool: String::new(),
            functions_file: None,
            item_bytes_max: 1 << 20,
            idle_secs: 0,
            flush_allowed: true,
            cas_enabled: true,
            protected_actions: ProtectedActions::default(),
            debug_command: ProtectedActions::No,
            password: None,
            users: Vec::new(),
            acl_file: None,
            config_file: None,
            tls: TlsSettings::default(),
            protected_mode: true,
            memcached_unprotected: false,
            memcached_auth_file: None,
            unix_sockets: Vec::new(),
            admin: None,
            clients_memory: ClientsMemory::default(),
            keyspace_events: KeyspaceEvents::default(),
            parameters: Vec::new(),
            time_slice: Duration::from_micros(200),
            eviction_slice: Duration::from_millis(1),
        }
    }
}

impl ServerOptions {
    /// Returns the Unix socket for clients of `protocol`, if there is one.
    pub(crate) fn unix_socket(&self, protocol: WireProtocol) -> Option<&UnixSocket> {
        let mut sockets = self.unix_sockets.iter();
        sockets.find(|socket| socket.protocol == protocol)
    }

    /// Number of worker threads that the server will start.
    #[must_use]
    pub fn workers(&self) -> usize {
        match self.workers {
            0 => default_workers(std::thread::available_parallelism().map_or(1, usize::from)),
            n => n,
        }
    }
}

/// Default number of workers on a machine with `cpus` CPUs. The kernel's part of a request, which is the larger part,
/// and the store's own threads need CPUs too. On two CPUs, one worker serves more requests than two.
fn default_workers(cpus: usize) -> usize {
    (cpus / 2).clamp(1, 4)
}

/// Limits of the unsent replies of a class of connections; 0 means no limit.
pub(crate) struct OutputLimit {
    /// A connection above this is closed.
    pub(crate) hard_bytes: AtomicU64,
    /// A connection that stays above this for `soft_secs` is closed.
    pub(crate) soft_bytes: AtomicU64,
    pub(crate) soft_secs: AtomicU64,
}

impl OutputLimit {
    fn new(hard_bytes: u64, soft_bytes: u64, soft_secs: u64) -> OutputLimit {
        OutputLimit {
            hard_bytes: AtomicU64::new(hard_bytes),
            soft_bytes: AtomicU64::new(soft_bytes),
            soft_secs: AtomicU64::new(soft_secs),
        }
    }

    /// The three numbers.
    pub(crate) fn numbers(&self) -> [u64; 3] {
        [&self.hard_bytes, &self.soft_bytes, &self.soft_secs]
            .map(|number| number.load(Ordering::Relaxed))
    }

    /// Most bytes of unsent replies of a connection; `usize::MAX` means no limit.
    pub(crate) fn bytes_max(&self) -> usize {
        match size(&self.hard_bytes) {
            0 => usize::MAX,
            bytes => bytes,
        }
    }
}

/// Texts by name of a parameter.
#[derive(Default)]
pub(crate) struct KeptValues(Mutex<BTreeMap<&'static str, Vec<u8>>>);

impl KeptValues {
    /// The value of a parameter whose values are UTF-8, if one was set.
    pub(crate) fn get(&self, name: &str) -> Option<String> {
        let bytes = self.bytes(name)?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The value of a parameter, if one was set.
    pub(crate) fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        lock(&self.0).get(name).cloned()
    }

    /// Sets the value of a parameter.
    pub(crate) fn set(&self, name: &'static str, value: impl Into<Vec<u8>>) {
        lock(&self.0).insert(name, value.into());
    }
}

/// Settings that CONFIG SET can change. Requests read them, so each is one atomic.
pub(crate) struct LiveSettings {
    pub(crate) clients_max: AtomicU64,
    pub(crate) timeout_secs: AtomicU64,
    pub(crate) keepalive_secs: AtomicU64,
    pub(crate) bulk_bytes_max: AtomicU64,
    pub(crate) input_bytes_max: AtomicU64,
    /// Milliseconds after which a script is slow.
    pub(crate) busy_ms: AtomicU64,
    /// Limits of connections without subscriptions, of replicas, which do not exist here, and with subscriptions.
    pub(crate) output_normal: OutputLimit,
    pub(crate) output_replica: OutputLimit,
    pub(crate) output_pubsub: OutputLimit,
    /// Encoded by [`ClientsMemory::encode`].
    pub(crate) clients_memory: AtomicU64,
    /// Bytes of live records above which keys are evicted, or else writes that may add bytes are refused; 0: no limit.
    pub(crate) maxmemory: AtomicU64,
    /// Number of the [`EvictionPolicy`].
    pub(crate) maxmemory_policy: AtomicU64,
    /// Keys that are sampled for each key that is evicted.
    pub(crate) maxmemory_samples: AtomicU64,
    /// Slows the growth of a key's frequency.
    pub(crate) lfu_log_factor: AtomicU64,
    /// Minutes after which a frequency loses one; 0: never.
    pub(crate) lfu_decay_minutes: AtomicU64,
    /// Bits of [`KeyspaceEvents`].
    pub(crate) keyspace_events: AtomicU64,
    /// Bytes of a backup that are written per second, at most; 0: no limit.
    pub(crate) backup_bytes_per_sec: AtomicU64,
    /// Microseconds from which a request is in the slow log: an `i64`, negative for none.
    pub(crate) slowlog_micros: AtomicU64,
    /// Most entries of the slow log.
    pub(crate) slowlog_len: AtomicU64,
    /// Milliseconds from which a request is a latency peak; 0 for none.
    pub(crate) latency_ms: AtomicU64,
    /// Most keys of the table of client-side caching; 0: no limit.
    pub(crate) tracked_keys: AtomicU64,
    /// Most entries of ACL LOG.
    pub(crate) acl_log_len: AtomicU64,
    /// 0 if new users and selectors have all channels (`acl-pubsub-default allchannels`), 1 if they have none.
    pub(crate) pubsub_default: AtomicU64,
    /// 1 if the times of commands are kept (`latency-tracking`).
    pub(crate) latency_tracking: AtomicU64,
    /// 1 if `protected-mode` is on.
    pub(crate) protected_mode: AtomicU64,
    /// Nanoseconds from which a request is in the slow log or a latency peak.
    slow_ns: AtomicU64,
    /// Values of parameters without effect that clients have set.
    pub(crate) kept: KeptValues,
    machine_bytes: u64,
}

/// Below this threshold of slow requests, the clock is read after each request.
const EXACT_NS: u64 = 1_000_000;

impl LiveSettings {
    pub(crate) fn new(clients_max: u64, options: &ServerOptions) -> LiveSettings {
        let settings = LiveSettings {
            clients_max: AtomicU64::new(clients_max),
            timeout_secs: AtomicU64::new(options.idle_secs),
            keepalive_secs: AtomicU64::new(300),
            bulk_bytes_max: AtomicU64::new(512 << 20),
            input_bytes_max: AtomicU64::new(1 << 30),
            busy_ms: AtomicU64::new(5000),
            output_normal: OutputLimit::new(1 << 30, 0, 0),
            output_replica: OutputLimit::new(256 << 20, 64 << 20, 60),
            output_pubsub: OutputLimit::new(32 << 20, 8 << 20, 60),
            clients_memory: AtomicU64::new(options.clients_memory.encode()),
            maxmemory: AtomicU64::new(0),
            maxmemory_policy: AtomicU64::new(NOEVICTION),
            maxmemory_samples: AtomicU64::new(5),
            lfu_log_factor: AtomicU64::new(10),
            lfu_decay_minutes: AtomicU64::new(1),
            keyspace_events: AtomicU64::new(options.keyspace_events.bits().into()),
            backup_bytes_per_sec: AtomicU64::new(0),
            slowlog_micros: AtomicU64::new(10_000),
            slowlog_len: AtomicU64::new(128),
            latency_ms: AtomicU64::new(0),
            tracked_keys: AtomicU64::new(1_000_000),
            acl_log_len: AtomicU64::new(128),
            pubsub_default: AtomicU64::new(1),
            latency_tracking: AtomicU64::new(1),
            protected_mode: AtomicU64::new(options.protected_mode.into()),
            slow_ns: AtomicU64::new(0),
            kept: KeptValues::default(),
            machine_bytes: machine_bytes(),
        };
        settings.note_slow_thresholds();
        settings
    }

    /// Updates what depends on the thresholds of slow requests, after a change.
    pub(crate) fn note_slow_thresholds(&self) {
        let micros = self.slowlog_micros.load(Ordering::Relaxed) as i64;
        let slow = u64::try_from(micros).map_or(u64::MAX, |micros| micros.saturating_mul(1000));
        let peak = match self.latency_ms.load(Ordering::Relaxed) {
            0 => u64::MAX,
            ms => ms.saturating_mul(1_000_000),
        };
        self.slow_ns.store(slow.min(peak), Ordering::Relaxed);
    }

    /// Nanoseconds from which a request is slow.
    #[inline]
    pub(crate) fn slow_ns(&self) -> u64 {
        self.slow_ns.load(Ordering::Relaxed)
    }

    /// Whether requests are slow so early that the clock must be read after each.
    #[inline]
    pub(crate) fn times_each(&self) -> bool {
        self.slow_ns() < EXACT_NS
    }

    /// Events that keyspace notifications tell of.
    #[inline]
    pub(crate) fn keyspace_events(&self) -> KeyspaceEvents {
        KeyspaceEvents::from_bits(self.keyspace_events.load(Ordering::Relaxed) as u32)
    }

    /// Which keys are evicted above `maxmemory`.
    #[inline]
    pub(crate) fn eviction_policy(&self) -> EvictionPolicy {
        EvictionPolicy::numbered(self.maxmemory_policy.load(Ordering::Relaxed))
    }

    /// Whether keyspace notifications are on.
    pub(crate) fn notifies(&self) -> bool {
        self.keyspace_events.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn limits(&self, is_authenticated: bool) -> RequestLimits {
        RequestLimits {
            bulk_bytes_max: size(&self.bulk_bytes_max),
            is_authenticated,
        }
    }

    /// Whether new users and selectors have all channels.
    pub(crate) fn has_all_channels(&self) -> bool {
        self.pubsub_default.load(Ordering::Relaxed) == 0
    }

    /// Memory that the process may use, in bytes.
    pub(crate) fn machine_bytes(&self) -> u64 {
        self.machine_bytes
    }

    /// Most bytes of memory that all connections may use together; `usize::MAX` means no limit.
    pub(crate) fn clients_bytes_max(&self) -> usize {
        let bytes = match ClientsMemory::decode(self.clients_memory.load(Ordering::Relaxed)) {
            ClientsMemory::Bytes(bytes) => bytes,
            ClientsMemory::Percent(percent) => self.machine_bytes / 100 * u64::from(percent),
        };
        match bytes {
            0 => usize::MAX,
            bytes => usize::try_from(bytes).unwrap_or(usize::MAX),
        }
    }

    /// The limits of the connections with, or without, subscriptions.
    pub(crate) fn output_limit(&self, is_subscribed: bool) -> &OutputLimit {
        match is_subscribed {
            true => &self.output_pubsub,
            false => &self.output_normal,
        }
    }
}

/// Reads a setting that is a number of bytes.
pub(crate) fn size(setting: &AtomicU64) -> usize {
    usize::try_from(setting.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_cpus_get_a_worker_up_to_four() {
        let workers = [1, 2, 3, 4, 7, 8, 64].map(default_workers);
        assert_eq!(workers, [1, 1, 1, 2, 3, 4, 4]);
        let options = ServerOptions {
            workers: 7,
            ..ServerOptions::default()
        };
        assert_eq!(options.workers(), 7);
    }
}
