//! The file of a pool: its creation, changes to it while it is served, and copies of it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const PROGRAM: &str = env!("CARGO_BIN_EXE_farbank");

fn serve(pool: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .args(["serve", "--port", "0", "--memcached-port", "off", "--pool"])
        .arg(pool)
        .args(more);
    command
}

/// A server that has printed its banner.
struct Serving {
    child: Child,
    addr: String,
    banner: String,
}

impl Serving {
    fn start(mut command: Command) -> Serving {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut banner = String::new();
        while stdout.read_line(&mut banner).unwrap() > 0 && banner.lines().count() < 4 {}
        let addr = banner.split("redis://").nth(1);
        let addr = addr.and_then(|rest| rest.lines().next());
        let Some(addr) = addr.map(str::to_owned) else {
            let mut error = String::new();
            child.stderr.unwrap().read_to_string(&mut error).unwrap();
            panic!("the server did not start: {banner}{error}");
        };
        Serving {
            child,
            addr,
            banner,
        }
    }

    fn client(&self) -> Client {
        Client(BufReader::new(TcpStream::connect(&self.addr).unwrap()))
    }

    /// Ends the server with a signal. Returns its exit code and its log.
    fn end(mut self, signal: Signal) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let code = self.child.wait().unwrap().code();
        let mut log = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        stderr.read_to_string(&mut log).unwrap();
        (code, log)
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    /// Returns the first line of the reply to an inline request.
    fn ask(&mut self, request: &str) -> String {
        // Send it in one piece: a second one would wait for the TCP acknowledgement of the first.
        let line = format!("{request}\r\n");
        self.0.get_mut().write_all(line.as_bytes()).unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    /// Stores values under numbered keys, sending all requests before it reads the first reply.
    fn set_all<'a>(&mut self, values: impl Iterator<Item = (usize, &'a String)>) {
        let mut requests = String::new();
        let count = values
            .map(|(key, value)| requests += &format!("SET key:{key} {value}\r\n"))
            .count();
        self.0.get_mut().write_all(requests.as_bytes()).unwrap();
        for _ in 0..count {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            assert_eq!(line, "+OK\r\n");
        }
    }

    /// Returns the value of a field of INFO.
    fn info(&mut self, field: &str) -> String {
        let bytes: usize = self.ask("INFO farbank")[1..].trim().parse().unwrap();
        let mut text = vec![0; bytes + 2];
        self.0.read_exact(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(field));
        line.unwrap_or_else(|| panic!("no {field} in {text}"))
            .trim_start_matches(':')
            .to_owned()
    }

    fn wait_for(&mut self, field: &str, value: &str) {
        let since = Instant::now();
        while self.info(field) != value {
            assert!(since.elapsed() < Duration::from_secs(10), "{field}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn refused(mut command: Command) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    let error = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(status.code(), Some(1), "{error}");
    error
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// Replaces the boot id in the lease of the pool's file, as after a reboot or on another machine.
fn lease_of_another_boot(pool: &Path) {
    let file = fs::OpenOptions::new().read(true).write(true).open(pool);
    let file = file.unwrap();
    // The layout is in docs/format.md.
    let mut record = [0; 512];
    file.read_exact_at(&mut record, 1024).unwrap();
    assert_eq!(&record[..9], b"FBLEASE\n\x01", "the lease is held");
    record[40..76].copy_from_slice(b"00000000-0000-0000-0000-000000000000");
    let checksum = farbank_pm::crc::crc32c_append(0, &record[..508]);
    record[508..].copy_from_slice(&checksum.to_le_bytes());
    file.write_all_at(&record, 1024).unwrap();
}

#[test]
fn an_open_after_a_kill_waits_only_if_the_server_may_run_on_another_host() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    let server = Serving::start(serve(&pool, &["--size", "16mb"]));
    assert_eq!(server.client().ask("SET key value"), "+OK\r\n");
    let (_, log) = server.end(Signal::KILL);
    assert!(!log.contains("waiting"), "{log}");

    let server = Serving::start(serve(&pool, &[]));
    assert_eq!(server.client().ask("STRLEN key"), ":5\r\n");
    let (_, log) = server.end(Signal::KILL);
    assert!(!log.contains("waiting"), "of this boot: {log}");

    lease_of_another_boot(&pool);
    let began = Instant::now();
    let server = Serving::start(serve(&pool, &[]));
    assert!(began.elapsed() >= Duration::from_secs(2));
    assert_eq!(server.client().ask("STRLEN key"), ":5\r\n");
    let (code, log) = server.end(Signal::TERM);
    assert!(log.contains("not closed there: waiting"), "{log}");
    assert_eq!(code, Some(0));
}

#[test]
fn a_kill_during_creation_never_prevents_a_later_start() {
    let mut under_way = 0;
    for engine in ["kv", "mdb"] {
        let options = ["--engine", engine, "--size", "64mb"];
        for millis in [2, 5, 10, 20, 30, 45, 70, 100, 150, 220] {
            let folder = tempfile::tempdir().unwrap();
            let pool = folder.path().join("pool");
            let mut command = serve(&pool, &options);
            let mut child = command.stdout(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(millis));
            child.kill().unwrap();
            child.wait().unwrap();
            let left = names_in(folder.path());
            under_way += u32::from(left == ["pool.farbank-new"]);
            let server = Serving::start(serve(&pool, &options));
            assert_eq!(server.client().ask("SET key value"), "+OK\r\n");
            assert_eq!(names_in(folder.path()), ["pool"], "after {left:?}");
            assert_eq!(server.end(Signal::TERM).0, Some(0));
        }
    }
    assert!(under_way > 0, "no kill hit a creation in progress");
}

#[test]
fn no_port_is_open_before_the_store_is_ready_and_the_banner_includes_the_creation_time() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = free.local_addr().unwrap();
    drop(free);
    let port = addr.port().to_string();
    let command = serve(&pool, &["--size", "192mb", "--port", &port]);
    let began = Instant::now();
    let ready = std::thread::spawn(move || Serving::start(command));
    let mut tries = 0;
    while TcpStream::connect(addr).is_err() {
        tries += 1;
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(pool.exists(), "a client connected before the pool existed");
    let server = ready.join().unwrap();
    let whole_ms = began.elapsed().as_secs_f64() * 1e3;
    let said = server.banner.split("ready in ").nth(1).unwrap();
    let said_ms: f64 = said.split(' ').next().unwrap().parse().unwrap();
    assert!(
        tries > 5 && said_ms > whole_ms / 3.0,
        "{said_ms} of {whole_ms} ms"
    );
    server.end(Signal::TERM);
}

/// Copies a file slowly, so that some parts are copied much later than others.
fn copy_slowly(from: &Path, to: &Path) {
    let from = fs::File::open(from).unwrap();
    let to = fs::File::create(to).unwrap();
    let mut part = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let bytes = from.read_at(&mut part, at).unwrap();
        if bytes == 0 {
            return;
        }
        to.write_all_at(&part[..bytes], at).unwrap();
        at += bytes as u64;
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the output of `farbank pool`, whatever its exit code is.
fn printed(verb: &str, pool: &Path) -> String {
    let mut command = Command::new(PROGRAM);
    let Output { stdout, stderr, .. } = command.args(["pool", verb]).arg(pool).output().unwrap();
    String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned()
}

#[test]
fn a_copy_of_a_served_pool_is_refused_unless_it_is_accepted() {
    refuse_a_copy("kv");
}

#[test]
fn a_copy_of_a_served_cache_is_refused_unless_it_is_accepted() {
    refuse_a_copy("mdb");
}

fn refuse_a_copy(engine: &str) {
    let folder = tempfile::tempdir().unwrap();
    let (pool, copy) = (folder.path().join("pool"), folder.path().join("copy"));
    let options = ["--engine", engine, "--size", "16mb"];
    let server = Serving::start(serve(&pool, &options));
    let mut client = server.client();
    std::thread::scope(|scope| {
        let copying = scope.spawn(|| copy_slowly(&pool, &copy));
        let value = "x".repeat(2_000);
        for n in 0.. {
            client.set_all((0..100).map(|key| (key + 100 * (n % 30), &value)));
            if n >= 100 && copying.is_finished() {
                break;
            }
        }
    });
    let error = refused(serve(&copy, &options));
    assert!(
        error.contains("is a copy of a pool that was in use"),
        "{error}"
    );
    assert!(error.contains("--accept-copy"), "{error}");
    let info = printed("info", &copy);
    assert!(info.contains("warning: this is a copy"), "{info}");
    let own = printed("info", &pool);
    assert!(!own.contains("copy"), "{own}");
    if engine == "kv" {
        // Checking a copy does not accept it.
        let checked = printed("check", &copy);
        assert!(checked.contains("warning:"), "{checked}");
        refused(serve(&copy, &options));
    }
    let accepted = [&options[..], &["--accept-copy"]].concat();
    let taken = Serving::start(serve(&copy, &accepted));
    assert_eq!(taken.client().ask("SET mine 1"), "+OK\r\n");
    taken.end(Signal::KILL);
    let again = Serving::start(serve(&copy, &options));
    assert_eq!(again.end(Signal::TERM).0, Some(0));
    // The original still opens after a kill and a move. A copy of a cleanly closed pool opens too.
    server.end(Signal::KILL);
    let moved = folder.path().join("moved");
    fs::rename(&pool, &moved).unwrap();
    let server = Serving::start(serve(&moved, &options));
    assert_eq!(server.end(Signal::TERM).0, Some(0));
    fs::copy(&moved, &pool).unwrap();
    let server = Serving::start(serve(&pool, &options));
    assert_eq!(server.end(Signal::TERM).0, Some(0));
}

#[test]
fn a_growth_failure_is_reported_in_the_reply_in_info_and_once_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    let mut command = Command::new("sh");
    // In blocks of 512 bytes: files of at most 18 MiB.
    let limited = "ulimit -f 36864; exec \"$@\"";
    command.args(["-c", limited, "sh", PROGRAM, "serve", "--port", "0"]);
    command.args([
        "--memcached-port",
        "off",
        "--size",
        "16mb",
        "--max-size",
        "64mb",
        "--pool",
    ]);
    command.arg(&pool);
    let server = Serving::start(command);
    let mut client = server.client();
    assert_eq!(client.info("pool_health"), "ok");
    let value = "x".repeat(10_000);
    let mut replies = Vec::new();
    for n in 0..4_000 {
        let reply = client.ask(&format!("SET key:{n} {value}"));
        if reply != "+OK\r\n" {
            replies.push(reply);
        }
        if replies.len() == 300 {
            break;
        }
    }
    let why = replies.last().expect("the pool is full");
    let path = pool.to_str().unwrap();
    for part in ["-OOM ", "cannot grow", path, "RLIMIT_FSIZE", "os error 27"] {
        assert!(why.contains(part), "{why}");
    }
    client.wait_for("pool_health", "cannot-grow");
    assert!(client.info("pool_growth_error").contains(path));
    std::thread::sleep(Duration::from_millis(1200));
    client.ask(&format!("SET one:more {value}"));
    let (code, log) = server.end(Signal::TERM);
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(log.matches("could not grow").count(), 1, "{log}");
    // A pool that is longer than the process's file size limit is refused, so that no signal ends the process later.
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 16384; exec \"$@\"", "sh", PROGRAM]);
    command.args(["pool", "check"]).arg(&pool);
    let error = refused(command);
    assert!(
        error.contains("RLIMIT_FSIZE") && error.contains(path),
        "{error}"
    );
}

#[test]
fn a_file_lost_while_served_stops_acknowledgements_and_is_reported() {
    type DamageFn = fn(&Path);
    fn cut(pool: &Path) {
        let file = fs::OpenOptions::new().write(true).open(pool).unwrap();
        file.set_len((16 << 20) - 4096).unwrap();
    }
    let harms: [(DamageFn, &str); 3] = [
        (|pool| fs::remove_file(pool).unwrap(), "removed"),
        (
            |pool| fs::rename(pool.with_extension("other"), pool).unwrap(),
            "replaced",
        ),
        (cut, "truncated"),
    ];
    for (harm, what) in harms {
        let folder = tempfile::tempdir().unwrap();
        let pool = folder.path().join("pool");
        fs::write(pool.with_extension("other"), "another").unwrap();
        let server = Serving::start(serve(&pool, &["--size", "16mb"]));
        let mut client = server.client();
        assert_eq!(client.ask("SET key value"), "+OK\r\n");
        harm(&pool);
        client.wait_for("pool_health", what);
        for request in ["SET key other", "PING"] {
            let reply = client.ask(request);
            assert!(reply.starts_with("-MISCONF "), "{what}: {reply}");
            assert!(reply.contains(pool.to_str().unwrap()), "{what}: {reply}");
        }
        assert_eq!(client.ask("GET key"), "$5\r\n");
        let (code, log) = server.end(Signal::TERM);
        assert_eq!(
            code,
            Some(1),
            "{what}: the server did not exit with an error: {log}"
        );
        assert!(log.contains("the pool's file"), "{what}: {log}");
    }
}

/// Starts a server and stores 2,000 keys with values of 1,000 bytes.
fn filled(pool: &Path, io: &str) -> Serving {
    // Without a read cache every GET reads the file.
    let options = ["--size", "16mb", "--read-cache", "0", "--io", io];
    let server = Serving::start(serve(pool, &options));
    let values: Vec<String> = (0..2000).map(|n| format!("{n:01000}")).collect();
    server.client().set_all(values.iter().enumerate());
    server
}

/// Gets every key. Returns how many have their value, and the offsets of damaged records.
fn get_all(client: &mut Client) -> (usize, Vec<u64>) {
    let (mut served, mut damaged) = (0, Vec::new());
    for n in 0..2000 {
        let reply = client.ask(&format!("GET key:{n}"));
        if reply == "$1000\r\n" {
            let mut value = vec![0; 1002];
            client.0.read_exact(&mut value).unwrap();
            assert_eq!(value, format!("{n:01000}\r\n").into_bytes());
            served += 1;
            continue;
        }
        let at = reply.split_once("offset 0x").map(|(_, rest)| rest);
        let at = at.and_then(|rest| rest.split_whitespace().next());
        let at = at.and_then(|at| u64::from_str_radix(at, 16).ok());
        damaged.push(at.unwrap_or_else(|| panic!("key:{n}: {reply}")));
    }
    (served, damaged)
}

#[test]
fn a_truncated_file_loses_only_the_keys_beyond_the_cut_and_the_server_runs_on() {
    const LEFT: u64 = 9 << 20;
    let cases = [
        ("/tmp", "mapped"),
        ("/tmp", "pread"),
        ("/tmp", "direct"),
        ("/dev/shm", "mapped"),
    ];
    for (folder, io) in cases {
        let Ok(folder) = tempfile::tempdir_in(folder) else {
            eprintln!("skipped: there is no {folder}");
            continue;
        };
        let pool = folder.path().join("pool");
        if io == "direct" && !has_direct_reads(folder.path()) {
            continue;
        }
        let server = filled(&pool, io);
        let mut client = server.client();
        let before = get_all(&mut client);
        assert_eq!(before.0, 2000);
        let file = fs::OpenOptions::new().write(true).open(&pool).unwrap();
        // Segments are filled in any order, so cut the file inside those in use.
        let cut = first_value_end(&pool).min(LEFT);
        file.set_len(cut).unwrap();
        let (served, damaged) = get_all(&mut client);
        assert!(served > 0 && !damaged.is_empty(), "{served}, {damaged:?}");
        let record_max = 2048;
        assert!(
            damaged.iter().all(|at| at + record_max > cut),
            "{cut}: {damaged:?}"
        );
        assert_eq!(get_all(&mut client).0, served, "the server still runs");
        client.wait_for("pool_health", "truncated");
        let (_, log) = server.end(Signal::TERM);
        assert!(log.contains(pool.to_str().unwrap()), "{log}");
        // An engine write that was under way at the cut may have extended the file again.
        file.set_len(cut).unwrap();
        let error = refused(serve(&pool, &[]));
        assert!(error.contains(pool.to_str().unwrap()), "{error}");
        let whole_pages = cut / 4096 * 4096;
        assert!(
            error.contains(&format!("has only {whole_pages};")),
            "{error}"
        );
    }
}

/// Returns whether a pool in `folder` supports direct reads.
fn has_direct_reads(folder: &Path) -> bool {
    let probe = ["--size", "16mb", "--io", "direct"];
    let mut serve = serve(&folder.join("probe"), &probe);
    let serve = serve.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = serve.spawn().unwrap();
    let mut banner = BufReader::new(child.stdout.take().unwrap());
    let is_served = banner.read_line(&mut String::new()).unwrap() > 0;
    let _ = child.kill();
    let output = child.wait_with_output().unwrap();
    if !is_served {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(why.contains("direct reads"), "{why}");
        eprintln!("skipped: {why}");
    }
    is_served
}

#[test]
fn a_pool_is_readable_in_each_io_mode_after_a_kill_and_a_clean_end() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let pool = folder.path().join("pool");
    let has_direct = has_direct_reads(folder.path());
    let ways = ["mapped", "pread", "direct"];
    filled(&pool, "pread").end(Signal::KILL);
    for io in ways.into_iter().filter(|io| *io != "direct" || has_direct) {
        for signal in [Signal::KILL, Signal::TERM] {
            let options = ["--read-cache", "0", "--io", io];
            let server = Serving::start(serve(&pool, &options));
            let mut client = server.client();
            assert_eq!(get_all(&mut client), (2000, Vec::new()), "{io}");
            assert_eq!(client.ask(&format!("SET {io} written")), "+OK\r\n");
            server.end(signal);
        }
    }
    let output = serve(&pool, &["--io", "mmap"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    let values = "[possible values: mapped, pread, direct]";
    assert!(error.contains(values), "{error}");
    assert_eq!(output.status.code(), Some(2));
}

/// Returns an offset in the file with values before and after it.
fn first_value_end(pool: &Path) -> u64 {
    let bytes = fs::read(pool).unwrap();
    let middle = format!("{:01000}", 1000).into_bytes();
    let at = bytes.windows(1000).position(|window| window == middle);
    at.expect("the value is in the file") as u64
}

#[test]
fn a_hole_punched_into_a_served_file_is_damage_and_the_next_start_names_its_offset() {
    use rustix::fs::{FallocateFlags, fallocate};
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let pool = folder.path().join("pool");
    let server = filled(&pool, "mapped");
    let mut client = server.client();
    let file = fs::OpenOptions::new().write(true).open(&pool).unwrap();
    let hole = first_value_end(&pool) / 4096 * 4096;
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, how, hole, 64 << 10).unwrap();
    let (served, damaged) = get_all(&mut client);
    assert!(
        served > 1800 && damaged.len() > 50,
        "{served}, {}",
        damaged.len()
    );
    let around = hole - 2048..hole + (64 << 10);
    assert!(damaged.iter().all(|at| around.contains(at)), "{damaged:x?}");
    assert_eq!(client.ask("SET key:0 again"), "+OK\r\n");
    server.end(Signal::KILL);
    let error = refused(serve(&pool, &[]));
    assert!(error.contains(&format!("a hole at byte {hole}")), "{error}");
}

#[test]
fn a_cache_without_its_file_keeps_running_and_a_moved_file_loses_nothing() {
    for (engine, moved) in [("mdb", false), ("mdb", true), ("kv", true)] {
        let folder = tempfile::tempdir().unwrap();
        let pool = folder.path().join("pool");
        let options = ["--engine", engine, "--size", "16mb"];
        let server = Serving::start(serve(&pool, &options));
        let mut client = server.client();
        let away = folder.path().join("away");
        match moved {
            true => fs::rename(&pool, &away).unwrap(),
            false => fs::remove_file(&pool).unwrap(),
        }
        client.wait_for("pool_health", if moved { "moved" } else { "removed" });
        assert_eq!(client.ask("SET key value"), "+OK\r\n");
        assert_eq!(client.ask("PING"), "+PONG\r\n");
        let (code, log) = server.end(Signal::TERM);
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains("the pool's file"), "{log}");
        if moved {
            let server = Serving::start(serve(&away, &options));
            assert_eq!(server.client().ask("GET key"), "$5\r\n");
            server.end(Signal::TERM);
        }
    }
}

#[test]
fn an_error_names_the_failed_object_once_with_a_fitting_hint() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    let check = |verb: &str, path: &Path| {
        let mut command = Command::new(PROGRAM);
        command.args(["pool", verb]).arg(path);
        refused(command)
    };
    for verb in ["check", "scrub", "dump"] {
        let error = check(verb, Path::new("/etc"));
        assert_eq!(error.matches("/etc").count(), 1, "{error}");
    }
    fs::write(&pool, [b'x'; 24]).unwrap();
    for error in [
        check("check", &pool),
        check("info", &pool),
        refused(serve(&pool, &[])),
    ] {
        assert!(error.contains("24 bytes"), "{error}");
        assert_eq!(error.matches(pool.to_str().unwrap()).count(), 1, "{error}");
    }
    fs::remove_file(&pool).unwrap();
    // An address reserved for documentation (RFC 5737).
    let error = refused(serve(
        &pool,
        &["--bind", "127.0.0.1,192.0.2.1", "--unsafe-no-auth"],
    ));
    assert!(
        error.contains("192.0.2.1") && !error.contains("127.0.0.1"),
        "{error}"
    );
    assert!(!error.contains("another server"), "{error}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let error = refused(serve(&pool, &["--port", &port]));
    assert!(error.contains("another server is there"), "{error}");
    assert!(!pool.exists());
    let beyond = serve(&pool, &["--size", "15000000tb"]).output().unwrap();
    let error = String::from_utf8_lossy(&beyond.stderr).into_owned();
    assert_eq!(beyond.status.code(), Some(2), "{error}");
    assert!(error.contains("at most 4.0 TiB"), "{error}");
}
