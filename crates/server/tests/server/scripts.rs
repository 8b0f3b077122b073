//! Scripts: isolation, atomicity, limits, and replies equal to those of redis-server 7.0.15.

use std::io::Read;
use std::time::Duration;

use crate::harness::{Client, Running, wait_until};

/// Sends `EVAL script 0`.
fn eval(client: &mut Client, script: &str) {
    client.send_words(&["EVAL", script, "0"]);
}

#[track_caller]
fn agree(client: &mut Client, script: &str, reply: &str) {
    eval(client, script);
    client.expect(&reply.replace('/', "\r\n"));
}

#[test]
fn settings_of_cjson_apply_until_the_script_ends() {
    let server = Running::new();
    let mut client = server.connect();
    for (script, reply) in [
        (
            "cjson.encode_max_depth(2) return cjson.encode({{{1}}})",
            "-ERR user_script:1: Cannot serialise, excessive nesting (3)",
        ),
        (
            "cjson.decode_max_depth(2) return cjson.decode('[[[1]]]')",
            "-ERR user_script:1: Found too many nested data structures (3) at character 3",
        ),
        (
            "cjson.decode_invalid_numbers(false) return cjson.decode('[01]')",
            "-ERR user_script:1: Expected value but found invalid number at character 2",
        ),
        (
            "cjson.decode_invalid_numbers(false) return cjson.decode('[nan]')",
            "-ERR user_script:1: Expected value but found invalid token at character 2",
        ),
        (
            "return cjson.encode_number_precision(15)",
            "-ERR user_script:1: bad argument #1 to 'encode_number_precision' (expected integer between 1 and 14)",
        ),
        (
            "return cjson.encode_sparse_array(1, 2, 3, 4)",
            "-ERR user_script:1: bad argument #4 to 'encode_sparse_array' (found too many arguments)",
        ),
        (
            "return cjson.encode_invalid_numbers('zap')",
            "-ERR user_script:1: bad argument #1 to 'encode_invalid_numbers' (invalid option 'zap')",
        ),
        (
            "return cjson.encode({[1000] = 1})",
            "-ERR user_script:1: Cannot serialise table: excessively sparse array",
        ),
        (
            "cjson.encode_max_depth(2^31 - 1) local t = {} for i = 1, 9000 do t = {t} end return cjson.encode(t)",
            "-ERR user_script:1: Cannot serialise, excessive nesting (2001)",
        ),
    ] {
        eval(&mut client, script);
        let line = client.line();
        assert!(line.starts_with(reply), "{script}: {line}");
    }
    for (script, reply) in [
        ("return {cjson.encode_sparse_array()}", "*3/$-1/:2/:10/"),
        (
            "cjson.encode_sparse_array(true) return cjson.encode({[1000] = 1})",
            "$10/{\"1000\":1}/",
        ),
        (
            "cjson.encode_number_precision(3) return cjson.encode({3.14159, 12345})",
            "$15/[3.14,1.23e+04]/",
        ),
        (
            "cjson.encode_invalid_numbers(true) return cjson.encode({0/0, 1/0, -1/0})",
            "$14/[nan,inf,-inf]/",
        ),
        (
            "return {cjson.encode_invalid_numbers('null'), cjson.encode({1/0})}",
            "*2/$4/null/$6/[null]/",
        ),
        (
            "local c = cjson.new() c.encode_max_depth(1) \
             return {c.encode_max_depth(), cjson.encode_max_depth(), cjson.decode_max_depth()}",
            "*3/:1/:1000/:1000/",
        ),
        (
            "cjson.encode_max_depth(4000) cjson.decode_max_depth(4000) \
             local t = string.rep('{\"a\":', 1999) .. '{}' .. string.rep('}', 1999) \
             return #cjson.encode(cjson.decode(t)) - #t",
            ":0/",
        ),
        ("return cjson.encode_number_precision()", ":14/"),
    ] {
        agree(&mut client, script, reply);
    }
}

#[test]
fn results_are_converted_as_in_redis() {
    let server = Running::new();
    let mut client = server.connect();
    for (script, reply) in [
        ("return {1,2,nil,4}", "*2/:1/:2/"),
        ("return 3.99", ":3/"),
        ("return false", "$-1/"),
        ("return {err='foo bar'}", "-foo bar/"),
        ("return redis.error_reply('bla')", "-ERR bla/"),
        ("return redis.status_reply('fine')", "+fine/"),
        ("return {double=1.5}", "$3/1.5/"),
        (
            "redis.setresp(3) return redis.call('get','none') == nil",
            ":1/",
        ),
        ("return redis.call('get','none') == false", ":1/"),
        (
            "return redis.pcall('get').err",
            "$58/ERR Wrong number of args calling Redis command from script/",
        ),
        ("return cjson.encode({1,{a='b'}})", "$13/[1,{\"a\":\"b\"}]/"),
        ("return cjson.decode('[1,[2]]')", "*2/:1/*1/:2/"),
        (
            "return {cmsgpack.unpack(cmsgpack.pack(1,'x',{2}))}",
            "*3/:1/$1/x/*1/:2/",
        ),
        (
            "return {struct.unpack('>HB', struct.pack('>HB', 258, 7))}",
            "*3/:258/:7/:4/",
        ),
        ("return bit.tohex(255)", "$8/000000ff/"),
        (
            "return {('key = v'):match('^(%w+)%s*=%s*(%w+)$')}",
            "*2/$3/key/$1/v/",
        ),
        ("return ('abc'):gsub('%w', '<%0>')", "$9/<a><b><c>/"),
    ] {
        agree(&mut client, script, reply);
    }
}

#[test]
fn errors_have_the_script_and_the_line() {
    let server = Running::new();
    let mut client = server.connect();
    for (script, error) in [
        (
            "return x",
            "ERR user_script:1: Script attempted to access nonexistent global variable 'x' script: 03c387736bb5cc009ff35151572cee04677aa374, on @user_script:1.",
        ),
        (
            "x=1",
            "ERR user_script:1: Attempt to modify a readonly table script: 7caf6056913504f0508c65faf2dc3f94ff65bcfd, on @user_script:1.",
        ),
        (
            "return redis.call()",
            "ERR Please specify at least one argument for this redis lib call script: 0a907e1429221a4d85516cab7fd219a82a9439d8, on @user_script:1.",
        ),
        (
            "return redis.call('multi')",
            "ERR This Redis command is not allowed from script script: 211a39902cf76b98677003ff6f4c16cf0d1d5d6b, on @user_script:1.",
        ),
        (
            "syntax err",
            "ERR Error compiling script (new function): user_script:1: '=' expected near 'err'",
        ),
        (
            "error({})",
            "ERR unknown error script: 8f7bb3b0e9d46e5a8f0ffa9c3f6d1e2f, on @user_script:1.",
        ),
        (
            "#!lua flags=bad\nreturn 1",
            "ERR Unexpected flag in script shebang: bad",
        ),
    ] {
        eval(&mut client, &script.replace('\'', "\""));
        let line = client.line();
        // SHA1s in the table are those of the scripts with double quotes.
        let known = line.split(" script: ").next();
        assert_eq!(
            known,
            format!("-{error}").split(" script: ").next(),
            "{script}"
        );
        if script == "return x" {
            assert_eq!(line, format!("-{error}"));
        }
    }
}

#[test]
fn no_script_changes_what_the_next_one_sees() {
    let server = Running::new();
    let mut client = server.connect();
    for attack in [
        "string.rep = nil",
        "redis.call = nil",
        "_G.redis = nil",
        "rawset(_G, 'redis', 1)",
        "rawset(string, 'rep', 1)",
        "setmetatable(_G, {})",
        "getmetatable('').__index = nil",
        "getmetatable('').__index.rep = nil",
        "KEYS = {}",
        "loadstring('redis = 1')()",
        "local f = loadstring('\\27Lua') f()",
        "cjson.null = 1",
    ] {
        eval(&mut client, attack);
        assert!(client.line().starts_with("-ERR"), "{attack}");
    }
    for name in [
        "os", "io", "debug", "package", "require", "dofile", "loadfile", "setfenv", "getfenv",
        "print", "newproxy", "module",
    ] {
        eval(&mut client, &format!("return {name}"));
        assert!(
            client.line().contains("nonexistent global variable"),
            "{name}"
        );
    }
    agree(
        &mut client,
        "return {string.rep('a', 2), redis.call('ping'), #KEYS}",
        "*3/$2/aa/+PONG/:0/",
    );
}

#[test]
fn a_script_that_fails_keeps_its_earlier_writes_as_in_redis() {
    let server = Running::new();
    let mut client = server.connect();
    eval(&mut client, "redis.call('set','k','1') error('boom')");
    assert!(client.line().starts_with("-ERR user_script:1: boom"));
    client.ask("GET k", "$1\r\n1\r\n");
}

#[test]
fn a_script_in_a_full_pool_changes_nothing() {
    let server = Running::new();
    let mut client = server.connect();
    client.ask("SET a 1", "+OK\r\n");
    server.store.fill(true);
    eval(
        &mut client,
        "redis.call('del','a') redis.call('set','b','1') return 1",
    );
    assert!(client.line().starts_with("-OOM"));
    client.ask("GET a", "$1\r\n1\r\n");
    agree(&mut client, "return redis.call('del','a')", ":1/");
}

#[test]
fn scripts_in_transactions_are_part_of_the_group() {
    let server = Running::new();
    let (mut one, mut two) = (server.connect(), server.connect());
    one.send("WATCH w;MULTI;SET m 1");
    one.expect("+OK\r\n+OK\r\n+QUEUED\r\n");
    eval(&mut one, "return redis.call('incr','m')");
    one.expect("+QUEUED\r\n");
    eval(
        &mut one,
        "redis.call('select','3') return redis.call('set','m','in3')",
    );
    one.expect("+QUEUED\r\n");
    two.ask("GET m", "$-1\r\n");
    one.ask(
        "GET m;EXEC",
        "+QUEUED\r\n*4\r\n+OK\r\n:2\r\n+OK\r\n$1\r\n2\r\n",
    );
    one.ask("WATCH w", "+OK\r\n");
    eval(&mut two, "return redis.call('incr','w')");
    two.expect(":1\r\n");
    one.send("MULTI");
    one.expect("+OK\r\n");
    eval(&mut one, "return redis.call('set','m','no')");
    one.expect("+QUEUED\r\n");
    one.ask("EXEC;GET m", "*-1\r\n$1\r\n2\r\n");
}

#[test]
fn loaded_scripts_run_by_their_sha1_until_script_flush() {
    let server = Running::new();
    let mut client = server.connect();
    client.send_words(&["SCRIPT", "LOAD", "return 7"]);
    client.expect("$40\r\n59b6ab2fbe0ee4b25733de0f62e6cda4899ef8e9\r\n");
    let run = "EVALSHA 59B6ab2fbe0ee4b25733de0f62e6cda4899ef8e9 0";
    let missing = "-NOSCRIPT No matching script. Please use EVAL.\r\n";
    client.ask(run, ":7\r\n");
    client.ask(
        "SCRIPT EXISTS 59b6ab2fbe0ee4b25733de0f62e6cda4899ef8e9 x",
        "*2\r\n:1\r\n:0\r\n",
    );
    client.ask("SCRIPT FLUSH", "+OK\r\n");
    client.ask(run, missing);
    eval(&mut client, "return 7");
    client.expect(":7\r\n");
    client.ask(run, ":7\r\n");
}

#[test]
fn read_only_scripts_do_not_write() {
    let server = Running::new();
    let mut client = server.connect();
    let refused = "-ERR Write commands are not allowed from read-only scripts.";
    for request in [
        ["EVAL_RO", "return redis.call('set','a','b')", "0"],
        ["EVAL_RO", "return redis.call('publish','a','b')", "0"],
        ["EVAL_RO", "return redis.call('pfcount','a')", "0"],
        [
            "EVAL",
            "#!lua flags=no-writes\nreturn redis.call('set','a','b')",
            "0",
        ],
    ] {
        client.send_words(&request);
        assert!(client.line().starts_with(refused));
    }
    client.ask("GET a", "$-1\r\n");
    client.send_words(&["EVAL_RO", "#!lua\nreturn 1", "0"]);
    client.expect("-ERR Can not execute a script with write flag using *_ro command.\r\n");
}

#[test]
fn script_kill_ends_a_script_that_has_not_written_and_no_other() {
    let server = Running::new();
    let (mut client, mut other) = (server.connect(), server.connect());
    for script in [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "local function f() while true do end end while true do pcall(coroutine.wrap(f)) end",
        "return string.find(string.rep('x', 5000), string.rep('x*', 25) .. 'y')",
    ] {
        eval(&mut client, script);
        let kill = |other: &mut Client| {
            other.send("SCRIPT KILL");
            other.line()
        };
        while kill(&mut other) != "+OK" {}
        client.expect("-ERR Error running script: Script killed by user with SCRIPT KILL.\r\n");
    }
    let writes = "redis.call('set','k','1') while true do end";
    eval(&mut client, writes);
    loop {
        other.send("SCRIPT KILL");
        let reply = other.line();
        if reply.starts_with("-UNKILLABLE") {
            break;
        }
        if reply == "+OK" {
            // The script had begun, and had not written yet.
            client.expect("-ERR Error running script: Script killed by user with SCRIPT KILL.\r\n");
            eval(&mut client, writes);
            continue;
        }
        assert!(reply.starts_with("-NOTBUSY"), "{reply}");
    }
}

#[test]
fn a_slow_script_delays_no_request_of_a_worker() {
    let server = Running::new();
    let (mut client, mut other) = (server.connect(), server.connect());
    other.ask("CONFIG SET busy-reply-threshold 1", "+OK\r\n");
    eval(&mut client, "while true do end");
    other.ask("SET a 1;GET a", "+OK\r\n$1\r\n1\r\n");
    // A request that needs the same thread is refused once the script is slow. Before, it waits for the script.
    let is_refused = || {
        let mut probe = server.connect();
        let timeout = Some(Duration::from_millis(20));
        probe.stream.set_read_timeout(timeout).unwrap();
        probe.send("KEYS *");
        let mut start = [0; 5];
        probe.stream.read_exact(&mut start).is_ok() && start == *b"-BUSY"
    };
    wait_until(is_refused);
    other.ask("SCRIPT EXISTS x", "*1\r\n:0\r\n");
    other.ask("SCRIPT KILL", "+OK\r\n");
    assert!(client.line().contains("SCRIPT KILL"));
}

#[test]
fn memory_and_recursion_are_limited() {
    let server = Running::new();
    let mut client = server.connect();
    for (script, error) in [
        (
            "local s = 'x' while true do s = s .. s end",
            "-ERR Error running script: not enough memory",
        ),
        (
            "local t = {} while true do t[#t + 1] = string.rep('x', 1e6) .. #t end",
            "-ERR Error running script: not enough memory",
        ),
        (
            "return string.rep('x', 1e9)",
            "-ERR user_script:1: resulting string too large",
        ),
        (
            "local function f() return 1 + f() end return f()",
            "-ERR user_script:1: stack overflow",
        ),
        (
            "local t = {} for i = 1, 9000 do t[i] = i end return {unpack(t)}",
            "-ERR user_script:1: too many results to unpack",
        ),
        (
            "return cjson.decode(string.rep('[', 100000))",
            "-ERR user_script:1: Found too many nested data structures (1001)",
        ),
        (
            "return ('a'):rep(300):find(('a?'):rep(1000))",
            "-ERR user_script:1: pattern too complex",
        ),
    ] {
        eval(&mut client, script);
        let line = client.line();
        assert!(line.starts_with(error), "{script}: {line}");
    }
    agree(
        &mut client,
        "local t = {} for i = 1, 20000 do t[i] = i end return #t",
        ":20000/",
    );
}

#[test]
fn commands_that_visit_all_keys_work_in_scripts() {
    let server = Running::new();
    let mut client = server.connect();
    client.ask("MSET a 1 b 2", "+OK\r\n");
    agree(
        &mut client,
        "return {redis.call('keys','*'), redis.call('dbsize'), redis.call('scan','0')[1]}",
        "*3/*2/$1/a/$1/b/:2/$1/0/",
    );
    agree(
        &mut client,
        "redis.call('get','a') redis.call('set','x','1') redis.call('flushall') redis.call('set','c','3') return redis.call('get','a')",
        "$-1/",
    );
    client.ask("KEYS *", "*1\r\n$1\r\nc\r\n");
}

#[test]
fn script_requests_are_refused_as_in_redis() {
    let server = Running::new();
    let mut client = server.connect();
    let missing = "-NOSCRIPT No matching script. Please use EVAL.\r\n";
    for (request, reply) in [
        (
            "EVAL return 0 a",
            "-ERR value is not an integer or out of range\r\n",
        ),
        ("EVAL x -1", "-ERR Number of keys can't be negative\r\n"),
        (
            "EVAL x 2 a",
            "-ERR Number of keys can't be greater than number of args\r\n",
        ),
        ("EVALSHA abc 0", missing),
        ("EVALSHA abc x", missing),
        (
            "SCRIPT FLUSH x",
            "-ERR SCRIPT FLUSH only support SYNC|ASYNC option\r\n",
        ),
        (
            "SCRIPT KILL",
            "-NOTBUSY No scripts in execution right now.\r\n",
        ),
        (
            "COMMAND GETKEYS EVAL s 2 a b c",
            "*2\r\n$1\r\na\r\n$1\r\nb\r\n",
        ),
        ("COMMAND GETKEYS EVAL s 0", "*0\r\n"),
    ] {
        client.ask(&request.replace("return 0 a", "return a"), reply);
    }
}
