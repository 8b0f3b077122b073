//! `farbank pool backup`, `restore` and `import` as processes, and BGSAVE of a server that is killed.

mod support;

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farbank_server::rdb::reader::{RdbEntry, RdbReader};
use rustix::process::Signal;
use support::ServerProcess;

/// Written by redis-server 7.0.15: ten strings, one value or more of each other type, a library.
const REDIS_7_0: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../server/src/rdb/redis_7_0.rdb"
);
const ACCOUNTS: usize = 50;

fn pool(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farbank"));
    command.arg("pool").args(args).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[track_caller]
fn succeeds(args: &[&str]) -> String {
    let output = pool(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output));
    text(&output)
}

#[track_caller]
fn fails(args: &[&str], expected: &str) {
    let output = pool(args);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
    assert!(said.contains(expected), "{args:?}: {said}");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn start(pool: &Path) -> ServerProcess {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farbank"));
    command
        .args(["serve", "--port", "0", "--memcached-port", "off"])
        .args(["--size", "64mb", "--pool"])
        .arg(pool)
        .stderr(Stdio::null());
    ServerProcess::start(&mut command)
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn of(server: &ServerProcess) -> Client {
        Client(BufReader::new(server.connect()))
    }

    fn send(&mut self, lines: &str) {
        self.0.get_mut().write_all(lines.as_bytes()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    #[track_caller]
    fn ask(&mut self, request: &str, expected: &str) {
        self.send(&format!("{request}\r\n"));
        assert_eq!(self.line(), expected, "{request}");
    }

    fn info(&mut self, name: &str) -> String {
        self.send("INFO persistence\r\n");
        let mut found = String::new();
        loop {
            let line = self.line();
            if let Some(value) = line
                .strip_prefix(name)
                .and_then(|rest| rest.strip_prefix(':'))
            {
                found = value.to_owned();
            }
            if line.starts_with("aof_last_write_status") {
                self.line();
                return found;
            }
        }
    }
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "it takes too long"
        );
        thread::sleep(Duration::from_millis(2));
    }
}

fn strings(path: &Path) -> HashMap<String, String> {
    let file = fs::read(path).unwrap();
    let mut reader = RdbReader::new(&file[..], 1 << 20).unwrap();
    let mut found = HashMap::new();
    while let Some(entry) = reader.next_entry().unwrap() {
        if let RdbEntry::String(entry) = entry {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            found.insert(text(entry.key), text(entry.value));
        }
    }
    found
}

/// Moves money between accounts by MULTI, and counts transfers in a key of its own, until `stop`.
fn transfer(server: &ServerProcess, writer: usize, stop: &AtomicBool) {
    let mut client = Client::of(server);
    let mut state = writer as u64 + 1;
    let mut below = |end: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % end
    };
    while !stop.load(Ordering::Relaxed) {
        let (from, to, amount) = (below(ACCOUNTS), below(ACCOUNTS), below(10));
        client.send(&format!(
            "MULTI\r\nDECRBY a:{from} {amount}\r\nINCRBY a:{to} {amount}\r\nINCR n:{writer}\r\nEXEC\r\nSET last:{writer} 1\r\n"
        ));
        for _ in 0..9 {
            client.line();
        }
    }
}

#[test]
fn backups_of_a_running_server_are_of_one_moment_and_make_a_pool_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut server = start(&path("pool"));
    let mut client = Client::of(&server);
    for account in 0..ACCOUNTS {
        client.ask(&format!("SET a:{account} 100"), "+OK");
    }
    for n in 0..3_000 {
        client.send(&format!("SET filler:{n} {n:0100}\r\n"));
    }
    for _ in 0..3_000 {
        client.line();
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for writer in 0..2 {
            let (server, stop) = (&server, &stop);
            scope.spawn(move || transfer(server, writer, stop));
        }
        for round in 0..10 {
            client.ask("BGSAVE", "+Background saving started");
            wait_until(|| client.info("rdb_bgsave_in_progress") == "0");
            assert_eq!(client.info("rdb_last_bgsave_status"), "ok");
            let found = strings(&path("dump.rdb"));
            let balances = (0..ACCOUNTS).map(|n| found[&format!("a:{n}")].parse::<i64>().unwrap());
            assert_eq!(
                balances.sum::<i64>(),
                100 * ACCOUNTS as i64,
                "round {round}"
            );
            assert!(found.len() >= 3_000 + ACCOUNTS);
        }
        let file = path("copy.rdb");
        let file = file.to_str().unwrap();
        let said = succeeds(&["backup", &server.addr, file, "--json"]);
        assert!(said.contains("\"damaged\":0"), "{said}");
        fails(&["backup", &server.addr, file], "the file exists");
        succeeds(&["backup", &server.addr, file, "--force"]);
        stop.store(true, Ordering::Relaxed);
    });
    server.end(Signal::KILL);
    let (copy, restored) = (path("copy.rdb"), path("restored"));
    let (copy, restored) = (copy.to_str().unwrap(), restored.to_str().unwrap());
    succeeds(&["restore", copy, restored]);
    fails(&["restore", copy, restored], "the pool exists");
    succeeds(&["restore", copy, restored, "--force"]);
    succeeds(&["check", restored]);
    let again = path("again.rdb");
    succeeds(&["backup", restored, again.to_str().unwrap()]);
    assert_eq!(strings(Path::new(copy)), strings(&again));
    assert_eq!(
        names(folder.path()),
        ["again.rdb", "copy.rdb", "dump.rdb", "pool", "restored"]
    );
}

#[test]
fn a_kill_during_bgsave_leaves_the_old_backup_and_the_next_start_cleans_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool");
    let mut server = start(&path);
    let mut client = Client::of(&server);
    client.ask("SET a 1", "+OK");
    client.ask("SAVE", "+OK");
    for n in 0..2_000 {
        client.send(&format!("SET filler:{n} {n:01000}\r\n"));
    }
    for _ in 0..2_000 {
        client.line();
    }
    client.ask(
        "CONFIG SET backup-bytes-per-second 100000 rdbcompression no",
        "+OK",
    );
    client.ask("BGSAVE", "+Background saving started");
    let unfinished = folder.path().join("dump.rdb.saving");
    wait_until(|| fs::metadata(&unfinished).is_ok_and(|file| file.len() > 0));
    server.end(Signal::KILL);
    assert_eq!(
        names(folder.path()),
        ["dump.rdb", "dump.rdb.saving", "pool"]
    );
    assert_eq!(strings(&folder.path().join("dump.rdb")).len(), 1);
    let server = start(&path);
    wait_until(|| names(folder.path()) == ["dump.rdb", "pool"]);
    let mut client = Client::of(&server);
    client.ask("DBSIZE", ":2001");
    client.ask("SAVE", "+OK");
    assert_eq!(strings(&folder.path().join("dump.rdb")).len(), 2001);
}

#[test]
fn a_file_of_redis_is_imported_and_what_cannot_be_kept_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool");
    let path = path.to_str().unwrap();
    fails(
        &["import", REDIS_7_0, path],
        "2 values of type list (first key: \"l",
    );
    fails(&["restore", REDIS_7_0, path], "nothing was written");
    assert!(names(folder.path()).is_empty());
    let said = succeeds(&["import", REDIS_7_0, path, "--skip-unsupported"]);
    assert!(said.contains("10 keys, 1 libraries"), "{said}");
    fails(&["import", REDIS_7_0, path], "the pool exists");
    let dumped = succeeds(&["dump", path, "--format", "json"]);
    assert_eq!(dumped.lines().count(), 10, "{dumped}");
    assert_eq!(names(folder.path()), ["pool", "pool.functions"]);
    let backup = folder.path().join("backup.rdb");
    let backup = backup.to_str().unwrap();
    succeeds(&["backup", path, backup]);
    let other = folder.path().join("other");
    let said = succeeds(&["restore", backup, other.to_str().unwrap(), "--json"]);
    assert!(
        said.contains("\"keys\":10") && said.contains("\"libraries\":1"),
        "{said}"
    );
    // A damaged file leaves nothing behind. A changed byte of its checksum is noticed at its end; a changed length could be
    // noticed before.
    let mut damaged = fs::read(backup).unwrap();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(backup, damaged).unwrap();
    let third = folder.path().join("third");
    fails(&["restore", backup, third.to_str().unwrap()], "damaged");
    assert_eq!(
        names(folder.path()),
        [
            "backup.rdb",
            "other",
            "other.functions",
            "pool",
            "pool.functions"
        ]
    );
}

fn commands(words: &[&[&str]]) -> Vec<u8> {
    let mut out = Vec::new();
    for words in words {
        farbank_server::resp::request(&mut out, words);
    }
    out
}

#[test]
fn append_only_files_are_imported() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let log = folder.path().join("appendonlydir");
    fs::create_dir(&log).unwrap();
    fs::copy(REDIS_7_0, log.join("a.aof.1.base.rdb")).unwrap();
    let mut first = b"#TS:1700000000\r\n".to_vec();
    first.extend(commands(&[
        &["SELECT", "0"],
        &["SET", "added", "1"],
        &["INCRBY", "added", "41"],
        &["DEL", "s:plain"],
        &["LPUSH", "l", "x"],
        &["MULTI"],
        &["SET", "m", "1"],
        &["EXEC"],
        &["SELECT", "5"],
        &["SET", "other", "6"],
    ]));
    fs::write(log.join("a.aof.1.incr.aof"), first).unwrap();
    let mut second = commands(&[&["SELECT", "0"], &["APPEND", "added", "!"], &["MULTI"]]);
    second.extend(commands(&[&["SET", "undone", "1"]]));
    second.extend_from_slice(b"*3\r\n$3\r\nSET\r\n$5\r\ntor");
    fs::write(log.join("a.aof.2.incr.aof"), second).unwrap();
    let manifest = "file a.aof.2.incr.aof seq 2 type i\nfile a.aof.1.base.rdb seq 1 type b\n\
                    file a.aof.0.base.rdb seq 0 type h\nfile a.aof.1.incr.aof seq 1 type i\n";
    fs::write(log.join("a.aof.manifest"), manifest).unwrap();
    fails(
        &["import", &path("appendonlydir"), &path("pool")],
        "commands LPUSH (1)",
    );
    let said = succeeds(&[
        "import",
        &path("appendonlydir"),
        &path("pool"),
        "--skip-unsupported",
    ]);
    assert!(said.contains("the last command is incomplete"), "{said}");
    let dumped = succeeds(&["dump", &path("pool"), "--format", "json"]);
    for (expected, is_there) in [
        ("\"key\":\"added\",\"value\":\"42!\"", true),
        ("\"key\":\"m\",\"value\":\"1\"", true),
        (
            "\"db\":5,\"expires_ms\":0,\"key\":\"other\",\"value\":\"6\"",
            true,
        ),
        ("s:plain", false),
        ("undone", false),
    ] {
        assert_eq!(dumped.contains(expected), is_there, "{expected}: {dumped}");
    }
    fs::write(path("plain.aof"), commands(&[&["SET", "k", "v"]])).unwrap();
    let said = succeeds(&["import", &path("plain.aof"), &path("pool"), "--force"]);
    assert!(said.contains("1 commands executed"), "{said}");
    fs::write(path("bad.aof"), b"*1\r\n$99999999999\r\n").unwrap();
    fails(
        &["import", &path("bad.aof"), &path("new")],
        "damaged near byte",
    );
    fails(&["import", &path("missing"), &path("new")], "No such file");
    assert!(!Path::new(&path("new")).exists());
}
