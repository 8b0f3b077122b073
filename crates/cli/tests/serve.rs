//! `farbank serve` as a process: its output, how it ends, and what it recovers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

fn farbank(pool: &Path, more: &[&str]) -> Command {
    let mut command = without_size(pool, more);
    command.args(["--size", "16mb"]);
    command
}

fn without_size(pool: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farbank"));
    command
        .args(["serve", "--port", "0", "--memcached-port", "off"])
        .arg("--pool")
        .arg(pool)
        .args(more);
    command
}

/// A server that has printed its banner.
struct Serving {
    child: Child,
    stdout: BufReader<ChildStdout>,
    addr: String,
    banner: String,
}

impl Serving {
    fn start(pool: &Path) -> Serving {
        Serving::start_with(pool, &[])
    }

    fn start_with(pool: &Path, more: &[&str]) -> Serving {
        Serving::spawn(&mut farbank(pool, more))
    }

    fn spawn(command: &mut Command) -> Serving {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut banner = String::new();
        for _ in 0..4 {
            stdout.read_line(&mut banner).unwrap();
        }
        let addr = banner
            .split("redis://")
            .nth(1)
            .and_then(|rest| rest.lines().next());
        let addr = addr
            .unwrap_or_else(|| panic!("no address in {banner}"))
            .to_owned();
        Serving {
            child,
            stdout,
            addr,
            banner,
        }
    }

    /// Sends an inline request and reads `replies` lines.
    fn ask(&self, request: &str, replies: usize) -> String {
        let mut stream = TcpStream::connect(&self.addr).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut lines = BufReader::new(stream).lines();
        (0..replies)
            .map(|_| lines.next().unwrap().unwrap() + " ")
            .collect()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the server to end. Returns its exit code.
    fn end(mut self) -> Option<i32> {
        let code = self.child.wait().unwrap().code();
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
        code
    }
}

fn refused(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command.output().unwrap();
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

/// Returns the lines of a server that stops by itself, all of which must be JSON objects.
fn json_lines(bytes: &[u8]) -> Vec<serde_json::Value> {
    let text = String::from_utf8_lossy(bytes);
    let parsed = text.lines().map(|line| {
        let object: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        for name in ["timestamp", "level", "message"] {
            assert!(object[name].is_string(), "{line}");
        }
        object
    });
    parsed.collect()
}

#[test]
fn with_log_format_json_every_line_is_a_json_object() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    let options = ["--log-format", "json", "--log-level", "debug"];
    let mut command = farbank(&pool, &options);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut banner = String::new();
    for _ in 0..4 {
        stdout.read_line(&mut banner).unwrap();
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0));
    let said = json_lines(banner.as_bytes());
    let first = said[0]["message"].as_str().unwrap();
    assert!(first.contains(" listens on redis://"), "{first}");
    assert!(said.iter().all(|line| line["level"] == "INFO"), "{said:?}");
    assert!(!json_lines(&ended.stderr).is_empty());

    std::fs::write(&pool, vec![7; 64 << 10]).unwrap();
    let refused = farbank(&pool, &options).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let said = json_lines(&refused.stderr);
    let errors: Vec<_> = said
        .iter()
        .filter(|line| line["level"] == "ERROR")
        .collect();
    assert_eq!(errors.len(), 1, "{said:?}");
}

/// Sets the keys of `owner` to increasing numbers, in pipelines, until the server ends. Records for each key the last
/// acknowledged number and the last one sent.
fn load(addr: &str, owner: usize, after: u64, acked: &mut [(u64, u64)]) {
    const PIPELINE: u64 = 16;
    let mut stream = TcpStream::connect(addr).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    for turn in after.. {
        let mut requests = String::new();
        for n in 0..PIPELINE {
            let (number, key) = (
                turn * PIPELINE + n + 1,
                (turn * PIPELINE + n) % acked.len() as u64,
            );
            acked[key as usize].1 = number;
            let padding = "x".repeat(number as usize % 300);
            requests += &format!("SET key:{owner}:{key} {number}:{padding}\r\n");
        }
        if stream.write_all(requests.as_bytes()).is_err() {
            return;
        }
        for n in 0..PIPELINE {
            let (number, key) = (
                turn * PIPELINE + n + 1,
                (turn * PIPELINE + n) % acked.len() as u64,
            );
            match lines.next() {
                Some(Ok(line)) => assert_eq!(line, "+OK"),
                _ => return,
            }
            acked[key as usize].0 = number;
        }
    }
}

#[test]
fn a_cache_keeps_its_items_across_a_kill_and_returns_no_old_value() {
    const OWNERS: usize = 3;
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    // All items fit, so nothing is evicted and no key may be missing.
    let mut acked = vec![vec![(0, 0); 100]; OWNERS];
    for cycle in 1..=3 {
        let server = Serving::start_with(&pool, &["--engine", "mdb"]);
        assert!(server.banner.contains("a cache: "), "{}", server.banner);
        std::thread::scope(|scope| {
            for (owner, acked) in acked.iter_mut().enumerate() {
                let addr = &server.addr;
                scope.spawn(move || load(addr, owner, cycle * 1_000_000, acked));
            }
            let enough = || server.ask("INCR turns\r\n", 1);
            (0..200).for_each(|_| drop(enough()));
            server.signal(Signal::KILL);
        });
        assert_eq!(server.end(), None);
        // The engine that created the pool opens it, without --engine.
        let server = Serving::start(&pool);
        for (owner, keys) in acked.iter().enumerate() {
            for (key, &(acked, sent)) in keys.iter().enumerate() {
                let found = server.ask(&format!("GET key:{owner}:{key}\r\n"), 2);
                let number = found
                    .split(' ')
                    .nth(1)
                    .and_then(|value| value.split(':').next());
                let number: u64 = number.and_then(|n| n.parse().ok()).unwrap_or(0);
                assert!(
                    (acked..=sent).contains(&number),
                    "key {key} of {owner}: {found}, acknowledged {acked}, sent {sent}"
                );
            }
        }
        server.signal(Signal::TERM);
        assert_eq!(server.end(), Some(0));
    }
}

#[test]
fn a_cache_grows_before_it_evicts_and_keeps_its_size_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    let flags = ["--engine", "mdb", "--max-size", "32mb"];
    let server = Serving::start_with(&pool, &flags);
    let value = "x".repeat(60_000);
    for n in 0..495 {
        let stored = server.ask(&format!("SET key:{n} {value}\r\n"), 1);
        assert_eq!(stored, "+OK ", "key {n}");
    }
    server.signal(Signal::KILL);
    assert_eq!(server.end(), None);
    let server = Serving::start(&pool);
    assert!(server.banner.contains("32.0 MiB in"), "{}", server.banner);
    assert_eq!(server.ask("DBSIZE\r\n", 1), ":495 ");
    server.signal(Signal::TERM);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_pool_is_opened_only_by_the_engine_that_created_it() {
    let folder = tempfile::tempdir().unwrap();
    for (made, asked) in [("mdb", "kv"), ("kv", "mdb")] {
        let pool = folder.path().join(made);
        let server = Serving::start_with(&pool, &["--engine", made]);
        assert_eq!(server.ask("SET a 1\r\n", 1), "+OK ");
        server.signal(Signal::TERM);
        assert_eq!(server.end(), Some(0));
        let (code, why) = refused(&mut farbank(&pool, &["--engine", asked]));
        assert_eq!(code, Some(1));
        assert!(why.contains(&format!("--engine {made}")), "{why}");
        let server = Serving::start(&pool);
        assert_eq!(server.ask("GET a\r\n", 2), "$1 1 ");
        server.signal(Signal::TERM);
        assert_eq!(server.end(), Some(0));
    }
}

#[test]
fn keys_survive_a_clean_end_and_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");

    let server = Serving::start(&pool);
    assert!(
        server.banner.contains("an acknowledged write survives "),
        "{}",
        server.banner
    );
    assert!(server.banner.contains("new and empty"), "{}", server.banner);
    assert_eq!(server.ask("SET a 1\r\nMSET b 2 c 3\r\n", 2), "+OK +OK ");
    server.signal(Signal::TERM);
    assert_eq!(server.end(), Some(0));

    let server = Serving::start(&pool);
    assert!(
        server.banner.contains("3 keys came back"),
        "{}",
        server.banner
    );
    assert!(
        server.banner.contains("after a clean close"),
        "{}",
        server.banner
    );
    assert_eq!(server.ask("INCR a\r\nDEL b\r\n", 2), ":2 :1 ");
    server.signal(Signal::KILL);
    assert_eq!(server.end(), None);

    let server = Serving::start(&pool);
    assert!(
        server.banner.contains("2 keys came back"),
        "{}",
        server.banner
    );
    assert!(server.banner.contains("after a crash"), "{}", server.banner);
    assert_eq!(
        server.ask("GET a\r\nGET b\r\nGET c\r\n", 5),
        "$1 2 $-1 $1 3 "
    );
    assert_eq!(server.ask("SET d 4\r\nSHUTDOWN\r\n", 1), "+OK ");
    assert_eq!(server.end(), Some(0));

    let server = Serving::start(&pool);
    assert_eq!(server.ask("GET d\r\nDBSIZE\r\n", 3), "$1 4 :3 ");
    server.signal(Signal::INT);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_long_request_delays_neither_other_clients_nor_the_shutdown() {
    const KEYS: usize = 50_000;
    const WALKS: usize = 300;
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    let server = Serving::start_with(&pool, &["--workers", "1"]);
    for from in (0..KEYS).step_by(100) {
        let pairs: String = (from..from + 100).map(|at| format!(" {at} v")).collect();
        assert_eq!(server.ask(&format!("MSET{pairs}\r\n"), 1), "+OK ");
    }
    // About half a minute of work if all of it ran.
    let mut long = TcpStream::connect(&server.addr).unwrap();
    let walks = "KEYS nothing*\r\n".repeat(WALKS);
    long.write_all(walks.as_bytes()).unwrap();
    let mut first = [0; 4];
    long.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"*0\r\n");
    for _ in 0..3 {
        assert_eq!(server.ask("PING\r\nGET 7\r\n", 3), "+PONG $1 v ");
    }
    server.signal(Signal::TERM);
    assert_eq!(server.end(), Some(0));
    let mut replies = String::new();
    long.read_to_string(&mut replies).unwrap();
    let answered = 1 + replies.matches("*0\r\n").count();
    assert!(
        answered < WALKS,
        "other clients waited for all {WALKS} requests"
    );
    let server = Serving::start(&pool);
    assert!(
        server.banner.contains("after a clean close"),
        "{}",
        server.banner
    );
    assert_eq!(
        server.ask(&format!("DBSIZE\r\nGET {}\r\n", KEYS - 1), 3),
        format!(":{KEYS} $1 v ")
    );
    server.signal(Signal::TERM);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn saved_users_survive_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let [pool, users] = ["pool", "users.acl"].map(|name| folder.path().join(name));
    std::fs::write(&users, "user default on nopass ~* &* +@all\n").unwrap();
    let options = ["--aclfile", users.to_str().unwrap()];
    let server = Serving::start_with(&pool, &options);
    let saved = server.ask("ACL SETUSER a on >p +set ~k*\r\nACL SAVE\r\n", 2);
    assert_eq!(saved, "+OK +OK ");
    server.signal(Signal::KILL);
    server.end();
    let server = Serving::start_with(&pool, &options);
    let replies = server.ask("AUTH a p\r\nSET k v\r\nSET x v\r\n", 3);
    assert!(replies.starts_with("+OK +OK -NOPERM "), "{replies}");
    server.signal(Signal::TERM);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_pool_cannot_be_served_twice() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    let server = Serving::start(&pool);
    let (code, error) = refused(&mut farbank(&pool, &[]));
    assert_eq!(code, Some(1));
    assert!(error.contains("is in use by process"), "{error}");
    assert_eq!(server.ask("PING\r\n", 1), "+PONG ");
    server.signal(Signal::TERM);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn invalid_options_are_refused_and_leave_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    for (options, code, text) in [
        (["--bind", "0.0.0.0"], 2, "--unsafe-no-auth"),
        (
            ["--requirepass=secret", "--memcached-port=0"],
            2,
            "the memcached port",
        ),
        (["--user", "a +nope"], 2, "Unknown command or category"),
        (["--user", "a >\"b"], 2, "unbalanced quotes"),
        (
            ["--user=default on >p +@all", "--memcached-port=0"],
            2,
            "the memcached port",
        ),
        (
            ["--aclfile", "/none/users.acl"],
            2,
            "opening file '/none/users.acl'",
        ),
        (
            ["--memcached-auth-file", "/none/auth"],
            2,
            "--memcached-auth-file /none/auth: No such file",
        ),
        (["--tls-port", "0"], 2, "--tls-port needs --tls-cert-file"),
        (
            ["--memcached-tls-port", "0"],
            2,
            "--memcached-tls-port needs --tls-cert-file",
        ),
        (
            ["--tls-port=0", "--tls-cert-file=/none"],
            2,
            "tls-cert-file /none",
        ),
        (["--segment-bytes", "5000"], 2, "power of two"),
        (["--max-size", "1mb"], 2, "--max-size is less than --size"),
        (["--segment-bytes", "16mb"], 2, "--size must be at least"),
        (
            ["--sync", "sometimes"],
            2,
            "possible values: always, everysec, never",
        ),
        (["--medium", "dax"], 1, "cannot be the dax medium"),
    ] {
        let (got, error) = refused(&mut farbank(&pool, &options));
        assert_eq!(got, Some(code), "{options:?}: {error}");
        assert!(error.contains(text), "{options:?}: {error}");
        assert!(!pool.exists(), "{options:?} left a file");
    }
    std::fs::write(&pool, "not a pool at all").unwrap();
    let (code, error) = refused(&mut farbank(&pool, &[]));
    assert_eq!(code, Some(1), "{error}");
    assert_eq!(std::fs::read(&pool).unwrap(), b"not a pool at all");
}

#[test]
fn a_new_pool_is_no_larger_than_max_size_and_opens_again_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    let (code, error) = refused(&mut without_size(&pool, &["--max-size", "1kb"]));
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("--max-size must be at least"), "{error}");
    for _ in 0..2 {
        let serving = Serving::spawn(&mut without_size(&pool, &["--max-size", "16mb"]));
        assert!(serving.banner.contains("16.0 MiB"), "{}", serving.banner);
        serving.signal(Signal::TERM);
        assert_eq!(serving.end(), Some(0));
    }
}

#[test]
fn the_sample_configuration_is_valid_and_a_misspelled_option_is_refused() {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../etc/farbank.toml");
    let mut command = Command::new(env!("CARGO_BIN_EXE_farbank"));
    command
        .args(["serve", "--check-config", "--config"])
        .arg(&sample);
    let checked = command.output().unwrap();
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stderr)
    );
    let folder = tempfile::tempdir().unwrap();
    let wrong = folder.path().join("wrong.toml");
    std::fs::write(&wrong, "prot = 7000\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_farbank"));
    command
        .args(["serve", "--check-config", "--config"])
        .arg(&wrong);
    let refused = command.output().unwrap();
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{why}");
    assert!(
        why.contains("wrong.toml: line 1") && why.contains("\"prot\""),
        "{why}"
    );
}

#[test]
fn systemd_is_notified_when_the_store_is_ready_and_when_it_stops() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("notify");
    let listening = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    let mut child = farbank(&folder.path().join("pool"), &[])
        .env("NOTIFY_SOCKET", &socket)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut told = [0; 32];
    let bytes = listening.recv(&mut told).unwrap();
    assert_eq!(&told[..bytes], b"READY=1");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let bytes = listening.recv(&mut told).unwrap();
    assert_eq!(&told[..bytes], b"STOPPING=1");
    assert!(child.wait().unwrap().success());
}

/// Starts the binary as `memcached`, with memcached's flags. Returns the child and its address.
fn memcached(program: &Path, pool: &Path, sizes: &[&str]) -> (Child, String) {
    let mut command = Command::new(program);
    command.args(["-p", "0", "-U", "0", "-o", "modern"]);
    command
        .args(sizes)
        .arg("-e")
        .arg(pool)
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let banner: Vec<_> = stdout.lines().take(4).map(Result::unwrap).collect();
    let addr = banner[0].split("memcached://").nth(1);
    let addr = addr.unwrap_or_else(|| panic!("no address in {banner:?}"));
    (child, addr.to_owned())
}

/// Sends a request and reads `lines` lines of reply.
fn ask_memcached(addr: &str, request: &str, lines: usize) -> Vec<String> {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let told = BufReader::new(stream).lines().take(lines);
    told.map(Result::unwrap).collect()
}

#[test]
fn an_item_of_the_announced_maximum_size_fits_in_a_small_cache() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("memcached");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_farbank"), &program).unwrap();
    for (number, (sizes, announced)) in [
        (&["-m", "8", "-I", "1m"][..], 1 << 20),
        (&["-m", "8"], 128 << 10),
        (&["-m", "4", "-I", "1m"], 64 << 10),
    ]
    .into_iter()
    .enumerate()
    {
        let pool = folder.path().join(number.to_string());
        let (mut server, addr) = memcached(&program, &pool, sizes);
        let settings = ask_memcached(&addr, "stats settings\r\n", 17);
        let line = format!("STAT item_size_max {announced}");
        assert!(settings.contains(&line), "{settings:?}");
        for (bytes, reply) in [
            (announced - 128, "STORED"),
            (announced, "SERVER_ERROR object too large for cache"),
        ] {
            let value = "x".repeat(bytes);
            let set = format!("set k 0 0 {bytes}\r\n{value}\r\n");
            assert_eq!(
                ask_memcached(&addr, &set, 1),
                [reply],
                "{bytes} of {sizes:?}"
            );
        }
        kill_process(Pid::from_child(&server), Signal::KILL).unwrap();
        server.wait().unwrap();
    }
}

#[test]
fn under_the_name_memcached_it_accepts_memcached_flags_and_items_survive_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let (program, pool) = (folder.path().join("memcached"), folder.path().join("pool"));
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_farbank"), &program).unwrap();
    // The item is larger than the cache's pages, whose size -I cannot change in an existing pool. It is refused, and
    // the old item is removed.
    let large = format!("set k 0 0 1572864\r\n{}\r\nget k\r\n", "x".repeat(3 << 19));
    for (item_size, request, replies) in [
        (
            "1m",
            "set k 7 0 2\r\nhi\r\nincr n 1\r\n",
            &["STORED", "NOT_FOUND"][..],
        ),
        ("1m", "get k\r\n", &["VALUE k 7 2", "hi", "END"]),
        (
            "2m",
            &large,
            &["SERVER_ERROR object too large for cache", "END"],
        ),
    ] {
        let (mut server, addr) = memcached(&program, &pool, &["-m", "16", "-I", item_size]);
        assert_eq!(ask_memcached(&addr, request, replies.len()), replies);
        kill_process(Pid::from_child(&server), Signal::KILL).unwrap();
        server.wait().unwrap();
    }
    let (code, error) = refused(Command::new(&program).args(["-m", "16", "-I", "4m"]));
    assert_eq!(code, Some(2));
    assert!(error.contains("-m must be at least 22"), "{error}");
    let (code, error) = refused(Command::new(&program).arg("-S"));
    assert_eq!(code, Some(2));
    assert!(error.contains("invalid option -- 'S'"), "{error}");
}

/// An address of this machine other than loopback, if it has one. No packet is sent.
fn outer_address() -> Option<std::net::IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then_some(ip)
}

#[test]
fn under_the_name_redis_server_protected_mode_refuses_clients_of_other_machines() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("redis-server");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_farbank"), &program).unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let mut command = Command::new(&program);
    command.args(["--port", &port.to_string(), "--size", "16mb", "--dir"]);
    command.arg(folder.path()).stdout(Stdio::piped());
    let mut server = command.spawn().unwrap();
    let mut stdout = BufReader::new(server.stdout.take().unwrap()).lines();
    assert!(stdout.any(|line| line.unwrap().contains("Ready to accept connections")));
    let ask = |ip: std::net::IpAddr, request: &str| {
        let mut client = TcpStream::connect((ip, port)).unwrap();
        // A refused client's socket may be closed before its request arrives.
        let _ = client.write_all(request.as_bytes());
        let mut line = String::new();
        let _ = BufReader::new(client).read_line(&mut line);
        line
    };
    let loopback = std::net::Ipv4Addr::LOCALHOST.into();
    assert_eq!(ask(loopback, "PING\r\n"), "+PONG\r\n");
    match outer_address() {
        Some(outer) => {
            let refusal = ask(outer, "");
            assert!(
                refusal.starts_with("-DENIED Redis is running in protected mode"),
                "{refusal}"
            );
            assert_eq!(ask(loopback, "CONFIG SET requirepass x\r\n"), "+OK\r\n");
            assert_eq!(
                ask(outer, "PING\r\n"),
                "-NOAUTH Authentication required.\r\n"
            );
        }
        None => eprintln!("skipped: the machine has no address other than loopback"),
    }
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
    let (code, error) =
        refused(Command::new(&program).args(["--protected-mode", "no", "--port", "0"]));
    assert_eq!(code, Some(2));
    assert!(error.contains("no client could connect"), "{error}");
}

#[test]
fn under_the_name_redis_server_it_accepts_directives_and_a_redis_conf() {
    let folder = tempfile::tempdir().unwrap();
    let (program, conf) = (
        folder.path().join("redis-server"),
        folder.path().join("redis.conf"),
    );
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_farbank"), &program).unwrap();
    let dir = folder.path().display();
    std::fs::write(
        &conf,
        format!("port 0\nunixsocket socket\nrequirepass first\ndir {dir}\n"),
    )
    .unwrap();
    let mut command = Command::new(&program);
    command.arg(&conf);
    command.args(["--requirepass", "a secret", "--save", "", "--size", "16mb"]);
    let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
    let stdout = BufReader::new(server.stdout.take().unwrap());
    let mut lines = Vec::new();
    for line in stdout.lines() {
        lines.push(line.unwrap());
        if lines
            .last()
            .unwrap()
            .contains("Ready to accept connections")
        {
            break;
        }
    }
    let pid = format!(" PID: {}", server.id());
    assert!(lines.iter().any(|line| line.ends_with(&pid)), "{lines:?}");
    let mut client = UnixStream::connect(folder.path().join("socket")).unwrap();
    client.write_all(b"AUTH \"a secret\"\r\n").unwrap();
    let mut reply = [0; 5];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+OK\r\n");
    assert!(folder.path().join("farbank.pool").exists());
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
    let version = Command::new(&program).arg("--version").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    assert!(version.contains("v=7.0.15"), "{version}");
    let (code, error) = refused(Command::new(&program).args(["--port", "no"]));
    assert_eq!(code, Some(2));
    assert!(error.contains("command line: line 1: port"), "{error}");
}
