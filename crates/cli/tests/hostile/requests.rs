//! The most expensive requests that a client can send: for each command, for transactions and for memcached's
//! protocol.
//!
//! The suite `hostile` of `cargo xtask` also sends them. The test sends shorter and fewer ones ([`MANY`], [`REPEATED_LESS`]).

use super::{MANY, REPEATED_LESS};

pub(crate) const MIB: usize = 1 << 20;
/// Length of the value at `big`, close to the largest item of a cache.
pub(crate) const BIG_BYTES: usize = 1_000_000;

/// Returns the number of repetitions of a request: `most` in the suite, and a part of it in the test.
fn repeated(most: usize) -> usize {
    (most / REPEATED_LESS).max(1)
}

/// Returns a request of `words`.
pub(crate) fn request(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Returns a request of the words of `line`.
pub(crate) fn of(line: &str) -> Vec<u8> {
    request(&words(line))
}

/// Returns the words of `line`, separated by blanks.
pub(crate) fn words(line: &str) -> Vec<Vec<u8>> {
    line.split(' ')
        .map(|word| word.as_bytes().to_vec())
        .collect()
}

/// Returns a request of `line`, followed by `count` repetitions of `more`.
fn times(line: &str, more: &str, count: usize) -> Vec<u8> {
    let mut all = words(line);
    all.extend(
        words(more)
            .into_iter()
            .cycle()
            .take(count * words(more).len()),
    );
    request(&all)
}

/// Returns a request that executes `source` without keys.
fn script(command: &str, source: &str) -> Vec<u8> {
    let words = [command, source, "0"];
    request(&words.map(|word| word.as_bytes().to_vec()))
}

/// Returns a request that loads a library with one function that contains `comment`.
fn library(name: &str, function: &str, comment: &str) -> Vec<u8> {
    let code = format!(
        "#!lua name={name}\nredis.register_function('{function}', function() while true do end end) --{comment}"
    );
    let words = ["FUNCTION", "LOAD", "REPLACE", &code].map(|word| word.as_bytes().to_vec());
    request(&words)
}

/// Returns requests that call functions: endless ones, and one with many arguments.
fn fcall(command: &str) -> Vec<u8> {
    let code = "#!lua name=hostile\n\
         redis.register_function{function_name='long', callback=function() for i = 1, 3e6 do end end, flags={'no-writes'}}\n\
         redis.register_function{function_name='full', callback=function() local s = 'x' while true do s = s .. s end end, \
         flags={'no-writes'}}";
    let load = ["FUNCTION", "LOAD", "REPLACE", code].map(|word| word.as_bytes().to_vec());
    [
        request(&load),
        of(&format!("{command} long 0")),
        of(&format!("{command} full 0")),
        times(&format!("{command} long 0"), &"a".repeat(60_000), 1_000),
    ]
    .concat()
}

/// Returns requests of RESTORE: a payload of 12 KB for 1 MB, and payloads whose checksums are wrong.
fn restore(command: &str) -> Vec<u8> {
    let restored = format!(
        "for i = 1, 20 do redis.call('{command}', 'other', 0, redis.call('dump', 'big'), 'replace') end"
    );
    let mut wrong = words(&format!("{command} other 0 REPLACE"));
    wrong.insert(3, vec![0; MIB]);
    [script("EVAL", &restored), request(&wrong).repeat(20)].concat()
}

/// Returns requests that create a user with as many rules as possible, then `command` about that user.
fn users(command: &str) -> Vec<u8> {
    let user = |rule: fn(usize) -> String| {
        let rules: String = (0..MANY).map(|at| format!(" {}", rule(at))).collect();
        of(&format!("ACL SETUSER hostile reset{rules}"))
    };
    // The largest number that is accepted, and more.
    let accepted: String = (0..2_000).map(|at| format!(" ~{at}*a*b*c*d")).collect();
    let selectors: String = (0..1_000).map(|_| " (+@read -get ~a)").collect();
    [
        user(|at| format!(">{at}")),
        user(|at| format!("+get|{at}")),
        of(&format!("ACL SETUSER hostile reset{accepted}{selectors}")),
        of(&format!("ACL SETUSER hostile >{}", "p".repeat(MIB))),
        match command {
            "acl|getuser" => of("ACL GETUSER hostile").repeat(repeated(100)),
            "acl|list" => of("ACL LIST").repeat(repeated(100)),
            "acl|dryrun" => times("ACL DRYRUN hostile MGET", &"k".repeat(1_000), 1_000),
            _ => Vec::new(),
        },
    ]
    .concat()
}

/// Returns the most expensive requests of `command`, for a server with a large value at `big` and many keys.
///
/// They repeat the repeatable argument, and have long names and patterns, and large values. Returns `None` if the
/// command is unknown here.
pub(crate) fn worst(command: &str) -> Option<Vec<u8>> {
    let long = "a".repeat(60_000);
    let value = "v".repeat(MIB);
    let distinct = |command: &str| {
        let names: String = (0..MANY).map(|at| format!(" key{at}")).collect();
        of(&format!("{command}{names}"))
    };
    Some(match command {
        "get" | "getdel" | "getex" | "type" | "strlen" | "ttl" | "pttl" | "expiretime"
        | "pexpiretime" | "persist" => of(&format!("{command} big")).repeat(repeated(200)),
        "mget" => times(command, "big", MANY),
        "exists" | "touch" => times(command, "big", MANY),
        "del" | "unlink" => [distinct(command), times(command, "none", MANY)].concat(),
        "watch" => [distinct(command), times(command, "big", MANY)].concat(),
        "mset" | "msetnx" => times(command, "same value", MANY),
        "set" => of(&format!("SET big {value} GET")).repeat(20),
        "getset" => of(&format!("GETSET big {value}")).repeat(20),
        "setnx" | "append" => of(&format!("{command} other {value}")).repeat(4),
        "setex" | "psetex" => of(&format!("{command} other 100000 {value}")).repeat(10),
        "incr" | "decr" => of(&format!("{command} big")).repeat(repeated(200)),
        "incrby" | "decrby" => of(&format!("{command} big 1")).repeat(repeated(200)),
        "expire" | "pexpire" | "expireat" | "pexpireat" => {
            of(&format!("{command} big 99999999999")).repeat(20)
        }
        "incrbyfloat" => [
            of("INCRBYFLOAT big 1").repeat(repeated(200)),
            of(&format!("INCRBYFLOAT sum 1{}e-4900", "0".repeat(5_000))).repeat(repeated(200)),
        ]
        .concat(),
        "getrange" | "substr" => of(&format!("{command} big 0 -1")).repeat(repeated(200)),
        "setrange" => [
            of(&format!("SETRANGE big 900000 {}", &value[..100_000])).repeat(20),
            of("SETRANGE other 536870911 x").repeat(20),
        ]
        .concat(),
        "lcs" => {
            let text = |word: &str| word.repeat(10_000);
            let (one, other) = (text("ab"), text("ba"));
            let values = of(&format!("MSET one {one} other {other}"));
            [
                values,
                of("LCS one other IDX").repeat(4),
                of("LCS big big").repeat(20),
            ]
            .concat()
        }
        "setbit" => [
            of("SETBIT big 7999999 1").repeat(20),
            of("SETBIT other 4294967295 1").repeat(20),
        ]
        .concat(),
        "getbit" => of("GETBIT big 7999999").repeat(repeated(200)),
        "bitcount" => of("BITCOUNT big 1 -2 BIT").repeat(repeated(200)),
        "bitpos" => of("BITPOS big 1 7999990 -1 BIT").repeat(repeated(200)),
        "bitop" => times("BITOP OR bits", "big", repeated(500)),
        "bitfield" => [
            times("BITFIELD big", "INCRBY i64 7999000 1", MANY),
            of("BITFIELD other SET u8 4294967280 1").repeat(20),
        ]
        .concat(),
        "bitfield_ro" => times("BITFIELD_RO big", "GET i64 7999000", MANY),
        "pfadd" => distinct("PFADD sketch"),
        "pfcount" | "pfmerge" => [
            distinct("PFADD sketch"),
            times(&format!("{command} sketch"), "sketch", repeated(2_000)),
        ]
        .concat(),
        "pfdebug" => [
            distinct("PFADD sketch"),
            of("PFDEBUG DECODE sketch").repeat(repeated(200)),
            of("PFDEBUG GETREG sketch").repeat(repeated(200)),
            of("SETRANGE big 0 HYLL\u{1}"),
            of("PFDEBUG DECODE big").repeat(3),
            of("PFDEBUG TODENSE big").repeat(3),
        ]
        .concat(),
        "pfselftest" => of("PFSELFTEST"),
        "dump" => of("DUMP big").repeat(repeated(200)),
        "restore" | "restore-asking" => restore(command),
        "sort" | "sort_ro" => times(command, "GET none", MANY),
        "migrate" => [
            of("MIGRATE 127.0.0.1 1 big 0 100").repeat(20),
            times("MIGRATE 127.0.0.1 1  0 100 KEYS", "none", MANY),
        ]
        .concat(),
        "copy" => of("COPY big other REPLACE").repeat(20),
        "rename" | "renamenx" => [
            of("COPY big from REPLACE"),
            of(&format!("{command} from to")),
        ]
        .concat()
        .repeat(20),
        "move" => [of("COPY big from REPLACE"), of("MOVE from 8")]
            .concat()
            .repeat(20),
        "object|encoding" | "object|freq" | "object|idletime" | "object|refcount" => {
            of(&format!("{} big", command.replace('|', " "))).repeat(repeated(200))
        }
        "eval" | "eval_ro" => [
            script(command, "for i = 1, 3e6 do end"),
            script(
                command,
                "return string.find(string.rep('x', 80), 'x*x*x*x*y')",
            ),
            script(command, "local s = 'x' while true do s = s .. s end"),
            script(
                command,
                "local t = {} for i = 1, 3e5 do t[i] = i end table.sort(t) return #t",
            ),
            script(
                command,
                &format!(
                    "for i = 1, {} do redis.call('get', 'big') end",
                    repeated(1_000)
                ),
            ),
            script(command, "return #redis.call('keys', '*')"),
            script(
                command,
                &format!("for i = 1, {} do pcall(error) end", repeated(1_000_000)),
            ),
            times(&format!("{command} return 0"), &long, 1_000),
        ]
        .concat(),
        "evalsha" | "evalsha_ro" => {
            of(&format!("{command} {} 0", "0".repeat(40))).repeat(repeated(5_000))
        }
        "fcall" | "fcall_ro" => fcall(command),
        "function|load" => (0..repeated(500))
            .flat_map(|at| library(&format!("l{at}"), &format!("f{at}"), &long[..1_000]))
            .collect(),
        "function|delete" => of("FUNCTION DELETE none").repeat(repeated(2_000)),
        // Later requests need the library.
        "function|flush" => of("FUNCTION FLUSH wrong").repeat(repeated(2_000)),
        "function|restore" => {
            let mut wrong = words("FUNCTION RESTORE");
            wrong.push(vec![0; MIB]);
            request(&wrong).repeat(20)
        }
        "function|list" => of("FUNCTION LIST WITHCODE").repeat(repeated(200)),
        "function|stats" | "function|dump" | "function|kill" | "function|help" | "function" => {
            of(&command.replace('|', " ")).repeat(repeated(1_000))
        }
        "script|load" => (0..2_000)
            .flat_map(|at| of(&format!("SCRIPT LOAD return--{at}-{}", &long[..1_000])))
            .collect(),
        "script|exists" => times("SCRIPT EXISTS", &long[..40], MANY),
        "script|flush" | "script|kill" | "script|help" | "script" => {
            of(&command.replace('|', " ")).repeat(repeated(5_000))
        }
        "script|debug" => of("SCRIPT DEBUG NO").repeat(repeated(5_000)),
        "keys" => [of("KEYS *"), of(&format!("KEYS {}b", "*a".repeat(5_000)))].concat(),
        "scan" => {
            let all = of("SCAN 0 COUNT 1000000000");
            let matching = of(&format!(
                "SCAN 0 COUNT 1000000 MATCH {}b",
                "*a".repeat(5_000)
            ));
            [all.repeat(repeated(50)), matching].concat()
        }
        "dbsize" | "time" | "ping" | "readonly" | "unwatch" | "discard" | "exec" | "multi"
        | "reset" | "randomkey" | "object|help" | "client|id" | "client|getname"
        | "client|getredir" | "client|help" | "slowlog|help" | "latency|help" | "memory|help"
        | "command|count" | "command|help" | "config|help" | "config|resetstat"
        | "config|rewrite" | "quit" => of(&command.replace('|', " ")).repeat(repeated(5_000)),
        "subscribe" | "psubscribe" | "ssubscribe" => [
            of("HELLO 3"),
            distinct(command),
            of(&format!("PUBLISH key1 {value}")).repeat(20),
        ]
        .concat(),
        "unsubscribe" | "punsubscribe" | "sunsubscribe" => [
            distinct(&command.replace("un", "")),
            times(command, "key1", MANY),
            of(command),
        ]
        .concat(),
        "publish" | "spublish" => [
            of("HELLO 3"),
            of("PSUBSCRIBE * ch*"),
            of(&format!("{command} channel {value}")).repeat(repeated(60)),
        ]
        .concat(),
        "pubsub|numpat" | "pubsub|help" => of(&command.replace('|', " ")).repeat(repeated(5_000)),
        "pubsub|channels" | "pubsub|shardchannels" => [
            of("HELLO 3"),
            distinct("SUBSCRIBE"),
            of(&format!(
                "{} {}b",
                command.replace('|', " "),
                "*a".repeat(5_000)
            )),
            of(&command.replace('|', " ")).repeat(20),
        ]
        .concat(),
        "pubsub|numsub" | "pubsub|shardnumsub" => {
            times(&command.replace('|', " "), "channel", MANY)
        }
        "echo" => of(&format!("ECHO {value}")).repeat(20),
        "select" => of("SELECT 1").repeat(repeated(5_000)),
        "hello" => of(&format!("HELLO 3{}", format!(" SETNAME {long}").repeat(20))).repeat(5),
        "auth" => of(&format!("AUTH default {long}")).repeat(repeated(50)),
        // Flush another database, because later requests need the keys.
        "flushdb" => [of("SELECT 9"), of("FLUSHDB").repeat(repeated(100))].concat(),
        // Pairs of swaps, so that later requests find the keys where they were.
        "swapdb" => [
            of("SWAPDB 7 8").repeat(2 * repeated(20)),
            of("SWAPDB 0 0").repeat(20),
        ]
        .concat(),
        "flushall" => of("FLUSHALL wrong").repeat(repeated(1_000)),
        "client" | "config" | "object" | "pubsub" | "slowlog" | "latency" | "memory" => {
            of(command).repeat(repeated(5_000))
        }
        "acl" => of(command).repeat(repeated(5_000)),
        "acl|setuser" | "acl|getuser" | "acl|list" | "acl|dryrun" => users(command),
        "acl|deluser" => distinct("ACL DELUSER"),
        "acl|users" | "acl|whoami" | "acl|help" | "acl|load" | "acl|save" => {
            of(&command.replace('|', " ")).repeat(repeated(5_000))
        }
        "acl|cat" => of("ACL CAT slow").repeat(repeated(1_000)),
        "acl|genpass" => of("ACL GENPASS 4096").repeat(repeated(2_000)),
        "acl|log" => [
            of(&format!("AUTH {long} wrong")).repeat(repeated(300)),
            of("ACL LOG 1000000").repeat(repeated(50)),
        ]
        .concat(),
        "command" => of(command).repeat(repeated(1_000)),
        "info" => times(command, "everything", MANY),
        "shutdown" => [
            of("SHUTDOWN ABORT").repeat(repeated(1_000)),
            times(command, "wrong", MANY),
        ]
        .concat(),
        "client|setname" => of(&format!("CLIENT SETNAME {long}")).repeat(repeated(50)),
        "client|setinfo" => of(&format!("CLIENT SETINFO LIB-NAME {long}")).repeat(repeated(50)),
        "client|list" => times("CLIENT LIST ID", "1", MANY),
        "client|info" => of("CLIENT INFO").repeat(repeated(5_000)),
        "client|kill" => times("CLIENT KILL", "ID 999999999", MANY).repeat(3),
        "client|reply" => of("CLIENT REPLY OFF").repeat(repeated(5_000)),
        "client|no-evict" | "client|no-touch" => {
            of(&format!("{} OFF", command.replace('|', " "))).repeat(repeated(5_000))
        }
        "client|pause" => of("CLIENT PAUSE 0 ALL").repeat(repeated(5_000)),
        "client|unpause"
        | "client|trackinginfo"
        | "slowlog|len"
        | "slowlog|reset"
        | "latency|latest"
        | "latency|doctor"
        | "memory|purge"
        | "memory|malloc-stats" => of(&command.replace('|', " ")).repeat(repeated(5_000)),
        // Each prefix is kept twice, and every change is compared with all of them.
        "client|tracking" => [
            of("CLIENT TRACKING ON BCAST PREFIX long"),
            times("CLIENT TRACKING ON BCAST", "PREFIX x", MANY / 2),
            of(&format!("CLIENT TRACKING ON BCAST PREFIX {long}")).repeat(repeated(50)),
            of("SET long 1").repeat(repeated(5_000)),
        ]
        .concat(),
        "client|unblock" | "client|caching" | "latency|graph" => {
            of(&format!("{} {long}", command.replace('|', " "))).repeat(repeated(50))
        }
        // Each byte of the arguments takes four bytes of a line, which each of the clients gets.
        "monitor" => [
            of("MONITOR"),
            request(&[b"ECHO".to_vec(), vec![0xff; 16 << 10]]).repeat(500),
        ]
        .concat(),
        // Every request is slow then, and fills the log with long arguments.
        "slowlog|get" => [
            of("CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 1000000"),
            times("MGET", &long[..1_000], 100).repeat(200),
            of("SLOWLOG GET -1").repeat(20),
            of("CONFIG SET slowlog-log-slower-than 10000 slowlog-max-len 128"),
        ]
        .concat(),
        "latency|history" => of("LATENCY HISTORY command").repeat(repeated(5_000)),
        "latency|reset" => times("LATENCY RESET", "command", MANY),
        "latency|histogram" => times("LATENCY HISTOGRAM", "get", MANY),
        "memory|usage" => of("MEMORY USAGE big").repeat(repeated(5_000)),
        "memory|stats" | "memory|doctor" => of(&command.replace('|', " ")).repeat(repeated(500)),
        "save" | "bgsave" => of(command).repeat(20),
        "replconf" => times("REPLCONF", "capa eof", MANY / 2),
        "sync" => of("SYNC").repeat(3),
        "psync" => of(&format!("PSYNC {long} -1")).repeat(3),
        "wait" => of("WAIT 1 1000000").repeat(repeated(5_000)),
        "debug" => times("DEBUG DIGEST-VALUE", "key", MANY),
        "bgrewriteaof" | "lastsave" | "role" | "readwrite" | "asking" => {
            of(command).repeat(repeated(5_000))
        }
        "lolwut" => times("LOLWUT VERSION 5", "100000", MANY),
        "command|info" | "command|docs" => times(&command.replace('|', " "), "client", MANY),
        "command|list" => of(&format!(
            "COMMAND LIST FILTERBY PATTERN {}b",
            "*a".repeat(30_000)
        ))
        .repeat(10),
        "command|getkeys" | "command|getkeysandflags" => times(
            &format!("{} MGET", command.replace('|', " ")),
            &long[..100],
            MANY,
        ),
        "config|get" => times("CONFIG GET", "*a*a*a*a*a*b", MANY),
        "config|set" => times("CONFIG SET", "timeout 0", MANY),
        _ if command.starts_with("cluster") => times(&command.replace('|', " "), "1", MANY),
        _ => return None,
    })
}

/// Returns transactions and pipelines, whose replies accumulate.
pub(crate) fn combinations() -> Vec<(&'static str, Vec<u8>)> {
    let transaction =
        |of_one: &str, count: usize| [of("MULTI"), of(of_one).repeat(count), of("EXEC")].concat();
    let watched: Vec<u8> = (0..40)
        .flat_map(|from| {
            let names: String = (0..1_000).map(|at| format!(" k{from}-{at}")).collect();
            of(&format!("WATCH{names}"))
        })
        .collect();
    vec![
        ("MULTI of GET", transaction("GET big", 2_000)),
        ("MULTI of MGET", transaction("MGET big big big big", 500)),
        ("MULTI of COMMAND", transaction("COMMAND DOCS", 2_000)),
        (
            "MULTI of SET and GET",
            transaction("SET same value GET", 5_000),
        ),
        (
            "MULTI without EXEC",
            [
                of("MULTI"),
                of(&format!("SET k {}", "v".repeat(MIB))).repeat(30),
            ]
            .concat(),
        ),
        (
            "WATCH of 40,000",
            [watched, of("MULTI"), of("GET key1"), of("EXEC")].concat(),
        ),
        (
            "half a request",
            b"*2\r\n$3\r\nGET\r\n$100000000\r\n"
                .iter()
                .copied()
                .chain(std::iter::repeat_n(b'x', 8 * MIB))
                .collect(),
        ),
    ]
}

/// Returns the most expensive requests of memcached's commands, like [`worst`].
pub(crate) fn memcached() -> Vec<(&'static str, Vec<u8>)> {
    let keys = " big".repeat(200);
    vec![
        ("get", format!("get{keys}\r\n").repeat(40).into_bytes()),
        ("gat", format!("gat 0{keys}\r\n").into_bytes()),
        (
            "mg",
            "mg big v k f c t s\r\n"
                .repeat(repeated(2_000))
                .into_bytes(),
        ),
        ("mg T", "mg big v T0\r\n".repeat(repeated(200)).into_bytes()),
        ("stats", "stats\r\n".repeat(repeated(2_000)).into_bytes()),
        (
            "stats cachedump",
            "stats cachedump 1 0\r\n".repeat(repeated(50)).into_bytes(),
        ),
        ("me", "me big\r\n".repeat(repeated(5_000)).into_bytes()),
    ]
}
