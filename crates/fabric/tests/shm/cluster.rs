//! Memory servers whose memories are files, and child processes of a test that map them.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use farbank_fabric::server::LeaseSettings;
use farbank_fabric::shm::{ServerAddress, ShmConnectError, ShmFabric, ShmSettings};
use farbank_fabric::tcp::{Reactor, TcpServer, WaitMode};
use farbank_pm::media::{AnyMedium, OpenError, OpenOptions, create_path, open_path};
use tempfile::TempDir;

use crate::shared::{MEMORY_BYTES, TIMEOUT, key, memory_node, start_server};

pub(crate) const LEASES: LeaseSettings = LeaseSettings {
    compute: Duration::from_millis(200),
    member: Duration::from_millis(200),
};

/// Memory servers in threads of this process. `None`: the server is stopped.
pub(crate) struct Cluster {
    pub(crate) folder: TempDir,
    pub(crate) servers: Vec<Option<TcpServer>>,
}

fn options() -> OpenOptions {
    OpenOptions {
        page_cache: true,
        ..OpenOptions::default()
    }
}

/// Opens the memory at `path`, or creates it.
pub(crate) fn open(path: &Path) -> Result<AnyMedium, OpenError> {
    match path.exists() {
        true => open_path(path, &options()),
        false => create_path(path, MEMORY_BYTES, &options(), &mut |_, _| {}),
    }
}

fn start(server: u16, path: &Path, lease_server: Option<SocketAddr>) -> TcpServer {
    let AnyMedium::Mapped(medium) = open(path).unwrap() else {
        panic!("the file can be mapped")
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let node = memory_node(server, medium, LEASES, false).shared_at(path);
    start_server(node, listener, lease_server)
}

impl Cluster {
    pub(crate) fn new(count: u16) -> Cluster {
        let mut cluster = Cluster {
            folder: tempfile::tempdir().unwrap(),
            servers: Vec::new(),
        };
        for server in 0..count {
            cluster.servers.push(None);
            cluster.start(server);
        }
        cluster
    }

    /// Starts a server on its file, in a new generation.
    pub(crate) fn start(&mut self, server: u16) {
        let lease_server = match server {
            0 => None,
            _ => self.servers[0].as_ref().map(TcpServer::address),
        };
        let started = start(server, &self.path(server), lease_server);
        self.servers[usize::from(server)] = Some(started);
    }

    pub(crate) fn stop(&mut self, server: u16) {
        self.servers[usize::from(server)] = None;
    }

    pub(crate) fn path(&self, server: u16) -> PathBuf {
        memory_path(self.folder.path(), server)
    }

    pub(crate) fn settings(&self, compute: u16) -> ShmSettings {
        settings(self.folder.path(), self.servers.len() as u16, compute)
    }

    pub(crate) fn connect(&self, compute: u16) -> Result<ShmFabric, ShmConnectError> {
        let reactor = Reactor::new(WaitMode::Block).unwrap();
        ShmFabric::connect(&reactor, self.settings(compute))
    }

    pub(crate) fn fabric(&self, compute: u16) -> ShmFabric {
        self.connect(compute).unwrap()
    }

    /// Runs the test `name` of this program in another process, as compute server `compute`.
    pub(crate) fn spawn(&self, name: &str, compute: u16) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env("FARBANK_TEST_FOLDER", self.folder.path())
            .env("FARBANK_TEST_SERVERS", self.servers.len().to_string())
            .env("FARBANK_TEST_COMPUTE", compute.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }
}

fn memory_path(folder: &Path, server: u16) -> PathBuf {
    folder.join(format!("memory{server}"))
}

fn settings(folder: &Path, servers: u16, compute: u16) -> ShmSettings {
    let servers = (0..servers).map(|server| ServerAddress::Shm(memory_path(folder, server)));
    ShmSettings {
        servers: servers.collect(),
        compute: Some(compute),
        key: key(),
        timeout: TIMEOUT,
    }
}

/// Returns the fabric of a process that [`Cluster::spawn`] has started; `None` in the test's own process.
pub(crate) fn child_fabric() -> Option<ShmFabric> {
    let variable = |name| std::env::var(name).ok();
    let folder = PathBuf::from(variable("FARBANK_TEST_FOLDER")?);
    let number = |name| variable(name).and_then(|text| text.parse().ok());
    let (servers, compute) = (
        number("FARBANK_TEST_SERVERS")?,
        number("FARBANK_TEST_COMPUTE")?,
    );
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    Some(ShmFabric::connect(&reactor, settings(&folder, servers, compute)).unwrap())
}
