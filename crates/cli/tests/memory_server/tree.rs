//! `farbank tree` as a process, and the library on the same servers.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use farbank_fabric::shm::ServerAddress;
use farbank_fabric::tcp::SharedKey;
use farbank_tree::{CasOutcome, Cluster, ClusterError, ClusterSettings, TreeSettings};
use rustix::process::Signal;
use tempfile::TempDir;

use super::{KEY, MemoryServer};

/// How clients reach the memory servers.
#[derive(Clone, Copy)]
pub(super) enum Way {
    Tcp,
    SharedMemory,
}

/// Memory servers 0 and 1, each on a pool of its own.
pub(super) struct TwoServers {
    pub(super) folder: TempDir,
    pub(super) servers: Vec<MemoryServer>,
    way: Way,
}

pub(super) fn start(
    folder: &Path,
    number: usize,
    listen: &str,
    lease_server: Option<SocketAddr>,
) -> MemoryServer {
    let pool = folder.join(format!("memory{number}"));
    let number = number.to_string();
    let lease_server = lease_server.map(|address| address.to_string());
    let mut more = vec!["--pool", pool.to_str().unwrap(), "--number", &number];
    more.extend(["--size", "64mb"]);
    if let Some(address) = &lease_server {
        more.extend(["--lease-server", address]);
    }
    MemoryServer::start(folder, listen, &more)
}

impl TwoServers {
    pub(super) fn start(way: Way) -> TwoServers {
        let folder = tempfile::tempdir().unwrap();
        let first = start(folder.path(), 0, "127.0.0.1:0", None);
        let second = start(folder.path(), 1, "127.0.0.1:0", Some(first.address));
        let servers = vec![first, second];
        TwoServers {
            folder,
            servers,
            way,
        }
    }

    pub(super) fn addresses(&self) -> Vec<ServerAddress> {
        let pool = |number| self.folder.path().join(format!("memory{number}"));
        let servers = self.servers.iter().enumerate();
        servers
            .map(|(number, server)| match self.way {
                Way::Tcp => ServerAddress::Tcp(server.address),
                Way::SharedMemory => ServerAddress::Shm(pool(number)),
            })
            .collect()
    }

    /// Kills server `number` and starts it again on its pool.
    fn restart(&mut self, number: usize) {
        let address = self.servers[number].address;
        let killed = self.servers.remove(number);
        assert_eq!(killed.end(Signal::KILL), None);
        let lease_server = (number > 0).then(|| self.servers[0].address);
        let again = start(
            self.folder.path(),
            number,
            &address.to_string(),
            lease_server,
        );
        self.servers.insert(number, again);
    }

    /// Kills server `number`, which stays in the list of addresses.
    pub(super) fn kill(&mut self, number: usize) {
        let child = &mut self.servers[number].child;
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(super) fn command(&self, subcommand: &str) -> Command {
        let list: Vec<_> = self.addresses().iter().map(ToString::to_string).collect();
        let mut command = Command::new(env!("CARGO_BIN_EXE_farbank"));
        command.args([
            "tree",
            subcommand,
            "--servers",
            &list.join(","),
            "--key-file",
        ]);
        command.arg(self.folder.path().join("key"));
        command
    }

    fn run(&self, subcommand: &str, args: &[&str]) -> Output {
        self.command(subcommand).args(args).output().unwrap()
    }

    /// Runs a command that succeeds, and returns its standard output.
    pub(super) fn print(&self, subcommand: &str, args: &[&str]) -> String {
        let output = self.run(subcommand, args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{subcommand} {args:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that fails with `code`, and checks that standard error has `text`.
    pub(super) fn fail(&self, subcommand: &str, args: &[&str], code: i32, text: &str) {
        let output = self.run(subcommand, args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{subcommand}: {error}");
        assert!(error.contains(text), "{subcommand}: {error}");
    }

    pub(super) fn cluster(&self) -> Cluster {
        let key = SharedKey::new(KEY).unwrap();
        let settings = ClusterSettings {
            timeout: Duration::from_secs(10),
            ..ClusterSettings::new(self.addresses(), key)
        };
        Cluster::connect(settings).unwrap()
    }

    fn load(&self, lines: &str) -> Output {
        let mut child = self
            .command("load")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let lines = lines.to_owned();
        let writer = thread::spawn(move || {
            // The command may have ended with an error.
            let _ = stdin.write_all(lines.as_bytes());
        });
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        output
    }
}

for_each_way!(the_commands_of_the_help_do_what_it_says => use_all_commands);

fn use_all_commands(way: Way) {
    let servers = TwoServers::start(way);
    servers.fail("get", &["greeting"], 1, "create one first");
    assert!(servers.print("create", &[]).contains("2 memory servers"));
    servers.fail("create", &[], 1, "there is a tree");
    servers.print("put", &["greeting", "hello"]);
    assert_eq!(servers.print("get", &["greeting"]), "hello\n");
    servers.fail("put", &["greeting", "other", "--if-absent"], 1, "already");
    servers.print("put", &["other", "b\u{e9}", "--if-absent"]);
    let json = r#"{"key":"other","value":"b\u00c3\u00a9"}"#;
    assert_eq!(servers.print("get", &["other", "--json"]).trim_end(), json);
    servers.fail("get", &["absent"], 1, "no key \"absent\"");
    servers.fail("get", &[&"k".repeat(65)], 1, "65 bytes, the maximum is 64");
    servers.fail("get", &[], 2, "<KEY>");

    let lines: String = (0..2000)
        .map(|n| format!("key{n:05}\tvalue {n}\n"))
        .collect();
    let loaded = servers.load(&lines);
    assert!(
        String::from_utf8_lossy(&loaded.stdout).starts_with("2000 entries"),
        "{loaded:?}"
    );
    let all = servers.print("scan", &["--from", "key", "--to", "kez"]);
    assert_eq!(all, lines);
    let some = servers.print(
        "scan",
        &["--from", "key00500", "--count", "300", "--keys-only"],
    );
    let expected: String = (500..800).map(|n| format!("key{n:05}\n")).collect();
    assert_eq!(some, expected);
    let down = [
        "--from",
        "key00100",
        "--to",
        "key01100",
        "--reverse",
        "--count",
        "900",
        "--keys-only",
    ];
    let expected: String = (200..1100).rev().map(|n| format!("key{n:05}\n")).collect();
    assert_eq!(servers.print("scan", &down), expected);
    assert!(
        servers
            .print("scan", &["--reverse", "--count", "1"])
            .starts_with("other\t")
    );
    let bad = servers.load("a\tb\nno tab\n");
    assert_eq!(bad.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&bad.stderr).contains("line 2: there is no tab"));

    let several = ["key00007", "other", "key01999"];
    assert_eq!(
        servers.print("get", &several),
        "value 7\nb\u{e9}\nvalue 1999\n"
    );
    servers.fail("get", &["key00007", "none"], 1, "no key \"none\"");

    servers.fail(
        "put",
        &["greeting", "x", "--if-value", "y"],
        1,
        "another value",
    );
    servers.fail(
        "put",
        &["none", "x", "--if-value", "y"],
        1,
        "no key \"none\"",
    );
    servers.print("put", &["greeting", "goodbye", "--if-value", "hello"]);
    assert_eq!(servers.print("get", &["greeting"]), "goodbye\n");
    servers.fail(
        "delete",
        &["greeting", "--if-value", "hello"],
        1,
        "another value",
    );
    servers.print("delete", &["greeting", "--if-value", "goodbye"]);
    servers.print("put", &["greeting", "hello"]);
    servers.print("delete", &["greeting"]);
    servers.fail("delete", &["greeting"], 1, "no key");
    let stat = servers.print("stat", &["--keys", "--json"]);
    assert!(stat.contains(r#""keys":2001,"#), "{stat}");
}

for_each_way!(a_client_that_ends_leaves_its_epoch_to_the_next => end_and_begin_clients);

fn end_and_begin_clients(way: Way) {
    let servers = TwoServers::start(way);
    servers.print("create", &[]);
    for n in 0..70 {
        servers.print("put", &["counter", &n.to_string()]);
    }
    let info = servers.cluster().info().unwrap();
    assert!(info.epoch <= 2, "{info:?}");
    assert_eq!(servers.print("get", &["counter"]), "69\n");
}

for_each_way!(keys_and_values_of_any_bytes_and_of_the_maximum_length_are_kept => keep_any_bytes);

fn keep_any_bytes(way: Way) {
    let servers = TwoServers::start(way);
    let cluster = servers.cluster();
    let sizes = TreeSettings {
        key_bytes_max: 1024,
        ..TreeSettings::default()
    };
    cluster.create(&sizes).unwrap();
    assert!(matches!(cluster.create(&sizes), Err(ClusterError::Exists)));
    let keys: [Vec<u8>; 6] = [
        vec![],
        vec![0],
        vec![0; 1024],
        b"a\0".to_vec(),
        b"a\0\0".to_vec(),
        vec![0xff; 1024],
    ];
    for (n, key) in keys.iter().enumerate() {
        let value = vec![n as u8; [0, 1, 131_056, 64, 4096, 100_000][n]];
        assert!(!cluster.put(key, &value).unwrap());
        assert!(!cluster.insert_if_absent(key, b"another").unwrap());
        assert_eq!(cluster.get(key).unwrap(), Some(value));
    }
    use std::ops::Bound::Unbounded;
    let found = cluster.scan(Unbounded, Unbounded, usize::MAX).unwrap();
    assert!(found.iter().map(|(key, _)| key).eq(&keys));
    let mut down = cluster.scan_down(Unbounded, Unbounded, usize::MAX).unwrap();
    down.reverse();
    assert_eq!(down, found);
    use std::ops::Bound::{Excluded, Included};
    let from_zero = Included(&b"\0"[..]);
    let below_a = cluster.scan_down(from_zero, Excluded(b"a\0\0"), 9).unwrap();
    let below_a: Vec<_> = below_a.into_iter().map(|(key, _)| key).collect();
    assert_eq!(below_a, [keys[3].clone(), keys[2].clone(), keys[1].clone()]);
    let error = cluster.put(&[1; 1025], b"").unwrap_err();
    assert!(
        error
            .to_string()
            .contains("1025 bytes, the maximum is 1024"),
        "{error}"
    );
    let error = cluster.put(b"long", &[0; 131_057]).unwrap_err();
    assert!(error.to_string().contains("131057 bytes"), "{error}");
    for key in &keys {
        assert!(cluster.delete(key).unwrap());
    }
    assert_eq!(cluster.scan(Unbounded, Unbounded, 9).unwrap(), []);
}

for_each_way!(counters_that_many_clients_change_by_compare_and_swap_lose_no_step => count_by_compare_and_swap);

fn count_by_compare_and_swap(way: Way) {
    const CLIENTS: u64 = 4;
    const STEPS: u64 = 60;
    let servers = TwoServers::start(way);
    servers.cluster().create(&TreeSettings::default()).unwrap();
    let step = |cluster: &Cluster, key: &[u8]| {
        let mut seen = None;
        loop {
            let count = seen.as_ref().map_or(0, |value: &Vec<u8>| value.len());
            // The value of a counter is as long as its count, so that its block changes its size.
            let next = vec![b'+'; count + 1];
            match cluster
                .compare_and_swap(key, seen.as_deref(), Some(&next))
                .unwrap()
            {
                CasOutcome::Swapped => break,
                CasOutcome::Differs(found) => seen = found,
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            let (servers, step) = (&servers, &step);
            scope.spawn(move || {
                let cluster = servers.cluster();
                for n in 0..STEPS {
                    step(&cluster, if n % 2 == 0 { b"even" } else { b"odd" });
                }
            });
        }
    });
    let cluster = servers.cluster();
    let keys = vec![b"odd".to_vec(), b"even".to_vec(), b"none".to_vec()];
    let counts: Vec<_> = cluster.get_all(keys).unwrap();
    let expected = vec![b'+'; (CLIENTS * STEPS / 2) as usize];
    assert_eq!(
        counts,
        [Some(expected.clone()), Some(expected.clone()), None]
    );
    let removed = cluster
        .compare_and_swap(b"odd", Some(&expected), None)
        .unwrap();
    assert_eq!(removed, CasOutcome::Swapped);
    let again = cluster
        .compare_and_swap(b"odd", Some(&expected), None)
        .unwrap();
    assert_eq!(again, CasOutcome::Differs(None));
}

for_each_way!(acknowledged_writes_survive_a_kill_of_each_memory_server => kill_memory_servers);

fn kill_memory_servers(way: Way) {
    let mut servers = TwoServers::start(way);
    let cluster = servers.cluster();
    cluster.create(&TreeSettings::default()).unwrap();
    let entries: Vec<_> = (0..3000_u32)
        .map(|n| (format!("{n:06}").into_bytes(), vec![n as u8; 60]))
        .collect();
    for (turn, part) in entries.chunks(1000).enumerate() {
        cluster.put_all(part.to_vec()).unwrap();
        servers.restart(turn % 2);
        // The session ends with the first error. Reads begin another by themselves.
        let deadline = Instant::now() + Duration::from_secs(20);
        while let Err(error) = cluster.get(b"000000") {
            assert!(Instant::now() < deadline, "{error}");
            thread::sleep(Duration::from_millis(20));
        }
        use std::ops::Bound::Unbounded;
        let found = cluster.scan(Unbounded, Unbounded, usize::MAX).unwrap();
        assert!(
            found == entries[..1000 * (turn + 1)],
            "{} keys",
            found.len()
        );
    }
}

for_each_way!(clients_that_are_killed_while_they_write_stop_no_other_client => kill_clients);

fn kill_clients(way: Way) {
    let servers = TwoServers::start(way);
    servers.print("create", &[]);
    let lines: String = (0..8_000)
        .map(|n| format!("{:05}\t{n}\n", n % 500))
        .collect();
    let file = servers.folder.path().join("lines");
    std::fs::write(&file, &lines).unwrap();
    for turn in 0..4 {
        let mut victim = servers.command("load").arg(&file).spawn().unwrap();
        thread::sleep(Duration::from_millis(60 + 40 * turn));
        // An error means that the process has ended.
        let _ = victim.kill();
        let _ = victim.wait();
        let started = Instant::now();
        let loaded = servers.load(&lines);
        assert!(loaded.status.success(), "{loaded:?}");
        assert!(started.elapsed() < Duration::from_secs(60));
    }
    let all = servers.print("scan", &[]);
    let expected: String = (7_500..8_000)
        .map(|n| format!("{:05}\t{n}\n", n % 500))
        .collect();
    assert_eq!(all, expected);
}
