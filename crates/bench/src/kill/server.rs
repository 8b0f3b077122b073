//! The server that is killed: `farbank serve` as a child.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use super::Options;
use super::client::Client;

/// Lines `serve` prints when it is ready.
const BANNER_LINES: usize = 4;

/// A child that has said it is ready. Killed when dropped.
pub(crate) struct Server {
    child: Child,
    /// Open as long as the child lives, so that it may print.
    _stdout: BufReader<ChildStdout>,
    addr: String,
    open_ms: f64,
}

fn command(options: &Options) -> Command {
    let mut command = Command::new(&options.program);
    command
        .args(["serve", "--port", "0", "--memcached-port", "off", "--pool"])
        .arg(&options.pool)
        .arg("--size")
        .arg(options.pool_bytes.to_string())
        .args(&options.arguments)
        .stdin(Stdio::null());
    command
}

impl Server {
    /// Starts a server and waits until it says that it is ready.
    pub(crate) fn start(options: &Options) -> Result<Server, String> {
        let mut command = command(options);
        let spawned = command.stdout(Stdio::piped()).spawn();
        let mut child =
            spawned.map_err(|e| format!("cannot start {}: {e}", options.program.display()))?;
        let stdout = child.stdout.take().ok_or("no output from the server")?;
        let mut stdout = BufReader::new(stdout);
        let mut banner = String::new();
        for _ in 0..BANNER_LINES {
            stdout
                .read_line(&mut banner)
                .map_err(|e| format!("no word from the server: {e}"))?;
        }
        let addr = banner
            .split("redis://")
            .nth(1)
            .and_then(|rest| rest.split_whitespace().next());
        let Some(addr) = addr.map(str::to_owned) else {
            child.kill().ok();
            let status = child
                .wait()
                .map_or_else(|e| e.to_string(), |s| s.to_string());
            return Err(format!("the server did not start ({status}): {banner}"));
        };
        let open_ms = banner
            .split(" came back in ")
            .nth(1)
            .and_then(|rest| rest.split(" ms").next()?.parse().ok())
            .unwrap_or(0.0);
        Ok(Server {
            child,
            _stdout: stdout,
            addr,
            open_ms,
        })
    }

    /// Starts a server and kills it `patience` later, ready or not.
    pub(crate) fn start_and_kill(options: &Options, patience: Duration) -> Result<(), String> {
        let mut command = command(options);
        let mut child = command
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| e.to_string())?;
        thread::sleep(patience);
        child
            .kill()
            .and_then(|()| child.wait())
            .map_err(|e| e.to_string())?;
        Ok(())
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> &str {
        &self.addr
    }

    /// How long its keys took to come back.
    pub(crate) fn open_ms(&self) -> f64 {
        self.open_ms
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<(), String> {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Err(format!("the server had ended by itself: {status}"));
        }
        self.child
            .kill()
            .and_then(|()| self.child.wait())
            .map_err(|e| e.to_string())?;
        Ok(())
    }

    /// A client's SHUTDOWN.
    pub(crate) fn shutdown(&mut self) -> Result<(), String> {
        if let Ok(mut client) = Client::connect(&self.addr) {
            client.send(&["SHUTDOWN"]);
            // It answers by going.
            client.flush().ok();
            client.reply().ok();
        }
        let status = self.child.wait().map_err(|e| e.to_string())?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("SHUTDOWN ended with {status}"))
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be gone already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
