//! SWAPDB in a real server: after kills and clean ends, and between clients that write.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::thread;

use rustix::process::Signal;
use support::ServerProcess;

fn start(pool: &Path) -> ServerProcess {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farbank"));
    command
        .args(["serve", "--port", "0", "--memcached-port", "off"])
        .args(["--size", "16mb", "--workers", "2", "--pool"])
        .arg(pool);
    ServerProcess::start(&mut command)
}

fn client_of(server: &ServerProcess) -> Client {
    Client(BufReader::new(server.connect()))
}

struct Client(BufReader<TcpStream>);

impl Client {
    /// Sends an inline request, and returns the first line of its reply; of a string, the second.
    fn ask(&mut self, request: &str) -> String {
        let request = format!("{request}\r\n");
        let sent = self.0.get_mut().write_all(request.as_bytes());
        sent.expect("the server reads");
        let first = self.line();
        match first.starts_with('$') && first != "$-1" {
            true => self.line(),
            false => first,
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a reply");
        line.trim_end().to_owned()
    }
}

#[test]
fn databases_stay_exchanged_after_kills_and_clean_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = folder.path().join("pool");
    let mut server = start(&pool);
    let mut client = client_of(&server);
    for request in [
        "SET k zero",
        "SELECT 1",
        "SET k one",
        "SET more 1",
        "SWAPDB 0 1",
        "SET after 1",
    ] {
        assert_eq!(client.ask(request), "+OK");
    }
    server.end(Signal::KILL);
    for signal in [Signal::TERM, Signal::KILL, Signal::TERM] {
        let mut server = start(&pool);
        let mut client = client_of(&server);
        assert_eq!(client.ask("GET k"), "one");
        assert_eq!(client.ask("DBSIZE"), ":2");
        assert_eq!(client.ask("SELECT 1"), "+OK");
        assert_eq!(client.ask("GET k"), "zero");
        assert_eq!(client.ask("GET after"), "1");
        server.end(signal);
    }
    for (command, expected) in [
        ("check", "sound, 4 keys"),
        ("info", "databases exchanged by SWAPDB: 0 1"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_farbank"))
            .args(["pool", command])
            .arg(&pool)
            .output()
            .expect("the binary starts");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.contains(expected), "{output:?}");
    }
}

#[test]
fn a_client_that_writes_in_both_databases_never_sees_them_mixed() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = start(&folder.path().join("pool"));
    let mut client = client_of(&server);
    for request in ["MSET tag X k X:0", "SELECT 1", "MSET tag Y k Y:0"] {
        assert_eq!(client.ask(request), "+OK");
    }
    thread::scope(|scope| {
        for number in 0..3 {
            let server = &server;
            scope.spawn(move || {
                let mut client = client_of(server);
                assert_eq!(client.ask(&format!("SELECT {}", number % 2)), "+OK");
                for round in 0..40 {
                    // The group reads the tag and the value of one database, whichever that is at its moment.
                    for request in ["MULTI", "GET tag", "GETRANGE k 0 0"] {
                        client.ask(request);
                    }
                    assert_eq!(client.ask("EXEC"), "*2");
                    client.line();
                    let tag = client.line();
                    client.line();
                    assert_eq!(client.line(), tag, "round {round}");
                    assert!(client.ask("APPEND k .").starts_with(':'));
                    let script = "return redis.call('get','tag') .. redis.call('getrange','k',0,0)";
                    let both = client.ask(&format!("EVAL \"{script}\" 2 tag k"));
                    assert!(["XX", "YY"].contains(&&*both), "{both}");
                }
            });
        }
        for _ in 0..11 {
            assert_eq!(client.ask("SWAPDB 0 1"), "+OK");
        }
    });
    assert_eq!(client.ask("SELECT 0"), "+OK");
    assert_eq!(client.ask("GET tag"), "Y");
    server.end(Signal::TERM);
}
