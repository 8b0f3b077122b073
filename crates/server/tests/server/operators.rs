//! Commands and figures for operators.

use crate::harness::{Client, Running};

/// The value of a field of INFO's section `section`.
#[track_caller]
fn field(client: &mut Client, section: &str, name: &str) -> String {
    let text = client.bulk(&format!("INFO {section}"));
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {text}"))
        .to_owned()
}

/// Encodes a request of words that may contain blanks.
fn words(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

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
    client.send_raw(&words(&["EVAL", script, "0"]));
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
