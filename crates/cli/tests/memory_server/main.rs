//! `farbank memory-server` as a process: a cluster, a kill, and a memory that survives it. And `farbank tree` on it.

/// Makes a test of the function `$test` for each way in which clients reach the memory servers.
macro_rules! for_each_way {
    ($name:ident => $test:ident) => {
        mod $name {
            use crate::tree::Way;

            #[test]
            fn over_tcp() {
                super::$test(Way::Tcp);
            }

            #[test]
            fn over_shared_memory() {
                super::$test(Way::SharedMemory);
            }
        }
    };
}

mod joining;
mod leaving;
mod tree;
mod writers;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use farbank_fabric::tcp::{Reactor, SharedKey, TcpFabric, TcpSettings, WaitMode};
use farbank_fabric::{Fabric, FabricError, GAddr};
use rustix::process::{Pid, Signal, kill_process};

const KEY: &[u8] = b"a key for this test only";

struct MemoryServer {
    child: Child,
    address: SocketAddr,
}

impl MemoryServer {
    fn start(folder: &Path, listen: &str, more: &[&str]) -> MemoryServer {
        std::fs::write(folder.join("key"), KEY).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_farbank"))
            .args(["memory-server", "--lock-size", "64kb"])
            .args(if more.contains(&"--size") {
                &[][..]
            } else {
                &["--size", "4mb"]
            })
            .args([
                "--listen",
                listen,
                "--lease-ms",
                "300",
                "--member-lease-ms",
                "200",
            ])
            .arg("--key-file")
            .arg(folder.join("key"))
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut banner = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut banner).unwrap();
        let address = banner.split("listens on ").nth(1);
        let address = address.and_then(|rest| rest.split(',').next());
        let address = address.unwrap_or_else(|| panic!("no address in {banner:?}"));
        let address = address.parse().unwrap();
        MemoryServer { child, address }
    }

    /// Sends `signal` and returns the exit code, or `None` if the signal ended the process.
    fn end(mut self, signal: Signal) -> Option<i32> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
        self.child.wait().unwrap().code()
    }
}

/// A test that fails leaves no process behind.
impl Drop for MemoryServer {
    fn drop(&mut self) {
        // An error means that the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn connect(reactor: &Reactor, servers: &[&MemoryServer]) -> TcpFabric {
    let settings = TcpSettings {
        servers: servers.iter().map(|server| Some(server.address)).collect(),
        compute: Some(3),
        key: SharedKey::new(KEY).unwrap(),
        timeout: Duration::from_secs(10),
    };
    TcpFabric::connect(reactor, settings).unwrap()
}

#[test]
fn a_memory_in_a_file_survives_a_kill_under_a_new_generation() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("memory");
    let pool = ["--pool", pool.to_str().unwrap()];
    let first = MemoryServer::start(folder.path(), "127.0.0.1:0", &pool);
    let member = [
        "--number",
        "1",
        "--lease-server",
        &first.address.to_string(),
    ];
    let second = MemoryServer::start(folder.path(), "127.0.0.1:0", &member);
    let reactor = Reactor::new(WaitMode::Block).unwrap();
    let fabric = connect(&reactor, &[&first, &second]);
    let places = [GAddr::host(0, 4096), GAddr::host(1, 4096)];
    reactor.block_on(async {
        for at in places {
            fabric.write(at, vec![7; 100]).await.unwrap();
        }
    });
    let listen = first.address.to_string();
    assert_eq!(first.end(Signal::KILL), None);
    let first = MemoryServer::start(folder.path(), &listen, &pool);
    reactor.block_on(async {
        // The first request may have been sent on the old connection.
        let _ = fabric.read(places[0], 100).await;
        let refused = fabric.read(places[0], 100).await;
        assert_eq!(refused, Err(FabricError::Empty { server: 0 }));
    });
    let again = connect(&reactor, &[&first, &second]);
    assert!(again.epoch() > fabric.epoch());
    reactor.block_on(async {
        for at in places {
            assert_eq!(again.read(at, 100).await, Ok(vec![7; 100]));
        }
    });
    for server in [first, second] {
        assert_eq!(server.end(Signal::TERM), Some(0));
    }
}

#[test]
fn a_member_without_a_lease_server_and_a_short_key_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "short\n").unwrap();
    for (more, code, text) in [
        (vec!["--number", "1"], 2, "--lease-server must be given"),
        (vec![], 1, "the key has 5 bytes, expected at least 16"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_farbank"))
            .args(["memory-server", "--listen", "127.0.0.1:0", "--key-file"])
            .arg(&key)
            .args(more)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(error.contains(text), "{error}");
    }
}
