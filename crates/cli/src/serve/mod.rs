//! `farbank serve`: opens a pool and serves it to clients.
//!
//! The command opens the pool, or creates it, and opens an [`AnyKv`] or an [`AnyCache`] on its medium. A [`Server`] serves
//! that store to Redis and memcached clients until a signal or a client's SHUTDOWN. Then the store is closed cleanly.
//! `memcached` and `redis_server` translate the command lines of memcached and redis-server into this one.

pub(crate) mod memcached;
pub(crate) mod redis_server;
mod signals;
mod sockets;

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::builder::{OsStringValueParser, RangedU64ValueParser, TypedValueParser};
use clap::{Args, value_parser};
use farbank_cache::{AnyCache, EvictionOrder, PAGE_BYTES};
use farbank_kv::{AnyKv, Config, READ_CACHE_BYTES_MAX};
use farbank_pm::media::{AnyMedium, Mapped, PendingPath, SyncPolicy};
use farbank_pm::pool::{CopiedPoolPolicy, PoolError};
use farbank_server::{
    BindError, ClientsMemory, ConfigFile, DefaultUser, Endpoint, KeyspaceEvents, LiveParameter,
    Password, ProtectedActions, Server, ServerOptions, TlsClients, TlsSettings, UserRules,
    WireProtocol, check_memcached_auth_file, check_tls, default_user,
};
use farbank_store::{OpenReport, Store, VALUE_BYTES_MAX};
use tracing::level_filters::LevelFilter;

use self::sockets::UnixSocketArgs;
use crate::common::choice::{described, one_of};
use crate::common::json_lines::{LogFormat, start_log};
use crate::common::place::{PoolPlace, StoreEngine, functions_file, not_opened, refused, warn};
use crate::common::{Failure, absolute, size};

const EXAMPLES: &str = "\
SIGTERM, SIGINT, SIGQUIT and SIGUSR1 stop the server: it closes the pool and exits with status 0. A second signal ends
the process at once. At SIGHUP the server reads the file of --memcached-auth-file again.

Examples:
  farbank serve
      a pool of 1 GiB in ./farbank.pool, for local Redis clients on port 6379 and local memcached clients on
      port 11211
  farbank serve --pool /mnt/pmem0/bank --size 64gb
      a pool on persistent memory; the server detects and prints the medium
  farbank serve --pool /var/lib/farbank/pool --max-size 100gb --sync everysec
      a pool in an ordinary file that grows as it fills, synced once a second
  farbank serve --engine mdb --pool /var/cache/farbank.pool --size 8gb
      a cache that evicts when it is full, and is warm after a kill
  farbank serve --admin 9121
      also a live page of figures at http://127.0.0.1:9121/, and /metrics for Prometheus
  farbank serve --config /etc/farbank.toml --port 7000
      options from a file, except the port
  farbank serve /etc/redis/redis.conf --pool /var/lib/farbank/pool
      options from a file in Redis's syntax; directives that do not exist here are warnings
  redis-cli -p 6379 set greeting hello
      stores a key";

/// Maximum number of worker threads.
const WORKERS_MAX: u64 = 256;
/// memcached's port.
const MEMCACHED_PORT: u16 = 11211;
/// Maximum idle timeout in seconds, as in Redis.
const IDLE_SECS_MAX: u64 = i32::MAX as u64;

/// A parser of users, which need not be UTF-8.
fn user_rules() -> impl TypedValueParser<Value = UserRules> {
    OsStringValueParser::new().try_map(|text| UserRules::parse(text.as_bytes()))
}

fn workers() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(..=WORKERS_MAX)
}

/// A TCP port, or `None` for `off`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct OptionalPort(Option<u16>);

impl FromStr for OptionalPort {
    type Err = String;

    fn from_str(text: &str) -> Result<OptionalPort, String> {
        if text == "off" {
            return Ok(OptionalPort(None));
        }
        let port = text.parse();
        let port = port.map_err(|_| "a port must be a number up to 65535, or off".to_owned())?;
        Ok(OptionalPort(Some(port)))
    }
}

/// Address of the admin port: `PORT` on loopback, or `IP:PORT`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct AdminAddr(SocketAddr);

impl FromStr for AdminAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<AdminAddr, String> {
        let on_loopback = text
            .parse()
            .map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let addr = on_loopback.or_else(|_| text.parse());
        addr.map(AdminAddr).map_err(|_| {
            "must be a port up to 65535, or an IP address and a port, as in 10.0.0.1:9121"
                .to_owned()
        })
    }
}

/// Serve a pool to Redis and memcached clients.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub(crate) struct ServeArgs {
    /// TOML file of options: keys are option names without dashes. Options on the command line override it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The redis.conf whose directives are among the options: CONFIG REWRITE writes it.
    #[arg(long, value_name = "FILE", hide = true)]
    redis_conf: Option<PathBuf>,
    /// Check the options, including those of --config, and exit.
    #[arg(long)]
    check_config: bool,
    /// Path of the pool: a file or a devdax device. A missing file is created. "none" keeps the pool in the memory of
    /// this process only.
    #[arg(long, value_name = "PATH", default_value = "./farbank.pool")]
    pool: PathBuf,
    #[command(flatten)]
    place: PoolPlace,
    /// Open a pool that is a copy of one that was in use. Acknowledged writes may be missing in the copy.
    #[arg(long)]
    accept_copy: bool,
    /// Size up to which the pool may grow; a cache grows before it evicts. Default: the pool does not grow. A new pool has
    /// this size at once if it is below 1gb and --size is not given.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    max_size: Option<u64>,
    /// DRAM for the read cache, which holds copies of small values that are read often; 0 disables it. Only for the
    /// engine kv.
    #[arg(long, value_name = "SIZE", default_value = "16mb", value_parser = size::parse)]
    read_cache: u64,
    /// Order in which a cache evicts items: lru (the least recently used first), or s3-fifo (items that are read again stay; a
    /// read takes no lock). Only for the engine mdb.
    #[arg(long, value_name = "ORDER", default_value = "lru",
          value_parser = one_of(&EvictionOrder::ALL, EvictionOrder::name))]
    cache_eviction: EvictionOrder,
    /// Bytes that are written between two checkpoints of the index, at least; 0 disables checkpoints. A start after a kill
    /// reads the latest checkpoint and what was written since. Only for the engine kv.
    #[arg(long, value_name = "SIZE", default_value = "32mb", value_parser = size::parse)]
    checkpoint_bytes: u64,
    /// Addresses to listen on. Any address other than loopback needs --requirepass, --aclfile or --unsafe-no-auth.
    #[arg(
        long,
        value_name = "IP",
        value_delimiter = ',',
        default_value = "127.0.0.1"
    )]
    bind: Vec<IpAddr>,
    /// Port for Redis clients; 0 selects a free port, off disables it.
    #[arg(long, value_name = "N|off", default_value = "6379")]
    port: OptionalPort,
    /// Port for Redis clients that use TLS; 0 selects a free port, off disables it. It needs --tls-cert-file.
    #[arg(long, value_name = "N|off", default_value = "off")]
    tls_port: OptionalPort,
    /// PEM file of the server's certificate, followed by those of its issuers.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "",
        hide_default_value = true
    )]
    tls_cert_file: String,
    /// PEM file of the certificate's private key, without a password. Default: the key is in the file of the certificate.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "",
        hide_default_value = true
    )]
    tls_key_file: String,
    /// PEM file of the authorities that sign the certificates of clients.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "",
        hide_default_value = true
    )]
    tls_ca_cert_file: String,
    /// TLS clients that must show a certificate, which an authority of --tls-ca-cert-file has signed.
    #[arg(long, default_value = "yes", value_parser = described(&TlsClients::ALL, TlsClients::name, TlsClients::summary))]
    tls_auth_clients: TlsClients,
    /// Versions of TLS, for example "TLSv1.3". Default: "TLSv1.2 TLSv1.3".
    #[arg(
        long,
        value_name = "VERSIONS",
        default_value = "",
        hide_default_value = true
    )]
    tls_protocols: String,
    /// Port for memcached clients; 0 selects a free port, off disables it. Default: 11211, or off if the user
    /// default has a password or is restricted and there is no --memcached-auth-file.
    #[arg(long, value_name = "N|off")]
    memcached_port: Option<OptionalPort>,
    /// Port for memcached clients that use TLS; 0 selects a free port, off disables it. It needs --tls-cert-file.
    #[arg(long, value_name = "N|off", default_value = "off")]
    memcached_tls_port: OptionalPort,
    /// Serve figures over HTTP at this port of 127.0.0.1, or at this address: a live page, /metrics for Prometheus,
    /// /healthz and /readyz. 9121 is usual; 0 selects a free port. It needs no password, changes nothing, and shows
    /// keys to clients on this machine only. Default: off.
    #[arg(long, value_name = "[IP:]PORT")]
    admin: Option<AdminAddr>,
    #[command(flatten)]
    sockets: UnixSocketArgs,
    /// Largest item that memcached clients may store, including key and header; at most 512mb. Default: 1mb, or what
    /// fits in a page of a small cache.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    memcached_item_size: Option<u64>,
    /// File of lines "name:password", one of which each memcached client must give, as memcached's --auth-file demands it. It
    /// does not encrypt connections. SIGHUP reads the file again.
    #[arg(long, value_name = "FILE")]
    memcached_auth_file: Option<PathBuf>,
    /// Refuse the memcached command flush_all.
    #[arg(long)]
    memcached_no_flush: bool,
    /// Disable cas for memcached clients: every cas unique is 0, and every cas command fails.
    #[arg(long)]
    memcached_no_cas: bool,
    /// Worker threads that serve clients, at most 256. 0 means one for every two CPUs, at most 4.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = workers())]
    workers: usize,
    /// Maximum number of connected clients, at least 1. The limit on open files of the process may lower it.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = value_parser!(u64).range(1..))]
    maxclients: u64,
    /// Memory that all clients together may use for input, queued requests, watched keys and unsent replies, in bytes
    /// or in percent of the memory available to the process; 0 means no limit. Above the limit, the clients that use
    /// most are disconnected.
    #[arg(long, value_name = "SIZE|N%", default_value = "25%", value_parser = size::parse_clients_memory)]
    maxmemory_clients: ClientsMemory,
    /// Events that keyspace notifications tell subscribers of: letters as in Redis, for example KEA; empty means none.
    #[arg(long, value_name = "CLASSES", default_value = "")]
    notify_keyspace_events: KeyspaceEvents,
    /// Set a parameter that CONFIG SET can change, for example slowlog-log-slower-than=1000. May be repeated; a table [set]
    /// in the file of --config.
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<LiveParameter>,
    /// Seconds after which an idle client is disconnected; 0 means never.
    #[arg(long, value_name = "SECS", default_value_t = 0, value_parser = value_parser!(u64).range(..=IDLE_SECS_MAX))]
    idle_timeout: u64,
    /// Password that Redis clients must give with AUTH or HELLO. Set it in the file of --config: other users of the
    /// machine can see command lines. It does not encrypt connections.
    #[arg(
        long,
        value_name = "PASSWORD",
        default_value = "",
        hide_default_value = true
    )]
    requirepass: OsString,
    /// Define a user: its name and its rules, as in ACL SETUSER, for example "reader on >secret ~cache:* +@read". May be
    /// repeated. Use the file of --config or --aclfile: other users of the machine can see command lines.
    #[arg(long, value_name = "NAME RULE ...", value_parser = user_rules())]
    user: Vec<UserRules>,
    /// File of users, one line "user NAME RULE ..." each. ACL LOAD reads it again, ACL SAVE writes it. Not together with
    /// --requirepass and --user.
    #[arg(long, value_name = "FILE")]
    aclfile: Option<PathBuf>,
    /// Listen without authentication on addresses other than loopback, or for memcached clients beside --requirepass:
    /// every client that can connect can read and change all data. --memcached-auth-file counts even so.
    #[arg(long, overrides_with = "protected_mode")]
    unsafe_no_auth: bool,
    /// Listen on addresses other than loopback without a password too. Clients of other machines are refused until
    /// the user `default` needs a password.
    #[arg(long, hide = true, overrides_with = "unsafe_no_auth")]
    protected_mode: bool,
    /// Clients that may change limits (CONFIG SET) and stop the server (SHUTDOWN). local: clients from 127.0.0.1, ::1
    /// and the Unix socket.
    #[arg(long, default_value = "local", value_parser = described(&ProtectedActions::ALL, ProtectedActions::name, ProtectedActions::summary))]
    enable_protected_configs: ProtectedActions,
    /// Clients that may use DEBUG, which test suites need and others do not. local: as above.
    #[arg(long, default_value = "no", value_parser = described(&ProtectedActions::ALL, ProtectedActions::name, ProtectedActions::summary))]
    enable_debug_command: ProtectedActions,
    /// Also print the lines that programs wait for which start redis-server.
    #[arg(long, hide = true)]
    redis_lines: bool,
    /// Log level on stderr: off, error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    log_level: LevelFilter,
    /// Format of the log and of all other lines that the server writes.
    #[arg(long, default_value = "text", value_parser = described(&LogFormat::ALL, LogFormat::name, LogFormat::summary))]
    log_format: LogFormat,
    /// What a client may do that does not authenticate; set by [`ServeArgs::check`].
    #[arg(skip = DefaultUser::Open)]
    default_user: DefaultUser,
}

impl ServeArgs {
    /// Serves until a signal or SHUTDOWN stops the server.
    pub(crate) fn run(mut self) -> Result<(), Failure> {
        self.check()?;
        if self.check_config {
            let from = self
                .config
                .as_deref()
                .map_or("the command line".into(), Path::to_string_lossy);
            println!("{from}: the options are valid");
            return Ok(());
        }
        start_log(self.log_level, self.log_format);
        let server = self.bind()?;
        // Before the pool is opened: from here on a signal stops the server instead of killing the process.
        let handle = server.handle();
        signals::handle(handle)?;
        let began = Instant::now();
        let (medium, origin) = self.medium(began)?;
        self.serve(medium, origin, server)
    }

    /// Checks the options before anything is opened or created.
    fn check(&mut self) -> Result<(), Failure> {
        self.default_user =
            default_user(&self.options()).map_err(|e| Failure::Usage(e.to_string()))?;
        if !self.unsafe_no_auth {
            self.check_exposure()?;
        }
        if let Some(file) = &self.memcached_auth_file {
            check_memcached_auth_file(file)
                .map_err(|e| Failure::Usage(format!("--memcached-auth-file {e}")))?;
        }
        check_tls(&self.options().tls).map_err(|e| Failure::Usage(e.to_string()))?;
        let tls_ports = [
            ("--tls-port", self.tls_port),
            ("--memcached-tls-port", self.memcached_tls_port),
        ];
        for (option, port) in tls_ports {
            if port.0.is_some() && self.tls_cert_file.is_empty() {
                return Err(Failure::Usage(format!("{option} needs --tls-cert-file")));
            }
        }
        let has_port = self.ports().iter().any(|(port, ..)| port.is_some());
        if !has_port && self.sockets.sockets().is_empty() {
            let text = "--port, --tls-port, --memcached-port and --memcached-tls-port are off and neither --unixsocket nor \
                        --memcached-unixsocket is given: no client could connect";
            return Err(Failure::Usage(text.into()));
        }
        let most = VALUE_BYTES_MAX as u64;
        if !(1024..=most).contains(&self.item_bytes_max()) {
            let text = "--memcached-item-size must be from 1kb to 512mb";
            return Err(Failure::Usage(text.into()));
        }
        if self.read_cache > READ_CACHE_BYTES_MAX {
            let text = "--read-cache must be at most 64gb";
            return Err(Failure::Usage(text.into()));
        }
        self.place.item_bytes = self.memcached_item_size.unwrap_or(0);
        self.place.default_bytes_max = self.max_size;
        self.place.check()?;
        if self.max_size.is_some_and(|max| max < self.place.size()) {
            return Err(Failure::Usage("--max-size is less than --size".into()));
        }
        self.place
            .check_most("--max-size", self.max_size.unwrap_or(0))?;
        if self.pool == Path::new("none") {
            self.place.check_in_memory()?;
        }
        self.place.find_engine(&self.pool);
        Ok(())
    }

    /// Checks that clients of other machines need a password, and memcached clients too if Redis clients do.
    fn check_exposure(&self) -> Result<(), Failure> {
        let is_open = self.default_user == DefaultUser::Open;
        if !is_open && self.is_memcached_open() {
            let text = "passwords and users do not protect the memcached port. Pass --memcached-auth-file, \
                        --memcached-port off, or --unsafe-no-auth to serve memcached clients without a password";
            return Err(Failure::Usage(text.into()));
        }
        match self.bind.iter().find(|ip| !ip.is_loopback()) {
            Some(open)
                if !self.protected_mode && (self.is_redis_open() || self.is_memcached_open()) =>
            {
                let memcached = match self.is_memcached_open() {
                    true => " (and --memcached-auth-file, or --memcached-port off)",
                    false => "",
                };
                Err(Failure::Usage(format!(
                    "other machines can reach {open}, and there is no password: every client that connects could \
                     read and change all data. Set a password with --requirepass, define users with \
                     --aclfile{memcached}, or pass --unsafe-no-auth to listen there anyway"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Whether a port is open to Redis clients that do not authenticate.
    fn is_redis_open(&self) -> bool {
        let is_served = self.port.0.is_some() || self.tls_port.0.is_some();
        is_served && self.default_user != DefaultUser::Closed
    }

    /// Whether a port is open to memcached clients that do not authenticate.
    fn is_memcached_open(&self) -> bool {
        let is_served = self.memcached_port().is_some() || self.memcached_tls_port.0.is_some();
        is_served && self.memcached_auth_file.is_none()
    }

    /// Returns the largest memcached item that `--memcached-item-size` allows, in bytes. The store may have a lower
    /// limit.
    fn item_bytes_max(&self) -> u64 {
        self.memcached_item_size.unwrap_or(PAGE_BYTES)
    }

    /// The port for memcached clients.
    fn memcached_port(&self) -> Option<u16> {
        match self.memcached_port {
            Some(port) => port.0,
            None => {
                let is_protected = self.memcached_auth_file.is_some();
                (is_protected || self.default_user == DefaultUser::Open).then_some(MEMCACHED_PORT)
            }
        }
    }

    /// The file beside the pool that keeps the libraries of FUNCTION LOAD. A pool in memory, and one on a device, has none.
    fn functions_file(&self, pool: &Path) -> Option<PathBuf> {
        if self.pool == Path::new("none") || pool.exists() && !pool.is_file() {
            return None;
        }
        Some(functions_file(pool))
    }

    /// The ports, with their protocols and whether they are for TLS.
    fn ports(&self) -> [(Option<u16>, WireProtocol, bool); 4] {
        [
            (self.port.0, WireProtocol::Resp, false),
            (self.tls_port.0, WireProtocol::Resp, true),
            (self.memcached_port(), WireProtocol::Memcached, false),
            (self.memcached_tls_port.0, WireProtocol::Memcached, true),
        ]
    }

    fn bind(&self) -> Result<Server, Failure> {
        let mut endpoints = Vec::new();
        for (port, protocol, tls) in self.ports() {
            let Some(port) = port else {
                continue;
            };
            endpoints.extend(self.bind.iter().map(|&ip| Endpoint {
                addr: SocketAddr::new(ip, port),
                protocol,
                tls,
            }));
        }
        Server::bind(&endpoints, self.options()).map_err(|error| not_bound(&error))
    }

    fn options(&self) -> ServerOptions {
        let pool = absolute(&self.pool);
        ServerOptions {
            workers: self.workers,
            clients_max: self.maxclients,
            sync: match self.place.sync() {
                SyncPolicy::Never => "no",
                other => other.name(),
            },
            functions_file: self.functions_file(&pool),
            pool: pool.display().to_string(),
            item_bytes_max: usize::try_from(self.item_bytes_max()).unwrap_or(usize::MAX),
            idle_secs: self.idle_timeout,
            flush_allowed: !self.memcached_no_flush,
            cas_enabled: !self.memcached_no_cas,
            protected_actions: self.enable_protected_configs,
            debug_command: self.enable_debug_command,
            password: Password::new(self.requirepass.as_bytes()),
            users: self.user.clone(),
            acl_file: self.aclfile.clone(),
            config_file: self
                .redis_conf
                .clone()
                .map(|path| self.config_file(path, &pool)),
            tls: TlsSettings {
                cert_file: self.tls_cert_file.clone(),
                key_file: self.tls_key_file.clone(),
                ca_cert_file: self.tls_ca_cert_file.clone(),
                clients: self.tls_auth_clients,
                protocols: self.tls_protocols.clone(),
            },
            protected_mode: !self.unsafe_no_auth,
            memcached_unprotected: self.unsafe_no_auth,
            memcached_auth_file: self.memcached_auth_file.clone(),
            unix_sockets: self.sockets.sockets(),
            admin: self.admin.map(|admin| admin.0),
            clients_memory: self.maxmemory_clients,
            keyspace_events: self.notify_keyspace_events,
            parameters: self.set.clone(),
            ..ServerOptions::default()
        }
    }

    /// What CONFIG REWRITE needs to write the file `path`. `pool`: the absolute path of the pool.
    fn config_file(&self, path: PathBuf, pool: &Path) -> ConfigFile {
        let pool = match self.pool == Path::new("none") {
            true => &self.pool,
            false => pool,
        };
        let default_bind = match self.redis_lines {
            true => redis_server::every_address(),
            false => vec![IpAddr::from(Ipv4Addr::LOCALHOST)],
        };
        ConfigFile {
            path,
            pool: pool.to_owned(),
            default_bind,
        }
    }

    /// Opens the pool's medium, or creates it.
    fn medium(&self, began: Instant) -> Result<(AnyMedium, PoolOrigin), Failure> {
        if self.pool == Path::new("none") {
            let medium = Mapped::anonymous(self.place.size()).map_err(Failure::failed)?;
            return Ok((AnyMedium::Mapped(medium), PoolOrigin::Made(None, began)));
        }
        if self.pool.exists() {
            return Ok((self.place.open(&self.pool)?, PoolOrigin::Found));
        }
        let (medium, name) = self.place.make(&self.pool)?;
        Ok((medium, PoolOrigin::Made(Some(name), began)))
    }

    /// Serves the store on `medium`, and closes it.
    fn serve(&self, medium: AnyMedium, origin: PoolOrigin, server: Server) -> Result<(), Failure> {
        let closed = match self.place.engine() {
            StoreEngine::Kv => {
                let store = self.open_kv(medium, origin.is_made())?;
                self.run_store(store.store(), origin, server)?;
                store.close()
            }
            StoreEngine::Mdb => {
                let store = self.open_cache(medium, origin.is_made())?;
                self.run_store(store.store(), origin, server)?;
                store.close()
            }
        };
        closed.map_err(Failure::failed)
    }

    fn open_kv(&self, medium: AnyMedium, made: bool) -> Result<AnyKv, Failure> {
        let config = Config {
            pool_bytes_max: self.max_size.unwrap_or(0),
            read_cache_bytes: self.read_cache,
            copies: self.copies(),
            checkpoint_bytes: self.checkpoint_bytes,
            ..Config::default()
        };
        let store = match made {
            true => AnyKv::create(medium, self.place.segment_bytes(), config),
            false => AnyKv::open(medium, config),
        };
        store.map_err(|error| {
            use farbank_kv::OpenError::Pool;
            let copy = matches!(error, Pool(PoolError::Copy { .. }));
            not_opened(&self.pool, error, copy)
        })
    }

    fn open_cache(&self, medium: AnyMedium, made: bool) -> Result<AnyCache, Failure> {
        let config = farbank_cache::Config {
            boot: boot_id(),
            pool_bytes_max: self.max_size.unwrap_or(0),
            copies: self.copies(),
            eviction: self.cache_eviction,
            ..farbank_cache::Config::default()
        };
        let store = match made {
            true => AnyCache::create(medium, self.place.segment_bytes(), config),
            false => AnyCache::open(medium, config),
        };
        store.map_err(|error| {
            use farbank_cache::OpenError::Pool;
            let copy = matches!(error, Pool(PoolError::Copy { .. }));
            not_opened(&self.pool, error, copy)
        })
    }

    fn copies(&self) -> CopiedPoolPolicy {
        match self.accept_copy {
            true => CopiedPoolPolicy::Accept,
            false => CopiedPoolPolicy::Refuse,
        }
    }

    fn run_store(
        &self,
        store: &dyn Store,
        origin: PoolOrigin,
        server: Server,
    ) -> Result<(), Failure> {
        let made = origin.complete()?;
        server.listen().map_err(|error| not_bound(&error))?;
        self.print_banner(&server, store, made);
        notify_systemd("READY=1");
        let served = server.run(store);
        notify_systemd("STOPPING=1");
        served.map_err(|e| Failure::failed(format!("the server stopped: {e}")))
    }

    /// Prints the addresses, the pool, what an acknowledged write survives, and how the store was opened.
    fn print_banner(&self, server: &Server, store: &dyn Store, made: Option<Duration>) {
        let (stats, caps, opened) = (store.stats(), store.caps(), store.opened());
        let mut addrs: Vec<_> = server
            .endpoints()
            .iter()
            .map(|endpoint| match endpoint.protocol {
                WireProtocol::Resp if endpoint.tls => format!("rediss://{}", endpoint.addr),
                WireProtocol::Resp => format!("redis://{}", endpoint.addr),
                WireProtocol::Memcached if endpoint.tls => {
                    format!("memcached+tls://{}", endpoint.addr)
                }
                WireProtocol::Memcached => format!("memcached://{}", endpoint.addr),
            })
            .collect();
        addrs.extend(self.sockets.names());
        announce!(
            "farbank {} listens on {}",
            env!("CARGO_PKG_VERSION"),
            addrs.join(" and ")
        );
        if let Some(addr) = server.admin_addr() {
            announce!("admin page at http://{addr}/, metrics at http://{addr}/metrics");
        }
        announce!(
            "pool {}: {} in segments of {}, medium {}{}",
            self.pool.display(),
            size::human(stats.pool.bytes),
            size::human(stats.pool.segment_bytes),
            caps.kind.name(),
            match caps.read_mode {
                "pread" => ", read by system calls",
                "direct" => ", read by system calls, bypassing the page cache for data not in it",
                _ => "",
            }
        );
        match self.place.engine() {
            StoreEngine::Kv => announce!("an acknowledged write survives {}", caps.survives),
            StoreEngine::Mdb => announce!(
                "a cache: it evicts when it is full and never returns an outdated value; items survive {}",
                caps.survives
            ),
        }
        announce!("{}", keys_line(opened, made));
        if self.redis_lines {
            announce!("serving as redis-server, PID: {}", std::process::id());
            announce!("Ready to accept connections");
        }
        warn(&self.pool, caps);
        self.place.reading.warn_if_unused(&self.pool, caps);
        if rustix::process::geteuid().is_root() {
            tracing::warn!(
                "running as root: a client that exploits a flaw in the server controls the whole machine; \
                 run the server as an unprivileged user"
            );
        }
        for line in &opened.damage {
            eprintln!("damage: {line}");
        }
        if self.unsafe_no_auth && (self.is_redis_open() || self.is_memcached_open()) {
            eprintln!(
                "warning: --unsafe-no-auth: every client that can connect can read and change all data"
            );
        }
    }
}

/// Whether the pool existed or is new.
enum PoolOrigin {
    /// The pool existed.
    Found,
    /// The pool is new. Holds the name that its file gets when it is complete, and the time when its creation began.
    Made(Option<PendingPath>, Instant),
}

impl PoolOrigin {
    fn is_made(&self) -> bool {
        matches!(self, PoolOrigin::Made(..))
    }

    /// Gives the file of a new, now complete pool its name. Returns how long the creation took, or `None` for an
    /// existing pool.
    fn complete(self) -> Result<Option<Duration>, Failure> {
        let PoolOrigin::Made(name, began) = self else {
            return Ok(None);
        };
        if let Some(name) = name {
            name.publish().map_err(|error| refused(&error))?;
        }
        Ok(Some(began.elapsed()))
    }
}

/// Builds the error for a server that cannot listen, with a hint.
fn not_bound(error: &BindError) -> Failure {
    let hint = match error.source.kind() {
        _ if error.socket.is_some() => {
            Some("a Unix socket must name a file that does not exist, in a folder that is writable")
        }
        ErrorKind::AddrInUse => Some(
            "another server is there; choose a different --port, --memcached-port or --admin, or off",
        ),
        ErrorKind::AddrNotAvailable => Some("--bind must name addresses of this machine"),
        ErrorKind::PermissionDenied => {
            Some("ports below 1024 need privileges; choose a higher --port")
        }
        _ => None,
    };
    Failure::Failed {
        error: error.to_string(),
        hint: hint.map(str::to_owned),
    }
}

/// Returns the kernel's boot id, which identifies this boot of the machine.
fn boot_id() -> Option<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits = text.trim().replace('-', "");
    Some(u128::from_str_radix(&digits, 16).ok()?.to_le_bytes())
}

fn keys_line(opened: &OpenReport, made: Option<Duration>) -> String {
    let OpenReport {
        clean,
        keys,
        keys_checkpointed,
        records_scanned,
        elapsed_ms,
        ..
    } = opened;
    match (made, clean) {
        (Some(took), _) => {
            format!("new and empty, ready in {:.1} ms", took.as_secs_f64() * 1e3)
        }
        (_, true) => format!("{keys} keys came back in {elapsed_ms:.1} ms, after a clean close"),
        (_, false) => format!(
            "{keys} keys came back in {elapsed_ms:.1} ms, after a crash: {keys_checkpointed} from a \
             checkpoint, {records_scanned} records read"
        ),
    }
}

/// Notifies systemd of a state change (`Type=notify`): sends one datagram to the socket in `NOTIFY_SOCKET`, if that
/// is set.
fn notify_systemd(what: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => UnixAddr::from_abstract_name(name),
        None => UnixAddr::from_pathname(&socket),
    };
    let told = address
        .and_then(|address| UnixDatagram::unbound()?.send_to_addr(what.as_bytes(), &address));
    if let Err(error) = told {
        tracing::warn!(%error, "cannot notify systemd: {what}");
    }
}
