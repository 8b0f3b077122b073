//! No write is acknowledged, or revealed to other clients, before it is durable.

use crate::harness::Running;
use farbank_server::ServerOptions;

#[test]
fn replies_are_sent_in_order_once_their_ticket_is_durable() {
    let server = Running::new();
    server.store.hold();
    let (mut writer, mut reader) = (server.connect(), server.connect());
    writer.send("PING;SET a 1;PING;INCR a;GET a");
    writer.expect("+PONG\r\n");
    server.await_held(1);
    // The same worker serves the reader's round trip after the batch.
    reader.ask("GET a", "$-1\r\n");
    writer.send("PING;GET a");
    server.await_held(1);
    reader.ask("GET a", "$-1\r\n");
    writer.send("SET b 1");
    server.await_held(2);
    reader.ask("MGET a b", "*2\r\n$-1\r\n$-1\r\n");
    server.store.turn();
    writer.expect("+OK\r\n+PONG\r\n:2\r\n$1\r\n2\r\n+PONG\r\n$1\r\n2\r\n");
    reader.ask("MGET a b", "*2\r\n$1\r\n2\r\n$-1\r\n");
    server.store.turn();
    writer.expect("+OK\r\n");
    reader.ask("GET b", "$1\r\n1\r\n");
}

#[test]
fn no_reply_of_a_held_batch_is_sent_early() {
    let server = Running::new();
    server.store.hold();
    let (mut writer, mut reader) = (server.connect(), server.connect());
    writer.send("SET a 1;DEL nosuch;EXISTS a");
    server.await_held(1);
    reader.ask("PING", "+PONG\r\n");
    writer.stream.set_nonblocking(true).unwrap();
    let early = std::io::Read::read(&mut writer.stream, &mut [0; 64]);
    assert_eq!(
        early.map_err(|e| e.kind()),
        Err(std::io::ErrorKind::WouldBlock)
    );
    writer.stream.set_nonblocking(false).unwrap();
    server.store.turn();
    writer.expect("+OK\r\n:0\r\n:1\r\n");
}

#[test]
fn writes_apply_to_the_newest_value_even_if_it_is_not_durable() {
    let server = Running::new();
    server.store.hold();
    let (mut one, mut two) = (server.connect(), server.connect());
    one.send("INCR n;SET once 1 NX");
    server.await_held(1);
    two.send("INCR n;SET once 2 NX");
    server.await_held(2);
    server.store.turn();
    one.expect(":1\r\n+OK\r\n");
    server.store.turn();
    two.expect(":2\r\n$-1\r\n");
}

#[test]
fn a_client_that_closed_its_sending_side_still_gets_its_replies() {
    let server = Running::new();
    server.store.hold();
    let mut client = server.connect();
    client.send("SET a 1;GET a");
    client.finish();
    server.await_held(1);
    server.store.turn();
    assert_eq!(client.drain(), "+OK\r\n$1\r\n1\r\n");
}

#[test]
fn a_client_that_disconnects_does_not_affect_other_clients() {
    let server = Running::new();
    server.store.hold();
    let (mut gone, mut stays) = (server.connect(), server.connect());
    gone.send("SET a 1");
    server.await_held(1);
    drop(gone);
    stays.send("SET b 1");
    server.await_held(2);
    server.store.let_go();
    stays.expect("+OK\r\n");
    stays.ask("MGET a b", "*2\r\n$1\r\n1\r\n$1\r\n1\r\n");
}

#[test]
fn after_a_medium_failure_no_write_is_acknowledged_and_reads_still_work() {
    let server = Running::new();
    let (mut writer, mut reader) = (server.connect(), server.connect());
    writer.ask("SET a 1", "+OK\r\n");
    server.store.hold();
    writer.send("PING;SET a 2;PING");
    writer.expect("+PONG\r\n");
    server.await_held(1);
    server.store.poison("fdatasync: Input/output error");
    assert_eq!(writer.drain(), "");
    let misconf = "MISCONF Errors writing to the pool: fdatasync: Input/output error";
    reader.ask(
        "GET a;SET a 3;GET a",
        &format!("$1\r\n1\r\n-{misconf}\r\n$1\r\n1\r\n"),
    );
    reader.ask(
        "MULTI;SET a 3;EXEC",
        &format!(
            "+OK\r\n-{misconf}\r\n-EXECABORT Transaction discarded because of previous errors.\r\n"
        ),
    );
    let mut late = server.connect();
    late.ask("GET a;DEL a", &format!("$1\r\n1\r\n-{misconf}\r\n"));
    assert!(
        late.bulk("INFO persistence")
            .contains("aof_last_write_status:err")
    );
}

#[test]
fn a_write_to_a_failed_medium_is_refused() {
    let server = Running::new();
    server.store.poison("it broke");
    let mut client = server.connect();
    let misconf = "-MISCONF Errors writing to the pool: it broke\r\n";
    client.ask(
        "SET a 1;INCR a;GET a",
        &format!("{misconf}{misconf}$-1\r\n"),
    );
}

#[test]
fn increments_of_fifty_clients_all_count() {
    let server = Running::with(ServerOptions {
        workers: 2,
        ..ServerOptions::default()
    });
    std::thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| {
                let mut client = server.connect();
                for _ in 0..20 {
                    client.send("INCR n;INCR n");
                    let mut replies = 0;
                    while replies < 2 {
                        let mut byte = [0];
                        std::io::Read::read_exact(&mut client.stream, &mut byte).unwrap();
                        replies += usize::from(byte[0] == b'\n');
                    }
                }
            });
        }
    });
    server.connect().ask("GET n", "$4\r\n2000\r\n");
}

#[test]
fn shutdown_keeps_acknowledged_writes_and_stops_the_server() {
    let server = Running::new();
    let store = server.store.clone();
    let mut client = server.connect();
    client.ask(
        "SET a 1;SHUTDOWN what;SHUTDOWN ABORT",
        "+OK\r\n-ERR syntax error\r\n-ERR No shutdown in progress.\r\n",
    );
    client.send("SET b 1;SHUTDOWN NOSAVE");
    assert_eq!(client.drain(), "+OK\r\n");
    server.join();
    assert_eq!(farbank_store::Store::session(&store).len(0), Ok(2));
}
