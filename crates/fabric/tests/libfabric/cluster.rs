//! Memory servers on loopback whose verbs arrive over libfabric.

use std::net::SocketAddr;
use std::time::Duration;

use farbank_fabric::libfabric::{DEFAULT_PROVIDER, LibfabricError, LibfabricFabric};
use farbank_fabric::server::{LeaseSettings, MemoryNode};
use farbank_fabric::tcp::{Reactor, TcpServer, TcpSettings};
use farbank_pm::media::Mapped;

use crate::shared::{MEMORY_BYTES, listeners, memory_node, settings_at, start_server};

pub(crate) const LEASES: LeaseSettings = LeaseSettings {
    compute: Duration::from_millis(400),
    member: Duration::from_millis(400),
};

fn provider() -> String {
    std::env::var("FARBANK_PROVIDER").unwrap_or_else(|_| DEFAULT_PROVIDER.into())
}

fn memory(server: u16, whole_locks: bool) -> MemoryNode<Mapped> {
    let medium = Mapped::anonymous(MEMORY_BYTES).unwrap();
    memory_node(server, medium, LEASES, whole_locks)
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
        let (listeners, addresses) = listeners(count);
        let servers = (0..).zip(listeners).map(|(server, listener)| {
            let lease_server = (server > 0).then_some(addresses[0]);
            Some(start_server(make(server), listener, lease_server))
        });
        Cluster {
            servers: servers.collect(),
            addresses,
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
