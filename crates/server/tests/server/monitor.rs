//! MONITOR: which requests its clients see, and in which form.

use farbank_server::{Password, ServerOptions};

use crate::harness::{Client, Running};

/// Reads lines up to the one of `PING end`, without times and addresses: `db source "word" ...`.
fn lines_until_end(monitor: &mut Client) -> Vec<String> {
    let mut lines = Vec::new();
    loop {
        let line = monitor.line();
        let (time, rest) = line.strip_prefix('+').unwrap().split_once(" [").unwrap();
        let (secs, micros) = time.split_once('.').unwrap();
        assert!(
            secs.parse::<u64>().unwrap() > 1_600_000_000 && micros.len() == 6,
            "{line}"
        );
        if rest.ends_with("\"PING\" \"end\"") {
            return lines;
        }
        let (source, words) = rest.split_once("] ").unwrap();
        let (db, addr) = source.split_once(' ').unwrap();
        let addr = match addr {
            "lua" => "lua",
            addr => {
                assert!(addr.starts_with("127.0.0.1:"), "{line}");
                "client"
            }
        };
        lines.push(format!("{db} {addr} {words}"));
    }
}

/// Sends requests and reads their replies. Unlike `ask`, sends nothing else.
#[track_caller]
fn talk(client: &mut Client, lines: &str, replies: &str) {
    client.send(lines);
    client.expect(replies);
}

#[test]
fn a_monitor_sees_requests_as_redis_shows_them() {
    let server = Running::new();
    let (mut monitor, mut client) = (server.connect(), server.connect());
    talk(&mut monitor, "MONITOR", "+OK\r\n");
    talk(&mut client, "SET a 1", "+OK\r\n");
    talk(
        &mut client,
        "MULTI;INCR a;EXEC",
        "+OK\r\n+QUEUED\r\n*1\r\n:2\r\n",
    );
    client.send_raw(b"*3\r\n$3\r\nset\r\n$7\r\na\0b\n\"q\\\r\n$2\r\n\x80\t\r\n");
    client.expect("+OK\r\n");
    client.send("NOPE;GET;CONFIG GET maxclients;CLIENT ID;GET a x");
    client.send("SELECT 3;GET zz;PING end");
    let lines = lines_until_end(&mut monitor);
    assert_eq!(
        lines,
        [
            "0 client \"SET\" \"a\" \"1\"",
            "0 client \"MULTI\"",
            "0 client \"INCR\" \"a\"",
            "0 client \"EXEC\"",
            "0 client \"set\" \"a\\x00b\\n\\\"q\\\\\" \"\\x80\\t\"",
            "0 client \"CLIENT\" \"ID\"",
            "3 client \"SELECT\" \"3\"",
            "3 client \"GET\" \"zz\"",
        ]
    );
}

#[test]
fn a_script_is_shown_before_its_commands() {
    let server = Running::new();
    let (mut monitor, mut client) = (server.connect(), server.connect());
    talk(&mut monitor, "MONITOR", "+OK\r\n");
    talk(
        &mut client,
        "EVAL return(redis.call('incr',KEYS[1])) 1 n;PING end",
        ":1\r\n$3\r\nend\r\n",
    );
    assert_eq!(
        lines_until_end(&mut monitor),
        [
            "0 client \"EVAL\" \"return(redis.call('incr',KEYS[1]))\" \"1\" \"n\"",
            "0 lua \"incr\" \"n\"",
        ]
    );
}

#[test]
fn passwords_are_hidden_and_long_arguments_are_shortened() {
    let server = Running::with(ServerOptions {
        workers: 1,
        password: Password::new(b"secret"),
        ..ServerOptions::default()
    });
    let (mut monitor, mut client) = (server.connect(), server.connect());
    talk(&mut monitor, "AUTH secret;MONITOR", "+OK\r\n+OK\r\n");
    talk(&mut client, "AUTH secret", "+OK\r\n");
    talk(
        &mut client,
        &format!("SET a {}", "x".repeat(20_000)),
        "+OK\r\n",
    );
    let migrate = "MIGRATE h 1 none 0 5 COPY AUTH2 user secret";
    talk(&mut client, migrate, "+NOKEY\r\n");
    talk(&mut client, "PING end", "$3\r\nend\r\n");
    let lines = lines_until_end(&mut monitor);
    assert_eq!(lines[0], "0 client \"AUTH\" \"(redacted)\"");
    let hidden = "\"COPY\" \"AUTH2\" \"(redacted)\" \"(redacted)\"";
    assert!(lines[2].ends_with(hidden), "{}", lines[2]);
    let shown = format!(
        "\"SET\" \"a\" \"{}\"... (3616 more bytes)",
        "x".repeat(16 << 10)
    );
    assert!(
        lines[1].ends_with(&shown),
        "{}",
        &lines[1][lines[1].len() - 60..]
    );
}

#[test]
fn a_monitor_accesses_no_keys_until_its_reset() {
    let server = Running::new();
    let (mut monitor, mut client) = (server.connect(), server.connect());
    talk(&mut monitor, "MONITOR", "+OK\r\n");
    let refused = "-ERR Replica can't interact with the keyspace\r\n";
    monitor.send("GET a;SET a 1;PUBLISH c m");
    for _ in 0..3 {
        monitor.expect(refused);
    }
    let list = client.bulk("CLIENT LIST");
    assert!(list.contains("flags=O"), "{list}");
    monitor.send("RESET");
    monitor.expect("+RESET\r\n");
    talk(&mut client, "SET a 2", "+OK\r\n");
    talk(&mut monitor, "GET a", "$1\r\n2\r\n");
    talk(&mut client, "MULTI;MONITOR", "+OK\r\n+QUEUED\r\n");
    talk(
        &mut client,
        "EXEC",
        "*1\r\n-ERR MONITOR isn't allowed for DENY BLOCKING client\r\n",
    );
}
