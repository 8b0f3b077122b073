//! Eviction on a real pool, with several workers and across kills.

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use farbank_server::resp::request;
use rustix::process::Signal;
use support::ServerProcess;

/// `maxmemory` of the servers, and the length of the values.
const BYTES_MAX: u64 = 1 << 18;
const VALUE_BYTES: usize = 200;
/// Clients that write, and the number of keys that each of them writes: many more than fit.
const CLIENTS: usize = 3;
const KEYS: u64 = 3000;

fn start(pool: &Path, policy: &str) -> ServerProcess {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farbank"));
    command
        .args(["serve", "--port", "0", "--memcached-port", "off"])
        .args(["--workers", "3", "--size", "32mb", "--set"])
        .arg(format!("maxmemory={BYTES_MAX}"))
        .args(["--set", &format!("maxmemory-policy={policy}"), "--pool"])
        .arg(pool)
        .stderr(Stdio::null());
    ServerProcess::start(&mut command)
}

fn connect(server: &ServerProcess) -> Client {
    let stream = server.connect();
    let lines = BufReader::new(stream.try_clone().expect("a socket"));
    Client { stream, lines }
}

struct Client {
    stream: TcpStream,
    lines: BufReader<TcpStream>,
}

impl Client {
    /// Sends requests together. `None`: the server has ended.
    fn send(&mut self, requests: &[Vec<String>]) -> Option<()> {
        let mut bytes = Vec::new();
        requests.iter().for_each(|words| request(&mut bytes, words));
        self.stream.write_all(&bytes).ok()
    }

    /// Reads a line. `None`: the server has ended.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(bytes) if bytes > 0 && line.ends_with('\n') => Some(line.trim_end().to_owned()),
            _ => None,
        }
    }

    /// Returns the value of a key, which is a number; `Some(None)`: the key does not exist.
    fn get(&mut self, key: &str) -> Option<Option<u64>> {
        self.send(&[vec!["GET".into(), key.into()]])?;
        if self.line()? == "$-1" {
            return Some(None);
        }
        Some(Some(self.line()?.parse().expect("a number")))
    }

    /// Returns a field of INFO.
    fn figure(&mut self, name: &str) -> u64 {
        self.send(&[vec!["INFO".into(), "everything".into()]])
            .expect("a server");
        let length = self.line().expect("a length");
        let length: usize = length[1..].parse().expect("a length");
        let (mut read, mut found) = (0, None);
        while read < length + 2 {
            let mut line = String::new();
            read += self.lines.read_line(&mut line).expect("a line");
            if let Some(value) = line.strip_prefix(&format!("{name}:")) {
                found = value.trim_end().parse().ok();
            }
        }
        found.expect("a figure")
    }
}

fn set(key: &str, number: u64) -> Vec<String> {
    let value = format!("{number:0>VALUE_BYTES$}");
    ["SET", key, &value, "EX", "10000"]
        .map(str::to_owned)
        .into()
}

/// The values of a key that its client may find.
#[derive(Clone, Copy, Default)]
struct Allowed {
    /// The last acknowledged value, if the key was not found evicted since.
    acknowledged: Option<u64>,
    /// The first and the last value that was sent after it.
    sent: Option<(u64, u64)>,
}

/// A client that alone writes its keys.
struct Writer {
    number: usize,
    keys: BTreeMap<u64, Allowed>,
    /// The next value.
    next: u64,
}

impl Writer {
    fn name(&self, key: u64) -> String {
        format!("client{}:{key}", self.number)
    }

    /// Writes and reads keys until the server ends.
    fn run(&mut self, mut client: Client) {
        loop {
            self.next += 1;
            let (value, key) = (self.next, self.next.wrapping_mul(7919) % KEYS);
            let allowed = self.keys.entry(key).or_default();
            let first = allowed.sent.map_or(value, |(first, _)| first);
            allowed.sent = Some((first, value));
            if client.send(&[set(&self.name(key), value)]).is_none() {
                return;
            }
            match client.line() {
                None => return,
                Some(reply) => assert_eq!(reply, "+OK"),
            }
            self.keys.entry(key).or_default().acknowledged = Some(value);
            self.keys.entry(key).or_default().sent = None;
            let read = (value * 31) % KEYS;
            let Some(found) = client.get(&self.name(read)) else {
                return;
            };
            self.judge(read, found);
        }
    }

    /// Checks what was found at a key.
    fn judge(&mut self, key: u64, found: Option<u64>) {
        let name = self.name(key);
        let allowed = self.keys.entry(key).or_default();
        if let Some(found) = found {
            let is_sent = allowed
                .sent
                .is_some_and(|(first, last)| (first..=last).contains(&found));
            assert!(
                is_sent || allowed.acknowledged == Some(found),
                "{name} holds {found}, expected {:?} or {:?}",
                allowed.acknowledged,
                allowed.sent
            );
        }
        // An evicted key stays absent until it is written again.
        *allowed = Allowed {
            acknowledged: found,
            sent: None,
        };
    }
}

#[test]
fn a_write_survives_a_kill_or_its_key_was_evicted_and_evicted_keys_stay_so() {
    /// Keys that a server evicts before it is killed.
    const EVICTED: u64 = 500;
    let dir = tempfile::tempdir().expect("a folder");
    let pool = dir.path().join("pool");
    let mut writers: Vec<_> = (0..CLIENTS)
        .map(|number| Writer {
            number,
            keys: BTreeMap::new(),
            next: 0,
        })
        .collect();
    for policy in [
        "allkeys-lru",
        "volatile-lfu",
        "allkeys-random",
        "volatile-ttl",
    ] {
        let mut server = start(&pool, policy);
        std::thread::scope(|scope| {
            for writer in &mut writers {
                let client = connect(&server);
                scope.spawn(move || writer.run(client));
            }
            let mut watcher = connect(&server);
            let mut evicted = 0;
            for _ in 0..400 {
                std::thread::sleep(Duration::from_millis(50));
                evicted = watcher.figure("evicted_keys");
                if evicted > EVICTED {
                    break;
                }
            }
            assert!(evicted > EVICTED, "{policy}: {evicted} keys were evicted");
            server.end(Signal::KILL);
        });
        let server = start(&pool, policy);
        let mut client = connect(&server);
        let mut found = 0;
        for writer in &mut writers {
            let keys: Vec<_> = writer.keys.keys().copied().collect();
            for key in keys {
                let value = client.get(&writer.name(key)).expect("a server");
                found += u64::from(value.is_some());
                writer.judge(key, value);
            }
        }
        assert!(found * VALUE_BYTES as u64 <= BYTES_MAX, "{found} keys");
        assert!(found > 250, "{found} keys");
    }
}

#[test]
fn a_pipelined_load_of_several_workers_stays_near_the_limit() {
    /// Requests of a client that are one batch.
    const BATCH: u64 = 25;
    const BATCHES: u64 = 200;
    let dir = tempfile::tempdir().expect("a folder");
    let server = start(&dir.path().join("pool"), "allkeys-lfu");
    std::thread::scope(|scope| {
        for number in 0..CLIENTS as u64 {
            let mut client = connect(&server);
            scope.spawn(move || {
                for batch in 0..BATCHES {
                    let key = |n| format!("{number}:{}", batch * BATCH + n);
                    let requests: Vec<_> = (0..BATCH).map(|n| set(&key(n), n)).collect();
                    client.send(&requests).expect("a server");
                    for _ in 0..BATCH {
                        assert_eq!(client.line().as_deref(), Some("+OK"));
                    }
                }
            });
        }
    });
    let mut client = connect(&server);
    client.send(&[set("new", 1)]).expect("a server");
    assert_eq!(client.line().as_deref(), Some("+OK"));
    let frequency = ["OBJECT", "FREQ", "new"].map(str::to_owned).into();
    client.send(&[frequency]).expect("a server");
    assert_eq!(client.line().as_deref(), Some(":5"));
    let live = client.figure("pool_live_bytes");
    let least = BYTES_MAX - 2 * BATCH * VALUE_BYTES as u64 * CLIENTS as u64;
    let most = BYTES_MAX + 2 * BATCH * VALUE_BYTES as u64 * CLIENTS as u64;
    assert!((least..=most).contains(&live), "{live} bytes are live");
}
