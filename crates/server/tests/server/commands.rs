//! Replies of each command, byte for byte. The tables contain the replies of redis-server 7.0.15 to the same requests;
//! `/` stands for the end of a line.

use crate::harness::{NOW_MS, Running, agree};

#[test]
fn string_commands_reply_as_in_redis() {
    agree(STRINGS);
}

#[rustfmt::skip]
const STRINGS: &[(&str, &str)] = &[
    ("GET k", "$-1/"),
    ("SET k v;GET k", "+OK/$1/v/"),
    ("SET k v NX;SET k w NX;GET k", "+OK/$-1/$1/v/"),
    ("SET k v XX;SET k v;SET k w XX;GET k", "$-1/+OK/+OK/$1/w/"),
    ("SET k v GET;SET k w GET;GET k", "$-1/$1/v/$1/w/"),
    ("SET k v NX GET;SET k w NX GET;GET k", "$-1/$1/v/$1/v/"),
    ("SET k v XX GET;SET k v;SET k w XX GET;GET k", "$-1/+OK/$1/v/$1/w/"),
    ("SET k v NX XX", "-ERR syntax error/"),
    ("SET k v XX NX", "-ERR syntax error/"),
    ("SET k v NX NX", "+OK/"),
    ("SET k v EX 10 PX 10", "-ERR syntax error/"),
    ("SET k v EX 10 EX 10", "+OK/"),
    ("SET k v EX 0", "-ERR invalid expire time in 'set' command/"),
    ("SET k v EX -1", "-ERR invalid expire time in 'set' command/"),
    ("SET k v EX abc", "-ERR value is not an integer or out of range/"),
    ("SET k v EX", "-ERR syntax error/"),
    ("SET k v PX 0", "-ERR invalid expire time in 'set' command/"),
    ("SET k v EXAT 0", "-ERR invalid expire time in 'set' command/"),
    ("SET k v PXAT -5", "-ERR invalid expire time in 'set' command/"),
    ("SET k v EX 9223372036854775807", "-ERR invalid expire time in 'set' command/"),
    ("SET k v PX 9223372036854775807", "-ERR invalid expire time in 'set' command/"),
    ("SET k v EX 9223372036854775", "-ERR invalid expire time in 'set' command/"),
    ("SET k v EXAT 9223372036854776", "-ERR invalid expire time in 'set' command/"),
    ("SET k v foo", "-ERR syntax error/"),
    ("SET k v EX 10 foo", "-ERR syntax error/"),
    ("SET k v GET EX", "-ERR syntax error/"),
    ("SET k", "-ERR wrong number of arguments for 'set' command/"),
    ("SET", "-ERR wrong number of arguments for 'set' command/"),
    ("GET", "-ERR wrong number of arguments for 'get' command/"),
    ("GET a b", "-ERR wrong number of arguments for 'get' command/"),
    ("SETNX k v;SETNX k w;GET k", ":1/:0/$1/v/"),
    ("SETEX k 0 v", "-ERR invalid expire time in 'setex' command/"),
    ("SETEX k -1 v", "-ERR invalid expire time in 'setex' command/"),
    ("SETEX k a v", "-ERR value is not an integer or out of range/"),
    ("PSETEX k 0 v", "-ERR invalid expire time in 'psetex' command/"),
    ("PSETEX k 9223372036854775807 v", "-ERR invalid expire time in 'psetex' command/"),
    ("GETSET k v;GETSET k w;GET k", "$-1/$1/v/$1/w/"),
    ("GETDEL k;SET k v;GETDEL k;GET k", "$-1/+OK/$1/v/$-1/"),
    ("SET k v;GETEX k EX 0", "+OK/-ERR invalid expire time in 'getex' command/"),
    ("SET k v;GETEX k EX 10 PX 10", "+OK/-ERR syntax error/"),
    ("SET k v;GETEX k PERSIST EX 10", "+OK/-ERR syntax error/"),
    ("SET k v;GETEX k EX", "+OK/-ERR syntax error/"),
    ("SET k v;GETEX k foo", "+OK/-ERR syntax error/"),
    ("SET k v;GETEX k NX", "+OK/-ERR syntax error/"),
    ("GETEX k EX abc", "$-1/"),
    ("APPEND k ab;APPEND k cd;GET k;STRLEN k;STRLEN no", ":2/:4/$4/abcd/:4/:0/"),
    ("MSET a 1 b 2;MGET a b c a", "+OK/*4/$1/1/$1/2/$-1/$1/1/"),
    ("MSET a 1 b", "-ERR wrong number of arguments for 'mset' command/"),
    ("MSET a", "-ERR wrong number of arguments for 'mset' command/"),
    ("MSET a 1 a 2;GET a", "+OK/$1/2/"),
    ("MSETNX a 1 b 2;MSETNX b 3 c 4;MGET a b c", ":1/:0/*3/$1/1/$1/2/$-1/"),
    ("MSETNX a 1 b", "-ERR wrong number of arguments for 'msetnx' command/"),
    ("MSETNX a 1 a 2;GET a", ":1/$1/2/"),
    ("MGET", "-ERR wrong number of arguments for 'mget' command/"),
];

#[test]
fn counter_commands_reply_as_in_redis() {
    agree(COUNTERS);
}

#[rustfmt::skip]
const COUNTERS: &[(&str, &str)] = &[
    ("INCR k;INCR k;INCRBY k 10;DECR k;DECRBY k 5;GET k", ":1/:2/:12/:11/:6/$1/6/"),
    ("SET k 9223372036854775807;INCR k;DECR k", "+OK/-ERR increment or decrement would overflow/:9223372036854775806/"),
    ("SET k -9223372036854775808;DECR k;INCR k", "+OK/-ERR increment or decrement would overflow/:-9223372036854775807/"),
    ("INCRBY k 9223372036854775807;INCRBY k 1", ":9223372036854775807/-ERR increment or decrement would overflow/"),
    ("INCRBY k 9223372036854775808", "-ERR value is not an integer or out of range/"),
    ("DECRBY k -9223372036854775808", "-ERR decrement would overflow/"),
    ("DECRBY k 9223372036854775807;DECRBY k 1;DECRBY k 1", ":-9223372036854775807/:-9223372036854775808/-ERR increment or decrement would overflow/"),
    ("INCRBY k abc", "-ERR value is not an integer or out of range/"),
    ("INCRBY k 1.5", "-ERR value is not an integer or out of range/"),
    ("INCRBY k", "-ERR wrong number of arguments for 'incrby' command/"),
    ("SET k abc;INCR k;GET k", "+OK/-ERR value is not an integer or out of range/$3/abc/"),
    ("SET k 01;INCR k", "+OK/-ERR value is not an integer or out of range/"),
    ("SET k +1;INCR k", "+OK/-ERR value is not an integer or out of range/"),
    ("SET k -0;INCR k", "+OK/-ERR value is not an integer or out of range/"),
    ("SET k 5 EX 100;INCR k;TTL k", "+OK/:6/:100/"),
];

#[test]
fn expiry_commands_reply_as_in_redis() {
    agree(EXPIRY);
}

#[rustfmt::skip]
const EXPIRY: &[(&str, &str)] = &[
    ("SET k v PX 10000;TTL k", "+OK/:10/"),
    ("SET k v nx Ex 100 gEt;TTL k", "$-1/:100/"),
    ("SETEX k 10 v;TTL k;GET k", "+OK/:10/$1/v/"),
    ("SET k v;EXPIRE k 100;TTL k;PERSIST k;TTL k;PERSIST k;PERSIST no", "+OK/:1/:100/:1/:-1/:0/:0/"),
    ("EXPIRE no 100", ":0/"),
    ("SET k v;EXPIRE k -1;EXISTS k", "+OK/:1/:0/"),
    ("SET k v;EXPIRE k 0;EXISTS k", "+OK/:1/:0/"),
    ("SET k v;EXPIRE k abc", "+OK/-ERR value is not an integer or out of range/"),
    ("SET k v;EXPIRE k 100 NX;EXPIRE k 200 NX;TTL k", "+OK/:1/:0/:100/"),
    ("SET k v;EXPIRE k 100 XX;TTL k;EXPIRE k 100;EXPIRE k 200 XX;TTL k", "+OK/:0/:-1/:1/:1/:200/"),
    ("SET k v;EXPIRE k 100 GT;TTL k;EXPIRE k 100;EXPIRE k 50 GT;TTL k;EXPIRE k 200 GT;TTL k", "+OK/:0/:-1/:1/:0/:100/:1/:200/"),
    ("SET k v;EXPIRE k 100 LT;TTL k;EXPIRE k 200 LT;TTL k;EXPIRE k 50 LT;TTL k", "+OK/:1/:100/:0/:100/:1/:50/"),
    ("SET k v;EXPIRE k 100 XX GT;EXPIRE k 100 XX LT", "+OK/:0/:0/"),
    ("SET k v;EXPIRE k 100 NX XX", "+OK/-ERR NX and XX, GT or LT options at the same time are not compatible/"),
    ("SET k v;EXPIRE k 100 GT LT", "+OK/-ERR GT and LT options at the same time are not compatible/"),
    ("SET k v;EXPIRE k 100 NX GT", "+OK/-ERR NX and XX, GT or LT options at the same time are not compatible/"),
    ("SET k v;EXPIRE k 100 foo", "+OK/-ERR Unsupported option foo/"),
    ("SET k v;EXPIRE k 100 NX foo", "+OK/-ERR Unsupported option foo/"),
    ("SET k v;EXPIRE k abc foo", "+OK/-ERR Unsupported option foo/"),
    ("EXPIRE no 100 foo", "-ERR Unsupported option foo/"),
    ("EXPIRE no abc", "-ERR value is not an integer or out of range/"),
    ("SET k v;EXPIRE k 9223372036854775807", "+OK/-ERR invalid expire time in 'expire' command/"),
    ("SET k v;EXPIRE k -9223372036854775808", "+OK/-ERR invalid expire time in 'expire' command/"),
    ("SET k v;EXPIRE k 9223372036854775", "+OK/-ERR invalid expire time in 'expire' command/"),
    ("SET k v;PEXPIRE k 9223372036854775807", "+OK/-ERR invalid expire time in 'pexpire' command/"),
    ("SET k v;PEXPIRE k -9223372036854775808;EXISTS k", "+OK/:1/:0/"),
    ("SET k v;EXPIREAT k 9223372036854775807", "+OK/-ERR invalid expire time in 'expireat' command/"),
    ("SET k v;EXPIREAT k 1;EXISTS k", "+OK/:1/:0/"),
    ("SET k v;EXPIREAT k 0;EXISTS k", "+OK/:1/:0/"),
    ("SET k v;EXPIREAT k -1;EXISTS k", "+OK/:1/:0/"),
];

#[test]
fn key_commands_reply_as_in_redis() {
    agree(KEYS);
}

#[rustfmt::skip]
const KEYS: &[(&str, &str)] = &[
    ("SET k v EXAT 1;GET k;EXISTS k", "+OK/$-1/:0/"),
    ("SET k v;GETEX k EXAT 1;EXISTS k", "+OK/$1/v/:0/"),
    ("DEL a;SET a 1;DEL a;SET a 1;SET b 2;DEL a b c a;DBSIZE", ":0/+OK/:1/+OK/+OK/:2/:0/"),
    ("UNLINK a;SET a 1;SET b 1;UNLINK a b", ":0/+OK/+OK/:2/"),
    ("EXISTS a;SET a 1;EXISTS a a b;TOUCH a a b", ":0/+OK/:2/:2/"),
    ("TYPE a;SET a 1;TYPE a", "+none/+OK/+string/"),
    ("DBSIZE;SET a 1;DBSIZE;SELECT 1;DBSIZE;SELECT 0;DBSIZE", ":0/+OK/:1/+OK/:0/+OK/:1/"),
    ("FLUSHALL;FLUSHALL ASYNC;FLUSHALL SYNC;FLUSHALL foo;FLUSHALL ASYNC SYNC;FLUSHDB;FLUSHDB ASYNC;FLUSHDB foo", "+OK/+OK/+OK/-ERR syntax error/-ERR syntax error/+OK/+OK/-ERR syntax error/"),
    ("SET a 1;SELECT 3;SET a 2;FLUSHDB;DBSIZE;SELECT 0;DBSIZE", "+OK/+OK/+OK/+OK/:0/+OK/:1/"),
];

#[test]
fn transaction_commands_reply_as_in_redis() {
    agree(TRANSACTIONS);
}

#[rustfmt::skip]
const TRANSACTIONS: &[(&str, &str)] = &[
    ("MULTI;SET a 1;INCR a;GET a;EXEC", "+OK/+QUEUED/+QUEUED/+QUEUED/*3/+OK/:2/$1/2/"),
    ("MULTI;MULTI;SET a 1;EXEC", "+OK/-ERR MULTI calls can not be nested/+QUEUED/*1/+OK/"),
    ("MULTI;FOO;SET a 1;EXEC;GET a", "+OK/-ERR unknown command 'FOO', with args beginning with: /+QUEUED/-EXECABORT Transaction discarded because of previous errors./$-1/"),
    ("MULTI;GET;EXEC", "+OK/-ERR wrong number of arguments for 'get' command/-EXECABORT Transaction discarded because of previous errors./"),
    ("MULTI;SET a 1;DISCARD;GET a", "+OK/+QUEUED/+OK/$-1/"),
    ("EXEC;DISCARD;UNWATCH", "-ERR EXEC without MULTI/-ERR DISCARD without MULTI/+OK/"),
    ("MULTI;EXEC", "+OK/*0/"),
    ("MULTI;PING;ECHO x;SELECT 2;SET a 1;DBSIZE;SELECT 0;DBSIZE;EXEC;DBSIZE", "+OK/+QUEUED/+QUEUED/+QUEUED/+QUEUED/+QUEUED/+QUEUED/+QUEUED/*7/+PONG/$1/x/+OK/+OK/:1/+OK/:0/:0/"),
    ("MULTI;SELECT 3;DISCARD;DBSIZE", "+OK/+QUEUED/+OK/:0/"),
    ("MULTI;WATCH a;SET a 1;EXEC", "+OK/-ERR WATCH inside MULTI is not allowed/+QUEUED/*1/+OK/"),
    ("MULTI;UNWATCH;EXEC", "+OK/+QUEUED/*1/+OK/"),
    ("WATCH a;SET a 1;MULTI;GET a;EXEC;GET a", "+OK/+OK/+OK/+QUEUED/*-1/$1/1/"),
    ("WATCH a;MULTI;SET a 1;EXEC;GET a", "+OK/+OK/+QUEUED/*1/+OK/$1/1/"),
    ("WATCH a;SET b 1;MULTI;GET a;EXEC", "+OK/+OK/+OK/+QUEUED/*1/$-1/"),
    ("WATCH a;SET a 1;UNWATCH;MULTI;GET a;EXEC", "+OK/+OK/+OK/+OK/+QUEUED/*1/$1/1/"),
    ("WATCH a;SET a 1;MULTI;DISCARD;MULTI;GET a;EXEC", "+OK/+OK/+OK/+OK/+OK/+QUEUED/*1/$1/1/"),
    ("SET a 1;WATCH a;FLUSHALL;MULTI;PING;EXEC", "+OK/+OK/+OK/+OK/+QUEUED/*-1/"),
    ("SET a 1;WATCH a;DEL a;MULTI;PING;EXEC", "+OK/+OK/:1/+OK/+QUEUED/*-1/"),
    ("SET a 1;WATCH a;EXPIRE a 100;MULTI;PING;EXEC", "+OK/+OK/:1/+OK/+QUEUED/*-1/"),
    ("SET a 1;WATCH a;EXPIRE no 100;MULTI;PING;EXEC", "+OK/+OK/:0/+OK/+QUEUED/*1/+PONG/"),
    ("SET a 1;WATCH a;GET a;MULTI;PING;EXEC", "+OK/+OK/$1/1/+OK/+QUEUED/*1/+PONG/"),
    ("SET a 1;WATCH a;SELECT 1;SET a 2;MULTI;PING;EXEC", "+OK/+OK/+OK/+OK/+OK/+QUEUED/*1/+PONG/"),
    ("WATCH", "-ERR wrong number of arguments for 'watch' command/"),
    ("MULTI;SET a abc;INCR a;SET b 1;EXEC;GET b", "+OK/+QUEUED/+QUEUED/+QUEUED/*3/+OK/-ERR value is not an integer or out of range/+OK/$1/1/"),
    ("MULTI;MSET a 1 b 2;MGET a b c;DEL a b c;EXISTS a b;EXEC", "+OK/+QUEUED/+QUEUED/+QUEUED/+QUEUED/*4/+OK/*3/$1/1/$1/2/$-1/:2/:0/"),
    ("MULTI;MSETNX a 1 b 2;MSETNX a 1 c 2;EXEC", "+OK/+QUEUED/+QUEUED/*2/:1/:0/"),
    ("MULTI;GETEX a EX 10;SET k v GET;SET k w XX GET;APPEND k 2;STRLEN k;GETDEL k;TYPE k;EXPIRE k 1;TTL k;PERSIST k;EXEC", "+OK/+QUEUED/+QUEUED/+QUEUED/+QUEUED/+QUEUED/+QUEUED/+QUEUED/+QUEUED/+QUEUED/+QUEUED/*10/$-1/$-1/$1/v/:2/:2/$2/w2/+none/:0/:-2/:0/"),
    ("MULTI;SET a 1 EX;EXEC", "+OK/+QUEUED/*1/-ERR syntax error/"),
    ("MULTI a", "-ERR wrong number of arguments for 'multi' command/"),
];

#[test]
fn connection_commands_reply_as_in_redis() {
    agree(CONNECTION);
}

#[rustfmt::skip]
const CONNECTION: &[(&str, &str)] = &[
    ("SET k v EX 10;TTL k", "+OK/:10/"),
    ("SET k v EX 100;SET k w;TTL k", "+OK/+OK/:-1/"),
    ("SET k v EX 100 NX;TTL k;SET k v EX 50 NX;TTL k", "+OK/:100/$-1/:100/"),
    ("SET k v EX 100;GETSET k w;TTL k", "+OK/$1/v/:-1/"),
    ("GETEX k;SET k v;GETEX k EX 100;TTL k;GETEX k PERSIST;TTL k;GETEX k;GETEX k PERSIST", "$-1/+OK/$1/v/:100/$1/v/:-1/$1/v/$1/v/"),
    ("SET k v EX 100;APPEND k w;TTL k", "+OK/:2/:100/"),
    ("PING;PING hi;PING a b;ECHO hi;ECHO;ECHO a b", "+PONG/$2/hi/-ERR wrong number of arguments for 'ping' command/$2/hi/-ERR wrong number of arguments for 'echo' command/-ERR wrong number of arguments for 'echo' command/"),
    ("foo;FOO bar;foo a b c d", "-ERR unknown command 'foo', with args beginning with: /-ERR unknown command 'FOO', with args beginning with: 'bar' /-ERR unknown command 'foo', with args beginning with: 'a' 'b' 'c' 'd' /"),
    ("CLIENT REPLY OFF;PING;CLIENT REPLY ON;PING;CLIENT REPLY SKIP;PING;PING;CLIENT REPLY foo;CLIENT REPLY", "+OK/+PONG/+PONG/-ERR syntax error/-ERR wrong number of arguments for 'client|reply' command/"),
    ("CLIENT NO-EVICT on;CLIENT NO-EVICT foo;CLIENT KILL 1.2.3.4:5;CLIENT KILL ID abc;CLIENT KILL ID 0;CLIENT KILL ID 999999;CLIENT KILL TYPE foo;CLIENT KILL USER foo;CLIENT KILL SKIPME foo;CLIENT KILL ID;CLIENT KILL foo bar;CLIENT KILL TYPE pubsub", "+OK/-ERR syntax error/-ERR No such client/-ERR client-id should be greater than 0/-ERR client-id should be greater than 0/:0/-ERR Unknown client type 'foo'/-ERR No such user 'foo'/-ERR syntax error/-ERR No such client/-ERR syntax error/:0/"),
    ("CLIENT GETREDIR", ":-1/"),
];

#[test]
fn a_key_expires_at_its_exact_millisecond() {
    let server = Running::new();
    server.store.set_clock(NOW_MS);
    let mut client = server.connect();
    client.ask(
        "SET k v PX 1500;PTTL k;TTL k;GET k",
        "+OK\r\n:1500\r\n:2\r\n$1\r\nv\r\n",
    );
    client.ask(
        "EXPIRETIME k;PEXPIRETIME k",
        ":1700000002\r\n:1700000001500\r\n",
    );
    server.store.set_clock(NOW_MS + 1499);
    client.ask("PTTL k;TTL k;EXISTS k", ":1\r\n:0\r\n:1\r\n");
    server.store.set_clock(NOW_MS + 1500);
    client.ask("PTTL k;TTL k;EXISTS k;GET k", ":-2\r\n:-2\r\n:0\r\n$-1\r\n");
    client.ask(
        "SET k v NX KEEPTTL;TTL k;INCR n;TTL n",
        "+OK\r\n:-1\r\n:1\r\n:-1\r\n",
    );
}

#[test]
fn resp3_replies_have_their_own_types() {
    let server = Running::new();
    let mut client = server.connect();
    let hello = |proto: &str, head: &str, id: u64| {
        format!(
            "{head}\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n$5\r\nproto\r\n\
             :{proto}\r\n$2\r\nid\r\n:{id}\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\n\
             master\r\n$7\r\nmodules\r\n*0\r\n"
        )
    };
    client.ask("HELLO", &hello("2", "*14", 1));
    client.ask("HELLO 3", &hello("3", "%7", 1));
    client.ask("GET no;MGET no no", "_\r\n*2\r\n_\r\n_\r\n");
    client.ask(
        "SET k v;SET k w NX;SET k w XX GET",
        "+OK\r\n_\r\n$1\r\nv\r\n",
    );
    client.ask("CONFIG GET timeout", "%1\r\n$7\r\ntimeout\r\n$1\r\n0\r\n");
    client.ask("WATCH k;SET k x;MULTI;EXEC", "+OK\r\n+OK\r\n+OK\r\n_\r\n");
    client.ask("COMMAND INFO nosuch", "*1\r\n_\r\n");
    client.ask(
        "COMMAND GETKEYSANDFLAGS GET a",
        "*1\r\n*2\r\n$1\r\na\r\n~2\r\n+RO\r\n+access\r\n",
    );
    client.ask("CLIENT GETNAME;RESET;GET no", "_\r\n+RESET\r\n$-1\r\n");
    client.ask("HELLO 4", "-NOPROTO unsupported protocol version\r\n");
    client.ask(
        "HELLO 3 AUTH other x",
        "-WRONGPASS invalid username-password pair or user is disabled.\r\n",
    );
    client.ask(
        "HELLO 3 what",
        "-ERR Syntax error in HELLO option 'what'\r\n",
    );
}

#[test]
fn scan_visits_every_key_and_applies_its_filters() {
    let server = Running::new();
    let mut client = server.connect();
    for at in 0..100 {
        client.ask(&format!("SET key:{at} v"), "+OK\r\n");
    }
    client.ask(
        "SELECT 1;SET other v;SELECT 0;DBSIZE",
        "+OK\r\n+OK\r\n+OK\r\n:100\r\n",
    );
    client.send("SCAN 0 COUNT 1000 MATCH key:4?");
    client.expect("*2\r\n$1\r\n0\r\n*10\r\n");
    for _ in 0..10 {
        client.expect("$6\r\nkey:4");
        let mut rest = [0; 3];
        std::io::Read::read_exact(&mut client.stream, &mut rest).unwrap();
    }
    client.ask("SCAN 0 COUNT 1000 TYPE list", "*2\r\n$1\r\n0\r\n*0\r\n");
    client.ask("KEYS key:9[89]", "*2\r\n$6\r\nkey:98\r\n$6\r\nkey:99\r\n");
    client.ask("SCAN x", "-ERR invalid cursor\r\n");
    client.ask(
        "SCAN 0 COUNT 0;SCAN 0 MATCH",
        "-ERR syntax error\r\n-ERR syntax error\r\n",
    );
    client.ask(
        "FLUSHDB;DBSIZE;SELECT 1;DBSIZE",
        "+OK\r\n:0\r\n+OK\r\n:1\r\n",
    );
}

#[test]
fn config_get_and_set_read_and_change_the_configuration() {
    let server = Running::new();
    let mut client = server.connect();
    client.ask(
        "CONFIG SET timeout 60 maxclients 50;CONFIG GET timeout maxclients",
        "+OK\r\n*4\r\n$10\r\nmaxclients\r\n$2\r\n50\r\n$7\r\ntimeout\r\n$2\r\n60\r\n",
    );
    for (request, error) in [
        (
            "CONFIG SET timeout 1 nosuch 2",
            "Unknown option or number of arguments for CONFIG SET - 'nosuch'",
        ),
        (
            "CONFIG SET timeout 1 maxclients x",
            "CONFIG SET failed (possibly related to argument 'maxclients') - argument couldn't be parsed into an integer",
        ),
        (
            "CONFIG SET maxclients 0",
            "CONFIG SET failed (possibly related to argument 'maxclients') - argument must be between 1 and 4294967295 inclusive",
        ),
        (
            "CONFIG SET timeout 1 timeout 2",
            "CONFIG SET failed (possibly related to argument 'timeout') - duplicate parameter",
        ),
        (
            "CONFIG SET databases 1",
            "CONFIG SET failed (possibly related to argument 'databases') - can't set immutable config",
        ),
        (
            "CONFIG SET timeout",
            "wrong number of arguments for 'config|set' command",
        ),
        ("CONFIG WHAT", "unknown subcommand 'WHAT'. Try CONFIG HELP."),
    ] {
        client.ask(request, &format!("-ERR {error}\r\n"));
    }
    client.ask("CONFIG SET appendonly yes", "+OK\r\n");
    client.ask("CONFIG GET timeout", "*2\r\n$7\r\ntimeout\r\n$2\r\n60\r\n");
}

#[test]
fn info_and_client_list_report_the_current_state() {
    let server = Running::new();
    let (mut client, mut other) = (server.connect(), server.connect());
    client.ask(
        "SET a 1;GET a;GET b;CLIENT SETNAME me",
        "+OK\r\n$1\r\n1\r\n$-1\r\n+OK\r\n",
    );
    other.ask("CLIENT SETINFO lib-name tester;SELECT 2", "+OK\r\n+OK\r\n");
    let info = client.bulk("INFO");
    for line in [
        "redis_version:7.0.15",
        "redis_mode:standalone",
        "role:master",
        "connected_clients:2",
        "db0:keys=1,expires=0,avg_ttl=0",
        "medium:dram",
        "loading:0",
    ] {
        assert!(info.contains(&format!("{line}\r\n")), "{line} in {info}");
    }
    let keyspace = client.bulk("INFO keyspace");
    assert_eq!(keyspace, "# Keyspace\r\ndb0:keys=1,expires=0,avg_ttl=0\r\n");
    let list = client.bulk("CLIENT LIST");
    assert_eq!(list.lines().count(), 2);
    let lines: Vec<_> = list.lines().collect();
    assert!(
        lines[0].starts_with("id=1 ")
            && lines[0].contains(" name=me ")
            && lines[0].contains(" cmd=client|list "),
        "{list}"
    );
    assert!(
        lines[1].starts_with("id=2 ")
            && lines[1].contains(" db=2 ")
            && lines[1].contains(" lib-name=tester "),
        "{list}"
    );
    assert_eq!(client.bulk("CLIENT LIST ID 2").lines().count(), 1);
    client.ask("CLIENT KILL ID 2;CLIENT KILL ID 2", ":1\r\n:0\r\n");
    assert_eq!(other.drain(), "");
    client.ask(
        "CLIENT REPLY OFF;SET a 2;CLIENT REPLY ON;GET a",
        "+OK\r\n$1\r\n2\r\n",
    );
    client.ask("CLIENT REPLY SKIP;SET a 3;GET a", "$1\r\n3\r\n");
    client.send("CLIENT KILL SKIPME no ID 1;PING");
    assert_eq!(client.drain(), ":1\r\n");
}

#[test]
fn command_describes_the_commands() {
    let server = Running::new();
    let mut client = server.connect();
    client.ask("COMMAND INFO get", "*1\r\n*10\r\n$3\r\nget\r\n:2\r\n*2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n*3\r\n+@read\r\n+@string\r\n+@fast\r\n*0\r\n*1\r\n*6\r\n$5\r\nflags\r\n*2\r\n+RO\r\n+access\r\n$12\r\nbegin_search\r\n*4\r\n$4\r\ntype\r\n$5\r\nindex\r\n$4\r\nspec\r\n*2\r\n$5\r\nindex\r\n:1\r\n$9\r\nfind_keys\r\n*4\r\n$4\r\ntype\r\n$5\r\nrange\r\n$4\r\nspec\r\n*6\r\n$7\r\nlastkey\r\n:0\r\n$7\r\nkeystep\r\n:1\r\n$5\r\nlimit\r\n:0\r\n*0\r\n");
    client.ask(
        "COMMAND GETKEYS MSET a 1 b 2",
        "*2\r\n$1\r\na\r\n$1\r\nb\r\n",
    );
    client.ask(
        "COMMAND GETKEYS PING a",
        "-ERR The command has no key arguments\r\n",
    );
    client.ask(
        "COMMAND GETKEYS NOSUCH a",
        "-ERR Invalid command specified\r\n",
    );
    client.ask(
        "COMMAND LIST FILTERBY PATTERN mse*",
        "*2\r\n$4\r\nmset\r\n$6\r\nmsetnx\r\n",
    );
    client.send("COMMAND LIST;ECHO end");
    let names: Vec<_> = std::iter::from_fn(|| Some(client.line()))
        .take_while(|line| line != "end")
        .collect();
    for name in ["config", "config|get"] {
        assert!(names.iter().any(|own| own == name), "{name}");
    }
    client.send("COMMAND DOCS get");
    client.expect("*2\r\n$3\r\nget\r\n*6\r\n$7\r\nsummary\r\n");
}
