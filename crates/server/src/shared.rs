//! What all threads of a server see: settings, figures, connections, and how to wake each other.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use farbank_kv::store::Store;
use mio::Waker;
use mio::net::TcpStream;

use crate::hotkeys::{self, HotKey, HotKeys};
use crate::long_requests::{LentConnection, LongRequests};
use crate::memcached::MemcachedState;
use crate::settings::{Endpoint, LiveSettings, ServerOptions, WireProtocol};

/// Locks even if a thread panicked while it held the lock: what is kept here is whole at all times.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a connection's replies may take however much memory other clients take, unless
/// client-output-buffer-limit is less.
const REPLY_BYTES_MIN: usize = 32 << 20;

/// What every thread sees.
pub(crate) struct ServerShared<'a> {
    pub(crate) store: &'a dyn Store,
    pub(crate) options: &'a ServerOptions,
    pub(crate) settings: LiveSettings,
    pub(crate) floor: Arc<WorkerPool>,
    pub(crate) clients: ClientRegistry,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) started: Instant,
    /// 40 hexadecimal digits that name this run of the server.
    pub(crate) run_id: String,
    /// Why the pool takes no more writes, once it does not.
    pub(crate) poisoned: OnceLock<String>,
    /// Connections accepted, and refused because there were too many.
    pub(crate) accepted: AtomicU64,
    pub(crate) rejected: AtomicU64,
    /// Totals at the last CONFIG RESETSTAT.
    pub(crate) reset: Mutex<CounterTotals>,
    /// What memcached's protocol remembers beside the store.
    pub(crate) memo: MemcachedState,
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

    /// Largest item of memcached's protocol: what was asked for, if the store keeps as much.
    pub(crate) fn item_bytes_max(&self) -> usize {
        let kept = self.store.item_bytes_max();
        self.options.item_bytes_max.min(kept)
    }

    /// Most bytes of replies that the connection of `card` may have unsent. A reply may take what
    /// maxmemory-clients leaves, and always [`REPLY_BYTES_MIN`] of it, so that a client is served while
    /// others, which are evicted next, take the memory.
    pub(crate) fn reply_bytes_max(&self, card: &ClientInfo) -> usize {
        let own = card.counted_bytes.load(Ordering::Relaxed);
        let others = self.clients.memory_bytes().saturating_sub(own);
        let left = self.settings.clients_bytes_max().saturating_sub(others);
        self.settings
            .output_bytes_max()
            .min(left.max(REPLY_BYTES_MIN))
    }

    /// Has the worker of the connection of `card` close it.
    pub(crate) fn kill(&self, card: &ClientInfo) {
        if let Some(desk) = self.floor.desks.get(card.worker) {
            self.clients.remove(card.id);
            desk.send(WorkerMsg::Kill(card.id));
        }
    }

    /// The first port where `protocol` is spoken.
    pub(crate) fn port(&self, protocol: WireProtocol) -> Option<u16> {
        let mut endpoints = self.endpoints.iter();
        let first = endpoints.find(|endpoint| endpoint.protocol == protocol);
        first.map(|endpoint| endpoint.addr.port())
    }

    /// The keys asked for most.
    pub(crate) fn hot_keys(&self) -> Vec<HotKey> {
        hotkeys::report(self.floor.figures().map(|figures| &figures.hot))
    }

    /// Totals over all threads since the start.
    pub(crate) fn totals(&self) -> CounterTotals {
        let mut sum = CounterTotals::default();
        for figures in self.floor.figures() {
            sum.add(&figures.tally());
        }
        sum
    }
}

/// The workers' desks, the long requests, and the signal that ends them. Outlives the server, so that the store may
/// still call what it was given.
pub(crate) struct WorkerPool {
    pub(crate) desks: Vec<WorkerHandle>,
    pub(crate) door: Waker,
    pub(crate) long: LongRequests,
    stopping: AtomicBool,
}

impl WorkerPool {
    pub(crate) fn new(desks: Vec<WorkerHandle>, door: Waker) -> WorkerPool {
        WorkerPool {
            desks,
            door,
            long: LongRequests::default(),
            stopping: AtomicBool::new(false),
        }
    }

    /// Asks everyone to end.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        wake(&self.door);
        self.long.wake();
        self.wake_workers();
    }

    /// Wakes every worker.
    pub(crate) fn wake_workers(&self) {
        for desk in &self.desks {
            wake(&desk.waker);
        }
    }

    /// What each thread that executes requests has done.
    fn figures(&self) -> impl Iterator<Item = &WorkerFigures> {
        let workers = self.desks.iter().map(|desk| &desk.figures);
        workers.chain([&self.long.figures])
    }

    /// Whether the server is to end.
    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Wakes the workers that wait for tickets.
    pub(crate) fn turned(&self) {
        for desk in &self.desks {
            // A swap on both sides: if it comes before the worker's, the worker's sees the ticket.
            if desk.waiting.swap(false, Ordering::AcqRel) {
                wake(&desk.waker);
            }
        }
    }
}

/// A worker that cannot be woken looks up by itself within its tick, so nothing is lost.
fn wake(waker: &Waker) {
    if let Err(error) = waker.wake() {
        tracing::warn!(%error, "a thread could not be woken");
    }
}

/// Something for a worker to do.
pub(crate) enum WorkerMsg {
    /// Serve this connection.
    Welcome(TcpStream, Arc<ClientInfo>),
    /// Close the connection of this number.
    Kill(u64),
    /// Go on with this connection, whose long request was executed.
    Back(LentConnection),
}

/// Where a worker is reached, and what it has done.
pub(crate) struct WorkerHandle {
    mail: Mutex<Vec<WorkerMsg>>,
    waker: Waker,
    /// Connections assigned to this worker.
    pub(crate) connections: AtomicUsize,
    waiting: AtomicBool,
    pub(crate) figures: WorkerFigures,
}

impl WorkerHandle {
    pub(crate) fn new(waker: Waker) -> WorkerHandle {
        WorkerHandle {
            mail: Mutex::default(),
            waker,
            connections: AtomicUsize::new(0),
            waiting: AtomicBool::new(false),
            figures: WorkerFigures::default(),
        }
    }

    /// Leaves mail and wakes the worker.
    pub(crate) fn send(&self, mail: WorkerMsg) {
        lock(&self.mail).push(mail);
        wake(&self.waker);
    }

    /// Takes the mail.
    pub(crate) fn drain_inbox(&self) -> Vec<WorkerMsg> {
        std::mem::take(&mut lock(&self.mail))
    }

    /// The worker is about to sleep until tickets turn: after this it must look at them once more.
    pub(crate) fn will_wait(&self) {
        self.waiting.swap(true, Ordering::AcqRel);
    }
}

/// What a thread that executes requests shows to the others.
#[derive(Default)]
pub(crate) struct WorkerFigures {
    /// The keys its connections ask for most.
    pub(crate) hot: HotKeys,
    counts: [AtomicU64; TALLIES],
}

impl WorkerFigures {
    /// Shows the thread's counts to the others.
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

/// What is counted.
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
    /// Connections closed because of client-output-buffer-limit, and because of maxmemory-clients.
    OutputLimits,
    Evictions,
    /// Requests that the thread of long requests executed.
    Long,
    /// From here on what memcached's clients do.
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
    /// Of the misses: items whose time had passed, items that were flushed.
    Expired,
    Flushed,
}

/// Counts of one worker, or of all.
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

    /// Counts since `earlier`.
    pub(crate) fn since(&self, earlier: &CounterTotals) -> CounterTotals {
        let mut difference = *self;
        for (mine, theirs) in difference.0.iter_mut().zip(earlier.0) {
            *mine = mine.saturating_sub(theirs);
        }
        difference
    }
}

/// Where a connection comes from.
pub(crate) enum PeerAddr {
    Tcp(SocketAddr),
    /// The path of the Unix socket.
    Unix(Arc<str>),
}

impl PeerAddr {
    /// Whether it is of this machine, as Redis sees it.
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

/// What others may know of a connection: CLIENT LIST reads it.
pub(crate) struct ClientInfo {
    pub(crate) id: u64,
    pub(crate) addr: String,
    pub(crate) laddr: String,
    /// It comes from this machine.
    pub(crate) is_local: bool,
    /// It came by the Unix socket.
    pub(crate) is_unix: bool,
    pub(crate) fd: i32,
    pub(crate) worker: usize,
    pub(crate) protocol: WireProtocol,
    /// When it came, in milliseconds of the server's clock.
    pub(crate) born_ms: u64,
    /// When it last sent something.
    pub(crate) active_ms: AtomicU64,
    pub(crate) db: AtomicU8,
    pub(crate) resp: AtomicU8,
    /// Requests queued by MULTI; -1 without one.
    pub(crate) multi: AtomicI32,
    pub(crate) watching: AtomicUsize,
    pub(crate) input_bytes: AtomicUsize,
    pub(crate) output_bytes: AtomicUsize,
    /// What reading its requests takes besides the input.
    pub(crate) argument_bytes: AtomicUsize,
    /// What requests queued by MULTI take.
    pub(crate) queue_bytes: AtomicUsize,
    pub(crate) watch_bytes: AtomicUsize,
    /// Memory of it that is part of [`Clients::memory_bytes`].
    pub(crate) counted_bytes: AtomicUsize,
    /// Never closed because clients take too much memory (CLIENT NO-EVICT).
    pub(crate) spared: AtomicBool,
    /// Is being closed: its memory counts no more.
    pub(crate) doomed: AtomicBool,
    /// Part of a value has arrived, the rest has not.
    pub(crate) reads_value: AtomicBool,
    pub(crate) labels: Mutex<ClientLabels>,
}

/// What a client calls itself, and what it last asked.
#[derive(Clone, Default)]
pub(crate) struct ClientLabels {
    pub(crate) name: Vec<u8>,
    pub(crate) library: Vec<u8>,
    pub(crate) library_version: Vec<u8>,
    pub(crate) command: &'static str,
}

/// All connections by number.
#[derive(Default)]
pub(crate) struct ClientRegistry {
    cards: Mutex<BTreeMap<u64, Arc<ClientInfo>>>,
    next: AtomicU64,
    memory_bytes: AtomicUsize,
}

impl ClientRegistry {
    /// Memory that all connections take together, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory_bytes.load(Ordering::Relaxed)
    }

    /// Counts `bytes` for a connection, in place of what was counted for it. By its worker only.
    pub(crate) fn count_memory(&self, card: &ClientInfo, bytes: usize) {
        if card.doomed.load(Ordering::Relaxed) {
            return;
        }
        let before = card.counted_bytes.swap(bytes, Ordering::Relaxed);
        // Wrapping: what is added is the difference.
        let added = bytes.wrapping_sub(before);
        self.memory_bytes.fetch_add(added, Ordering::Relaxed);
    }

    /// Marks a connection as being closed, and counts nothing for it from now on. Whether it was not yet.
    pub(crate) fn doom(&self, card: &ClientInfo) -> bool {
        let first = !card.doomed.swap(true, Ordering::Relaxed);
        let before = card.counted_bytes.swap(0, Ordering::Relaxed);
        self.memory_bytes.fetch_sub(before, Ordering::Relaxed);
        first
    }

    /// Registers a connection.
    pub(crate) fn welcome(
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
        let card = Arc::new(ClientInfo {
            id: self.next.fetch_add(1, Ordering::Relaxed) + 1,
            addr: peer.to_string(),
            laddr: laddr.unwrap_or_default(),
            is_local: peer.is_local(),
            is_unix: matches!(peer, PeerAddr::Unix(_)),
            fd: stream.as_raw_fd(),
            worker,
            protocol,
            born_ms: now_ms,
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
            spared: AtomicBool::new(false),
            doomed: AtomicBool::new(false),
            reads_value: AtomicBool::new(false),
            labels: Mutex::new(ClientLabels {
                command: "NULL",
                ..ClientLabels::default()
            }),
        });
        lock(&self.cards).insert(card.id, Arc::clone(&card));
        card
    }

    /// Strikes a connection off; whether it was there.
    pub(crate) fn remove(&self, id: u64) -> bool {
        lock(&self.cards).remove(&id).is_some()
    }

    /// All cards, oldest connection first.
    pub(crate) fn all(&self) -> Vec<Arc<ClientInfo>> {
        lock(&self.cards).values().cloned().collect()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        lock(&self.cards).len()
    }
}
