//! MULTI, EXEC and WATCH between connections.

use crate::harness::Running;

#[test]
fn a_transaction_is_atomic_and_invisible_until_exec() {
    let server = Running::new();
    let (mut one, mut two) = (server.connect(), server.connect());
    one.send("MULTI;SET a 1;INCR b");
    one.expect("+OK\r\n+QUEUED\r\n+QUEUED\r\n");
    two.ask("MGET a b", "*2\r\n$-1\r\n$-1\r\n");
    one.ask("EXEC", "*2\r\n+OK\r\n:1\r\n");
    two.ask("MGET a b", "*2\r\n$1\r\n1\r\n$1\r\n1\r\n");
}

#[test]
fn a_transaction_aborts_if_another_client_changes_a_watched_key() {
    let server = Running::new();
    let (mut one, mut two) = (server.connect(), server.connect());
    for change in [
        "SET k x",
        "DEL k",
        "EXPIRE k 100",
        "APPEND k y",
        "FLUSHALL",
        "GETDEL k",
    ] {
        two.ask("SET k 1", "+OK\r\n");
        one.ask("WATCH k;GET k", "+OK\r\n$1\r\n1\r\n");
        two.send(change);
        two.send("ECHO .");
        let mut last = String::new();
        while !last.ends_with("$1\r\n.\r\n") {
            let mut byte = [0];
            std::io::Read::read_exact(&mut two.stream, &mut byte).unwrap();
            last.push(char::from(byte[0]));
        }
        one.ask("MULTI;SET k 2;EXEC", "+OK\r\n+QUEUED\r\n*-1\r\n");
        one.ask("MULTI;SET k 3;EXEC", "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    }
}

#[test]
fn a_watched_key_that_is_unchanged_or_had_expired_before_watch_does_not_abort() {
    let server = Running::new();
    server.store.set_clock(1_000_000);
    let (mut one, mut two) = (server.connect(), server.connect());
    one.ask(
        "SET k 1 PX 100;WATCH k other;GET k",
        "+OK\r\n+OK\r\n$1\r\n1\r\n",
    );
    two.ask("GET k;SET k2 2;DEL nosuch", "$1\r\n1\r\n+OK\r\n:0\r\n");
    one.ask("MULTI;PING;EXEC", "+OK\r\n+QUEUED\r\n*1\r\n+PONG\r\n");
    server.store.set_clock(1_000_100);
    one.ask(
        "WATCH k;MULTI;PING;EXEC",
        "+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n+PONG\r\n",
    );
    one.ask("SET k 1 PX 100;WATCH k", "+OK\r\n+OK\r\n");
    server.store.set_clock(1_000_200);
    one.ask("MULTI;PING;EXEC", "+OK\r\n+QUEUED\r\n*-1\r\n");
}

#[test]
fn a_transaction_aborts_if_a_watched_key_had_an_undurable_write() {
    let server = Running::new();
    let (mut one, mut two) = (server.connect(), server.connect());
    one.ask("SET k 1", "+OK\r\n");
    server.store.hold();
    two.send("SET k 2");
    // Until the ticket is durable, no other client sees the write, but a transaction applies to its result.
    server.await_held(1);
    one.ask("WATCH k;GET k", "+OK\r\n$1\r\n1\r\n");
    one.send("MULTI;SET k 3;EXEC");
    server.store.let_go();
    one.expect("+OK\r\n+QUEUED\r\n*-1\r\n");
    two.expect("+OK\r\n");
    one.ask("GET k", "$1\r\n2\r\n");
}

#[test]
fn a_group_in_a_full_pool_changes_nothing() {
    let server = Running::new();
    let mut client = server.connect();
    client.ask("SET a 1", "+OK\r\n");
    server.store.fill(true);
    let oom = "OOM the pool has no room for this write: it has 0 bytes. Delete keys, or start the server with a larger \
               --max-size";
    client.ask(
        "MULTI;DEL a;SET b 1;EXEC",
        &format!(
            "+OK\r\n+QUEUED\r\n+QUEUED\r\n-EXECABORT Transaction discarded because of: {oom}\r\n"
        ),
    );
    client.ask(
        "SET c 1;MSET c 1 d 1;INCR c",
        &format!("-{oom}\r\n").repeat(3),
    );
    client.ask("GET a;DEL a x;GET a", "$1\r\n1\r\n:1\r\n$-1\r\n");
}

#[test]
fn commands_without_keys_run_at_their_place_in_a_transaction() {
    let server = Running::new();
    let mut client = server.connect();
    client.ask(
        "MULTI;SET a 1;DBSIZE;SELECT 1;SET a 2;DBSIZE;FLUSHALL;DBSIZE;SET a 3;EXEC;DBSIZE",
        &format!(
            "+OK\r\n{}*8\r\n+OK\r\n:1\r\n+OK\r\n+OK\r\n:1\r\n+OK\r\n:0\r\n+OK\r\n:1\r\n",
            "+QUEUED\r\n".repeat(8)
        ),
    );
}

#[test]
fn a_damaged_record_is_reported_and_other_requests_still_work() {
    let server = Running::new();
    server.store.damage("bad");
    let mut client = server.connect();
    let error = "-ERR the record at offset 0x40 is damaged: it fails its checksum; its bytes are kept; \
                 overwrite or delete the key\r\n";
    client.ask(
        "GET bad;INCR bad;MGET a bad;GET a",
        &format!("{error}{error}{error}$-1\r\n"),
    );
    client.ask(
        "MULTI;SET a 1;GET bad;EXEC",
        &format!("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n{error}"),
    );
}
