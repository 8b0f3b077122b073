//! Client-side caching. Each transcript of several clients is that of redis-server 7.0.15, except where it is said.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farbank_server::ServerOptions;

use crate::harness::{Client, NOW_MS, Running, field, request, wait_until};

const HELLO: &str = "%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n";

/// The reply to HELLO 3.
fn expect_hello(client: &mut Client) {
    client.expect(HELLO);
    client.line();
    client.expect(
        "$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n",
    );
}

/// Connects a client that speaks RESP3 and has sent CLIENT TRACKING ON with `options`.
fn tracker(server: &Running, options: &str) -> Client {
    let mut client = server.connect();
    client.send(&format!("HELLO 3;CLIENT TRACKING ON {options}"));
    expect_hello(&mut client);
    client.expect("+OK\r\n");
    client
}

/// The invalidation of `keys`, which are separated by blanks.
fn invalidation(keys: &str) -> String {
    let keys: Vec<_> = keys.split(' ').collect();
    let mut text = format!(">2\r\n$10\r\ninvalidate\r\n*{}\r\n", keys.len());
    for key in keys {
        text += &format!("${}\r\n{key}\r\n", key.len());
    }
    text
}

const FLUSHED: &str = ">2\r\n$10\r\ninvalidate\r\n_\r\n";

/// A server with several workers.
fn several_workers() -> Running {
    Running::with(ServerOptions {
        workers: 4,
        ..ServerOptions::default()
    })
}

/// The client's id.
fn id_of(client: &mut Client) -> String {
    client.send("CLIENT ID");
    client.line()[1..].to_owned()
}

#[test]
fn a_changed_key_is_invalidated_once_before_the_writer_gets_its_reply() {
    let server = several_workers();
    let (mut reader, mut writer) = (tracker(&server, ""), server.connect());
    reader.ask("GET a;MGET b c", "_\r\n*2\r\n_\r\n_\r\n");
    writer.ask("SET a 1;SET d 1", "+OK\r\n+OK\r\n");
    reader.ask("PING", &format!("{}+PONG\r\n", invalidation("a")));
    writer.ask("SET a 2;MSET c 1 b 2", "+OK\r\n+OK\r\n");
    let both = format!("{}{}+PONG\r\n", invalidation("c"), invalidation("b"));
    reader.ask("PING", &both);
    writer.ask("DEL a b c;SET a 1", ":3\r\n+OK\r\n");
    reader.ask("PING", "+PONG\r\n");
}

/// Requests of a client that tracks keys, and its replies and invalidations. `/` stands for the end of a line, `!KEY;`
/// for an invalidation, `!!` for that of all keys.
#[rustfmt::skip]
const OWN: &[(&str, &str)] = &[
    ("GET k;SET k 1;SET k 2;GET k", "_/+OK/!k;+OK/$1/2/"),
    ("SET k 1;GET k;INCR k;INCR k", "+OK/$1/1/:2/!k;:3/"),
    ("MGET k m;MSET m 1 k 1 m 2", "*2/_/_/+OK/!m;!k;"),
    ("GET k;DEL k;GET k;SET k 1", "_/:0/_/+OK/!k;"),
    ("SET k 1;GET k;APPEND k '';SETRANGE k 1 '';GETEX k;PERSIST k", "+OK/$1/1/:1/!k;:1/$1/1/:0/"),
    ("SET k 1;GET k;EXPIRE k 100;GET k;GETEX k PERSIST", "+OK/$1/1/:1/!k;$1/1/$1/1/!k;"),
    ("SET k 1;MGET k m;RENAME k m", "+OK/*2/$1/1/_/+OK/!m;!k;"), // In Redis, the old name precedes.
    ("SET k 1;GET m;COPY k m", "+OK/_/:1/!m;"),
    ("SET k 1;GET k;MOVE k 5;SELECT 5;FLUSHDB", "+OK/$1/1/:1/!k;+OK/+OK/!!"),
    ("GET k;SELECT 3;SET k 1", "_/+OK/+OK/!k;"),
    ("GET k;MULTI;SET k 1;GET k;SET k 2;EXEC", "_/+OK/+QUEUED/+QUEUED/+QUEUED/*3/+OK/$1/1/+OK/!k;!k;"),
    ("MULTI;SET k 1;GET k;EXEC;INCR k", "+OK/+QUEUED/+QUEUED/*2/+OK/$1/1/:2/!k;"),
    ("GET k;MULTI;SET k 1;DISCARD", "_/+OK/+QUEUED/+OK/"),
    ("GET k;WATCH k;SET k 1;MULTI;SET k 2;EXEC", "_/+OK/+OK/!k;+OK/+QUEUED/_/"),
    ("GET k;FLUSHALL;SET k 1", "_/+OK/!!+OK/"),
    ("GET k;MULTI;FLUSHALL;GET k;EXEC;SET k 1", "_/+OK/+QUEUED/+QUEUED/*2/+OK/_/!!+OK/!k;"),
    ("EVAL return(redis.call('get',KEYS[1])) 2 k m;SET m 1;SET k 1", "_/+OK/!m;+OK/!k;"),
    ("EVAL return(redis.call('set',KEYS[1],'1')) 1 k;SET k 2", "+OK/+OK/"),
    ("EVAL redis.call('set','k','1')return(redis.call('get','k')) 1 k;SET k 2", "$1/1/+OK/!k;"),
    ("GET k;EVAL redis.call('get','k')return(redis.call('set','k','2')) 1 k;SET k 2", "_/+OK/!k;+OK/"),
    ("EVAL_RO return(redis.call('ping')) 1 k;SET k 2", "+PONG/+OK/"),
    ("MULTI;EVAL return(redis.call('get',KEYS[1])) 1 k;EXEC;SET k 1", "+OK/+QUEUED/*1/_/+OK/!k;"),
    ("CLIENT REPLY OFF;GET k;SET k 1;CLIENT REPLY ON", "!k;+OK/"),
    ("GET k;CLIENT REPLY SKIP;SET k 1;GET k", "_/!k;$1/1/"),
    ("GET k;CLIENT TRACKING OFF;CLIENT TRACKING ON;SET k 1", "_/+OK/+OK/+OK/!k;"),
    ("GET k;CLIENT TRACKING OFF;SET k 1;CLIENT TRACKING ON;SET k 1", "_/+OK/+OK/+OK/+OK/"),
    ("CLIENT TRACKING ON NOLOOP;GET k;SET k 1;CLIENT TRACKING ON;SET k 2", "+OK/_/+OK/+OK/+OK/"),
    ("CLIENT TRACKING ON OPTIN;GET k;SET k 1;CLIENT CACHING YES;GET k;SET k 2;GET k;SET k 3", "+OK/_/+OK/+OK/$1/1/+OK/!k;$1/2/+OK/"),
    ("CLIENT TRACKING ON OPTIN;CLIENT CACHING YES;MULTI;GET k;GET m;EXEC;MSET k 1 m 1", "+OK/+OK/+OK/+QUEUED/+QUEUED/*2/_/_/+OK/!k;!m;"),
    ("CLIENT TRACKING ON OPTIN;CLIENT CACHING YES;PING;GET k;SET k 1", "+OK/+OK/+PONG/_/+OK/"),
    ("CLIENT TRACKING ON OPTIN;CLIENT CACHING YES;CLIENT GETREDIR;GET k;SET k 1", "+OK/+OK/:0/_/+OK/!k;"),
    ("CLIENT TRACKING ON OPTOUT;GET k;SET k 1;CLIENT CACHING NO;GET k;SET k 2", "+OK/_/+OK/!k;+OK/$1/1/+OK/"),
    ("SET k 1;GET k;HELLO;GETDEL k", "+OK/$1/1/%7/$6/server/$5/redis/$7/version/$6/7.0.15/$5/proto/:3/$2/id/:ID/$4/mode/$10/standalone/$4/role/$6/master/$7/modules/*0/$1/1/!k;"),
];

#[test]
fn a_client_gets_the_invalidations_of_its_own_changes_after_their_replies() {
    for (requests, expected) in OWN {
        let server = Running::new();
        let mut client = tracker(&server, "");
        let id = id_of(&mut client);
        let mut text = String::new();
        let mut rest = expected
            .replace("!!", "\u{1}")
            .replace(":ID", &format!(":{id}"));
        while let Some((before, after)) = rest.split_once('!') {
            let (key, after) = after.split_once(';').unwrap();
            text += &before.replace('/', "\r\n");
            text += &invalidation(key);
            rest = after.to_owned();
        }
        text += &rest.replace('/', "\r\n");
        client.ask(requests, &text.replace('\u{1}', FLUSHED));
    }
}

#[rustfmt::skip]
const OPTIONS: &[(&str, &str)] = &[
    ("CLIENT TRACKING maybe;CLIENT TRACKING ON what;CLIENT TRACKING ON PREFIX;CLIENT TRACKING ON REDIRECT", "-ERR syntax error/-ERR syntax error/-ERR syntax error/-ERR syntax error/"),
    ("CLIENT TRACKING ON REDIRECT x;CLIENT TRACKING ON REDIRECT 77;CLIENT TRACKING ON REDIRECT -1", "-ERR value is not an integer or out of range/-ERR The client ID you want redirect to does not exist/-ERR The client ID you want redirect to does not exist/"),
    ("CLIENT TRACKING OFF REDIRECT 1 REDIRECT 1", "-ERR A client can only redirect to a single other client/"),
    ("CLIENT TRACKING ON PREFIX a;CLIENT TRACKING ON BCAST OPTIN;CLIENT TRACKING ON OPTIN OPTOUT", "-ERR PREFIX option requires BCAST mode to be enabled/-ERR OPTIN and OPTOUT are not compatible with BCAST/-ERR You can't specify both OPTIN mode and OPTOUT mode/"),
    ("CLIENT TRACKING ON BCAST PREFIX ab PREFIX a", "-ERR Prefix 'ab' overlaps with another provided prefix 'a'. Prefixes for a single client must not overlap./"),
    ("CLIENT TRACKING ON BCAST PREFIX a;CLIENT TRACKING ON BCAST PREFIX ab", "+OK/-ERR Prefix 'ab' overlaps with an existing prefix 'a'. Prefixes for a single client must not overlap./"),
    ("CLIENT TRACKING ON BCAST;CLIENT TRACKING ON", "+OK/-ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling it with a different mode./"),
    ("CLIENT TRACKING ON OPTIN;CLIENT TRACKING ON OPTOUT;CLIENT TRACKING ON;CLIENT TRACKINGINFO", "+OK/-ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling it with a different mode./+OK/*6/$5/flags/*1/$2/on/$8/redirect/:0/$8/prefixes/*0/"),
    ("CLIENT CACHING YES;CLIENT TRACKING ON;CLIENT CACHING YES;CLIENT CACHING NO;CLIENT CACHING x", "-ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled/+OK/-ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode./-ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode./-ERR syntax error/"),
    ("CLIENT TRACKING ON BCAST NOLOOP PREFIX b PREFIX a;CLIENT TRACKINGINFO;RESET;CLIENT TRACKINGINFO;CLIENT GETREDIR", "+OK/*6/$5/flags/*3/$2/on/$5/bcast/$6/noloop/$8/redirect/:0/$8/prefixes/*2/$1/a/$1/b/+RESET/*6/$5/flags/*1/$3/off/$8/redirect/:-1/$8/prefixes/*0/:-1/"),
    ("CLIENT TRACKING ON OPTIN;CLIENT CACHING YES;CLIENT TRACKINGINFO;PING;CLIENT TRACKINGINFO", "+OK/+OK/*6/$5/flags/*3/$2/on/$5/optin/$11/caching-yes/$8/redirect/:0/$8/prefixes/*0/+PONG/*6/$5/flags/*2/$2/on/$5/optin/$8/redirect/:0/$8/prefixes/*0/"),
];

#[test]
fn options_are_checked_as_in_redis() {
    // `on/off` is a part of an error.
    for (requests, replies) in OPTIONS {
        let server = Running::new();
        let replies = replies
            .replace("on/off", "\u{1}")
            .replace("OPTIN/OPTOUT", "\u{2}");
        let replies = replies.replace('/', "\r\n");
        let replies = replies
            .replace('\u{1}', "on/off")
            .replace('\u{2}', "OPTIN/OPTOUT");
        server.connect().ask(requests, &replies);
    }
}

#[test]
fn redirected_invalidations_go_to_the_other_client_until_it_is_gone() {
    let server = several_workers();
    let mut target = server.connect();
    let id = id_of(&mut target);
    target.send("SUBSCRIBE __redis__:invalidate");
    target.expect("*3\r\n$9\r\nsubscribe\r\n$20\r\n__redis__:invalidate\r\n:1\r\n");
    let (mut reader, mut writer) = (server.connect(), server.connect());
    reader.ask(
        &format!("CLIENT TRACKING ON REDIRECT {id};GET a;GET b;CLIENT GETREDIR"),
        &format!("+OK\r\n$-1\r\n$-1\r\n:{id}\r\n"),
    );
    writer.ask("SET a 1", "+OK\r\n");
    target.expect("*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n*1\r\n$1\r\na\r\n");
    reader.ask("SET b 1;GET b", "+OK\r\n$1\r\n1\r\n");
    target.expect("*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n*1\r\n$1\r\nb\r\n");
    writer.ask("FLUSHALL", "+OK\r\n");
    target.expect("*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n$-1\r\n");
    reader.send("HELLO 3;GET a;CLIENT INFO");
    expect_hello(&mut reader);
    reader.expect("_\r\n");
    reader.line();
    assert!(reader.line().contains(" flags=t "));
    target.send("QUIT");
    target.expect("+OK\r\n");
    writer.ask("SET a 2", "+OK\r\n");
    let broken = format!(">2\r\n$21\r\ntracking-redir-broken\r\n:{id}\r\n");
    reader.ask("PING", &format!("{broken}+PONG\r\n"));
    reader.send("CLIENT INFO");
    reader.line();
    let line = reader.line();
    assert!(
        line.contains(" flags=tR ") && line.contains(&format!(" redir={id} ")),
        "{line}"
    );
}

#[test]
fn clients_that_track_prefixes_get_all_changed_keys_of_a_batch_together() {
    let server = several_workers();
    let mut all = tracker(&server, "BCAST");
    let mut some = tracker(&server, "BCAST PREFIX b PREFIX c NOLOOP");
    let mut writer = server.connect();
    writer.ask("MULTI;SET c3 1;SET a1 1;SET b2 1;SET b1 1;SET b2 2;EXEC",
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*5\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n");
    all.ask("PING", &format!("{}+PONG\r\n", invalidation("a1 b1 b2 c3")));
    let mut two = [invalidation("b1 b2"), invalidation("c3")];
    some.send("PING");
    let found = some.line();
    assert_eq!(found, ">2");
    let mut got = String::from(">2\r\n");
    while !got.ends_with("+PONG\r\n") {
        got += &some.line();
        got += "\r\n";
    }
    if !got.starts_with(&two[0]) {
        two.swap(0, 1);
    }
    assert_eq!(got, format!("{}{}+PONG\r\n", two[0], two[1]));
    some.ask("SET b1 1;ECHO x", "+OK\r\n$1\r\nx\r\n");
    all.ask("PING", &format!("{}+PONG\r\n", invalidation("b1")));
    let info = |client: &mut Client, name| field(client, "stats", name);
    assert_eq!(info(&mut writer, "tracking_total_prefixes"), "3");
    assert_eq!(field(&mut writer, "clients", "tracking_clients"), "2");
    some.ask("CLIENT TRACKING OFF", "+OK\r\n");
    assert_eq!(info(&mut writer, "tracking_total_prefixes"), "1");
    drop(all);
    wait_until(|| field(&mut writer, "clients", "tracking_clients") == "0");
    assert_eq!(info(&mut writer, "tracking_total_prefixes"), "0");
}

#[test]
fn writes_of_memcached_clients_are_announced() {
    let server = several_workers();
    let (mut reader, mut writer) = (tracker(&server, "NOLOOP"), server.connect_memcached());
    reader.ask("MGET a b", "*2\r\n_\r\n_\r\n");
    writer.send_raw(b"set a 0 0 1\r\n1\r\nincr a 1\r\n");
    writer.expect("STORED\r\n2\r\n");
    reader.ask("PING", &format!("{}+PONG\r\n", invalidation("a")));
    writer.send_raw(b"flush_all\r\n");
    writer.expect("OK\r\n");
    reader.ask("PING", &format!("{FLUSHED}+PONG\r\n"));
}

#[test]
fn an_invalidation_waits_until_the_write_is_durable() {
    let server = Running::new();
    let (mut reader, mut writer) = (tracker(&server, ""), server.connect());
    reader.ask("GET a", "_\r\n");
    server.store.hold();
    writer.send("SET a 1");
    server.await_held(1);
    // The old value is still the visible one, so the client may cache it again.
    reader.ask("GET a", "_\r\n");
    server.store.turn();
    writer.expect("+OK\r\n");
    reader.ask("GET a", &format!("{}$1\r\n1\r\n", invalidation("a")));
    // A write of its own is invalidated with its reply, not before.
    reader.send("SET a 2");
    server.await_held(1);
    writer.ask("GET a", "$1\r\n1\r\n");
    server.store.turn();
    reader.expect(&format!("+OK\r\n{}", invalidation("a")));
    server.store.let_go();
    reader.ask("GET a", "$1\r\n2\r\n");
}

#[test]
fn a_client_is_registered_before_its_request_reads() {
    let server = several_workers();
    let (mut reader, mut writer) = (tracker(&server, ""), server.connect());
    let keys: Vec<_> = (0..40).map(|at| format!("k{at}")).collect();
    server.store.close_gate();
    reader.send(&format!("MGET {}", keys.join(" ")));
    server.store.await_waiting();
    writer.ask("SET k1 1", "+OK\r\n");
    server.store.open_gate();
    let nulls = "_\r\n".repeat(38);
    reader.expect(&format!("*40\r\n_\r\n$1\r\n1\r\n{nulls}"));
    // The write was announced before the read ended, which might have missed it.
    reader.ask("PING", &format!("{}+PONG\r\n", invalidation("k1")));
}

#[test]
fn a_write_whose_commit_fails_is_announced() {
    let server = Running::new();
    let (mut reader, mut writer) = (tracker(&server, ""), server.connect());
    reader.ask("GET a", "_\r\n");
    server.store.hold();
    writer.send("SET a 1");
    server.await_held(1);
    server.store.poison("fdatasync: Input/output error");
    assert_eq!(writer.drain(), "");
    reader.ask("ECHO x", &format!("{}$1\r\nx\r\n", invalidation("a")));
}

#[test]
fn tracking_begins_when_the_writes_before_are_visible() {
    let server = Running::new();
    let (mut reader, mut writer) = (server.connect(), server.connect());
    server.store.hold();
    writer.send("SET a 1");
    server.await_held(1);
    reader.send("HELLO 3;CLIENT TRACKING ON;GET a");
    expect_hello(&mut reader);
    // This write is not announced, so no client may read the value before it and track the key.
    let mut other = server.connect();
    for _ in 0..20 {
        other.ask("GET a", "$-1\r\n");
    }
    server.store.turn();
    writer.expect("+OK\r\n");
    reader.expect("+OK\r\n$1\r\n1\r\n");
    server.store.let_go();
    writer.ask("SET a 2", "+OK\r\n");
    reader.ask("PING", &format!("{}+PONG\r\n", invalidation("a")));
}

#[test]
fn a_refused_request_neither_waits_nor_makes_writes_be_recorded() {
    let server = Running::new();
    let (mut refused, mut admin) = (server.connect(), server.connect());
    admin.ask(
        "ACL SETUSER u on nopass +@all -client|tracking;CONFIG SET requirepass secret",
        "+OK\r\n+OK\r\n",
    );
    refused.ask("AUTH u x", "+OK\r\n");
    let mut stranger = server.connect();
    server.store.hold();
    admin.send("SET a 1");
    server.await_held(1);
    // If these requests began the recording, they would wait for the write.
    stranger.send("CLIENT TRACKING ON");
    stranger.expect("-NOAUTH Authentication required.\r\n");
    refused.send("CLIENT TRACKING ON");
    assert!(refused.line().starts_with("-NOPERM "));
    server.store.let_go();
    admin.expect("+OK\r\n");
}

#[test]
fn keys_that_expire_are_invalidated() {
    let server = several_workers();
    server.store.set_clock(NOW_MS);
    let (mut reader, mut writer) = (tracker(&server, ""), server.connect());
    writer.ask(
        "SET a 1 PX 500;SET b 1 PX 700;SET c 1",
        "+OK\r\n+OK\r\n+OK\r\n",
    );
    reader.ask("MGET a b c", "*3\r\n$1\r\n1\r\n$1\r\n1\r\n$1\r\n1\r\n");
    server.store.set_clock(NOW_MS + 600);
    reader.expect(&invalidation("a"));
    server.store.set_clock(NOW_MS + 800);
    reader.expect(&invalidation("b"));
    reader.ask("GET a", "_\r\n");
}

#[test]
fn the_table_keeps_its_limit_and_forgets_clients_that_are_gone() {
    let server = several_workers();
    let mut admin = server.connect();
    let (mut reader, other) = (tracker(&server, ""), tracker(&server, ""));
    let keys: Vec<_> = (0..50).map(|at| format!("k{at}")).collect();
    let nulls = "_\r\n".repeat(50);
    let get = format!("MGET {}", keys.join(" "));
    reader.ask(&get, &format!("*50\r\n{nulls}"));
    let mut other = other;
    other.ask(&get, &format!("*50\r\n{nulls}"));
    let stat = |admin: &mut Client, name: &str| field(admin, "stats", name);
    assert_eq!(stat(&mut admin, "tracking_total_keys"), "50");
    assert_eq!(stat(&mut admin, "tracking_total_items"), "100");
    let bytes: usize = field(&mut admin, "memory", "used_memory_tracking")
        .parse()
        .unwrap();
    assert!(bytes > 50 * 100, "{bytes}");
    drop(other);
    admin.ask("CONFIG SET tracking-table-max-keys 20", "+OK\r\n");
    reader.send("ECHO end");
    let mut invalidated = 0;
    loop {
        match reader.line().as_str() {
            ">2" => invalidated += 1,
            "end" => break,
            _ => {}
        }
    }
    assert_eq!(invalidated, 30);
    assert_eq!(stat(&mut admin, "tracking_total_keys"), "20");
    // Clients come and go: the list of a key's clients does not keep them. There is room for the key in the table.
    admin.ask("CONFIG SET tracking-table-max-keys 30", "+OK\r\n");
    for _ in 0..200 {
        tracker(&server, "").ask("GET k1", "_\r\n");
    }
    let items: usize = stat(&mut admin, "tracking_total_items").parse().unwrap();
    assert!(items < 20 + 30 + 64, "{items}");
}

/// A client with a cache: a thread reads replies and invalidations.
struct CachingClient {
    stream: TcpStream,
    input: BufReader<TcpStream>,
    /// Cached values.
    cache: HashMap<String, u64>,
}

/// A reply, or an invalidation that precedes it.
enum Received {
    Reply(Option<u64>),
    Invalidation,
}

impl CachingClient {
    fn new(server: &Running, options: &str) -> CachingClient {
        let client = tracker(server, options);
        let input = BufReader::new(client.stream.try_clone().unwrap());
        let stream = client.stream;
        let cache = HashMap::new();
        CachingClient {
            stream,
            input,
            cache,
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.input.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn bulk(&mut self) -> String {
        let len: usize = self.line()[1..].parse().unwrap();
        let mut bytes = vec![0; len + 2];
        self.input.read_exact(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }

    /// Reads one message, and applies an invalidation to the cache.
    fn receive(&mut self) -> Received {
        let head = self.line();
        if head != ">2" {
            return match head.strip_prefix('$') {
                Some(len) => {
                    let mut bytes = vec![0; len.parse::<usize>().unwrap() + 2];
                    self.input.read_exact(&mut bytes).unwrap();
                    let text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
                    Received::Reply(text.parse().ok())
                }
                None => Received::Reply(None),
            };
        }
        assert_eq!(self.bulk(), "invalidate");
        let head = self.line();
        if head == "_" {
            self.cache.clear();
            return Received::Invalidation;
        }
        let keys: usize = head[1..].parse().unwrap();
        for _ in 0..keys {
            let key = self.bulk();
            self.cache.remove(&key);
        }
        Received::Invalidation
    }

    /// Sends a request and waits for its reply.
    fn ask(&mut self, line: &str) -> Option<u64> {
        self.stream.write_all(&request(line)).unwrap();
        loop {
            if let Received::Reply(value) = self.receive() {
                return value;
            }
        }
    }
}

/// Keys that the writers change.
const KEYS: u64 = 8;

/// Readers keep caches by invalidations while writers change the keys in several ways. A cached value is never older than a
/// value whose write was acknowledged before the reader's last round trip. At the end, each cached value is the stored one.
#[test]
fn a_cache_that_follows_invalidations_is_never_stale() {
    let server = several_workers();
    let race = Race::default();
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let (server, race) = (&server, &race);
            scope.spawn(move || write(server, writer, race));
        }
        for options in ["", "NOLOOP", "OPTOUT", "BCAST PREFIX key"] {
            let (server, race) = (&server, &race);
            scope.spawn(move || read(server, options, race));
        }
        race.run();
    });
    let counts = [&race.written, &race.hits].map(|count| count.load(Ordering::Relaxed));
    let least = Race::COUNT_MIN;
    assert!(
        counts.iter().all(|count| *count > least),
        "writes and hits: {counts:?}"
    );
}

/// What writers and readers share.
#[derive(Default)]
struct Race {
    /// The newest acknowledged value of each key.
    newest: [AtomicU64; KEYS as usize],
    written: AtomicU64,
    /// Values that the readers found in their caches.
    hits: AtomicU64,
    is_over: AtomicBool,
}

impl Race {
    const TIME: Duration = Duration::from_secs(3);
    /// Hits are rare where a round trip takes long. So the race lasts longer there.
    const TIME_MAX: Duration = Duration::from_secs(60);
    const COUNT_MIN: u64 = 100;

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Waits until there were enough writes and hits, then ends the race.
    fn run(&self) {
        let start = Instant::now();
        let enough = |count: &AtomicU64| count.load(Ordering::Relaxed) > Race::COUNT_MIN;
        while start.elapsed() < Race::TIME
            || !(enough(&self.written) && enough(&self.hits)) && start.elapsed() < Race::TIME_MAX
        {
            std::thread::sleep(Duration::from_millis(100));
        }
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Writes increasing values to the keys that belong to `writer`, as fast as their acknowledgements allow.
fn write(server: &Running, writer: u64, race: &Race) {
    let mut client = server.connect();
    let mut value = 0;
    while !race.is_over() {
        let key = value % KEYS;
        value += 1;
        if key % 3 != writer {
            continue;
        }
        let way = value / KEYS % 4;
        let (requests, replies) = match way {
            0 => (format!("SET key{key} {value}"), "+OK\r\n".to_owned()),
            1 => (
                format!("MULTI;SET key{key} 0;SET key{key} {value};EXEC"),
                "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n+OK\r\n".to_owned(),
            ),
            2 => (
                format!("EVAL redis.call('set','key{key}','{value}') 0"),
                "$-1\r\n".to_owned(),
            ),
            _ => (
                format!("SET tmp{key} {value};RENAME tmp{key} key{key}"),
                "+OK\r\n+OK\r\n".to_owned(),
            ),
        };
        client.send(&requests);
        client.expect(&replies);
        race.newest[key as usize].store(value, Ordering::SeqCst);
        race.written.fetch_add(1, Ordering::Relaxed);
        if value % 64 == writer {
            std::thread::sleep(Duration::from_millis(1)); // The readers get some hits.
        }
    }
}

/// Reads through a cache until the race is over.
fn read(server: &Running, options: &str, race: &Race) {
    let mut client = CachingClient::new(server, options);
    let mut turn = 0_u64;
    while !race.is_over() {
        turn += 1;
        let key = turn % KEYS;
        let least = race.newest[key as usize].load(Ordering::SeqCst);
        // Invalidations of the writes that are acknowledged by now precede this reply.
        client.ask("PING");
        let name = format!("key{key}");
        let found = match client.cache.get(&name) {
            Some(value) => {
                race.hits.fetch_add(1, Ordering::Relaxed);
                *value
            }
            None => {
                let value = client.ask(&format!("GET {name}")).unwrap_or(0);
                client.cache.insert(name.clone(), value);
                value
            }
        };
        assert!(
            found >= least,
            "{options}: {name} is {found}, but {least} was acknowledged"
        );
    }
    let until = Instant::now() + Duration::from_millis(100);
    while Instant::now() < until {
        client.ask("PING");
    }
    let mut plain = server.connect();
    for (name, value) in &client.cache {
        let stored = plain.bulk(&format!("GET {name}"));
        assert_eq!(stored, value.to_string(), "{options}: {name}");
    }
}
