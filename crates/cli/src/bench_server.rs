//! `farbank bench server`: the server beside redis-server or memcached.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum, value_parser};
use farbank_bench::server;
use farbank_bench::server::open_loop;
use serde_json::json;

use crate::Failure;
use crate::bench::{OutputForm, measure, table};

const SERVER_EXAMPLES: &str = "\
Examples:
  farbank bench server
      five rounds each of SET and GET in pipelines of 64, 16 and 1, in about five minutes
  farbank bench server --pipelines 32 --rounds 9
      another pipeline, more rounds
  farbank bench server --peer memcached
      the cache against memcached, with clients of memcached
  farbank bench server --redis /opt/redis/bin/redis-server --pool /mnt/pmem0/bench.pool
      another redis-server; the pool on persistent memory, removed afterwards
  farbank bench server --open-loop --aged 60
      latency at fixed rates beside redis-server without persistence, in a pool whose cleaner is at work
  farbank bench server --open-loop --sync everysec --loads 30 --seconds 60
      the same with both synced once a second, at one rate, for longer";

/// Measure the server against redis-server or memcached.
#[derive(Args)]
#[command(after_help = SERVER_EXAMPLES)]
pub(crate) struct BenchServer {
    /// Beside whom: redis, then it is the durable store, or memcached, then it is the cache.
    #[arg(long, value_enum, default_value = "redis")]
    peer: PeerChoice,
    /// redis-server, run without persistence.
    #[arg(long, value_name = "PATH", default_value = "redis-server")]
    redis: PathBuf,
    /// redis-benchmark, which loads both.
    #[arg(long, value_name = "PATH", default_value = "redis-benchmark")]
    redis_benchmark: PathBuf,
    /// memcached, run with one thread; what loads both is built in.
    #[arg(long, value_name = "PATH", default_value = "memcached")]
    memcached: PathBuf,
    /// Rounds of each pipeline and operation, or of each rate, the servers taking turns.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// Requests of a round; without pipelining a sixth of them.
    #[arg(long, value_name = "N", default_value_t = 3_000_000, conflicts_with = "open_loop", value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    requests: u64,
    /// Requests a client sends before it waits.
    #[arg(long, value_name = "N,N,...", default_value = "64,16,1", value_delimiter = ',', conflicts_with = "open_loop", value_parser = value_parser!(u64).range(1..=10_000))]
    pipelines: Vec<u64>,
    /// Farbank's pool, a file that is not there yet; if not given, one in /dev/shm, or among temporary files
    /// where it is synced. It is removed afterwards.
    #[arg(long, value_name = "PATH", value_parser = NonEmptyStringValueParser::new())]
    pool: Option<String>,
    /// Measure latency at fixed rates, nine GETs to a SET, from when each request was due: beside redis only.
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
    /// With --open-loop: rates, in percent of what the slower server answers on as many connections without pipelining.
    #[arg(long, value_name = "N,N,...", default_value = "30,60", value_delimiter = ',', requires = "open_loop", value_parser = value_parser!(u64).range(1..=200))]
    loads: Vec<u64>,
    /// With --open-loop: keys, all of which are stored before.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, requires = "open_loop", value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    keys: u64,
    /// With --open-loop: bytes of a value.
    #[arg(long, value_name = "N", default_value_t = 100, requires = "open_loop", value_parser = value_parser!(u64).range(1..=1_000_000))]
    value_bytes: u64,
    /// With --open-loop: when a write is durable. Without sync redis-server keeps nothing, and Farbank's pool is on tmpfs.
    #[arg(long, value_enum, default_value = "none", requires = "open_loop")]
    sync: BenchSyncChoice,
    /// With --open-loop: seconds at each rate, for each server, divided into the rounds.
    #[arg(long, value_name = "N", default_value_t = 30, requires = "open_loop", value_parser = value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// With --open-loop: connections.
    #[arg(long, value_name = "N", default_value_t = 50, requires = "open_loop", value_parser = value_parser!(u64).range(1..=1_000))]
    connections: u64,
    /// With --open-loop: a pool of which this many percent are live, each key overwritten three times before, so that the cleaner is at
    /// work.
    #[arg(long, value_name = "PERCENT", requires = "open_loop", value_parser = value_parser!(u64).range(10..=90))]
    aged: Option<u64>,
}

#[derive(Clone, Copy, ValueEnum)]
enum BenchSyncChoice {
    /// Not at all.
    None,
    /// Within a second.
    Everysec,
    /// Before it is answered.
    Always,
}

#[derive(Clone, Copy, ValueEnum)]
enum PeerChoice {
    Redis,
    Memcached,
}

impl BenchServer {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let farbank = std::env::current_exe()
            .map_err(|e| Failure::failed(format!("cannot find this program: {e}")))?;
        if self.open_loop {
            return self.run_open_loop(farbank);
        }
        let show = self.show();
        let peer = match self.peer {
            PeerChoice::Redis => server::PeerServer::Redis {
                server: self.redis,
                benchmark: self.redis_benchmark,
            },
            PeerChoice::Memcached => server::PeerServer::Memcached {
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
        if let PeerChoice::Memcached = self.peer {
            let why = "--open-loop is beside redis: leave --peer memcached out";
            return Err(Failure::Usage(why.into()));
        }
        let show = self.show();
        let open = self.open;
        let options = open_loop::OpenLoopOptions {
            farbank,
            redis: self.redis,
            keys: open.keys,
            value_bytes: open.value_bytes as usize,
            sync: match open.sync {
                BenchSyncChoice::None => open_loop::WriteDurability::None,
                BenchSyncChoice::Everysec => open_loop::WriteDurability::Everysec,
                BenchSyncChoice::Always => open_loop::WriteDurability::Always,
            },
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
