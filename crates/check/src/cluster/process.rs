//! The processes of a cluster: memory servers and compute processes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::ClusterOptions;
use super::calls::{ClusterLine, UnknownLine};
use crate::child::ChildError;
use crate::network::Host;

/// Port of a memory server that has a host of its own.
const HOST_PORT: u16 = 7411;

/// How the compute processes reach the memory servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClusterFabric {
    /// By TCP.
    Tcp,
    /// By mapping the files of the servers.
    Shm,
    /// Over libfabric, which the program must have been built with.
    Libfabric {
        /// Name of the provider; `None`: the default of the memory servers.
        provider: Option<String>,
    },
}

/// The files and programs of a cluster.
impl ClusterOptions {
    pub(super) fn key(&self) -> PathBuf {
        self.folder.join("key")
    }

    fn memory(&self, number: u16) -> PathBuf {
        self.folder.join(format!("memory{number}"))
    }

    /// Returns the command that runs the program, on `host` if there is one.
    fn command(&self, host: Option<&Host>) -> Command {
        match host {
            Some(host) => host.command(&self.program),
            None => Command::new(&self.program),
        }
    }

    fn spawn(&self, command: &mut Command) -> Result<Child, ChildError> {
        command.spawn().map_err(|source| ChildError::Start {
            program: self.program.clone(),
            source,
        })
    }

    /// Creates the tree on the memory servers at `addresses`.
    pub(super) fn create_tree(
        &self,
        host: Option<&Host>,
        addresses: &str,
    ) -> Result<(), ChildError> {
        let mut command = self.command(host);
        command.args(["tree", "create", "--servers", addresses, "--key-file"]);
        command.arg(self.key()).args(["--value-bytes", "4096"]);
        let output = command.output().map_err(ChildError::Process)?;
        match output.status.success() {
            true => Ok(()),
            false => Err(ChildError::NotReady {
                status: output.status.to_string(),
                banner: String::from_utf8_lossy(&output.stderr).into_owned(),
            }),
        }
    }
}

/// A change of the list of memory servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ServerChange {
    /// The server with the next number joins.
    Join(u16),
    /// A server leaves.
    Leave(u16),
}

/// The state of a change of the list of memory servers.
pub(super) enum ChangeState {
    Running,
    Done,
    /// The process has failed, and has printed this.
    Failed(String),
}

/// `farbank tree add-server` or `remove-server`. Killed when dropped.
pub(super) struct ChangeProcess(Child);

impl ChangeProcess {
    /// Starts it on `host` if there is one. It knows the servers of `addresses`. `server` is the one that joins or leaves, with its number.
    pub(super) fn start(
        options: &ClusterOptions,
        host: Option<&Host>,
        addresses: &str,
        (change, server): (ServerChange, &MemoryProcess),
    ) -> Result<ChangeProcess, ChildError> {
        let (subcommand, name) = match change {
            ServerChange::Join(_) => ("add-server", server.network_name(options)),
            ServerChange::Leave(number) => ("remove-server", number.to_string()),
        };
        let mut command = options.command(host);
        command.args(["tree", subcommand, "--servers", addresses, "--key-file"]);
        command.arg(options.key()).arg(name);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = options.spawn(command.stderr(Stdio::piped()))?;
        Ok(ChangeProcess(child))
    }

    pub(super) fn state(&mut self) -> Result<ChangeState, ChildError> {
        let status = self.0.try_wait().map_err(ChildError::Process)?;
        let Some(status) = status else {
            return Ok(ChangeState::Running);
        };
        if status.success() {
            return Ok(ChangeState::Done);
        }
        let mut printed = String::new();
        if let Some(stderr) = &mut self.0.stderr {
            let read = stderr.read_to_string(&mut printed);
            read.map_err(ChildError::Process)?;
        }
        Ok(ChangeState::Failed(format!("{status}: {printed}")))
    }
}

impl Drop for ChangeProcess {
    fn drop(&mut self) {
        // Fails if the process has ended already.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A memory server on a pool. Killed when dropped.
pub(super) struct MemoryProcess {
    child: Child,
    number: u16,
    address: SocketAddr,
}

impl MemoryProcess {
    /// Starts memory server `number`, on `host` if there is one.
    pub(super) fn start(
        options: &ClusterOptions,
        host: Option<&Host>,
        number: u16,
        lease_server: Option<SocketAddr>,
    ) -> Result<MemoryProcess, ChildError> {
        let listen = match host {
            Some(host) => (host.address(), HOST_PORT).into(),
            None => (options.listen, 0).into(),
        };
        MemoryProcess::start_at(options, host, number, listen, lease_server)
    }

    fn start_at(
        options: &ClusterOptions,
        host: Option<&Host>,
        number: u16,
        listen: SocketAddr,
        lease_server: Option<SocketAddr>,
    ) -> Result<MemoryProcess, ChildError> {
        let member_lease_ms = (options.lease * 2 / 3).as_millis();
        let size = match options.fabric {
            // Each connection registers all of it, which takes time, and pins it over RDMA.
            ClusterFabric::Libfabric { .. } => "64mb",
            ClusterFabric::Tcp | ClusterFabric::Shm => "256mb",
        };
        let mut command = options.command(host);
        command
            .args(["memory-server", "--size", size, "--lock-size", "64kb"])
            .args(["--chunk-size", "64kb", "--number", &number.to_string()])
            .args(["--listen", &listen.to_string()])
            .args(["--lease-ms", &options.lease.as_millis().to_string()])
            .args(["--member-lease-ms", &member_lease_ms.to_string()])
            .arg("--key-file")
            .arg(options.key())
            .arg("--pool")
            .arg(options.memory(number));
        if let ClusterFabric::Libfabric { provider } = &options.fabric {
            command.args(["--fabric", "libfabric"]);
            if let Some(provider) = provider {
                command.args(["--provider", provider]);
            }
        }
        if let Some(address) = lease_server {
            command.args(["--lease-server", &address.to_string()]);
        }
        let mut child = options.spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
        let mut banner = String::new();
        let stdout = child.stdout.take().expect("stdout is piped");
        let read = BufReader::new(stdout).read_line(&mut banner);
        let mut server = MemoryProcess {
            child,
            number,
            address: listen,
        };
        read.map_err(ChildError::Banner)?;
        let rest = banner.split("listens on ").nth(1);
        let address = rest.and_then(|rest| rest.split(',').next()?.parse().ok());
        match address {
            Some(address) => {
                server.address = address;
                Ok(server)
            }
            None => Err(ChildError::NotReady {
                status: "no address".into(),
                banner,
            }),
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the server as a compute process names it.
    pub(super) fn name(&self, options: &ClusterOptions) -> String {
        match &options.fabric {
            ClusterFabric::Shm => format!("shm:{}", options.memory(self.number).display()),
            ClusterFabric::Tcp | ClusterFabric::Libfabric { .. } => self.network_name(options),
        }
    }

    /// Returns the server's address for processes of all hosts.
    fn network_name(&self, options: &ClusterOptions) -> String {
        match &options.fabric {
            ClusterFabric::Tcp | ClusterFabric::Shm => self.address.to_string(),
            ClusterFabric::Libfabric { .. } => format!("libfabric:{}", self.address),
        }
    }

    /// Kills the server, which has left the tree.
    pub(super) fn end(&mut self) -> Result<(), ChildError> {
        kill(&mut self.child)
    }

    /// Kills the server and starts it again, at the same address and on its pool.
    pub(super) fn restart(
        &mut self,
        options: &ClusterOptions,
        host: Option<&Host>,
        lease_server: Option<SocketAddr>,
    ) -> Result<(), ChildError> {
        kill(&mut self.child)?;
        *self = MemoryProcess::start_at(options, host, self.number, self.address, lease_server)?;
        Ok(())
    }
}

impl Drop for MemoryProcess {
    fn drop(&mut self) {
        // Fails if the process has ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Kills a process that still runs.
fn kill(child: &mut Child) -> Result<(), ChildError> {
    if let Ok(Some(status)) = child.try_wait() {
        return Err(ChildError::EndedEarly(status));
    }
    let killed = child.kill().and_then(|()| child.wait());
    killed.map(drop).map_err(ChildError::Process)
}

/// What a compute process has printed.
#[derive(Default)]
struct ProcessOutput {
    lines: Vec<ClusterLine>,
    /// Rounds that have ended.
    done: u64,
    /// The process has closed its output.
    is_ended: bool,
    unknown: Option<UnknownLine>,
}

#[derive(Default)]
struct PrintedLines {
    state: Mutex<ProcessOutput>,
    changed: Condvar,
}

impl PrintedLines {
    // No holder of the lock panics.
    fn state(&self) -> MutexGuard<'_, ProcessOutput> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut ProcessOutput)) {
        change(&mut self.state());
        self.changed.notify_all();
    }
}

/// A compute process. Killed when dropped.
pub(super) struct ComputeProcess {
    child: Child,
    stdin: ChildStdin,
    printed: Arc<PrintedLines>,
    /// Rounds that have begun.
    rounds: u64,
}

impl ComputeProcess {
    /// Starts a process with clients of the tree, on `host` if there is one. Its connection to the memory servers is
    /// its first round.
    pub(super) fn start(
        options: &ClusterOptions,
        host: Option<&Host>,
        addresses: &str,
    ) -> Result<ComputeProcess, ChildError> {
        let mut command = options.command(host);
        command.args([
            "check",
            "cluster-client",
            "--servers",
            addresses,
            "--key-file",
        ]);
        command.arg(options.key());
        command.args(["--clients", &options.clients.to_string()]);
        command.args(["--threads", &options.threads.to_string()]);
        let mut child = options.spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let stdout = child.stdout.take().expect("stdout is piped");
        let stdin = child.stdin.take().expect("stdin is piped");
        let printed = Arc::new(PrintedLines::default());
        let to = Arc::clone(&printed);
        thread::spawn(move || read_lines(BufReader::new(stdout), &to));
        Ok(ComputeProcess {
            child,
            stdin,
            printed,
            rounds: 1,
        })
    }

    /// Begins a round: the process executes `command`.
    pub(super) fn begin(&mut self, command: &str) -> Result<(), ChildError> {
        self.rounds += 1;
        let written = writeln!(self.stdin, "{command}");
        written.map_err(|_| ChildError::Round("a compute process ended between rounds".into()))
    }

    /// Waits until the process has printed `count` lines in this round, or the round has ended.
    pub(super) fn wait_for_lines(&self, count: usize) {
        let mut state = self.printed.state();
        while state.lines.len() < count && state.done < self.rounds && !state.is_ended {
            let waited = self.printed.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until the round has ended. Returns its lines.
    pub(super) fn end_round(&mut self, patience: Duration) -> Result<Vec<ClusterLine>, ChildError> {
        let due = Instant::now() + patience;
        let mut state = self.printed.state();
        loop {
            if let Some(unknown) = state.unknown.take() {
                return Err(ChildError::Round(unknown.to_string()));
            }
            if state.done == self.rounds {
                return Ok(std::mem::take(&mut state.lines));
            }
            let left = due.saturating_duration_since(Instant::now());
            if state.is_ended || left.is_zero() {
                let what = match state.is_ended {
                    true => "a compute process ended within a round",
                    false => "a compute process did not end its round: a call waits for ever",
                };
                return Err(ChildError::Round(what.into()));
            }
            let waited = self.printed.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Kills the process. Returns its lines.
    pub(super) fn kill(&mut self) -> Result<Vec<ClusterLine>, ChildError> {
        kill(&mut self.child)?;
        Ok(self.last_lines())
    }

    /// Returns the lines of the process if another process has killed it.
    pub(super) fn killed_lines(&mut self) -> Result<Option<Vec<ClusterLine>>, ChildError> {
        let status = self.child.try_wait().map_err(ChildError::Process)?;
        match status {
            None => Ok(None),
            Some(status) if status.signal() == Some(Signal::KILL.as_raw()) => {
                Ok(Some(self.last_lines()))
            }
            Some(status) => Err(ChildError::EndedEarly(status)),
        }
    }

    /// Returns the lines of a process that has ended.
    fn last_lines(&self) -> Vec<ClusterLine> {
        let mut state = self.printed.state();
        while !state.is_ended {
            let waited = self.printed.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::take(&mut state.lines)
    }

    /// Stops the process for `pause`, then lets it continue, if it was not killed meanwhile.
    pub(super) fn pause(&self, pause: Duration) -> Result<(), ChildError> {
        let process = Pid::from_child(&self.child);
        let send = |signal| {
            kill_process(process, signal).map_err(|error| ChildError::Process(error.into()))
        };
        send(Signal::STOP)?;
        thread::sleep(pause);
        send(Signal::CONT)
    }
}

impl Drop for ComputeProcess {
    fn drop(&mut self) {
        // Fails if the process has ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Reads lines until the process ends. A last line without an end is of a call that a kill interrupted.
fn read_lines(mut from: impl BufRead, to: &PrintedLines) {
    let mut line = String::new();
    while matches!(from.read_line(&mut line), Ok(bytes) if bytes > 0) {
        let Some(whole) = line.strip_suffix('\n') else {
            break;
        };
        let parsed = whole.parse();
        to.change(|state| match parsed {
            Ok(line) => {
                state.done += u64::from(matches!(line, ClusterLine::Done { .. }));
                state.lines.push(line);
            }
            Err(unknown) => state.unknown = Some(unknown),
        });
        line.clear();
    }
    to.change(|state| state.is_ended = true);
}

/// Writes a key for the cluster.
pub(super) fn write_key(path: &Path, seed: u64) -> Result<(), ChildError> {
    let mut rng = farbank_pm::rng::Rng::new(seed);
    let key: Vec<u8> = (0..4).flat_map(|_| rng.draw().to_le_bytes()).collect();
    std::fs::write(path, key).map_err(ChildError::Process)
}
