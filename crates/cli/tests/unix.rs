//! The binary as a Unix tool: signals, closed pipes, full devices, exit codes.

use std::fs::File;
use std::io::{BufRead, BufReader, Write, pipe};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const SIGPIPE: i32 = 13;

fn farbank(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farbank"));
    command.args(args).stdin(Stdio::null());
    command
}

/// Returns a pipe whose reading end is closed.
fn closed() -> Stdio {
    let (reader, writer) = pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

fn full() -> Stdio {
    File::options()
        .write(true)
        .open("/dev/full")
        .expect("/dev/full")
        .into()
}

fn made(folder: &Path) -> String {
    let pool = folder.join("pool").display().to_string();
    let made = farbank(&["pool", "create", &pool, "--size", "16mb"]).output();
    assert!(made.expect("it runs").status.success());
    pool
}

/// Returns command lines that print to standard output.
fn printing(pool: &str) -> Vec<Vec<&str>> {
    vec![
        vec!["--help"],
        vec!["--version"],
        vec!["serve", "--help"],
        vec!["memcached", "-h"],
        vec!["memcached", "-V"],
        vec!["serve", "--check-config"],
        vec!["pool", "info", pool],
        vec!["pool", "info", pool, "--json"],
        vec!["pool", "check", pool],
        vec!["pool", "scrub", pool],
        vec![
            "check", "crash", "--target", "clht", "--seeds", "0..1", "--steps", "5",
        ],
    ]
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn printing_into_a_closed_pipe_ends_by_sigpipe_without_a_message() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = made(folder.path());
    for args in printing(&pool) {
        let output = farbank(&args).stdout(closed()).output().expect("it runs");
        assert_eq!(
            output.status.signal(),
            Some(SIGPIPE),
            "{args:?}: {output:?}"
        );
        assert_eq!(stderr(&output), "", "{args:?}");
    }
}

#[test]
fn printing_to_a_full_device_fails_with_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = made(folder.path());
    for args in printing(&pool) {
        let output = farbank(&args).stdout(full()).output().expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
        let error =
            "error: cannot write to standard output: No space left on device (os error 28)\n";
        assert_eq!(stderr(&output), error, "{args:?}");
    }
}

#[test]
fn an_error_message_that_cannot_be_written_does_not_change_the_exit_code() {
    for (args, code) in [
        (vec!["serve", "--size", "1"], 2),
        (vec!["serve", "--nothing"], 2),
        (vec!["memcached", "--nothing"], 2),
        (vec!["pool", "info", "/nowhere/to/be/found"], 1),
    ] {
        for nowhere in [closed as fn() -> Stdio, full] {
            let status = farbank(&args).stdout(nowhere()).stderr(nowhere()).status();
            let status = status.expect("it runs");
            assert_eq!(status.code(), Some(code), "{args:?}: {status}");
        }
    }
}

#[test]
fn a_dump_into_a_closed_pipe_ends_by_sigpipe_and_closes_the_pool_cleanly() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = made(folder.path());
    let mut server = Serving::start(&pool, |_| ());
    let value = "v".repeat(1_000);
    for n in 0..200 {
        server.ask(&format!("SET key{n} {value}\r\n"));
    }
    server.end(Signal::TERM);
    let dump = farbank(&["pool", "dump", &pool]).stdout(closed()).output();
    let dump = dump.expect("it runs");
    assert_eq!(
        (dump.status.signal(), stderr(&dump)),
        (Some(SIGPIPE), String::new())
    );
    assert!(is_closed_cleanly(&pool));
}

fn is_closed_cleanly(pool: &str) -> bool {
    let info = farbank(&["pool", "info", pool]).output().expect("it runs");
    let text = String::from_utf8_lossy(&info.stdout).into_owned();
    text.contains("closed cleanly") && !text.contains("not closed cleanly")
}

/// A server on a free port, whose output may go nowhere.
struct Serving {
    child: Child,
    port: u16,
}

impl Serving {
    fn start(pool: &str, arrange: impl FnOnce(&mut Command)) -> Serving {
        Serving::start_with(pool, ["--memcached-port", "off", "--port"], arrange)
    }

    /// Starts a server with `options`, the last of which takes the port.
    fn start_with(pool: &str, options: [&str; 3], arrange: impl FnOnce(&mut Command)) -> Serving {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
        let port = port.expect("a free port").port();
        let mut command = farbank(&["serve", "--log-level", "trace", "--pool", pool]);
        command.args(options).arg(port.to_string());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        arrange(&mut command);
        let child = command.spawn().expect("it runs");
        let mut serving = Serving { child, port };
        serving.ask("PING\r\n");
        serving
    }

    /// Sends a request and reads one line of reply.
    fn ask(&mut self, request: &str) -> String {
        let since = Instant::now();
        loop {
            if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) {
                stream.write_all(request.as_bytes()).expect("a request");
                let mut line = String::new();
                BufReader::new(stream)
                    .read_line(&mut line)
                    .expect("a reply");
                return line;
            }
            let ended = self.child.try_wait().expect("a child");
            assert!(ended.is_none(), "the server has ended: {ended:?}");
            assert!(
                since.elapsed() < Duration::from_secs(20),
                "it does not listen"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is there");
    }

    fn end(mut self, signal: Signal) {
        self.signal(signal);
        let status = self.child.wait().expect("a child");
        assert_eq!(status.code(), Some(0), "{signal:?}: {status}");
    }
}

#[test]
fn stopping_signals_close_the_pool_and_sighup_is_ignored() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = made(folder.path());
    for signal in [Signal::TERM, Signal::INT, Signal::QUIT, Signal::USR1] {
        let mut server = Serving::start(&pool, |_| ());
        assert_eq!(server.ask("SET k v\r\n"), "+OK\r\n");
        for _ in 0..3 {
            server.signal(Signal::HUP);
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(server.ask("PING\r\n"), "+PONG\r\n");
        }
        assert!(!is_closed_cleanly(&pool));
        server.end(signal);
        assert!(is_closed_cleanly(&pool), "{signal:?}");
    }
}

#[test]
fn sighup_reads_the_auth_file_of_memcached_clients_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let (pool, file) = (made(folder.path()), folder.path().join("auth"));
    std::fs::write(&file, "anna:secret\n").expect("a file");
    let mut server = Serving::start_with(&pool, ["--port", "off", "--memcached-port"], |command| {
        command.arg("--memcached-auth-file").arg(&file);
    });
    let login = |name: &str, password: &str| {
        let value = format!("{name} {password}");
        format!("set any 0 0 {}\r\n{value}\r\n", value.len())
    };
    let (anna, bert) = (login("anna", "secret"), login("bert", "word"));
    let failure = "CLIENT_ERROR authentication failure\r\n";
    assert_eq!(server.ask(&anna), "STORED\r\n");
    assert_eq!(server.ask(&bert), failure);
    std::fs::write(&file, "bert:word\n").expect("a file");
    server.signal(Signal::HUP);
    let since = Instant::now();
    while server.ask(&bert) == failure {
        assert!(since.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(server.ask(&anna), failure);
    // A file that is not valid changes nothing.
    std::fs::write(&file, "nothing\n").expect("a file");
    server.signal(Signal::HUP);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(server.ask(&bert), "STORED\r\n");
    server.end(Signal::TERM);
}

#[test]
fn a_server_runs_even_if_its_output_cannot_be_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = made(folder.path());
    for (stdout, stderr) in [
        (full(), Stdio::null()),
        (closed(), full()),
        (full(), closed()),
    ] {
        let mut server = Serving::start(&pool, |command| {
            command.stdout(stdout).stderr(stderr);
        });
        for _ in 0..20 {
            assert_eq!(server.ask("SET k v\r\n"), "+OK\r\n");
            // Disconnected clients and wrong commands are logged.
            assert!(server.ask("NOTHING\r\n").starts_with("-ERR"));
        }
        server.end(Signal::TERM);
        assert!(is_closed_cleanly(&pool));
    }
}

#[test]
fn each_subcommand_has_a_manual_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let man = folder.path().display().to_string();
    assert!(farbank(&["man", &man]).status().expect("it runs").success());
    let page = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect(name);
    assert!(page("farbank.1").contains("farbank\\-serve(1)"));
    for (name, text) in [
        ("farbank-serve.1", "\\-\\-requirepass"),
        ("farbank-pool-check.1", "farbank\\-pool\\-check"),
        ("farbank-bench-server.1", "\\-\\-json"),
    ] {
        assert!(page(name).contains(text), "{name}: {}", page(name));
    }
    let missing = folder.path().join("missing").display().to_string();
    let refused = farbank(&["man", &missing]).output().expect("it runs");
    assert_eq!(refused.status.code(), Some(1));
}

#[test]
fn completions_are_programs_of_their_shell() {
    let script = farbank(&["completions", "bash"]).output().expect("it runs");
    let text = String::from_utf8_lossy(&script.stdout);
    for word in ["memory-server", "--requirepass", "complete -F _farbank"] {
        assert!(text.contains(word), "{word}");
    }
    // Without arguments, bash reads commands from its input; -n checks them only.
    let mut bash = Command::new("bash")
        .arg("-n")
        .stdin(Stdio::piped())
        .spawn()
        .expect("bash");
    let mut input = bash.stdin.take().expect("a pipe");
    input.write_all(&script.stdout).expect("bash reads");
    drop(input);
    assert!(bash.wait().expect("it ends").success());
    let wrong = farbank(&["completions", "tcsh"]).output().expect("it runs");
    assert_eq!(wrong.status.code(), Some(2));
}
