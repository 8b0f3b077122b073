//! The limit `maxmemory`. The test store counts the bytes of values.

use crate::harness::{Client, Running, field};

const OOM: &str = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";
const SCRIPT_OOM: &str = "-OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'\r\n";

/// A server that holds 100 bytes, with a limit of 50.
fn over_the_limit() -> (Running, Client) {
    let server = Running::new();
    let mut client = server.connect();
    client.ask(&format!("SET k {}", "x".repeat(100)), "+OK\r\n");
    client.ask("CONFIG SET maxmemory 50", "+OK\r\n");
    (server, client)
}

#[test]
fn commands_that_may_add_bytes_are_refused_above_the_limit() {
    let (_server, mut client) = over_the_limit();
    client.ask("SET a 1;INCR a;APPEND k x", &OOM.repeat(3));
    client.ask("STRLEN k;EXPIRE k 100;EXISTS a", ":100\r\n:1\r\n:0\r\n");
    client.ask("DEL k", ":1\r\n");
    client.ask("SET a 1;GET a", "+OK\r\n$1\r\n1\r\n");
}

#[test]
fn a_store_that_uses_exactly_the_limit_accepts_writes() {
    let (_server, mut client) = over_the_limit();
    client.ask("CONFIG SET maxmemory 100;SET a 1", "+OK\r\n+OK\r\n");
    client.ask("SET b 1", OOM);
    client.ask("CONFIG SET maxmemory 0;SET b 1", "+OK\r\n+OK\r\n");
}

#[test]
fn a_pipeline_is_refused_from_the_write_that_crosses_the_limit() {
    let server = Running::new();
    let mut client = server.connect();
    client.ask("CONFIG SET maxmemory 10", "+OK\r\n");
    client.ask(
        "SET a 12345;SET b 123456;SET c 1",
        &format!("+OK\r\n+OK\r\n{OOM}"),
    );
}

#[test]
fn maxmemory_has_units_and_the_default_policy_is_noeviction() {
    let server = Running::new();
    let mut client = server.connect();
    client.ask(
        "CONFIG SET MaxMemory 2mb;CONFIG GET maxmemory",
        "+OK\r\n*2\r\n$9\r\nmaxmemory\r\n$7\r\n2097152\r\n",
    );
    assert_eq!(field(&mut client, "memory", "maxmemory"), "2097152");
    client.ask(
        "CONFIG GET maxmemory-policy;CONFIG SET maxmemory-policy AllKeys-LRU;CONFIG GET maxmemory-policy",
        "*2\r\n$16\r\nmaxmemory-policy\r\n$10\r\nnoeviction\r\n+OK\r\n\
         *2\r\n$16\r\nmaxmemory-policy\r\n$11\r\nallkeys-lru\r\n",
    );
    assert_eq!(
        field(&mut client, "memory", "maxmemory_policy"),
        "allkeys-lru"
    );
    client.ask(
        "CONFIG SET maxmemory 1 maxmemory-policy lru",
        "-ERR CONFIG SET failed (possibly related to argument 'maxmemory-policy') - argument(s) must be one of the \
         following: volatile-lru, volatile-lfu, volatile-random, volatile-ttl, allkeys-lru, allkeys-lfu, \
         allkeys-random, noeviction\r\n",
    );
    assert_eq!(field(&mut client, "memory", "maxmemory"), "2097152");
}

#[test]
fn a_transaction_is_refused_when_it_is_queued_or_executed_above_the_limit() {
    let (server, mut client) = over_the_limit();
    client.ask("MULTI;GET k;DISCARD", &format!("+OK\r\n{OOM}+OK\r\n"));
    client.ask(
        "MULTI;DEL k;EXEC",
        &format!("+OK\r\n{OOM}-EXECABORT Transaction discarded because of previous errors.\r\n"),
    );
    let mut other = server.connect();
    for (queued, replies) in [
        (
            "SET a 1",
            format!("-EXECABORT Transaction discarded because of: {}", &OOM[1..]),
        ),
        ("EXISTS a", "*1\r\n:0\r\n".to_owned()),
    ] {
        other.ask("CONFIG SET maxmemory 0", "+OK\r\n");
        client.send(&format!("MULTI;{queued}"));
        client.expect("+OK\r\n+QUEUED\r\n");
        other.ask("CONFIG SET maxmemory 50", "+OK\r\n");
        client.ask("EXEC", &replies);
    }
}

#[test]
fn a_script_above_the_limit_may_write_if_it_deletes_first_or_declares_it() {
    let (_server, mut client) = over_the_limit();
    let write = "return redis.call('set','a','1')";
    client.send_words(&["EVAL", write, "0"]);
    let reply = client.line();
    assert!(reply.starts_with(&OOM[..OOM.len() - 3]), "{reply}");
    for (flags, reply) in [("", SCRIPT_OOM), ("flags=allow-oom", "+OK\r\n")] {
        client.send_words(&["EVAL", &format!("#!lua {flags}\n{write}"), "0"]);
        client.expect(reply);
    }
    let read = "#!lua flags=no-writes\nreturn redis.call('strlen','k')";
    client.send_words(&["EVAL", read, "0"]);
    client.expect(":100\r\n");
    let delete = "redis.call('del','a') return redis.call('set','b','1')";
    client.send_words(&["EVAL", delete, "0"]);
    client.expect("+OK\r\n");
    client.ask("EXISTS a b", ":1\r\n");
}

#[test]
fn a_function_above_the_limit_runs_if_it_declares_it() {
    let (_server, mut client) = over_the_limit();
    let code = "#!lua name=l\nlocal f = function() return redis.call('set','a','1') end\n\
                redis.register_function('denied', f)\n\
                redis.register_function{function_name='allowed', callback=f, flags={'allow-oom'}}";
    client.send_words(&["FUNCTION", "LOAD", code]);
    client.expect(OOM);
    client.ask("CONFIG SET maxmemory 0", "+OK\r\n");
    client.send_words(&["FUNCTION", "LOAD", code]);
    client.expect("$1\r\nl\r\n");
    client.ask("CONFIG SET maxmemory 50", "+OK\r\n");
    client.ask(
        "FCALL denied 0;FCALL allowed 0",
        &format!("{SCRIPT_OOM}+OK\r\n"),
    );
}

#[test]
fn memcached_clients_cannot_add_bytes_above_the_limit() {
    let (server, mut redis) = over_the_limit();
    let mut client = server.connect_memcached();
    client.send_raw(b"set a 0 0 1\r\n1\r\nms a 1\r\n1\r\nincr a 1\r\nma a\r\n");
    client.expect(
        "SERVER_ERROR out of memory storing object\r\nSERVER_ERROR out of memory storing object\r\n\
         SERVER_ERROR out of memory\r\nSERVER_ERROR out of memory\r\n",
    );
    client.send_raw(b"incr a 1 noreply\r\nget a\r\ndelete k\r\n");
    client.expect("END\r\nDELETED\r\n");
    client.send_raw(b"set a 0 0 1\r\n1\r\n");
    client.expect("STORED\r\n");
    redis.ask("GET a", "$1\r\n1\r\n");
}
