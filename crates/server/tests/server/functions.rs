//! Libraries of functions. The replies are those of redis-server 7.0.15. `/` stands for the end of a line.

use std::io::Read;

use farbank_server::{ServerOptions, resp};

use crate::harness::{Client, Running, wait_until};

fn send(client: &mut Client, words: &[&str]) {
    let mut bytes = Vec::new();
    resp::request(&mut bytes, words);
    client.send_raw(&bytes);
}

#[track_caller]
fn agree(client: &mut Client, words: &[&str], replies: &str) {
    send(client, words);
    client.expect(&replies.replace('/', "\r\n"));
}

/// The code of the library `name`.
fn library(name: &str, body: &str) -> String {
    format!("#!lua name={name}\n{body}")
}

fn register(name: &str, body: &str) -> String {
    format!("redis.register_function('{name}', function(keys, args) {body} end) ")
}

#[track_caller]
fn load(client: &mut Client, name: &str, body: &str) {
    agree(
        client,
        &["FUNCTION", "LOAD", &library(name, body)],
        &format!("${}/{name}/", name.len()),
    );
}

#[test]
fn a_function_gets_keys_and_arguments() {
    let server = Running::new();
    let mut client = server.connect();
    let body = [
        register("echo", "return {keys, args}"),
        register("set", "return redis.call('set', keys[1], args[1])"),
        register("undeclared", "return redis.call('incr', 'other')"),
        register("globals", "return {type(KEYS), type(redis.register_function)}"),
        register("fail", "error('boo')"),
        register("unknown", "return redis.call('nope')"),
        register("global", "x = 1"),
        register("fcall", "return redis.call('fcall', 'echo', 0)"),
        "redis.register_function{function_name='ro', callback=function(keys) return redis.call('get', keys[1]) end, \
         flags={'no-writes'}} "
            .to_owned(),
        "redis.register_function{function_name='bad', callback=function(keys) return redis.call('del', keys[1]) end, \
         flags={'no-writes'}}"
            .to_owned(),
    ];
    load(&mut client, "l1", &body.concat());
    for (request, reply) in [
        ("FCALL echo 0", "*2/*0/*0/"),
        ("FCALL ECHO 1 a b", "*2/*1/$1/a/*1/$1/b/"),
        ("FCALL set 1 k v", "+OK/"),
        ("FCALL undeclared 0", ":1/"),
        ("FCALL_RO ro 1 k", "$1/v/"),
        ("FCALL ro 1 k", "$1/v/"),
        (
            "FCALL_RO set 1 k v",
            "-ERR Can not execute a script with write flag using *_ro command./",
        ),
        (
            "FCALL bad 1 k",
            "-ERR Write commands are not allowed from read-only scripts. script: bad, on @user_function:2./",
        ),
        ("FCALL none x", "-ERR Function not found/"),
        ("FCALL echo x", "-ERR Bad number of keys provided/"),
        ("FCALL echo -1", "-ERR Number of keys can't be negative/"),
        (
            "FCALL echo 2 a",
            "-ERR Number of keys can't be greater than number of args/",
        ),
        (
            "FCALL fail 0",
            "-ERR user_function:2: boo script: fail, on @user_function:2./",
        ),
        (
            "FCALL unknown 0",
            "-ERR Unknown Redis command called from script script: unknown, on @user_function:2./",
        ),
        (
            "FCALL global 0",
            "-ERR user_function:2: Attempt to modify a readonly table script: global, on @user_function:2./",
        ),
        (
            "FCALL fcall 0",
            "-ERR This Redis command is not allowed from script script: fcall, on @user_function:2./",
        ),
        (
            "FCALL globals 0",
            "-ERR user_function:2: Script attempted to access nonexistent global variable 'KEYS' script: globals, on @user_function:2./",
        ),
        (
            "MULTI;FCALL set 1 m x;FCALL undeclared 0;EXEC",
            "+OK/+QUEUED/+QUEUED/*2/+OK/:2/",
        ),
        (
            "FUNCTION DELETE l1;FCALL echo 0;FUNCTION DELETE l1",
            "+OK/-ERR Function not found/-ERR Library not found/",
        ),
    ] {
        client.ask(request, &reply.replace('/', "\r\n"));
    }
}

#[test]
fn libraries_that_redis_refuses_are_refused() {
    let server = Running::new();
    let mut client = server.connect();
    load(&mut client, "l1", &register("f1", ""));
    for (code, error) in [
        ("return 1", "Missing library metadata"),
        ("#!lua name=x", "Invalid library metadata"),
        ("#!lua name=\"x\nx", "Invalid library metadata"),
        ("#!lua name=x\nreturn 1", "No functions registered"),
        ("#!lua\nx", "Library name was not given"),
        ("#!foo name=x\nx", "Engine 'foo' not found"),
        ("#!lua name=a-b\nx", NAME),
        (
            "#!lua name=x name=y\nx",
            "Invalid metadata value, name argument was given multiple times",
        ),
        ("#!lua nme=x\nx", "Invalid metadata value given: nme=x"),
        ("#! lua name=x\nx", "Invalid metadata value given: lua"),
        ("#!lua name=l1\nx", "Library 'l1' already exists"),
        (
            "#!lua name=x\nredis.register_function('f1', function() end)",
            "Function f1 already exists",
        ),
        (
            "#!lua name=x\nredis.register_function('F1', function() end)",
            "Function F1 already exists",
        ),
        (
            "#!lua name=x\nredis.register_function('a', function() end",
            "Error compiling function: user_function:2: ')' expected near '<eof>'",
        ),
    ] {
        agree(
            &mut client,
            &["FUNCTION", "LOAD", code],
            &format!("-ERR {error}/"),
        );
    }
    for (body, error) in [
        (
            "redis.register_function()",
            "ERR wrong number of arguments to redis.register_function",
        ),
        (
            "redis.register_function('a')",
            "ERR calling redis.register_function with a single argument is only applicable to Lua table (representing named arguments).",
        ),
        (
            "redis.register_function('a', 1)",
            "ERR second argument to redis.register_function must be a function",
        ),
        (
            "redis.register_function({}, tostring)",
            "ERR user_function:2: Script attempted to access nonexistent global variable 'tostring'",
        ),
        (
            "redis.register_function({}, function() end)",
            "ERR first argument to redis.register_function must be a string",
        ),
        (
            "redis.register_function('a-', function() end)",
            "ERR Library names can only contain letters, numbers, or underscores(_) and must be at least one character long",
        ),
        (
            "redis.register_function{}",
            "ERR redis.register_function must get a function name argument",
        ),
        (
            "redis.register_function{function_name='a'}",
            "ERR redis.register_function must get a callback argument",
        ),
        (
            "redis.register_function{callback=1}",
            "ERR callback argument given to redis.register_function must be a function",
        ),
        (
            "redis.register_function{x=1}",
            "ERR unknown argument given to redis.register_function",
        ),
        (
            "redis.register_function{1}",
            "ERR unknown argument given to redis.register_function",
        ),
        (
            "redis.register_function{[true]=1}",
            "ERR named argument key given to redis.register_function is not a string",
        ),
        (
            "redis.register_function{flags=1}",
            "ERR flags argument to redis.register_function must be a table representing function flags",
        ),
        (
            "redis.register_function{flags={'x'}}",
            "ERR unknown flag given",
        ),
        (
            "redis.register_function{description={}}",
            "ERR description argument given to redis.register_function must be a string",
        ),
        (
            "redis.register_function{function_name={}}",
            "ERR function_name argument given to redis.register_function must be a string",
        ),
        (
            "local r = redis.register_function r('a', function() end) r('a', function() end)",
            "ERR Function already exists in the library",
        ),
        (
            "redis.call('ping')",
            "ERR user_function:2: Script attempted to access nonexistent global variable 'call'",
        ),
        (
            "error('boo')",
            "ERR user_function:2: Script attempted to access nonexistent global variable 'error'",
        ),
        (
            "a = 1",
            "ERR user_function:2: Attempt to modify a readonly table",
        ),
        (
            "redis.x = 1",
            "ERR user_function:2: Attempt to modify a readonly table",
        ),
        (
            "return KEYS",
            "ERR user_function:2: Script attempted to access nonexistent global variable 'KEYS'",
        ),
        (
            "local f f = function() return f() + 1 end f()",
            "ERR user_function:2: stack overflow",
        ),
        ("while true do end", "ERR FUNCTION LOAD timeout"),
    ] {
        let error = format!("-ERR Error registering functions: {error}/");
        agree(
            &mut client,
            &["FUNCTION", "LOAD", &library("x", body)],
            &error,
        );
    }
    // What a library has registered before it failed is not kept.
    client.ask("FCALL a 0;FCALL f1 0", "-ERR Function not found\r\n$-1\r\n");
}

const NAME: &str = "Library names can only contain letters, numbers, or underscores(_) and must be at least one character long";

#[test]
fn register_function_works_only_while_a_library_is_loaded() {
    let server = Running::new();
    let mut client = server.connect();
    let body = "local r = redis.register_function r('a', function() r('b', function() end) end)";
    load(&mut client, "l1", body);
    client.ask(
        "FCALL a 0;FCALL b 0",
        "-ERR redis.register_function can only be called on FUNCTION LOAD command script: a, on @user_function:2.\r\n\
         -ERR Function not found\r\n",
    );
}

#[test]
fn a_library_is_replaced_or_kept_as_a_whole() {
    let server = Running::new();
    let mut client = server.connect();
    load(&mut client, "l1", &register("a", "return 1"));
    load(&mut client, "l2", &register("b", "return 2"));
    let replace = |body: &str| library("l1", body);
    for (code, reply) in [
        (
            replace(&register("b", "return 3")),
            "-ERR Function b already exists/",
        ),
        (
            replace("x"),
            "-ERR Error compiling function: user_function:2: '=' expected near '<eof>'/",
        ),
    ] {
        agree(&mut client, &["FUNCTION", "LOAD", "REPLACE", &code], reply);
        client.ask("FCALL a 0", ":1\r\n");
    }
    let code = replace(&register("c", "return 4"));
    agree(
        &mut client,
        &["FUNCTION", "LOAD", "replace", "REPLACE", &code],
        "$2/l1/",
    );
    client.ask(
        "FCALL a 0;FCALL c 0;FCALL b 0",
        "-ERR Function not found\r\n:4\r\n:2\r\n",
    );
    client.ask("FLUSHALL;FCALL c 0;DBSIZE", "+OK\r\n:4\r\n:0\r\n");
    client.ask(
        "FUNCTION FLUSH;FCALL c 0",
        "+OK\r\n-ERR Function not found\r\n",
    );
}

#[test]
fn libraries_are_described_as_in_redis() {
    let server = Running::new();
    let mut client = server.connect();
    let body = "redis.register_function{FUNCTION_NAME='f', callback=function() end, description='d', flags={'no-writes', 'ALLOW-OOM'}}";
    load(&mut client, "lib", body);
    let code = library("lib", body);
    let described = "*LEN/$12/library_name/$3/lib/$6/engine/$3/LUA/$9/functions/*1/*6/$4/name/$1/f/$11/description/$1/d/$5/flags/*2/+no-writes/+allow-oom/";
    let plain = format!("*1/{}", described.replace("LEN", "6"));
    let whole = format!(
        "*1/{}$12/library_code/${}/{code}/",
        described.replace("LEN", "8"),
        code.len()
    );
    for (request, reply) in [
        ("FUNCTION LIST", &plain[..]),
        ("FUNCTION LIST LIBRARYNAME L*", &plain),
        ("FUNCTION LIST libraryname x*", "*0/"),
        ("FUNCTION LIST WITHCODE libraryname lib", &whole),
        (
            "FUNCTION LIST LIBRARYNAME",
            "-ERR library name argument was not given/",
        ),
        (
            "FUNCTION LIST WITHCODE WITHCODE",
            "-ERR Unknown argument WITHCODE/",
        ),
        (
            "FUNCTION STATS",
            "*4/$14/running_script/$-1/$7/engines/*2/$3/LUA/*4/$15/libraries_count/:1/$15/functions_count/:1/",
        ),
        (
            "FUNCTION KILL",
            "-NOTBUSY No scripts in execution right now./",
        ),
        (
            "FUNCTION FLUSH x",
            "-ERR FUNCTION FLUSH only supports SYNC|ASYNC option/",
        ),
        (
            "FUNCTION FLUSH a b",
            "-ERR unknown subcommand or wrong number of arguments for 'FLUSH'. Try FUNCTION HELP./",
        ),
        ("FUNCTION LOAD x y", "-ERR Unknown option given: x/"),
        (
            "FUNCTION RESTORE x y",
            "-ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE./",
        ),
        (
            "FUNCTION RESTORE x",
            "-ERR DUMP payload version or checksum are wrong/",
        ),
    ] {
        client.ask(request, &reply.replace('/', "\r\n"));
    }
}

#[test]
fn dumped_libraries_are_restored() {
    let server = Running::new();
    let mut client = server.connect();
    load(&mut client, "l1", &register("a", "return 1"));
    load(&mut client, "l2", &register("b", "return 2"));
    client.send("FUNCTION DUMP");
    let len: usize = client.line()[1..].parse().unwrap();
    let mut payload = vec![0; len + 2];
    client.stream.read_exact(&mut payload).unwrap();
    payload.truncate(len);
    let mut restore = |policy: &str, reply: &str, after: &str, replies: &str| {
        let mut bytes = Vec::new();
        let mut words: Vec<&[u8]> = vec![b"FUNCTION", b"RESTORE", &payload];
        words.extend(Some(policy.as_bytes()).filter(|policy| !policy.is_empty()));
        resp::request(&mut bytes, &words);
        client.send_raw(&bytes);
        client.expect(&format!("{reply}\r\n"));
        client.ask(after, &replies.replace('/', "\r\n"));
    };
    restore(
        "",
        "-ERR Library l1 already exists",
        "FUNCTION DELETE l1",
        "+OK/",
    );
    restore(
        "append",
        "-ERR Library l2 already exists",
        "FCALL a 0;FUNCTION FLUSH",
        "-ERR Function not found/+OK/",
    );
    restore("", "+OK", "FCALL a 0;FCALL b 0", ":1/:2/");
    restore("REPLACE", "+OK", "FCALL a 0;FCALL b 0", ":1/:2/");
    restore("flush", "+OK", "FCALL a 0;FCALL b 0", ":1/:2/");
}

#[test]
fn a_running_function_is_described_and_killed() {
    let server = Running::new();
    let (mut client, mut other) = (server.connect(), server.connect());
    load(&mut client, "l1", &register("spin", "while true do end"));
    client.send("FCALL spin 1 k a");
    wait_until(|| {
        other.send("FUNCTION STATS");
        let lines: Vec<_> = (0..4).map(|_| other.line()).collect();
        let is_running = lines[3] != "$-1";
        for _ in 0..if is_running { 32 } else { 12 } {
            other.line();
        }
        is_running
    });
    other.ask(
        "SCRIPT KILL;FUNCTION KILL",
        "-BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.\r\n+OK\r\n",
    );
    assert!(client.line().contains("killed by user"));
}

#[test]
fn libraries_are_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let options = || ServerOptions {
        workers: 2,
        functions_file: Some(folder.path().join("functions")),
        ..ServerOptions::default()
    };
    let server = Running::with(options());
    let mut client = server.connect();
    load(&mut client, "l1", &register("a", "return 1"));
    load(&mut client, "l2", &register("b", "return 2"));
    client.ask("FUNCTION DELETE l2;FLUSHALL", "+OK\r\n+OK\r\n");
    drop(server);
    let server = Running::with(options());
    server
        .connect()
        .ask("FCALL a 0;FCALL b 0", ":1\r\n-ERR Function not found\r\n");
}
