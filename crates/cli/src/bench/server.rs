//! `farbank bench server`: compares the server with redis-server or memcached.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, value_parser};
use farbank_bench::registry::ExperimentKey as _;
use farbank_bench::server::open_loop::{self, WriteDurability};
use farbank_bench::server::{self, PeerKind};
use serde_json::json;

use super::report::{OutputForm, measure, table};
use crate::common::Failure;
use crate::common::choice::{described, one_of};

const EXAMPLES: &str = "\
Examples:
  farbank bench server
      five rounds each of SET and GET in pipelines of 64, 16 and 1, in about five minutes
  farbank bench server --pipelines 32 --rounds 9
      a different pipeline depth, more rounds
  farbank bench server --peer memcached
      compares the cache with memcached, using the memcached protocol
  farbank bench server --redis /opt/redis/bin/redis-server --pool /mnt/pmem0/bench.pool
      a given redis-server; the pool on persistent memory, removed afterwards
  farbank bench server --open-loop --aged 60
      latency at fixed rates compared with redis-server without persistence, in a pool whose cleaner is active
  farbank bench server --open-loop --sync everysec --loads 30 --seconds 60
      the same with both servers synced once a second, at one rate, for longer";

/// Benchmark the server against redis-server or memcached.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchServer {
    /// Server to compare with: redis (with the durable store) or memcached (with the cache).
    #[arg(long, default_value = "redis", value_parser = one_of(&[PeerKind::Redis, PeerKind::Memcached], PeerKind::name))]
    peer: PeerKind,
    /// Path of redis-server, which runs without persistence.
    #[arg(long, value_name = "PATH", default_value = "redis-server")]
    redis: PathBuf,
    /// Path of redis-benchmark, which generates the load for both servers.
    #[arg(long, value_name = "PATH", default_value = "redis-benchmark")]
    redis_benchmark: PathBuf,
    /// Path of memcached, which runs with one thread. The load generator is built in.
    #[arg(long, value_name = "PATH", default_value = "memcached")]
    memcached: PathBuf,
    /// Rounds of each pipeline depth and operation, or of each rate. The servers take turns.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// Requests per round; one sixth of them with pipeline depth 1.
    #[arg(long, value_name = "N", default_value_t = 3_000_000, conflicts_with = "open_loop", value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    requests: u64,
    /// Pipeline depths: requests that a client sends before it waits for replies.
    #[arg(long, value_name = "N,N,...", default_value = "64,16,1", value_delimiter = ',', conflicts_with = "open_loop", value_parser = value_parser!(u64).range(1..=10_000))]
    pipelines: Vec<u64>,
    /// Path of Farbank's pool, which must not exist yet; it is removed afterwards. Default: a file in /dev/shm, or a
    /// temporary file if it is synced.
    #[arg(long, value_name = "PATH", value_parser = NonEmptyStringValueParser::new())]
    pool: Option<String>,
    /// Measure latency at fixed request rates, with nine GETs per SET. Latency counts from the time a request was
    /// due. Only with --peer redis.
    #[arg(long)]
    open_loop: bool,
    #[command(flatten)]
    open: OpenLoopArgs,
    /// Print one JSON object on the last line.
    #[arg(long)]
    json: bool,
    /// Print the figures that have a bound as a Markdown table, and nothing else.
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
}

/// The options of `--open-loop`.
#[derive(Args)]
struct OpenLoopArgs {
    /// With --open-loop: request rates, in percent of the throughput of the slower server with as many connections
    /// and no pipelining.
    #[arg(long, value_name = "N,N,...", default_value = "30,60", value_delimiter = ',', requires = "open_loop", value_parser = value_parser!(u64).range(1..=200))]
    loads: Vec<u64>,
    /// With --open-loop: number of keys, all stored before the measurement.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, requires = "open_loop", value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    keys: u64,
    /// With --open-loop: bytes of a value.
    #[arg(long, value_name = "N", default_value_t = 100, requires = "open_loop", value_parser = value_parser!(u64).range(1..=1_000_000))]
    value_bytes: u64,
    /// With --open-loop: when a write is synced. With none, redis-server persists nothing and Farbank's pool is on
    /// tmpfs.
    #[arg(long, default_value = "none", requires = "open_loop", value_parser = described(&WriteDurability::ALL, WriteDurability::name, WriteDurability::summary))]
    sync: WriteDurability,
    /// With --open-loop: seconds at each rate for each server, divided among the rounds.
    #[arg(long, value_name = "N", default_value_t = 30, requires = "open_loop", value_parser = value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// With --open-loop: number of connections.
    #[arg(long, value_name = "N", default_value_t = 50, requires = "open_loop", value_parser = value_parser!(u64).range(1..=1_000))]
    connections: u64,
    /// With --open-loop: use a pool with this percentage of live bytes, in which each key has already been
    /// overwritten three times, so that the cleaner is active.
    #[arg(long, value_name = "PERCENT", requires = "open_loop", value_parser = value_parser!(u64).range(10..=90))]
    aged: Option<u64>,
}

impl BenchServer {
    pub(super) fn run(self) -> Result<(), Failure> {
        let farbank = std::env::current_exe()
            .map_err(|e| Failure::failed(format!("cannot find the path of this program: {e}")))?;
        if self.open_loop {
            return self.run_open_loop(farbank);
        }
        let show = self.show();
        let peer = match self.peer {
            PeerKind::Redis => server::PeerServer::Redis {
                server: self.redis,
                benchmark: self.redis_benchmark,
            },
            PeerKind::Memcached => server::PeerServer::Memcached {
                server: self.memcached,
            },
        };
        let options = server::ServerOptions {
            farbank,
            peer,
            rounds: self.rounds,
            requests: self.requests,
            pipelines: self.pipelines,
            pool: self.pool.map(PathBuf::from),
        };
        let settings = json!({ "rounds": options.rounds, "requests": options.requests });
        measure("server", settings, &show, table, |watch| {
            server::run(&options, watch)
        })
    }

    fn show(&self) -> OutputForm {
        OutputForm {
            json: self.json,
            svg: None,
            markdown: self.markdown,
        }
    }

    fn run_open_loop(self, farbank: PathBuf) -> Result<(), Failure> {
        if self.peer == PeerKind::Memcached {
            let why = "--open-loop works only with --peer redis";
            return Err(Failure::Usage(why.into()));
        }
        let show = self.show();
        let open = self.open;
        let options = open_loop::OpenLoopOptions {
            farbank,
            redis: self.redis,
            keys: open.keys,
            value_bytes: open.value_bytes as usize,
            sync: open.sync,
            loads: open.loads,
            connections: open.connections,
            seconds: open.seconds,
            rounds: self.rounds,
            aged: open.aged,
            pool: self.pool.map(PathBuf::from),
        };
        let settings = json!({
            "open_loop": true, "keys": options.keys, "value_bytes": options.value_bytes,
            "sync": options.sync.name(), "loads": options.loads, "connections": options.connections,
            "seconds": options.seconds, "rounds": options.rounds, "aged": options.aged,
            "pool_bytes": options.pool_bytes(),
        });
        measure("server", settings, &show, table, |watch| {
            open_loop::run(&options, watch)
        })
    }
}
