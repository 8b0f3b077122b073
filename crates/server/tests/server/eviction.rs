//! Eviction of keys above `maxmemory`. The test store counts the bytes of values.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read};
use std::time::{Duration, Instant};

use farbank_server::ServerOptions;
use farbank_server::rdb::dump_string;

use crate::harness::{Client, NOW_MS, Running, field, wait_until};

const OOM: &str = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";

/// Starts a server with a limit of 100 bytes and with `policy`, which samples all keys of a small store.
fn limited(policy: &str) -> (Running, Client) {
    let server = Running::new();
    let mut client = server.connect();
    client.ask(
        &format!("CONFIG SET maxmemory 100 maxmemory-samples 50 maxmemory-policy {policy}"),
        "+OK\r\n",
    );
    (server, client)
}

/// Stores a value of 40 bytes. `options`: of SET.
fn set(client: &mut Client, key: &str, options: &str) {
    client.ask(
        &format!("SET {key} {} {options}", "x".repeat(40)),
        "+OK\r\n",
    );
}

/// Stores a value of 40 bytes with RESTORE. `options`: the expiry, and options after the payload.
fn restore(client: &mut Client, key: &str, expiry: &str, options: &str) {
    let payload = dump_string(&[b'x'; 40]);
    let mut words = vec![b"RESTORE", key.as_bytes(), expiry.as_bytes(), &payload];
    words.extend(options.split_whitespace().map(str::as_bytes));
    let mut bytes = Vec::new();
    farbank_server::resp::request(&mut bytes, &words);
    client.send_raw(&bytes);
    client.expect("+OK\r\n");
}

/// Checks which of the keys exist.
#[track_caller]
fn expect_keys(client: &mut Client, existing: &str, evicted: &str) {
    for (keys, reply) in [(existing, ":1\r\n"), (evicted, ":0\r\n")] {
        for key in keys.split_whitespace() {
            client.ask(&format!("EXISTS {key}"), reply);
        }
    }
}

fn evicted_keys(client: &mut Client) -> u64 {
    field(client, "stats", "evicted_keys")
        .parse()
        .expect("a number")
}

#[test]
fn every_policy_for_all_keys_keeps_the_store_within_the_limit() {
    for policy in ["allkeys-random", "allkeys-lru", "allkeys-lfu"] {
        let (_server, mut client) = limited(policy);
        for n in 0..50 {
            set(&mut client, &format!("key{n}"), "");
        }
        // The write that crosses the limit succeeds, so three values of 40 bytes fit.
        client.ask("DBSIZE", ":3\r\n");
        assert_eq!(evicted_keys(&mut client), 47, "{policy}");
    }
}

#[test]
fn a_pipeline_evicts_no_more_than_it_needs() {
    let (_server, mut client) = limited("allkeys-random");
    let value = "x".repeat(40);
    let requests: Vec<_> = (0..50).map(|n| format!("SET key{n} {value}")).collect();
    client.ask(&requests.join(";"), &"+OK\r\n".repeat(50));
    client.ask("DBSIZE", ":3\r\n");
    assert_eq!(evicted_keys(&mut client), 47);
    client.ask("CONFIG RESETSTAT", "+OK\r\n");
    assert_eq!(evicted_keys(&mut client), 0);
}

#[test]
fn reads_and_deletes_above_the_limit_evict_nothing() {
    let (_server, mut client) = limited("allkeys-random");
    for key in ["a", "b", "c"] {
        set(&mut client, key, "");
    }
    client.ask("STRLEN a;EXISTS b;DEL nosuch", ":40\r\n:1\r\n:0\r\n");
    client.ask("DBSIZE", ":3\r\n");
}

#[test]
fn a_volatile_policy_evicts_only_keys_that_expire_and_refuses_writes_without_any() {
    for policy in [
        "volatile-random",
        "volatile-ttl",
        "volatile-lru",
        "volatile-lfu",
    ] {
        let (_server, mut client) = limited(policy);
        set(&mut client, "stays", "");
        set(&mut client, "persisted", "EX 1000");
        client.ask("PERSIST persisted", ":1\r\n");
        set(&mut client, "goes", "EX 1000");
        set(&mut client, "other", "");
        expect_keys(&mut client, "stays persisted other", "goes");
        client.ask("SET refused x", OOM);
        assert_eq!(evicted_keys(&mut client), 1, "{policy}");
    }
}

#[test]
fn a_candidate_that_no_longer_expires_is_not_evicted() {
    let (_server, mut client) = limited("volatile-ttl");
    for (key, secs) in [("a", 100), ("b", 200), ("c", 300)] {
        set(&mut client, key, &format!("EX {secs}"));
    }
    // This evicts a, and keeps b and c as candidates.
    set(&mut client, "d", "EX 400");
    client.ask("PERSIST b;EXPIRE c 500", ":1\r\n:1\r\n");
    set(&mut client, "e", "EX 600");
    expect_keys(&mut client, "b c e", "a d");
}

#[test]
fn volatile_ttl_evicts_the_keys_that_expire_first() {
    let (_server, mut client) = limited("volatile-ttl");
    for (key, secs) in [
        ("late", 3000),
        ("soon", 1000),
        ("later", 4000),
        ("next", 2000),
    ] {
        set(&mut client, key, &format!("EX {secs}"));
    }
    expect_keys(&mut client, "late later next", "soon");
    set(&mut client, "last", "EX 5000");
    expect_keys(&mut client, "late later last", "soon next");
}

#[test]
fn lru_evicts_the_keys_that_were_idle_longest() {
    for (policy, expiry) in [("allkeys-lru", "0"), ("volatile-lru", "1000000")] {
        let (_server, mut client) = limited(policy);
        client.ask("CONFIG SET maxmemory 200", "+OK\r\n");
        for (key, secs) in [
            ("old", 3000),
            ("oldest", 5000),
            ("used", 7000),
            ("young", 1000),
        ] {
            restore(&mut client, key, expiry, &format!("IDLETIME {secs}"));
        }
        client.ask("OBJECT IDLETIME oldest;STRLEN used", ":5000\r\n:40\r\n");
        client.ask("OBJECT IDLETIME used", ":0\r\n");
        client.ask("CONFIG SET maxmemory 120", "+OK\r\n");
        expect_keys(&mut client, "old used young", "oldest");
        client.ask(
            "TTL old;EXISTS old;TYPE old",
            &format!(
                ":{}\r\n:1\r\n+string\r\n",
                if expiry == "0" { -1 } else { 1000 }
            ),
        );
        client.ask("CONFIG SET maxmemory 80", "+OK\r\n");
        expect_keys(&mut client, "used young", "oldest old");
    }
}

#[test]
fn every_access_to_a_value_is_a_use() {
    let (_server, mut client) = limited("allkeys-lru");
    client.ask("CONFIG SET maxmemory 0", "+OK\r\n");
    for access in [
        "GET a",
        "MGET b a",
        "APPEND a x",
        "SET a x",
        "TOUCH a",
        "GETRANGE a 0 1",
        "MULTI;GET a;EXEC",
        "MSET b 1 a 2",
        "GETEX a",
    ] {
        restore(&mut client, "a", "0", "IDLETIME 1000 REPLACE");
        client.ask("OBJECT IDLETIME a", ":1000\r\n");
        client.send(&format!("{access};PING"));
        while client.line() != "+PONG" {}
        client.ask("OBJECT IDLETIME a", ":0\r\n");
    }
    restore(&mut client, "a", "0", "IDLETIME 1000 REPLACE");
    client.send_words(&["EVAL", "return redis.call('get',KEYS[1])", "1", "a"]);
    client.line();
    client.line();
    client.ask("OBJECT IDLETIME a", ":0\r\n");
}

#[test]
fn lfu_evicts_the_keys_that_are_used_least() {
    let (_server, mut client) = limited("allkeys-lfu");
    client.ask("CONFIG SET maxmemory 200 lfu-log-factor 0", "+OK\r\n");
    for (key, frequency) in [("often", 200), ("rare", 10), ("mostly", 100), ("least", 3)] {
        restore(&mut client, key, "0", &format!("FREQ {frequency}"));
    }
    client.ask("OBJECT FREQ often;GET nosuch", ":200\r\n$-1\r\n");
    client.ask(&"STRLEN least;".repeat(9), &":40\r\n".repeat(9));
    client.ask("OBJECT FREQ least", ":12\r\n");
    client.ask("CONFIG SET maxmemory 120", "+OK\r\n");
    expect_keys(&mut client, "often mostly least", "rare");
    // A new key has the frequency 5.
    set(&mut client, "new", "");
    client.ask("OBJECT FREQ new;CONFIG SET maxmemory 120", ":5\r\n+OK\r\n");
    expect_keys(&mut client, "often mostly least", "new");
    client.ask(
        "DEL least;SET least x;OBJECT FREQ least",
        ":1\r\n+OK\r\n:5\r\n",
    );
}

#[test]
fn uses_are_shown_by_the_policies_that_record_them() {
    let (_server, mut client) = limited("allkeys-lfu");
    client.ask("SET a 1", "+OK\r\n");
    client.ask(
        "OBJECT IDLETIME a;OBJECT IDLETIME nosuch;OBJECT FREQ nosuch",
        "-ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching between \
         policies at runtime LRU and LFU data will take some time to adjust.\r\n$-1\r\n$-1\r\n",
    );
    client.ask("OBJECT REFCOUNT a", ":1\r\n");
    client.ask("CONFIG SET maxmemory-policy allkeys-random", "+OK\r\n");
    client.ask("OBJECT REFCOUNT a", ":2147483647\r\n");
    client.ask(
        "OBJECT IDLETIME a;OBJECT FREQ a",
        ":0\r\n-ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when \
         switching between policies at runtime LRU and LFU data will take some time to adjust.\r\n",
    );
}

#[test]
fn transactions_scripts_and_memcached_clients_evict_keys() {
    let (server, mut client) = limited("volatile-ttl");
    let fill = |client: &mut Client| {
        for (key, secs) in [("a", 100), ("b", 200), ("c", 300)] {
            set(client, key, &format!("EX {secs}"));
        }
    };
    fill(&mut client);
    client.ask("MULTI;SET d 1;EXEC", "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    expect_keys(&mut client, "b c d", "a");
    fill(&mut client);
    client.send_words(&["EVAL", "return redis.call('set','e','1')", "0"]);
    client.expect("+OK\r\n");
    expect_keys(&mut client, "b c e", "a");
    fill(&mut client);
    let mut memcached = server.connect_memcached();
    memcached.send_raw(b"set f 0 0 1\r\n1\r\n");
    memcached.expect("STORED\r\n");
    expect_keys(&mut client, "b c f", "a");
    client.ask(
        "FLUSHALL;CONFIG SET maxmemory 1;SET a 12",
        "+OK\r\n+OK\r\n+OK\r\n",
    );
    memcached.send_raw(b"set f 0 0 1\r\n1\r\nincr a 1\r\n");
    memcached.expect("SERVER_ERROR out of memory storing object\r\nSERVER_ERROR out of memory\r\n");
}

#[test]
fn a_lower_limit_evicts_keys_at_once() {
    let (_server, mut client) = limited("allkeys-random");
    for key in ["a", "b", "c"] {
        set(&mut client, key, "");
    }
    client.ask("CONFIG SET maxmemory 1;DBSIZE", "+OK\r\n:0\r\n");
}

#[test]
fn a_worker_goes_on_with_evictions_that_a_request_has_left() {
    let server = Running::start(ServerOptions {
        workers: 1,
        eviction_slice: Duration::ZERO, // One key.
        ..ServerOptions::default()
    });
    let mut client = server.connect();
    for n in 0..50 {
        set(&mut client, &format!("key{n}"), "");
    }
    let mut tracker = server.connect();
    tracker.send("HELLO 3;CLIENT TRACKING ON BCAST");
    let mut subscriber = server.connect();
    subscriber.send("PSUBSCRIBE __keyevent@*__:evicted;PING");
    while subscriber.line() != "pong" {}
    client.ask(
        "CONFIG SET notify-keyspace-events Ee maxmemory 100 maxmemory-policy allkeys-random",
        "+OK\r\n",
    );
    let began = Instant::now();
    // No request arrives meanwhile. Each message and each invalidation has the name of its key in a line.
    for told in [&mut tracker, &mut subscriber] {
        let names = std::iter::repeat_with(|| told.line()).filter(|line| line.starts_with("key"));
        assert_eq!(names.take(48).collect::<BTreeSet<_>>().len(), 48);
    }
    // An idle worker wakes up once a second. It does not wait for that between evictions.
    assert!(began.elapsed() < Duration::from_secs(20));
    assert_eq!(evicted_keys(&mut client), 48);
    client.ask("DBSIZE", ":2\r\n");
}

#[test]
fn a_worker_goes_on_with_evictions_that_a_long_request_has_left() {
    let server = Running::start(ServerOptions {
        workers: 1,
        eviction_slice: Duration::ZERO, // One key.
        ..ServerOptions::default()
    });
    let mut client = server.connect();
    for n in 0..50 {
        set(&mut client, &format!("key{n}"), "");
    }
    client.ask(
        "CONFIG SET maxmemory 4000000 maxmemory-policy allkeys-random",
        "+OK\r\n",
    );
    // The store exceeds the limit after the second value. The third one evicts a key, and has to leave the rest.
    let large = "v".repeat(3_000_000);
    client.ask(&format!("SET first {large}"), "+OK\r\n");
    client.ask(&format!("SET second {large}"), "+OK\r\n");
    client.ask(&format!("SET third {large}"), "+OK\r\n");
    // Reads evict nothing.
    wait_until(|| {
        client.send("EXISTS first second third");
        matches!(client.line().as_str(), ":1" | ":0")
    });
}

#[test]
fn evicted_keys_have_events_when_their_delete_is_durable() {
    let (server, mut client) = limited("volatile-ttl");
    server.store.set_clock(NOW_MS);
    let mut subscriber = server.connect();
    subscriber.send("SUBSCRIBE __keyevent@0__:evicted");
    subscriber.expect("*3\r\n$9\r\nsubscribe\r\n$22\r\n__keyevent@0__:evicted\r\n:1\r\n");
    client.ask("CONFIG SET notify-keyspace-events Ee", "+OK\r\n");
    for (key, secs) in [("a", 100), ("b", 200), ("c", 300)] {
        set(&mut client, key, &format!("EX {secs}"));
    }
    server.store.hold();
    client.send("MULTI;PING");
    server.await_held(1);
    client.expect("+OK\r\n");
    subscriber.stream.set_nonblocking(true).expect("a socket");
    client.stream.set_nonblocking(true).expect("a socket");
    for socket in [&mut subscriber, &mut client] {
        let early = socket.stream.read(&mut [0; 64]);
        assert_eq!(early.map_err(|e| e.kind()), Err(ErrorKind::WouldBlock));
        socket.stream.set_nonblocking(false).expect("a socket");
    }
    server.store.turn();
    subscriber.expect("*3\r\n$7\r\nmessage\r\n$22\r\n__keyevent@0__:evicted\r\n$1\r\na\r\n");
    client.expect("+QUEUED\r\n");
}

#[test]
fn clients_that_cache_evicted_keys_get_invalidations() {
    let (server, mut client) = limited("volatile-ttl");
    let invalidation = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n";
    let tracker = |options: &str| {
        let mut tracker = server.connect();
        tracker.send(&format!("HELLO 3;CLIENT TRACKING ON {options};PING"));
        while tracker.line() != "+PONG" {}
        tracker
    };
    let (mut other, mut own) = (tracker(""), tracker("BCAST NOLOOP PREFIX a"));
    for (key, secs) in [("a", 100), ("b", 200), ("c", 300)] {
        set(&mut client, key, &format!("EX {secs}"));
    }
    own.expect(invalidation);
    other.ask("STRLEN a", ":40\r\n");
    // The client of the request that evicts the key has not changed it.
    own.send("SET d 1");
    wait_until(|| field(&mut client, "stats", "evicted_keys") == "1");
    other.expect(invalidation);
    let replies = own.line();
    let rest = format!("{replies}\r\n");
    match rest.as_str() {
        "+OK\r\n" => own.expect(invalidation),
        _ => own.expect(&format!("{}+OK\r\n", &invalidation[rest.len()..])),
    }
}

#[test]
fn the_invalidation_of_an_evicted_key_precedes_the_reply() {
    let (server, mut client) = limited("volatile-ttl");
    let mut own = server.connect();
    own.send("HELLO 3;CLIENT TRACKING ON;PING");
    while own.line() != "+PONG" {}
    for (key, secs) in [("a", 100), ("b", 200), ("c", 300)] {
        set(&mut client, key, &format!("EX {secs}"));
    }
    own.ask("STRLEN a", ":40\r\n");
    own.ask(
        "SET d 1",
        ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n+OK\r\n",
    );
}
