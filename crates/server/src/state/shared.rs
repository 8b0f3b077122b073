//! State that all threads of a server share: settings, counters, connections, and the means to wake each other.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use farbank_store::Store;
use mio::Waker;
use mio::net::TcpStream;

use crate::commands::memcached::MemcachedState;
use crate::net::long_requests::{LentConnection, LongRequests};
use crate::settings::{Endpoint, LiveSettings, ServerOptions, WireProtocol};
use crate::stats::hot_keys::{self, HotKey, HotKeys};

/// Locks `mutex` even if a thread panicked while it held the lock: no holder leaves the data inconsistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes that a connection's replies may always use, however much memory other clients use, unless
/// client-output-buffer-limit is lower.
const REPLY_BYTES_MIN: usize = 32 << 20;

/// State that all threads of a server share.
pub(crate) struct ServerShared<'a> {
    pub(crate) store: &'a dyn Store,
    pub(crate) options: &'a ServerOptions,
    pub(crate) settings: LiveSettings,
    pub(crate) worker_pool: Arc<WorkerPool>,
    pub(crate) clients: ClientRegistry,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) started: Instant,
    /// 40 hexadecimal digits that identify this run of the server.
    pub(crate) run_id: String,
    /// Why the pool accepts no more writes; set once the medium has failed.
    pub(crate) poisoned: OnceLock<String>,
    /// Connections accepted since the start or the last CONFIG RESETSTAT.
    pub(crate) accepted: AtomicU64,
    /// Connections refused because of maxclients since the start or the last CONFIG RESETSTAT.
    pub(crate) rejected: AtomicU64,
    /// Counter totals at the last CONFIG RESETSTAT.
    pub(crate) reset: Mutex<CounterTotals>,
    /// State of memcached's protocol that is not in the store.
    pub(crate) memcached: MemcachedState,
}

impl ServerShared<'_> {
    /// Seconds since the server started.
    pub(crate) fn uptime_secs(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    /// Milliseconds since the server started.
    pub(crate) fn clock_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
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
            .output_bytes_max()
            .min(left.max(REPLY_BYTES_MIN))
    }

    /// Unregisters a client, and sends its worker a message to close the connection.
    pub(crate) fn kill(&self, client_info: &ClientInfo) {
        if let Some(worker) = self.worker_pool.workers.get(client_info.worker) {
            self.clients.remove(client_info.id);
            worker.send(WorkerMsg::Kill(client_info.id));
        }
    }

    /// The port of the first endpoint with `protocol`.
    pub(crate) fn port(&self, protocol: WireProtocol) -> Option<u16> {
        let mut endpoints = self.endpoints.iter();
        let first = endpoints.find(|endpoint| endpoint.protocol == protocol);
        first.map(|endpoint| endpoint.addr.port())
    }

    /// The most requested keys.
    pub(crate) fn hot_keys(&self) -> Vec<HotKey> {
        hot_keys::report(self.worker_pool.figures().map(|figures| &figures.hot))
    }

    /// Counter totals over all threads since the start.
    pub(crate) fn totals(&self) -> CounterTotals {
        let mut sum = CounterTotals::default();
        for figures in self.worker_pool.figures() {
            sum.add(&figures.tally());
        }
        sum
    }
}

/// Handles of all workers, the queue of long requests, and the stop signal. Outlives the server, because the store
/// keeps a callback to it.
pub(crate) struct WorkerPool {
    pub(crate) workers: Vec<WorkerHandle>,
    pub(crate) accept_waker: Waker,
    pub(crate) long: LongRequests,
    stopping: AtomicBool,
}

impl WorkerPool {
    pub(crate) fn new(workers: Vec<WorkerHandle>, door: Waker) -> WorkerPool {
        WorkerPool {
            workers,
            accept_waker: door,
            long: LongRequests::default(),
            stopping: AtomicBool::new(false),
        }
    }

    /// Signals all threads to end, and wakes them.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        wake(&self.accept_waker);
        self.long.wake();
        self.wake_workers();
    }

    /// Wakes every worker.
    pub(crate) fn wake_workers(&self) {
        for worker in &self.workers {
            wake(&worker.waker);
        }
    }

    /// The published counters of each thread that executes requests.
    fn figures(&self) -> impl Iterator<Item = &WorkerFigures> {
        let workers = self.workers.iter().map(|worker| &worker.figures);
        workers.chain([&self.long.figures])
    }

    /// Whether the server is stopping.
    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Wakes the workers that wait for tickets. The store calls it when tickets have become durable.
    pub(crate) fn wake_ticket_waiters(&self) {
        for worker in &self.workers {
            // Both sides swap: if this swap precedes the worker's, the worker's check after it sees the ticket.
            if worker.waiting.swap(false, Ordering::AcqRel) {
                wake(&worker.waker);
            }
        }
    }
}

/// Wakes a thread. A failure loses nothing: a worker also wakes at its next tick.
fn wake(waker: &Waker) {
    if let Err(error) = waker.wake() {
        tracing::warn!(%error, "cannot wake a thread");
    }
}

/// A message to a worker.
pub(crate) enum WorkerMsg {
    /// Serve this connection.
    Accept(TcpStream, Arc<ClientInfo>),
    /// Close the connection with this id.
    Kill(u64),
    /// Resume this connection: its long request was executed.
    ReturnLent(LentConnection),
}

/// A worker's inbox, waker and published counters.
pub(crate) struct WorkerHandle {
    inbox: Mutex<Vec<WorkerMsg>>,
    waker: Waker,
    /// Connections assigned to this worker.
    pub(crate) connections: AtomicUsize,
    waiting: AtomicBool,
    pub(crate) figures: WorkerFigures,
}

impl WorkerHandle {
    pub(crate) fn new(waker: Waker) -> WorkerHandle {
        WorkerHandle {
            inbox: Mutex::default(),
            waker,
            connections: AtomicUsize::new(0),
            waiting: AtomicBool::new(false),
            figures: WorkerFigures::default(),
        }
    }

    /// Sends a message and wakes the worker.
    pub(crate) fn send(&self, message: WorkerMsg) {
        lock(&self.inbox).push(message);
        wake(&self.waker);
    }

    /// Takes all messages.
    pub(crate) fn drain_inbox(&self) -> Vec<WorkerMsg> {
        std::mem::take(&mut lock(&self.inbox))
    }

    /// Announces that the worker will sleep until tickets become durable. The worker must check them once more after
    /// this call.
    pub(crate) fn will_wait(&self) {
        self.waiting.swap(true, Ordering::AcqRel);
    }
}

/// Counters and hot keys that a thread publishes to other threads.
#[derive(Default)]
pub(crate) struct WorkerFigures {
    /// The keys that its connections request most.
    pub(crate) hot: HotKeys,
    counts: [AtomicU64; TALLIES],
}

impl WorkerFigures {
    /// Publishes the thread's counters.
    pub(crate) fn publish(&self, tally: &CounterTotals) {
        for (figure, value) in self.counts.iter().zip(tally.0) {
            figure.store(value, Ordering::Relaxed);
        }
    }

    fn tally(&self) -> CounterTotals {
        let mut tally = CounterTotals::default();
        for (value, figure) in tally.0.iter_mut().zip(&self.counts) {
            *value = figure.load(Ordering::Relaxed);
        }
        tally
    }
}

const TALLIES: usize = Counter::Flushed as usize + 1;

/// A counter of [`CounterTotals`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counter {
    Commands,
    Hits,
    Misses,
    BytesIn,
    BytesOut,
    Reads,
    Writes,
    Errors,
    Batches,
    IdleKicks,
    /// Connections closed because of client-output-buffer-limit.
    OutputLimits,
    /// Connections closed because of maxmemory-clients.
    Evictions,
    /// Requests that the thread of long requests executed.
    Long,
    // The counters below are of memcached clients only.
    Sets,
    Stored,
    TooLarge,
    NoMemory,
    CasHits,
    CasMisses,
    CasBad,
    TouchHits,
    TouchMisses,
    DeleteHits,
    DeleteMisses,
    IncrHits,
    IncrMisses,
    DecrHits,
    DecrMisses,
    Metas,
    Flushes,
    /// Misses of items that had expired.
    Expired,
    /// Misses of items that `flush_all` had removed.
    Flushed,
}

/// Counters of one thread, or their sums over all threads.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct CounterTotals([u64; TALLIES]);

impl CounterTotals {
    #[inline]
    pub(crate) fn count(&mut self, what: Counter, by: usize) {
        self.0[what as usize] += by as u64;
    }

    pub(crate) fn get(&self, what: Counter) -> u64 {
        self.0[what as usize]
    }

    fn add(&mut self, other: &CounterTotals) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// Returns the counts since `earlier`.
    pub(crate) fn since(&self, earlier: &CounterTotals) -> CounterTotals {
        let mut difference = *self;
        for (mine, theirs) in difference.0.iter_mut().zip(earlier.0) {
            *mine = mine.saturating_sub(theirs);
        }
        difference
    }
}

/// Address of a connection's client.
pub(crate) enum PeerAddr {
    Tcp(SocketAddr),
    /// The path of the Unix socket.
    Unix(Arc<str>),
}

impl PeerAddr {
    /// Whether the client is on this machine, by Redis's definition.
    fn is_local(&self) -> bool {
        match self {
            PeerAddr::Tcp(addr) => {
                addr.ip() == IpAddr::from(Ipv4Addr::LOCALHOST)
                    || addr.ip() == IpAddr::from(Ipv6Addr::LOCALHOST)
            }
            PeerAddr::Unix(_) => true,
        }
    }
}

impl fmt::Display for PeerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerAddr::Tcp(addr) => addr.fmt(f),
            PeerAddr::Unix(path) => write!(f, "{path}:0"),
        }
    }
}

/// State of a connection that other threads may read, for example for CLIENT LIST.
pub(crate) struct ClientInfo {
    pub(crate) id: u64,
    pub(crate) addr: String,
    pub(crate) laddr: String,
    /// The client is on this machine.
    pub(crate) is_local: bool,
    /// The client connected to the Unix socket.
    pub(crate) is_unix: bool,
    pub(crate) fd: i32,
    pub(crate) worker: usize,
    pub(crate) protocol: WireProtocol,
    /// When it connected, in milliseconds of the server's clock.
    pub(crate) connected_ms: u64,
    /// When it last sent input, in milliseconds of the server's clock.
    pub(crate) active_ms: AtomicU64,
    pub(crate) db: AtomicU8,
    pub(crate) resp: AtomicU8,
    /// Requests queued by MULTI; -1 outside a transaction.
    pub(crate) multi: AtomicI32,
    pub(crate) watching: AtomicUsize,
    pub(crate) input_bytes: AtomicUsize,
    pub(crate) output_bytes: AtomicUsize,
    /// Bytes that parsing its requests takes besides the input.
    pub(crate) argument_bytes: AtomicUsize,
    /// Bytes of requests queued by MULTI.
    pub(crate) queue_bytes: AtomicUsize,
    pub(crate) watch_bytes: AtomicUsize,
    /// Its part of [`ClientRegistry::memory_bytes`].
    pub(crate) counted_bytes: AtomicUsize,
    /// Exempt from maxmemory-clients (CLIENT NO-EVICT).
    pub(crate) is_eviction_exempt: AtomicBool,
    /// Is being closed: its memory is no longer counted.
    pub(crate) is_closing: AtomicBool,
    /// A value has arrived in part.
    pub(crate) reads_value: AtomicBool,
    pub(crate) labels: Mutex<ClientLabels>,
}

/// Names that a client has set (CLIENT SETNAME, CLIENT SETINFO), and its last command.
#[derive(Clone, Default)]
pub(crate) struct ClientLabels {
    pub(crate) name: Vec<u8>,
    pub(crate) library: Vec<u8>,
    pub(crate) library_version: Vec<u8>,
    pub(crate) command: &'static str,
}

/// All connections by id.
#[derive(Default)]
pub(crate) struct ClientRegistry {
    clients: Mutex<BTreeMap<u64, Arc<ClientInfo>>>,
    next: AtomicU64,
    memory_bytes: AtomicUsize,
}

impl ClientRegistry {
    /// Bytes of memory that all connections use together.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory_bytes.load(Ordering::Relaxed)
    }

    /// Sets the memory counted for a connection to `bytes`. Only its worker may call this.
    pub(crate) fn count_memory(&self, client_info: &ClientInfo, bytes: usize) {
        if client_info.is_closing.load(Ordering::Relaxed) {
            return;
        }
        let before = client_info.counted_bytes.swap(bytes, Ordering::Relaxed);
        // The difference may be negative; both operations wrap.
        let added = bytes.wrapping_sub(before);
        self.memory_bytes.fetch_add(added, Ordering::Relaxed);
    }

    /// Marks a connection as being closed, and counts no memory for it from now on. Returns whether it was unmarked.
    pub(crate) fn mark_closing(&self, client_info: &ClientInfo) -> bool {
        let first = !client_info.is_closing.swap(true, Ordering::Relaxed);
        let before = client_info.counted_bytes.swap(0, Ordering::Relaxed);
        self.memory_bytes.fetch_sub(before, Ordering::Relaxed);
        first
    }

    /// Registers a connection.
    pub(crate) fn register(
        &self,
        stream: &TcpStream,
        peer: &PeerAddr,
        protocol: WireProtocol,
        worker: usize,
        now_ms: u64,
    ) -> Arc<ClientInfo> {
        use std::os::fd::AsRawFd;
        let laddr = match peer {
            PeerAddr::Tcp(_) => stream.local_addr().map(|a| a.to_string()).ok(),
            PeerAddr::Unix(_) => Some(peer.to_string()),
        };
        let client_info = Arc::new(ClientInfo {
            id: self.next.fetch_add(1, Ordering::Relaxed) + 1,
            addr: peer.to_string(),
            laddr: laddr.unwrap_or_default(),
            is_local: peer.is_local(),
            is_unix: matches!(peer, PeerAddr::Unix(_)),
            fd: stream.as_raw_fd(),
            worker,
            protocol,
            connected_ms: now_ms,
            active_ms: AtomicU64::new(now_ms),
            db: AtomicU8::new(0),
            resp: AtomicU8::new(2),
            multi: AtomicI32::new(-1),
            watching: AtomicUsize::new(0),
            input_bytes: AtomicUsize::new(0),
            output_bytes: AtomicUsize::new(0),
            argument_bytes: AtomicUsize::new(0),
            queue_bytes: AtomicUsize::new(0),
            watch_bytes: AtomicUsize::new(0),
            counted_bytes: AtomicUsize::new(0),
            is_eviction_exempt: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            reads_value: AtomicBool::new(false),
            labels: Mutex::new(ClientLabels {
                command: "NULL",
                ..ClientLabels::default()
            }),
        });
        lock(&self.clients).insert(client_info.id, Arc::clone(&client_info));
        client_info
    }

    /// Removes a connection. Returns whether it was registered.
    pub(crate) fn remove(&self, id: u64) -> bool {
        lock(&self.clients).remove(&id).is_some()
    }

    /// All connections, oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<ClientInfo>> {
        lock(&self.clients).values().cloned().collect()
    }

    /// Number of connections.
    pub(crate) fn count(&self) -> usize {
        lock(&self.clients).len()
    }
}
