//! Memory servers with a filled tree: threads of this process, whose memories are files for shared memory, or other processes.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use farbank_fabric::server::{LeaseSettings, MemoryNode, MemorySettings, WordMemory};
use farbank_fabric::shm::{ServerAddress, ShmFabric, ShmSettings};
use farbank_fabric::tcp::{Reactor, SharedKey, TcpServer, TcpServerSettings};
use farbank_fabric::{Fabric, GAddr, ServiceRequest};
use farbank_pm::media::{AnyMedium, Mapped, OpenOptions, create_path};
use farbank_tree::{Config, FillTarget};
use tempfile::TempDir;

use super::{MeasuredFabric, MeasuredOptions, ServerChoice, failed};
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
/// Bytes at the start of each server's memory that are zero if nothing was written there.
const HEAD_BYTES: usize = 128;
/// The memory servers of this process are reachable only on loopback, for the time of the run.
const KEY: [u8; 16] = *b"a benchmark only";

/// Memory servers with a tree: threads of this process, or processes that ran before.
pub(super) struct MemoryServers {
    addresses: Vec<ServerAddress>,
    key: SharedKey,
    /// Folder of the memories of this process's servers, for shared memory.
    folder: Option<TempDir>,
    /// Servers of this process, which end with this value.
    servers: Vec<TcpServer>,
}

impl MemoryServers {
    /// Starts memory servers, unless they run already, and fills the tree with `entries`.
    pub(super) fn start(
        options: &MeasuredOptions,
        config: &Config,
        entries: impl Iterator<Item = (u64, u64)>,
    ) -> Result<MemoryServers, Error> {
        let servers = match &options.servers {
            ServerChoice::Threads(count) => MemoryServers::start_all(options, *count, config)?,
            ServerChoice::Running { addresses, key } => MemoryServers {
                addresses: addresses.clone(),
                key: key.clone(),
                folder: None,
                servers: Vec::new(),
            },
        };
        let reactor = Reactor::new(options.wait).map_err(failed)?;
        let fabric = servers.connect(&reactor)?;
        reactor.block_on(check_empty(&fabric))?;
        let mut fill = RemoteFill {
            fabric: &fabric,
            error: None,
        };
        farbank_tree::fill(config, fabric.servers(), FILLED, entries, &mut fill);
        match fill.error {
            Some(error) => Err(error),
            None => reactor
                .block_on(fabric.leave())
                .map_err(failed)
                .map(|()| servers),
        }
    }

    /// Starts `count` servers in threads of this process.
    fn start_all(
        options: &MeasuredOptions,
        count: u16,
        config: &Config,
    ) -> Result<MemoryServers, Error> {
        let mut servers = MemoryServers {
            addresses: Vec::new(),
            key: SharedKey::new(KEY).expect("the key is long enough"),
            folder: match options.fabric {
                MeasuredFabric::Shm => Some(memory_folder()?),
                MeasuredFabric::Tcp => None,
                #[cfg(feature = "libfabric")]
                MeasuredFabric::Libfabric => None,
            },
            servers: Vec::new(),
        };
        let leaf_entries = config.layout.entries() as u64 / 2;
        let nodes = options.entries * 2 / leaf_entries + 1024;
        let bytes = nodes * config.layout.node_bytes as u64 / u64::from(count);
        for number in 0..count {
            servers.start_server(number, bytes + SPARE_BYTES, options)?;
        }
        Ok(servers)
    }

    fn start_server(
        &mut self,
        number: u16,
        bytes: u64,
        options: &MeasuredOptions,
    ) -> Result<(), Error> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let folder = self.folder.as_ref().map(TempDir::path);
        let path = folder.map(|folder| folder.join(format!("memory{number}")));
        let medium = match &path {
            None => Mapped::anonymous(bytes).map_err(failed)?,
            Some(path) => create_memory(path, bytes)?,
        };
        let settings = MemorySettings {
            whole_locks: options.fabric.has_whole_locks(),
            ..MemorySettings::new(number)
        };
        let memory = WordMemory::open(medium, settings, 1).map_err(failed)?;
        let node = MemoryNode::new(memory, LeaseSettings::default());
        let (node, reached) = match (path, options.fabric) {
            #[cfg(feature = "libfabric")]
            (_, MeasuredFabric::Libfabric) => {
                let provider = farbank_fabric::libfabric::DEFAULT_PROVIDER;
                let node = node.over_libfabric(provider).map_err(failed)?;
                (node, ServerAddress::Libfabric(address))
            }
            (None, _) => (node, ServerAddress::Tcp(address)),
            (Some(path), _) => (node.shared_at(&path), ServerAddress::Shm(path)),
        };
        let settings = TcpServerSettings {
            lease_server: self.servers.first().map(TcpServer::address),
            wait: options.wait,
            ..TcpServerSettings::new(self.key.clone())
        };
        self.servers
            .push(TcpServer::start(listener, Arc::new(node), settings).map_err(failed)?);
        self.addresses.push(reached);
        Ok(())
    }

    /// Returns the number of servers.
    pub(super) fn count(&self) -> u16 {
        self.addresses.len() as u16
    }

    /// Returns the files of the memories, for shared memory.
    pub(super) fn memories(&self) -> impl Iterator<Item = &Path> {
        self.addresses.iter().filter_map(|address| match address {
            ServerAddress::Shm(path) => Some(path.as_path()),
            ServerAddress::Tcp(_) | ServerAddress::Libfabric(_) | ServerAddress::Left => None,
        })
    }

    /// Connects a compute server.
    pub(super) fn connect(&self, reactor: &Reactor) -> Result<ShmFabric, Error> {
        let settings = ShmSettings {
            servers: self.addresses.clone(),
            compute: None,
            key: self.key.clone(),
            timeout: TIMEOUT,
        };
        ShmFabric::connect(reactor, settings).map_err(failed)
    }
}

/// Checks that the memory servers have no tree and no other data.
async fn check_empty(fabric: &ShmFabric) -> Result<(), Error> {
    for server in 0..fabric.servers() {
        let head = fabric.read(GAddr::host(server, 0), HEAD_BYTES).await;
        if head.map_err(failed)?.iter().any(|byte| *byte != 0) {
            return Err(failed(format!(
                "memory server {server} has data, expected a server that was started with new memory"
            )));
        }
    }
    Ok(())
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
