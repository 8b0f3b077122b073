//! A worker prefetches the keys of connections that are ready together before it executes their requests.

use crate::harness::{Client, Running, wait_until};

/// A read of so many keys that it waits at the closed gate, and so few that the worker executes it.
fn gated_read() -> String {
    format!("MGET{}", " k".repeat(40))
}

/// Makes the only worker wait in a request of `first`, calls `send`, and lets the worker continue. Returns the number of keys of each
/// prefetch after that.
fn prefetches_after(server: &Running, first: &mut Client, send: impl FnOnce()) -> Vec<usize> {
    server.store.close_gate();
    first.send(&gated_read());
    server.store.await_waiting();
    server.store.take_prefetches();
    send();
    server.store.open_gate();
    first.expect(&format!("*40\r\n{}", "$-1\r\n".repeat(40)));
    first.ask("PING", "+PONG\r\n");
    server.store.take_prefetches()
}

/// Connects clients and has one request of each served, so that the worker knows them and none of them pipelines.
fn connect<const N: usize>(server: &Running) -> [Client; N] {
    [(); N].map(|()| {
        let mut client = server.connect();
        client.send("PING");
        client.expect("+PONG\r\n");
        client
    })
}

#[test]
fn keys_of_connections_that_are_ready_together_are_prefetched_together() {
    let server = Running::new();
    let mut first = server.connect();
    let mut others = connect::<6>(&server);
    let mut memcached = server.connect_memcached();
    memcached.send_raw(b"get nosuch\r\n");
    memcached.expect("END\r\n");
    let prefetches = prefetches_after(&server, &mut first, || {
        for (client, line) in others.iter_mut().zip([
            "GET a",
            "SET b 1",
            "PING",        // It has no key.
            "GET c;GET d", // A pipeline prefetches its own keys.
            "GET e",
        ]) {
            client.send(line);
        }
        others[5].send_raw(b"*2\r\n$3\r\nGET\r\n$1\r\n"); // The key has not arrived.
        memcached.send_raw(b"get f\r\n");
    });
    let replies = [
        "$-1\r\n",
        "+OK\r\n",
        "+PONG\r\n",
        "$-1\r\n$-1\r\n",
        "$-1\r\n",
    ];
    for (client, reply) in others.iter_mut().zip(replies) {
        client.expect(reply);
    }
    others[5].send_raw(b"b\r\n");
    others[5].expect("$1\r\n1\r\n");
    memcached.expect("END\r\n");
    assert_eq!(prefetches, [4, 2], "a, b, e, f; then c and d");
}

#[test]
fn more_connections_than_a_group_are_all_served() {
    let server = Running::new();
    let mut first = server.connect();
    let mut others = connect::<40>(&server);
    let prefetches = prefetches_after(&server, &mut first, || {
        others.iter_mut().for_each(|client| client.send("INCR n"));
    });
    let mut replies: Vec<_> = others.iter_mut().map(Client::line).collect();
    replies.sort_by_key(|line| line[1..].trim_end().parse::<u64>().unwrap());
    assert_eq!(replies, Vec::from_iter((1..=40).map(|n| format!(":{n}"))));
    assert_eq!(prefetches, [16, 16, 8]);
}

#[test]
fn errors_and_ends_of_connections_that_were_read_ahead_are_answered_once() {
    let server = Running::new();
    let mut first = server.connect();
    let [mut wrong, mut gone, mut closed, mut good] = connect(&server);
    prefetches_after(&server, &mut first, || {
        wrong.send_raw(b"*1\r\n$4\r\nPING\r\n*1\r\n!\r\n");
        gone.send("SET gone 1");
        gone.finish();
        closed.finish();
        good.send("SET good 1");
    });
    assert_eq!(
        wrong.drain(),
        "+PONG\r\n-ERR Protocol error: expected '$', got '!'\r\n"
    );
    assert_eq!(gone.drain(), "+OK\r\n");
    assert_eq!(closed.drain(), "");
    good.expect("+OK\r\n");
    good.ask("MGET gone good", "*2\r\n$1\r\n1\r\n$1\r\n1\r\n");
    drop((wrong, gone, closed));
    wait_until(|| good.bulk("INFO clients").contains("connected_clients:2"));
}
