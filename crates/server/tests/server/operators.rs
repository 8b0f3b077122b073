//! Commands and figures for operators.

use crate::harness::{Client, Running, field};

/// A number of a line of `INFO commandstats`.
#[track_caller]
fn command_figure(client: &mut Client, command: &str, figure: &str) -> u64 {
    let line = field(client, "commandstats", &format!("cmdstat_{command}"));
    let value = line
        .split(',')
        .find_map(|part| part.strip_prefix(figure)?.strip_prefix('='));
    value.unwrap().parse().unwrap()
}

#[test]
fn commandstats_count_calls_rejected_and_failed_calls() {
    let server = Running::new();
    let mut client = server.connect();
    client.ask(
        "SET k text;GET k;GET k",
        "+OK\r\n$4\r\ntext\r\n$4\r\ntext\r\n",
    );
    client.ask(
        "GET",
        "-ERR wrong number of arguments for 'get' command\r\n",
    );
    client.ask("INCR k", "-ERR value is not an integer or out of range\r\n");
    client.ask("CONFIG GET port-none", "*0\r\n");
    let mut figure = |command: &str, figure: &str| command_figure(&mut client, command, figure);
    assert_eq!(
        (figure("get", "calls"), figure("get", "rejected_calls")),
        (2, 1)
    );
    assert_eq!(
        (figure("incr", "calls"), figure("incr", "failed_calls")),
        (1, 1)
    );
    assert_eq!(
        (figure("set", "calls"), figure("set", "failed_calls")),
        (1, 0)
    );
    assert_eq!(figure("config|get", "calls"), 1);
    assert_eq!(field(&mut client, "errorstats", "errorstat_ERR"), "count=2");
    let latency = field(&mut client, "latencystats", "latency_percentiles_usec_get");
    assert!(
        latency.starts_with("p50=") && latency.contains(",p99.9="),
        "{latency}"
    );
}

#[test]
fn commands_of_transactions_and_scripts_are_counted() {
    let server = Running::new();
    let mut client = server.connect();
    client.ask(
        "MULTI;SET k 1;GET k;EXEC",
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n$1\r\n1\r\n",
    );
    let script = "for i=1,3 do redis.call('incr','k') end return redis.x()";
    client.send_words(&["EVAL", script, "0"]);
    assert!(client.line().starts_with("-ERR"));
    let mut figure = |command: &str| command_figure(&mut client, command, "calls");
    assert_eq!(
        [
            figure("set"),
            figure("get"),
            figure("exec"),
            figure("multi")
        ],
        [1; 4]
    );
    assert_eq!((figure("incr"), figure("eval")), (3, 1));
    assert_eq!(command_figure(&mut client, "eval", "failed_calls"), 1);
    client.ask("EVAL return{err='MY_CODE'} 0", "-MY_CODE\r\n");
    assert_eq!(
        field(&mut client, "errorstats", "errorstat_MY_CODE"),
        "count=1"
    );
}

#[test]
fn resetstat_restarts_all_counts() {
    let server = Running::new();
    let mut client = server.connect();
    client.ask(
        "GET k;GET",
        "$-1\r\n-ERR wrong number of arguments for 'get' command\r\n",
    );
    client.ask("CONFIG RESETSTAT;GET k", "+OK\r\n$-1\r\n");
    assert_eq!(command_figure(&mut client, "get", "calls"), 1);
    assert_eq!(command_figure(&mut client, "get", "rejected_calls"), 0);
    assert_eq!(command_figure(&mut client, "config|resetstat", "calls"), 1);
    assert_eq!(client.bulk("INFO errorstats"), "# Errorstats\r\n");
}

#[test]
fn info_has_the_sections_that_redis_has() {
    let server = Running::new();
    let mut client = server.connect();
    let mut has = |sections: &str, section: &str| {
        let text = client.bulk(&format!("INFO {sections}"));
        text.contains(&format!("# {section}\r\n"))
    };
    assert!(!has("", "Commandstats") && has("", "Errorstats") && has("", "Modules"));
    assert!(!has("default", "Latencystats") && has("all", "Latencystats"));
    assert!(!has("all", "Modules") && has("everything", "Modules"));
    assert!(has("cpu commandstats", "Commandstats") && !has("cpu commandstats", "Memory"));
}

#[test]
fn memory_figures_agree_with_each_other() {
    let server = Running::new();
    let mut client = server.connect();
    let mut number = |name: &str| field(&mut client, "memory", name).parse::<u64>().unwrap();
    let used = number("used_memory");
    assert!(used > 0 && number("used_memory_rss") >= used);
    assert!(number("used_memory_peak") >= used);
    assert!(number("used_memory_startup") > 0);
    assert!(number("total_system_memory") > used);
    assert!(number("mem_clients_normal") > 0);
}

/// Sends a request of words, and reads one line of the reply.
fn ask_words(client: &mut Client, request: &[&str]) -> String {
    client.send_words(request);
    client.line()
}

#[test]
fn the_slow_log_has_the_arguments_shortened_and_passwords_hidden() {
    let server = Running::new();
    let mut client = server.connect();
    client.ask(
        "CONFIG SET slowlog-log-slower-than 0;SLOWLOG RESET",
        "+OK\r\n+OK\r\n",
    );
    let long = "x".repeat(130);
    client.ask(&format!("SET k {long};CLIENT SETNAME me"), "+OK\r\n+OK\r\n");
    let keys = (1..40).map(|key| format!(" {key}")).collect::<String>();
    client.ask(&format!("DEL{keys}"), ":0\r\n");
    client.send("AUTH default secret");
    assert_eq!(client.line(), "+OK");
    client.ask(
        "CONFIG SET slowlog-log-slower-than -1;GET k2",
        "+OK\r\n$-1\r\n",
    );
    client.send("SLOWLOG GET -1;PING");
    let mut log = String::new();
    while !log.ends_with("+PONG\n") {
        log += &(client.line() + "\n");
    }
    let shown = format!(
        "*3\n$3\nSET\n$1\nk\n$146\n{}... (2 more bytes)\n",
        "x".repeat(128)
    );
    assert!(log.contains(&shown), "{log}");
    assert!(
        log.contains("*32\n$3\nDEL\n") && log.contains("\n... (9 more arguments)\n"),
        "{log}"
    );
    assert!(
        log.contains("$4\nAUTH\n$10\n(redacted)\n$10\n(redacted)\n"),
        "{log}"
    );
    assert!(log.contains("$2\nme\n") && !log.contains("secret") && !log.contains("$2\nk2\n"));
    client.ask(
        "SLOWLOG GET -2",
        "-ERR count should be greater than or equal to -1\r\n",
    );
    client.ask(
        "SLOWLOG RESET;SLOWLOG LEN;SLOWLOG GET",
        "+OK\r\n:0\r\n*0\r\n",
    );
}

#[test]
fn the_slow_log_keeps_the_latest_requests_of_transactions_too() {
    let server = Running::new();
    let mut client = server.connect();
    client.ask(
        "CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 4",
        "+OK\r\n",
    );
    client.ask(
        "MULTI;SET a 1;GET a;EXEC;PING;PING;SLOWLOG LEN",
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n$1\r\n1\r\n+PONG\r\n+PONG\r\n:4\r\n",
    );
    client.ask(
        "CONFIG GET slowlog-max-len",
        "*2\r\n$15\r\nslowlog-max-len\r\n$1\r\n4\r\n",
    );
    let refused = "-ERR CONFIG SET failed (possibly related to argument 'slowlog-log-slower-than') - argument must be \
                   between -1 and 9223372036854775807 inclusive\r\n";
    client.ask("CONFIG SET slowlog-log-slower-than -2", refused);
}

#[test]
fn a_latency_peak_is_recorded_from_the_threshold_on() {
    let server = Running::new();
    let mut client = server.connect();
    client.ask("LATENCY LATEST;LATENCY RESET", "*0\r\n:0\r\n");
    client.ask("CONFIG SET latency-monitor-threshold 200", "+OK\r\n");
    let spin = "local t = redis.call('time') local from = t[1] * 1000000 + t[2] repeat t = redis.call('time') until \
                t[1] * 1000000 + t[2] > from + 250000 return 1";
    assert_eq!(ask_words(&mut client, &["EVAL", spin, "0"]), ":1");
    // No request of the test reaches this threshold, however slow the machine is.
    client.ask("CONFIG SET latency-monitor-threshold 600000", "+OK\r\n");
    client.send("LATENCY LATEST");
    let peak: Vec<_> = (0..7).map(|_| client.line()).collect();
    assert_eq!(peak[..4], ["*1", "*4", "$7", "command"]);
    client.ask("LATENCY HISTORY nope", "*0\r\n");
    client.send("LATENCY HISTORY command");
    assert_eq!([client.line(), client.line()], ["*1", "*2"]);
    let ms: Vec<_> = (0..2).map(|_| client.line()).collect();
    assert!(ms[1][1..].parse::<u64>().unwrap() >= 200, "{ms:?}");
    client.ask("LATENCY RESET nope;LATENCY RESET command", ":0\r\n:1\r\n");
    client.ask(
        "LATENCY GRAPH command",
        "-ERR No samples available for event 'command'\r\n",
    );
    assert!(
        client
            .bulk("LATENCY DOCTOR")
            .contains("No request has taken 600000 ms")
    );
    client.ask("GET a;GET b", "$-1\r\n$-1\r\n");
    client.send("LATENCY HISTOGRAM get nope");
    let histogram: Vec<_> = (0..6).map(|_| client.line()).collect();
    assert_eq!(histogram, ["*2", "$3", "get", "*4", "$5", "calls"]);
    assert_eq!(client.line(), ":2");
}

#[test]
fn a_paused_client_waits_without_delaying_others() {
    let server = Running::new();
    let (mut paused, mut other) = (server.connect(), server.connect());
    other.ask("CLIENT PAUSE 600000 WRITE", "+OK\r\n");
    paused.send("SET k 1;GET k");
    other.ask(
        "GET k;SET",
        "$-1\r\n-ERR wrong number of arguments for 'set' command\r\n",
    );
    assert!(other.bulk("CLIENT LIST").contains(" flags=b "));
    other.ask("MULTI;GET k;EXEC", "+OK\r\n+QUEUED\r\n*1\r\n$-1\r\n");
    other.ask("CLIENT UNPAUSE", "+OK\r\n");
    paused.expect("+OK\r\n$1\r\n1\r\n");
    other.ask("GET k", "$1\r\n1\r\n");
}

#[test]
fn a_pause_of_writes_holds_no_script_that_declares_that_it_does_not_write() {
    let server = Running::new();
    let (mut client, mut paused) = (server.connect(), server.connect());
    client.ask("SCRIPT FLUSH;CLIENT PAUSE 600000 WRITE", "+OK\r\n+OK\r\n");
    client.send_words(&["EVAL", "#!lua flags=no-writes\nreturn 7", "0"]);
    client.expect(":7\r\n");
    client.send("MULTI");
    client.send_words(&["EVAL", "#!lua flags=no-writes\nreturn 7", "0"]);
    client.expect("+OK\r\n+QUEUED\r\n");
    client.ask("EXEC", "*1\r\n:7\r\n");
    paused.send_words(&["EVAL", "return 8", "0"]);
    crate::harness::wait_until(|| field(&mut client, "clients", "blocked_clients") == "1");
    client.ask("CLIENT UNPAUSE", "+OK\r\n");
    paused.expect(":8\r\n");
}

#[test]
fn a_pause_of_all_requests_ends_by_itself_and_holds_memcached_clients_too() {
    let server = Running::new();
    let (mut client, mut memcached) = (server.connect(), server.connect_memcached());
    memcached.send_raw(b"version\r\n");
    memcached.line();
    let began = std::time::Instant::now();
    client.ask("CLIENT PAUSE 1;CLIENT PAUSE 50 ALL", "+OK\r\n+OK\r\n");
    memcached.send_raw(b"get k\r\n");
    memcached.expect("END\r\n");
    client.ask("PING", "+PONG\r\n");
    assert!(began.elapsed() >= std::time::Duration::from_millis(50));
}

#[test]
fn wrong_pauses_are_refused() {
    let server = Running::new();
    let mut client = server.connect();
    for (request, reply) in [
        (
            "CLIENT PAUSE abc",
            "ERR timeout is not an integer or out of range",
        ),
        ("CLIENT PAUSE -1", "ERR timeout is negative"),
        (
            "CLIENT PAUSE 9223372036854775807",
            "ERR timeout is out of range",
        ),
        (
            "CLIENT PAUSE 1 NOPE",
            "ERR CLIENT PAUSE mode must be WRITE or ALL",
        ),
        (
            "CLIENT PAUSE 1 ALL x",
            "ERR unknown subcommand or wrong number of arguments for 'PAUSE'. Try CLIENT HELP.",
        ),
        (
            "CLIENT UNBLOCK x",
            "ERR value is not an integer or out of range",
        ),
        (
            "CLIENT UNBLOCK 1 NOPE",
            "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR",
        ),
    ] {
        client.ask(request, &format!("-{reply}\r\n"));
    }
    client.ask(
        "CLIENT UNBLOCK 1 ERROR;CLIENT TRACKING off",
        ":0\r\n+OK\r\n",
    );
    client.ask(
        "CLIENT TRACKINGINFO",
        "*6\r\n$5\r\nflags\r\n*1\r\n$3\r\noff\r\n$8\r\nredirect\r\n:-1\r\n$8\r\nprefixes\r\n*0\r\n",
    );
}

#[test]
fn a_paused_client_that_disconnects_or_is_killed_is_forgotten() {
    let server = Running::new();
    let (mut paused, mut other) = (server.connect(), server.connect());
    paused.send("CLIENT ID");
    let id = paused.line().replace(':', "");
    other.ask("CLIENT PAUSE 600000 WRITE", "+OK\r\n");
    paused.send("SET k 1");
    crate::harness::wait_until(|| other.bulk("CLIENT LIST").contains(" flags=b "));
    other.ask(&format!("CLIENT KILL ID {id}"), ":1\r\n");
    assert_eq!(paused.drain(), "");
    let mut gone = server.connect();
    gone.send("SET k 2");
    drop(gone);
    other.ask(
        "CLIENT UNPAUSE;CLIENT PAUSE 1;GET k2",
        "+OK\r\n+OK\r\n$-1\r\n",
    );
}

#[test]
fn commands_about_persistence_reply_as_those_of_redis() {
    let server = Running::new();
    let mut client = server.connect();
    client.ask(
        "BGREWRITEAOF",
        "+Background append only file rewriting started\r\n",
    );
    client.ask("ROLE", "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n");
    client.ask("LOLWUT", "$18\r\nRedis ver. 7.0.15\n\r\n");
    client.ask(
        "MULTI;SAVE;DISCARD",
        "+OK\r\n-ERR Command not allowed inside a transaction\r\n+OK\r\n",
    );
}

#[test]
fn wait_replies_when_the_clients_writes_are_durable() {
    let server = Running::new();
    let (mut client, mut other) = (server.connect(), server.connect());
    server.store.hold();
    client.send("SET k 1;WAIT 1 0");
    server.await_held(1);
    other.ask("GET k", "$-1\r\n");
    server.store.let_go();
    client.expect("+OK\r\n:0\r\n");
    client.ask(
        "WAIT x 0",
        "-ERR value is not an integer or out of range\r\n",
    );
    client.ask("WAIT 0 -1", "-ERR timeout is negative\r\n");
}

#[test]
fn memory_commands_reply_what_clients_expect() {
    let server = Running::new();
    let mut client = server.connect();
    client.ask("SET k 0123456789;MEMORY USAGE nope", "+OK\r\n$-1\r\n");
    client.ask("MEMORY USAGE k;MEMORY USAGE k SAMPLES 0", ":75\r\n:75\r\n");
    client.ask("MEMORY USAGE k SAMPLES -1", "-ERR syntax error\r\n");
    client.ask(
        "MEMORY USAGE k SAMPLES x",
        "-ERR value is not an integer or out of range\r\n",
    );
    client.ask("MEMORY PURGE", "+OK\r\n");
    assert!(client.bulk("MEMORY DOCTOR").contains("memory"));
    client.ask(
        "MEMORY MALLOC-STATS",
        "$45\r\nStats not supported for the current allocator\r\n",
    );
    client.send("MEMORY STATS");
    assert_eq!(
        [client.line(), client.line(), client.line()],
        ["*38", "$14", "peak.allocated"]
    );
}

#[test]
fn parameters_without_effect_are_checked_and_kept() {
    let server = Running::new();
    let mut client = server.connect();
    client.ask("CONFIG GET hz", "*2\r\n$2\r\nhz\r\n$2\r\n10\r\n");
    client.ask(
        "CONFIG SET hz 20 activerehashing NO stream-node-max-bytes 4kb loglevel DEBUG",
        "+OK\r\n",
    );
    for (name, value) in [
        ("hz", "20"),
        ("activerehashing", "no"),
        ("stream-node-max-bytes", "4096"),
        ("loglevel", "debug"),
    ] {
        let (name_bytes, value_bytes) = (name.len(), value.len());
        let reply = format!("*2\r\n${name_bytes}\r\n{name}\r\n${value_bytes}\r\n{value}\r\n");
        client.ask(&format!("CONFIG GET {name}"), &reply);
    }
    for (setting, why) in [
        ("hz x", "argument couldn't be parsed into an integer"),
        (
            "hz -1",
            "argument must be between 0 and 2147483647 inclusive",
        ),
        ("activerehashing maybe", "argument must be 'yes' or 'no'"),
        (
            "loglevel loud",
            "argument(s) must be one of the following: debug, verbose, notice, warning",
        ),
        (
            "appendonly no",
            "every acknowledged write is durable; BGSAVE writes backups, and there is no append-only file",
        ),
        ("replicaof other", "this server has no replicas"),
    ] {
        let name = setting.split(' ').next().unwrap();
        let text = "ERR CONFIG SET failed (possibly related to argument";
        client.ask(
            &format!("CONFIG SET {setting}"),
            &format!("-{text} '{name}') - {why}\r\n"),
        );
    }
    client.ask("CONFIG SET appendonly yes save ''", "+OK\r\n");
}
