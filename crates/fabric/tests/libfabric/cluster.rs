//! Memory servers on loopback whose verbs arrive over libfabric.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use farbank_fabric::libfabric::{DEFAULT_PROVIDER, LibfabricError, LibfabricFabric};
use farbank_fabric::server::{LeaseSettings, MemoryNode, MemorySettings, WordMemory};
use farbank_fabric::tcp::{Reactor, SharedKey, TcpServer, TcpServerSettings, TcpSettings};
use farbank_pm::media::Mapped;

pub(crate) const LOCK_BYTES: u64 = 64 << 10;
const MEMORY_BYTES: u64 = 4 << 20;
const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) const LEASES: LeaseSettings = LeaseSettings {
    compute: Duration::from_millis(400),
    member: Duration::from_millis(400),
};

pub(crate) fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

fn key() -> SharedKey {
    SharedKey::new(*b"a key for tests only").unwrap()
}

fn provider() -> String {
    std::env::var("FARBANK_PROVIDER").unwrap_or_else(|_| DEFAULT_PROVIDER.into())
}

/// Returns the settings of compute server `compute`.
pub(crate) fn settings_at(servers: Vec<SocketAddr>, compute: u16) -> TcpSettings {
    TcpSettings {
        servers,
        compute: Some(compute),
        key: key(),
        timeout: TIMEOUT,
    }
}

fn memory(server: u16, whole_locks: bool) -> MemoryNode<Mapped> {
    let settings = MemorySettings {
        lock_bytes: LOCK_BYTES,
        chunk_bytes: 256 << 10,
        whole_locks,
        ..MemorySettings::new(server)
    };
    let medium = Mapped::anonymous(MEMORY_BYTES).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let memory = WordMemory::open(medium, settings, now.as_nanos() as u64).unwrap();
    MemoryNode::new(memory, LEASES)
}

/// Memory servers. `None`: the server is stopped.
pub(crate) struct Cluster {
    servers: Vec<Option<TcpServer>>,
    addresses: Vec<SocketAddr>,
}

impl Cluster {
    pub(crate) fn new(count: u16) -> Cluster {
        Cluster::start(count, |server| {
            memory(server, true).over_libfabric(&provider()).unwrap()
        })
    }

    /// Starts a memory server that executes verbs over TCP.
    pub(crate) fn without_libfabric() -> Cluster {
        Cluster::start(1, |server| memory(server, false))
    }

    /// Returns the error of a memory server with `provider`.
    pub(crate) fn start_error(provider: &str) -> LibfabricError {
        memory(0, true).over_libfabric(provider).err().unwrap()
    }

    fn start(count: u16, make: impl Fn(u16) -> MemoryNode<Mapped>) -> Cluster {
        let listeners: Vec<_> = (0..count)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let addresses: Vec<_> = listeners
            .iter()
            .map(|listener| listener.local_addr().unwrap())
            .collect();
        let servers = (0..).zip(listeners).map(|(server, listener)| {
            let settings = TcpServerSettings {
                lease_server: (server > 0).then_some(addresses[0]),
                ..TcpServerSettings::new(key())
            };
            let node = Arc::new(make(server));
            Some(TcpServer::start(listener, node, settings).unwrap())
        });
        Cluster {
            servers: servers.collect(),
            addresses: addresses.clone(),
        }
    }

    pub(crate) fn settings(&self, compute: u16) -> TcpSettings {
        settings_at(self.addresses.clone(), compute)
    }

    /// Returns the addresses of the servers, separated by commas.
    pub(crate) fn addresses_text(&self) -> String {
        let texts: Vec<_> = self.addresses.iter().map(SocketAddr::to_string).collect();
        texts.join(",")
    }

    pub(crate) fn fabric(&self, reactor: &Reactor, compute: u16) -> LibfabricFabric {
        LibfabricFabric::connect(reactor, self.settings(compute)).unwrap()
    }

    /// Stops a server, and its memory with it.
    pub(crate) fn stop(&mut self, server: u16) {
        self.servers[usize::from(server)] = None;
    }
}
