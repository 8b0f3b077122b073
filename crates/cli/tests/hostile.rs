//! What hostile requests cost a server: each command of its own table is called with its worst arguments.
//!
//! The commands come from `COMMAND LIST` of a real `farbank serve` process. A command that has no worst arguments here
//! fails the test, so that a new one is given some. For every limit of replies, each request is sent again and
//! again by clients that do not read, while another client measures how long it waits for a small GET. Then
//! the process may not have had more memory than the limit and [`SLACK_BYTES`] beyond what it had before.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// Memory that is allowed beyond the limit.
const SLACK_BYTES: usize = 64 * MIB;
/// Length of the value at `big`: a cache's largest item, nearly.
const BIG_BYTES: usize = 1_000_000;
/// Connections that send a request at the same time.
const CLIENTS: usize = 3;
/// Repetitions of an argument that may be repeated.
const MANY: usize = 20_000;
/// How often the other client measures, at least.
const SAMPLES_MIN: usize = 200;
/// A request that is not answered by then has hung.
const HUNG: Duration = Duration::from_secs(60);

/// A server of a pool in memory.
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
        // What it prints when it ends is read by nobody else.
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

    /// Memory of the process that is no file, in bytes: now, and at most since the last reset.
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

fn request(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn of(line: &str) -> Vec<u8> {
    request(&words(line))
}

fn words(line: &str) -> Vec<Vec<u8>> {
    line.split(' ')
        .map(|word| word.as_bytes().to_vec())
        .collect()
}

/// `line`, then `more` again and again.
fn times(line: &str, more: &str, count: usize) -> Vec<u8> {
    let mut all = words(line);
    all.extend(
        words(more)
            .into_iter()
            .cycle()
            .take(count * words(more).len()),
    );
    request(&all)
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

/// The names of every command and subcommand the server knows.
fn commands(serving: &Serving) -> Vec<String> {
    let mut stream = serving.connect();
    stream
        .write_all(&of("COMMAND LIST FILTERBY PATTERN *"))
        .unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let count: usize = lines.next().unwrap()[1..].parse().unwrap();
    (0..count)
        .map(|_| {
            lines.next();
            lines.next().unwrap()
        })
        .collect()
}

/// Requests of a connection that has one mebibyte at `big`, and many keys.
///
/// Each is the worst that one command can be asked for: the argument that may be repeated is, names and patterns
/// are long, values are large. `None`: the command is not known here.
fn worst(command: &str) -> Option<Vec<u8>> {
    let long = "a".repeat(60_000);
    let value = "v".repeat(MIB);
    let distinct = |command: &str| {
        let names: String = (0..MANY).map(|at| format!(" key{at}")).collect();
        of(&format!("{command}{names}"))
    };
    Some(match command {
        "get" | "getdel" | "getex" | "type" | "strlen" | "ttl" | "pttl" | "expiretime"
        | "pexpiretime" | "persist" => of(&format!("{command} big")).repeat(500),
        "mget" => times(command, "big", MANY),
        "exists" | "touch" => times(command, "big", MANY),
        "del" | "unlink" => [distinct(command), times(command, "none", MANY)].concat(),
        "watch" => [distinct(command), times(command, "big", MANY)].concat(),
        "mset" | "msetnx" => times(command, "same value", MANY),
        "set" => of(&format!("SET big {value} GET")).repeat(20),
        "getset" => of(&format!("GETSET big {value}")).repeat(20),
        "setnx" | "append" => of(&format!("{command} other {value}")).repeat(4),
        "setex" | "psetex" => of(&format!("{command} other 100000 {value}")).repeat(10),
        "incr" | "decr" => of(&format!("{command} big")).repeat(500),
        "incrby" | "decrby" => of(&format!("{command} big 1")).repeat(500),
        "expire" | "pexpire" | "expireat" | "pexpireat" => {
            of(&format!("{command} big 99999999999")).repeat(20)
        }
        "keys" => [of("KEYS *"), of(&format!("KEYS {}b", "*a".repeat(5_000)))].concat(),
        "scan" => {
            let all = of("SCAN 0 COUNT 1000000000");
            let matching = of(&format!(
                "SCAN 0 COUNT 1000000 MATCH {}b",
                "*a".repeat(5_000)
            ));
            [all.repeat(50), matching].concat()
        }
        "dbsize" | "time" | "ping" | "readonly" | "unwatch" | "discard" | "exec" | "multi"
        | "reset" | "client|id" | "client|getname" | "client|getredir" | "client|help"
        | "command|count" | "command|help" | "config|help" | "config|resetstat"
        | "config|rewrite" | "quit" => of(&command.replace('|', " ")).repeat(5_000),
        "echo" => of(&format!("ECHO {value}")).repeat(20),
        "select" => of("SELECT 1").repeat(5_000),
        "hello" => of(&format!("HELLO 3{}", format!(" SETNAME {long}").repeat(20))).repeat(5),
        "auth" => of(&format!("AUTH default {long}")).repeat(50),
        // Later requests need the keys: of another database, none are lost.
        "flushdb" => [of("SELECT 9"), of("FLUSHDB").repeat(100)].concat(),
        "flushall" => of("FLUSHALL wrong").repeat(1_000),
        "client" | "config" => of(command).repeat(5_000),
        "command" => of(command).repeat(1_000),
        "info" => times(command, "everything", MANY),
        "shutdown" => [
            of("SHUTDOWN ABORT").repeat(1_000),
            times(command, "wrong", MANY),
        ]
        .concat(),
        "client|setname" => of(&format!("CLIENT SETNAME {long}")).repeat(50),
        "client|setinfo" => of(&format!("CLIENT SETINFO LIB-NAME {long}")).repeat(50),
        "client|list" => times("CLIENT LIST ID", "1", MANY),
        "client|info" => of("CLIENT INFO").repeat(5_000),
        "client|kill" => times("CLIENT KILL", "ID 999999999", MANY).repeat(3),
        "client|reply" => of("CLIENT REPLY OFF").repeat(5_000),
        "client|no-evict" | "client|no-touch" => {
            of(&format!("{} OFF", command.replace('|', " "))).repeat(5_000)
        }
        "command|info" | "command|docs" => times(&command.replace('|', " "), "client", MANY),
        "command|list" => of(&format!(
            "COMMAND LIST FILTERBY PATTERN {}b",
            "*a".repeat(30_000)
        ))
        .repeat(10),
        "command|getkeys" | "command|getkeysandflags" => times(
            &format!("{} MGET", command.replace('|', " ")),
            &long[..100],
            MANY,
        ),
        "config|get" => times("CONFIG GET", "*a*a*a*a*a*b", MANY),
        "config|set" => times("CONFIG SET", "timeout 0", MANY),
        _ => return None,
    })
}

/// Transactions and pipelines, whose replies add up.
fn combinations() -> Vec<(&'static str, Vec<u8>)> {
    let transaction =
        |of_one: &str, count: usize| [of("MULTI"), of(of_one).repeat(count), of("EXEC")].concat();
    let watched: Vec<u8> = (0..40)
        .flat_map(|from| {
            let names: String = (0..1_000).map(|at| format!(" k{from}-{at}")).collect();
            of(&format!("WATCH{names}"))
        })
        .collect();
    vec![
        ("MULTI of GET", transaction("GET big", 2_000)),
        ("MULTI of MGET", transaction("MGET big big big big", 500)),
        ("MULTI of COMMAND", transaction("COMMAND DOCS", 2_000)),
        (
            "MULTI of SET and GET",
            transaction("SET same value GET", 5_000),
        ),
        (
            "MULTI without EXEC",
            [
                of("MULTI"),
                of(&format!("SET k {}", "v".repeat(MIB))).repeat(30),
            ]
            .concat(),
        ),
        (
            "WATCH of 40,000",
            [watched, of("MULTI"), of("GET key1"), of("EXEC")].concat(),
        ),
        (
            "half a request",
            b"*2\r\n$3\r\nGET\r\n$100000000\r\n"
                .iter()
                .copied()
                .chain(std::iter::repeat_n(b'x', 8 * MIB))
                .collect(),
        ),
    ]
}

/// As [`worst`], of memcached's commands.
fn memcached() -> Vec<(&'static str, Vec<u8>)> {
    let keys = " big".repeat(500);
    vec![
        ("get", format!("get{keys}\r\n").repeat(40).into_bytes()),
        ("gat", format!("gat 0{keys}\r\n").into_bytes()),
        ("mg", "mg big v k f c t s\r\n".repeat(2_000).into_bytes()),
        ("mg T", "mg big v T0\r\n".repeat(500).into_bytes()),
        ("stats", "stats\r\n".repeat(2_000).into_bytes()),
        (
            "stats cachedump",
            "stats cachedump 1 0\r\n".repeat(50).into_bytes(),
        ),
        ("me", "me big\r\n".repeat(5_000).into_bytes()),
    ]
}

/// What a request did to the server.
struct Cost {
    name: String,
    /// Most memory it had beyond what it had before.
    bytes: usize,
    /// 99th percentile, and the longest, of what another client waited.
    p99: Duration,
    longest: Duration,
}

/// Sends `bytes` from [`CLIENTS`] connections that do not read, twice, and measures.
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
            .map(|_| {
                scope.spawn(|| {
                    let mut stream = connect(addr);
                    stream
                        .set_write_timeout(Some(Duration::from_millis(300)))
                        .unwrap();
                    // It may be closed, or left waiting, at any point.
                    if stream.write_all(bytes).is_ok() {
                        stream
                            .set_read_timeout(Some(Duration::from_millis(20)))
                            .unwrap();
                        drop(stream.read(&mut [0; 16]));
                    }
                    drop(stream.shutdown(Shutdown::Both));
                })
            })
            .collect();
        while waits.len() < SAMPLES_MIN || attackers.iter().any(|attacker| !attacker.is_finished())
        {
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

/// Runs every attack under a limit of replies and of all clients; the table of what they cost.
fn attack_all(engine: &str, output_limit: &str, clients_limit: &str) -> Vec<Cost> {
    let folder = tempfile::tempdir_in(if Path::new("/dev/shm").is_dir() {
        "/dev/shm"
    } else {
        "."
    });
    let folder = folder.unwrap();
    let serving = Serving::start(&folder.path().join("hostile.pool"), engine);
    let mut admin = serving.connect();
    fill(&mut admin);
    for at in 0..20 {
        let pairs: String = (0..1_000).map(|n| format!(" key{at}-{n} v")).collect();
        assert_eq!(ask(&mut admin, &of(&format!("MSET{pairs}")), 1), ["+OK"]);
    }
    let mut limits = words("CONFIG SET client-output-buffer-limit");
    limits.push(format!("normal {output_limit} 0 0").into_bytes());
    limits.extend(words(&format!("maxmemory-clients {clients_limit}")));
    assert_eq!(ask(&mut admin, &request(&limits), 1), ["+OK"]);
    let mut attacks: Vec<(String, &str, Vec<u8>)> = Vec::new();
    for name in commands(&serving) {
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

fn stay_within(engine: &str, limit_mib: usize) {
    let limit = format!("{limit_mib}mb");
    let costs = attack_all(engine, &limit, &limit);
    report(&format!("{engine}, limits of {limit}:"), &costs);
    let most = limit_mib * MIB + SLACK_BYTES;
    for Cost { name, bytes, .. } in &costs {
        assert!(
            *bytes <= most,
            "{name}: {bytes} bytes more, at most {most} are allowed"
        );
    }
}

#[test]
fn no_request_takes_more_memory_than_the_limit_of_the_durable_engine() {
    stay_within("kv", 2);
    stay_within("kv", 64);
}

#[test]
fn no_request_takes_more_memory_than_the_limit_of_the_cache() {
    stay_within("mdb", 16);
}
