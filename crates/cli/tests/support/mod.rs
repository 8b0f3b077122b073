//! A `farbank serve` process of a test.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Maximum time until a reply.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A server that has printed its Redis address. It is killed when dropped.
pub(crate) struct ServerProcess {
    pub(crate) child: Child,
    /// Address of the Redis listener.
    pub(crate) addr: String,
    /// Open, so that the server can print.
    _stdout: BufReader<ChildStdout>,
}

impl ServerProcess {
    /// Starts `command`, and waits for the address.
    pub(crate) fn start(command: &mut Command) -> ServerProcess {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut banner = String::new();
        let addr = loop {
            let start = banner.len();
            let bytes = stdout.read_line(&mut banner).unwrap();
            assert!(bytes > 0, "no address in {banner:?}");
            if let Some((_, addr)) = banner[start..].split_once("redis://") {
                break addr.split_whitespace().next().unwrap().to_owned();
            }
        };
        ServerProcess {
            child,
            addr,
            _stdout: stdout,
        }
    }

    /// Connects to the Redis listener.
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.addr).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// Sends `signal`, and waits for the end of the process.
    pub(crate) fn end(&mut self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.child.kill().ok(); // It has ended already, unless the test has failed.
        self.child.wait().ok();
    }
}
