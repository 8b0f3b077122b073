//! The server against redis-server: processor time for an operation, under the same clients.
//!
//! ```text
//!   redis-server, nothing kept ◀──┐                 round 1: redis, farbank
//!                                 ├── redis-benchmark          2: redis, farbank   ... for each pipeline
//!   farbank serve, one worker  ◀──┘                 ...                              and each of SET, GET
//! ```
//!
//! Both are children of this process, on loopback, and take turns, so that whatever else the machine
//! does falls on both. What is compared is processor time, user and system, of the server's process
//! as the kernel accounts it: it does not depend on how fast the clients are, or on how many CPUs
//! they share with the server. Its grain is a tick (10 ms), so a round must be long.
//!
//! redis-server runs without persistence: it keeps nothing. Farbank's pool is a file on tmpfs, and it
//! flushes and fences every batch there as it would on persistent memory.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::figure::{Error, Figure, Report, Step, Watch, median};
use crate::stat;
use crate::temp::TempFile;

/// Keys that are written and read, chosen alike.
const KEYS: u64 = 1_000_000;
/// Bytes of the pool: the keys in it take about a fifth.
const POOL_BYTES: u64 = 1 << 30;
/// Longest a server may take until it answers.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a child is asked whether it has ended.
const POLL: Duration = Duration::from_millis(5);

/// What is measured, and how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// The binary whose `serve` is measured.
    pub farbank: PathBuf,
    /// redis-server.
    pub redis_server: PathBuf,
    /// redis-benchmark.
    pub redis_benchmark: PathBuf,
    /// Rounds of each pipeline and operation.
    pub rounds: u64,
    /// Requests of a round; without pipelining a sixth of them.
    pub requests: u64,
    /// Requests a client sends before it waits.
    pub pipelines: Vec<u64>,
    /// Where Farbank's pool is made, and removed; `None`: on tmpfs.
    pub pool: Option<PathBuf>,
}

/// At most this much of redis-server's processor time, if that is stated for a pipeline.
fn bound(pipeline: u64) -> Option<f64> {
    match pipeline {
        64 => Some(0.5),
        16 => Some(0.6),
        1 => Some(1.05),
        _ => None,
    }
}

/// Requests of a round: without pipelining each takes about six times as long.
fn requests_of(options: &Options, pipeline: u64) -> u64 {
    match pipeline {
        1 => (options.requests / 6).max(1),
        _ => options.requests,
    }
}

/// Starts both servers, measures them in turns, and ends them.
pub fn run(options: &Options, watch: Watch<'_>) -> Result<Report, Error> {
    for (program, package) in [
        (&options.redis_server, "redis-server"),
        (&options.redis_benchmark, "redis-tools"),
    ] {
        ask_version(program, package)?;
    }
    let mut bench = Bench {
        options,
        watch,
        done: 0,
    };
    bench.look("starting the servers")?;
    let redis = Server::redis(&options.redis_server)?;
    let farbank = Server::farbank(&options.farbank, options.pool.as_deref())?;
    let servers = [&redis, &farbank];
    for server in servers {
        bench.drive(server, "set", 64, 3 * KEYS)?;
    }
    let mut report = Report::default();
    for &pipeline in &options.pipelines {
        for operation in ["set", "get"] {
            bench.compare(servers, operation, pipeline, &mut report)?;
        }
    }
    Ok(report)
}

/// Finds out whether `program` is there.
fn ask_version(program: &Path, package: &'static str) -> Result<(), Error> {
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

/// What one server was seen to do in the rounds of one operation.
#[derive(Default)]
struct Seen {
    cpu_ns: Vec<f64>,
    a_second: Vec<f64>,
}

struct Bench<'a, 'w> {
    options: &'a Options,
    watch: Watch<'w>,
    done: u64,
}

impl Bench<'_, '_> {
    fn look(&mut self, what: &str) -> Result<(), Error> {
        let all = self.options.rounds * self.options.pipelines.len() as u64 * 4;
        let step = Step {
            what,
            done: self.done,
            all,
        };
        if (self.watch)(step) {
            Ok(())
        } else {
            Err(Error::Stopped)
        }
    }

    /// The rounds of one operation in one pipeline, and what they come to.
    fn compare(
        &mut self,
        servers: [&Server; 2],
        operation: &str,
        pipeline: u64,
        report: &mut Report,
    ) -> Result<(), Error> {
        let requests = requests_of(self.options, pipeline);
        let mut seen = [Seen::default(), Seen::default()];
        for _ in 0..self.options.rounds {
            for (server, seen) in servers.into_iter().zip(&mut seen) {
                let before = server.cpu()?;
                seen.a_second
                    .push(self.drive(server, operation, pipeline, requests)?);
                let used = (server.cpu()? - before).as_nanos() as f64;
                seen.cpu_ns.push(used / requests as f64);
                self.done += 1;
            }
        }
        report.figures.extend(figures(operation, pipeline, &seen));
        Ok(())
    }

    /// Has redis-benchmark load `server`; requests a second, as it says.
    fn drive(
        &mut self,
        server: &Server,
        operation: &str,
        pipeline: u64,
        requests: u64,
    ) -> Result<f64, Error> {
        let program = &self.options.redis_benchmark;
        let mut command = Command::new(program);
        command
            .args([
                "-h",
                "127.0.0.1",
                "-c",
                "50",
                "-d",
                "100",
                "--csv",
                "-t",
                operation,
            ])
            .args(["-p", &server.port.to_string()])
            .args(["-r", &KEYS.to_string()])
            .args(["-n", &requests.to_string()])
            .args(["-P", &pipeline.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let spawned = command.spawn();
        let mut child = Guard(spawned.map_err(Error::doing(format!("run {}", program.display())))?);
        let what = format!("{operation} in pipelines of {pipeline}, {}", server.name);
        let status = loop {
            if let Some(status) = child.0.try_wait().map_err(Error::doing("wait"))? {
                break status;
            }
            self.look(&what)?;
            thread::sleep(POLL);
        };
        // Both are short: they fit into the pipes.
        let (mut out, mut complaint) = (String::new(), String::new());
        let read = child
            .0
            .stdout
            .take()
            .map_or(Ok(0), |mut s| s.read_to_string(&mut out));
        read.map_err(Error::doing("read redis-benchmark's results"))?;
        let read = child
            .0
            .stderr
            .take()
            .map_or(Ok(0), |mut s| s.read_to_string(&mut complaint));
        read.map_err(Error::doing("read redis-benchmark's complaints"))?;
        let a_second = requests_a_second(&out).filter(|_| status.success());
        a_second.ok_or_else(|| {
            let name = server.name;
            Error::Failed(format!(
                "redis-benchmark ended with {status} on {name}: {}{}",
                out.trim(),
                complaint.trim()
            ))
        })
    }
}

/// What the rounds of one operation come to: redis-server's are first.
fn figures(operation: &str, pipeline: u64, seen: &[Seen; 2]) -> Vec<Figure> {
    let [redis, farbank] = seen;
    let name = |what: &str| format!("{} x {pipeline}: {what}", operation.to_uppercase());
    let figure = |what: &str, rounds: &[f64]| {
        Figure::measured("server", name(what), median(rounds)).spread(rounds)
    };
    let pairs: Vec<f64> = (farbank.cpu_ns.iter().zip(&redis.cpu_ns))
        .map(|(ours, theirs)| ours / theirs)
        .collect();
    let ratio = median(&farbank.cpu_ns) / median(&redis.cpu_ns);
    vec![
        figure("redis-server, CPU", &redis.cpu_ns).unit("ns"),
        figure("farbank, CPU", &farbank.cpu_ns).unit("ns"),
        Figure {
            at_most: bound(pipeline),
            ..Figure::measured("server", name("ratio of CPU"), ratio).spread(&pairs)
        },
        figure("redis-server, requests", &redis.a_second).unit("a second"),
        figure("farbank, requests", &farbank.a_second).unit("a second"),
    ]
}

/// Requests a second, from what `redis-benchmark --csv` prints.
fn requests_a_second(csv: &str) -> Option<f64> {
    let (head, row) = csv.trim().split_once('\n')?;
    let fields = |line: &str| -> Vec<String> {
        line.trim()
            .split(',')
            .map(|field| field.trim_matches('"').to_owned())
            .collect()
    };
    let place = fields(head).iter().position(|field| field == "rps")?;
    fields(row).get(place)?.parse().ok()
}

/// A child that does not outlive this.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // It may be gone already.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A server that has said it is ready. Ended when dropped; its pool is removed after that.
struct Server {
    name: &'static str,
    child: Guard,
    port: u16,
    /// Open as long as the child lives, so that it may print.
    _stdout: Option<BufReader<ChildStdout>>,
    _pool: Option<TempFile>,
}

impl Server {
    fn redis(program: &Path) -> Result<Server, Error> {
        let port = free_port()?;
        let mut command = Command::new(program);
        command
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--loglevel", "warning"])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let spawned = command.spawn();
        let child = spawned.map_err(Error::doing(format!("run {}", program.display())))?;
        let mut server = Server {
            name: "redis-server",
            child: Guard(child),
            port,
            _stdout: None,
            _pool: None,
        };
        server.await_ready()?;
        Ok(server)
    }

    fn farbank(program: &Path, pool: Option<&Path>) -> Result<Server, Error> {
        let path = match pool {
            Some(path) if path.exists() => {
                let path = path.display();
                return Err(Error::Failed(format!(
                    "{path} exists already: name a file to be made"
                )));
            }
            Some(path) => path.to_owned(),
            None => TempFile::on_tmpfs("server")?,
        };
        // Before the child: whatever happens to it, its pool goes.
        let file = TempFile::new(&path);
        let mut command = Command::new(program);
        command
            .args([
                "serve",
                "--port",
                "0",
                "--memcached-port",
                "off",
                "--workers",
                "1",
                "--size",
                &POOL_BYTES.to_string(),
            ])
            .arg("--pool")
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let spawned = command.spawn();
        let mut child = Guard(spawned.map_err(Error::doing(format!("run {}", program.display())))?);
        let mut stdout = child.0.stdout.take().map(BufReader::new);
        let mut line = String::new();
        let read = stdout.as_mut().map_or(Ok(0), |s| s.read_line(&mut line));
        read.map_err(Error::doing("read what farbank serve prints"))?;
        let port = port_in(&line).ok_or_else(|| {
            Error::Failed(format!("farbank serve did not start: {}", line.trim()))
        })?;
        let mut server = Server {
            name: "farbank",
            child,
            port,
            _stdout: stdout,
            _pool: Some(file),
        };
        server.await_ready()?;
        Ok(server)
    }

    /// Waits until it takes connections.
    fn await_ready(&mut self) -> Result<(), Error> {
        let since = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let name = self.name;
            if let Some(status) = self.child.0.try_wait().map_err(Error::doing("wait"))? {
                return Err(Error::Failed(format!("{name} did not start: {status}")));
            }
            if since.elapsed() > PATIENCE {
                return Err(Error::Failed(format!("{name} does not answer")));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// User and system time it has used.
    fn cpu(&self) -> Result<Duration, Error> {
        let path = format!("/proc/{}/stat", self.child.0.id());
        let stat = fs::read_to_string(&path).map_err(Error::doing(format!("read {path}")))?;
        let ticks =
            stat::ticks(&stat).ok_or_else(|| Error::Failed(format!("{path} says {stat:?}")))?;
        let a_second = rustix::param::clock_ticks_per_second();
        Ok(Duration::from_secs_f64(ticks as f64 / a_second as f64))
    }
}

/// A port on loopback that nobody uses now.
fn free_port() -> Result<u16, Error> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(Error::doing("find a port"))?;
    let addr = listener.local_addr().map_err(Error::doing("find a port"))?;
    Ok(addr.port())
}

/// The port in the first line `farbank serve` prints.
fn port_in(banner: &str) -> Option<u16> {
    let (_, addr) = banner.split_once("redis://")?;
    let (_, port) = addr.split_whitespace().next()?.rsplit_once(':')?;
    port.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_redis_benchmark_are_read() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\"\n\
                   \"SET\",\"1204819.25\",\"2.1\",\"0.5\"\n";
        assert_eq!(requests_a_second(csv), Some(1_204_819.25));
        for text in [
            "",
            "WARNING: could not fetch server CONFIG",
            "\"test\"\n\"SET\"\n",
        ] {
            assert_eq!(requests_a_second(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_port_is_in_the_banner() {
        let banner = "farbank 0.1.0 listens on redis://127.0.0.1:7002 and redis://[::1]:7002\n";
        assert_eq!(port_in(banner), Some(7002));
        assert_eq!(port_in("error: no\n"), None);
    }

    #[test]
    fn the_ratio_is_that_of_the_medians_and_its_spread_that_of_the_rounds() {
        let seen = [
            Seen {
                cpu_ns: vec![1000.0, 900.0, 1100.0],
                a_second: vec![1.0],
            },
            Seen {
                cpu_ns: vec![400.0, 450.0, 440.0],
                a_second: vec![2.0],
            },
        ];
        let figures = figures("set", 64, &seen);
        let ratio = &figures[2];
        assert_eq!(ratio.name, "SET x 64: ratio of CPU");
        assert_eq!((ratio.value, ratio.at_most), (0.44, Some(0.5)));
        assert_eq!(ratio.spread, Some((0.4, 0.5)));
        assert!(ratio.holds());
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
