//! What a server is told at its start ([`Options`]) and what may change while it runs (`Settings`,
//! through CONFIG SET).

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::resp::Limits;
use crate::unix_socket::UnixSocket;

/// What is spoken at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// Redis's, in its second and third version and inline.
    Resp,
    /// memcached's text protocol with its meta commands.
    Memcached,
}

impl Protocol {
    /// What a client is told that is one too many.
    pub(crate) fn too_many(self) -> &'static [u8] {
        match self {
            Protocol::Resp => b"-ERR max number of clients reached\r\n",
            Protocol::Memcached => b"ERROR Too many open connections\r\n",
        }
    }
}

/// An address to listen on, and what is spoken there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// The address.
    pub addr: SocketAddr,
    /// The protocol.
    pub protocol: Protocol,
}

impl Endpoint {
    /// For Redis clients.
    #[must_use]
    pub fn resp(addr: SocketAddr) -> Endpoint {
        let protocol = Protocol::Resp;
        Endpoint { addr, protocol }
    }

    /// For memcached clients.
    #[must_use]
    pub fn memcached(addr: SocketAddr) -> Endpoint {
        let protocol = Protocol::Memcached;
        Endpoint { addr, protocol }
    }
}

/// Who may change limits with CONFIG SET, and end the server with SHUTDOWN: Redis's
/// `enable-protected-configs`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ProtectedActions {
    /// No client.
    No,
    /// Every client.
    Yes,
    /// Clients from 127.0.0.1 and ::1, and of the Unix socket.
    #[default]
    Local,
}

impl ProtectedActions {
    /// The value, as CONFIG GET says it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ProtectedActions::No => "no",
            ProtectedActions::Yes => "yes",
            ProtectedActions::Local => "local",
        }
    }

    /// Whether a client may, given whether it is local.
    pub(crate) fn allows(self, local: bool) -> bool {
        match self {
            ProtectedActions::No => false,
            ProtectedActions::Yes => true,
            ProtectedActions::Local => local,
        }
    }
}

/// What a server is told at its start.
#[derive(Clone, Debug)]
pub struct Options {
    /// Threads that serve connections; 0 is as many as there are CPUs, at most 4.
    pub workers: usize,
    /// Most connections at a time. Lowered if the process may not have as many files open.
    pub clients_max: u64,
    /// When an acknowledged write is durable, as `CONFIG GET appendfsync` says it.
    pub sync: &'static str,
    /// Where the pool is, for INFO and CONFIG GET.
    pub pool: String,
    /// Largest item of memcached's protocol, key and header included.
    pub item_bytes_max: usize,
    /// Seconds after which an idle connection is closed; 0 is never.
    pub idle_secs: u64,
    /// Whether memcached's clients may `flush_all`.
    pub flush_allowed: bool,
    /// Whether memcached's items have `cas` numbers.
    pub cas_enabled: bool,
    /// Who may change limits and end the server.
    pub protected_actions: ProtectedActions,
    /// A Unix socket to listen on, besides the addresses.
    pub unix_socket: Option<UnixSocket>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            workers: 0,
            clients_max: 10_000,
            sync: "always",
            pool: String::new(),
            item_bytes_max: 1 << 20,
            idle_secs: 0,
            flush_allowed: true,
            cas_enabled: true,
            protected_actions: ProtectedActions::default(),
            unix_socket: None,
        }
    }
}

impl Options {
    /// How many workers there will be.
    #[must_use]
    pub fn workers(&self) -> usize {
        match self.workers {
            0 => std::thread::available_parallelism()
                .map_or(1, usize::from)
                .min(4),
            n => n,
        }
    }
}

/// What CONFIG SET can change. Read with every request, so each is one atomic.
pub(crate) struct Settings {
    pub(crate) clients_max: AtomicU64,
    pub(crate) timeout_secs: AtomicU64,
    pub(crate) keepalive_secs: AtomicU64,
    pub(crate) bulk_bytes_max: AtomicU64,
    pub(crate) input_bytes_max: AtomicU64,
    pub(crate) output_bytes_hard: AtomicU64,
    pub(crate) output_bytes_soft: AtomicU64,
    pub(crate) output_soft_secs: AtomicU64,
}

impl Settings {
    pub(crate) fn new(clients_max: u64, idle_secs: u64) -> Settings {
        Settings {
            clients_max: AtomicU64::new(clients_max),
            timeout_secs: AtomicU64::new(idle_secs),
            keepalive_secs: AtomicU64::new(300),
            bulk_bytes_max: AtomicU64::new(512 << 20),
            input_bytes_max: AtomicU64::new(1 << 30),
            output_bytes_hard: AtomicU64::new(1 << 30),
            output_bytes_soft: AtomicU64::new(0),
            output_soft_secs: AtomicU64::new(0),
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            bulk_bytes_max: size(&self.bulk_bytes_max),
        }
    }

    /// Most bytes of unread replies a connection may have; a reply that exceeds it closes it.
    pub(crate) fn output_bytes_max(&self) -> usize {
        match size(&self.output_bytes_hard) {
            0 => usize::MAX,
            bytes => bytes,
        }
    }
}

/// A setting that counts bytes.
pub(crate) fn size(setting: &AtomicU64) -> usize {
    usize::try_from(setting.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
}
