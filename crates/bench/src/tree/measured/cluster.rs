//! Memory servers in threads of this process, with a filled tree. For shared memory, their memories are files.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use farbank_fabric::server::{LeaseSettings, MemoryNode, MemorySettings, WordMemory};
use farbank_fabric::shm::{ServerAddress, ShmFabric, ShmSettings};
use farbank_fabric::tcp::{Reactor, SharedKey, TcpServer, TcpServerSettings, WaitMode};
use farbank_fabric::{Fabric, GAddr, ServiceRequest};
use farbank_pm::media::{AnyMedium, Mapped, OpenOptions, create_path};
use farbank_tree::{Config, FillTarget};
use tempfile::TempDir;

use super::{MeasuredFabric, MeasuredOptions, failed};
use crate::figure::Error;

/// Fill of the nodes at the start.
const FILLED: f64 = 0.8;
/// Address of the first bytes that a bare round trip reads.
pub(super) const BARE_READ_AT: u64 = 1 << 20;
/// Time after which a client that waits for a lock asks whether its owner is alive.
pub(super) const LOCK_DOUBT: Duration = Duration::from_millis(50);
/// Time after which a memory server that does not answer is an error.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of each memory server besides the nodes.
const SPARE_BYTES: u64 = 128 << 20;
/// The memory servers are reachable only on loopback, for the time of the run.
const KEY: [u8; 16] = *b"a benchmark only";

/// The memory servers.
pub(super) struct LocalCluster {
    addresses: Vec<SocketAddr>,
    /// Folder of the memories, for shared memory.
    folder: Option<TempDir>,
    /// Their drop ends the servers.
    servers: Vec<TcpServer>,
}

impl LocalCluster {
    /// Starts memory servers, and fills the tree with `entries`.
    pub(super) fn start(
        options: &MeasuredOptions,
        config: &Config,
        entries: impl Iterator<Item = (u64, u64)>,
    ) -> Result<LocalCluster, Error> {
        let mut cluster = LocalCluster {
            addresses: Vec::new(),
            folder: match options.fabric {
                MeasuredFabric::Tcp => None,
                MeasuredFabric::Shm => Some(memory_folder()?),
            },
            servers: Vec::new(),
        };
        let leaf_entries = config.layout.entries() as u64 / 2;
        let nodes = options.entries * 2 / leaf_entries + 1024;
        let bytes = nodes * config.layout.node_bytes as u64 / u64::from(options.servers);
        for number in 0..options.servers {
            cluster.start_server(number, bytes + SPARE_BYTES, options.wait)?;
        }
        let reactor = Reactor::new(options.wait).map_err(failed)?;
        let fabric = cluster.connect(&reactor)?;
        let mut fill = RemoteFill {
            fabric: &fabric,
            error: None,
        };
        farbank_tree::fill(config, options.servers, FILLED, entries, &mut fill);
        match fill.error {
            Some(error) => Err(error),
            None => reactor
                .block_on(fabric.leave())
                .map_err(failed)
                .map(|()| cluster),
        }
    }

    fn start_server(&mut self, number: u16, bytes: u64, wait: WaitMode) -> Result<(), Error> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let path = self.memory(number);
        let medium = match &path {
            None => Mapped::anonymous(bytes).map_err(failed)?,
            Some(path) => create_memory(path, bytes)?,
        };
        let memory = WordMemory::open(medium, MemorySettings::new(number), 1).map_err(failed)?;
        let node = MemoryNode::new(memory, LeaseSettings::default());
        let node = Arc::new(match path {
            None => node,
            Some(path) => node.shared_at(path),
        });
        let settings = TcpServerSettings {
            lease_server: self.addresses.first().copied(),
            wait,
            ..TcpServerSettings::new(key())
        };
        self.servers
            .push(TcpServer::start(listener, node, settings).map_err(failed)?);
        self.addresses.push(address);
        Ok(())
    }

    /// Returns the file of a memory, for shared memory.
    pub(super) fn memory(&self, number: u16) -> Option<PathBuf> {
        let folder = self.folder.as_ref()?;
        Some(folder.path().join(format!("memory{number}")))
    }

    /// Connects a compute server.
    pub(super) fn connect(&self, reactor: &Reactor) -> Result<ShmFabric, Error> {
        let settings = ShmSettings {
            servers: (0..)
                .zip(&self.addresses)
                .map(|(number, address)| match self.memory(number) {
                    None => ServerAddress::Tcp(*address),
                    Some(path) => ServerAddress::Shm(path),
                })
                .collect(),
            compute: None,
            key: key(),
            timeout: TIMEOUT,
        };
        ShmFabric::connect(reactor, settings).map_err(failed)
    }
}

/// Creates a folder in memory, or where temporary files are if there is no tmpfs at /dev/shm.
fn memory_folder() -> Result<TempDir, Error> {
    let mut folder = tempfile::Builder::new();
    let folder = folder.prefix("farbank-bench");
    let in_memory = folder.tempdir_in("/dev/shm");
    in_memory.or_else(|_| folder.tempdir()).map_err(failed)
}

fn create_memory(path: &Path, bytes: u64) -> Result<Mapped, Error> {
    let options = OpenOptions {
        page_cache: true,
        ..OpenOptions::default()
    };
    match create_path(path, bytes, &options, &mut |_, _| {}).map_err(failed)? {
        AnyMedium::Mapped(medium) => Ok(medium),
        AnyMedium::File(_) => Err(failed("the memory cannot be mapped")),
    }
}

fn key() -> SharedKey {
    SharedKey::new(KEY).expect("the key is long enough")
}

/// Writes the nodes of a new tree through a fabric, until an error.
struct RemoteFill<'a> {
    fabric: &'a ShmFabric,
    error: Option<Error>,
}

impl RemoteFill<'_> {
    fn note<T, E: std::fmt::Display>(&mut self, done: Result<T, E>) {
        if let Err(error) = done {
            self.error.get_or_insert_with(|| failed(error));
        }
    }
}

impl FillTarget for RemoteFill<'_> {
    fn put(&mut self, at: GAddr, bytes: &[u8]) {
        if self.error.is_none() {
            let write = self.fabric.write(at, bytes.to_vec());
            let done = self.fabric.reactor().block_on(write);
            self.note(done);
        }
    }

    fn taken(&mut self, server: u16, at: u64) {
        let reserve = self.fabric.call(server, ServiceRequest::Reserve { to: at });
        let done = self.fabric.reactor().block_on(reserve);
        self.note(done);
    }
}
