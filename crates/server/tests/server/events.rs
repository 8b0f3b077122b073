//! Keyspace notifications: the events of each command are those of redis-server 7.0.15.

use crate::harness::{Client, NOW_MS, Running, wait_until};

/// Subscribes a client to all events.
fn subscribe(server: &Running) -> Client {
    let mut client = server.connect();
    client.send("PSUBSCRIBE __key*");
    client.expect("*3\r\n$10\r\npsubscribe\r\n$6\r\n__key*\r\n:1\r\n");
    client
}

/// Reads an event: the channel without its prefix, and the text.
fn event(client: &mut Client) -> String {
    client.expect("*4\r\n$8\r\npmessage\r\n$6\r\n__key*\r\n");
    client.line();
    let channel = client.line();
    client.line();
    let text = client.line();
    format!("{} {text}", &channel["__key".len()..])
}

#[test]
fn every_command_publishes_the_events_of_redis() {
    let server = Running::new();
    server.store.set_clock(NOW_MS);
    let (mut client, mut subscriber) = (server.connect(), subscribe(&server));
    client.ask("CONFIG SET notify-keyspace-events EAmn", "+OK\r\n");
    for (requests, events) in EVENTS {
        client.send(requests);
        // A message with the requests' end follows their events.
        client.send("PUBLISH __key_end x");
        let mut received = Vec::new();
        loop {
            match event(&mut subscriber) {
                end if end == "_end x" => break,
                event => received.push(event.replace("event@0__:", "").replace("event@", "")),
            }
        }
        assert_eq!(received.join(", "), *events, "{requests}");
    }
}

#[rustfmt::skip]
const EVENTS: &[(&str, &str)] = &[
    ("SET k v", "new k, set k"),
    ("SET k v EX 100", "set k, expire k"),
    ("SET k v NX;SET n v XX", ""),
    ("SET k v GET", "set k"),
    ("SET q v GET", "keymiss q, new q, set q"),
    ("SETNX k v;SETNX k2 v", "new k2, set k2"),
    ("SETEX k 100 v;PSETEX k 100000 v", "set k, expire k, set k, expire k"),
    ("GETSET k v;GETSET gs v", "set k, keymiss gs, new gs, set gs"),
    ("MSET k 1 m1 2 m1 3", "set k, new m1, set m1, set m1"),
    ("MSETNX k 1 z 2;MSETNX y 1 z 2", "new y, set y, new z, set z"),
    ("GETDEL y;GETDEL nope", "del y, keymiss nope"),
    ("GETEX k EX 100;GETEX k PERSIST;GETEX k PERSIST;GETEX k", "expire k, persist k"),
    ("GETEX nope;GETEX k EXAT 1;GET k", "keymiss nope, del k, keymiss k"),
    ("APPEND k x;APPEND k ''", "new k, append k, append k"),
    ("INCR i;DECR i;INCRBY i 5;DECRBY i 3;INCRBYFLOAT i 1.5;INCR k", "new i, incrby i, incrby i, incrby i, incrby i, incrbyfloat i"),
    ("SETRANGE k 3 abc;SETRANGE k 3 '';SETRANGE sr 3 a", "setrange k, new sr, setrange sr"),
    ("SETBIT k 1 1;SETBIT k 1 1;SETBIT sb 7 0;SETBIT sb 7 0", "new sb, setbit sb"),
    ("BITFIELD k SET u8 0 255;BITFIELD k SET u8 0 255;BITFIELD nob GET u8 0", "setbit k, keymiss nob"),
    ("BITFIELD bf SET u8 0 0;BITFIELD_RO nob GET u8 0", "new bf, setbit bf, keymiss nob"),
    ("BITOP AND dst k sb;BITOP AND dst nope nope2", "new dst, set dst, keymiss nope, keymiss nope2, del dst"),
    ("PFADD h a;PFADD h a;PFCOUNT h nope;PFCOUNT nope", "new h, pfadd h, keymiss nope, keymiss nope"),
    ("PFMERGE h2 h;PFMERGE h2 h", "keymiss h2, new h2, pfadd h2, pfadd h2"),
    ("DEL k nope sb;UNLINK i", "del k, del sb, del i"),
    ("SET k v;EXPIRE k 100;EXPIRE k 50 GT;PERSIST k;PERSIST k;EXPIRE k -1", "new k, set k, expire k, persist k, del k"),
    ("SET k v;RENAME k k9;RENAME k9 k9;RENAME nope x", "new k, set k, new k9, rename_from k, rename_to k9"),
    ("SET k v;RENAMENX k k9;RENAMENX k k10", "new k, set k, new k10, rename_from k, rename_to k10"),
    ("COPY k10 k11;COPY k10 k11;COPY nope k11;COPY k10 k10 DB 2", "new k11, copy_to k11, keymiss nope, 2__:new k10, 2__:copy_to k10"),
    ("MOVE k10 3;MOVE nope 3", "3__:new k10, move_from k10, 3__:move_to k10"),
    ("EXISTS nope k11;TOUCH nope;TYPE nope;TTL nope;PEXPIRETIME nope", "keymiss nope, keymiss nope, keymiss nope, keymiss nope, keymiss nope"),
    ("MGET nope k11;STRLEN nope;GETRANGE nope 0 1;GETBIT nope 1", "keymiss nope, keymiss nope, keymiss nope, keymiss nope"),
    ("BITCOUNT nope;BITPOS nope 1;LCS nope nope2;OBJECT ENCODING nope", "keymiss nope, keymiss nope, keymiss nope, keymiss nope2"),
    ("SCAN 0;KEYS *;WATCH nope;UNWATCH;FLUSHDB", ""),
    ("MULTI;SET a 1;GET nope;DEL a;EXEC", "new a, set a, keymiss nope, del a"),
    ("SET a 1;WATCH a;SET a 2;MULTI;SET a 3;EXEC", "new a, set a, set a"),
    ("SELECT 5;SET a 1;SELECT 0", "5__:new a, 5__:set a"),
];

#[test]
fn each_class_and_each_channel_is_selected_by_its_letter() {
    let server = Running::new();
    let (mut client, mut subscriber) = (server.connect(), subscribe(&server));
    client.ask(
        "SET k v;CONFIG SET notify-keyspace-events K$",
        "+OK\r\n+OK\r\n",
    );
    client.ask("SET k v;DEL k", "+OK\r\n:1\r\n");
    assert_eq!(event(&mut subscriber), "space@0__:k set");
    client.ask(
        "CONFIG SET notify-keyspace-events KEg;CONFIG GET notify-keyspace-events",
        "+OK\r\n*2\r\n$22\r\nnotify-keyspace-events\r\n$3\r\ngKE\r\n",
    );
    client.ask("SET k v;DEL k", "+OK\r\n:1\r\n");
    assert_eq!(event(&mut subscriber), "space@0__:k del");
    assert_eq!(event(&mut subscriber), "event@0__:del k");
    client.ask(
        "CONFIG SET notify-keyspace-events q",
        "-ERR CONFIG SET failed (possibly related to argument 'notify-keyspace-events') - Invalid event class \
         character. Use 'Ag$lshzxeKEtmdn'.\r\n",
    );
}

#[test]
fn an_event_arrives_when_its_write_is_visible() {
    let server = Running::new();
    let (mut client, mut other) = (server.connect(), server.connect());
    let mut subscriber = subscribe(&server);
    client.ask("CONFIG SET notify-keyspace-events E$", "+OK\r\n");
    server.store.hold();
    client.send("SET k v");
    server.await_held(1);
    other.ask("GET k;PUBLISH __key_end x", "$-1\r\n:1\r\n");
    assert_eq!(event(&mut subscriber), "_end x");
    server.store.turn();
    assert_eq!(event(&mut subscriber), "event@0__:set k");
    other.ask("GET k", "$1\r\nv\r\n");
}

#[test]
fn an_expiry_is_published_once_whether_or_not_the_key_is_accessed() {
    let server = Running::new();
    server.store.set_clock(NOW_MS);
    let (mut client, mut subscriber) = (server.connect(), subscribe(&server));
    client.ask("SET early v PX 5000", "+OK\r\n");
    client.ask("CONFIG SET notify-keyspace-events Ex", "+OK\r\n");
    client.ask(
        "SET a v PX 1000;SET gone v PX 1000;DEL gone;SET kept v PX 1000;PERSIST kept;SET late v PX 9000",
        "+OK\r\n+OK\r\n:1\r\n+OK\r\n:1\r\n+OK\r\n",
    );
    server.store.set_clock(NOW_MS + 2000);
    assert_eq!(event(&mut subscriber), "event@0__:expired a");
    client.ask("SET a v", "+OK\r\n");
    // The scan has listed this key.
    server.store.set_clock(NOW_MS + 6000);
    assert_eq!(event(&mut subscriber), "event@0__:expired early");
    wait_until(|| {
        client.send("PUBLISH __key_end x");
        client.line() == ":1"
    });
    assert_eq!(event(&mut subscriber), "_end x");
}
