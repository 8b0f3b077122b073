//! `farbank memory-server`: serves memory to compute servers, for structures on disaggregated memory.
//!
//! The memory is in this process, or in a file that outlives it. A [`TcpServer`] executes the verbs of compute servers
//! until a signal ends the command. Compute processes of this host can execute verbs on the file themselves.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum, value_parser};
use farbank_fabric::server::{LeaseSettings, MemoryNode, MemorySettings, WordMemory};
use farbank_fabric::tcp::{SharedKey, TcpServer, TcpServerSettings, WaitMode};
use farbank_pm::Medium;
use farbank_pm::media::{AnyMedium, Mapped, OpenOptions, PendingPath, open_path, prepare_path};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::common::progress::CommandProgress;
use crate::common::{Failure, read_key, size};

const EXAMPLES: &str = "\
SIGTERM and SIGINT stop the server with status 0.

Server 0 is the lease server: it manages the leases of compute servers and of the other memory servers. Those stop
serving if they cannot reach it. All servers and clients of a cluster have the same key file, for example of
`head -c 32 /dev/urandom`. After the handshake, frames are neither encrypted nor authenticated: use a trusted network.

Programs of this host can use a memory server with a --pool by shared memory: `farbank tree --servers shm:FILE,...`. They
map the file and may write all of it. Beside the file of server 0, each of them has a file FILE.redo... while it runs.
Server 0 kills a program that is stopped in the middle of a write for longer than its lease.

With --fabric libfabric, verbs arrive over a provider of libfabric (Debian's package libfabric1, which is loaded at run time): programs use
`farbank tree --servers libfabric:IP:PORT,...`. All servers of a cluster have the same --fabric and --provider. tcp;ofi_rxm is
tested; verbs;ofi_rxm and efa, which need their network cards, are not. Such a server executes no verbs over TCP and shared memory.

A file of --pool keeps its contents if this process is killed. It is not flushed: after a power failure, delete the files of
all servers.

Exit status: 0 after SIGTERM or SIGINT, 1 if the server cannot start, 2 if the command line is wrong.

Examples:
  farbank memory-server --key-file key
      memory server 0, with 1 GiB of memory, on 127.0.0.1:7411
  farbank memory-server --key-file key --number 1 --listen 127.0.0.1:7412 --lease-server 127.0.0.1:7411
      memory server 1 of the same cluster
  farbank memory-server --key-file key --pool /dev/shm/memory0 --size 8gb
      the memory is in a file: its contents survive a restart of the server, under a new generation, and programs of this
      host use it without the network
  farbank memory-server --key-file key --fabric libfabric --provider 'tcp;ofi_rxm'
      the verbs of clients arrive over libfabric's provider tcp;ofi_rxm
  farbank tree --help
      how to use the servers";

/// Serve memory to compute servers.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MemoryServerArgs {
    /// Address and port to listen on; port 0 selects a free port.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7411")]
    listen: SocketAddr,
    /// File with the key that all servers and clients of the cluster share: at least 16 bytes.
    #[arg(long, value_name = "FILE")]
    key_file: PathBuf,
    /// Number of this server. Server 0 is the lease server.
    #[arg(long, value_name = "N", default_value_t = 0)]
    number: u16,
    /// Address of server 0. Required for all other servers.
    #[arg(long, value_name = "IP:PORT")]
    lease_server: Option<SocketAddr>,
    /// Network over which the verbs of compute servers arrive.
    #[arg(long, value_enum, default_value = "tcp")]
    fabric: ServedFabric,
    /// Provider of --fabric libfabric. Default: tcp;ofi_rxm.
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// File or devdax device with the memory. A missing file is created. "none" keeps the memory in this process.
    #[arg(long, value_name = "PATH", default_value = "none")]
    pool: PathBuf,
    /// Size of a new memory: all of host memory, lock memory and a header.
    #[arg(long, value_name = "SIZE", default_value = "1gb", value_parser = size::parse)]
    size: u64,
    /// Size of the lock memory, a multiple of 4kb. The same on all servers of a cluster.
    #[arg(long, value_name = "SIZE", default_value = "256kb", value_parser = size::parse)]
    lock_size: u64,
    /// Size of the chunks in which compute servers allocate memory, a multiple of 4kb.
    #[arg(long, value_name = "SIZE", default_value = "1mb", value_parser = size::parse)]
    chunk_size: u64,
    /// Duration of the lease of a compute server, in milliseconds. The same on all servers of a cluster.
    #[arg(long, value_name = "MS", default_value_t = 2_000, value_parser = value_parser!(u64).range(10..=3_600_000))]
    lease_ms: u64,
    /// Duration of the lease of a memory server, in milliseconds. The same on all servers of a cluster.
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = value_parser!(u64).range(10..=3_600_000))]
    member_lease_ms: u64,
    /// Maximum number of connections. Each has a thread.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = value_parser!(u32).range(1..))]
    max_connections: u32,
    /// Poll the connections instead of blocking. Faster only if each connection has a core of its own.
    #[arg(long)]
    spin: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ServedFabric {
    /// TCP and, on this host, shared memory.
    Tcp,
    /// A provider of libfabric.
    Libfabric,
}

impl MemoryServerArgs {
    /// Serves until a signal.
    pub(crate) fn run(self) -> Result<(), Failure> {
        if (self.number == 0) == self.lease_server.is_some() {
            let text = "--lease-server must be given for all servers except number 0";
            return Err(Failure::Usage(text.into()));
        }
        if self.provider.is_some() && self.fabric != ServedFabric::Libfabric {
            return Err(Failure::Usage("--provider needs --fabric libfabric".into()));
        }
        if self.fabric == ServedFabric::Libfabric && !cfg!(feature = "libfabric") {
            let text = "--fabric libfabric: this program was built without libfabric; build it with `--features libfabric`";
            return Err(Failure::Usage(text.into()));
        }
        let key = read_key(&self.key_file)?;
        let listener = TcpListener::bind(self.listen).map_err(|error| {
            Failure::failed(format!("cannot listen on {}: {error}", self.listen))
        })?;
        // Before the memory is opened: from here on a signal stops the server instead of killing the process.
        let mut signals = Signals::new([SIGTERM, SIGINT])
            .map_err(|error| Failure::failed(format!("cannot wait for signals: {error}")))?;
        let (medium, name) = self.medium()?;
        let server = match medium {
            AnyMedium::Mapped(medium) => self.start(medium, name, listener, key)?,
            AnyMedium::File(_) => {
                let path = self.pool.display();
                let text = format!("{path}: a memory server needs a file that can be mapped");
                return Err(Failure::failed(text));
            }
        };
        signals.forever().next();
        drop(server);
        Ok(())
    }

    /// Opens the medium of the memory, or creates it. A created file has to be published.
    fn medium(&self) -> Result<(AnyMedium, Option<PendingPath>), Failure> {
        if self.pool == Path::new("none") {
            let medium = Mapped::anonymous(self.size).map_err(Failure::failed)?;
            return Ok((AnyMedium::Mapped(medium), None));
        }
        let options = OpenOptions {
            page_cache: true,
            ..OpenOptions::default()
        };
        if self.pool.exists() {
            let medium = open_path(&self.pool, &options).map_err(Failure::failed)?;
            return Ok((medium, None));
        }
        let mut progress = CommandProgress::new("creating the memory");
        let made = prepare_path(&self.pool, self.size, &options, &mut |done, all| {
            progress.show(done, all);
        });
        progress.clear();
        let (medium, name) = made.map_err(Failure::failed)?;
        Ok((medium, Some(name)))
    }

    /// Returns whether programs of this host can map the memory: it is a file.
    fn can_be_shared(&self) -> bool {
        let is_file = std::fs::metadata(&self.pool).is_ok_and(|metadata| metadata.is_file());
        is_file && self.fabric == ServedFabric::Tcp
    }

    /// Returns the server with its fabric, and what its banner says about it.
    #[cfg(feature = "libfabric")]
    fn with_fabric(
        &self,
        node: MemoryNode<Mapped>,
    ) -> Result<(MemoryNode<Mapped>, String), Failure> {
        if self.fabric == ServedFabric::Tcp {
            return Ok((node, String::new()));
        }
        let provider = self.provider.as_deref();
        let provider = provider.unwrap_or(farbank_fabric::libfabric::DEFAULT_PROVIDER);
        let node = node.over_libfabric(provider).map_err(Failure::failed)?;
        let way = format!("; verbs over libfabric, provider {provider}");
        Ok((node, way))
    }

    #[cfg(not(feature = "libfabric"))]
    #[expect(
        clippy::unnecessary_wraps,
        clippy::unused_self,
        reason = "as with the feature"
    )]
    fn with_fabric(
        &self,
        node: MemoryNode<Mapped>,
    ) -> Result<(MemoryNode<Mapped>, String), Failure> {
        Ok((node, String::new()))
    }

    fn start(
        &self,
        medium: Mapped,
        name: Option<PendingPath>,
        listener: TcpListener,
        key: SharedKey,
    ) -> Result<TcpServer, Failure> {
        let survives = medium.caps().survives.clone();
        let settings = MemorySettings {
            server: self.number,
            lock_bytes: self.lock_size,
            chunk_bytes: self.chunk_size,
            whole_locks: self.fabric == ServedFabric::Libfabric,
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let generation = now.unwrap_or_default().as_nanos() as u64;
        let memory = WordMemory::open(medium, settings, generation)
            .map_err(|error| Failure::failed(format!("{}: {error}", self.pool.display())))?;
        if let Some(name) = name {
            name.publish().map_err(Failure::failed)?;
        }
        let leases = LeaseSettings {
            compute: Duration::from_millis(self.lease_ms),
            member: Duration::from_millis(self.member_lease_ms),
        };
        let (generation, host_bytes) = (memory.generation(), memory.host_bytes());
        let node = match self.can_be_shared() {
            true => MemoryNode::new(memory, leases).shared_at(&self.pool),
            false => MemoryNode::new(memory, leases),
        };
        let (node, way) = self.with_fabric(node)?;
        let node = Arc::new(node);
        let settings = TcpServerSettings {
            lease_server: self.lease_server,
            connections_max: self.max_connections as usize,
            wait: match self.spin {
                true => WaitMode::Spin,
                false => WaitMode::Block,
            },
            ..TcpServerSettings::new(key)
        };
        let server = TcpServer::start(listener, node, settings).map_err(Failure::failed)?;
        let shared = match self.can_be_shared() {
            true => format!("; programs of this host: shm:{}", self.pool.display()),
            false => String::new(),
        };
        announce!(
            "memory server {} listens on {}, generation {generation}, {} of host memory; survives: {survives}{shared}{way}",
            self.number,
            server.address(),
            size::human(host_bytes),
        );
        Ok(server)
    }
}
