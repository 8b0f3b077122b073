//! A long request delays its own client and no other.

use crate::harness::{Client, Running, request, wait_until};

fn names(count: usize) -> String {
    (0..count).map(|at| format!(" key{at}")).collect()
}

fn pairs(count: usize) -> String {
    (0..count).map(|at| format!(" key{at} v")).collect()
}

/// Value of the INFO field `name`.
fn figure(client: &mut Client, name: &str) -> usize {
    let info = client.bulk("INFO");
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap().parse().unwrap()
}

/// Sends `requests`, one of which is long and waits in the store. Checks that another client is served meanwhile.
fn others_are_served(requests: &[u8], replies: &str, is_resp: bool) {
    let server = Running::new();
    let mut other = server.connect();
    other.ask("SET a 1", "+OK\r\n");
    server.store.close_gate();
    let mut client = match is_resp {
        true => server.connect(),
        false => server.connect_memcached(),
    };
    client.send_raw(requests);
    server.store.await_waiting();
    // These requests would hang if the other client waited for the long request.
    other.ask(
        "PING;SET b 2;GET b;GET a",
        "+PONG\r\n+OK\r\n$1\r\n2\r\n$1\r\n1\r\n",
    );
    server.connect_memcached().send_raw(b"get a\r\n");
    assert!(server.store.is_waiting());
    server.store.open_gate();
    client.expect(replies);
    assert_eq!(figure(&mut other, "farbank_long_requests"), 1);
}

#[test]
fn other_clients_are_served_while_a_long_request_is_executed() {
    let resp = |lines: &str| lines.split(';').flat_map(request).collect::<Vec<u8>>();
    let long = "a".repeat(129);
    for (lines, replies) in [
        (
            "SELECT 1;KEYS *;PING".to_owned(),
            "+OK\r\n*0\r\n+PONG\r\n".to_owned(),
        ),
        (
            "SELECT 1;FLUSHDB;PING".into(),
            "+OK\r\n+OK\r\n+PONG\r\n".into(),
        ),
        ("FLUSHALL;PING".into(), "+OK\r\n+PONG\r\n".into()),
        (
            "SELECT 1;SCAN 0 COUNT 101".into(),
            "+OK\r\n*2\r\n$1\r\n0\r\n*0\r\n".into(),
        ),
        (
            format!("SELECT 1;SCAN 0 MATCH {long} COUNT 50"),
            "+OK\r\n*2\r\n$1\r\n0\r\n*0\r\n".into(),
        ),
        (
            format!("MSET{};GET key7", pairs(100)),
            "+OK\r\n$1\r\nv\r\n".into(),
        ),
        (format!("DEL{};PING", names(200)), ":0\r\n+PONG\r\n".into()),
        (
            format!("MGET{}", names(1000)),
            format!("*1000\r\n{}", "$-1\r\n".repeat(1000)),
        ),
        (
            format!("MULTI{};EXEC;PING", ";INCR n".repeat(65)),
            format!(
                "+OK\r\n{}*65\r\n{}+PONG\r\n",
                "+QUEUED\r\n".repeat(65),
                (1..=65).map(|n| format!(":{n}\r\n")).collect::<String>()
            ),
        ),
        (
            "SELECT 1;MULTI;SET x 1;KEYS *;EXEC".into(),
            "+OK\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n*1\r\n$1\r\nx\r\n".into(),
        ),
    ] {
        others_are_served(&resp(&lines), &replies, true);
    }
    others_are_served(b"flush_all\r\nmn\r\n", "OK\r\nMN\r\n", false);
    let dump = b"stats cachedump 1 0\r\nmn\r\n";
    let items = "ITEM a [1 b; 0 s]\r\nITEM b [1 b; 0 s]\r\n";
    others_are_served(dump, &format!("{items}END\r\nMN\r\n"), false);
}

#[test]
fn a_client_with_long_requests_gets_its_replies_in_order() {
    let server = Running::new();
    server.store.close_gate();
    let mut client = server.connect();
    client.send("SET a 1;GET a;KEYS *;SET b 2;KEYS b;DEL a b;KEYS *;PING");
    client.expect("+OK\r\n$1\r\n1\r\n");
    server.store.await_waiting();
    server.connect().ask("GET b", "$-1\r\n");
    server.store.open_gate();
    client.expect("*1\r\n$1\r\na\r\n+OK\r\n*1\r\n$1\r\nb\r\n:2\r\n*0\r\n+PONG\r\n");
}

#[test]
fn a_client_that_closes_its_sending_side_during_a_long_request_gets_its_replies() {
    let server = Running::new();
    server.store.close_gate();
    let mut client = server.connect();
    client.send("SET a 1;KEYS *");
    client.expect("+OK\r\n");
    server.store.await_waiting();
    client.send("PING;KEYS *");
    client.finish();
    server.connect().ask("PING", "+PONG\r\n");
    server.store.open_gate();
    let keys = "*1\r\n$1\r\na\r\n";
    assert_eq!(client.drain(), format!("{keys}+PONG\r\n{keys}"));
}

#[test]
fn a_long_request_starts_once_earlier_writes_are_durable_and_sees_them() {
    let server = Running::new();
    server.store.hold();
    server.store.close_gate();
    let mut client = server.connect();
    client.send("SET a 1;KEYS *;PING");
    server.await_held(1);
    server.connect().ask("PING", "+PONG\r\n");
    assert!(!server.store.is_waiting());
    server.store.turn();
    client.expect("+OK\r\n");
    server.store.await_waiting();
    server.store.open_gate();
    client.expect("*1\r\n$1\r\na\r\n+PONG\r\n");
}

#[test]
fn the_reply_to_a_long_write_waits_for_its_ticket() {
    let server = Running::new();
    let (mut client, mut other) = (server.connect(), server.connect());
    server.store.hold();
    client.send(&format!("MSET{};GET key1", pairs(200)));
    server.await_held(1);
    other.ask("GET key1", "$-1\r\n");
    client.stream.set_nonblocking(true).unwrap();
    let early = std::io::Read::read(&mut client.stream, &mut [0; 64]);
    assert_eq!(
        early.map_err(|e| e.kind()),
        Err(std::io::ErrorKind::WouldBlock)
    );
    client.stream.set_nonblocking(false).unwrap();
    server.store.let_go();
    client.expect("+OK\r\n$1\r\nv\r\n");
    other.ask("GET key1", "$1\r\nv\r\n");
}

#[test]
fn a_long_write_is_not_acknowledged_if_the_medium_fails_during_it() {
    let server = Running::new();
    let (mut client, mut other) = (server.connect(), server.connect());
    client.ask("SET a 1", "+OK\r\n");
    server.store.hold();
    client.send(&format!("PING;MSET{};PING", pairs(200)));
    client.expect("+PONG\r\n");
    server.await_held(1);
    server.store.poison("it broke");
    assert_eq!(client.drain(), "");
    other.ask("KEYS *", "*1\r\n$1\r\na\r\n");
    let misconf = "-MISCONF Errors writing to the pool: it broke\r\n";
    other.ask(&format!("MSET{}", pairs(200)), misconf);
}

#[test]
fn a_killed_client_is_closed_before_its_long_request_starts_or_after_it_ends() {
    let server = Running::new();
    server.store.close_gate();
    let (mut first, mut second) = (server.connect(), server.connect());
    let mut admin = server.connect();
    let ids = [&mut first, &mut second].map(|client| {
        client.send("CLIENT ID");
        client.line()[1..].to_owned()
    });
    first.send("MSET a 1 b 2;FLUSHALL;PING");
    first.expect("+OK\r\n");
    server.store.await_waiting();
    second.send("PING;KEYS *");
    second.expect("+PONG\r\n");
    admin.ask(&format!("CLIENT KILL ID {}", ids[1]), ":1\r\n");
    assert_eq!(second.drain(), "");
    admin.ask(&format!("CLIENT KILL ID {}", ids[0]), ":1\r\n");
    assert_eq!(admin.bulk("CLIENT LIST").lines().count(), 1);
    server.store.open_gate();
    assert_eq!(first.drain(), "");
    // The request that had begun took effect.
    admin.ask("DBSIZE", ":0\r\n");
}

#[test]
fn a_client_that_disconnects_during_its_long_request_is_unregistered() {
    let server = Running::new();
    server.store.close_gate();
    let mut admin = server.connect();
    for requests in ["KEYS *", "FLUSHALL;PING;KEYS *"] {
        server.connect().send(requests);
    }
    server.store.await_waiting();
    server.store.open_gate();
    wait_until(|| figure(&mut admin, "connected_clients") == 1);
    admin.ask("PING", "+PONG\r\n");
}

#[test]
fn a_server_stops_while_long_requests_execute_and_wait() {
    let server = Running::new();
    let (mut first, mut second) = (server.connect(), server.connect());
    first.ask(&format!("MSET{}", pairs(3000)), "+OK\r\n");
    server.store.close_gate();
    first.send("KEYS *;PING");
    server.store.await_waiting();
    second.send("PING;KEYS *");
    second.expect("+PONG\r\n");
    server.connect().send("SHUTDOWN");
    wait_until(|| !server.accepts());
    server.store.open_gate();
    assert_eq!(first.drain(), "-ERR the server is shutting down\r\n");
    assert_eq!(second.drain(), "");
    server.join();
}

#[test]
fn requests_that_read_large_values_are_long() {
    let server = Running::new();
    let mut client = server.connect();
    let value = "v".repeat(3 << 20);
    let reply = format!("$3145728\r\n{value}\r\n");
    client.ask(&format!("SET big {value};SET small s"), "+OK\r\n+OK\r\n");
    let mut before = figure(&mut client, "farbank_long_requests");
    assert_eq!(before, 1);
    for (requests, replies, long) in [
        ("GET big;GET small", format!("{reply}$1\r\ns\r\n"), 1),
        ("MGET small big", format!("*2\r\n$1\r\ns\r\n{reply}"), 1),
        (
            "EXPIRE big 1000;PERSIST big;STRLEN big",
            ":1\r\n:1\r\n:3145728\r\n".into(),
            2,
        ),
        (
            "INCR big",
            "-ERR value is not an integer or out of range\r\n".into(),
            1,
        ),
        ("SET big x NX;SETNX big x", "$-1\r\n:0\r\n".into(), 2),
        (
            "WATCH small;MULTI;SET n 1;GET big;EXEC",
            format!("+OK\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n{reply}"),
            1,
        ),
        (
            "APPEND big w;GETDEL big",
            format!(":3145729\r\n$3145729\r\n{value}w\r\n"),
            2,
        ),
    ] {
        client.ask(requests, &replies);
        let now = figure(&mut client, "farbank_long_requests");
        assert_eq!(now - before, long, "{requests}");
        before = now;
    }
    // A request that reads many values together is long too, and each key counts once in the statistics.
    let mut cached = server.connect_memcached();
    let value = "w".repeat(600 << 10);
    client.ask(&format!("SET k {value}"), "+OK\r\n");
    let (hits, commands) = (
        figure(&mut client, "keyspace_hits"),
        figure(&mut client, "total_commands_processed"),
    );
    let item = format!("VALUE k 0 614400\r\n{value}\r\n");
    cached.send_raw(b"get k k k\r\nget k k k k\r\n");
    cached.expect(&format!(
        "{}END\r\n{}END\r\n",
        item.repeat(3),
        item.repeat(4)
    ));
    assert_eq!(figure(&mut client, "farbank_long_requests") - before, 1);
    assert_eq!(figure(&mut client, "keyspace_hits") - hits, 7);
    let commands = figure(&mut client, "total_commands_processed") - commands;
    assert_eq!(commands, 5, "2 gets and 3 INFO requests");
}
