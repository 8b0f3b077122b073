//! Suite `hostile`: measures how much the most expensive requests of one client delay other clients.
//!
//! ```text
//!   attackers   send one request repeatedly, read no reply, and are disconnected
//!   bystander   sends GETs of a small value, one at a time, and measures how long each takes
//! ```
//!
//! All of them run on the server's machine. Attackers have a lower priority than the server and the bystander, so that
//! the bystander waits for the server and not for a CPU that an attacker uses. The kernel may still keep the server's
//! worker or the bystander waiting for a CPU. One column shows the p99 without that time (`schedstat`). The bound
//! applies to the p99 with it, because other threads of the server may have used the CPU. On a virtual machine the
//! host may take a CPU away. A slow attack during which that happened (`steal`) does not count and is repeated.
//!
//! The server is on tmpfs and has many keys. The requests are those of the command line's test `hostile`, in which
//! every command of the server has its most expensive arguments, and some requests that visit or write many keys.

#[path = "../../crates/cli/tests/hostile/requests.rs"]
mod requests;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use requests::{BIG_BYTES, MIB, combinations, memcached, of, worst};

use crate::RunSize;
use crate::run::farbank;
use crate::serving::Serving;

/// Number of repetitions of a repeatable argument.
const MANY: usize = 20_000;
/// Factor by which requests are repeated less often. The test of the command line has a higher one.
const REPEATED_LESS: usize = 1;
/// Number of connections that send a request at the same time.
const ATTACKERS: usize = 3;
/// Least duration of an attack.
const ATTACK: Duration = Duration::from_millis(250);
/// Number of requests that the bystander sends before an attack ends. An attack lasts at most [`ATTACK_MAX`].
const SAMPLES: usize = 300;
const ATTACK_MAX: Duration = Duration::from_secs(5);
/// Number of attacks with a request that delayed another client for too long. Their median counts, because a machine
/// with other work sometimes stops all processes for 10 ms.
const ATTACKS_MAX: usize = 3;
/// Number of slow attacks that may be ignored because the host of the virtual machine took a CPU.
const DISTURBED_MAX: usize = 12;
/// Increment of an attacker's niceness. Clients of a real server have CPUs of their own.
const ATTACKER_NICE: i32 = 15;
/// Time after which a request without a reply counts as hung.
const HUNG: Duration = Duration::from_secs(60);
/// Keys per request while the server is filled; so few that the request is short.
const LOADED: usize = 90;
/// Line of INFO when no attacker is connected.
const ALONE: &[u8] = b"connected_clients:1\r\n";
/// Limit of the replies of one client, and of the memory of all clients.
const REPLIES_LIMIT: &str = "64mb";
/// Largest allowed growth of the server's memory during an attack: twice the limit.
const BYTES_MAX: usize = 128 * MIB;

/// Returns the number of keys in the server.
fn keys(size: RunSize) -> usize {
    match size {
        RunSize::Suite => 200_000,
        RunSize::Gate => 1_000_000,
    }
}

/// Returns the bound on the p99 of the bystander's requests. It is higher for a suite, which runs on busy machines.
fn bound(size: RunSize) -> Duration {
    match size {
        RunSize::Suite => Duration::from_millis(50),
        RunSize::Gate => Duration::from_millis(10),
    }
}

pub(crate) fn run(size: RunSize) -> Result<(), String> {
    let folder = if Path::new("/dev/shm").is_dir() {
        "/dev/shm"
    } else {
        "/tmp"
    };
    let pool = format!("{folder}/farbank-hostile-{}.pool", std::process::id());
    let outcome = attack_all(size, &pool);
    let _ = fs::remove_file(&pool);
    outcome
}

fn attack_all(size: RunSize, pool: &str) -> Result<(), String> {
    let mut serve = farbank();
    serve.args([
        "serve",
        "--port",
        "0",
        "--memcached-port",
        "0",
        "--pool",
        pool,
    ]);
    serve.args([
        "--size",
        "1gb",
        "--max-size",
        "2gb",
        "--workers",
        "1",
        "--log-level",
        "off",
    ]);
    let server = Serving::start(&mut serve, "redis://")?;
    let addr = format!("127.0.0.1:{}", server.port);
    let mut admin = connect(&addr)?;
    let limits = format!(
        "client-output-buffer-limit \"normal {REPLIES_LIMIT} 0 0\" maxmemory-clients {REPLIES_LIMIT}"
    );
    ask(&mut admin, format!("CONFIG SET {limits}\r\n").as_bytes())?;
    // The server disconnects the largest clients when all together use too much memory. This connection is exempt.
    ask(&mut admin, &of("CLIENT NO-EVICT on"))?;
    fill(&mut admin, keys(size))?;
    let mut attacks = Vec::new();
    for name in commands(&mut admin)? {
        let request = worst(&name)
            .ok_or_else(|| format!("the command {name} has no entry in requests.rs"))?;
        attacks.push((name, request));
    }
    attacks.extend(
        combinations()
            .into_iter()
            .map(|(name, request)| (name.to_owned(), request)),
    );
    attacks.extend(many_keys());
    let memcached_addr = server
        .memcached_addr
        .clone()
        .ok_or("the server's banner names no memcached address")?;
    println!(
        "{:>24} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "request", "sent", "p50 ms", "p99 ms", "max ms", "own p99", "MiB more"
    );
    let worker = worker_of(&server)?;
    let mut bad = Vec::new();
    let mut one = |name: &str, addr: &str, request: &[u8], admin: &mut TcpStream| {
        let (mut costs, mut disturbed, mut bytes) = (Vec::new(), 0, 0);
        while costs.len() < ATTACKS_MAX {
            restore(admin)?;
            let stolen_before = stolen()?;
            let cost = attack(&server, &worker, addr, request, admin)?;
            show(name, &cost);
            bytes = bytes.max(cost.bytes);
            let is_slow = cost.p99 > bound(size);
            if is_slow && disturbed < DISTURBED_MAX && stolen()? > stolen_before {
                disturbed += 1;
                continue;
            }
            costs.push(cost);
            if costs.len() == 1 && !is_slow {
                break;
            }
        }
        costs.sort_by_key(|cost| cost.p99);
        let cost = &costs[costs.len() / 2];
        if cost.p99 > bound(size) {
            bad.push(format!(
                "{name}: the p99 of another client's requests is above {:?}",
                bound(size)
            ));
        }
        if bytes > BYTES_MAX {
            bad.push(format!(
                "{name}: the server's memory grew by {bytes} bytes, at most {BYTES_MAX} are allowed"
            ));
        }
        Ok::<_, String>(())
    };
    for (name, request) in &attacks {
        one(name, &addr, request, &mut admin)?;
    }
    for (name, request) in memcached() {
        let name = format!("memcached {name}");
        one(&name, &memcached_addr, &request, &mut admin)?;
    }
    drop(admin);
    server.end()?;
    match bad.is_empty() {
        true => Ok(()),
        false => Err(bad.join("; ")),
    }
}

/// Prints a line of the table.
fn show(name: &str, cost: &RequestCost) {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "{name:>24} {:>9} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.1}",
        cost.sent,
        ms(cost.p50),
        ms(cost.p99),
        ms(cost.longest),
        ms(cost.own_p99),
        cost.bytes as f64 / MIB as f64
    );
}

/// Returns requests that visit or write many of the keys that [`fill`] has stored.
fn many_keys() -> Vec<(String, Vec<u8>)> {
    let names = |from: usize, count: usize| {
        (from..from + count)
            .map(|at| format!(" k{at:07}"))
            .collect::<String>()
    };
    let pairs: String = (0..20_000).map(|at| format!(" k{at:07} other")).collect();
    let filler = "x".repeat(4 << 20);
    let wide = "x".repeat(32 << 20);
    [
        ("KEYS of nothing", of("KEYS nothing*")),
        ("MSET of 20,000", of(&format!("MSET{pairs}"))),
        ("MGET of 20,000", of(&format!("MGET{}", names(0, 20_000)))),
        (
            "EXISTS of 20,000",
            of(&format!("EXISTS{}", names(0, 20_000))),
        ),
        (
            "DEL of 10,000",
            of(&format!("DEL{}", names(30_000, 10_000))),
        ),
        (
            "APPEND to 16 MiB",
            [
                of(&format!("SET long {filler}")),
                of(&format!("APPEND long {filler}")).repeat(3),
                of("APPEND long x").repeat(20),
            ]
            .concat(),
        ),
        ("SET of 32 MiB", of(&format!("SET wide {wide}"))),
        (
            "GET of 32 MiB",
            [of(&format!("SET wide {wide}")), of("GET wide").repeat(4)].concat(),
        ),
        ("FLUSHALL", of("FLUSHALL")),
    ]
    .map(|(name, request)| (name.to_owned(), request))
    .into()
}

/// Effects of an attack on the server and on the bystander.
struct RequestCost {
    /// Number of times that the request was sent completely.
    sent: usize,
    p50: Duration,
    p99: Duration,
    longest: Duration,
    /// Like `p99`, without the time in which the worker or the bystander waited for a CPU.
    own_p99: Duration,
    /// Largest growth of the server's memory, in bytes.
    bytes: usize,
}

/// Sends `request` from [`ATTACKERS`] connections repeatedly, and measures the effects.
fn attack(
    server: &Serving,
    worker: &Path,
    addr: &str,
    request: &[u8],
    bystander: &mut TcpStream,
) -> Result<RequestCost, String> {
    let before = anonymous_bytes(server)?;
    let delayed = || {
        let tasks = [worker, Path::new("/proc/thread-self")];
        tasks
            .map(|task| run_delay(task).unwrap_or_default())
            .iter()
            .sum::<Duration>()
    };
    let start = Instant::now();
    let done = AtomicBool::new(false);
    let asked = AtomicUsize::new(0);
    // The bystander continues until all attackers have stopped.
    let enough = || {
        let time = start.elapsed();
        time >= ATTACK_MAX || (time >= ATTACK && asked.load(Ordering::Relaxed) >= SAMPLES)
    };
    let (mut waits, mut own_waits, mut sent, mut most) = (Vec::new(), Vec::new(), 0, before);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::Relaxed) {
                most = most.max(anonymous_bytes(server).unwrap_or(0));
                std::thread::sleep(Duration::from_millis(1));
            }
            most
        });
        let attackers: Vec<_> = (0..ATTACKERS)
            .map(|_| {
                scope.spawn(|| {
                    let mut sent = 0;
                    let _ = rustix::process::nice(ATTACKER_NICE);
                    while !enough() {
                        sent += usize::from(send(addr, request));
                    }
                    sent
                })
            })
            .collect();
        let mut outcome = Ok(());
        while attackers.iter().any(|attacker| !attacker.is_finished()) {
            let (delayed_before, began) = (delayed(), Instant::now());
            let answer = ask(bystander, &of("GET small"));
            let wait = began.elapsed();
            waits.push(wait);
            own_waits.push(wait.saturating_sub(delayed().saturating_sub(delayed_before)));
            asked.store(waits.len(), Ordering::Relaxed);
            // The value may be missing, because FLUSHALL removes it. Only errors count.
            outcome = outcome.and(answer.map(drop));
            std::thread::sleep(Duration::from_micros(200));
        }
        sent = attackers.into_iter().map(|a| a.join().unwrap_or(0)).sum();
        done.store(true, Ordering::Relaxed);
        most = most.max(watch.join().unwrap_or(0));
        outcome
    })?;
    waits.sort_unstable();
    own_waits.sort_unstable();
    let quantile = |waits: &[Duration], of_100: usize| waits[(waits.len() - 1) * of_100 / 100];
    Ok(RequestCost {
        sent,
        p50: quantile(&waits, 50),
        p99: quantile(&waits, 99),
        longest: quantile(&waits, 100),
        own_p99: quantile(&own_waits, 99),
        bytes: most.saturating_sub(before),
    })
}

/// Sends a request and waits briefly for the first bytes of its reply. Returns whether the whole request was sent.
fn send(addr: &str, request: &[u8]) -> bool {
    let Ok(mut stream) = connect(addr) else {
        return false;
    };
    // The server may close the connection or stop reading at any point.
    let _ = stream.set_write_timeout(Some(Duration::from_millis(300)));
    let sent = stream.write_all(request).is_ok();
    let _ = stream.set_read_timeout(Some(Duration::from_millis(50)));
    let _ = stream.read(&mut [0; 16]);
    let _ = stream.shutdown(Shutdown::Both);
    sent
}

fn connect(addr: &str) -> Result<TcpStream, String> {
    let stream = TcpStream::connect(addr).map_err(|e| format!("{addr}: {e}"))?;
    let set = stream
        .set_read_timeout(Some(HUNG))
        .and_then(|()| stream.set_nodelay(true));
    set.map_err(|e| e.to_string())?;
    Ok(stream)
}

/// Sends a request and reads its reply: one line or a bulk string.
fn ask(stream: &mut TcpStream, request: &[u8]) -> Result<Vec<u8>, String> {
    let no_answer = |e: std::io::Error| format!("no reply to a request: {e}");
    stream.write_all(request).map_err(no_answer)?;
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line).map_err(no_answer)?;
    match line.strip_prefix(b"$") {
        Some(len) if !line.starts_with(b"$-1") => {
            let len = String::from_utf8_lossy(len).trim().parse::<usize>();
            let mut value = vec![0; len.map_err(|e| e.to_string())? + 2];
            reader.read_exact(&mut value).map_err(no_answer)?;
            Ok(value)
        }
        _ if line.is_empty() => Err("the server closed a connection".into()),
        _ => Ok(line),
    }
}

/// Stores `keys` keys.
fn fill(admin: &mut TcpStream, keys: usize) -> Result<(), String> {
    for from in (0..keys).step_by(LOADED) {
        let pairs: String = (from..from + LOADED)
            .map(|at| format!(" k{at:07} value"))
            .collect();
        ask(admin, &of(&format!("MSET{pairs}")))?;
    }
    Ok(())
}

/// Disconnects all attackers, and stores again the values that the requests and the bystander read.
fn restore(admin: &mut TcpStream) -> Result<(), String> {
    ask(admin, &of("CLIENT KILL TYPE normal"))?;
    let end = Instant::now() + HUNG;
    while !ask(admin, &of("INFO clients"))?
        .windows(ALONE.len())
        .any(|bytes| bytes == ALONE)
    {
        if Instant::now() > end {
            return Err("attackers' connections are still open 60 s after CLIENT KILL".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    ask(admin, &of("SET small s"))?;
    let big = "b".repeat(BIG_BYTES);
    ask(admin, &of(&format!("SET big {big}"))).map(drop)
}

/// Returns the names of all commands and subcommands of the server.
fn commands(admin: &mut TcpStream) -> Result<Vec<String>, String> {
    let request = of("COMMAND LIST FILTERBY PATTERN *");
    admin.write_all(&request).map_err(|e| e.to_string())?;
    let mut lines = BufReader::new(admin).lines().map_while(Result::ok);
    let count = lines.next().unwrap_or_default();
    let count: usize = count
        .get(1..)
        .unwrap_or_default()
        .parse()
        .map_err(|_| count.clone())?;
    Ok((0..count).filter_map(|_| lines.nth(1)).collect())
}

/// Returns the time for which the host has taken CPUs from this virtual machine, in hundredths of a second.
fn stolen() -> Result<u64, String> {
    let stat = fs::read_to_string("/proc/stat").map_err(|e| format!("/proc/stat: {e}"))?;
    let cpus = stat.lines().next().unwrap_or_default();
    // cpu user nice system idle iowait irq softirq steal
    let steal = cpus.split_whitespace().nth(8);
    Ok(steal.and_then(|steal| steal.parse().ok()).unwrap_or(0))
}

/// Returns the folder in `/proc` of the server's only worker thread.
fn worker_of(server: &Serving) -> Result<PathBuf, String> {
    let tasks = format!("/proc/{}/task", server.id());
    let tasks = fs::read_dir(&tasks).map_err(|e| format!("{tasks}: {e}"))?;
    let is_worker = |task: &PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim_end() == "worker-0")
    };
    let mut tasks = tasks.flatten().map(|task| task.path());
    let worker = tasks.find(is_worker).ok_or("the server has no worker")?;
    run_delay(&worker)?; // fails if this kernel has no schedstat
    Ok(worker)
}

/// Returns the total time for which a thread was runnable and waited for a CPU. `task` is its folder in `/proc`.
fn run_delay(task: &Path) -> Result<Duration, String> {
    let path = task.join("schedstat");
    let error = |why: &str| format!("{}: {why}", path.display());
    let counted = fs::read_to_string(&path).map_err(|e| error(&e.to_string()))?;
    let nanos = counted
        .split_whitespace()
        .nth(1)
        .and_then(|nanos| nanos.parse().ok());
    nanos
        .map(Duration::from_nanos)
        .ok_or_else(|| error("has no second number"))
}

/// Returns the server's anonymous memory, in bytes.
fn anonymous_bytes(server: &Serving) -> Result<usize, String> {
    let status = fs::read_to_string(format!("/proc/{}/status", server.id()));
    let status = status.map_err(|e| format!("the server is gone: {e}"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<usize>().ok());
    Ok(kib.ok_or("/proc/PID/status has no line RssAnon")? * 1024)
}
