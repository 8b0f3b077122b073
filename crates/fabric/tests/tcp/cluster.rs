//! Memory servers on loopback sockets.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use farbank_fabric::server::LeaseSettings;
use farbank_fabric::tcp::{Reactor, TcpFabric, TcpServer, TcpSettings};
use farbank_pm::media::Mapped;

use crate::shared::{MEMORY_BYTES, listeners, memory_node, settings_at, start_server};

pub(crate) const LEASES: LeaseSettings = LeaseSettings {
    compute: Duration::from_millis(150),
    member: Duration::from_millis(300),
};

/// Memory servers. `None`: the server is stopped.
pub(crate) struct Cluster {
    pub(crate) servers: Vec<Option<TcpServer>>,
    pub(crate) addresses: Vec<SocketAddr>,
}

/// Starts memory server `server` on `listener`, with empty memory.
pub(crate) fn start(server: u16, listener: TcpListener, lease_server: SocketAddr) -> TcpServer {
    let medium = Mapped::anonymous(MEMORY_BYTES).unwrap();
    let node = memory_node(server, medium, LEASES, false);
    start_server(node, listener, (server > 0).then_some(lease_server))
}

impl Cluster {
    pub(crate) fn new(count: u16) -> Cluster {
        let (listeners, addresses) = listeners(count);
        let servers = (0..)
            .zip(listeners)
            .map(|(server, listener)| Some(start(server, listener, addresses[0])))
            .collect();
        Cluster { servers, addresses }
    }

    pub(crate) fn settings(&self, compute: u16) -> TcpSettings {
        settings_at(self.addresses.clone(), compute)
    }

    pub(crate) fn fabric(&self, reactor: &Reactor, compute: u16) -> TcpFabric {
        TcpFabric::connect(reactor, self.settings(compute)).unwrap()
    }

    /// Stops a server, and its memory with it.
    pub(crate) fn stop(&mut self, server: u16) {
        self.servers[usize::from(server)] = None;
    }

    /// Starts a stopped server again, at the same address, with empty memory.
    pub(crate) fn restart(&mut self, server: u16) {
        self.stop(server);
        let index = usize::from(server);
        let listener = TcpListener::bind(self.addresses[index]).unwrap();
        self.servers[index] = Some(start(server, listener, self.addresses[0]));
    }
}
