//! The server: binds addresses, starts the threads, accepts connections and assigns them to workers.
//!
//! The thread that calls [`Server::run`] accepts. It assigns each connection to the worker with the fewest
//! connections, which then owns the connection.

use std::fmt;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farbank_store::{EvictionListener, Store, StoreHealth};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, SockRef, Socket, Type};

use super::assignment::assign_to_worker;
use super::executor::ServerParts;
use super::expiry_events;
use super::handshake_queue::{HandshakeQueue, WaitingSocket};
use super::long_requests;
use super::saves;
use super::tls_handshakes;
use super::unix_socket::{BoundSocket, as_stream};
use super::worker::{WAKE, Worker};
use super::worker_pool::{WorkerHandle, WorkerPool};
use crate::admin;
use crate::commands::memcached::credentials::MemcachedCredentials;
use crate::commands::memcached::state::MemcachedState;
use crate::commands::{config, function_load, start_users};
use crate::settings::{Endpoint, LiveSettings, ServerOptions, WireProtocol};
use crate::settings_error::SettingsError;
use crate::state::access_table::SharedAccessTable;
use crate::state::acl_log::AclLog;
use crate::state::clients::{ClientRegistry, PeerAddr};
use crate::state::functions::FunctionRegistry;
use crate::state::saves::Saves;
use crate::state::scripts::ScriptRegistry;
use crate::state::shared::{
    Durability, Interests, Programs, Security, ServerIdentity, ServerShared, ServerStats,
};
use crate::state::subscriptions::Subscriptions;
use crate::state::threads::ServerThreads;
use crate::state::tls::TlsState;
use crate::state::tracking::Tracking;
use crate::stats::counters::ServerCounters;
use crate::stats::process::MemoryWatch;
use crate::stats::process::unix_secs;
use crate::stats::slow_log::{LatencyLog, SlowLog};

/// Most connections that the kernel queues until the server accepts them.
const BACKLOG: i32 = 511;
/// File descriptors reserved for everything but client sockets.
const FILES_RESERVED: u64 = 64;
/// How often the server checks the store's health.
const HEALTH_EVERY: Duration = Duration::from_millis(500);
/// How long accepting pauses after the system refused a connection, for example for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A server that is bound to its addresses and does not serve yet.
pub struct Server {
    listeners: Vec<StdListener>,
    endpoints: Vec<Endpoint>,
    sockets: Vec<BoundSocket>,
    admin: Option<StdListener>,
    options: ServerOptions,
    credentials: Option<Arc<MemcachedCredentials>>,
    pool: Arc<WorkerPool>,
    accept_poll: Poll,
    handshake_poll: Poll,
    polls: Vec<Poll>,
}

/// Error of a server that cannot bind or listen.
#[derive(Debug)]
pub struct BindError {
    /// The address that failed; `None` if the error concerns no address.
    pub addr: Option<SocketAddr>,
    /// Path of the Unix socket, if that failed.
    pub socket: Option<PathBuf>,
    /// The system's error.
    pub source: io::Error,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.addr, &self.socket) {
            (Some(addr), _) => write!(f, "cannot listen on {addr}: {}", self.source),
            (None, Some(path)) => {
                write!(f, "cannot listen on {}: {}", path.display(), self.source)
            }
            (None, None) => write!(f, "cannot start a server: {}", self.source),
        }
    }
}

impl std::error::Error for BindError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl BindError {
    fn of(endpoint: &Endpoint, source: io::Error) -> BindError {
        BindError {
            addr: Some(endpoint.addr),
            socket: None,
            source,
        }
    }

    fn of_socket(path: &Path, source: io::Error) -> BindError {
        BindError {
            addr: None,
            socket: Some(path.into()),
            source,
        }
    }
}

/// Handle with which any thread stops a running server, or lets it read its auth file again.
#[derive(Clone)]
pub struct ServerHandle {
    pool: Arc<WorkerPool>,
    credentials: Option<Arc<MemcachedCredentials>>,
}

impl ServerHandle {
    /// Signals the server to stop: it stops accepting, finishes its batches and returns from [`Server::run`].
    pub fn stop(&self) {
        self.pool.stop();
    }

    /// Reads the file of [`ServerOptions::memcached_auth_file`] again. Clients that have authenticated before stay
    /// authenticated. Returns the number of names in the file; `None` if the server has no such file.
    ///
    /// # Errors
    /// [`SettingsError`] if the file cannot be read or is not valid. The names and passwords stay as they were.
    pub fn reload(&self) -> Result<Option<usize>, SettingsError> {
        let credentials = self.credentials.as_ref();
        credentials
            .map(|credentials| credentials.load())
            .transpose()
    }
}

impl Server {
    /// Binds every address of `endpoints`; port 0 selects a free port. No client can connect before
    /// [`Server::listen`].
    ///
    /// # Errors
    /// An address cannot be bound, or the system has no file descriptors left.
    pub fn bind(endpoints: &[Endpoint], options: ServerOptions) -> Result<Server, BindError> {
        let mut bound = Vec::new();
        let mut listeners = Vec::new();
        for endpoint in endpoints {
            let of = |source| BindError::of(endpoint, source);
            let listener = bind(endpoint.addr).map_err(of)?;
            bound.push(Endpoint {
                addr: listener.local_addr().map_err(of)?,
                ..*endpoint
            });
            listeners.push(listener);
        }
        let sockets = options.unix_sockets.iter().map(|socket| {
            BoundSocket::new(socket).map_err(|source| BindError::of_socket(&socket.path, source))
        });
        let sockets = sockets.collect::<Result<_, _>>()?;
        let admin = options.admin.map(|addr| {
            bind(addr).map_err(|source| BindError {
                addr: Some(addr),
                socket: None,
                source,
            })
        });
        let admin = admin.transpose()?;
        let of = |source| BindError {
            addr: None,
            socket: None,
            source,
        };
        Server::with(listeners, bound, sockets, admin, options).map_err(of)
    }

    fn with(
        listeners: Vec<StdListener>,
        endpoints: Vec<Endpoint>,
        sockets: Vec<BoundSocket>,
        admin: Option<StdListener>,
        options: ServerOptions,
    ) -> io::Result<Server> {
        let (mut polls, mut workers) = (Vec::new(), Vec::new());
        for _ in 0..options.workers() {
            let poll = Poll::new()?;
            workers.push(WorkerHandle::new(Waker::new(poll.registry(), WAKE)?));
            polls.push(poll);
        }
        let accept_poll = Poll::new()?;
        let accept_waker = Waker::new(accept_poll.registry(), WAKE)?;
        let handshake_poll = Poll::new()?;
        let handshakes = HandshakeQueue::new(Waker::new(handshake_poll.registry(), WAKE)?);
        let pool = Arc::new(WorkerPool::new(workers, accept_waker, handshakes));
        let auth_file = options.memcached_auth_file.clone();
        Ok(Server {
            listeners,
            endpoints,
            sockets,
            admin,
            credentials: auth_file.map(|file| Arc::new(MemcachedCredentials::new(file))),
            options,
            pool,
            accept_poll,
            handshake_poll,
            polls,
        })
    }

    /// Starts to listen: from now on clients can connect. [`Server::run`] will accept their connections.
    ///
    /// # Errors
    /// Another process has begun to listen on one of the addresses since it was bound.
    pub fn listen(&self) -> Result<(), BindError> {
        for (listener, endpoint) in self.listeners.iter().zip(&self.endpoints) {
            let listening = SockRef::from(listener).listen(BACKLOG);
            listening.map_err(|source| BindError::of(endpoint, source))?;
        }
        for socket in &self.sockets {
            let listening = socket.listen(BACKLOG);
            listening.map_err(|source| BindError::of_socket(socket.path(), source))?;
        }
        if let Some(admin) = &self.admin {
            let listening = SockRef::from(admin).listen(BACKLOG);
            listening.map_err(|source| BindError {
                addr: self.admin_addr(),
                socket: None,
                source,
            })?;
        }
        Ok(())
    }

    /// The addresses that this server is bound to, with their protocols, in the order given to [`Server::bind`].
    #[must_use]
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// The address of the admin port, if there is one.
    #[must_use]
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin.as_ref()?.local_addr().ok()
    }

    /// Returns a handle to this server.
    #[must_use]
    pub fn handle(&self) -> ServerHandle {
        ServerHandle {
            pool: Arc::clone(&self.pool),
            credentials: self.credentials.clone(),
        }
    }

    /// Serves `store` until [`ServerHandle::stop`] or a client's SHUTDOWN. All sessions are dropped when it returns, so
    /// the store can be closed. Calls [`Server::listen`] first.
    ///
    /// # Errors
    /// Listening, starting a thread or polling failed.
    pub fn run(self, store: &dyn Store) -> io::Result<()> {
        self.listen().map_err(|error| error.source)?;
        let pool = Arc::clone(&self.pool);
        store.on_evicted(Arc::clone(&self.pool) as Arc<dyn EvictionListener>);
        store.on_turn(Arc::new(move || pool.wake_ticket_waiters()));
        let protocols = self.endpoints.iter().map(|endpoint| endpoint.protocol);
        let mut protocols = protocols.chain(self.sockets.iter().map(BoundSocket::protocol));
        let spoken = protocols.any(|protocol| protocol == WireProtocol::Memcached);
        let pool = &*self.pool;
        let functions = FunctionRegistry::new(self.options.functions_file.clone());
        function_load::load_file(&functions, pool)
            .map_err(|problem| unusable(&functions, &problem))?;
        let settings = LiveSettings::new(clients_max(self.options.clients_max), &self.options);
        config::apply(&settings, &self.options.parameters);
        let users = start_users::registry(&settings, &self.options).map_err(io::Error::other)?;
        self.handle().reload().map_err(io::Error::other)?;
        let tls = TlsState::new(self.options.tls.clone()).map_err(io::Error::other)?;
        let has_tls = self.endpoints.iter().any(|endpoint| endpoint.tls);
        let subscriptions = Subscriptions::default();
        let queued_bytes = subscriptions.queued_bytes();
        let parts = ServerParts {
            shared: ServerShared {
                store,
                options: &self.options,
                settings,
                threads: pool,
                identity: ServerIdentity {
                    endpoints: self.endpoints,
                    started: Instant::now(),
                    run_id: run_id(),
                },
                clients: ClientRegistry::default(),
                security: Security {
                    users,
                    acl_log: AclLog::default(),
                    tls,
                },
                programs: Programs {
                    scripts: ScriptRegistry::default(),
                    functions,
                },
                interests: Interests {
                    tracking: Tracking::new(pool.workers.len(), queued_bytes),
                    subscriptions,
                },
                access: SharedAccessTable::default(),
                durability: Durability {
                    poisoned: OnceLock::new(),
                    saves: Saves::default(),
                    last_save_secs: AtomicU64::new(unix_secs()),
                },
                stats: ServerStats {
                    counters: ServerCounters::new(pool.workers.len()),
                    accepted: AtomicU64::new(0),
                    rejected: AtomicU64::new(0),
                    expired_at_reset: AtomicU64::new(0),
                    memory: MemoryWatch::start(),
                    slow_log: SlowLog::default(),
                    latency_log: LatencyLog::default(),
                },
            },
            memcached: MemcachedState::new(spoken, self.credentials),
            pool,
        };
        parts.shared.follow_eviction_policy();
        std::thread::scope(|scope| {
            let parts = &parts;
            let _none_without_all = ShutdownOnPanic(pool);
            let long = move || {
                let _all_or_none = ShutdownOnPanic(pool);
                long_requests::run(parts);
            };
            let long = spawn(scope, "long-requests", long)?;
            let expiry_events = move || {
                let _all_or_none = ShutdownOnPanic(pool);
                expiry_events::run(parts);
            };
            let expiry_events = spawn(scope, "expiry-events", expiry_events)?;
            let backups = spawn(scope, "backups", move || {
                let _all_or_none = ShutdownOnPanic(pool);
                saves::run(parts);
            })?;
            if has_tls {
                let poll = self.handshake_poll;
                spawn(scope, "tls-handshakes", move || {
                    let _all_or_none = ShutdownOnPanic(pool);
                    if let Err(error) = tls_handshakes::run(parts, poll) {
                        tracing::error!(%error, "cannot perform TLS handshakes");
                    }
                })?;
            }
            if let Some(listener) = &self.admin {
                spawn(scope, "admin", move || {
                    admin::run(&parts.shared, listener);
                })?;
            }
            // Freeing a large buffer would delay a worker (`buffers::pool`).
            let (freed, to_free) = mpsc::channel::<Vec<Vec<u8>>>();
            spawn(scope, "free-buffers", move || {
                to_free.into_iter().for_each(drop)
            })?;
            let mut workers = Vec::new();
            for (number, poll) in self.polls.into_iter().enumerate() {
                let freed = freed.clone();
                let worker = move || {
                    let _all_or_none = ShutdownOnPanic(pool);
                    Worker::new(parts, number, poll, freed).run()
                };
                workers.push(spawn(scope, &format!("worker-{number}"), worker)?);
            }
            drop(freed);
            let accepted = accept(parts, self.accept_poll, self.listeners, &self.sockets);
            pool.stop();
            for worker in workers {
                match worker.join() {
                    Ok(served) => served?,
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            for thread in [long, expiry_events, backups] {
                if let Err(panic) = thread.join() {
                    std::panic::resume_unwind(panic);
                }
            }
            accepted
        })
    }
}

/// The error of a start that cannot load the libraries of functions.
fn unusable(functions: &FunctionRegistry, problem: &SettingsError) -> io::Error {
    let file = functions.file().unwrap_or("".as_ref()).display();
    io::Error::other(format!(
        "cannot load the libraries of functions from {file}: {problem}. Move the file away to start without libraries"
    ))
}

/// Bytes of a thread's stack, enough for the nested values that a script encodes and decodes (`lua::json`). Only the
/// pages in use take memory.
const STACK_BYTES: usize = 16 << 20;

/// Starts a thread with a name.
fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    body: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    builder.stack_size(STACK_BYTES).spawn_scoped(scope, body)
}

/// Stops the whole server when dropped: if one thread ends, panics or cannot be started, its clients must not wait
/// forever.
struct ShutdownOnPanic<'a>(&'a WorkerPool);

impl Drop for ShutdownOnPanic<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

fn bind(addr: SocketAddr) -> io::Result<StdListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    Ok(socket.into())
}

/// Raises the process's limit of open files for `wanted` clients. Returns the number of clients that the resulting
/// limit allows, at most `wanted`.
fn clients_max(wanted: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let needed = wanted.saturating_add(FILES_RESERVED);
    if limit.current.is_none_or(|now| now >= needed) {
        return wanted;
    }
    let most = limit.maximum.map_or(needed, |maximum| maximum.min(needed));
    let raised = Rlimit {
        current: Some(most),
        maximum: limit.maximum,
    };
    let files = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => most,
        Err(_) => limit.current.unwrap_or(most),
    };
    let allowed = files.saturating_sub(FILES_RESERVED).max(1).min(wanted);
    if allowed < wanted {
        tracing::warn!(
            wanted,
            allowed,
            files,
            "maxclients is lowered to what the limit of open files (RLIMIT_NOFILE) allows"
        );
    }
    allowed
}

/// Returns 40 hexadecimal digits that differ from run to run.
fn run_id() -> String {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut state = since.as_nanos() as u64 ^ (u64::from(std::process::id()) << 32);
    let mut word = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ mixed >> 27
    };
    format!("{:016x}{:016x}{:08x}", word(), word(), word() as u32)
}

/// Accepts connections, and checks the store's health, until the server stops.
fn accept(
    parts: &ServerParts<'_>,
    mut poll: Poll,
    listeners: Vec<StdListener>,
    sockets: &[BoundSocket],
) -> io::Result<()> {
    let ServerParts { shared, pool, .. } = parts;
    let mut listeners: Vec<_> = listeners.into_iter().map(TcpListener::from_std).collect();
    for (number, listener) in listeners.iter_mut().enumerate() {
        poll.registry()
            .register(listener, Token(number), Interest::READABLE)?;
    }
    let mut local = Vec::with_capacity(sockets.len());
    for (number, socket) in sockets.iter().enumerate() {
        let mut listener = socket.listener()?;
        let token = Token(listeners.len() + number);
        poll.registry()
            .register(&mut listener, token, Interest::READABLE)?;
        let path = Arc::<str>::from(socket.path().to_string_lossy());
        let endpoint = Endpoint {
            protocol: socket.protocol(),
            ..Endpoint::resp(SocketAddr::from(([127, 0, 0, 1], 0)))
        };
        local.push((listener, path, endpoint));
    }
    let mut events = Events::with_capacity(16);
    let mut timeout = HEALTH_EVERY;
    let mut known = StoreHealth::default();
    while !pool.is_stopping() {
        match poll.poll(&mut events, Some(timeout)) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        }
        let mut paused = false;
        for (listener, endpoint) in listeners.iter().zip(&shared.identity.endpoints) {
            let accept = || {
                let (stream, addr) = listener.accept()?;
                Ok((stream, PeerAddr::Tcp(addr)))
            };
            paused |= !accept_all(parts, accept, *endpoint);
        }
        for (listener, path, endpoint) in &local {
            let accept = || {
                let (stream, _) = listener.accept()?;
                Ok((as_stream(stream), PeerAddr::Unix(Arc::clone(path))))
            };
            paused |= !accept_all(parts, accept, *endpoint);
        }
        timeout = if paused { PAUSE } else { HEALTH_EVERY };
        log_health(shared, &mut known);
    }
    // The log also gets what INFO may have shown since the last check.
    log_health(shared, &mut known);
    Ok(())
}

/// Logs changes of the store's health. If the medium has failed, records it, so that writes are refused.
fn log_health(shared: &ServerShared<'_>, known: &mut StoreHealth) {
    let health = shared.store.health();
    if health == *known {
        return;
    }
    if let Some(error) = health
        .growth_error
        .as_ref()
        .filter(|_| health.growth_error != known.growth_error)
    {
        tracing::warn!("the pool is full and could not grow: {error}");
    }
    if known.growth_error.is_some() && health.growth_error.is_none() {
        tracing::warn!("the pool can grow again");
    }
    if health.file != known.file {
        match &health.file {
            Some(file) => tracing::error!("{}", file.text),
            None => tracing::warn!("the pool's file is at its path again"),
        }
    }
    if let Some(poisoned) = &health.poisoned {
        shared.note_poisoned(poisoned);
    }
    *known = health;
}

/// Accepts all waiting connections. Returns `false` if the system could not accept one now.
fn accept_all(
    parts: &ServerParts<'_>,
    accept: impl Fn() -> io::Result<(TcpStream, PeerAddr)>,
    endpoint: Endpoint,
) -> bool {
    while !parts.pool.is_stopping() {
        match accept() {
            Ok((stream, peer)) => admit(parts, stream, peer, endpoint),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                ) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection; accepting pauses briefly");
                return false;
            }
        }
    }
    true
}

/// Admits a connection, or refuses it: because maxclients is reached, or because of protected mode. The reason is sent
/// only to clients without TLS.
fn admit(parts: &ServerParts<'_>, mut stream: TcpStream, peer: PeerAddr, endpoint: Endpoint) {
    let shared = &parts.shared;
    let most = shared.settings.clients_max.load(Ordering::Relaxed);
    let protocol = endpoint.protocol;
    let is_full = (shared.clients.count() + parts.pool.handshakes.len()) as u64 >= most;
    let needs_password = match protocol {
        WireProtocol::Memcached if parts.memcached.credentials().is_some() => true,
        _ => shared.security.users.default_needs_password(),
    };
    let is_protected = shared.settings.protected_mode.load(Ordering::Relaxed) != 0
        && !needs_password
        && !peer.is_on_loopback();
    if is_full || is_protected {
        shared.stats.rejected.fetch_add(1, Ordering::Relaxed);
        let reason = match is_full {
            true => protocol.too_many(),
            false => protocol.protected(),
        };
        if !endpoint.tls
            && let Err(error) = stream.write(reason)
        {
            tracing::debug!(%error, "cannot send the refusal to a client");
        }
        return;
    }
    if !endpoint.tls {
        return assign_to_worker(parts, stream, &peer, protocol, None);
    }
    let socket = WaitingSocket {
        stream,
        peer,
        protocol,
    };
    if !parts.pool.handshakes.add(socket) {
        shared.stats.rejected.fetch_add(1, Ordering::Relaxed);
    }
}
