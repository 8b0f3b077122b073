//! DUMP, RESTORE, SORT and MIGRATE. The replies are those of redis-server 7.0.15. `/` stands for the end of a line.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;

use farbank_server::rdb::dump_string;
use farbank_server::resp;

use crate::harness::{Client, Running};

fn send(client: &mut Client, words: &[&[u8]]) {
    let mut bytes = Vec::new();
    resp::request(&mut bytes, words);
    client.send_raw(&bytes);
}

#[track_caller]
fn agree(client: &mut Client, words: &[&[u8]], replies: &str) {
    send(client, words);
    client.expect(&replies.replace('/', "\r\n"));
}

/// The payload that DUMP of `key` returns.
fn dump(client: &mut Client, key: &str) -> Vec<u8> {
    client.send(&format!("DUMP {key}"));
    let len: usize = client.line()[1..].parse().unwrap();
    let mut payload = vec![0; len + 2];
    client.stream.read_exact(&mut payload).unwrap();
    payload.truncate(len);
    payload
}

fn long_requests(client: &mut Client) -> usize {
    let info = client.bulk("INFO");
    let mut lines = info.lines();
    let figure = lines.find_map(|line| line.strip_prefix("farbank_long_requests:"));
    figure.unwrap().parse().unwrap()
}

#[test]
fn a_dumped_value_is_restored() {
    let server = Running::new();
    let mut client = server.connect();
    client.ask("DUMP none", "$-1\r\n");
    for value in [
        &b""[..],
        b"12",
        b"-70000",
        b"a\0b",
        &[b'x'; 5_000],
        &[7; 600_000],
    ] {
        agree(&mut client, &[b"SET", b"k", value], "+OK/");
        let payload = dump(&mut client, "k");
        assert_eq!(payload, dump_string(value));
        agree(
            &mut client,
            &[b"RESTORE", b"other", b"0", &payload, b"REPLACE"],
            "+OK/",
        );
        send(&mut client, &[b"GET", b"other"]);
        let mut expected = format!("${}\r\n", value.len()).into_bytes();
        expected.extend_from_slice(value);
        expected.extend_from_slice(b"\r\n");
        let mut got = vec![0; expected.len()];
        client.stream.read_exact(&mut got).unwrap();
        assert!(got == expected);
    }
}

#[test]
fn restore_replies_as_redis_does() {
    let server = Running::new();
    let mut client = server.connect();
    client.ask("SET k old", "+OK\r\n");
    let good = dump_string(b"value");
    let list = b"\x01\x01\x01a\x0a\x00\xf9\x1e\x3c\xeb\x05\x07\x7d\xd0";
    for (key, ttl, payload, options, reply) in [
        (
            "k",
            "0",
            &good[..],
            "",
            "-BUSYKEY Target key name already exists.",
        ),
        (
            "k",
            "x",
            b"x",
            "",
            "-BUSYKEY Target key name already exists.",
        ),
        (
            "n",
            "x",
            b"x",
            "",
            "-ERR value is not an integer or out of range",
        ),
        ("n", "-1", b"x", "", "-ERR Invalid TTL value, must be >= 0"),
        (
            "n",
            "0",
            b"x",
            "",
            "-ERR DUMP payload version or checksum are wrong",
        ),
        (
            "n",
            "0",
            &list[..],
            "",
            "-ERR DUMP payload version or checksum are wrong",
        ),
        ("k", "0", &good, "NOPE", "-ERR syntax error"),
        ("k", "0", &good, "IDLETIME", "-ERR syntax error"),
        (
            "k",
            "0",
            &good,
            "IDLETIME x",
            "-ERR value is not an integer or out of range",
        ),
        (
            "k",
            "0",
            &good,
            "IDLETIME -1",
            "-ERR Invalid IDLETIME value, must be >= 0",
        ),
        (
            "k",
            "0",
            &good,
            "FREQ 256",
            "-ERR Invalid FREQ value, must be >= 0 and <= 255",
        ),
        ("k", "0", &good, "FREQ 1 IDLETIME 1", "-ERR syntax error"),
        ("k", "0", &good, "FREQ 1 FREQ 2 replace", "+OK"),
        ("k", "0", &good, "IDLETIME 1000 REPLACE", "+OK"),
        ("k", "9223372036854775807", &good, "REPLACE", "+OK"),
        ("k", "1", &good, "ABSTTL", "+OK"),
    ] {
        let mut words: Vec<&[u8]> = vec![b"RESTORE", key.as_bytes(), ttl.as_bytes(), payload];
        words.extend(options.split_whitespace().map(str::as_bytes));
        agree(&mut client, &words, &format!("{reply}/"));
    }
    // The expiry of the last two was in the past: the first one has deleted the key.
    client.ask("EXISTS k;DBSIZE", ":0\r\n:0\r\n");
    agree(&mut client, &[b"RESTORE", b"n", b"100000", &good], "+OK/");
    agree(
        &mut client,
        &[b"RESTORE", b"m", b"99999999999999", &good, b"absttl"],
        "+OK/",
    );
    client.ask("TTL n;PEXPIRETIME m", ":100\r\n:99999999999999\r\n");
}

#[test]
fn restored_values_publish_the_events_of_redis() {
    let server = Running::new();
    let mut client = server.connect();
    client.ask("CONFIG SET notify-keyspace-events EAn", "+OK\r\n");
    let mut listener = server.connect();
    listener.send("PSUBSCRIBE *");
    listener.expect("*3\r\n$10\r\npsubscribe\r\n$1\r\n*\r\n:1\r\n");
    let payload = dump_string(b"v");
    agree(&mut client, &[b"RESTORE", b"k", b"0", &payload], "+OK/");
    agree(
        &mut client,
        &[b"RESTORE", b"k", b"1", &payload, b"ABSTTL", b"REPLACE"],
        "+OK/",
    );
    for event in ["new", "restore", "del"] {
        let channel = format!("__keyevent@0__:{event}");
        let len = channel.len();
        listener.expect(&format!(
            "*4\r\n$8\r\npmessage\r\n$1\r\n*\r\n${len}\r\n{channel}\r\n$1\r\nk\r\n"
        ));
    }
}

#[test]
fn large_payloads_are_long_requests() {
    let server = Running::new();
    let mut client = server.connect();
    let value = vec![b'x'; 1 << 20];
    agree(&mut client, &[b"SET", b"k", &value], "+OK/");
    let payload = dump(&mut client, "k");
    assert_eq!(long_requests(&mut client), 1);
    // A short payload of a long value.
    assert!(payload.len() < 20_000);
    agree(&mut client, &[b"RESTORE", b"n", b"0", &payload], "+OK/");
    assert_eq!(long_requests(&mut client), 2);
    client.ask(
        "MULTI;DUMP none;STRLEN n;EXEC",
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$-1\r\n:1048576\r\n",
    );
}

#[test]
fn restore_takes_part_in_scripts_and_transactions() {
    let server = Running::new();
    let mut client = server.connect();
    client.ask("SET a value", "+OK\r\n");
    let copy =
        b"redis.call('restore', 'b', 0, redis.call('dump', 'a')) return redis.call('get', 'b')";
    agree(&mut client, &[b"EVAL", copy, b"0"], "$5/value/");
    client.send("MULTI");
    send(&mut client, &[b"RESTORE", b"c", b"0", &dump_string(b"x")]);
    client.send("RESTORE c 0 x;EXEC;GET c");
    client.expect(
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n-BUSYKEY Target key name already exists.\r\n$1\r\nx\r\n",
    );
}

#[test]
fn sort_finds_nothing_to_sort_in_strings() {
    let server = Running::new();
    let mut client = server.connect();
    for (requests, replies) in [
        (
            "SET s v;SORT s;SORT_RO s",
            "+OK/-WRONGTYPE Operation against a key holding the wrong kind of value/-WRONGTYPE Operation against a key holding the wrong kind of value/",
        ),
        (
            "SORT none;SORT_RO none;SORT none LIMIT 0 10 GET # BY w* desc ALPHA asc",
            "*0/*0/*0/",
        ),
        ("SORT none STORE s;EXISTS s;SORT none STORE s", ":0/:0/:0/"),
        (
            "SORT none LIMIT x 1;SORT none LIMIT 1",
            "-ERR value is not an integer or out of range/-ERR syntax error/",
        ),
        (
            "SORT none BY;SORT none GET;SORT none STORE;SORT none nope",
            "-ERR syntax error/-ERR syntax error/-ERR syntax error/-ERR syntax error/",
        ),
        ("SORT_RO none STORE s", "-ERR syntax error/"),
        (
            "SET s v;SORT s STORE t nope;SORT s STORE s;GET s",
            "+OK/-ERR syntax error/-WRONGTYPE Operation against a key holding the wrong kind of value/$1/v/",
        ),
        (
            "MULTI;SORT none STORE s;EXEC;GET s",
            "+OK/+QUEUED/*1/:0/$-1/",
        ),
    ] {
        client.ask(requests, &replies.replace('/', "\r\n"));
    }
}

#[test]
fn migrate_moves_keys_to_another_server() {
    let (source, target) = (Running::new(), Running::new());
    let (mut client, mut other) = (source.connect(), target.connect());
    let port = target.port();
    client.ask(
        "MSET a 1 b 2 c 3;PEXPIREAT b 99999999999999;SELECT 1;SET a x;SELECT 0",
        "+OK\r\n:1\r\n+OK\r\n+OK\r\n+OK\r\n",
    );
    let migrate = |rest: &str| format!("MIGRATE 127.0.0.1 {port} {rest}");
    client.ask(&migrate("none 0 1000"), "+NOKEY\r\n");
    client.ask(&migrate("a 2 1000"), "+OK\r\n");
    client.ask("EXISTS a", ":0\r\n");
    other.ask("SELECT 2;GET a;SELECT 0", "+OK\r\n$1\r\n1\r\n+OK\r\n");
    client.ask(&migrate("'' 0 1000 COPY KEYS b none c"), "+OK\r\n");
    client.ask("EXISTS b c", ":2\r\n");
    other.ask("MGET b c", "*2\r\n$1\r\n2\r\n$1\r\n3\r\n");
    // The remaining time is sent, as in Redis, so the moment differs by the time of the transfer.
    other.send("PEXPIRETIME b");
    let moment: u64 = other.line()[1..].parse().unwrap();
    assert!(moment.abs_diff(99_999_999_999_999) < 60_000);
    let busy =
        "-ERR Target instance replied with error: BUSYKEY Target key name already exists.\r\n";
    client.ask(&migrate("b 0 1000"), busy);
    other.ask("DEL c;SET b old", ":1\r\n+OK\r\n");
    // The first error is the reply, and the other keys are moved.
    client.ask(&migrate("'' 0 1000 KEYS b c"), busy);
    client.ask("EXISTS b c", ":1\r\n");
    client.ask(&migrate("b 0 1000 REPLACE"), "+OK\r\n");
    other.ask("MGET b c", "*2\r\n$1\r\n2\r\n$1\r\n3\r\n");
    client.ask("DBSIZE", ":0\r\n");
}

#[test]
fn migrate_replies_as_redis_does() {
    let (server, target) = (Running::new(), Running::new());
    let mut client = server.connect();
    client.ask("SET k v", "+OK\r\n");
    let port = target.port();
    for (rest, reply) in [
        ("1 k x 100", "-ERR value is not an integer or out of range"),
        ("1 k 0 x", "-ERR value is not an integer or out of range"),
        ("1 k 0 100 NOPE", "-ERR syntax error"),
        ("1 k 0 100 AUTH", "-ERR syntax error"),
        ("1 k 0 100 AUTH2 a", "-ERR syntax error"),
        (
            "1 k 0 100 KEYS a",
            "-ERR When using MIGRATE KEYS option, the key argument must be set to the empty string",
        ),
        ("1 '' 0 100 KEYS", "+NOKEY"),
        (
            "1 k 0 100",
            "-IOERR error or timeout writing to target instance",
        ),
        (
            "x k 0 100",
            "-IOERR error or timeout connecting to the client",
        ),
        (
            "PORT k 99 1000",
            "-ERR Target instance replied with error: ERR DB index is out of range",
        ),
        (
            "PORT k 0 1000 AUTH secret",
            "-ERR Target instance replied with error: ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
        ),
        (
            "PORT k 0 1000 AUTH2 other secret",
            "-ERR Target instance replied with error: WRONGPASS invalid username-password pair or user is disabled.",
        ),
        ("PORT k 0 -1 COPY AUTH2 default any", "+OK"),
    ] {
        let rest = rest.replace("PORT", &port.to_string());
        client.ask(
            &format!("MIGRATE 127.0.0.1 {rest}"),
            &format!("{reply}\r\n"),
        );
    }
    client.ask(
        "EVAL return(redis.call('migrate','h',1,'k',0,1)) 0",
        "-ERR MIGRATE waits for another server, so no script can call it script: eb6e68f60fba565a472f8dd6dbb3952c670c8074, on @user_script:1.\r\n",
    );
}

/// A reply of a target, and what happens before it is sent.
type TargetReply = (&'static str, Box<dyn FnOnce() + Send>);

/// A target whose replies a test chooses: it reads a request for each, and then calls the function.
fn target(replies: Vec<TargetReply>) -> (u16, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        for (reply, before) in replies {
            line.clear();
            reader.read_line(&mut line).unwrap();
            let words: usize = line.trim_end()[1..].parse().unwrap();
            for _ in 0..words {
                line.clear();
                reader.read_line(&mut line).unwrap();
                let len: usize = line.trim_end()[1..].parse().unwrap();
                reader.read_exact(&mut vec![0; len + 2]).unwrap();
            }
            before();
            stream.write_all(reply.as_bytes()).unwrap();
        }
        // Waits until the client closes the connection.
        let _ = reader.read_to_string(&mut line);
    });
    (port, thread)
}

#[test]
fn migrate_keeps_a_key_that_another_client_writes_meanwhile() {
    let server = Running::new();
    let (mut client, mut writer) = (server.connect(), server.connect());
    client.ask("SET k old", "+OK\r\n");
    let write = move || writer.ask("SET k new", "+OK\r\n");
    let (port, thread) = target(vec![
        ("+OK\r\n", Box::new(|| {})),
        ("+OK\r\n", Box::new(write)),
    ]);
    client.ask(
        &format!("MIGRATE 127.0.0.1 {port} k 0 10000"),
        "-ERR the key was written while it was moved: it is kept here, and the target has its earlier value\r\n",
    );
    client.ask("GET k", "$3\r\nnew\r\n");
    thread.join().unwrap();
}

#[test]
fn migrate_ends_after_its_timeout_and_keeps_the_key() {
    let server = Running::new();
    let mut client = server.connect();
    client.ask("SET k v", "+OK\r\n");
    for replies in [0, 1] {
        let replies = (0..replies).map(|_| -> TargetReply { ("+OK\r\n", Box::new(|| {})) });
        let (port, thread) = target(replies.collect());
        client.ask(
            &format!("MIGRATE 127.0.0.1 {port} k 0 50"),
            "-IOERR error or timeout reading from target instance\r\n",
        );
        thread.join().unwrap();
    }
    client.ask("GET k", "$1\r\nv\r\n");
}
