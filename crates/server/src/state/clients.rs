//! The connections of a server, as all threads see them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use mio::net::TcpStream;

use super::pause::Pause;
use super::users::DEFAULT;
use crate::lock::lock;
use crate::settings::WireProtocol;

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

impl PeerAddr {
    /// Whether protected mode accepts the client, by Redis's definition.
    pub(crate) fn is_on_loopback(&self) -> bool {
        match self {
            PeerAddr::Tcp(addr) => addr.ip().is_loopback(),
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
    /// Its slot in its worker's table.
    pub(crate) slot: AtomicUsize,
    /// It has a subscription, or monitors: its output has the limits of the class `pubsub`.
    pub(crate) is_subscribed: AtomicBool,
    /// It monitors.
    pub(crate) is_monitor: AtomicBool,
    /// Numbers of its subscriptions to channels, patterns and shard channels.
    pub(crate) channels: AtomicUsize,
    pub(crate) patterns: AtomicUsize,
    pub(crate) shards: AtomicUsize,
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
    /// It has sent QUIT: it is closed once its replies are sent.
    pub(crate) has_quit: AtomicBool,
    /// CLIENT PAUSE holds its next request back.
    pub(crate) is_paused: AtomicBool,
    /// Its client-side caching: bits of [`tracking_flag`](super::tracking::tracking_flag).
    pub(crate) tracking: AtomicU8,
    /// The client that receives its invalidations; 0 if that is itself.
    pub(crate) redirect: AtomicU64,
    /// A value has arrived in part.
    pub(crate) reads_value: AtomicBool,
    pub(crate) labels: Mutex<ClientLabels>,
}

/// Names that a client has set (CLIENT SETNAME, CLIENT SETINFO), its last command and its user.
#[derive(Clone)]
pub(crate) struct ClientLabels {
    pub(crate) name: Vec<u8>,
    pub(crate) library: Vec<u8>,
    pub(crate) library_version: Vec<u8>,
    pub(crate) command: &'static str,
    /// Name of its user.
    pub(crate) user: Arc<[u8]>,
}

/// All connections by id.
#[derive(Default)]
pub(crate) struct ClientRegistry {
    clients: Mutex<BTreeMap<u64, Arc<ClientInfo>>>,
    next: AtomicU64,
    memory_bytes: AtomicUsize,
    /// CLIENT PAUSE.
    pub(crate) pause: Pause,
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
            slot: AtomicUsize::new(usize::MAX),
            is_subscribed: AtomicBool::new(false),
            is_monitor: AtomicBool::new(false),
            channels: AtomicUsize::new(0),
            patterns: AtomicUsize::new(0),
            shards: AtomicUsize::new(0),
            input_bytes: AtomicUsize::new(0),
            output_bytes: AtomicUsize::new(0),
            argument_bytes: AtomicUsize::new(0),
            queue_bytes: AtomicUsize::new(0),
            watch_bytes: AtomicUsize::new(0),
            counted_bytes: AtomicUsize::new(0),
            is_eviction_exempt: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            has_quit: AtomicBool::new(false),
            is_paused: AtomicBool::new(false),
            tracking: AtomicU8::new(0),
            redirect: AtomicU64::new(0),
            reads_value: AtomicBool::new(false),
            labels: Mutex::new(ClientLabels {
                name: Vec::new(),
                library: Vec::new(),
                library_version: Vec::new(),
                command: "NULL",
                user: DEFAULT.into(),
            }),
        });
        lock(&self.clients).insert(client_info.id, Arc::clone(&client_info));
        client_info
    }

    /// Removes a connection. Returns whether it was registered.
    pub(crate) fn remove(&self, id: u64) -> bool {
        lock(&self.clients).remove(&id).is_some()
    }

    /// The connection with this id, unless it is being closed or has sent QUIT.
    pub(crate) fn get(&self, id: u64) -> Option<Arc<ClientInfo>> {
        let client_info = lock(&self.clients).get(&id).cloned();
        client_info.filter(|found| {
            let ends = [&found.is_closing, &found.has_quit];
            !ends.iter().any(|flag| flag.load(Ordering::Relaxed))
        })
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
