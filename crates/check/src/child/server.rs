//! `farbank serve` as a child process that tests kill.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use super::client::RespClient;
use super::error::ChildError;

/// Lines that `serve` prints when it is ready.
const BANNER_LINES: usize = 4;

/// Command line of a server.
#[derive(Clone, Debug)]
pub struct ServerLaunch {
    /// Path of the `farbank` binary.
    pub program: PathBuf,
    /// Path of the pool, which the server creates if it does not exist.
    pub pool: PathBuf,
    /// Size in bytes of a pool that the server creates.
    pub pool_bytes: u64,
    /// Additional arguments for `serve`.
    pub arguments: Vec<OsString>,
    /// Whether the server also listens for memcached's protocol.
    pub memcached: bool,
}

/// A child process that has reported that it is ready. Killed when dropped.
pub(crate) struct ChildServer {
    child: Child,
    /// Kept open while the child lives, so that its writes to stdout do not fail.
    _stdout: BufReader<ChildStdout>,
    addr: String,
    memcached_addr: Option<String>,
    open_ms: f64,
    has_read_checkpoint: bool,
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

fn spawn(command: &mut Command, launch: &ServerLaunch) -> Result<Child, ChildError> {
    command.spawn().map_err(|source| ChildError::Start {
        program: launch.program.clone(),
        source,
    })
}

impl ChildServer {
    /// Starts a server and waits until it reports that it is ready.
    pub(crate) fn start(launch: &ServerLaunch) -> Result<ChildServer, ChildError> {
        let mut command = command(launch);
        let mut child = spawn(command.stdout(Stdio::piped()), launch)?;
        let stdout = child.stdout.take().expect("stdout is piped");
        let mut stdout = BufReader::new(stdout);
        let mut banner = String::new();
        for _ in 0..BANNER_LINES {
            stdout.read_line(&mut banner).map_err(ChildError::Banner)?;
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
            return Err(ChildError::NotReady { status, banner });
        };
        let open_ms = banner
            .split(" came back in ")
            .nth(1)
            .and_then(|rest| rest.split(" ms").next()?.parse().ok())
            .unwrap_or(0.0);
        let checkpointed = after("after a crash: ");
        Ok(ChildServer {
            has_read_checkpoint: checkpointed.is_some_and(|keys| keys != "0"),
            child,
            _stdout: stdout,
            addr,
            memcached_addr: after("memcached://"),
            open_ms,
        })
    }

    /// Starts a server and kills it after `patience`, ready or not.
    pub(crate) fn start_and_kill(
        launch: &ServerLaunch,
        patience: Duration,
    ) -> Result<(), ChildError> {
        let mut command = command(launch);
        let mut child = spawn(command.stdout(Stdio::null()), launch)?;
        thread::sleep(patience);
        child
            .kill()
            .and_then(|()| child.wait())
            .map_err(ChildError::Process)?;
        Ok(())
    }

    /// Returns the address of the RESP listener.
    pub(crate) fn addr(&self) -> &str {
        &self.addr
    }

    /// Returns the address of the memcached listener, if there is one.
    pub(crate) fn memcached_addr(&self) -> Option<&str> {
        self.memcached_addr.as_deref()
    }

    /// Returns how long the server took to open its pool, in milliseconds. 0 if the server did not report it.
    pub(crate) fn open_ms(&self) -> f64 {
        self.open_ms
    }

    /// Whether the open read a checkpoint of the index.
    pub(crate) fn has_read_checkpoint(&self) -> bool {
        self.has_read_checkpoint
    }

    /// Kills the server with SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<(), ChildError> {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Err(ChildError::EndedEarly(status));
        }
        self.child
            .kill()
            .and_then(|()| self.child.wait())
            .map_err(ChildError::Process)?;
        Ok(())
    }

    /// Sends SIGTERM, and SIGKILL after `patience` if the server still runs.
    pub(crate) fn terminate(&mut self, patience: Duration) -> Result<(), ChildError> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .map_err(|e| ChildError::Process(e.into()))?;
        thread::sleep(patience);
        let ended = self.child.try_wait().map_err(ChildError::Process)?;
        match ended {
            None => self.kill(),
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(ChildError::BadExit {
                status,
                request: "SIGTERM",
            }),
        }
    }

    /// Sends SHUTDOWN and waits until the process ends.
    pub(crate) fn shutdown(&mut self) -> Result<(), ChildError> {
        if let Ok(mut client) = RespClient::connect(&self.addr) {
            client.send(&["SHUTDOWN"]);
            // The server answers SHUTDOWN by closing the connection.
            client.flush().ok();
            client.reply().ok();
        }
        let status = self.child.wait().map_err(ChildError::Process)?;
        if status.success() {
            Ok(())
        } else {
            Err(ChildError::BadExit {
                status,
                request: "SHUTDOWN",
            })
        }
    }
}

impl Drop for ChildServer {
    fn drop(&mut self) {
        // Fails if the process has ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
