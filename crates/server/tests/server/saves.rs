//! Backups: SAVE, BGSAVE, and the copies that SYNC sends.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use farbank_server::rdb::reader::{RdbEntry, RdbReader};

use crate::harness::{Client, Running, field, wait_until};

/// A server whose backups are in a temporary folder.
fn server_in(folder: &Path) -> (Running, Client) {
    let server = Running::new();
    let mut client = server.connect();
    client.ask(&format!("CONFIG SET dir {}", folder.display()), "+OK\r\n");
    (server, client)
}

/// Keys and values of an RDB file, sorted.
fn contents(file: &[u8]) -> Vec<(u32, String, String, u64, u32)> {
    let mut reader = RdbReader::new(file, 1 << 20).unwrap();
    let mut found = Vec::new();
    while let Some(entry) = reader.next_entry().unwrap() {
        if let RdbEntry::String(entry) = entry {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let (key, value) = (text(entry.key), text(entry.value));
            found.push((entry.db, key, value, entry.expires_ms, entry.flags));
        }
    }
    found.sort();
    found
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn await_bgsave(client: &mut Client) {
    wait_until(|| field(client, "persistence", "rdb_bgsave_in_progress") == "0");
}

#[test]
fn info_counts_the_changes_since_the_last_save() {
    let server = Running::new();
    let mut client = server.connect();
    let unsaved = |client: &mut Client| -> i64 {
        let count = field(client, "persistence", "rdb_changes_since_last_save");
        count.parse().unwrap()
    };
    let mut expected = 0;
    // Replies and changes as of redis-server 7.0.15.
    for (request, reply, changes) in [
        ("SET a 1", "+OK\r\n", 1),
        ("SET a 1 EX 100", "+OK\r\n", 1),
        ("SET a 2 NX", "$-1\r\n", 0),
        ("MSET a 1 b 2", "+OK\r\n", 2),
        ("DEL a b nosuch", ":2\r\n", 2),
        ("DEL a", ":0\r\n", 0),
        ("INCR n", ":1\r\n", 1),
        ("RENAME n m", "+OK\r\n", 1),
        ("EXPIRE m 100", ":1\r\n", 1),
        ("PERSIST m", ":1\r\n", 1),
        ("SETBIT s 0 0", ":0\r\n", 1),
        ("SETBIT s 0 0", ":0\r\n", 0),
        (
            "MULTI;SET a 1;SET b 1;EXEC",
            "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n+OK\r\n",
            2,
        ),
        (
            "EVAL redis.call('set','x',1)return(redis.call('del','x')) 0",
            ":1\r\n",
            2,
        ),
        ("FLUSHALL", "+OK\r\n", 4),
    ] {
        client.ask(request, reply);
        expected += changes;
        assert_eq!(unsaved(&mut client), expected, "{request}");
    }
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().display();
    client.ask(&format!("CONFIG SET dir {dir};SAVE"), "+OK\r\n+OK\r\n");
    assert_eq!(unsaved(&mut client), 0);
    client.ask("SET a 1", "+OK\r\n");
    assert_eq!(unsaved(&mut client), 1);
}

#[test]
fn save_and_bgsave_write_every_key() {
    let folder = tempfile::tempdir().unwrap();
    let (server, mut client) = server_in(folder.path());
    let before: u64 = field(&mut client, "persistence", "rdb_last_save_time")
        .parse()
        .unwrap();
    client.ask(
        "SET a 1;SET b xx PXAT 4102444800000;SELECT 3;SET a other;SELECT 0;SAVE",
        "+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n",
    );
    let expected = vec![
        (0, "a".to_owned(), "1".to_owned(), 0, 0),
        (0, "b".into(), "xx".into(), 4_102_444_800_000, 0),
        (3, "a".into(), "other".into(), 0, 0),
    ];
    assert_eq!(
        contents(&fs::read(folder.path().join("dump.rdb")).unwrap()),
        expected
    );
    client.ask(
        "CONFIG SET dbfilename other.rdb;SET c 2;BGSAVE",
        "+OK\r\n+OK\r\n+Background saving started\r\n",
    );
    await_bgsave(&mut client);
    let file = fs::read(folder.path().join("other.rdb")).unwrap();
    assert_eq!(contents(&file).len(), 4);
    assert_eq!(names(folder.path()), ["dump.rdb", "other.rdb"]);
    let file = fs::metadata(folder.path().join("other.rdb")).unwrap();
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
    assert_eq!(
        field(&mut client, "persistence", "rdb_last_bgsave_status"),
        "ok"
    );
    assert_eq!(field(&mut client, "persistence", "rdb_saves"), "2");
    client.send("LASTSAVE");
    let last = client.line().replace(':', "");
    assert!(last.parse::<u64>().unwrap() >= before);
    client.ask("BGSAVE nope", "-ERR syntax error\r\n");
    client.ask(
        "FLUSHALL;BGSAVE SCHEDULE",
        "+OK\r\n+Background saving started\r\n",
    );
    await_bgsave(&mut client);
    assert!(contents(&fs::read(folder.path().join("other.rdb")).unwrap()).is_empty());
    drop(server);
}

#[test]
fn a_backup_that_cannot_be_written_is_an_error_and_changes_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let (_server, mut client) = server_in(&inner);
    client.ask("SET a 1;SAVE", "+OK\r\n+OK\r\n");
    fs::remove_dir_all(&inner).unwrap();
    client.send("SAVE");
    let refused = client.line();
    assert!(refused.starts_with("-ERR cannot write "), "{refused}");
    client.ask("BGSAVE", "+Background saving started\r\n");
    await_bgsave(&mut client);
    assert_eq!(
        field(&mut client, "persistence", "rdb_last_bgsave_status"),
        "err"
    );
    client.ask("SET a 2", "+OK\r\n");
    fs::create_dir(&inner).unwrap();
    client.ask("BGSAVE", "+Background saving started\r\n");
    await_bgsave(&mut client);
    assert_eq!(
        field(&mut client, "persistence", "rdb_last_bgsave_status"),
        "ok"
    );
    assert_eq!(names(&inner), ["dump.rdb"]);
}

#[test]
fn only_one_backup_is_written_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, mut client) = server_in(folder.path());
    let value = "v".repeat(1000);
    for n in 0..2000 {
        client.ask(&format!("SET key:{n} {value}{n}"), "+OK\r\n");
    }
    client.ask(
        "CONFIG SET backup-bytes-per-second 100kb rdbcompression no",
        "+OK\r\n",
    );
    client.ask("BGSAVE", "+Background saving started\r\n");
    let busy = "-ERR Background save already in progress\r\n";
    client.ask("BGSAVE;SAVE;BGSAVE SCHEDULE;SYNC", &busy.repeat(4));
    assert_eq!(
        field(&mut client, "persistence", "rdb_bgsave_in_progress"),
        "1"
    );
    assert_eq!(
        field(&mut client, "persistence", "current_save_keys_total"),
        "2000"
    );
    wait_until(|| field(&mut client, "persistence", "current_save_keys_processed") != "0");
    let size = fs::metadata(folder.path().join("dump.rdb.saving"))
        .unwrap()
        .len();
    assert!(size < 1 << 20, "{size}: the limit of the rate holds");
    client.ask("CONFIG SET backup-bytes-per-second 0", "+OK\r\n");
    await_bgsave(&mut client);
    assert_eq!(
        contents(&fs::read(folder.path().join("dump.rdb")).unwrap()).len(),
        2000
    );
}

#[test]
fn a_server_that_stops_leaves_no_unfinished_backup() {
    let folder = tempfile::tempdir().unwrap();
    let (server, mut client) = server_in(folder.path());
    for n in 0..1000 {
        client.ask(&format!("SET key:{n} {n:0999}"), "+OK\r\n");
    }
    client.ask(
        "CONFIG SET backup-bytes-per-second 1kb;BGSAVE",
        "+OK\r\n+Background saving started\r\n",
    );
    wait_until(|| names(folder.path()) == ["dump.rdb.saving"]);
    drop(client);
    drop(server);
    assert!(names(folder.path()).is_empty());
}

/// Reads one line of a stream.
fn line_of(stream: &mut TcpStream) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

#[test]
fn sync_sends_a_copy_and_closes_the_connection() {
    let folder = tempfile::tempdir().unwrap();
    let (server, mut client) = server_in(folder.path());
    client.ask("SET a 1;SET b 2", "+OK\r\n+OK\r\n");
    for (request, preambles) in [("SYNC\r\n", 0), ("PSYNC ? -1\r\n", 1)] {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream
            .write_all(b"REPLCONF capa eof\r\nREPLCONF rdb-only 1\r\n")
            .unwrap();
        assert_eq!(line_of(&mut stream), "+OK\r");
        assert_eq!(line_of(&mut stream), "+OK\r");
        stream.write_all(request.as_bytes()).unwrap();
        for _ in 0..preambles {
            let line = line_of(&mut stream);
            assert!(
                line.starts_with("+FULLRESYNC ") && line.ends_with(" 0\r"),
                "{line}"
            );
        }
        let line = line_of(&mut stream);
        let bytes: usize = line.trim().strip_prefix('$').unwrap().parse().unwrap();
        let mut file = Vec::new();
        stream.read_to_end(&mut file).unwrap();
        assert_eq!(file.len(), bytes);
        assert_eq!(contents(&file).len(), 2);
    }
    assert!(names(folder.path()).is_empty());
    assert_eq!(field(&mut client, "stats", "sync_full"), "2");
    client.ask(
        "REPLCONF rdb-filter-only functions;REPLCONF nope 1;REPLCONF capa;REPLCONF rdb-only 2;\
         REPLCONF listening-port x;REPLCONF GETACK *;PSYNC ? x",
        "-ERR this server sends whole copies only: RDB-FILTER-ONLY is not supported\r\n\
         -ERR Unrecognized REPLCONF option: nope\r\n-ERR syntax error\r\n\
         -ERR value is out of range, value must between 0 and 1\r\n\
         -ERR value is not an integer or out of range\r\n\
         -ERR value is not an integer or out of range\r\n",
    );
}

#[test]
fn a_client_that_reads_no_copy_delays_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (server, mut client) = server_in(folder.path());
    let value = "v".repeat(100_000);
    for n in 0..200 {
        client.ask(&format!("SET key:{n} {value}"), "+OK\r\n");
    }
    client.ask("CONFIG SET rdbcompression no", "+OK\r\n");
    let mut silent: Vec<TcpStream> = Vec::new();
    for _ in 0..8 {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.write_all(b"SYNC\r\n").unwrap();
        assert!(line_of(&mut stream).starts_with('$'));
        silent.push(stream);
    }
    client.ask(
        "SYNC",
        "-ERR too many clients receive a copy of the store; try again later\r\n",
    );
    client.ask("SAVE;GET key:1000", "+OK\r\n$-1\r\n");
    drop(silent);
    let mut again = server.connect();
    wait_until(|| {
        again.send("PING");
        again.line() == "+PONG" && field(&mut again, "stats", "sync_full") == "8"
    });
}
