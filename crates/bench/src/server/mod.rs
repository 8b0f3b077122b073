//! The server against the one it takes the place of: processor time for an operation, under the same clients.
//!
//! ```text
//!   redis-server, nothing kept ◀──┐                 round 1: redis, farbank
//!                                 ├── redis-benchmark          2: redis, farbank   ... for each pipeline
//!   farbank serve, one worker  ◀──┘                 ...                              and each of SET and GET
//!
//!   memcached, one thread                ◀──┐
//!                                           ├── clients of our own, likewise
//!   farbank serve --engine mdb, one worker ◀┘
//! ```
//!
//! Both are children of this process, on loopback, and take turns, so that whatever else the machine
//! does falls on both. What is compared is processor time, user and system, of the server's process
//! as the kernel accounts it: it does not depend on how fast the clients are, or on how many CPUs
//! they share with the server. Its grain is a tick (10 ms), so a round must be long.
//!
//! The other server keeps nothing: redis-server runs without persistence, and memcached has none. Farbank's pool is a file on
//! tmpfs, and it flushes and fences every batch there as it would on persistent memory.
//!
//! [`open_loop`] measures latency instead, at a fixed rate, beside redis-server with the same durability.

mod memcached;
pub mod open_loop;
mod process;
mod redis;

use std::path::{Path, PathBuf};

use crate::figure::{Error, Figure, ProgressFn, Report, median, report_progress};
use process::{MeasuredServer, ask_version};

/// Keys that are written and read, chosen alike.
const KEYS: u64 = 1_000_000;
/// Connections at a time.
const CLIENTS: u64 = 50;
/// Bytes of a value.
const VALUE_BYTES: usize = 100;

/// What is measured, and how long.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The binary whose `serve` is measured.
    pub farbank: PathBuf,
    /// Beside whom.
    pub peer: PeerServer,
    /// Rounds of each pipeline and operation.
    pub rounds: u64,
    /// Requests of a round; without pipelining a sixth of them.
    pub requests: u64,
    /// Requests a client sends before it waits.
    pub pipelines: Vec<u64>,
    /// Where Farbank's pool is made, and removed; `None`: on tmpfs.
    pub pool: Option<PathBuf>,
}

/// The server Farbank is measured beside.
#[derive(Clone, Debug)]
pub enum PeerServer {
    /// redis-server, beside the durable store.
    Redis {
        /// redis-server.
        server: PathBuf,
        /// redis-benchmark, which loads both.
        benchmark: PathBuf,
    },
    /// memcached, beside the cache; clients of our own load both.
    Memcached {
        /// memcached.
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

    /// At most this much of its processor time, if that is stated for a pipeline.
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

/// What is asked of a server.
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

/// Requests of a round: without pipelining each takes about six times as long.
fn requests_of(options: &ServerOptions, pipeline: u64) -> u64 {
    match pipeline {
        1 => (options.requests / 6).max(1),
        _ => options.requests,
    }
}

/// Starts both servers, measures them in turns, and ends them.
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
    bench.look("starting the servers")?;
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

/// A server with those who load it.
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

/// What one server was seen to do in the rounds of one operation.
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
    fn look(&mut self, what: &str) -> Result<(), Error> {
        let all = self.options.rounds * self.options.pipelines.len() as u64 * 4;
        report_progress(self.watch, what, self.done, all)
    }

    /// Has the server hold the keys: all, or most.
    fn load(&mut self, side: &mut ServerSide<'_>) -> Result<(), Error> {
        let look = || self.look("loading the keys");
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

    /// The rounds of one operation in one pipeline, and what they come to.
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

    /// Has a server answer so many requests; how many a second.
    fn drive(
        &mut self,
        side: &mut ServerSide<'_>,
        operation: ServerOperation,
        pipeline: u64,
        requests: u64,
    ) -> Result<f64, Error> {
        let (name, server) = (operation.name(), side.server);
        let what = format!("{name} in pipelines of {pipeline}, {}", server.name);
        let look = || self.look(&what);
        match &mut side.clients {
            LoadClients::Memcached(clients) => clients.drive(operation, pipeline, requests, look),
            LoadClients::RedisBenchmark(program) => {
                redis::drive(program, server, operation, pipeline, requests, look)
            }
        }
    }
}

/// What the rounds of one operation come to: the peer's are first.
fn figures(
    peer: &PeerServer,
    operation: ServerOperation,
    pipeline: u64,
    seen: &[ServerFigures; 2],
) -> Vec<Figure> {
    let [theirs, ours] = seen;
    let name = |what: &str| format!("{} x {pipeline}: {what}", operation.name().to_uppercase());
    let figure = |who: &str, what: &str, rounds: &[f64]| {
        let name = name(&format!("{who}, {what}"));
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
    fn the_ratio_is_that_of_the_medians_and_its_spread_that_of_the_rounds() {
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
