//! Scripts on a real pool: isolated and atomic for keys that they do not declare, with several workers and across kills.
//! Libraries of functions across kills.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use farbank_server::resp::request;
use rustix::process::Signal;
use support::ServerProcess;

/// Accounts, and the balance of each at the start.
const ACCOUNTS: usize = 6;
const BALANCE: usize = 1000;

/// Moves money between two accounts, whose names it constructs, and counts the transfers of a client.
const TRANSFER: &str = "local from, to = 'account' .. ARGV[1], 'account' .. ARGV[2] \
     redis.call('decrby', from, ARGV[3]) redis.call('incrby', to, ARGV[3]) \
     return redis.call('incr', 'count' .. ARGV[4])";

/// Returns the sum of all accounts.
const SUM: &str = "local sum = 0 for at = 0, ARGV[1] - 1 do sum = sum + redis.call('get', 'account' .. at) end \
     return sum";

fn start(pool: &Path) -> ServerProcess {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farbank"));
    command
        .args(["serve", "--port", "0", "--memcached-port", "off"])
        .args(["--workers", "3", "--size", "32mb", "--pool"])
        .arg(pool)
        .stderr(Stdio::null());
    ServerProcess::start(&mut command)
}

fn connect(server: &ServerProcess) -> Client {
    let stream = server.connect();
    Client {
        lines: BufReader::new(stream.try_clone().unwrap()),
        stream,
    }
}

struct Client {
    stream: TcpStream,
    lines: BufReader<TcpStream>,
}

impl Client {
    /// Sends a request and returns the first line of its reply. `None`: the server has ended.
    fn ask(&mut self, words: &[&str]) -> Option<String> {
        self.send(words)?;
        self.line()
    }

    fn send(&mut self, words: &[&str]) -> Option<()> {
        let mut bytes = Vec::new();
        request(&mut bytes, words);
        self.stream.write_all(&bytes).ok()
    }

    /// Reads a line. `None`: the server has ended.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(bytes) if bytes > 0 => Some(line.trim_end().to_owned()),
            _ => None,
        }
    }

    fn assert_sum(&mut self) {
        let sum = self.ask(&["EVAL", SUM, "0", &ACCOUNTS.to_string()]);
        assert_eq!(sum, Some(format!(":{}", ACCOUNTS * BALANCE)));
    }
}

/// Transfers money until `is_over` or until the server ends. Returns the number of acknowledged transfers.
fn transfer(mut client: Client, number: usize, is_over: &AtomicBool) -> u64 {
    let (mut count, mut state) = (0, number as u64);
    while !is_over.load(Ordering::Relaxed) {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let random = (state >> 33) as usize;
        let from = random % ACCOUNTS;
        let to = (from + 1 + random / ACCOUNTS % (ACCOUNTS - 1)) % ACCOUNTS;
        let words = [from, to, random % 20, number].map(|word| word.to_string());
        let [from, to, amount, number] = words.each_ref().map(String::as_str);
        let Some(reply) = client.ask(&["EVAL", TRANSFER, "0", from, to, amount, number]) else {
            break;
        };
        count = reply.trim_start_matches(':').parse().expect(&reply);
    }
    count
}

#[test]
fn transfers_between_undeclared_keys_are_isolated_and_survive_kills() {
    /// Clients that transfer money, and kills.
    const CLIENTS: usize = 4;
    const KILLS: usize = 5;
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    let mut server = start(&pool);
    let mut client = connect(&server);
    for at in 0..ACCOUNTS {
        let name = format!("account{at}");
        client.ask(&["SET", &name, &BALANCE.to_string()]).unwrap();
    }
    server.end(Signal::KILL);
    for _ in 0..KILLS {
        let mut server = start(&pool);
        let is_over = AtomicBool::new(false);
        let acknowledged = std::thread::scope(|scope| {
            let transfers: Vec<_> = (0..CLIENTS)
                .map(|number| {
                    let (client, is_over) = (connect(&server), &is_over);
                    scope.spawn(move || transfer(client, number, is_over))
                })
                .collect();
            let mut reader = connect(&server);
            for _ in 0..100 {
                reader.assert_sum();
            }
            std::thread::sleep(Duration::from_millis(20));
            server.end(Signal::KILL);
            is_over.store(true, Ordering::Relaxed);
            transfers
                .into_iter()
                .map(|t| t.join().unwrap())
                .collect::<Vec<_>>()
        });
        let mut server = start(&pool);
        let mut client = connect(&server);
        client.assert_sum();
        for (number, acknowledged) in acknowledged.into_iter().enumerate() {
            let script = "return tonumber(redis.call('get', 'count' .. ARGV[1]) or 0)";
            let reply = client
                .ask(&["EVAL", script, "0", &number.to_string()])
                .unwrap();
            let count: u64 = reply[1..].parse().unwrap();
            assert!(
                count >= acknowledged,
                "client {number}: {count} of {acknowledged}"
            );
        }
        server.end(Signal::KILL);
    }
}

#[test]
fn libraries_of_functions_survive_kills() {
    /// Changes between two kills, and kills.
    const CHANGES: usize = 10;
    const KILLS: usize = 5;
    let code = |number: usize| {
        format!("#!lua name=lib\nredis.register_function('number', function() return {number} end)")
    };
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    let mut number = 0;
    for kill in 0..KILLS {
        let mut server = start(&pool);
        let mut client = connect(&server);
        if kill > 0 {
            // A change that was not acknowledged may have happened.
            let found = client.ask(&["FCALL", "number", "0"]).unwrap();
            let found: usize = found[1..].parse().expect(&found);
            assert!(found == number || found == number + 1, "{found}, {number}");
            number = found;
        }
        for _ in 0..CHANGES {
            let load = ["FUNCTION", "LOAD", "REPLACE", &code(number + 1)];
            assert_eq!(client.ask(&load).as_deref(), Some("$3"));
            client.line();
            number += 1;
        }
        assert_eq!(client.ask(&["FLUSHALL"]).as_deref(), Some("+OK"));
        // This change is being executed when the server is killed.
        client.send(&["FUNCTION", "LOAD", "REPLACE", &code(number + 1)]);
        server.end(Signal::KILL);
    }
}
