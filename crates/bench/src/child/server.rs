//! The server that is killed: `farbank serve` as a child.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use super::client::RespClient;

/// Lines `serve` prints when it is ready.
const BANNER_LINES: usize = 4;

/// How a server is started.
#[derive(Clone, Debug)]
pub struct ServerLaunch {
    /// The binary whose `serve` runs.
    pub program: PathBuf,
    /// Where the pool is, or is made.
    pub pool: PathBuf,
    /// Bytes of the pool when it is made.
    pub pool_bytes: u64,
    /// More arguments for `serve`.
    pub arguments: Vec<OsString>,
    /// Whether it speaks memcached, too.
    pub memcached: bool,
}

/// A child that has said it is ready. Killed when dropped.
pub(crate) struct ChildServer {
    child: Child,
    /// Open as long as the child lives, so that it may print.
    _stdout: BufReader<ChildStdout>,
    addr: String,
    memcached_addr: Option<String>,
    open_ms: f64,
}

fn command(launch: &ServerLaunch) -> Command {
    let memcached = if launch.memcached { "0" } else { "off" };
    let mut command = Command::new(&launch.program);
    command
        .args(["serve", "--port", "0", "--memcached-port", memcached])
        .arg("--pool")
        .arg(&launch.pool)
        .arg("--size")
        .arg(launch.pool_bytes.to_string())
        .args(&launch.arguments)
        .stdin(Stdio::null());
    command
}

impl ChildServer {
    /// Starts a server and waits until it says that it is ready.
    pub(crate) fn start(launch: &ServerLaunch) -> Result<ChildServer, String> {
        let mut command = command(launch);
        let spawned = command.stdout(Stdio::piped()).spawn();
        let mut child =
            spawned.map_err(|e| format!("cannot start {}: {e}", launch.program.display()))?;
        let stdout = child.stdout.take().ok_or("no output from the server")?;
        let mut stdout = BufReader::new(stdout);
        let mut banner = String::new();
        for _ in 0..BANNER_LINES {
            stdout
                .read_line(&mut banner)
                .map_err(|e| format!("no word from the server: {e}"))?;
        }
        let after = |scheme: &str| {
            let rest = banner.split(scheme).nth(1)?;
            rest.split_whitespace().next().map(str::to_owned)
        };
        let Some(addr) = after("redis://") else {
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
        Ok(ChildServer {
            child,
            _stdout: stdout,
            addr,
            memcached_addr: after("memcached://"),
            open_ms,
        })
    }

    /// Starts a server and kills it `patience` later, ready or not.
    pub(crate) fn start_and_kill(launch: &ServerLaunch, patience: Duration) -> Result<(), String> {
        let mut command = command(launch);
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

    /// Where it speaks memcached.
    pub(crate) fn memcached_addr(&self) -> Option<&str> {
        self.memcached_addr.as_deref()
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

    /// SIGTERM, and SIGKILL after so long unless the server has ended.
    pub(crate) fn terminate(&mut self, patience: Duration) -> Result<(), String> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .map_err(|e| e.to_string())?;
        thread::sleep(patience);
        let ended = self.child.try_wait().map_err(|e| e.to_string())?;
        match ended {
            None => self.kill(),
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("SIGTERM ended with {status}")),
        }
    }

    /// A client's SHUTDOWN.
    pub(crate) fn shutdown(&mut self) -> Result<(), String> {
        if let Ok(mut client) = RespClient::connect(&self.addr) {
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

impl Drop for ChildServer {
    fn drop(&mut self) {
        // It may be gone already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
