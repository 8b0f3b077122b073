//! Memory and latency cost of hostile requests: the test calls each command with its most expensive arguments.
//!
//! The commands come from `COMMAND LIST` of a real `farbank serve` process. A command without arguments here fails
//! the test, so that a new command gets some. With each engine, clients that do not read send each request
//! repeatedly, while another client measures the latency of a small GET. The memory of the process must then not
//! exceed its previous size by more than the limit and [`SLACK_BYTES`].

mod requests;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use requests::{BIG_BYTES, MIB, combinations, memcached, of, request, words, worst};

/// Memory that the process may use beyond the limit.
const SLACK_BYTES: usize = 64 * MIB;
/// Memory that a script may use on the thread of long requests, whatever the limits on clients are.
const SCRIPT_BYTES: usize = 256 * MIB;
/// Size in bytes from which the allocator returns memory to the kernel at once. Without it, glibc keeps up to twice the
/// limit of freed buffers for the next ones, and the test would not see what the server holds.
const RETURNED_BYTES: &str = "131072";
/// Number of repetitions of a repeatable argument.
const MANY: usize = 8_000;
/// Factor by which requests are repeated less often than in the suite.
const REPEATED_LESS: usize = 8;
/// Connections that send a request at the same time.
const CLIENTS: usize = 3;
/// Latency samples of the other client between two looks at whether the requests have ended.
const ROUND_SAMPLES: usize = 50;
/// Time after which an unanswered request counts as hung.
const HUNG: Duration = Duration::from_secs(60);

/// A server with a pool in memory.
struct Serving {
    child: Child,
    addr: String,
    memcached_addr: String,
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Serving {
    fn start(pool: &Path, engine: &str) -> Serving {
        let mut child = Command::new(env!("CARGO_BIN_EXE_farbank"))
            .args(["serve", "--port", "0", "--memcached-port", "0"])
            .args(["--size", "192mb", "--workers", "1", "--read-cache", "1mb"])
            .args(["--log-level", "off", "--engine", engine, "--pool"])
            .arg(pool)
            .env("MALLOC_MMAP_THRESHOLD_", RETURNED_BYTES)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let (mut addr, mut memcached_addr) = (String::new(), String::new());
        while addr.is_empty() || memcached_addr.is_empty() {
            let mut line = String::new();
            assert_ne!(
                stdout.read_line(&mut line).unwrap(),
                0,
                "the server has ended"
            );
            let after = |scheme: &str| {
                let rest = line.split(scheme).nth(1)?;
                let end = rest.find(|c: char| c != '.' && c != ':' && !c.is_ascii_digit());
                Some(rest[..end.unwrap_or(rest.len())].to_owned())
            };
            addr = after("redis://").unwrap_or(addr);
            memcached_addr = after("memcached://").unwrap_or(memcached_addr);
        }
        // Drain its later output, so that it never blocks.
        std::thread::spawn(move || drop(stdout.read_to_end(&mut Vec::new())));
        Serving {
            child,
            addr,
            memcached_addr,
        }
    }

    fn connect(&self) -> TcpStream {
        connect(&self.addr)
    }

    /// Returns the anonymous memory of the process in bytes.
    fn anonymous_bytes(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let kib: Option<usize> = line.and_then(|l| l.trim().strip_suffix(" kB")?.parse().ok());
        kib.expect("the kernel says how much memory a process has") * 1024
    }
}

fn connect(addr: &str) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(HUNG)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Sends requests and reads one line for each.
fn ask(stream: &mut TcpStream, requests: &[u8], lines: usize) -> Vec<String> {
    stream.write_all(requests).unwrap();
    let mut reader = BufReader::new(stream);
    (0..lines)
        .map(|_| {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        })
        .collect()
}

/// Whether the server has closed all connections but this one. A long request runs on after its client has closed the
/// connection.
fn is_only_client(stream: &mut TcpStream) -> bool {
    stream.write_all(&of("CLIENT LIST")).unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    reader.read_line(&mut head).unwrap();
    let list_bytes: usize = head[1..].trim_end().parse().unwrap();
    let mut list = vec![0; list_bytes + "\r\n".len()];
    reader.read_exact(&mut list).unwrap();
    list.iter().filter(|byte| **byte == b'\n').count() == 2
}

/// Returns the names of all commands and subcommands of the server that pass one of `filters` of COMMAND LIST.
fn commands(serving: &Serving, filters: &[&str]) -> BTreeSet<String> {
    let mut stream = BufReader::new(serving.connect());
    let mut line = move |request: &[u8]| {
        stream.get_mut().write_all(request).unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    };
    let mut names = BTreeSet::new();
    for filter in filters {
        let head = line(&of(&format!("COMMAND LIST FILTERBY {filter}")));
        for _ in 0..head[1..].parse::<usize>().unwrap() {
            line(b"");
            names.insert(line(b""));
        }
    }
    names
}

/// Sends `bytes`, lets the replies wait, then reads them, so that the server executes all requests unless it closes the
/// connection.
fn send_without_reading(mut stream: TcpStream, bytes: &[u8]) {
    let (send_max, wait, read_max) = (
        Duration::from_millis(300),
        Duration::from_millis(20),
        Duration::from_secs(2),
    );
    stream.set_write_timeout(Some(send_max)).unwrap();
    // The server may close the connection, or stop reading, at any point.
    if stream.write_all(bytes).is_ok() {
        std::thread::sleep(wait);
        drop(stream.shutdown(Shutdown::Write));
        let start = Instant::now();
        stream.set_read_timeout(Some(read_max)).unwrap();
        let mut replies = vec![0; 64 << 10];
        while start.elapsed() < read_max && stream.read(&mut replies).is_ok_and(|n| n > 0) {}
    }
    drop(stream.shutdown(Shutdown::Both));
}

/// Cost of a request.
struct Cost {
    name: String,
    /// Peak memory of the server beyond its previous size.
    bytes: usize,
    /// 99th percentile and maximum of the other client's latency.
    p99: Duration,
    longest: Duration,
}

/// Sends `bytes` from [`CLIENTS`] connections that do not read the replies, and measures the cost until the server has
/// executed or dropped all the requests.
fn attack(
    serving: &Serving,
    addr: &str,
    name: &str,
    bytes: &[u8],
    bystander: &mut TcpStream,
) -> Cost {
    let before = serving.anonymous_bytes();
    let done = AtomicBool::new(false);
    let (mut most, mut waits) = (before, Vec::new());
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::Relaxed) {
                most = most.max(serving.anonymous_bytes());
                std::thread::sleep(Duration::from_micros(500));
            }
            most
        });
        let attackers: Vec<_> = (0..CLIENTS)
            .map(|_| scope.spawn(|| send_without_reading(connect(addr), bytes)))
            .collect();
        let start = Instant::now();
        while attackers.iter().any(|attacker| !attacker.is_finished())
            || waits.len() % ROUND_SAMPLES != 0
            || waits.is_empty()
            || !is_only_client(bystander)
        {
            if start.elapsed() > HUNG {
                done.store(true, Ordering::Relaxed);
                panic!("{name} goes on");
            }
            let began = Instant::now();
            assert_eq!(
                ask(bystander, &of("GET small"), 2),
                ["$1", "s"],
                "after {name}"
            );
            waits.push(began.elapsed());
            std::thread::sleep(Duration::from_micros(200));
        }
        done.store(true, Ordering::Relaxed);
        most = most.max(watch.join().unwrap());
    });
    waits.sort_unstable();
    Cost {
        name: name.to_owned(),
        bytes: most - before,
        p99: waits[waits.len() * 99 / 100],
        longest: waits[waits.len() - 1],
    }
}

fn fill(stream: &mut TcpStream) {
    let big = "b".repeat(BIG_BYTES);
    assert_eq!(ask(stream, &of(&format!("SET big {big}")), 1), ["+OK"]);
    assert_eq!(ask(stream, &of("SET small s"), 1), ["+OK"]);
}

/// Runs every attack under a limit on replies and on all clients. Returns the costs.
fn attack_all(engine: &str, limit: &str, filters: &[&str]) -> Vec<Cost> {
    let folder = tempfile::tempdir_in(if Path::new("/dev/shm").is_dir() {
        "/dev/shm"
    } else {
        "."
    });
    let folder = folder.unwrap();
    let serving = Serving::start(&folder.path().join("hostile.pool"), engine);
    let mut admin = serving.connect();
    // Its value of 1 MB may be the largest part of the memory of all clients while earlier attackers are being closed.
    assert_eq!(ask(&mut admin, &of("CLIENT NO-EVICT ON"), 1), ["+OK"]);
    fill(&mut admin);
    for at in 0..10 {
        let pairs: String = (0..1_000).map(|n| format!(" key{at}-{n} v")).collect();
        assert_eq!(ask(&mut admin, &of(&format!("MSET{pairs}")), 1), ["+OK"]);
    }
    let mut limits = words("CONFIG SET client-output-buffer-limit");
    limits.push(format!("normal {limit} 0 0").into_bytes());
    limits.extend(words(&format!("maxmemory-clients {limit}")));
    assert_eq!(ask(&mut admin, &request(&limits), 1), ["+OK"]);
    let mut attacks: Vec<(String, &str, Vec<u8>)> = Vec::new();
    for name in commands(&serving, filters) {
        let request = worst(&name);
        let request = request.unwrap_or_else(|| panic!("give `{name}` its worst arguments"));
        attacks.push((name, &serving.addr, request));
    }
    attacks.extend(
        combinations()
            .into_iter()
            .map(|(n, r)| (n.to_owned(), &*serving.addr, r)),
    );
    let named = |(name, request)| {
        (
            format!("memcached {name}"),
            &*serving.memcached_addr,
            request,
        )
    };
    attacks.extend(memcached().into_iter().map(named));
    attacks
        .iter()
        .map(|(name, addr, request)| {
            fill(&mut admin);
            attack(&serving, addr, name, request, &mut admin)
        })
        .collect()
}

fn report(title: &str, costs: &[Cost]) {
    println!(
        "{title}\n{:>24} {:>10} {:>10} {:>10}",
        "request", "MiB more", "p99 ms", "max ms"
    );
    for Cost {
        name,
        bytes,
        p99,
        longest,
    } in costs
    {
        let ms = |time: &Duration| time.as_secs_f64() * 1e3;
        let mib = *bytes as f64 / MIB as f64;
        println!(
            "{name:>24} {mib:>10.1} {:>10.2} {:>10.2}",
            ms(p99),
            ms(longest)
        );
    }
}

fn stay_within(engine: &str, limit_mib: usize, filters: &[&str]) {
    let limit = format!("{limit_mib}mb");
    let costs = attack_all(engine, &limit, filters);
    report(&format!("{engine}, limits of {limit}:"), &costs);
    let most = limit_mib * MIB + SLACK_BYTES;
    for Cost { name, bytes, .. } in &costs {
        let most = match name.starts_with("eval") || name.starts_with("fcall") {
            true => most + SCRIPT_BYTES,
            false => most,
        };
        assert!(
            *bytes <= most,
            "{name}: {bytes} bytes more, at most {most} are allowed"
        );
    }
}

#[test]
#[ignore = "the suite `long-tests` runs it"]
fn no_request_exceeds_the_memory_limit_of_the_durable_engine() {
    stay_within("kv", 2, &["PATTERN *"]);
}

/// Commands that use no key run the same code with both engines.
#[test]
#[ignore = "the suite `long-tests` runs it"]
fn no_request_on_keys_exceeds_the_memory_limit_of_the_cache() {
    stay_within("mdb", 16, &["ACLCAT read", "ACLCAT write"]);
}
