//! Differences from redis-server 7.0.15 that random requests have found (`cargo xtask suites
//! redis-compare`), each with the reply of redis-server. `/` stands for the end of a line.

use crate::harness::Running;

fn agree(table: &[(&str, &str)]) {
    for (requests, replies) in table {
        let server = Running::new();
        let mut client = server.connect();
        client.ask(requests, &replies.replace('/', "\r\n"));
    }
}

#[test]
fn exec_with_arguments_ends_the_transaction() {
    agree(EXEC);
}

#[rustfmt::skip]
const EXEC: &[(&str, &str)] = &[
    ("MULTI;SET a 1;EXEC x;GET a;EXEC", "+OK/+QUEUED/-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command/$-1/-ERR EXEC without MULTI/"),
    ("EXEC x;EXEC", "-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command/-ERR EXEC without MULTI/"),
    ("WATCH a;EXEC x;SET a 1;MULTI;PING;EXEC", "+OK/-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command/+OK/+OK/+QUEUED/*1/+PONG/"),
    ("MULTI;FOO;SET a 1;CLIENT KILL;EXEC", "+OK/-ERR unknown command 'FOO', with args beginning with: /+QUEUED/-ERR wrong number of arguments for 'client|kill' command/-EXECABORT Transaction discarded because of previous errors./"),
];

#[test]
fn getex_accepts_a_repeated_option() {
    agree(GETEX);
}

#[rustfmt::skip]
const GETEX: &[(&str, &str)] = &[
    ("SET k v EX 100;GETEX k PERSIST PERSIST;TTL k", "+OK/$1/v/:-1/"),
    ("SET k v;GETEX k EX 100 EX 200;TTL k", "+OK/$1/v/:200/"),
    ("SET k v;GETEX k PERSIST EX 10", "+OK/-ERR syntax error/"),
    ("SET k v;GETEX k EX 10 PERSIST", "+OK/-ERR syntax error/"),
];

#[test]
fn watch_detects_writes_that_do_not_change_the_value() {
    agree(WATCHED);
}

#[rustfmt::skip]
const WATCHED: &[(&str, &str)] = &[
    ("SET k v;WATCH k;APPEND k '';MULTI;PING;EXEC", "+OK/+OK/:1/+OK/+QUEUED/*-1/"),
    ("SET k v PXAT 99999999999999;WATCH k;GETEX k PXAT 99999999999999;MULTI;PING;EXEC", "+OK/+OK/$1/v/+OK/+QUEUED/*-1/"),
    ("SET k v;WATCH k;GETEX k PERSIST;MULTI;PING;EXEC", "+OK/+OK/$1/v/+OK/+QUEUED/*1/+PONG/"),
];

#[test]
fn config_set_checks_all_names_before_any_value() {
    agree(CONFIG);
}

#[rustfmt::skip]
const CONFIG: &[(&str, &str)] = &[
    ("CONFIG SET timeout 0 x", "-ERR syntax error/"),
    ("CONFIG SET lua-time-limit 7;CONFIG GET busy-reply-threshold", "+OK/*2/$20/busy-reply-threshold/$1/7/"),
    ("CONFIG SET slave-priority 3 replica-priority 4;CONFIG GET *e-priority", "+OK/*2/$14/slave-priority/$1/4/"),
    ("CONFIG SET hash-max-ziplist-value 1kb;CONFIG GET hash-max-listpack-value", "+OK/*2/$23/hash-max-listpack-value/$4/1024/"),
    ("CONFIG SET hash-max-ziplist-value x", "-ERR CONFIG SET failed (possibly related to argument 'hash-max-ziplist-value') - argument must be a memory value/"),
    ("CONFIG SET repl-backlog-size 0", "-ERR CONFIG SET failed (possibly related to argument 'repl-backlog-size') - argument must be between 1 and 9223372036854775807 inclusive/"),
    ("CONFIG SET slave-read-only maybe", "-ERR CONFIG SET failed (possibly related to argument 'slave-read-only') - argument must be 'yes' or 'no'/"),
    ("CONFIG REWRITE", "-ERR The server is running without a config file/"),
    ("CONFIG SET timeout 0 timeout", "-ERR syntax error/"),
    ("CONFIG SET timeout x nope 1", "-ERR Unknown option or number of arguments for CONFIG SET - 'nope'/"),
    ("CONFIG SET timeout x TIMEOUT 1", "-ERR CONFIG SET failed (possibly related to argument 'TIMEOUT') - duplicate parameter/"),
    ("CONFIG SET proto-max-bulk-len ''", "-ERR CONFIG SET failed (possibly related to argument 'proto-max-bulk-len') - argument must be between 1048576 and 9223372036854775807 inclusive/"),
    ("CONFIG SET proto-max-bulk-len 1mbx", "-ERR CONFIG SET failed (possibly related to argument 'proto-max-bulk-len') - argument must be a memory value/"),
    ("CONFIG SET proto-max-bulk-len 0001mb;CONFIG SET proto-max-bulk-len 10gb;CONFIG SET proto-max-bulk-len 512mb", "+OK/+OK/+OK/"),
    ("CONFIG SET client-query-buffer-limit ''", "-ERR CONFIG SET failed (possibly related to argument 'client-query-buffer-limit') - argument must be between 1048576 and 9223372036854775807 inclusive/"),
    ("CONFIG SET client-query-buffer-limit 9223372036854775807;CONFIG SET client-query-buffer-limit 1gb", "+OK/+OK/"),
    ("CONFIG SET client-output-buffer-limit ''", "+OK/"),
];

#[test]
fn client_list_accepts_any_integer_as_an_id() {
    agree(CLIENTS);
}

#[rustfmt::skip]
const CLIENTS: &[(&str, &str)] = &[
    ("CLIENT LIST ID 99999", "$0//"),
    ("CLIENT LIST ID -1", "$0//"),
    ("CLIENT LIST ID 0 9223372036854775807", "$0//"),
    ("CLIENT LIST ID 9223372036854775808", "-ERR Invalid client ID/"),
    ("CLIENT LIST ID x", "-ERR Invalid client ID/"),
    ("CLIENT LIST ID", "-ERR syntax error/"),
    ("CLIENT KILL TYPE pubsub TYPE normal ID 99999", ":0/"),
];

#[test]
fn client_list_has_the_fields_of_redis_in_its_order() {
    let server = Running::new();
    let (mut client, mut other) = (server.connect(), server.connect());
    other.ask("PING", "+PONG\r\n");
    let lines = client.bulk("CLIENT LIST ID 2 1 2");
    let names = |line: &str| -> Vec<String> {
        let name = |field: &str| field.split('=').next().unwrap().to_owned();
        line.split(' ').map(name).collect()
    };
    let ids: Vec<_> = lines.lines().map(|line| &line[..4]).collect();
    assert_eq!(ids, ["id=2", "id=1", "id=2"]);
    let expected = "id addr laddr fd name age idle flags db sub psub ssub multi qbuf qbuf-free argv-mem \
                    multi-mem rbs rbp obl oll omem tot-mem events cmd user redir resp watch lib-name \
                    lib-ver";
    for line in lines.lines() {
        assert_eq!(names(line).join(" "), expected);
    }
    client.send("MULTI;CLIENT INFO;PING;EXEC");
    client.expect("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n");
    let header = client.line();
    let inside = client.line();
    assert!(header.starts_with('$'), "{header}");
    for field in [" flags=x ", " multi=2 ", " cmd=exec "] {
        assert!(inside.contains(field), "{field} in {inside}");
    }
}

#[test]
fn cursors_and_patterns_are_parsed_as_in_redis() {
    agree(SCAN);
}

#[rustfmt::skip]
const SCAN: &[(&str, &str)] = &[
    ("SCAN ''", "*2/$1/0/*0/"),
    ("SCAN -1", "*2/$1/0/*0/"),
    ("SCAN -0", "*2/$1/0/*0/"),
    ("SCAN +0", "*2/$1/0/*0/"),
    ("SCAN -", "-ERR invalid cursor/"),
    ("SCAN 00", "*2/$1/0/*0/"),
    ("SCAN 0x", "-ERR invalid cursor/"),
    ("SCAN 18446744073709551616", "-ERR invalid cursor/"),
    ("SET '' v;KEYS *;KEYS **;KEYS ''", "+OK/*1/$0//*0/*1/$0//"),
    ("SET '' v;SCAN 0 MATCH **;SCAN 0 MATCH *", "+OK/*2/$1/0/*0/*2/$1/0/*1/$0//"),
];

#[test]
fn commands_are_described_as_in_redis() {
    agree(COMMAND);
}

#[rustfmt::skip]
const COMMAND: &[(&str, &str)] = &[
    ("COMMAND INFO client|nope", "*1/$-1/"),
    ("COMMAND INFO nope", "*1/$-1/"),
    ("COMMAND INFO get|x", "*1/$-1/"),
    ("COMMAND INFO exec", "*1/*10/$4/exec/:1/*4/+noscript/+loading/+stale/+skip_slowlog/:0/:0/:0/*2/+@slow/+@transaction/*0/*0/*0/"),
    ("COMMAND INFO shutdown", "*1/*10/$8/shutdown/:-1/*6/+admin/+noscript/+loading/+stale/+no_multi/+allow_busy/:0/:0/:0/*3/+@admin/+@slow/+@dangerous/*0/*0/*0/"),
    ("COMMAND INFO getex", "*1/*10/$5/getex/:-2/*2/+write/+fast/:1/:1/:1/*3/+@write/+@string/+@fast/*0/*1/*8/$5/notes/$40/RW and UPDATE because it changes the TTL/$5/flags/*3/+RW/+access/+update/$12/begin_search/*4/$4/type/$5/index/$4/spec/*2/$5/index/:1/$9/find_keys/*4/$4/type/$5/range/$4/spec/*6/$7/lastkey/:0/$7/keystep/:1/$5/limit/:0/*0/"),
    ("COMMAND GETKEYS client nope", "-ERR Invalid command specified/"),
    ("COMMAND GETKEYS set a", "-ERR Invalid number of arguments specified for command/"),
    ("COMMAND GETKEYS pfmerge a", "-ERR Invalid arguments specified for command/"),
    ("COMMAND GETKEYS ping a b", "-ERR The command has no key arguments/"),
    ("HELLO 3;COMMAND INFO getdel nope", "%7/$6/server/$5/redis/$7/version/$6/7.0.15/$5/proto/:3/$2/id/:1/$4/mode/$10/standalone/$4/role/$6/master/$7/modules/*0/*2/*10/$6/getdel/:2/~2/+write/+fast/:1/:1/:1/~3/+@write/+@string/+@fast/~0/~1/%3/$5/flags/~3/+RW/+access/+delete/$12/begin_search/%2/$4/type/$5/index/$4/spec/%1/$5/index/:1/$9/find_keys/%2/$4/type/$5/range/$4/spec/%3/$7/lastkey/:0/$7/keystep/:1/$5/limit/:0/~0/_/"),
];

#[test]
fn a_nul_ends_an_option_and_hides_the_end_of_a_line() {
    let server = Running::new();
    let nuls = vec![0_u8; 65_537];
    let count = [b"*".as_slice(), &nuls, b"\r\n"].concat();
    for (bytes, replies) in [
        (&b"\0\r\nPING\r\n"[..], ""),
        (b"*1\0\r\nPING\r\n", ""),
        (b"*1\r\n$4\0\r\nPING\r\n", ""),
        (b"*2\r\n$3\r\nGET\r\n\0\r\n", ""),
        (
            b"*1\r\n$1\r\n\0\r\n",
            "-ERR unknown command '', with args beginning with: \r\n",
        ),
        (
            b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n*4\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n2\r\n$3\r\nNX\0\r\n",
            "+OK\r\n$-1\r\n",
        ),
        (
            b"*4\r\n$4\r\nSCAN\r\n$2\r\n0\0\r\n$6\r\nCOUNT\0\r\n$2\r\n10\r\n",
            "*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n",
        ),
        (
            &nuls,
            "-ERR Protocol error: too big inline request\r\n",
        ),
        (
            &count,
            "-ERR Protocol error: too big mbulk count string\r\n",
        ),
    ] {
        let mut client = server.connect();
        client.send_raw(bytes);
        client.finish();
        assert_eq!(client.drain(), replies, "{}", bytes[..bytes.len().min(60)].escape_ascii());
    }
}

#[test]
fn dbsize_does_not_count_expired_keys() {
    let server = Running::new();
    server.store.set_clock(1_000_000);
    let mut client = server.connect();
    client.ask("SET a 1 PX 100;SET b 2;DBSIZE", "+OK\r\n+OK\r\n:2\r\n");
    server.store.set_clock(1_000_100);
    client.ask("DBSIZE", ":1\r\n");
}

#[test]
fn info_memory_distinguishes_the_heap_from_mapped_files() {
    let server = Running::new();
    let info = server.connect().bulk("INFO memory");
    let figure = |name: &str| -> u64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} in {info}"))
            .parse()
            .unwrap()
    };
    let (used, mapped) = (figure("used_memory:"), figure("used_memory_mapped_files:"));
    assert!(used > 0 && mapped > 0, "{info}");
    assert_eq!(figure("used_memory_rss:"), used + mapped);
}
