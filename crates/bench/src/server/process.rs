//! The compared servers as child processes.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::PeerServer;
use crate::figure::Error;
use crate::stat;
use crate::temp::TempFile;

/// Size in bytes of Farbank's pool, and of memcached's memory. The keys take about a fifth.
const POOL_BYTES: u64 = 1 << 30;
/// Longest time a server may take to answer.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);
/// Interval at which a child process is polled for its end.
pub(super) const POLL: Duration = Duration::from_millis(5);

/// When a write becomes durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteDurability {
    /// redis-server writes no file. Farbank's pool is on tmpfs, flushed and fenced.
    None,
    /// Both servers sync their files once per second.
    Everysec,
    /// Both servers sync their files before they reply.
    Always,
}

impl WriteDurability {
    /// All of them.
    pub const ALL: [WriteDurability; 3] = [
        WriteDurability::None,
        WriteDurability::Everysec,
        WriteDurability::Always,
    ];

    /// Returns the description on the command line.
    #[must_use]
    pub const fn summary(self) -> &'static str {
        match self {
            WriteDurability::None => "Never synced",
            WriteDurability::Everysec => "Synced within a second",
            WriteDurability::Always => "Synced before the reply",
        }
    }

    /// Returns the value of the option, which is the same for both servers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            WriteDurability::None => "none",
            WriteDurability::Everysec => "everysec",
            WriteDurability::Always => "always",
        }
    }
}

/// Checks that `program` exists and runs, by calling it with `--version`.
pub(super) fn ask_version(program: &Path, package: &'static str) -> Result<(), Error> {
    let mut command = Command::new(program);
    command
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    match command.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => {
            let program = program.display();
            Err(Error::Failed(format!(
                "{program} --version ended with {status}"
            )))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::Missing {
            program: program.display().to_string(),
            package,
        }),
        Err(error) => Err(Error::doing(format!("run {}", program.display()))(error)),
    }
}

/// Checks that no file exists at `path`, where a pool is to be created.
fn check_fresh(path: &Path) -> Result<(), Error> {
    match path.exists() {
        false => Ok(()),
        true => Err(Error::Failed(format!(
            "{} exists already; name a path where a file can be created",
            path.display()
        ))),
    }
}

/// Child process that is killed when the guard is dropped.
pub(super) struct ChildGuard(pub(super) Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // Fails if the process has ended already.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A server that is ready. Ended when dropped, after which its pool is removed.
pub(super) struct MeasuredServer {
    pub(super) name: &'static str,
    child: ChildGuard,
    pub(super) port: u16,
    /// Kept open while the child lives, so that its writes to stdout do not fail.
    _stdout: Option<BufReader<ChildStdout>>,
    _pool: Option<TempFile>,
}

impl MeasuredServer {
    /// Starts the server that Farbank is compared with. It stores nothing durably.
    pub(super) fn peer(peer: &PeerServer) -> Result<MeasuredServer, Error> {
        let port = free_port()?;
        let mut command = Command::new(peer.program());
        match peer {
            PeerServer::Redis { .. } => command
                .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
                .args(["--save", "", "--appendonly", "no", "--loglevel", "warning"]),
            PeerServer::Memcached { .. } => command
                .args(["-l", "127.0.0.1", "-p", &port.to_string(), "-U", "0"])
                .args(["-t", "1", "-m", &(POOL_BYTES >> 20).to_string()])
                .args(["-u", "root"]), // memcached ignores this unless root runs it
        };
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut server = MeasuredServer {
            name: peer.name(),
            child: spawn(&mut command, peer.program())?,
            port,
            _stdout: None,
            _pool: None,
        };
        server.await_ready()?;
        Ok(server)
    }

    /// Starts redis-server in `folder`, with the durability `sync`.
    pub(super) fn redis(
        program: &Path,
        sync: WriteDurability,
        folder: &Path,
    ) -> Result<MeasuredServer, Error> {
        let port = free_port()?;
        let mut command = Command::new(program);
        command
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--loglevel", "warning", "--dir"])
            .arg(folder);
        match sync {
            WriteDurability::None => command.args(["--appendonly", "no"]),
            WriteDurability::Everysec | WriteDurability::Always => {
                command.args(["--appendonly", "yes", "--appendfsync", sync.name()])
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut server = MeasuredServer {
            name: "redis-server",
            child: spawn(&mut command, program)?,
            port,
            _stdout: None,
            _pool: None,
        };
        server.await_ready()?;
        Ok(server)
    }

    /// Starts `farbank serve` with the durable store and one worker. Its pool at `path` has `pool_bytes` and is synced
    /// as `sync` requires.
    pub(super) fn farbank_for_open_loop(
        program: &Path,
        path: &Path,
        pool_bytes: u64,
        sync: WriteDurability,
    ) -> Result<MeasuredServer, Error> {
        check_fresh(path)?;
        let mut command = Command::new(program);
        command
            .args(["serve", "--engine", "kv", "--workers", "1"])
            .args(["--port", "0", "--memcached-port", "off"])
            .args(["--size", &pool_bytes.to_string()]);
        if sync != WriteDurability::None {
            command.args(["--sync", sync.name()]);
        }
        MeasuredServer::serve(command, program, path)
    }

    /// Starts `farbank serve` with one worker: the durable store next to Redis, the cache next to memcached.
    pub(super) fn farbank(
        program: &Path,
        peer: &PeerServer,
        pool: Option<&Path>,
    ) -> Result<MeasuredServer, Error> {
        let path = match pool {
            Some(path) => path.to_owned(),
            None => TempFile::on_tmpfs("server")?,
        };
        check_fresh(&path)?;
        let (engine, port, memcached_port) = match peer {
            PeerServer::Redis { .. } => ("kv", "0", "off"),
            PeerServer::Memcached { .. } => ("mdb", "off", "0"),
        };
        let mut command = Command::new(program);
        command
            .args(["serve", "--engine", engine, "--workers", "1"])
            .args(["--port", port, "--memcached-port", memcached_port])
            .args(["--size", &POOL_BYTES.to_string()]);
        MeasuredServer::serve(command, program, &path)
    }

    /// Runs `farbank serve` with a pool at `path`, which the guard removes at the end.
    fn serve(mut command: Command, program: &Path, path: &Path) -> Result<MeasuredServer, Error> {
        // Created before the child, so that the pool is removed even if the child fails.
        let file = TempFile::new(path);
        command
            .arg("--pool")
            .arg(path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = spawn(&mut command, program)?;
        let mut stdout = child.0.stdout.take().map(BufReader::new);
        let mut line = String::new();
        let read = stdout.as_mut().map_or(Ok(0), |s| s.read_line(&mut line));
        read.map_err(Error::doing("read what farbank serve prints"))?;
        let port = port_in(&line).ok_or_else(|| {
            Error::Failed(format!("farbank serve did not start: {}", line.trim()))
        })?;
        let mut server = MeasuredServer {
            name: "farbank",
            child,
            port,
            _stdout: stdout,
            _pool: Some(file),
        };
        server.await_ready()?;
        Ok(server)
    }

    /// Waits until the server accepts connections.
    fn await_ready(&mut self) -> Result<(), Error> {
        let since = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let name = self.name;
            if let Some(status) = self.child.0.try_wait().map_err(Error::doing("wait"))? {
                return Err(Error::Failed(format!(
                    "{name} ended with {status} before it accepted connections"
                )));
            }
            if since.elapsed() > TIMEOUT {
                return Err(Error::Failed(format!(
                    "{name} accepts no connections 30 s after its start"
                )));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Returns the user and system time that the server has used.
    pub(super) fn cpu(&self) -> Result<Duration, Error> {
        let path = format!("/proc/{}/stat", self.child.0.id());
        let stat = fs::read_to_string(&path).map_err(Error::doing(format!("read {path}")))?;
        let ticks = stat::ticks(&stat).ok_or_else(|| {
            Error::Failed(format!("{path} has no utime and stime fields: {stat:?}"))
        })?;
        let a_second = rustix::param::clock_ticks_per_second();
        Ok(Duration::from_secs_f64(ticks as f64 / a_second as f64))
    }
}

pub(super) fn spawn(command: &mut Command, program: &Path) -> Result<ChildGuard, Error> {
    let spawned = command.spawn();
    spawned
        .map(ChildGuard)
        .map_err(Error::doing(format!("run {}", program.display())))
}

/// Returns a free port on loopback.
fn free_port() -> Result<u16, Error> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(Error::doing("find a port"))?;
    let addr = listener.local_addr().map_err(Error::doing("find a port"))?;
    Ok(addr.port())
}

/// Parses the port from the first line that `farbank serve` prints.
fn port_in(banner: &str) -> Option<u16> {
    let (_, addr) = banner.split_once("://")?;
    let (_, port) = addr.split_whitespace().next()?.rsplit_once(':')?;
    port.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_parsed_from_the_banner() {
        let banner = "farbank 0.1.0 listens on redis://127.0.0.1:7002 and redis://[::1]:7002\n";
        assert_eq!(port_in(banner), Some(7002));
        let banner = "farbank 0.1.0 listens on memcached://127.0.0.1:7003\n";
        assert_eq!(port_in(banner), Some(7003));
        assert_eq!(port_in("error: no\n"), None);
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let missing = ask_version(Path::new("/nowhere/redis-benchmark"), "redis-tools");
        assert!(matches!(
            missing,
            Err(Error::Missing {
                package: "redis-tools",
                ..
            })
        ));
    }
}
