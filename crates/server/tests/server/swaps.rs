//! SWAPDB: its replies, WATCH, transactions, scripts, and what follows keys to their new number.

use crate::harness::{Running, agree};

#[test]
fn swaps_reply_as_in_redis() {
    agree(SWAPS);
}

/// Replies of Redis 7.0.15.
#[rustfmt::skip]
const SWAPS: &[(&str, &str)] = &[
    ("SET a 0;SELECT 1;SET a 1;SET b 1;SWAPDB 0 1;GET a;GET b;SELECT 0;GET a;GET b;DBSIZE;SWAPDB 1 0;GET b", "+OK/+OK/+OK/+OK/+OK/$1/0/$-1/+OK/$1/1/$1/1/:2/+OK/$-1/"),
    ("SWAPDB;SWAPDB 1;SWAPDB 1 2 3", "-ERR wrong number of arguments for 'swapdb' command/-ERR wrong number of arguments for 'swapdb' command/-ERR wrong number of arguments for 'swapdb' command/"),
    ("SWAPDB x 1;SWAPDB 1 x;SWAPDB x y;SWAPDB 99999999999 1;SWAPDB 1 99999999999;SWAPDB 16 x", "-ERR invalid first DB index/-ERR invalid second DB index/-ERR invalid first DB index/-ERR invalid first DB index/-ERR invalid second DB index/-ERR invalid second DB index/"),
    ("SWAPDB 16 1;SWAPDB 1 16;SWAPDB -1 0;SWAPDB 3 3;SWAPDB 1.5 0", "-ERR DB index is out of range/-ERR DB index is out of range/-ERR DB index is out of range/+OK/-ERR invalid first DB index/"),
    ("SET a 1;WATCH a;SWAPDB 0 1;MULTI;PING;EXEC", "+OK/+OK/+OK/+OK/+QUEUED/*-1/"),
    ("SELECT 1;SET a 1;SELECT 0;WATCH a;SWAPDB 0 1;MULTI;PING;EXEC", "+OK/+OK/+OK/+OK/+OK/+OK/+QUEUED/*-1/"),
    ("WATCH a;SWAPDB 0 1;MULTI;PING;EXEC", "+OK/+OK/+OK/+QUEUED/*1/+PONG/"),
    ("SET a 1;WATCH a;SWAPDB 0 1;SWAPDB 0 1;MULTI;PING;EXEC", "+OK/+OK/+OK/+OK/+OK/+QUEUED/*-1/"),
    ("SET a 1;WATCH a;SWAPDB 2 1;SWAPDB 0 0;MULTI;PING;EXEC", "+OK/+OK/+OK/+OK/+OK/+QUEUED/*1/+PONG/"),
    ("MULTI;SET a 0;SWAPDB 0 1;GET a;SELECT 1;GET a;SWAPDB x 1;SWAPDB 1 0;GET a;EXEC", "+OK/+QUEUED/+QUEUED/+QUEUED/+QUEUED/+QUEUED/+QUEUED/+QUEUED/+QUEUED/*8/+OK/+OK/$-1/+OK/$1/0/-ERR invalid first DB index/+OK/$-1/"),
    ("COMMAND INFO swapdb", "*1/*10/$6/swapdb/:3/*2/+write/+fast/:0/:0/:0/*4/+@keyspace/+@write/+@fast/+@dangerous/*0/*0/*0/"),
    ("COMMAND GETKEYS swapdb 0 1;ACL DRYRUN default swapdb 0 1", "-ERR The command has no key arguments/+OK/"),
];

#[test]
fn a_script_cannot_swap_databases() {
    let server = Running::new();
    let mut client = server.connect();
    client.ask("SET a 1", "+OK\r\n");
    let script = "redis.call('set','b','1') return redis.call('swapdb','0','1')";
    client.send_words(&["EVAL", script, "0"]);
    let refused = client.line();
    assert!(
        refused.starts_with("-ERR SWAPDB takes effect for all clients at once"),
        "{refused}"
    );
    client.ask("GET a;GET b", "$1\r\n1\r\n$1\r\n1\r\n");
}

#[test]
fn all_clients_see_a_swap_and_uses_of_keys_follow_them() {
    let server = Running::new();
    let (mut one, mut two) = (server.connect(), server.connect());
    one.ask(
        "CONFIG SET maxmemory-policy allkeys-lfu lfu-log-factor 0;SET k 1",
        "+OK\r\n+OK\r\n",
    );
    for _ in 0..40 {
        one.ask("GET k", "$1\r\n1\r\n");
    }
    two.ask("SELECT 9;SET k 2;GET k", "+OK\r\n+OK\r\n$1\r\n2\r\n");
    let used = |client: &mut crate::harness::Client| -> u32 {
        client.send("OBJECT FREQ k");
        let line = client.line();
        line.trim_start_matches(':')
            .trim()
            .parse()
            .expect("a number")
    };
    assert!(used(&mut one) > used(&mut two));
    two.ask("SWAPDB 0 9", "+OK\r\n");
    one.ask("GET k;DBSIZE", "$1\r\n2\r\n:1\r\n");
    assert!(used(&mut one) < used(&mut two));
    let keyspace = one.bulk("INFO keyspace");
    assert!(
        keyspace.contains("db0:keys=1,") && keyspace.contains("db9:keys=1,"),
        "{keyspace}"
    );
}

#[test]
fn an_expiry_event_names_the_database_in_which_the_key_is_by_then() {
    let server = Running::new();
    let (mut one, mut two) = (server.connect(), server.connect());
    one.ask("CONFIG SET notify-keyspace-events Ex", "+OK\r\n");
    two.send("PSUBSCRIBE __keyevent@*");
    two.expect("*3\r\n$10\r\npsubscribe\r\n$12\r\n__keyevent@*\r\n:1\r\n");
    one.ask("SET k 1 PX 300;SWAPDB 0 3", "+OK\r\n+OK\r\n");
    two.expect(
        "*4\r\n$8\r\npmessage\r\n$12\r\n__keyevent@*\r\n$22\r\n__keyevent@3__:expired\r\n$1\r\nk\r\n",
    );
}
