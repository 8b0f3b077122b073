//! Limits that keep a client from flooding the server, starving other clients or exhausting memory.

use std::io::Write;

use crate::harness::{Running, request};
use farbank_server::ServerOptions;

#[test]
fn clients_above_maxclients_are_refused_with_an_error() {
    let server = Running::with(ServerOptions {
        workers: 1,
        clients_max: 2,
        ..ServerOptions::default()
    });
    let (mut one, mut two) = (server.connect(), server.connect());
    one.ask("PING", "+PONG\r\n");
    two.ask("PING", "+PONG\r\n");
    let mut three = server.connect();
    assert_eq!(three.drain(), "-ERR max number of clients reached\r\n");
    one.send("QUIT");
    assert_eq!(one.drain(), "+OK\r\n");
    // The server unregisters a connection before it closes the socket, so another client can connect now.
    server.connect().ask("PING", "+PONG\r\n");
}

#[test]
fn a_protocol_error_is_reported_after_earlier_replies_and_closes_the_connection() {
    let server = Running::new();
    for (bytes, error) in [
        ("*1\r\n$x\r\n", "invalid bulk length"),
        ("*x\r\n", "invalid multibulk length"),
        ("*1\r\n:1\r\n", "expected '$', got ':'"),
        ("set \"a\r\n", "unbalanced quotes in request"),
    ] {
        let mut client = server.connect();
        client.send_raw(b"PING\r\n");
        client.send_raw(bytes.as_bytes());
        assert_eq!(
            client.drain(),
            format!("+PONG\r\n-ERR Protocol error: {error}\r\n")
        );
    }
    let mut client = server.connect();
    client.send_raw(&vec![b'a'; 64 * 1024 + 1]);
    assert_eq!(
        client.drain(),
        "-ERR Protocol error: too big inline request\r\n"
    );
}

#[test]
fn requests_may_arrive_byte_by_byte() {
    let server = Running::new();
    let mut client = server.connect();
    for byte in [
        request("SET k value"),
        request("GET k"),
        b"ping\r\n".to_vec(),
    ]
    .concat()
    {
        client.send_raw(&[byte]);
    }
    client.expect("+OK\r\n$5\r\nvalue\r\n+PONG\r\n");
}

#[test]
fn large_values_are_stored_and_read() {
    let server = Running::new();
    let mut client = server.connect();
    let value = "x".repeat(5 << 20);
    client.send(&format!(
        "SET big {value};STRLEN big;GET big;APPEND big y;STRLEN big"
    ));
    client.expect(&format!(
        "+OK\r\n:5242880\r\n$5242880\r\n{value}\r\n:5242881\r\n:5242881\r\n"
    ));
}

#[test]
fn long_pipelines_are_answered_in_order() {
    let server = Running::new();
    let mut client = server.connect();
    let (mut bytes, mut expected) = (Vec::new(), String::new());
    for at in 0..20_000 {
        bytes.extend_from_slice(&request(&format!("ECHO {at}")));
        let text = at.to_string();
        expected.push_str(&format!("${}\r\n{text}\r\n", text.len()));
    }
    let mut writer = client.stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || std::io::Write::write_all(&mut writer, &bytes).unwrap());
        client.expect(&expected);
    });
}

#[test]
fn a_client_that_does_not_read_blocks_only_itself() {
    let server = Running::new();
    let (mut deaf, mut other) = (server.connect(), server.connect());
    let value = "x".repeat(1 << 20);
    other.ask(&format!("SET big {value}"), "+OK\r\n");
    // Far more than sockets buffer and a connection may have unsent.
    for _ in 0..200 {
        deaf.send("GET big");
    }
    deaf.send("SET last 1");
    other.ask("PING", "+PONG\r\n");
    let reply = format!("$1048576\r\n{value}\r\n");
    for _ in 0..200 {
        deaf.expect(&reply);
    }
    deaf.expect("+OK\r\n");
    other.ask("GET last", "$1\r\n1\r\n");
}

#[test]
fn a_client_whose_replies_exceed_the_limit_is_closed_and_counted() {
    let server = Running::new();
    let (mut client, mut other) = (server.connect(), server.connect());
    other.send_raw(b"CONFIG SET client-output-buffer-limit \"normal 64mb 0 0\"\r\n");
    other.expect("+OK\r\n");
    let value = "x".repeat(8 << 20);
    client.ask(&format!("SET big {value}"), "+OK\r\n");
    client.ask("STRLEN big", ":8388608\r\n");
    client.send(&format!("MGET{}", " big".repeat(40)));
    assert_eq!(client.drain(), "");
    // A transaction whose reply is cut is still committed as a whole.
    let mut client = server.connect();
    client.send(&format!(
        "MULTI;SET before 1{};SET after 1",
        ";GET big".repeat(20)
    ));
    client.expect(&format!("+OK\r\n{}", "+QUEUED\r\n".repeat(22)));
    client.send("EXEC");
    assert_eq!(client.drain(), "");
    other.ask("MGET before after", "*2\r\n$1\r\n1\r\n$1\r\n1\r\n");
    let info = other.bulk("INFO stats");
    assert!(
        info.contains("client_output_buffer_limit_disconnections:2\r\n"),
        "{info}"
    );
    let mut client = server.connect();
    client.send("GETSET big small");
    client.expect(&format!("$8388608\r\n{value}\r\n"));
}

#[test]
fn the_largest_clients_are_evicted_when_all_together_use_too_much_memory() {
    let server = Running::new();
    let (mut spared, mut large, mut other) = (server.connect(), server.connect(), server.connect());
    other.ask("CONFIG SET maxmemory-clients 6mb", "+OK\r\n");
    other.ask(
        "CONFIG GET maxmemory-clients",
        "*2\r\n$17\r\nmaxmemory-clients\r\n$7\r\n6291456\r\n",
    );
    let mebibyte = "x".repeat(1 << 20);
    spared.ask("CLIENT NO-EVICT on", "+OK\r\n");
    for (client, values) in [(&mut spared, 2), (&mut large, 3)] {
        client.send("MULTI");
        client.expect("+OK\r\n");
        for _ in 0..values {
            client.send(&format!("SET k {mebibyte}"));
            client.expect("+QUEUED\r\n");
        }
    }
    let lines = other.bulk("CLIENT LIST");
    for (multi, queued_bytes) in [(2, 2 << 20), (3, 3 << 20)] {
        let line = lines
            .lines()
            .find(|line| line.contains(&format!(" multi={multi} ")));
        let counted = line.and_then(|line| line.split(" multi-mem=").nth(1)?.split(' ').next());
        let counted: usize = counted.unwrap().parse().unwrap();
        assert!(
            (queued_bytes..queued_bytes + 1024).contains(&counted),
            "{lines}"
        );
    }
    // The server may close the connection before all of this has arrived.
    drop(
        large
            .stream
            .write_all(&request(&format!("SET k {mebibyte}"))),
    );
    assert_eq!(large.drain(), "");
    spared.send("EXEC");
    spared.expect("*2\r\n+OK\r\n+OK\r\n");
    let info = other.bulk("INFO stats");
    assert!(info.contains("evicted_clients:1\r\n"), "{info}");
}

#[test]
fn watched_keys_are_counted_and_many_do_not_take_quadratic_time() {
    let server = Running::new();
    let mut client = server.connect();
    let names: String = (0..200_000).map(|at| format!(" key{at}")).collect();
    client.send(&format!("WATCH{names}"));
    client.expect("+OK\r\n");
    let line = client.bulk("CLIENT INFO");
    assert!(line.contains(" watch=200000 "), "{line}");
    let bytes = line
        .split(" multi-mem=")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    assert!(
        bytes.unwrap().parse::<usize>().unwrap() > 200_000 * 32,
        "{line}"
    );
}

#[test]
fn keys_and_values_above_their_limits_are_refused() {
    let server = Running::new();
    let mut client = server.connect();
    let key = "k".repeat(64 << 10);
    client.ask(&format!("SET {key} v;GET {key}"), "+OK\r\n$1\r\nv\r\n");
    let error = "-ERR the key has 65537 bytes; the limit is 65536\r\n";
    client.ask(
        &format!("SET {key}k v;GET {key}k;DEL a {key}k"),
        &error.repeat(3),
    );
    client.ask("CONFIG SET proto-max-bulk-len 1mb", "+OK\r\n");
    let half = "x".repeat(600 << 10);
    client.ask(
        &format!("SET v {half};APPEND v {half}"),
        "+OK\r\n-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n",
    );
    client.send_raw(b"*2\r\n$3\r\nGET\r\n$1048577\r\n");
    assert_eq!(
        client.drain(),
        "-ERR Protocol error: invalid bulk length\r\n"
    );
}

#[test]
fn an_http_request_gets_no_reply_and_executes_no_command() {
    let server = Running::new();
    let mut client = server.connect();
    client.send_raw(b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\nFLUSHALL\r\n");
    assert_eq!(client.drain(), "");
}

#[test]
fn connections_spread_over_the_workers() {
    let server = Running::with(ServerOptions {
        workers: 2,
        ..ServerOptions::default()
    });
    let mut clients: Vec<_> = (0..8).map(|_| server.connect()).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        client.ask(&format!("SET k{at} v"), "+OK\r\n");
    }
    clients[0].ask("DBSIZE", ":8\r\n");
}
