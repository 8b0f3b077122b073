//! Compares Farbank's server with redis-server and memcached: processor time per operation, under the same clients.
//!
//! ```text
//!   redis-server, no persistence ◀─┐                 round 1: redis, farbank
//!                                  ├── redis-benchmark          2: redis, farbank   ... for each pipeline
//!   farbank serve, one worker   ◀──┘                 ...                              and each of SET and GET
//!
//!   memcached, one thread                ◀──┐
//!                                           ├── clients of this crate, in the same rounds
//!   farbank serve --engine mdb, one worker ◀┘
//! ```
//!
//! Both servers are child processes on loopback and take turns, so that other load on the machine affects both. The
//! compared quantity is the user and system time of the server's process, as the kernel accounts it. It does not
//! depend on how fast the clients are, nor on how many CPUs they share with the server. Its resolution is a tick (10
//! ms), so a round must be long.
//!
//! The other server stores nothing durably: redis-server runs without persistence, and memcached has none. Farbank's
//! pool is a file on tmpfs. There Farbank flushes and fences every batch as it would on persistent memory.
//!
//! [`open_loop`] measures latency instead, at a fixed rate, next to redis-server with the same durability.

mod memcached;
pub mod open_loop;
mod process;
mod redis;

use std::path::{Path, PathBuf};

use crate::figure::{Error, Figure, ProgressFn, Report, median, report_progress};
use process::{MeasuredServer, ask_version};

/// Number of keys, chosen uniformly.
const KEYS: u64 = 1_000_000;
/// Number of concurrent connections.
const CLIENTS: u64 = 50;
/// Size of a value in bytes.
const VALUE_BYTES: usize = 100;

/// Options of a measurement.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Path of the `farbank` binary.
    pub farbank: PathBuf,
    /// Server to compare with.
    pub peer: PeerServer,
    /// Rounds of each pipeline length and operation.
    pub rounds: u64,
    /// Requests in a round. Rounds without pipelining have a sixth of them.
    pub requests: u64,
    /// Pipeline lengths: requests that a client sends before it waits.
    pub pipelines: Vec<u64>,
    /// Path of Farbank's pool, which is created and removed. `None` places it on tmpfs.
    pub pool: Option<PathBuf>,
}

/// Kind of server that Farbank is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerKind {
    /// redis-server, compared with the durable store.
    Redis,
    /// memcached, compared with the cache.
    Memcached,
}

/// Server that Farbank is compared with.
#[derive(Clone, Debug)]
pub enum PeerServer {
    /// redis-server, compared with the durable store.
    Redis {
        /// Path of redis-server.
        server: PathBuf,
        /// Path of redis-benchmark, which loads both servers.
        benchmark: PathBuf,
    },
    /// memcached, compared with the cache. Clients of this crate load both servers.
    Memcached {
        /// Path of memcached.
        server: PathBuf,
    },
}

impl PeerServer {
    fn name(&self) -> &'static str {
        match self {
            PeerServer::Redis { .. } => "redis-server",
            PeerServer::Memcached { .. } => "memcached",
        }
    }

    fn program(&self) -> &Path {
        match self {
            PeerServer::Redis { server, .. } | PeerServer::Memcached { server } => server,
        }
    }

    /// Returns the largest allowed ratio of Farbank's processor time to this server's, if there is a bound.
    fn bound(&self, operation: ServerOperation, pipeline: u64) -> Option<f64> {
        match (self, operation, pipeline) {
            (PeerServer::Redis { .. }, _, 64) => Some(0.5),
            (PeerServer::Redis { .. }, _, 16) => Some(0.6),
            (PeerServer::Redis { .. }, _, 1) => Some(1.05),
            (PeerServer::Memcached { .. }, ServerOperation::Set, 16 | 64) => Some(0.5),
            (PeerServer::Memcached { .. }, ServerOperation::Get, 16 | 64) => Some(0.2),
            (PeerServer::Memcached { .. }, _, 1) => Some(1.0),
            _ => None,
        }
    }
}

/// Operation that clients request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerOperation {
    Set,
    Get,
}

impl ServerOperation {
    fn name(self) -> &'static str {
        match self {
            ServerOperation::Set => "set",
            ServerOperation::Get => "get",
        }
    }
}

/// Returns the requests in a round. Without pipelining a request takes about six times as long.
fn requests_of(options: &ServerOptions, pipeline: u64) -> u64 {
    match pipeline {
        1 => (options.requests / 6).max(1),
        _ => options.requests,
    }
}

/// Starts both servers, measures them in turns, and ends them.
///
/// # Errors
/// A program is missing, a server does not start or sends a wrong reply, or `watch` stopped the run.
pub fn run(options: &ServerOptions, watch: ProgressFn<'_>) -> Result<Report, Error> {
    let peer = &options.peer;
    match peer {
        PeerServer::Redis { server, benchmark } => {
            ask_version(server, "redis-server")?;
            ask_version(benchmark, "redis-tools")?;
        }
        PeerServer::Memcached { server } => ask_version(server, "memcached")?,
    }
    let mut bench = ServerBench {
        options,
        watch,
        done: 0,
    };
    bench.report_progress("starting the servers")?;
    let theirs = MeasuredServer::peer(peer)?;
    let ours = MeasuredServer::farbank(&options.farbank, peer, options.pool.as_deref())?;
    let mut sides = [ServerSide::of(peer, &theirs)?, ServerSide::of(peer, &ours)?];
    for side in &mut sides {
        bench.load(side)?;
    }
    let mut report = Report::default();
    for &pipeline in &options.pipelines {
        for operation in [ServerOperation::Set, ServerOperation::Get] {
            bench.compare(&mut sides, operation, pipeline, &mut report)?;
        }
    }
    Ok(report)
}

/// A server and its load clients.
struct ServerSide<'a> {
    server: &'a MeasuredServer,
    clients: LoadClients<'a>,
}

enum LoadClients<'a> {
    RedisBenchmark(&'a Path),
    Memcached(memcached::MemcachedClients),
}

impl<'a> ServerSide<'a> {
    fn of(peer: &'a PeerServer, server: &'a MeasuredServer) -> Result<ServerSide<'a>, Error> {
        let clients = match peer {
            PeerServer::Redis { benchmark, .. } => LoadClients::RedisBenchmark(benchmark),
            PeerServer::Memcached { .. } => {
                LoadClients::Memcached(memcached::MemcachedClients::of(server)?)
            }
        };
        Ok(ServerSide { server, clients })
    }
}

/// Results of one server in the rounds of one operation.
#[derive(Default)]
struct ServerFigures {
    cpu_ns: Vec<f64>,
    a_second: Vec<f64>,
}

struct ServerBench<'a, 'w> {
    options: &'a ServerOptions,
    watch: ProgressFn<'w>,
    done: u64,
}

impl ServerBench<'_, '_> {
    fn report_progress(&mut self, what: &str) -> Result<(), Error> {
        let all = self.options.rounds * self.options.pipelines.len() as u64 * 4;
        report_progress(self.watch, what, self.done, all)
    }

    /// Stores the keys. redis-benchmark draws keys at random, so it stores only most of them.
    fn load(&mut self, side: &mut ServerSide<'_>) -> Result<(), Error> {
        let look = || self.report_progress("loading the keys");
        match &mut side.clients {
            LoadClients::Memcached(clients) => clients.load(look),
            LoadClients::RedisBenchmark(program) => {
                redis::drive(
                    program,
                    side.server,
                    ServerOperation::Set,
                    64,
                    3 * KEYS,
                    look,
                )?;
                Ok(())
            }
        }
    }

    /// Runs all rounds of one operation and pipeline length, and adds the figures.
    fn compare(
        &mut self,
        sides: &mut [ServerSide<'_>; 2],
        operation: ServerOperation,
        pipeline: u64,
        report: &mut Report,
    ) -> Result<(), Error> {
        let requests = requests_of(self.options, pipeline);
        let mut seen = [ServerFigures::default(), ServerFigures::default()];
        for _ in 0..self.options.rounds {
            for (side, seen) in sides.iter_mut().zip(&mut seen) {
                let before = side.server.cpu()?;
                seen.a_second
                    .push(self.drive(side, operation, pipeline, requests)?);
                let used = (side.server.cpu()? - before).as_nanos() as f64;
                seen.cpu_ns.push(used / requests as f64);
                self.done += 1;
            }
        }
        let peer = &self.options.peer;
        report
            .figures
            .extend(figures(peer, operation, pipeline, &seen));
        Ok(())
    }

    /// Sends `requests` requests to a server. Returns requests per second.
    fn drive(
        &mut self,
        side: &mut ServerSide<'_>,
        operation: ServerOperation,
        pipeline: u64,
        requests: u64,
    ) -> Result<f64, Error> {
        let (name, server) = (operation.name(), side.server);
        let what = format!("{name} in pipelines of {pipeline}, {}", server.name);
        let look = || self.report_progress(&what);
        match &mut side.clients {
            LoadClients::Memcached(clients) => clients.drive(operation, pipeline, requests, look),
            LoadClients::RedisBenchmark(program) => {
                redis::drive(program, server, operation, pipeline, requests, look)
            }
        }
    }
}

/// Computes the figures of one operation from its rounds. The other server's results come first.
fn figures(
    peer: &PeerServer,
    operation: ServerOperation,
    pipeline: u64,
    seen: &[ServerFigures; 2],
) -> Vec<Figure> {
    let [theirs, ours] = seen;
    let name = |what: &str| format!("{} x {pipeline}: {what}", operation.name().to_uppercase());
    let figure = |system: &str, what: &str, rounds: &[f64]| {
        let name = name(&format!("{system}, {what}"));
        Figure::measured("server", name, median(rounds)).spread(rounds)
    };
    let pairs: Vec<f64> = (ours.cpu_ns.iter().zip(&theirs.cpu_ns))
        .map(|(ours, theirs)| ours / theirs)
        .collect();
    let ratio = median(&ours.cpu_ns) / median(&theirs.cpu_ns);
    vec![
        figure(peer.name(), "CPU", &theirs.cpu_ns).unit("ns"),
        figure("farbank", "CPU", &ours.cpu_ns).unit("ns"),
        Figure {
            at_most: peer.bound(operation, pipeline),
            ..Figure::measured("server", name("ratio of CPU"), ratio).spread(&pairs)
        },
        figure(peer.name(), "requests", &theirs.a_second).unit("a second"),
        figure("farbank", "requests", &ours.a_second).unit("a second"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_taken_from_medians_and_its_spread_from_rounds() {
        let seen = [
            ServerFigures {
                cpu_ns: vec![1000.0, 900.0, 1100.0],
                a_second: vec![1.0],
            },
            ServerFigures {
                cpu_ns: vec![400.0, 450.0, 440.0],
                a_second: vec![2.0],
            },
        ];
        let peer = PeerServer::Memcached {
            server: "memcached".into(),
        };
        let figures = figures(&peer, ServerOperation::Set, 64, &seen);
        let ratio = &figures[2];
        assert_eq!(ratio.name, "SET x 64: ratio of CPU");
        assert_eq!((ratio.value, ratio.at_most), (0.44, Some(0.5)));
        assert_eq!(ratio.spread, Some((0.4, 0.5)));
        assert!(ratio.holds());
    }
}
